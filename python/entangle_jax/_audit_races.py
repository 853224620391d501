"""The races of a program in the order of its source, and which few of them mend the others.

First and second are the program's: the order in which it was traced; where only the compiled program is known, the
order of its source lines. A compiled program lists its calls in an order of its own, which proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from entangle_jax import _audit_fix
from entangle_jax._audit_report import COMPILED, WRITTEN, Call, Race, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from entangle_jax import _calls, _native

_MAX_CALLS = 1_024
"""Among more racing calls than this it is not looked for those that follow from others."""

_CONDITIONAL = ("body of ", "condition of ", "branch ")
"""What the place of a call is called that may not run whenever the computation around it does."""


@dataclass(frozen=True)
class _Found:
    """A race of one program."""

    first: Call
    second: Call
    reversed: bool
    native: _native.Race

    @property
    def key(self) -> object:
        """Equal for the same race in two programs.

        On different arguments it is not the same; what is no argument has other names before and after optimization.
        """
        lines = frozenset((call.target, call.sources) for call in (self.first, self.second))
        handle = self.native.handle if self.native.handle.startswith("argument ") else None
        return lines, self.native.later_iteration_of is None, handle


class Order:
    """The order in which a program makes its calls."""

    def __init__(self, audits: Mapping[str, _native.Audit], calls: Mapping[str, Sequence[Call]]) -> None:
        self._written: list[int | None] = []
        self._calls = calls
        self._trace = audits[WRITTEN].order_of_the_trace() if WRITTEN in audits else []
        if len(audits) == 2:
            self._written = audits[WRITTEN].counterparts(audits[COMPILED])

    def origin(self, call: Call) -> Call:
        """The call as written, if it is known."""
        if call.program == COMPILED and self._written and (of := self._written[call.index]) is not None:
            return self._calls[WRITTEN][of]
        return call

    def before(self, a: Call, b: Call) -> bool | None:
        """Whether the program makes `a` before `b`; None if it does not say."""
        a, b = self.origin(a), self.origin(b)
        if a.program == b.program == WRITTEN and a.index != b.index:
            return self._trace[a.index] < self._trace[b.index]
        place_a, place_b = where_they_part(a, b)
        if place_a is None or place_b is None or place_a.line == place_b.line:
            return None
        return place_a.line < place_b.line

    def position(self, call: Call) -> tuple[int, tuple[int, ...], int]:
        """To sort calls by."""
        origin = self.origin(call)
        if origin.program == WRITTEN:
            return self._trace[origin.index], (), 0
        return 0, tuple(source.line for source in reversed(origin.own_sources)), call.index


def where_they_part(a: Call, b: Call) -> tuple[Source | None, Source | None]:
    """The lines of the innermost function that both calls come from, if they are two lines of it."""
    for one, other in zip(*_audit_fix.aligned(a, b), strict=False):
        if one != other:
            same = (one.file, one.function) == (other.file, other.function)
            return (one, other) if same else (None, None)
    return None, None


def races(
    module: str,
    audits: Mapping[str, _native.Audit],
    calls: Mapping[str, Sequence[Call]],
    named: Callable[[], Sequence[_calls.Named]],
) -> tuple[tuple[Race, ...], int]:
    """The races of all programs, and how many more there are. One that is in two programs is told once.

    `named` gives the calls of the trace, as far as it is known.
    """
    order = Order(audits, calls)
    merged: dict[object, dict[str, _Found]] = {}
    more = 0
    for program, audit in audits.items():
        found = audit.races()
        more = max(more, found.more)
        counts: dict[object, int] = {}
        oriented = [_oriented(race, calls[program], order) for race in found.list]
        for one in sorted(oriented, key=lambda one: (order.position(one.first), order.position(one.second))):
            counts[one.key] = counts.get(one.key, 0) + 1
            merged.setdefault((one.key, counts[one.key]), {})[program] = one
    needed = {
        program: _needed([those[program] for those in merged.values() if program in those], audit, calls[program])
        for program, audit in audits.items()
    }
    pairs = [(order.origin(one.first), order.origin(one.second)) for those in merged.values() for one in those.values()]
    words = _audit_fix.Words(module, sorted(next(iter(calls.values())), key=order.position), pairs, named)
    listed = []
    for those in merged.values():
        first_seen = next(iter(those))
        told = those[list(those)[-1]]
        follows = id(those[first_seen]) not in needed[first_seen]
        listed.append(_race(told, tuple(those), follows, order, words))
    listed.sort(key=lambda race: (order.position(race.first), order.position(race.second)))
    return tuple(listed), more


def _oriented(race: _native.Race, calls: Sequence[Call], order: Order) -> _Found:
    first, second = calls[race.first], calls[race.second]
    if race.later_iteration_of is not None or order.before(first, second) is not False:
        return _Found(first, second, False, race)
    return _Found(second, first, True, race)


def _race(found: _Found, programs: tuple[str, ...], follows: bool, order: Order, words: _audit_fix.Words) -> Race:
    native = found.native
    loop = None
    if native.later_iteration_of is not None:
        lines = [Source(one.file, one.line, one.function) for one in native.loop_sources]
        loop = f"the loop at {lines[0]}" if lines else f"the loop {native.later_iteration_of}"
    return Race(
        first=found.first,
        second=found.second,
        handle=native.handle,
        loop=loop,
        unproven=native.unproven,
        reversed=found.reversed and native.unproven == "schedule",
        programs=programs,
        follows=follows,
        fix=words.fix(order.origin(found.first), order.origin(found.second), loop),
    )


def _needed(found: list[_Found], audit: _native.Audit, calls: Sequence[Call]) -> set[int]:
    """Those of the races that are not mended by mending the others, by their identity."""
    indices = sorted({call.index for one in found for call in (one.first, one.second)})
    if len(indices) > _MAX_CALLS:
        return {id(one) for one in found}
    mended = _Mended(found, indices, audit, calls)
    in_one_run = [one for one in found if one.native.later_iteration_of is None]
    needed = {id(one) for one in in_one_run if not mended.follows(one)}
    by_loop: dict[str, list[_Found]] = {}
    for one in found:
        if one.native.later_iteration_of is not None:
            by_loop.setdefault(one.native.later_iteration_of, []).append(one)
    for of_loop in by_loop.values():
        kept = list(of_loop)
        for one in of_loop:
            others = [other for other in kept if other is not one]
            if any(mended.follows_from(one, other) for other in others):
                kept = others
        needed |= {id(one) for one in kept}
    return needed


class _Mended:
    """Which calls come after which, once the races within one run are mended."""

    def __init__(self, found: list[_Found], indices: list[int], audit: _native.Audit, calls: Sequence[Call]) -> None:
        self._guards = {i: tuple(part for part in calls[i].place if part.startswith(_CONDITIONAL)) for i in indices}
        self._before: dict[int, set[int]] = {index: set() for index in indices}
        for index, before in zip(indices, audit.before_each(indices), strict=True):
            self._before[index].update(indices[position] for position in before)
        for one in found:
            if one.native.later_iteration_of is None:
                self._before[one.second.index].add(one.first.index)

    def follows(self, race: _Found) -> bool:
        """Whether a third call comes after the first and before the second, and runs whenever one of them does."""
        first, second = race.first.index, race.second.index
        between = (third for third in self._before[second] if first in self._before[third])
        return any(self._runs_with(third, first) or self._runs_with(third, second) for third in between)

    def follows_from(self, race: _Found, other: _Found) -> bool:
        """Whether a race of two iterations is no more if the other one, of the same loop, is mended."""
        return (
            self._leads(race.first.index, other.first.index)
            and self._leads(other.second.index, race.second.index)
            and self._runs_with(other.first.index, race.first.index)
            and self._runs_with(other.second.index, race.second.index)
        )

    def _runs_with(self, third: int, index: int) -> bool:
        """Whether call `third` runs whenever call `index` does."""
        guards = self._guards[third]
        return self._guards[index][: len(guards)] == guards

    def _leads(self, a: int, b: int) -> bool:
        return a == b or a in self._before[b]
