"""Native slots, to test the order of native calls with: here, and in the test suites of other packages.

A slot is a small native object: one number in native memory. Native calls read and change it, which XLA cannot see, and
a log has what ran, in the order in which it ran.

>>> import jax
>>> from entangle_jax import entangle, testing
>>> @jax.jit
... def program(token):
...     before = testing.read(token, label="before")
...     token = testing.write(entangle(token, before), 1.0)
...     return before, testing.read(token, label="after")
>>> testing.reset()
>>> [float(value) for value in program(testing.slot(0))]
[0.0, 1.0]
>>> [(access.op, access.label) for access in testing.log()]
[('read', 'before'), ('write', None), ('read', 'after')]

A process has one set of slots and one log. If tests run in several threads of one process, let each thread use slots of
its own.

On a GPU, the calls are a part of the stream, or of the CUDA or HIP graph. Operands and results are copied
asynchronously, and the host waits for nothing.

There are no slots on TPU, where a program cannot call native code. Lowering a program that uses them for TPU raises a
`NotImplementedError`. Test order there with callbacks, or with `entangle_jax.audit`.
"""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import batching, mlir

from entangle_jax import _native, _private

if TYPE_CHECKING:
    from collections.abc import Iterator

    from entangle_jax._audit_targets import TargetSpecs
    from entangle_jax.reports import Report

_private.register_exclusion(__file__)

__all__ = ["READ_TARGET", "WRITE_TARGET", "Access", "audited", "log", "read", "reset", "slot", "write"]

READ_TARGET = "entangle_testing_read"
"""The native target behind `read`: operand 0 is the token."""

WRITE_TARGET = "entangle_testing_write"
"""The native target behind `write`: operand 0 is the token, operand 1 the value."""


class Access(NamedTuple):
    """One native access to a slot, as `log` lists it.

    Examples:
      >>> from entangle_jax import testing
      >>> testing.reset(2.0)
      >>> _ = testing.read(testing.slot(3), label="look").block_until_ready()
      >>> testing.log()
      (Access(op='read', slot=3, value=2.0, label='look'),)
    """

    op: str
    """`"read"` or `"write"`."""
    slot: int
    """The number of the slot."""
    value: float
    """What was read or written."""
    label: str | None
    """The name that was given to the call."""


def slot(index: int) -> jax.Array:
    """Return a token: an `int32` scalar that names a slot. All slots exist; you need not make them.

    Args:
      index: the number of the slot, from 0 to 2**31 - 1.

    Raises:
      TypeError: `index` is not an integer.
      ValueError: `index` is negative or does not fit into 31 bits.

    Examples:
      >>> from entangle_jax import testing
      >>> testing.slot(3)
      Array(3, dtype=int32)
    """
    try:
        index = operator.index(index)
    except TypeError as error:
        raise TypeError(
            f"entangle_jax.testing.slot: the index is of type {type(index).__name__}, wanted an int."
        ) from error
    if not 0 <= index < 2**31:
        raise ValueError(f"entangle_jax.testing.slot: the index is {index}, wanted 0 to {2**31 - 1}.")
    return jnp.asarray(index, jnp.int32)


def read(token: jax.Array, *operands: Any, label: str | None = None) -> jax.Array:
    """Read the value of a slot, by a native call.

    The call has no side effect: XLA may merge it with another one, or drop it if its result is not used.

    Args:
      token: an `int32` scalar.
      *operands: arrays of any shape and dtype. The call ignores their values, but waits for them.
      label: a name for the call in the log.

    Returns:
      A `float32` scalar. It has no derivative. Under `vmap` the call runs once for each element if
      the token or an operand is batched, otherwise once.

    Raises:
      TypeError: the token is not an `int32` scalar, or the label is not a string.
      NotImplementedError: the program is lowered for TPU.

    Examples:
      >>> from entangle_jax import testing
      >>> testing.reset(2.0)
      >>> float(testing.read(testing.slot(0)))
      2.0
    """
    inputs = [token, *operands]
    return _call(READ_TARGET, jnp.float32, inputs, label, has_side_effect=False)


def write(token: jax.Array, value: Any, label: str | None = None) -> jax.Array:
    """Replace the value of a slot, by a native call.

    The call has a side effect: XLA keeps it even if its result is not used. That does not put it in order.

    Args:
      token: an `int32` scalar.
      value: a scalar, which becomes `float32`.
      label: a name for the call in the log.

    Returns:
      A token of the same value. Under `vmap` the call runs once for each element if the token or the value is
      batched, otherwise once.

    Raises:
      TypeError: the token is not an `int32` scalar, the value is not a scalar, or the label is not a string.
      NotImplementedError: the program is lowered for TPU.

    Examples:
      >>> from entangle_jax import testing
      >>> token = testing.write(testing.slot(0), 5.0)
      >>> float(testing.read(token))
      5.0
    """
    value = jnp.asarray(value, jnp.float32)
    if value.shape != ():
        raise TypeError(f"entangle_jax.testing.write: the value is {jax.typeof(value)}, wanted a scalar.")
    return _call(WRITE_TARGET, jnp.int32, [token, value], label, has_side_effect=True)


