"""A function traced as a jitted function of its own, for one call.

`jax.jit(fn)(*arrays)` with a new function each time does the same and takes four times as long: most of that goes into
keys for caches in which nothing is ever found. What is traced is compared instead: calls that turn out to be equal
share one jaxpr, and JAX lowers a jaxpr once.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_private.register_exclusion(__file__)

_RECENT = 8
"""With so many traces of the same name, the last ones, a new one is compared."""


def call(name: str, fn: Callable[..., list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """Call a function of arrays that returns a list of arrays, as a jitted one of that name.

    It is traced each time, so that nothing which one call saw is used for another. What it closes over become operands.
    """
    jaxpr, consts = _private.trace_to_jaxpr(name, fn, [jax.typeof(array) for array in arrays])
    return jaxprs.bind_new_jit(name, _shared(name, jaxprs.closed(jaxpr)), [*consts, *arrays])


@functools.lru_cache(maxsize=1024)
def _recent(name: str) -> collections.deque[weakref.ref[Any]]:
    """The last traces of that name, as long as something else keeps them, the newest first."""
    del name
    return collections.deque(maxlen=_RECENT)


def _shared(name: str, jaxpr: Any) -> Any:
    """The jaxpr, or an equal one that was traced before."""
    recent = _recent(name)
    opened = jaxprs.opened(jaxpr).jaxpr
    for one in list(recent):  # another thread may add to it
        other = one()
        if other is not None and _equal(opened, jaxprs.opened(other).jaxpr):
            return other
    recent.appendleft(weakref.ref(jaxpr))
    return jaxpr


def _equal(a: Any, b: Any) -> bool:
    """Whether two jaxprs without constants are the same but for the names of their variables. In doubt they are not."""
    if (len(a.eqns), len(a.invars), len(a.outvars)) != (len(b.eqns), len(b.invars), len(b.outvars)):
        return False
    of: dict[Any, Any] = {}  # a variable of one, as that of the other
    if not _define(of, a.invars, b.invars):
        return False
    for x, y in zip(a.eqns, b.eqns, strict=True):
        if x.primitive is not y.primitive or not _use(of, x.invars, y.invars) or not _define(of, x.outvars, y.outvars):
            return False
        params, others = x.params, y.params
        if len(params) != len(others):
            return False
        for key, value in params.items():
            if not _same(value, others.get(key, _ABSENT)):
                return False
        # From the same line, by the same calls, in the same scopes, with the same settings.
        one, other = x.source_info, y.source_info
        if one.traceback != other.traceback or one.name_stack != other.name_stack:
            return False
        if x.ctx is not y.ctx and x.ctx != y.ctx:
            return False
    return _use(of, a.outvars, b.outvars)


def _define(of: dict[Any, Any], those: Sequence[Any], these: Sequence[Any]) -> bool:
    if len(those) != len(these):
        return False
    for v, w in zip(those, these, strict=True):
        if v.aval is not w.aval and v.aval != w.aval:
            return False
        of[v] = w
    return True


def _use(of: dict[Any, Any], those: Sequence[Any], these: Sequence[Any]) -> bool:
    if len(those) != len(these):
        return False
    for v, w in zip(those, these, strict=True):
        if jaxprs.is_literal(v):
            if not jaxprs.is_literal(w) or v.aval != w.aval or not _same(v.val, w.val):
                return False
        elif of[v] is not w:
            return False
    return True


_ABSENT = object()
_PLAIN = (str, int, bytes, jax.core.ShapedArray)


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
