"""Every private name of JAX that this package uses, and why there is no public one.

JAX promises nothing about these. Each is taken through `_take`, so that a version without it is an
error that says so at import, not a crash later; the tests run against the newest release for the same reason.
"""

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax


def _take(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"entangle-jax uses `{module}.{name}`, which jax {jax.__version__} does not have. This entangle-jax is "
            "older than that jax: install a newer entangle-jax, or an older jax (0.10.0 to 0.12.0 are known to work)."
        ) from error


# The same class as `jax.extend.core.Primitive`, whose import brings Pallas with it and takes longer than all else here.
# There since 0.4.
Primitive: Any = _take("jax._src.core", "Primitive")

# Evaluates a primitive by itself, as JAX does its own: compiled once a signature, also where jit is turned off, and
# without going round in circles where `jax_debug_nans` evaluates again what gave a NaN. There since 0.4.
apply_primitive: Any = _take("jax._src.dispatch", "apply_primitive")

# Whether we are called by plain Python, outside of every transformation: then a cached jitted path is fast.
# Public until 0.4.36.
trace_state_clean: Any = _take("jax._src.core", "trace_state_clean")

# The trace that is going on and the traces around it, so that `Handle` sees a loop between the place where a handle was
# made and the place where it is used. There since 0.4.36.
trace_ctx: Any = _take("jax._src.core", "trace_ctx")
unsafe_get_trace_stack: Any = _take("jax._src.core", "unsafe_get_trace_stack")

# The type of the values of `jax.lax.create_token` and `after_all`; `jax.core.abstract_token` is deprecated since 0.9.
abstract_token: Any = _take("jax._src.core", "abstract_token")

# Rules that know whether they linearize for reverse mode. Only there can a witness be dropped, so that reverse
# mode holds no residual; the rule that derives a linearization from a JVP rule keeps it. There since 0.5.
primitive_linearizations: dict[Any, Any] = _take("jax._src.interpreters.ad", "primitive_linearizations")
linearize_from_jvp_rule: Any = _take("jax._src.interpreters.ad", "fallback_linearize_rule")

# Rules for what `jax.checkpoint` keeps and what it computes again. There since 0.4.
partial_eval_jaxpr_custom_rules: dict[Any, Any] = _take(
    "jax._src.interpreters.partial_eval", "partial_eval_jaxpr_custom_rules"
)

# How the partitioner splits a custom call; `custom_partitioning` would bake a reference to a Python object of this
# process into the program, so that exports and caches of it would be void. There since 0.4.
register_custom_call_partitioner: Any = _take("jaxlib.xla_client", "register_custom_call_partitioner")
HloSharding: Any = _take("jaxlib.xla_client", "HloSharding")
register_plugin_callbacks: Any = _take("jax._src.xla_bridge", "register_plugin_callbacks")

# Says in the program what the type says of a result's sharding on an explicit mesh, as every lowering is to do. Newer
# ones insist on it for values that are still to be summed over an axis. There since 0.5.
lower_with_sharding_in_types: Any = _take("jax._src.interpreters.mlir", "lower_with_sharding_in_types")

# Where in a program a lowering stands: in a part that each device runs by itself (`shard_map`), or in one that XLA
# splits over devices, which it cannot do to a kernel on TPU. There since 0.4.
SPMDAxisContext: Any = _take("jax._src.sharding_impls", "SPMDAxisContext")
ShardingContext: Any = _take("jax._src.sharding_impls", "ShardingContext")

# Registers a target of the host now. `jax.ffi.register_ffi_target` keeps it until a backend is made, where a refusal
# stops jax as a whole with "Unable to initialize backend 'cpu'", whoever is to blame. There since 0.4.
register_host_target: Any = _take("jaxlib._jax", "register_custom_call_target")

# Frames of these files are left out of the source lines that XLA keeps for each operation, so that a call points at
# the user's line. `jax.extend.source_info_util` has it too, and imports all of `jax.extend`. There since 0.4.
register_exclusion: Any = _take("jax._src.source_info_util", "register_exclusion")

# For the list of the calls that a function makes: the lines of the user's code that an equation comes from. There since
# 0.4.
user_frames: Any = _take("jax._src.source_info_util", "user_frames")

# For `ordered`, which evaluates a jaxpr again: what is traced meanwhile has the source line and the names of the
# equation that it stands for. There since 0.4.36.
current_name_stack: Any = _take("jax._src.source_info_util", "current_name_stack")
user_context: Any = _take("jax._src.source_info_util", "user_context")
NameStack: Any = _take("jax._src.source_info_util", "NameStack")

# The user's line of an equation, for error messages. There since 0.4.
summarize: Any = _take("jax._src.source_info_util", "summarize")

# For `ordered`: what a jitted function's argument has that no sharding was given for. There since 0.4.
UNSPECIFIED: Any = _take("jax._src.sharding_impls", "UNSPECIFIED")

# For `ordered`: the jaxpr of a checkpointed function has no constants, so they become arguments. There since 0.4.
convert_constvars_jaxpr: Any = _take("jax._src.interpreters.partial_eval", "convert_constvars_jaxpr")

