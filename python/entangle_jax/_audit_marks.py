"""What a program says of its calls itself, by the marks of `reads` and `writes`, as what the audit is told.

The trace says which calls are marked, and which operand is the handle. The names in the programs only match calls to
it: XLA merges equal calls and keeps one name, and the library calls of a marked function carry the mark too.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax

from entangle_jax import _marks, _native, _private
from entangle_jax._audit_report import WRITTEN
from entangle_jax._ordering import accesses, jaxprs, objects, plan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from entangle_jax._audit_report import Report

_NAME = re.compile(rf"{_marks.PREFIX}:[^/()]*:[^/()]*:[^/()]*")
"""A mark's name in an `op_name`."""

_CALLBACK = re.compile(r"callback")
"""In the targets of calls into Python, which differ between platforms."""

# What XLA and JAX make of their own operations.
_LIBRARY = re.compile(
    r"lapack_|blas_|(__|xla\.)?(cu|hip|roc|gpu|sdy|cpu\.)|__onednn|(dynamic_)?ducc_fft|TopK|Qr$|Eigh$|Sharding$|SPMD|"
    r"Product|annotate_|entangle$|tpu_custom_call|shape_assertion|(Move|Pin|Unpin|AllocateBuffer)",
    re.IGNORECASE,
)

_ANY = None
"""A call whose target the trace does not know: of a primitive that is not of JAX."""


@dataclass
class Traced:
    """The marked calls of a trace."""

    handles: dict[tuple[str, str | None], set[tuple[int, ...]]] = field(default_factory=dict)
    """By the mark's name and the target: the operands that hold the handle, in each of the calls."""
    types: dict[tuple[str, str | None], set[tuple[tuple[str, ...], frozenset[str]]]] = field(default_factory=dict)
    """Where the target is not known: the types of the operands, sorted, and of those that hold the handle."""
    several: set[str] = field(default_factory=set)
    """The names of the marks around several operations whose targets are not known."""
    kept: set[tuple[str, str | None]] = field(default_factory=set)
    """Those that are calls with a side effect, which cannot be gone."""
    calls: Counter[tuple[str, str | None, str]] = field(default_factory=Counter)
    """How many calls there are of each mark's name, target, and line that calls the marked function."""
    dropped: Counter[tuple[str, str | None, str]] = field(default_factory=Counter)
    """How many of them JAX drops before it writes the program, since nothing needs their results."""

    @classmethod
    def of(cls, jaxpr: Any) -> Traced:
        """Walk a trace."""
        self, needed = cls(), cls()
        whole = jaxprs.opened(jaxpr).jaxpr
        self._walk(whole, {}, {})
        if self.calls:
            needed._walk(_private.dce_jaxpr(whole, [True] * len(whole.outvars))[0], {}, {})
            self.dropped = self.calls - needed.calls
        return self

    def _walk(self, jaxpr: Any, handles: dict[Any, frozenset[str]], marks: dict[str, str]) -> int:
        """How many operations there are whose targets are not known.

        `handles`: for each variable, the names of the marks whose handle it is. `marks`: around, with lines.
        """
        of, count = dict(handles), 0
        for eqn in jaxpr.eqns:
            ins = [frozenset() if jaxprs.is_literal(v) else of.get(v, frozenset()) for v in eqn.invars]
            mark = accesses.mark_of(eqn)
            inside = marks | {eqn.params["name"]: _line(eqn)} if mark is not None else marks
            if plan.is_handle(eqn):
                of[eqn.outvars[0]] = ins[0] | marks.keys()
            elif objects.forwards(eqn):
                of.update(zip(eqn.outvars, ins, strict=False))
            opaque = any(one is not None and one.opaque for one in map(_marks.parse, marks))
            if marks and (accesses.is_native(eqn) or (opaque and accesses.hides(eqn))):
                count += self._note(eqn, ins, marks) is _ANY
            before = count
            for closed in jaxprs.inner_jaxprs(eqn):
                inner = jaxprs.opened(closed).jaxpr
                given = ins[len(ins) - len(inner.invars) :]  # a branch is not given the index
                count += self._walk(inner, dict(zip(inner.invars, given, strict=False)), inside)
            if mark is not None and count - before > 1:
                self.several.add(eqn.params["name"])
        return count

    def _note(self, eqn: Any, ins: list[frozenset[str]], marks: dict[str, str]) -> str | None:
        target = eqn.params.get("target_name", "callback" if _CALLBACK.search(eqn.primitive.name) else _ANY)
        for name, line in marks.items():
            self.calls[name, target, line] += 1
            # The operands are those of the native call, unless a token of an ordered effect comes first.
            known = target is not _ANY and not eqn.params.get("ordered")
            operands = tuple(i for i, those in enumerate(ins) if name in those) if known else ()
            self.handles.setdefault((name, target), set()).add(operands)
            if target is _ANY:
                of = [_type(v.aval) for v in eqn.invars]
                of_handle = frozenset(kind for kind, those in zip(of, ins, strict=True) if name in those)
                self.types.setdefault((name, target), set()).add((tuple(sorted(of)), of_handle))
            if eqn.effects:
                self.kept.add((name, target))
        return target

    def key(self, name: str, target: str) -> tuple[str, str | None] | None:
        """What the trace knows of a call with this name and target; None if it knows no such call."""
        for candidate in (target, "callback" if _CALLBACK.search(target) else target, _ANY):
            if (name, candidate) in self.handles and (candidate is not _ANY or not _LIBRARY.match(target)):
                return name, candidate
        return None

    def handed_on(self, key: tuple[str, str | None], operands: Sequence[str]) -> tuple[int, ...]:
        """Which operands of a call as written hold the handle that the primitive which made it was given.

        Empty if that is not known. A call that takes what the primitive takes, in whatever order, has the handle where
        the type is the handle's.
        """
        if len(self.types[key]) != 1:
            return ()
        ((types, of_handle),) = self.types[key]
        if "" in types or types != tuple(sorted(operands)):
            return ()
        return tuple(i for i, kind in enumerate(operands) if kind in of_handle)


