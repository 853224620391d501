"""The public function: from a function to one whose native calls run as it reads."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast, overload

import jax
import jax.numpy as jnp
import numpy as np

from entangle_jax import _private
from entangle_jax._entangle import entangle
from entangle_jax._ordering import jaxprs, objects, rules  # noqa: F401 (the rules register themselves)
from entangle_jax._ordering.accesses import CallSpec, Specification
from entangle_jax._ordering.evaluate import Evaluation
from entangle_jax._ordering.plan import Planner
from entangle_jax._ordering.world import World
from entangle_jax._primitive import NATIVE_PLATFORMS, TARGET
from entangle_jax._warnings import warn_user

P = ParamSpec("P")
R = TypeVar("R")

_private.register_exclusion(__file__)

Calls = Sequence[CallSpec] | dict[str, Sequence[CallSpec]]


@overload
def ordered(fn: Callable[P, R], /, *, reads: Calls = (), writes: Calls = ()) -> Callable[P, R]: ...
@overload
def ordered(*, reads: Calls = (), writes: Calls = ()) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def ordered(fn: Any = None, /, *, reads: Any = (), writes: Any = ()) -> Any:
    """Make the native calls and callbacks of a function run in the order in which the function makes them.

    The function itself says nothing about order: ::

        @jax.jit
        @ordered
        def step(token, values, b):
            x = solve(token, b)          # marked with `reads("mylib.matrix")`
            refactor(token, values)      # marked with `writes("mylib.matrix")`: after the solve
            return x, solve(token, b)    # with the new values

    It orders *accesses*: the native calls and callbacks in functions that are marked with `reads` or `writes`, and
    those that are named here. A write comes after every earlier access of the same object, and every later access comes
    after the write. Reads may run in any order among themselves. This also holds in loops, branches, nested jitted
    functions, and JAX's transformations inside of the function. A write runs even if its result is not used.

    What is named here is marked in the trace, so `audit` and an ordered function around this one know it.

    `ordered` orders the accesses within one call of the function. To order two calls from Python, pass a result of the
    first to the second, or keep the object in a `Handle`.

    Args:
      fn: the function. Arrays among its arguments are traced; the other arguments stay what they are. Without it,
        `ordered` returns a decorator.
      reads: the calls that read, in functions that are not marked. Name each by its native target, its primitive or the
        primitive's name, or the Python function given to a callback; or by a pair of one of these and the operand (or
        operands, counted from 0) that holds the handle. A dict says which resource they read:
        `{"mylib.matrix": ["lu_solve"]}`. All calls that are named without a resource use one resource.
      writes: the calls that write, likewise.

    Returns:
      A function with the same arguments and results. Outside of `jit` it is compiled once for each signature, as by
      `jit`. Arguments that are not arrays are part of the signature. Inside of `jit` it is traced with the function
      around it.

    Raises:
      TypeError: a call is named by something else; or the derivative of the ordered function has accesses that
        cannot be ordered (differentiate first: `ordered(jax.grad(f))`); or an outer `vmap` batches the predicate of a
        branch or loop that writes.
      NotImplementedError: there are accesses inside of an operation that `ordered` does not know.

    Warns:
      OrderingWarning: a call that was named does not occur in the function; or a call that was named without a resource
        is made in a function that is marked with one, and other calls are only named, or only marked.

    Examples:
      >>> import jax
      >>> from entangle_jax import ordered, testing
      >>> def program(token):  # nothing is marked
      ...     before = testing.read(token)
      ...     testing.write(token, 1.0)
      ...     return before, testing.read(token)
      >>> in_order = ordered(program, reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET])
      >>> testing.reset()
      >>> [float(value) for value in jax.jit(in_order)(testing.slot(0))]
      [0.0, 1.0]
    """
    Specification.of(reads, writes)
    if fn is None:
        return functools.partial(_decorated, reads=reads, writes=writes)
    return _decorated(fn, reads=reads, writes=writes)


def _decorated(fn: Any, *, reads: Any, writes: Any) -> Any:
    if not callable(fn):
        raise TypeError(f"entangle_jax.ordered: got an object of type {type(fn).__name__}, wanted a function.")

    def compiled(rest: _Rest, *arrays: Any) -> Any:
        return _Results.of(_evaluate(fn, reads, writes, *rest.filled(arrays)))

    compiled.__name__ = compiled.__qualname__ = getattr(fn, "__name__", None) or type(fn).__name__
    jitted = jax.jit(compiled, static_argnums=0)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if cast("Any", jax.config).jax_disable_jit:  # then a mark leaves no trace, and loops and branches are gone
            with jax.disable_jit(False):
                return wrapped(*args, **kwargs)
        leaves, treedef = jax.tree.flatten((args, kwargs))
        if not _private.trace_state_clean():
            return _evaluate(fn, reads, writes, leaves, treedef)
        rest, arrays = _Rest.of(leaves, treedef)
        return jitted(rest, *arrays).value

    return wrapped


def _evaluate(fn: Any, reads: Any, writes: Any, leaves: list[Any], treedef: Any) -> Any:
    """Trace the function, and evaluate what was traced in order."""
    traced: dict[int, int] = {}  # by identity: an array that is passed twice is one argument, and one object
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, jax.core.Tracer):
            traced.setdefault(id(leaf), i)
    places = list(traced.values())
    number = {key: n for n, key in enumerate(traced)}
    results: list[Any] = []
    arrays_out: list[int] = []
    out_treedef: Any = None

    def flat(*arrays: Any) -> list[Any]:
        nonlocal out_treedef
        inner = [arrays[number[id(leaf)]] if isinstance(leaf, jax.core.Tracer) else leaf for leaf in leaves]
        args, kwargs = treedef.unflatten(inner)
        results[:], out_treedef = jax.tree.flatten(fn(*args, **kwargs))
        arrays_out[:] = [i for i, leaf in enumerate(results) if isinstance(leaf, jax.core.Tracer)]
        found = [results[i] for i in arrays_out]
        for i in arrays_out:
            results[i] = None  # no tracer outlives its trace
        return found

    operands = [leaves[i] for i in places]
    jaxpr = jax.make_jaxpr(flat)(*operands)
    for i, value in zip(arrays_out, _in_order(jaxpr, operands, Specification.of(reads, writes)), strict=True):
        results[i] = value
    return out_treedef.unflatten(results)


def _in_order(jaxpr: Any, operands: list[Any], specification: Specification) -> list[Any]:
    planner = Planner(specification)
    plan = planner.plan(jaxpr, [objects.argument(i) for i in range(len(operands))])
    for one in specification.all():
        if id(one) not in planner.seen:
            warn_user(f"`ordered` was told of {one}, and the function makes no such call")
    for name, resource in planner.split():
        warn_user(
            f"`ordered` was told of {name} without a resource, and the function calls it in a function that is marked "
            f"with {resource!r}: calls that are only named and calls that are only marked do not wait for each other. "
            f"If they use the same thing, name them with its resource: `{{{resource!r}: [{name}]}}`"
        )
    evaluation = Evaluation(objects.Cells.of(plan.touches), planner, not _private.in_while_loop())
    results, world = evaluation.run(plan, operands, World())
    unkept = [one for past in world.pasts.values() if not past.kept for one in past.writes]
    if unkept:
        _keep(unkept, jaxprs.opened(jaxpr).jaxpr, results)
    return results


def _keep(writes: list[Any], jaxpr: Any, results: list[Any]) -> None:
    """Make XLA keep what the last writes gave, and so the writes: a result waits for them.

    One that is computed and that nothing else needs, since that costs no copy. If there is none, a call waits for them
    that has a side effect and does nothing: XLA cannot split such a call over devices by itself.
    """
    used = [v for eqn in jaxpr.eqns for v in eqn.invars]
    made = {
        v for eqn in jaxpr.eqns if not objects.forwards(eqn) and not any(jaxprs.inner_jaxprs(eqn)) for v in eqn.outvars
    }
    counts = collections.Counter(id(v) for v in (*used, *jaxpr.outvars))
    free = [
        i
        for i, v in enumerate(jaxpr.outvars)
        if counts[id(v)] == 1 and v in made and hasattr(v.aval, "size") and v.aval.size
    ]
    if free:
        i = min(free, key=lambda i: jaxpr.outvars[i].aval.size)
        results[i] = entangle(results[i], *writes)
        return

    def keep(token: Any) -> Any:
        call: Any = jax.ffi.ffi_call(TARGET, _like(token), has_side_effect=True, input_output_aliases={0: 0})
        return call(token)

    token = entangle(jnp.zeros((), jnp.int32), *writes)
    native = dict.fromkeys(NATIVE_PLATFORMS, keep)
    jax.lax.platform_dependent(token, default=lambda token: token, **native)


def _like(token: Any) -> Any:
    aval = jax.typeof(token)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=aval.sharding, manual_axis_type=aval.mat)


class _Rest:
    """The arguments of a call outside of `jit` but for the arrays: a part of the signature."""

    def __init__(self, leaves: tuple[_Static, ...], is_array: tuple[bool, ...], treedef: Any) -> None:
        self._is = leaves, is_array, treedef
        self._hash = hash(self._is)

    @classmethod
    def of(cls, leaves: list[Any], treedef: Any) -> tuple[_Rest, list[Any]]:
        is_array = [isinstance(leaf, _ARRAYS) for leaf in leaves]
        if all(is_array):
            return cls._of_arrays(treedef), leaves
        arrays = [leaf for leaf, one in zip(leaves, is_array, strict=True) if one]
        rest = tuple(_Static.of(leaf) for leaf, one in zip(leaves, is_array, strict=True) if not one)
        return cls(rest, tuple(is_array), treedef), arrays

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def _of_arrays(cls, treedef: Any) -> _Rest:
        """Where there are only arrays: one for all calls, since that is sooner compared."""
        return cls((), (True,) * treedef.num_leaves, treedef)

    def filled(self, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
        """All arguments."""
        leaves, is_array, treedef = self._is
        traced, rest = iter(arrays), iter(leaves)
        return [next(traced) if one else next(rest).value for one in is_array], treedef

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Rest) and self._is == other._is)


_ARRAYS = (jax.Array, np.ndarray)


@dataclass(frozen=True, eq=False)
class _Static:
    """An argument that is no array. What has no hash is told by its identity.

    1, 1.0 and True are different ones, and so are 0.0 and -0.0; a NaN is the same each time.
    """

    value: Any
    key: Hashable

    @classmethod
    def of(cls, value: Any) -> _Static:
        if type(value) in (float, complex):
            return cls(value, repr(value))
        if isinstance(value, np.generic):
            return cls(value, (value.dtype, value.tobytes()))
        try:
            hash(value)
        except TypeError:
            return cls(value, id(value))
        return cls(value, value)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and type(self.value) is type(other.value) and bool(self.key == other.key)


class _Results:
    """What the function returned, as what `jit` can return: arrays, and all else as part of the structure."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @classmethod
    def of(cls, value: Any) -> _Results:
        return cls(value)

    def flatten(self) -> tuple[list[Any], Any]:
        leaves, treedef = jax.tree.flatten(self.value)
        is_array = tuple(isinstance(leaf, jax.Array | jax.core.Tracer | np.ndarray) for leaf in leaves)
        rest = tuple(_Static.of(leaf) for leaf, one in zip(leaves, is_array, strict=True) if not one)
        return [leaf for leaf, one in zip(leaves, is_array, strict=True) if one], (treedef, is_array, rest)

    @classmethod
    def unflatten(cls, structure: Any, arrays: Sequence[Any]) -> _Results:
        treedef, is_array, rest = structure
        if not rest:
            return cls(treedef.unflatten(arrays))
        those, others = iter(arrays), iter(rest)
        return cls(treedef.unflatten([next(those) if one else next(others).value for one in is_array]))


jax.tree_util.register_pytree_node(_Results, _Results.flatten, _Results.unflatten)
