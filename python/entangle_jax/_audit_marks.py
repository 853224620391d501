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

# What XLA and JAX make of their own operations, and no more: a user's call may be named `custom_solve` or `gpu_step`.
_LIBRARY = re.compile(
    r"lapack_|blas_|__(cu|hip|roc|gpu|xla|triton|onednn)|(xla\.)?(gpu|sdy|cpu)[.$]|(dynamic_)?ducc_fft|tpu_custom_call|"
    r"(cu|hip|roc)(blas|solver|sparse|fft|dnn|rand)(?![a-z])|"
    r"(cu|hip)_(threefry2x32|lu_pivots_to_permutation|cholesky_update)|SPMD(FullToShard|ShardToFull)Shape$|"
    r"(entangle|TopK|Qr|Eigh|ProductOfElementaryHouseholderReflectors|Sharding|LayoutConstraint|shape_assertion|"
    r"annotate_device_placement|MoveToHost|MoveToDevice|Pin|Unpin|AllocateBuffer)$"
)

_ANY = None
"""A call whose target the trace does not know: of a primitive that is not of JAX."""


@dataclass(frozen=True, eq=False)
class _Around:
    """A mark around a part of the trace, each time that it is met: one may stand in another of the same name."""

    name: str
    line: str
    mark: _marks.Mark


@dataclass
class Traced:
    """The marked calls of a trace."""

    handles: dict[tuple[str, str | None], set[tuple[int, ...]]] = field(default_factory=dict)
    """By the mark's name and the target: the operands that hold the handle, in each of the calls."""
    types: dict[tuple[str, str | None], set[tuple[tuple[str, ...], frozenset[str]]]] = field(default_factory=dict)
    """Where the target is not known: the types of the operands, sorted, and of those that hold the handle."""
    several: set[str] = field(default_factory=set)
    """The names of the marks around several operations that may make calls whose targets are not known."""
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
        self._walk(whole, {}, ())
        if self.calls:
            needed._walk(_private.dce_jaxpr(whole, [True] * len(whole.outvars))[0], {}, ())
            self.dropped = self.calls - needed.calls
        return self

    def _walk(
        self,
        jaxpr: Any,
        handles: dict[Any, frozenset[_Around]],
        marks: tuple[_Around, ...],
        own: _Around | None = None,
        *,
        sure: bool = True,
    ) -> int:
        """How many operations there are that may make calls whose targets are not known.

        `handles`: for each variable, the marks whose handle it is. `marks`: those around; `own` if it is this jaxpr.
        `sure`: whether the program has it on each platform.
        """
        of, count = dict(handles), 0
        opaque, debug = (any(getattr(one.mark, kind) for one in marks) for kind in ("opaque", "debug"))
        for eqn in jaxpr.eqns:
            ins = [frozenset() if jaxprs.is_literal(v) else of.get(v, frozenset()) for v in eqn.invars]
            mark = accesses.mark_of(eqn)
            inner_own = _Around(eqn.params["name"], _line(eqn), mark) if mark is not None else None
            if plan.is_handle(eqn):
                # It is the handle of this mark alone: one around this one has its own.
                of[eqn.outvars[0]] = ins[0] | ({own} if own is not None else frozenset())
            elif objects.forwards(eqn):
                of.update(zip(eqn.outvars, ins, strict=False))
            if (
                (marks and accesses.is_native(eqn))
                or (opaque and accesses.hides(eqn))
                or (debug and accesses.is_debug(eqn))
            ):
                self._note(eqn, ins, marks, sure=sure)
            count += accesses.hides(eqn)
            before = count
            everywhere = sure and jaxprs.platforms_of(eqn) is None
            for closed in jaxprs.inner_jaxprs(eqn):
                inner = jaxprs.opened(closed).jaxpr
                given = zip(inner.invars, _given(eqn, closed, ins), strict=False)
                around = (*marks, inner_own) if inner_own else marks
                count += self._walk(inner, dict(given), around, inner_own, sure=everywhere)
            if inner_own is not None and count - before > 1:
                self.several.add(inner_own.name)
        return count

    def _note(self, eqn: Any, ins: list[frozenset[_Around]], marks: tuple[_Around, ...], *, sure: bool) -> None:
        target = _ANY
        if accesses.is_of_jax(eqn.primitive):  # another one may mean anything by such names
            target = eqn.params.get("target_name", "callback" if _CALLBACK.search(eqn.primitive.name) else _ANY)
        for name, line in {one.name: one.line for one in marks if sure}.items():
            self.calls[name, target, line] += 1
            if eqn.effects:
                self.kept.add((name, target))
        for one in marks:
            # The operands are those of the native call, unless a token of an ordered effect comes first.
            known = target is not _ANY and not eqn.params.get("ordered")
            operands = tuple(i for i, those in enumerate(ins) if one in those) if known else ()
            self.handles.setdefault((one.name, target), set()).add(operands)
            if target is _ANY:
                of = [_type(v.aval) for v in eqn.invars]
                of_handle = frozenset(kind for kind, those in zip(of, ins, strict=True) if one in those)
                self.types.setdefault((one.name, target), set()).add((tuple(sorted(of)), of_handle))

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


def _given(eqn: Any, closed: Any, ins: Sequence[frozenset[_Around]]) -> Sequence[frozenset[_Around]]:
    """What a jaxpr in an equation is given of its operands; nothing if that is not known."""
    name = eqn.primitive.name
    if name == "while":
        loop = jaxprs.while_(eqn)
        of_condition = loop.condition_consts
        if closed is not loop.condition:
            return ins[of_condition:]
        return [*ins[:of_condition], *ins[of_condition + loop.body_consts :]]
    if name == "cond":
        return ins[1:]
    return ins if name in plan.FLOWS and len(ins) == len(jaxprs.opened(closed).jaxpr.invars) else ()


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
        self._calls = {program: _native.Audit(content, everything).calls() for program, content in programs.items()}
        known = {name for name, _ in traced.handles} if traced is not None else set()
        known |= {
            name
            for calls in self._calls.values()
            for call in calls
            if not _LIBRARY.match(call.target)
            for name in _NAME.findall(call.op_name)
        }
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
        if self._traced is None:
            return told
        if gone := {key for key in self._traced.kept - self._seen.keys() if not self._never_runs(key[1])}:
            listed = ", ".join(sorted(f"{target or 'a call'} in {_marks.parse(name)}" for name, target in gone))
            raise ValueError(
                f"entangle_jax.audit: the trace has marked calls that the program does not have: {listed}."
            )
        return told

    def _never_runs(self, target: str | None) -> bool:
        """Whether a call with a side effect can be gone: with a loop or branch around it that is seen not to run."""
        if target is _ANY or (target == "callback" and jax.default_backend() not in {"cpu", "gpu"}):
            return False  # it may be in the program as something else
        return not any(
            target in (call.target, "callback" if _CALLBACK.search(call.target) else call.target)
            for calls in self._calls.values()
            for call in calls
        )

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
            stays = {call.name: call for call, name, _ in self._marked(compiled) if name in own}.values()
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
            # A primitive that is not of JAX may make such a call too, with other operands.
            places = self._traced.handles[key] | ({()} if (name, _ANY) in self._traced.handles else set())
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
        if self._traced is not None:
            return self._traced.key(name, target)
        return None if _LIBRARY.match(target) else (name, target)


def _resource(name: str) -> str:
    mark = _marks.parse(name)
    return mark.resource if mark is not None else ""
