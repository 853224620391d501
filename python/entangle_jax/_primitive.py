"""The primitive: operands are the leaves of the payload and then those of the witnesses, results the payload's.

Everything that JAX asks of a primitive stands here, in the order in which JAX asks for it.
"""

import functools
import importlib
import sys
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir

from entangle_jax import _partitioning, _private
from entangle_jax._warnings import warn_user

_private.register_exclusion(__file__)

TARGET = "entangle"
"""The name of the native target. Part of exported programs: it never changes."""

NATIVE_PLATFORMS = ("cpu", "cuda", "rocm")
"""Platforms, as JAX names them in lowering, that have a native handler."""


class _Entangle(_private.Primitive):
    """`n`: how many operands are payload. `shared`: which of those are witnesses as well."""

    multiple_results = True

    def bind(self, *operands: Any, n: int, shared: tuple[int, ...]) -> list[Any]:
        # `jax.experimental.jet` takes long to import, so its rule is registered once somebody has done so.
        if (jet := sys.modules.get("jax.experimental.jet")) is not None:
            jet.jet_rules.setdefault(self, _jet)
        return super().bind(*operands, n=n, shared=shared)


entangle_p = _Entangle("entangle")


# Evaluation outside of `jit`, as under an eager `vmap` or `grad`.
entangle_p.def_impl(functools.partial(_private.apply_primitive, entangle_p))


# Dtype, weak type, sharding, memory space, varying axes: all are the payload's.
@entangle_p.def_abstract_eval
def _abstract_eval(*avals: Any, n: int, shared: tuple[int, ...]) -> list[Any]:
    del shared
    return list(avals[:n])


# Lowering: one custom call for the leaves in device memory, and one for each leaf in host memory, since XLA:GPU
# compiles no call that has a result in host memory beside another result. Each call waits for all other operands: for
# those that have been through a call already, as they came out of it.
def _lower_natively(ctx: mlir.LoweringRuleContext, *operands: Any, n: int, shared: tuple[int, ...]) -> Any:
    if n == len(operands) and not shared:  # no witness is left, as in the linear map of a checkpointed function
        return operands
    on_host = [i for i in range(n) if getattr(ctx.avals_in[i], "memory_space", None) is jax.memory.Space.Host]
    on_device = [i for i in range(n) if i not in on_host]
    calls = [[i] for i in on_host]
    if on_device:
        calls.insert(0, on_device)
    current = list(operands)
    for leaves in calls:
        order = [*leaves, *(i for i in range(len(operands)) if i not in leaves)]
        results = _custom_call(ctx, [current[i] for i in order], [ctx.avals_in[i] for i in order], len(leaves))
        for i, result in zip(leaves, results, strict=True):
            current[i] = result
    return current[:n]


# Each result is in the memory of its operand, and XLA chooses the layouts.
def _custom_call(ctx: mlir.LoweringRuleContext, operands: list[Any], avals: list[Any], n: int) -> list[Any]:
    lowering = jax.ffi.ffi_lowering(
        TARGET,
        operand_output_aliases={i: i for i in range(n) if avals[i] is not _private.abstract_token},
        skip_ffi_layout_processing=True,
        extra_attributes=_partitioning.sharding_rule(operands, n),
    )
    ctx = ctx.replace(avals_in=avals, avals_out=avals[:n])
    results = lowering(ctx, *_partitioning.behind_barriers(ctx, operands, n))
    return [
        result if aval is _private.abstract_token else _private.lower_with_sharding_in_types(ctx, result, aval)
        for result, aval in zip(results, avals[:n], strict=True)
    ]


def _lower_to_barrier(ctx: mlir.LoweringRuleContext, *operands: Any, n: int, shared: tuple[int, ...]) -> Any:
    del shared
    platforms = ctx.platforms or ctx.module_context.platforms
    warn_user(
        f"no native handler for {', '.join(platforms)}, so `jax.lax.optimization_barrier` stands in for it there. "
        "A compiler may remove that before it schedules: check the order of native calls in the compiled program"
    )
    # XLA tokens have no place in a barrier.
    is_token = [aval is _private.abstract_token for aval in ctx.avals_in]

    def barrier(*values: Any) -> list[Any]:
        arrays = [value for value, token in zip(values, is_token, strict=True) if not token]
        behind = iter(jax.lax.optimization_barrier(arrays))
        return [value if token else next(behind) for value, token in zip(values[:n], is_token, strict=False)]

    return mlir.lower_fun(barrier, multiple_results=True)(ctx, *operands)


def _lower_for_tpu(ctx: mlir.LoweringRuleContext, *operands: Any, n: int, shared: tuple[int, ...]) -> Any:
    # Imported now, so that programs for other platforms do not pay for it.
    return importlib.import_module("entangle_jax._tpu").lower(ctx, *operands, n=n, shared=shared)


