"""What `audit` found: the report, and what it holds. `_audit_text` renders it."""

from __future__ import annotations

import dataclasses
import functools
import html
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entangle_jax import _audit_text, _native, _stacks

if TYPE_CHECKING:
    from collections.abc import Sequence

WRITTEN, COMPILED = "as written", "compiled"

_HERE = str(Path(__file__).parent)


class RaceError(RuntimeError):
    """Native calls that use the same object are not ordered by data. The message is the report, which says which ones.

    Examples:
      >>> from entangle_jax import RaceError, audit, testing
      >>> def program(token):
      ...     before = testing.read(token)
      ...     return before, testing.write(token, 1.0)
      >>> report = audit(program, testing.slot(0), reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET])
      >>> try:
      ...     report.raise_if_races()
      ... except RaceError as error:
      ...     print("RACE" in str(error))
      True
    """


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
    """A native call at one place of a program. A function that is called twice makes two; a loop's body makes one."""

    program: str
    """`"as written"` or `"compiled"`."""
    index: int
    """Its position in that program."""
    name: str
    """The name of the instruction."""
    target: str
    kind: str
    """`"read"`, `"write"` or `"entangle"`."""
    place: tuple[str, ...]
    """The computations around it, the outermost first."""
    sources: tuple[Source, ...]
    """Where it comes from, the innermost line first. Empty where the program does not say."""
    op_name: str
    """JAX's name for it, with the transformations and `jax.named_scope`s around it."""
    handles: tuple[str, ...]
    """The names of the objects that it uses: the values that stand for them, or their resource."""

    @property
    def source(self) -> Source:
        """The innermost line."""
        return self.sources[0] if self.sources else Source("", 0, "")

    @property
    def own_sources(self) -> tuple[Source, ...]:
        """Those of the program: without what led to the call of `audit`, and without the wrapper of a library there."""
        inner = list(itertools.takewhile(lambda source: not source.file.startswith(_HERE), self.sources))
        while len(inner) < len(self.sources) and len(inner) > 1 and _stacks.is_of_a_library(inner[-1].file):
            inner.pop()
        return tuple(inner)

    def __str__(self) -> str:
        """What it does, which target, and where: the innermost line, and the lines that led there."""
        kind = "" if self.kind == self.target else f"{self.kind} "
        stack = self.own_sources
        # A function in another one by the name that stands at its `def`.
        names = [source.function.rpartition(".<locals>.")[2] for source in stack]
        told = _stacks.told([source.file for source in stack])
        lines = dict.fromkeys(f"{stack[i]} ({names[i]})" if names[i] else str(stack[i]) for i in told)
        return f"{kind}{self.target} at {', called at '.join(lines) or self.source}"


@dataclass(frozen=True)
class Object:
    """Something that native calls of one program use."""

    program: str
    """`"as written"` or `"compiled"`."""
    name: str
    """The value that stands for it, such as an argument; or its resource."""
    readers: tuple[Call, ...]
    writers: tuple[Call, ...]
    may_be: tuple[str, ...]
    """Other objects of the program that may be this one. The audit assumed that all others are different objects."""


@dataclass(frozen=True)
class Race:
    """Two calls that use the same object, at least one of which changes it, with no data path either way."""

    first: Call
    """The one that the program makes first."""
    second: Call
    handle: str
    """The value that stands for the object."""
    loop: str | None
    """The loop in whose later iteration `second` races with `first`; None if they race in one run of it."""
    unproven: str | None
    """What orders them without proof: `"schedule"`, `"control edge"` or nothing."""
    reversed: bool
    """The schedule of the compiled program has the second one first."""
    programs: tuple[str, ...]
    """The programs in which they race."""
    follows: bool
    """This race follows from others: it is gone if you fix the races that do not follow."""
    fix: str
    """What to write, in the terms that the program uses."""


@dataclass(frozen=True)
class Lost:
    """A native call of the program as written that the compiled program does not have."""

    call: Call
    merged_with: Call | None
    """An equal call with which XLA merged it; None if XLA dropped it."""
    never_runs: bool
    """XLA dropped it with the branch or loop around it, which never runs. Otherwise nothing needed its result."""


@dataclass(frozen=True)
class Moved:
    """A native call that a loop of the program as written repeats, and that XLA makes once, before the loop."""

    call: Call
    out_of: tuple[Source, ...]
    """Where the loop comes from, the innermost line first."""


@dataclass(frozen=True)
class Copy:
    """A copy that XLA made because of a call of `entangle`."""

    leaf: int
    """Which leaf of the payload."""
    bytes: int
    name: str
    """The name of the copy in the compiled program."""
    why: str
    """`"argument not donated"`, `"passed twice"`, `"still used"`, `"constant"`, `"layout"` or `"unknown"`."""
    whom: str | None
    """The argument, or the operation that still uses the value."""


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
    """Leaves that do not wait, or for which nothing waits."""

    @property
    def copied_bytes(self) -> int:
        """Bytes copied, of all leaves."""
        return sum(copy.bytes for copy in self.copies)


