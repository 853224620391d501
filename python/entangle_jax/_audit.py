"""Proof of order from the compiled program, and what it cost.

`audit` looks at two programs: the one that JAX handed to XLA, and what XLA made of it. In both, native calls that touch
the same object must be connected by data; in the second one it shows what was copied. The work is done in Rust
(`crates/entangle-audit`); this file gives names to its answers and words to what a person should do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax

from entangle_jax import _native

TargetSpec = str | tuple[str, int] | tuple[str, Sequence[int]]
"""A native target's name (operand 0 holds its handle), or the name and the operand or operands that do."""

WRITTEN, COMPILED = "as written", "compiled"

_HERE = str(Path(__file__).parent)
_MAX_LINES = 4
"""So many lines of a call's stack are shown: enough to get out of a wrapper."""


class RaceError(RuntimeError):
    """Native calls that touch the same object are not ordered by data. The report says which."""


@dataclass(frozen=True)
class Source:
    """A line of source code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}" if self.file else "an unknown line"


@dataclass(frozen=True)
class Call:
    """A native call at one place of a program: a function called twice counts twice, a loop's body once."""

    program: str
    """`"as written"` or `"compiled"`."""
    index: int
    """Its position in that program."""
    name: str
    """The name of the instruction."""
    target: str
    kind: str
    """`"read"`, `"write"`, `"entangle"` or `"other"`."""
    place: tuple[str, ...]
    """The computations around it, the outermost first."""
    sources: tuple[Source, ...]
    """Where it comes from, the innermost line first. Empty where the program does not say."""
    op_name: str
    """JAX's name for it, with the transformations and `jax.named_scope`s around it."""
    handles: tuple[str, ...]
    """The values that stand for the objects it touches."""

    @property
    def source(self) -> Source:
        """The innermost line."""
        return self.sources[0] if self.sources else Source("", 0, "")

    def __str__(self) -> str:
        """What it does, which target, and where: the innermost line, and the lines that led there."""
        kind = "" if self.kind in {"other", self.target} else f"{self.kind} "
        # What led to the call of `audit`, or further out, is of no use.
        inner = itertools.takewhile(lambda source: not source.file.startswith(_HERE), self.sources)
        lines = [f"{source} ({source.function})" if source.function else str(source) for source in inner]
        return f"{kind}{self.target} at {', called at '.join(lines[:_MAX_LINES]) or self.source}"


@dataclass(frozen=True)
class Race:
    """Two calls that touch the same object, at least one of which changes it, with no data path either way."""

    first: Call
    second: Call
    handle: str
    """The value that stands for the object."""
    loop: str | None
    """The loop in whose later iteration `second` races with `first`; None if they race in one run of it."""
    unproven: str | None
    """What orders them without proof: `"schedule"`, `"control edge"` or nothing."""
    programs: tuple[str, ...]
    """The programs in which they race."""

    @property
    def fix(self) -> str:
        """The line to write."""
        if self.loop is not None:
            return (
                "carry the handle through the loop and end each iteration with "
                f"`handle = entangle(handle, result of {self.first.target})`"
            )
        return (
            f"right after the first, in the same loop or branch: `handle = entangle(handle, result of "
            f"{self.first.target})`; hand that handle on, and call {self.second.target} with it"
        )


@dataclass(frozen=True)
class Lost:
    """A native call of the program as written that the compiled one has not."""

    call: Call
    merged_with: Call | None
    """An equal call that stands for it now; None if it was dropped because nothing needed its result."""


@dataclass(frozen=True)
class Copy:
    """A copy that a call of `entangle` brought with it."""

    leaf: int
    """Which leaf of the payload."""
    bytes: int
    name: str
    """The name of the copy in the compiled program."""
    why: str
    """`"argument not donated"`, `"passed twice"`, `"still used"`, `"constant"`, `"layout"` or `"unknown"`."""
    whom: str | None
    """The argument, or who still uses the value."""