# For marks, each of which is a jitted function of its own: `jax.jit` takes four times as long, most of it for keys of
# caches. There since 0.4, with these arguments since 0.5.
_trace_to_jaxpr: Any = _take("jax._src.interpreters.partial_eval", "trace_to_jaxpr_dynamic")
_wrap_init: Any = _take("jax._src.linear_util", "wrap_init")
_DebugInfo: Any = _take("jax._src.linear_util", "DebugInfo")

# For marks: an argument more of a jaxpr. There since 0.4.
Var: Any = _take("jax._src.core", "Var")

# For marks: the mesh that is set, which is a parameter of a jitted function. There since 0.6.
get_ctx_mesh: Any = _take("jax._src.pjit", "get_ctx_mesh")

# The native targets that are registered: jax has no public list of them. There since 0.5.
custom_call_targets: Any = _take("jaxlib.xla_client", "custom_call_targets")

# To see the programs that tests compile, whoever compiles them; a public way there is none. The function has had the
# backend and the module as its first arguments, and returned the executable, since 0.4.
compile_or_get_cached: Any = _take("jax._src.compiler", "compile_or_get_cached")

# What `jax.stages.Lowered.compiler_ir("hlo")` does for what one lowers oneself. There since 0.5.
_to_hlo: Any = _take("jaxlib._jax", "mlir")
_module_to_bytecode: Any = _take("jax._src.interpreters.mlir", "module_to_bytecode")


def trace_to_jaxpr(name: str, fn: Callable[..., list[Any]], avals: list[Any]) -> tuple[Any, list[Any]]:
    """The jaxpr of a function that returns a list, and the values that it closes over: they are its first arguments."""
    jaxpr, _, consts = _trace_to_jaxpr(_wrap_init(fn, debug_info=_DebugInfo("jit", name, None, None)), avals)
    return (convert_constvars_jaxpr(jaxpr) if consts else jaxpr), consts


def traces() -> list[Any]:
    """The traces that are going on, from the outermost to the innermost."""
    return cast("list[Any]", unsafe_get_trace_stack(trace_ctx.trace))


def trace_of(tracer: Any) -> Any:
    """The trace that made this tracer."""
    return tracer._trace


def in_while_loop() -> bool:
    """Whether the body or the condition of a `while_loop` is being traced, as far as JAX says so. There since 0.5."""
    infos = (getattr(getattr(trace, "frame", None), "debug_info", None) for trace in traces())
    return any(getattr(info, "traced_for", None) in {"while_body", "while_cond"} for info in infos)


def loop_traced(trace: Any) -> str | None:
    """The body or condition of a loop that this trace is of, as `name at file:line`; None if it is of something else.

    A trace without `frame`, as of `vmap` and `grad`, is of no loop. What JAX says of a function that it traces is there
    since 0.5.
    """
    info: Any = getattr(getattr(trace, "frame", None), "debug_info", None)
    return info.func_src_info if getattr(info, "traced_for", None) in _LOOPS else None


_LOOPS = ("scan", "while_body", "while_cond", "fori_loop")


def sdy() -> Any:
    """The dialect of Shardy, imported when first needed.

    `jax.extend.mlir.dialects.sdy` is the same module, but importing that imports all of `jax.extend`. There since
    0.4.36.
    """
    return importlib.import_module("jaxlib.mlir.dialects.sdy")


def kept_arguments(stage: Any) -> list[int] | None:
    """The positions, among all leaves of the arguments, of those that the program of a `Lowered` or `Compiled` has.

    `jax.stages` says what the arguments are and not which of them jit left out. None if this jax says it elsewhere.
    There since 0.4.
    """
    lowering = getattr(stage, "_lowering", None)
    kept = getattr(lowering, "compile_args", {}).get("kept_var_idx")
    if kept is None:
        kept = getattr(getattr(stage, "_executable", None), "_kept_var_idx", None)
    return None if kept is None else sorted(kept)


@contextlib.contextmanager
def compilations(watch: Callable[[Any, Any], None]) -> Iterator[None]:
    """Hand each program that any thread compiles meanwhile to `watch`: its MLIR module and its executable."""
    module = importlib.import_module("jax._src.compiler")
    with _watching:
        if not _watchers:
            plain = module.compile_or_get_cached

            def compile_or_get_cached(backend: Any, computation: Any, *args: Any, **kwargs: Any) -> Any:
                executable = plain(backend, computation, *args, **kwargs)
                for each in list(_watchers):
                    each(computation, executable)
                return executable

            compile_or_get_cached.plain = plain  # type: ignore[attr-defined]
            module.compile_or_get_cached = compile_or_get_cached  # type: ignore[attr-defined]
        _watchers.append(watch)
    try:
        yield
    finally:
        with _watching:
            _watchers.remove(watch)
            if not _watchers:
                module.compile_or_get_cached = module.compile_or_get_cached.plain  # type: ignore[attr-defined]


_watching = threading.Lock()
_watchers: list[Callable[[Any, Any], None]] = []


def as_hlo(module: Any) -> bytes:
    """A program as it was handed to the compiler, as a serialized `HloModuleProto`."""
    computation = _to_hlo.mlir_module_to_xla_computation(_module_to_bytecode(module))
    program: bytes = computation.as_serialized_hlo_module_proto()
    return program


def registered_targets() -> set[str]:
    """The native targets that are registered in this process."""
    return {target for platform in ("Host", "CUDA", "ROCM") for target in custom_call_targets(platform)}