_KINDS = {"bfloat": "bf", "float": "f", "uint": "u", "int": "s", "complex": "c", "bool": "pred"}


def _type(aval: Any) -> str:
    """The type of an array as XLA prints it, such as `f32[3,4]`; empty for anything else."""
    if not isinstance(aval, jax.core.ShapedArray):
        return ""
    kind = str(aval.dtype)
    for of_jax, of_xla in _KINDS.items():
        if kind.startswith(of_jax):
            return f"{of_xla}{kind.removeprefix(of_jax)}[{','.join(map(str, aval.shape))}]"
    return ""


def _line(eqn: Any) -> str:
    """The user's line that an equation comes from, as calls are told."""
    frame = next(iter(_private.user_frames(eqn.source_info.traceback)), None)
    return f"{frame.file_name}:{frame.start_line} ({frame.function_name})" if frame is not None else "an unknown line"


class Names:
    """Which marks are around a call, in the compiled program and in the program as written."""

    def __init__(self, known: Iterable[str]) -> None:
        self._by_place: dict[str, list[str]] = {}
        for name in known:
            self._by_place.setdefault(_plain(f"jit({name})"), []).append(name)

    def of(self, call: Any) -> list[str]:
        """The names of the marks.

        JAX's name for a call is whole once XLA has inlined the functions around it; before, the computations around it
        are named after them, with other characters replaced.
        """
        found = _NAME.findall(call.op_name)
        for place in call.place:
            found += self._by_place.get(_plain(_NUMBER.sub("", place)), [])
        return [name for name in dict.fromkeys(found) if _marks.parse(name) is not None]

    def around(self, call: Any, name: str) -> tuple[str, ...]:
        """The place of the computation that the marked function is, as far as the program still has it."""
        for i, place in enumerate(call.place):
            if name in self._by_place.get(_plain(_NUMBER.sub("", place)), ()):
                return tuple(call.place[: i + 1])
        return ()


_NUMBER = re.compile(r"(\.\d+|\.clone)*$")


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name)