@dataclass(frozen=True)
class Entangle:
    """A call of `entangle` and what it cost in the compiled program."""

    call: Call
    payload_bytes: int
    leaves: int
    witnesses: int
    copies: tuple[Copy, ...]
    """Empty if the payload stays in place."""
    transposes: tuple[str, ...]
    """Transposes right before and after it."""
    collectives: tuple[str, ...]
    """Collectives right before and after it."""
    dropped: tuple[str, ...]
    """Leaves that it does not order, or that order nothing."""

    @property
    def copied_bytes(self) -> int:
        """Bytes copied, of all leaves."""
        return sum(copy.bytes for copy in self.copies)


@dataclass(frozen=True, repr=False)
class Report:
    """What `audit` found. `str(report)` is a table, and a notebook draws the picture."""

    module: str
    """The name of the program."""
    programs: tuple[str, ...]
    """What was looked at: the program as written, the compiled one, or both."""
    calls: tuple[Call, ...]
    """The native calls of the given targets, and those of `entangle`, of all programs."""
    races: tuple[Race, ...]
    more_races: int
    """How many more there are than `races` lists."""
    lost: tuple[Lost, ...]
    entangles: tuple[Entangle, ...]
    not_called: tuple[str, ...]
    """Targets that were given, in `reads` or `writes`, and that no program here calls."""
    not_given: tuple[str, ...]
    """Targets that the programs call and that were not given: nothing is known of them."""
    _audits: dict[str, Any] = dataclasses.field(compare=False)

    def ordered(self, a: Call | str, b: Call | str, *, later_iteration: bool = False) -> bool:
        """Whether `b` comes after `a` by a data path, in every run.

        Args:
          a: a call of `calls`, or the name of a target: all its calls.
          b: likewise.
          later_iteration: ask for `b` in every later iteration of each loop around both, not in the same one.

        Raises:
          ValueError: there is no such call, the two calls are of different programs, or there is no loop around both.
        """
        firsts, seconds = self._calls(a), self._calls(b)
        pairs, answers = False, []
        for program, one in self._audits.items():
            of = [[call.index for call in calls if call.program == program] for calls in (firsts, seconds)]
            pairs |= all(of)
            answers.append(one.all_ordered(*of, later_iteration))
        known = [answer for answer in answers if answer is not None]
        if not known:
            where = "in a loop together" if later_iteration and pairs else "in the same program"
            raise ValueError(f"{a} and {b} are not {where}.")
        return all(known)

    @property
    def looked(self) -> bool:
        """Whether there was anything to look for: a call of a target in `reads` or `writes`."""
        return any(call.kind in {"read", "write"} for call in self.calls)

    def raise_if_races(self) -> None:
        """Raise if there is a race.

        Raises:
          RaceError: with this report as its message.
          ValueError: there is no call of a target in `reads` or `writes`, so that nothing was looked at.
        """
        if self.races:
            raise RaceError(str(self))
        if not self.looked:
            raise ValueError(f"entangle_jax.audit: {self._nothing()}")

    def to_dict(self) -> dict[str, Any]:
        """The report as dictionaries, lists, strings and numbers, for JSON."""
        fields = {field.name for field in dataclasses.fields(self)} - {"_audits"}
        return {name: _plain(getattr(self, name)) for name in sorted(fields)}

    def to_dot(self) -> str:
        """The picture in the DOT language: native calls as boxes, data paths as arrows, races in red."""
        program = self.programs[-1]
        calls = [call for call in self.calls if call.program == program]
        edges, more = self._audits[program].graph()
        drawn = calls[: len(calls) - more]
        looks = {
            "entangle": 'shape=ellipse, fillcolor="#eeeeee"',
            "write": 'shape=box, fillcolor="#ffe8c0"',
            "read": 'shape=box, fillcolor="#d8ecff"',
            "other": 'shape=box, fillcolor="#ffffff"',
        }
        lines = [f"digraph {_quoted(self.module)} {{", '  node [style=filled, fontname="sans-serif"];']
        for call in drawn:
            where = f"{call.source.file.rpartition('/')[2]}:{call.source.line}" if call.sources else ""
            label = "\\n".join(part for part in (call.target, where) if part)
            lines.append(f'  n{call.index} [label="{label}", {looks[call.kind]}];')
        lines += [f"  n{first} -> n{second};" for first, second in edges]
        for race in self.races:
            if race.first.program == program and max(race.first.index, race.second.index) < len(drawn):
                label = "race in the next iteration" if race.loop else "race"
                ends = f"n{race.first.index} -> n{race.second.index}"
                lines.append(f'  {ends} [label="{label}", color=red, fontcolor=red, dir=both];')
        return "\n".join([*lines, "}"])

    def _repr_svg_(self) -> str:
        """The picture, for notebooks."""
        return _native.draw(self.to_dot())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {
            "text/plain": str(self),
            "image/svg+xml": self._repr_svg_(),
            "text/html": f"{self._repr_svg_()}<pre>{html.escape(str(self))}</pre>",
        }

    def __repr__(self) -> str:
        """The table."""
        return str(self)

    def __str__(self) -> str:
        """A table for people: races and the fix for each, calls that were lost, and what each `entangle` cost."""
        races = _count(len(self.races) + self.more_races, "race") if self.looked else "not looked for races"
        native = [sum(c.kind != "entangle" for c in self.calls if c.program == program) for program in self.programs]
        lines = [
            f"{self.module} ({' and '.join(self.programs)}): {races}, {_count(native[0], 'native call')}"
            f"{f' ({native[-1]} compiled)' if native[-1] != native[0] else ''}, "
            f"{_count(len(self.entangles), 'entangle call')}"
        ]
        if not self.looked:
            lines.append(self._nothing())
        elif self.not_called:
            lines.append(f"Given, but not called here: {', '.join(self.not_called)}. {self._others()}")
        if self.programs == (COMPILED,):
            lines.append("Only the compiled program was looked at: calls that XLA merged or dropped are not seen.")
        for race in self.races:
            lines += ["", *_race_lines(race)]
        if self.more_races:
            lines += ["", f"and {_count(self.more_races, 'race')} more"]
        for lost in self.lost:
            fate = f"merged with {lost.merged_with}" if lost.merged_with else "dropped: nothing needs its result"
            lines += ["", f"LOST  {lost.call}", f"      {fate}"]
        if self.entangles:
            lines += ["", *_table(self.entangles)]
        return "\n".join(lines)

    def _nothing(self) -> str:
        """Why nothing was looked at."""
        given = ", ".join(self.not_called)
        what = f"of the targets given, {given}, none is called here" if given else "no targets were given"
        return f"{what}, so no order was looked at: name them in `reads` and `writes`. {self._others()}"

    def _others(self) -> str:
        return f"Other targets that are called: {', '.join(self.not_given) or 'none'}."

    def _calls(self, which: Call | str) -> list[Call]:
        calls = [call for call in self.calls if which in (call, call.target)]
        if not calls:
            targets = ", ".join(sorted({call.target for call in self.calls})) or "none"
            raise ValueError(f"{which!s} is no call of this report; the targets looked at have calls of: {targets}.")
        return calls


