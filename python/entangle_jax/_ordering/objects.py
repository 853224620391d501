"""Which object a call touches: where its handle comes from, followed through what passes a value on unchanged.

A handle's origins are a set of atoms, or None: it may be anything. An atom is an argument of the function, a constant,
or an element of one of these. Whatever computes gives None. So this errs on one side only: calls on different objects
may be taken for calls on the same one, and are then in order too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from entangle_jax._ordering import jaxprs

WHOLE, SOME = "whole", "some"
"""Of an argument or constant: all of it at its place; or a part, not known which."""

Atom = tuple[Any, Any]
"""Which argument or constant, and what of it: all, some, or the index of one element."""

Origins = frozenset[Atom] | None

_MAX_ATOMS = 32
_MAX_BYTES = 1 << 16
"""Constants with more bytes are not compared: they are all the same one."""

Object = tuple[str, Origins]
"""A resource, and where the handle comes from."""


def argument(number: int) -> Origins:
    """The origins of the function's argument of that number."""
    return frozenset({(("argument", number), WHOLE)})


def constant(value: Any) -> Origins:
    """The origins of a constant. Equal ones are the same, whatever holds them."""
    if jaxprs.is_tracer(value):  # of an outer trace: not known, but the same when it is the same
        return frozenset({(("outer", id(value)), WHOLE)})
    try:
        host = np.asarray(value)
        if host.nbytes > _MAX_BYTES or host.dtype.hasobject:
            return None
        # Integers of different types name the same object.
        numbers = tuple(host.ravel().tolist())
    except (TypeError, ValueError):  # a PRNG key, a token, a Ref
        return None
    if not numbers:
        return None
    return frozenset({(("constant", numbers), WHOLE)})


def join(*origins: Origins) -> Origins:
    """Those of a value that is one of several."""
    if any(one is None for one in origins):
        return None
    union = frozenset().union(*(one for one in origins if one is not None))
    return union if len(union) <= _MAX_ATOMS else None


def part_of(origins: Origins) -> Origins:
    """Those of a part of a value, not known which."""
    return None if origins is None else frozenset((base, SOME) for base, _ in origins)


def element_of(origins: Origins, index: int) -> Origins:
    """Those of the element at a known place of a value, counted in row-major order."""
    if origins is None:
        return None
    return frozenset((base, index if what == WHOLE else SOME) for base, what in origins)


# Operations that return a value with its elements in place, or one of several values.
_FORWARDS = {
    "copy", "copy_p", "squeeze", "stop_gradient", "device_put", "sharding_constraint", "reshard", "pvary", "pcast",
    "optimization_barrier", "mesh_cast", "layout_constraint", "name", "entangle", "entangle_saved",
    "entangle_testing_native",
}  # fmt: skip
# Operations that return elements of their first operand, and nothing else.
_MOVES = {"transpose", "rev", "broadcast_in_dim", "dynamic_slice", "slice"}


def forwards(eqn: Any) -> bool:
    """Whether each result is the operand at its place, element by element."""
    match eqn.primitive.name:
        case "convert_element_type":
            return bool(eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype)
        case "reshape":
            return eqn.params["dimensions"] is None
        case "broadcast_in_dim":
            return bool(eqn.invars[0].aval.size == eqn.outvars[0].aval.size)
        case name:
            return name in _FORWARDS


def of_results(eqn: Any, origins: list[Origins]) -> list[Origins]:
    """The origins of the results of an operation, given those of its operands."""
    if forwards(eqn):
        return origins[: len(eqn.outvars)]
    name = eqn.primitive.name
    if name == "select_n":
        return [join(*origins[1:])]
    if name in _MOVES:
        if eqn.invars[0].aval.size == eqn.outvars[0].aval.size == 1:
            return origins[:1]
        element = _only_element(eqn) if name == "slice" else None
        return [part_of(origins[0]) if element is None else element_of(origins[0], element)]
    return [None] * len(eqn.outvars)


def _only_element(eqn: Any) -> int | None:
    """The place of the one element that a slice with fixed bounds takes."""
    shape, starts = eqn.invars[0].aval.shape, eqn.params["start_indices"]
    if math.prod(eqn.outvars[0].aval.shape) != 1:
        return None
    return int(np.ravel_multi_index(starts, shape)) if shape else 0


def _places(resource: str, origins: frozenset[Atom]) -> list[tuple[str, Any, Any]]:
    """The atoms of a resource, with constants as the numbers that they hold: equal numbers are the same object."""
    places: list[tuple[str, Any, Any]] = []
    for (kind, which), what in origins:
        if kind == "constant":
            numbers = (which[what],) if isinstance(what, int) else which
            places += [(resource, (kind, number), WHOLE) for number in numbers]
        else:
            places.append((resource, (kind, which), what))
    return places


@dataclass
class Cells:
    """The objects of a program: which of them are one, and which are ever written."""

    _parent: dict[Any, Any] = field(default_factory=dict)
    _written: set[Any] = field(default_factory=set)
    _whole: set[str] = field(default_factory=set)
    """Resources of which everything is one object."""

    @classmethod
    def of(cls, touches: dict[Object, bool]) -> Cells:
        """Sort what is touched: with True what is written."""
        self = cls()
        parts: dict[Any, set[Any]] = {}
        for resource, origins in touches:
            if origins is None:
                self._whole.add(resource)
                continue
            atoms = _places(resource, origins)
            for atom in atoms:
                self._unite(atoms[0], atom)
                parts.setdefault(atom[:2], set()).add(atom)
        for atoms_of_one in parts.values():
            everything = [atom for atom in atoms_of_one if atom[2] in (WHOLE, SOME)]
            if everything:  # then its elements are not told apart
                for atom in atoms_of_one:
                    self._unite(everything[0], atom)
        self._written = {cell for touched, writes in touches.items() if writes for cell in self._cells(touched)}
        return self

    def _find(self, atom: Any) -> Any:
        while (parent := self._parent.setdefault(atom, atom)) != atom:
            atom = parent
        return atom

    def _unite(self, a: Any, b: Any) -> None:
        self._parent[self._find(b)] = self._find(a)

    def _cells(self, touched: Object) -> list[Any]:
        """The object's representative; all those of the resource if it is not known which object it is."""
        resource, origins = touched
        if resource in self._whole:
            return [(resource,)]
        places = [] if origins is None else _places(resource, origins)
        if places and all(place in self._parent for place in places):
            return list(dict.fromkeys(map(self._find, places)))
        # It was not among those that were sorted: a rule for derivatives or batches brought it.
        return [cell for cell in self._written if cell[0] == resource]

    def in_order(self, touches: dict[Object, bool]) -> dict[Any, bool]:
        """The cells that are to be kept in order, and whether they are written. What is only read needs no order."""
        cells: dict[Any, bool] = {}
        for touched, writes in touches.items():
            for cell in self._cells(touched):
                if cell in self._written:
                    cells[cell] = cells.get(cell, False) or writes
        return cells

    def unknown_write(self, touches: dict[Object, bool]) -> bool:
        """Whether something is written that was not among those that were sorted as written."""
        return any(
            writes and not all(cell in self._written for cell in self._cells(touched) or [None])
            for touched, writes in touches.items()
        )