def reset(value: float = 0.0) -> None:
    """Give every slot `value` and empty the log. Wait for running programs first (`jax.block_until_ready`).

    Args:
      value: the new value of every slot.

    Examples:
      >>> from entangle_jax import testing
      >>> testing.reset(2.0)
      >>> testing.log()
      ()
    """
    _native.slots_reset(value)


def log() -> tuple[Access, ...]:
    """Return what ran since the last reset, in the order in which the native code ran. Safe in any thread.

    Examples:
      >>> from entangle_jax import testing
      >>> testing.reset()
      >>> _ = testing.write(testing.slot(0), 5.0).block_until_ready()
      >>> [(access.op, access.value) for access in testing.log()]
      [('write', 5.0)]
    """
    return tuple(Access(*access) for access in _native.slots_log())


@contextlib.contextmanager
def audited(*, reads: TargetSpecs = (), writes: TargetSpecs = ()) -> Iterator[list[Report]]:
    """Audit every program that JAX compiles in the `with` block, in any thread, and raise at a race.

    A fixture for pytest: ::

        @pytest.fixture(autouse=True)
        def no_races():
            with entangle_jax.testing.audited(reads=["my_solve"], writes=["my_refactor"]):
                yield

    The error is raised where the test calls the program, before the program runs. Marked calls, and calls through a
    `Handle`, need no names. JAX does not compile a program again that it has compiled before: call `jax.clear_caches()`
    first to audit that program too.

    Args:
      reads: native targets that use an object, as of `audit`. A name that no program calls is no error here.
      writes: native targets that change an object, likewise.

    Returns:
      A context. Its value is a list, to which it adds a report for each program that makes native calls.

    Raises:
      RaceError: a program has a race; its report is the message, and is in the list.
      TypeError: a target is neither a name nor a pair.
      ValueError: there are reads and no writes; or a program cannot be audited.

    Examples:
      >>> import jax
      >>> from entangle_jax import testing
      >>> with testing.audited(reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET]) as reports:
      ...     token = jax.jit(lambda token: testing.write(token, 1.0))(testing.slot(0))
      >>> [report.races for report in reports]
      [()]
    """
    from entangle_jax import _audit  # noqa: PLC0415 (only those who use it need it)

    reports: list[Report] = []
    _audit.expect_targets(reads, writes)

    def watch(module: Any, executable: Any) -> None:
        report = _audit.audit_compilation(module, executable, reads, writes)
        if report is not None:
            reports.append(report)
            if report.races:
                report.raise_if_races()

    with _private.compilations(watch):
        yield reports


def _call(target: str, dtype: Any, inputs: list[Any], label: str | None, *, has_side_effect: bool) -> jax.Array:
    if hasattr(inputs[0], "fence"):
        raise TypeError(
            "entangle_jax.testing: the token is a Handle; pass this function to its `read` or `write`, or pass "
            "`handle.token`."
        )
    if not isinstance(label, str | None):
        raise TypeError(f"entangle_jax.testing: the label is of type {type(label).__name__}, wanted a str.")
    inputs = [jax.lax.stop_gradient(jnp.asarray(x)) for x in inputs]
    token = jax.typeof(inputs[0])
    if token.dtype != jnp.int32 or token.shape != ():
        raise TypeError(f"entangle_jax.testing: the token is {token}, wanted an int32 scalar from `slot`.")
    inputs = [jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in inputs]
    # Inside `shard_map` a call varies over every axis over which one of its inputs does.
    axes = frozenset().union(*(jax.typeof(x).mat.varying for x in inputs))
    inputs = [_vary(x, axes) for x in inputs]
    where = {}
    if axes:
        of_input = jax.typeof(inputs[0])
        replicated = jax.sharding.NamedSharding(of_input.sharding.mesh, jax.sharding.PartitionSpec())
        where = {"sharding": replicated, "manual_axis_type": of_input.mat}
    result = jax.ShapeDtypeStruct((), dtype, **where)
    call = jax.ffi.ffi_call(target, result, has_side_effect=has_side_effect, vmap_method="sequential")
    # An access is looked at where it is no handle: at what is written, or what was read.
    inputs[1:] = map(_native_p.bind, inputs[1:])
    accessed: Any = call(*inputs, **({} if label is None else {"label": label}))
    return _native_p.bind(accessed) if target == READ_TARGET else accessed


# The identity, on platforms that can call native code.
_native_p: Any = _private.Primitive("entangle_testing_native")
_native_p.def_impl(lambda x: x)
_native_p.def_abstract_eval(lambda aval: aval)
batching.primitive_batchers[_native_p] = lambda operands, dims: (_native_p.bind(*operands), *dims)
mlir.register_lowering(_native_p, lambda ctx, operand: [operand])


def _lower_for_tpu(ctx: mlir.LoweringRuleContext, operand: Any) -> Any:
    raise NotImplementedError(
        "entangle_jax.testing: there are no slots on TPU, where a program cannot call native code of the host. Test "
        "order there with `jax.pure_callback` and `jax.experimental.io_callback`, which the host runs, or with "
        "`entangle_jax.audit`; or use slots on the CPU: `with jax.default_device(jax.devices('cpu')[0])`."
    )


mlir.register_lowering(_native_p, _lower_for_tpu, platform="tpu")


def _vary(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    missing = tuple(sorted(axes - jax.typeof(x).mat.varying))
    return jax.lax.pcast(x, missing, to="varying") if missing else x