def audit(
    fn: Any, *args: Any, reads: Iterable[TargetSpec] = (), writes: Iterable[TargetSpec] = (), **kwargs: Any
) -> Report:
    """Prove from the compiled program that native calls are ordered, and show what that cost.

    >>> import jax
    >>> from entangle_jax import audit, entangle, testing
    >>> def program(token):
    ...     before = testing.read(token)
    ...     token = testing.write(entangle(token, before), 1.0)
    ...     return before, testing.read(token)
    >>> report = audit(program, testing.slot(0), reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET])
    >>> report.races
    ()

    **What is proven.** Two calls are ordered if in every run the second one needs a value that the first one had a part
    in: whichever branch is taken, however often a loop runs. A schedule, the order of lines, and control edges are no
    proof: the CPU runtime goes by data alone. Two calls race if both touch the same object, at least one changes it,
    and neither is ordered after the other; calls of one loop body are compared with those of later iterations too.

    **What is taken for the same object.** The value of the handle is followed backwards through `entangle`, copies,
    loop carries, branches, and the results of writes (which are tokens) to where it comes from. Equal constants are the
    same object, and so are elements of one array at indices that are not known, or of an array whose elements were
    moved; different arguments, different constants and elements at different known indices are different ones. The
    token and the fence of an argument that is a `Handle` are one object.

    **What is not proven.** That two arguments are not one object after all; anything about native calls whose targets
    are not given; what a native call does with an object that it reaches otherwise than through its handle.

    Args:
      fn: a function, jitted or not, which is lowered and compiled for the arguments; or a `jax.stages.Lowered`; or a
        `jax.stages.Compiled`, of which the program as written is not known any more.
      *args: its arguments, or `jax.ShapeDtypeStruct`s like them.
      reads: the native targets that use an object: names, or pairs of a name and the operand (or operands) that hold
        its handle. A bare name means operand 0.
      writes: the native targets that change an object, likewise.
      **kwargs: its keyword arguments.

    Raises:
      TypeError: `fn` is none of these, or comes with its arguments and others; or a target is neither a name nor a
        pair.
      ValueError: a target does not have the operand, or the program cannot be read.
    """
    if isinstance(fn, jax.stages.Compiled | jax.stages.Lowered) and (args or kwargs):
        raise TypeError(
            f"entangle_jax.audit: got a jax.stages.{type(fn).__name__}, which has its arguments already, and others: "
            "leave them out, or pass the function."
        )
    if isinstance(fn, jax.stages.Compiled):
        programs = {COMPILED: _optimized(fn)}
    else:
        lowered = fn if isinstance(fn, jax.stages.Lowered) else _lower(fn, args, kwargs)
        programs = {WRITTEN: _unoptimized(lowered), COMPILED: _optimized(lowered.compile())}
    return audit_programs(programs, reads, writes)