@dataclass(frozen=True, repr=False)
class Report:
    """What `audit` found. `str(report)` is a table, and a notebook draws the picture.

    Examples:
      >>> from entangle_jax import audit, testing
      >>> def program(token):
      ...     before = testing.read(token)
      ...     return before, testing.write(token, 1.0)
      >>> report = audit(program, testing.slot(0), reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET])
      >>> [(race.first.kind, race.second.kind) for race in report.races]
      [('read', 'write')]
      >>> report.ordered(testing.READ_TARGET, testing.WRITE_TARGET)
      False
    """

    module: str
    """The name of the program."""
    programs: tuple[str, ...]
    """What was looked at: the program as written, the compiled one, or both."""
    calls: tuple[Call, ...]
    """The native calls of the given targets, and those of `entangle`, of all programs."""
    races: tuple[Race, ...]
    """All races, in the order of the program. Fix those that do not follow from others (`Race.follows`)."""
    more_races: int
    """How many more there are than `races` lists."""
    lost: tuple[Lost, ...]
    moved: tuple[Moved, ...]
    entangles: tuple[Entangle, ...]
    not_called: tuple[str, ...]
    """Targets that were given, in `reads` or `writes`, and that no program here calls."""
    not_given: tuple[str, ...]
    """Targets that the programs call and that were not given. The audit knows nothing about them."""
    unnamed_arguments: bool
    """The program's arguments have no names, and their pytree is not known. So the audit took the token and the fence
    of a `Handle` for two objects, unless `same` says that they are one."""
    _audits: dict[str, Any] = dataclasses.field(compare=False)
    unused_marks: tuple[str, ...] = ()
    """Marked calls that JAX dropped before it wrote the program, because nothing needs their results: the mark, the
    name of the marked function, and the line that calls it. Known only if `audit` was given the function itself."""
    only_read: tuple[str, ...] = ()
    """Resources that marked calls read and no marked call writes, so that the reads are in no order. A misspelt name in
    a mark can be the reason."""

    @functools.cached_property
    def objects(self) -> tuple[Object, ...]:
        """The objects that the calls use, in each program. That two of them are different is an assumption."""
        found: list[Object] = []
        for program, one in self._audits.items():
            calls = [call for call in self.calls if call.program == program]
            found += _objects(program, calls, one)
        return tuple(found)

    def ordered(self, a: Call | str, b: Call | str, *, later_iteration: bool = False) -> bool:
        """Whether `b` comes after `a` by a data path, in every run.

        Args:
          a: a call of `calls`; or the name of a target, which stands for all its calls.
          b: likewise.
          later_iteration: ask about `b` in the later iterations of each loop around both, not in the same iteration.

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
        """Whether a program calls a target in `reads` or `writes`."""
        return any(call.kind in {"read", "write"} for call in self.calls)

    def raise_if_races(self) -> None:
        """Raise if there is a race.

        Raises:
          RaceError: with this report as its message.
          ValueError: no program calls a target in `reads` or `writes`, so nothing was looked at; or the audit cannot
            tell which arguments are the two parts of one `Handle`.
        """
        if self.races:
            raise RaceError(str(self))
        if not self.looked:
            raise ValueError(f"entangle_jax.audit: {_audit_text.nothing(self)}")
        if self.unnamed_arguments:
            raise ValueError(f"entangle_jax.audit: {_audit_text.UNNAMED}")

    def to_dict(self) -> dict[str, Any]:
        """The report as dictionaries, lists, strings and numbers, for JSON."""
        fields = {field.name for field in dataclasses.fields(self)} - {"_audits"} | {"objects"}
        return {name: _plain(getattr(self, name)) for name in sorted(fields)}

    def to_dot(self) -> str:
        """The picture in the DOT language: native calls as boxes, data paths as arrows, races in red."""
        program = self.programs[-1]
        return _audit_text.dot(self, self._audits[program].graph())

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
        return _audit_text.table(self)

    def _calls(self, which: Call | str) -> list[Call]:
        calls = [call for call in self.calls if which in (call, call.target)]
        if not calls:
            targets = ", ".join(sorted({call.target for call in self.calls})) or "none"
            raise ValueError(f"{which!s} is no call of this report; the targets looked at have calls of: {targets}.")
        return calls


def _objects(program: str, calls: Sequence[Call], audit: _native.Audit) -> list[Object]:
    objects = audit.objects()
    readers: list[list[Call]] = [[] for _ in objects]
    writers: list[list[Call]] = [[] for _ in objects]
    for call, known in zip(calls, audit.calls(), strict=True):
        for users, touched in ((readers, known.reads), (writers, known.writes)):
            for position in touched:
                users[position].append(call)
    return [
        Object(program, one.name, tuple(reading), tuple(writing), tuple(objects[other].name for other in one.may_be))
        for one, reading, writing in zip(objects, readers, writers, strict=True)
    ]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