class Marked:
    """The marked calls of one audit."""

    def __init__(self, programs: Mapping[str, bytes], traced: Traced | None) -> None:
        self._traced = traced
        everything = [_native.Access(writes=False, op_name="", resource="all", whole=True)]
        self._calls = {
            program: [call for call in _native.Audit(content, everything).calls() if not _LIBRARY.match(call.target)]
            for program, content in programs.items()
        }
        known = {name for name, _ in traced.handles} if traced is not None else set()
        known |= {name for calls in self._calls.values() for call in calls for name in _NAME.findall(call.op_name)}
        self._names = Names(known)
        self._marks = {mark for name in known if (mark := _marks.parse(name)) is not None}
        self._seen: Counter[tuple[str, str | None]] = Counter()
        self._places: dict[tuple[str, str], set[tuple[int, ...]]] = {}
        """By the mark's name and the target: the operands that hold the handle, in each call as written."""

    def accesses(self, named: Iterable[_native.Access] = ()) -> dict[str, list[_native.Access]]:
        """What the audit is told of each program.

        Args:
          named: what the audit was given by name. It says it all of a call through a `Handle`; of the calls that
            `ordered` was told of without a resource, if all of these are named; and of the calls that one primitive
            makes, if one of them is named.

        Raises:
          ValueError: a marked call with a side effect is in the trace and in no program.
        """
        named = list(named)
        everything = {access.target for access in named}
        given: dict[str, set[str | None]] = {_marks.OF_HANDLES: everything, _marks.UNNAMED: everything}
        for access in named:
            if access.resource is not None:
                given.setdefault(access.resource, set()).add(access.target)
        beside = self._beside(given)
        told: dict[str, list[_native.Access]] = {}
        for program in self._calls:
            found = list(self._marked(program))
            self._seen |= Counter(key for _, _, key in found)
            found = [(call, name, key) for call, name, key in found if (name, call.target) not in beside]
            if all(call.target in everything for call, name, _ in found if _resource(name) == _marks.UNNAMED):
                found = [one for one in found if _resource(one[1]) != _marks.UNNAMED]
            told[program] = [
                self._access(name, call, self._operands(program, name, key, call))
                for call, name, key in found
                if _resource(name) != _marks.OF_HANDLES or call.target not in everything
            ]
        if self._traced is not None and (gone := self._traced.kept - self._seen.keys()):
            listed = ", ".join(sorted(f"{target or 'a call'} in {_marks.parse(name)}" for name, target in gone))
            raise ValueError(
                f"entangle_jax.audit: the trace has marked calls that the program does not have: {listed}."
            )
        return told

    def _beside(self, given: Mapping[str, Collection[str | None]]) -> set[tuple[str, str]]:
        """The mark's name and the target of calls that primitives make beside the one that is named, wherever they do.

        As written each marked function is a computation of its own. Of one that has a single primitive that is not of
        JAX, all calls that the trace does not know are made by that one.
        """
        if self._traced is None or WRITTEN not in self._calls:
            return set()
        made: dict[tuple[str, tuple[str, ...]], set[str]] = {}
        for call, name, (_, target) in self._marked(WRITTEN):
            if target is _ANY:
                made.setdefault((name, self._names.around(call, name)), set()).add(call.target)
        found: set[tuple[str, str]] = set()
        alone: set[tuple[str, str]] = set()
        for (name, place), targets in made.items():
            meant = targets & set(given.get(_resource(name), ()))
            is_one = place and meant and name not in self._traced.several
            (found if is_one else alone).update((name, target) for target in targets - meant)
        return found - alone

    def _marked(self, program: str) -> Iterator[tuple[_native.Call, str, tuple[str, str | None]]]:
        """The marked calls of a program, each with the name of a mark around it and what the trace knows it by."""
        for call in self._calls[program]:
            for name in self._names.of(call):
                if (key := self._key(name, call.target)) is not None:
                    yield call, name, key

    def unused(self) -> tuple[str, ...]:
        """The marked calls that the trace has and no program has. `accesses` comes first."""
        if self._traced is None:
            return ()
        traced, seen = self._traced, self._seen
        names = {name for name, _ in seen}
        left: Counter[tuple[str, str | None]] = Counter()
        for (name, target, _), count in (traced.calls - traced.dropped).items():
            left[name, target] += count
        unused: list[str] = []
        for (name, target, line), count in traced.calls.items():
            gone = count
            if (name, target) in seen:
                # With `keep_unused` of `jax.jit`, it is XLA that drops them, and they are in the program as written.
                gone = traced.dropped[name, target, line] if seen[name, target] <= left[name, target] else 0
            elif target is _ANY and name in names:
                gone = 0  # which calls a primitive that is not of JAX becomes, the trace does not say
            unused += [f"{_marks.parse(name)} {_marks.function_of(name)} at {line}"] * gone
        return tuple(sorted(unused))

    def only_read(self) -> tuple[str, ...]:
        """The resources that no mark writes. Those of handles are told by the handle."""
        written = {mark.resource for mark in self._marks if mark.orders_as_a_write}
        return tuple(sorted({mark.resource for mark in self._marks} - written - {_marks.OF_HANDLES}))

    def of_merged(self, report: Report, compiled: str) -> list[_native.Access]:
        """What else is known of compiled calls that stand for others, and that have kept their own names alone."""
        told = []
        for lost in report.lost:
            if lost.merged_with is None:
                continue
            own = self._names.of(lost.merged_with)
            others = [name for name in self._names.of(lost.call) if name not in own]
            stays = [call for call in self._calls[compiled] if set(own) & set(self._names.of(call))]
            for name in others:
                if (key := self._key(name, lost.call.target)) is not None:
                    told += [self._access(name, call, self._operands(compiled, name, key, call)) for call in stays]
        return told

    def _operands(self, program: str, name: str, key: tuple[str, str | None], call: _native.Call) -> tuple[int, ...]:
        """The operands that hold the handle; none if that is not known."""
        mark = _marks.parse(name)
        if self._traced is None or mark is None or not mark.handle:
            return ()
        if key[1] is not _ANY:
            places = self._traced.handles[key]
        else:
            # XLA leaves the operands of a call where they are.
            places = self._places.setdefault((name, call.target), set())
            if program == WRITTEN:
                places.add(self._traced.handed_on(key, call.operand_types))
        return next(iter(places)) if len(places) == 1 else ()

    @staticmethod
    def _access(name: str, call: _native.Call, operands: Sequence[int]) -> _native.Access:
        mark = _marks.parse(name)
        assert mark is not None
        where: dict[str, Any] = {"operands": list(operands)} if operands else {"whole": True}
        # What a `Handle` holds is the same object as where a target that is named without a resource is given it.
        resource = None if mark.resource == _marks.OF_HANDLES else mark.resource
        return _native.Access(
            writes=mark.orders_as_a_write, target=call.target, name=call.name, resource=resource, **where
        )

    def _key(self, name: str, target: str) -> tuple[str, str | None] | None:
        return (name, target) if self._traced is None else self._traced.key(name, target)


def _resource(name: str) -> str:
    mark = _marks.parse(name)
    return mark.resource if mark is not None else ""