mlir.register_lowering(entangle_p, _lower_to_barrier)
for _platform in NATIVE_PLATFORMS:
    mlir.register_lowering(entangle_p, _lower_natively, platform=_platform)
mlir.register_lowering(entangle_p, _lower_for_tpu, platform="tpu")


# Batching: every operand keeps its own axis, since nothing looks inside.
def _batch(operands: Any, dims: Any, *, n: int, shared: tuple[int, ...]) -> Any:
    return entangle_p.bind(*operands, n=n, shared=shared), list(dims[:n])


batching.primitive_batchers[entangle_p] = _batch


def _after(out: Any, primals: Any, n: int, shared: tuple[int, ...]) -> list[Any]:
    """What a derivative has to wait for: the witnesses, and the payload's other leaves.

    Those as they come out, since the memory of the operands is that of the results now.
    """
    return [*primals[n:], *(out if n > 1 else (out[i] for i in shared))]


# Forward mode: the tangent is ordered as the payload is. Zeros stay symbolic, and a witness has no derivative.
def _jvp(primals: Any, tangents: Any, *, n: int, shared: tuple[int, ...]) -> Any:
    out = entangle_p.bind(*primals, n=n, shared=shared)
    tangents_out = list(tangents[:n])
    live = [i for i, tangent in enumerate(tangents_out) if type(tangent) is not ad.Zero]
    if live:
        moved = entangle_p.bind(
            *(tangents_out[i] for i in live), *_after(out, primals, n, shared), n=len(live), shared=()
        )
        for i, tangent in zip(live, moved, strict=True):
            tangents_out[i] = tangent
    return out, tangents_out


ad.primitive_jvps[entangle_p] = _jvp


# Taylor mode: the terms are ordered as the payload is, all in one call.
def _jet(primals: Any, series: Any, *, n: int, shared: tuple[int, ...]) -> Any:
    out = entangle_p.bind(*primals, n=n, shared=shared)
    terms = [term for leaf in series[:n] for term in leaf]
    moved = iter(entangle_p.bind(*terms, *_after(out, primals, n, shared), n=len(terms), shared=()))
    return out, [[next(moved) for _ in leaf] for leaf in series[:n]]


# Linearization: for reverse mode the linear map is the identity and holds nothing of the witnesses.
def _linearize(for_reverse: bool, nonzeros: Any, *primals: Any, n: int, shared: tuple[int, ...]) -> Any:
    params = {"n": n, "shared": shared}
    if not for_reverse:
        return _private.linearize_from_jvp_rule(entangle_p, for_reverse, nonzeros, *primals, **params)
    # A rule returns the results first, then which of them have tangents, and the linear map last. What stands between
    # differs from version to version: take it, as it is without tangents, from JAX itself.
    rule = list(_private.linearize_from_jvp_rule(entangle_p, for_reverse, [False] * len(primals), *primals, **params))
    rule[1] = list(nonzeros[:n])
    rule[-1] = lambda *args: list(args[-len(primals) :][:n])
    return tuple(rule)


_private.primitive_linearizations[entangle_p] = _linearize


# Transposition: the cotangent of the payload passes untouched.
def _transpose(cotangents: Any, *operands: Any, n: int, shared: tuple[int, ...]) -> Any:
    del shared
    return [
        None if not ad.is_undefined_primal(operand) else cotangents[i] if i < n else ad.Zero(operand.aval.to_ct_aval())
        for i, operand in enumerate(operands)
    ]


ad.primitive_transposes[entangle_p] = _transpose


# `jax.checkpoint`: what is unknown to its forward pass is a tangent, most likely on its way to be transposed, and as
# in `_linearize` it is to hold no witness. JAX does not tell whether it is: `jax.linearize` of a checkpointed function
# is the one case where tangents do not wait. What is known is kept or computed again as the policy says.
def _checkpoint(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    n = eqn.params["n"]
    if any(unknown):
        keep = len(eqn.invars) if not any(unknown[:n]) else n
        known, staged = None, eqn.replace(invars=eqn.invars[:keep])
    else:
        saved = saveable(eqn.primitive, *(v.aval for v in eqn.invars), **eqn.params)
        if saved is True or type(saved).__name__ == "SaveableType":
            return eqn, None, [False] * n, [False] * n, []
        keep, known, staged = len(eqn.invars), eqn, eqn
    residuals = [v for v, there in zip(eqn.invars[:keep], instantiated, strict=False) if not there]
    return known, staged, [known is None] * n, [True] * n, residuals


_private.partial_eval_jaxpr_custom_rules[entangle_p] = _checkpoint
