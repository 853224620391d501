"""The public function: from pytrees to one native call and back."""

from typing import Any, TypeVar, cast

import jax

from entangle_jax import _private
from entangle_jax._leaves import Operands, is_there_already, path_of, sort_leaves, value_of_witness
from entangle_jax._primitive import entangle_p
from entangle_jax._warnings import OrderingWarning

P = TypeVar("P")

_private.register_exclusion(__file__)


def entangle(payload: P, *witnesses: Any) -> P:
    """Return `payload`, such that everything that uses it depends, by data, on every witness.

    XLA orders operations only by the data that flows between them. If one native call reads an object behind a handle,
    and another one changes it, no data flows between the two, so XLA may merge, drop or swap them. `entangle` makes
    the second one wait: ::

        y = solve(handle, b)                  # reads the factorisation
        handle = entangle(handle, y)          # what uses the handle from here on waits for y
        handle = refactor(handle, values)     # changes the factorisation: after the solve

    XLA's optimizer cannot see through the call. Otherwise it is as if the call were not there: it computes nothing,
    copies no payload that is donated or computed in the program, keeps dtype, weak type, sharding and layout, and can
    be differentiated, batched, sharded and exported. It is one native call, however many leaves there are.

    Args:
      payload: a pytree of arrays, of any shape and dtype, PRNG keys and XLA tokens included. Python scalars
        and numpy arrays become arrays as they do in `jax.numpy`. Each leaf of the result waits for every witness, and
        for the other leaves.
      *witnesses: pytrees of arrays to wait for, of any shape and dtype. Their values are never read and never
        copied, and they have no derivative. Python scalars and numpy arrays are ignored, because they exist before the
        program runs. A `jax.Ref` stands for its value now: `entangle` waits for everything that was written to it.

    Returns:
      A pytree like `payload`, with the same values bit for bit. Without witnesses, `payload` itself.

    Raises:
      TypeError: a leaf is not an array.
      ValueError: outside of `jit`, payload and witnesses are on different devices.
      jax.errors.UnexpectedTracerError: a leaf comes from a transformation that has ended.

    Warns:
      OrderingWarning: something cannot be ordered: the witnesses, or the payload, contain no array; a leaf has no
        elements (unless no leaf has any: then there is nothing to order); the platform is none of CPU, CUDA, ROCm and
        TPU; or, on TPU, a leaf is an XLA token. Outside of `jit` at least once for each signature.

    Outside of `jit` the payload is copied, as any argument that is not donated. So entangle the small array that names
    a native object, not the large arrays beside it.

    Examples:
      >>> import jax
      >>> from entangle_jax import entangle, testing
      >>> @jax.jit
      ... def program(token):
      ...     before = testing.read(token)
      ...     token = testing.write(entangle(token, before), 1.0)  # the write waits for the read
      ...     return before, testing.read(token)
      >>> testing.reset()
      >>> [float(value) for value in program(testing.slot(0))]
      [0.0, 1.0]
    """
    if not witnesses:
        return payload
    made = tuple(witness for witness in witnesses if not is_there_already(witness))
    if not made or not _private.trace_state_clean():
        return _call(sort_leaves(payload, witnesses, warn=True))
    last_trace = _last_trace[0]
    try:
        result = _eager(payload, made)
    except (TypeError, ValueError, jax.errors.UnexpectedTracerError) as error:
        _explain(payload, witnesses, error)
        # A jitted function does not take objects with `__jax_array__`, the same Ref twice, or trees whose structure has
        # no hash.
        return _call(sort_leaves(payload, witnesses, warn=True))
    if _last_trace[0] is not last_trace:
        # Traced for the first time: only now is it worth the time to look at what was passed.
        try:
            sort_leaves(payload, witnesses, warn=True)
        except OrderingWarning:  # as an error: the next call is to raise it too
            cast("Any", _eager).clear_cache()
            raise
    return result


_last_trace: list[object] = [None]
"""One object, a new one each time that `_eager` is traced, by whichever thread: at worst we look once too often."""


@jax.jit
def _eager(payload: Any, witnesses: tuple[Any, ...]) -> Any:
    """The path outside of transformations: flattening and dispatch happen in C++, tracing once a signature."""
    _last_trace[0] = object()
    return _call(sort_leaves(payload, witnesses, warn=False))


def _call(operands: Operands) -> Any:
    results = operands.payload
    # A lone leaf that is its own witness has nothing to wait for.
    if results and (operands.witnesses or (operands.shared and len(results) > 1)):
        results = entangle_p.bind(*results, *operands.witnesses, n=len(results), shared=operands.shared)
    return operands.treedef.unflatten([results[place] for place in operands.places])


def _explain(payload: Any, witnesses: tuple[Any, ...], error: Exception) -> None:
    """Raise what jax's error means for this call, if it is about one of its leaves."""
    sort_leaves(payload, witnesses, warn=False)
    leaves = [
        (path_of(role, tree, i), value_of_witness(leaf))
        for role, tree in (("payload", payload), ("witness", witnesses))
        for i, leaf in enumerate(jax.tree.leaves(tree))
    ]
    for where, leaf in leaves:
        if isinstance(leaf, jax.core.Tracer):
            raise jax.errors.UnexpectedTracerError(
                f"entangle: {where} is a tracer ({leaf.aval}) of a transformation that has ended; return it from "
                "the transformed function instead of keeping it in a variable outside."
            ) from error
    devices = {where: leaf.devices() for where, leaf in leaves if isinstance(leaf, jax.Array) and leaf.committed}
    if len({frozenset(those) for those in devices.values()}) > 1:
        places = "; ".join(f"{where} on {sorted(map(str, those))}" for where, those in devices.items())
        raise ValueError(
            f"entangle: payload and witnesses are on different devices: {places}. XLA orders work within one program, "
            "which runs on one set of devices: move one of them with `jax.device_put`, or pass as witness "
            "something that was computed from it on the payload's devices."
        ) from error
