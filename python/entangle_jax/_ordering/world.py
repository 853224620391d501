"""What later accesses of each object wait for, and the tokens that stand for it at a boundary.

Between two boundaries no token is needed: an access waits for the results of those before it. Into a loop, a branch or
a jitted function go at most two tokens an object: one that stands for its writes, and one that stands for all its
accesses. The second stands for the last write and for the reads since then. For the reads alone it would not do: those
in a loop that runs zero times, or in a branch that is not taken, waited for no write. So in each branch, and after each
iteration, it is one and the same value that is ordered after everything.

A token that comes out of a body or a branch is computed there, by an `entangle`. One that is passed through would be
ordered after what entered, and after nothing that the body did.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from entangle_jax import _private
from entangle_jax._entangle import entangle

_private.register_exclusion(__file__)

Cell = Any
"""An object that is kept in order. See `objects.Cells`."""

Tokens = tuple[Any, Any]
"""Of one object: for its writes and for all its accesses. None where there is nothing to wait for."""


@dataclass(frozen=True)
class Past:
    """What happened to one object so far."""

    writes: tuple[Any, ...] = ()
    """What the last write gave. It waited for everything before."""
    reads: tuple[Any, ...] = ()
    """What the reads since then gave."""
    kept: bool = True
    """XLA keeps the last write, whether or not its result is used."""


_NOTHING = Past()


@dataclass(frozen=True)
class World:
    """What happened to each object so far."""

    pasts: dict[Cell, Past] = field(default_factory=dict)

    @classmethod
    def entered(cls, cells: dict[Cell, bool], tokens: dict[Cell, Tokens]) -> World:
        """The world as a body or branch finds it, which touches these cells."""
        pasts = {}
        for cell, written in cells.items():
            writes, everything = tokens[cell]
            reads = (everything,) if written and everything is not None else ()
            pasts[cell] = Past(() if writes is None else (writes,), reads, kept=False)
        return cls(pasts)

    def waits(self, cells: dict[Cell, bool]) -> list[Any]:
        """What an access of these cells has to wait for."""
        found: dict[int, Any] = {}
        for cell, writes in cells.items():
            past = self.pasts.get(cell, _NOTHING)
            for one in (*past.writes, *(past.reads if writes else ())):
                found[id(one)] = one
        return list(found.values())

    def after(self, cells: dict[Cell, bool], witnesses: tuple[Any, ...], *, kept: bool) -> World:
        """The world after such an access, for which these stand."""
        pasts = dict(self.pasts)
        for cell, writes in cells.items():
            past = pasts.get(cell, _NOTHING)
            pasts[cell] = Past(witnesses, (), kept) if writes else replace(past, reads=(*past.reads, *witnesses))
        return World(pasts)

    def enter(self, cells: dict[Cell, bool], *, into_loop: bool = False) -> dict[Cell, Tokens]:
        """The tokens that go into a body or branch which touches these cells.

        Where there is nothing to wait for, or where the body reads only, there is none, except that a loop carries all
        that come out of its body.
        """
        tokens = {}
        for cell, written in cells.items():
            past = self.pasts.get(cell, _NOTHING)
            writes = _token(past.writes)
            everything = None if not written else _token(past.reads) if past.reads else writes
            if into_loop and written:
                writes = _zero() if writes is None else writes
                everything = _zero() if everything is None else everything
            if into_loop and not written:
                everything = _zero()
            tokens[cell] = (writes, everything)
        return tokens

    def leave(self, cells: dict[Cell, bool], before: dict[Cell, Tokens] | None = None) -> dict[Cell, Tokens]:
        """The tokens that come out of a body or branch which touches these cells: computed here, each of them.

        `before`: of a loop's body, what stands for the iterations before.
        """
        tokens = {}
        for cell, written in cells.items():
            past = self.pasts.get(cell, _NOTHING)
            if written:
                writes = entangle(_zero(), *past.writes)
                everything = entangle(_zero(), *past.writes, *past.reads) if past.reads else writes
            else:
                earlier = () if before is None else (before[cell][1],)
                writes, everything = None, entangle(_zero(), *past.reads, *earlier)
            tokens[cell] = (writes, everything)
        return tokens

    def left(self, cells: dict[Cell, bool], tokens: dict[Cell, Tokens], *, kept: bool) -> World:
        """The world after a body or branch of which these tokens came out."""
        pasts = dict(self.pasts)
        for cell, written in cells.items():
            writes, everything = tokens[cell]
            past = pasts.get(cell, _NOTHING)
            pasts[cell] = (
                Past((writes,), (everything,), kept) if written else replace(past, reads=(*past.reads, everything))
            )
        return World(pasts)


def _zero() -> Any:
    return jnp.zeros((), jnp.int32)


def _token(those: tuple[Any, ...]) -> Any:
    """One scalar that stands for all of those. What is a scalar already is one."""
    if not those:
        return None
    if len(those) == 1 and _is_scalar(those[0]):
        return those[0]
    return entangle(_zero(), *those)


def _is_scalar(value: Any) -> bool:
    """Whether it has the type that all tokens have, over a mesh too."""
    return bool(jax.typeof(value) == jax.typeof(_zero()))