def audit_programs(programs: dict[str, bytes], reads: Iterable[TargetSpec], writes: Iterable[TargetSpec]) -> Report:
    """The report on serialized programs: `"as written"`, `"compiled"`, or both of one module."""
    reading, writing = _targets("reads", reads), _targets("writes", writes)
    audits = {name: _native.Audit(program, reading, writing, []) for name, program in programs.items()}
    # Thousands of calls come from a few lines.
    stack = functools.cache(lambda sources: tuple(Source(*source) for source in sources))
    calls = {
        program: [
            Call(program, i, name, target, kind, place, stack(sources), op_name, handles)
            for i, (name, target, kind, place, sources, op_name, handles) in enumerate(one.calls())
        ]
        for program, one in audits.items()
    }
    races, more = _races(audits, calls)
    lost: tuple[Lost, ...] = ()
    if len(audits) == 2:
        pairs = audits[WRITTEN].lost(audits[COMPILED])
        of = calls[WRITTEN]
        # A call of `entangle` goes when the payload does: nothing is lost by that.
        lost = tuple(Lost(of[i], None if j is None else of[j]) for i, j in pairs if of[i].kind != "entangle")
    last = list(audits)[-1]
    called = {target for one in audits.values() for target in one.targets}
    given = [name for name, _ in (*reading, *writing)]
    return Report(
        module=audits[last].module,
        programs=tuple(audits),
        calls=tuple(call for of in calls.values() for call in of),
        races=races,
        more_races=more,
        lost=lost,
        entangles=tuple(_entangle(calls[last], cost) for cost in audits[last].costs()),
        not_called=tuple(dict.fromkeys(name for name in given if name not in called)),
        not_given=tuple(sorted(called - {*given, "entangle"})),
        _audits=audits,
    )


