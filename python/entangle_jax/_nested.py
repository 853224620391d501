"""A function traced as a jitted function of its own, for one call.

`jax.jit(fn)(*arrays)` with a new function each time does the same and takes longer: most of that goes into keys for
caches in which nothing is ever found. Here what was traced is compared instead: calls that turn out to be equal, but
for the numbers in them, share one jaxpr, and JAX lowers a jaxpr once.
"""

from __future__ import annotations

import collections
import functools
import weakref
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from entangle_jax import _private
from entangle_jax._ordering import jaxprs
from entangle_jax._primitive import entangle_p

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_private.register_exclusion(__file__)

_NO_NAMES = _private.NameStack()

_RECENT = 8
"""With so many traces of the same name, the last ones, a new one is compared."""


def call(name: str, fn: Callable[..., list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """Call a function of arrays that returns a list of arrays, as a jitted one of that name.

    It is traced each time, so that nothing which one call saw is used for another. What it closes over becomes an
    operand, and so do the numbers in it.
    """
    jaxpr, consts = _private.trace_to_jaxpr(name, fn, [jax.typeof(array) for array in arrays])
    jaxpr, numbers = _shared(name, jaxprs.opened(jaxpr).jaxpr)
    return jaxprs.bind_new_jit(name, jaxpr, [*numbers, *consts, *arrays])


def call_equation(name: str, eqn: Any, operands: Sequence[Any], handle: Sequence[int] = ()) -> list[Any] | None:
    """Bind an equation again, in a jitted function of that name, in which these operands are marked as the handle.

    This traces nothing. None if it takes more than that: operands that are no arrays, or of other types than those that
    the equation was traced with.
    """
    ins: list[Any] = []
    of: dict[int, tuple[Any, Any]] = {}  # each operand once, and the variable that it is inside
    for v, value in zip(eqn.invars, operands, strict=True):
        if jaxprs.is_literal(v) and v.val is value:
            ins.append(v)
        elif isinstance(v.aval, jax.core.ShapedArray) and v.aval == jax.typeof(value):
            ins.append(of.setdefault(id(value), (_private.Var(v.aval), value))[0])
        else:
            return None
    source = eqn.source_info.replace(name_stack=_NO_NAMES)  # those around the equation are around the call
    eqns = []
    for i in handle:
        if not jaxprs.is_literal(v := ins[i]):
            ins[i] = _private.Var(v.aval)
            marker = {"primitive": entangle_p, "params": {"n": 1, "shared": ()}, "effects": frozenset()}
            eqns.append(eqn.replace(invars=[v], outvars=[ins[i]], source_info=source, **marker))
    outs = [_private.Var(v.aval) for v in eqn.outvars]
    eqns.append(eqn.replace(invars=ins, outvars=outs, source_info=source))
    jaxpr, numbers = _shared(name, jaxprs.of_equations([v for v, _ in of.values()], outs, eqns))
    return jaxprs.bind_new_jit(name, jaxpr, [*numbers, *(value for _, value in of.values())])


@functools.lru_cache(maxsize=1024)
def _recent(name: str) -> collections.deque[weakref.ref[Any]]:
    """The last traces of that name, as long as something else keeps them, the newest first."""
    del name
    return collections.deque(maxlen=_RECENT)


def _shared(name: str, jaxpr: Any) -> tuple[Any, list[Any]]:
    """A closed jaxpr that takes the numbers in this one as its first arguments, and these numbers.

    It is one that was made before, if that is equal.
    """
    recent = _recent(name)
    for one in list(recent):  # another thread may add to it
        other = one()
        if other is not None and (numbers := _numbers(jaxpr, jaxprs.opened(other).jaxpr)) is not None:
            return other, numbers
    made, numbers = _without_numbers(jaxpr)
    made = jaxprs.closed(made)
    recent.appendleft(weakref.ref(made))
    return made, numbers


def _without_numbers(jaxpr: Any) -> tuple[Any, list[Any]]:
    """The jaxpr with the numbers that stand in it as arguments before all others, and these numbers."""
    if not all(isinstance(v.aval, jax.core.ShapedArray) for v in jaxpr.invars):
        return jaxpr, []  # the effect on a Ref says by its number which argument that is
    arguments: list[Any] = []
    numbers: list[Any] = []

    def moved(atom: Any) -> Any:
        if not jaxprs.is_literal(atom):
            return atom
        arguments.append(_private.Var(atom.aval))
        numbers.append(atom.val)
        return arguments[-1]

    eqns = [eqn.replace(invars=[moved(atom) for atom in eqn.invars]) for eqn in jaxpr.eqns]
    return jaxpr.replace(invars=[*arguments, *jaxpr.invars], eqns=eqns) if numbers else jaxpr, numbers


def _numbers(jaxpr: Any, other: Any) -> list[Any] | None:
    """The numbers with which a jaxpr that was made by `_without_numbers` is the same as this one; None if it is not.

    The same means: but for the names of the variables. In doubt they are not the same.
    """
    if len(jaxpr.eqns) != len(other.eqns):
        return None
    count = len(other.invars) - len(jaxpr.invars)
    arguments = other.invars[:count]
    numbers: list[Any] = []
    of: dict[Any, Any] = {}  # a variable of this one, as that of the other

    def define(those: Sequence[Any], these: Sequence[Any]) -> bool:
        if len(those) != len(these):
            return False
        for v, w in zip(those, these, strict=True):
            if v.aval is not w.aval and v.aval != w.aval:
                return False
            of[v] = w
        return True

    def use(those: Sequence[Any], these: Sequence[Any]) -> bool:
        if len(those) != len(these):
            return False
        for v, w in zip(those, these, strict=True):
            if not jaxprs.is_literal(v):
                if of[v] is not w:
                    return False
            elif v.aval != w.aval:
                return False
            elif len(numbers) < count and w is arguments[len(numbers)]:
                numbers.append(v.val)
            elif not jaxprs.is_literal(w) or not _same(v.val, w.val):
                return False
        return True

    if not define(jaxpr.invars, other.invars[count:]):  # nor if there are more here
        return None
    for eqn, one in zip(jaxpr.eqns, other.eqns, strict=True):
        if (
            eqn.primitive is not one.primitive
            or not use(eqn.invars, one.invars)
            or not define(eqn.outvars, one.outvars)
            or not _same_params(eqn.params, one.params)
            # From the same line, by the same calls, in the same scopes, with the same settings.
            or eqn.source_info.traceback != one.source_info.traceback
            or eqn.source_info.name_stack != one.source_info.name_stack
            or (eqn.ctx is not one.ctx and eqn.ctx != one.ctx)
        ):
            return None
    return numbers if use(jaxpr.outvars, other.outvars) else None


def _same_params(params: dict[str, Any], others: dict[str, Any]) -> bool:
    return params.keys() == others.keys() and all(
        value is others[key] or _same(value, others[key]) for key, value in params.items()
    )


_PLAIN = (str, int, bool, bytes, jax.core.ShapedArray)


def _same(a: Any, b: Any) -> bool:
    """Whether two values are the same, as far as their types are known to say so. 1, 1.0 and True are different."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    if issubclass(kind, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return kind in _PLAIN and bool(a == b)
