"""What is an access: the calls that are named where they are used, and the native calls of marked functions."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from entangle_jax import _marks, _private
from entangle_jax._ordering import jaxprs

CallSpec = str | tuple[Any, Any] | Callable[..., Any] | Any
"""What is named in `reads` and `writes` of `ordered`."""

_CALLBACKS = ("pure_callback", "io_callback")
_CALLS = ("ffi_call", "buffer_callback", *_CALLBACKS)
"""Primitives of JAX that call what XLA does not know."""


@dataclass(frozen=True)
class Declared:
    """One call that was named: what it does, and which operands hold the handle."""

    resource: str
    writes: bool
    operands: tuple[int, ...] | None
    given: Any
    """As the user gave it."""

    def mark(self, *, opaque: bool, debug: bool) -> _marks.Mark:
        """The mark that says the same."""
        return _marks.Mark(self.resource, self.writes, handle=self.operands is not None, opaque=opaque, debug=debug)

    @property
    def name(self) -> str:
        """That of the target, primitive or function."""
        return self.given if isinstance(self.given, str) else getattr(self.given, "__name__", None) or str(self.given)

    def __str__(self) -> str:
        return repr(self.name) if isinstance(self.given, str) or hasattr(self.given, "__name__") else self.name


@dataclass
class Specification:
    """All that was named, and what of it has been seen."""

    by_name: dict[str, list[Declared]] = field(default_factory=dict)
    """By native target or primitive's name."""
    by_function: list[tuple[Any, Declared]] = field(default_factory=list)
    """By the Python function of a callback."""

    @classmethod
    def of(cls, reads: Any, writes: Any) -> Specification:
        """Read what `ordered` was given.

        Raises:
          TypeError: it is not what `ordered` takes.
        """
        self = cls()
        for argument, given, is_write in (("reads", reads, False), ("writes", writes, True)):
            resources = given if isinstance(given, Mapping) else {_marks.UNNAMED: given}
            for resource, calls in resources.items():
                if not isinstance(resource, str):
                    raise TypeError(
                        f"entangle_jax.ordered: a resource in {argument} is of type {type(resource).__name__}, wanted "
                        "its name."
                    )
                if isinstance(calls, str) or not isinstance(calls, Iterable):
                    raise TypeError(
                        f"entangle_jax.ordered: {argument} is {calls!r}, wanted a list of calls, such as "
                        "['my_solve'], or a dict of such lists by resource."
                    )
                for call in calls:
                    self._add(argument, resource, is_write, call)
        return self

    def _add(self, argument: str, resource: str, is_write: bool, call: Any) -> None:
        given, operands = call, None
        if isinstance(call, tuple):
            given, operands = self._pair(argument, call)
        declared = Declared(resource, is_write, operands, given)
        if isinstance(given, str):
            self.by_name.setdefault(given, []).append(declared)
        elif isinstance(given, _private.Primitive):
            self.by_name.setdefault(given.name, []).append(declared)
        elif callable(given):
            self.by_function.append((given, declared))
        else:
            raise TypeError(
                f"entangle_jax.ordered: a call in {argument} is {given!r}, wanted the name of a native target or of a "
                "primitive, the primitive, the Python function of a callback, or a pair of one of these and the "
                "operand that holds its handle."
            )

    @staticmethod
    def _pair(argument: str, call: tuple[Any, ...]) -> tuple[Any, tuple[int, ...]]:
        try:
            given, operands = call
            listed = tuple(map(operator.index, operands if isinstance(operands, tuple | list) else (operands,)))
            if listed and min(listed) >= 0:
                return given, listed
        except (TypeError, ValueError):
            pass
        raise TypeError(
            f"entangle_jax.ordered: a call in {argument} is {call!r}, wanted it alone, or a pair of it and the operand "
            "(from 0), or operands, that hold its handle."
        )

    def all(self) -> list[Declared]:
        """Everything that was named."""
        return [one for those in self.by_name.values() for one in those] + [one for _, one in self.by_function]

    def of_call(self, eqn: Any) -> list[Declared]:
        """What was said of the call that an equation makes."""
        found = list(self.by_name.get(eqn.primitive.name, ()))
        if (target := eqn.params.get("target_name")) is not None:
            found += self.by_name.get(target, ())
        if self.by_function:
            functions = list(jaxprs.functions_of(eqn))
            found += [one for given, one in self.by_function if any(_same(given, each) for each in functions)]
        return found


def _same(given: Any, function: Any) -> bool:
    """Two bound methods are equal, not identical. What else is callable may compare as it likes, or not at all."""
    if function is given:
        return True
    bound = getattr(given, "__self__", None), getattr(given, "__func__", None)
    return bound[1] is not None and bound == (getattr(function, "__self__", None), getattr(function, "__func__", None))


def mark_of(eqn: Any) -> _marks.Mark | None:
    """The mark that an equation is, if it is one."""
    name = eqn.params.get("name")
    return _marks.parse(name) if eqn.primitive.name in {"jit", "pjit"} and isinstance(name, str) else None


def is_native(eqn: Any) -> bool:
    """Whether an equation of a marked function makes a call that XLA does not know.

    The library calls into which XLA makes JAX's own operations (LAPACK, FFT, sorting) are none. A primitive that is
    not of JAX may well be lowered to a call.
    """
    if eqn.primitive.name in _CALLS:
        return True
    return not is_of_jax(eqn.primitive) and not any(True for _ in jaxprs.inner_jaxprs(eqn))


def is_debug(eqn: Any) -> bool:
    """Whether it is a callback of `jax.debug`: in a marked function that is no access, but it can be named."""
    return eqn.primitive.name == "debug_callback"


def is_callback(eqn: Any) -> bool:
    """Whether an equation calls Python with arrays alone."""
    return eqn.primitive.name in _CALLBACKS and all(isinstance(v.aval, jax.core.ShapedArray) for v in eqn.invars)


def hides(eqn: Any) -> bool:
    """Whether lowering an equation of a function that is marked `opaque` may make calls that no jaxpr shows."""
    return not is_of_jax(eqn.primitive) or eqn.primitive.name == "custom_partitioning"


def refuses_derivatives(eqn: Any) -> bool:
    """Whether JAX itself refuses to differentiate the call. Otherwise its derivative may be a call of its own."""
    return eqn.primitive.name in _CALLS


@functools.lru_cache(maxsize=4096)
def is_of_jax(primitive: Any) -> bool:
    """Whether a module of JAX, or of this package, holds the primitive."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(("jax.", "entangle_jax."))]
    return any(value is primitive for module in modules for value in list(vars(module).values()))