def _lower(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> jax.stages.Lowered:
    if not callable(fn):
        remedy = "; for XLA's dump files: `python -m entangle_jax audit FILE`" if isinstance(fn, str | Path) else ""
        raise TypeError(
            f"entangle_jax.audit: got an object of type {type(fn).__name__}, wanted a function, a jax.stages.Lowered "
            f"or a jax.stages.Compiled{remedy}."
        )
    lower: Callable[..., jax.stages.Lowered] = fn.lower if hasattr(fn, "lower") else jax.jit(fn).lower
    return lower(*args, **kwargs)


def _unoptimized(lowered: jax.stages.Lowered) -> bytes:
    program: bytes = cast("Any", lowered.compiler_ir("hlo")).as_serialized_hlo_module_proto()
    return program


def _optimized(compiled: jax.stages.Compiled) -> bytes:
    modules = cast("Any", compiled.runtime_executable()).hlo_modules()
    if len(modules) != 1:
        raise ValueError(f"entangle_jax.audit: the executable has {len(modules)} modules, wanted one.")
    program: bytes = modules[0].as_serialized_hlo_module_proto()
    return program


def _targets(argument: str, specs: Iterable[TargetSpec]) -> list[tuple[str, list[int]]]:
    if isinstance(specs, str) or not isinstance(specs, Iterable):
        raise TypeError(f"entangle_jax.audit: {argument} is {specs!r}, wanted a list of targets, such as ['my_solve'].")
    return [_target(spec) for spec in specs]


def _target(spec: TargetSpec) -> tuple[str, list[int]]:
    if isinstance(spec, str):
        return spec, [0]
    name, listed = None, []
    with contextlib.suppress(TypeError, ValueError):
        name, operands = spec
        listed = [operands] if isinstance(operands, int) else [operator.index(operand) for operand in operands]
    if not isinstance(name, str) or not listed or min(listed) < 0:
        raise TypeError(
            f"entangle_jax.audit: a target is {spec!r}, wanted its name, or a pair of its name and the operand (from "
            "0), or operands, that hold its handle."
        )
    return name, listed


def _races(audits: dict[str, Any], calls: dict[str, list[Call]]) -> tuple[tuple[Race, ...], int]:
    """The races of all programs; one that is in two of them at the same lines is told once, as of the last.

    On different arguments it is not one; what is no argument has other names before and after optimization.
    """
    merged: dict[Any, Race] = {}
    more = 0
    for program, one in audits.items():
        listed, rest = one.races()
        more = max(more, rest)
        counts: dict[Any, int] = {}
        for first, second, handle, loop, unproven in listed:
            race = Race(calls[program][first], calls[program][second], handle, loop, unproven, (program,))
            lines = frozenset((call.target, call.sources) for call in (race.first, race.second))
            same = (lines, loop is None, handle if handle.startswith("argument ") else None)
            counts[same] = counts.get(same, 0) + 1
            key = (same, counts[same])
            if key in merged:
                race = dataclasses.replace(race, programs=(*merged.pop(key).programs, program))
            merged[key] = race
    return tuple(merged.values()), more


def _entangle(calls: list[Call], cost: Any) -> Entangle:
    index, leaves, witnesses, dropped_witnesses, transposes, collectives = cost
    copies = tuple(Copy(i, size, *copied) for i, (size, copied, _) in enumerate(leaves) if copied)
    empty = tuple(
        f"payload leaf {i} has no elements" for i, (_, _, has_elements) in enumerate(leaves) if not has_elements
    )
    return Entangle(
        calls[index],
        sum(size for size, _, _ in leaves),
        len(leaves),
        witnesses,
        copies,
        tuple(transposes),
        tuple(collectives),
        empty + tuple(f"operand {i}, a witness, is a constant or has no elements" for i in dropped_witnesses),
    )


def _race_lines(race: Race) -> list[str]:
    when = f", the second in a later iteration of {race.loop}" if race.loop else ""
    proof = f"; only the {race.unproven} has them in this order, which proves nothing" if race.unproven else ""
    return [
        f"RACE  {race.first}",
        f"  and {race.second}{when}",
        f"      both touch {race.handle}, and no data leads from one to the other {_where(race.programs)}{proof}",
        f"      fix: {race.fix}",
    ]


def _where(programs: Sequence[str]) -> str:
    return f"({' and '.join(programs)})"


def _table(entangles: Sequence[Entangle]) -> list[str]:
    rows = [("entangle at", "payload", "copied", "why")]
    for one in entangles:
        reasons = (
            {copy.why + (f": {copy.whom}" if copy.whom else "") for copy in one.copies}
            | {f"around it: {name}" for name in (*one.transposes, *one.collectives)}
            | set(one.dropped)
        )
        copied = _size(one.copied_bytes) if one.copies else "in place"
        rows.append((str(one.call.source), _size(one.payload_bytes), copied, "; ".join(sorted(reasons))))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _size(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if size >= 10 or size == int(size) else f"{size:.1f} {units[0]}"


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
