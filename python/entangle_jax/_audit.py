"""Proof of order from the compiled program, and what it cost.

`audit` looks at two programs: the one that JAX handed to XLA, and what XLA made of it. In both, native calls that touch
the same object must be connected by data; in the second one it shows what was copied. The work is done in Rust
(`crates/entangle-audit`); this file brings the programs there and the answers back.

**What the audit is told of a program**, besides its bytes, goes through `audit_programs` alone: a list of
`_native.Access`, one for each thing that is known of some calls ("these calls read, or write, that object of this
resource"). `_audit_targets` makes them of the names that a person gives in `reads` and `writes`. What a program says
itself (a mark in the names of its calls, say) is more of them, given as `accesses`:

    # The calls of a target; operand 0 tells the objects of the resource apart.
    _native.Access(writes=True, target="lu_refactor", resource="matrix", operands=[0])
    # The calls whose name, as JAX calls them, has this in it; they touch all of the resource.
    _native.Access(writes=False, op_name="jit(solve[reads matrix])", resource="matrix")
    # One instruction; an attribute names the object.
    _native.Access(writes=True, name="custom-call.7", resource="matrix", attribute="id")

A call that several of them match does all that they say. The rules are those of `entangle_audit::Access`, in
`crates/entangle-audit/src/objects/access.rs`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import jax

from entangle_jax import _audit_arguments, _audit_marks, _audit_races, _audit_targets, _native, _private
from entangle_jax import _calls as _calls_of_trace
from entangle_jax._audit_report import (
    COMPILED,
    WRITTEN,
    Call,
    Copy,
    Entangle,
    Lost,
    Moved,
    Object,
    Race,
    RaceError,
    Report,
    Source,
)
from entangle_jax._audit_targets import TargetSpec, TargetSpecs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "COMPILED",
    "WRITTEN",
    "Call",
    "Copy",
    "Entangle",
    "Lost",
    "Moved",
    "Object",
    "Race",
    "RaceError",
    "Report",
    "Source",
    "TargetSpec",
    "TargetSpecs",
    "audit",
    "audit_programs",
]


def audit(
    fn: Any,
    *args: Any,
    reads: TargetSpecs = (),
    writes: TargetSpecs = (),
    same: Sequence[Sequence[int]] | None = None,
    **kwargs: Any,
) -> Report:
    """Prove from the compiled program that native calls are ordered, and show what `entangle` cost.

    >>> import jax
    >>> from entangle_jax import audit, entangle, testing
    >>> def program(token):
    ...     before = testing.read(token)
    ...     token = testing.write(entangle(token, before), 1.0)
    ...     return before, testing.read(token)
    >>> report = audit(program, testing.slot(0), reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET])
    >>> report.races
    ()

    **What is proven.** Two calls are ordered if, in every run, the second one needs a value that was computed from a
    result of the first one, whichever branch is taken and however often a loop runs. A schedule, the order of lines,
    and control edges prove nothing, because the CPU runtime follows the data alone. Two calls race if both use the same
    object, at least one changes it, and neither is ordered after the other. The audit also compares a call in a loop's
    body with the calls of later iterations.

    **Which object a call uses.** The audit follows the value of the handle backwards through `entangle`, copies, loop
    carries, branches, and the tokens that writes return. It ends at an argument, or a fixed element of one, that was
    passed on unchanged; or at a constant; or at anything else, such as a computation, or a native call that was not
    named, which may give any object. Elements of one array at unknown indices, or of an array whose elements were
    moved, may be the same object. Equal constants are the same object. Different arguments, different constants, and
    elements at different known indices are different objects. The token and the fence of a `Handle` are one object.

    **What is not proven.** That objects which the audit assumed to be different are different: `Report.objects` lists
    them, and a resource makes one object of them. Anything about native calls that were not named. What a native call
    does with an object that it reaches in another way than through its handle.

    Args:
      fn: a function, jitted or not, which is lowered and compiled for the arguments; or a `jax.stages.Lowered`; or a
        `jax.stages.Compiled`, for which only the compiled program is known.
      *args: its arguments, or `jax.ShapeDtypeStruct`s like them.
      reads: the native targets that use an object. Calls in functions that are marked with `entangle_jax.reads`,
        calls that `ordered` was told of, and calls through a `Handle` need not be named. If one primitive of another
        library makes several native calls, the audit takes each of them for an access, unless you name the one that
        is: `{"klu": ["solve"]}` for the resource of the mark, or `["solve"]` if it has none. Each target is a name, or
        a pair of a name and what says which object it is: the operand (or operands) that holds the handle, `()` if all
        calls of the target use one object, or the name of an attribute that names the object. A name alone means
        operand 0; for a call without operands, or a Python callback, it means any object. A dictionary gives
        resources, `{"scene": ["render"]}`, and the targets that use each. All calls of one resource use one object,
        unless an operand or attribute tells its objects apart. Calls of two resources never use the same object.
      writes: the native targets that change an object, likewise.
      same: groups of arguments of the program, by their numbers from 0, that are one object. The audit knows which two
        are the token and the fence of a `Handle`, unless another library passes their leaves to jax one by one. Then
        the report says so, and proves nothing. `()` says that all arguments are different objects.
      **kwargs: its keyword arguments.

    Returns:
      The report.

    Raises:
      TypeError: `fn` is none of these; or it has its arguments already, and others are given; or a target is neither
        a name nor a pair.
      ValueError: a target is neither called nor registered; there are reads and no writes; a call does not have the
        operand or attribute; or the program cannot be read.
    """
    _expect_no_misspelt(fn, kwargs)
    given = _stage(fn)
    if given is not None and (args or kwargs):
        raise TypeError(
            f"entangle_jax.audit: got a jax.stages.{type(given).__name__}, which has its arguments already, and "
            "others: leave them out, or pass the function."
        )
    jaxpr = None
    if given is not None:
        wrapper = fn
    else:
        wrapper, jaxpr = _lower(fn, args, kwargs)
    stage = given or _stage(wrapper)
    if isinstance(stage, jax.stages.Compiled):
        programs = {COMPILED: _optimized(stage)}
    elif stage is not None:
        programs = {WRITTEN: _unoptimized(stage), COMPILED: _optimized(stage.compile())}
    else:
        raise TypeError(
            f"entangle_jax.audit: `lower` of the function returned an object of type {type(wrapper).__name__}, wanted "
            "a jax.stages.Lowered."
        )
    # Another library may hand jax the leaves of its arguments, and keep to itself how they belong together.
    handles = (
        _audit_arguments.handles(stage) if stage is wrapper else _audit_arguments.handles_in_order(stage, args, kwargs)
    )
    if handles is not None:
        same = [*handles, *(same or ())]
    marked = _audit_marks.Marked(programs, _audit_marks.Traced.of(jaxpr) if jaxpr is not None else None)
    accesses = marked.accesses(_audit_targets.accesses(reads, writes))
    report = functools.partial(
        audit_programs,
        programs,
        reads,
        writes,
        same=same,
        pair_by_name=handles is None,
        named=lambda: _calls_of_trace.named(jaxpr) if jaxpr is not None else (),
    )
    found = report(accesses=accesses)
    # A call that stands for others does what they did too.
    if merged := marked.of_merged(found, COMPILED):
        accesses[COMPILED] += merged
        found = report(accesses=accesses)
    return dataclasses.replace(found, unused_marks=marked.unused(), only_read=marked.only_read())


def audit_compilation(module: Any, executable: Any, reads: TargetSpecs, writes: TargetSpecs) -> Report | None:
    """The report on a program that JAX compiled, by its MLIR module and executable; None if it has no native calls."""
    compiled = executable.hlo_modules()
    if len(compiled) != 1:
        return None
    programs = {WRITTEN: _private.as_hlo(module), COMPILED: compiled[0].as_serialized_hlo_module_proto()}
    if not _native.Audit(programs[WRITTEN], []).targets:
        return None
    given = _audit_targets.accesses(reads, writes)
    accesses = _audit_marks.Marked(programs, None).accesses(given)
    elsewhere = [access.target for access in given if access.target]
    return audit_programs(programs, reads, writes, accesses=accesses, called_elsewhere=elsewhere)


def expect_targets(reads: TargetSpecs, writes: TargetSpecs) -> None:
    """Refuse what `audit` refuses as targets, before there is a program."""
    _audit_targets.accesses(reads, writes)


def _expect_no_misspelt(fn: Any, kwargs: Mapping[str, Any]) -> None:
    """Refuse `read=` and `write=`, unless the function takes an argument of that name."""
    for name in {"read", "write"} & set(kwargs):
        try:
            inspect.signature(fn).bind_partial(**{name: None})
            names_targets = isinstance(kwargs[name], list | tuple) and any(isinstance(x, str) for x in kwargs[name])
        except (TypeError, ValueError):
            names_targets = True
        if names_targets:
            raise TypeError(
                f"entangle_jax.audit: got `{name}={kwargs[name]!r}`, which the function does not take: the native "
                f"targets are given as `{name}s`."
            )


def _stage(fn: Any) -> jax.stages.Lowered | jax.stages.Compiled | None:
    """What was lowered or compiled already, also in a wrapper of another library."""
    for stage in (fn, getattr(fn, "lowered", None), getattr(fn, "compiled", None)):
        if isinstance(stage, jax.stages.Lowered | jax.stages.Compiled):
            return stage
    return None


def audit_programs(
    programs: Mapping[str, bytes],
    reads: TargetSpecs,
    writes: TargetSpecs,
    *,
    accesses: Mapping[str, Sequence[_native.Access]] = MappingProxyType({}),
    same: Sequence[Sequence[int]] | None = None,
    pair_by_name: bool = True,
    called_elsewhere: Iterable[str] = (),
    named: Callable[[], Sequence[_calls_of_trace.Named]] = tuple,
) -> Report:
    """The report on serialized programs: `"as written"`, `"compiled"`, or both of one module.

    Args:
      programs: the serialized programs.
      reads: as of `audit`.
      writes: as of `audit`.
      accesses: what is known of the calls of each program besides.
      same: groups of arguments, by their numbers in the program, that are one object; None if that is not known.
      pair_by_name: the names of the arguments say too which two are a `Handle`; false if `same` says it all.
      called_elsewhere: targets that other programs call, so that they are known not to be misspelt.
      named: the calls of the trace by the names that `ordered` knows; asked for if there is something to mend.
    """
    given = _audit_targets.accesses(reads, writes)
    groups = [list(group) for group in same or ()]
    audits = {
        name: _native.Audit(program, [*given, *accesses.get(name, ())], same=groups, pair_by_name=pair_by_name)
        for name, program in programs.items()
    }
    called = {target for one in audits.values() for target in one.targets}
    _audit_targets.expect_known(given, called | set(called_elsewhere))
    calls = {program: _calls(program, one) for program, one in audits.items()}
    races, more = _audit_races.races(audits[list(audits)[-1]].module, audits, calls, named)
    lost: tuple[Lost, ...] = ()
    moved: tuple[Moved, ...] = ()
    if len(audits) == 2:
        lost, moved = _became(audits, calls)
    last = list(audits)[-1]
    names = dict.fromkeys(access.target for access in [*given, *itertools.chain(*accesses.values())] if access.target)
    return Report(
        module=audits[last].module,
        programs=tuple(audits),
        calls=tuple(call for of in calls.values() for call in of),
        races=races,
        more_races=more,
        lost=lost,
        moved=moved,
        entangles=tuple(_entangle(calls[last], cost) for cost in audits[last].costs()),
        not_called=tuple(name for name in names if name not in called),
        not_given=tuple(sorted(called - {*names, "entangle"})),
        unnamed_arguments=same is None and _audit_arguments.are_unnamed(audits[last]),
        _audits=audits,
    )


def _lower(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The lowered function, and its jaxpr if that is known."""
    if not callable(fn):
        remedy = "; for XLA's dump files: `python -m entangle_jax audit FILE`" if isinstance(fn, str | Path) else ""
        raise TypeError(
            f"entangle_jax.audit: got an object of type {type(fn).__name__}, wanted a function, a jax.stages.Lowered "
            f"or a jax.stages.Compiled{remedy}."
        )
    # A jitted function that is bound to an object, or to arguments, has the `lower` of the function alone.
    if hasattr(fn, "__self__") and hasattr(getattr(fn, "__func__", None), "lower"):
        fn, args = fn.__func__, (fn.__self__, *args)
    elif not hasattr(fn, "lower") and hasattr(getattr(fn, "func", None), "lower"):  # a partial, of whichever library
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    function = fn if hasattr(fn, "lower") else jax.jit(fn)
    with jax.disable_jit(False):  # without jit a mark leaves no trace
        if not hasattr(function, "trace"):
            return function.lower(*args, **kwargs), None
        of_jax = function.trace(*args, **kwargs)
        return of_jax.lower(), of_jax.jaxpr


def _unoptimized(lowered: jax.stages.Lowered) -> bytes:
    program: bytes = cast("Any", lowered.compiler_ir("hlo")).as_serialized_hlo_module_proto()
    return program


def _optimized(compiled: jax.stages.Compiled) -> bytes:
    modules = cast("Any", compiled.runtime_executable()).hlo_modules()
    if len(modules) != 1:
        raise ValueError(f"entangle_jax.audit: the executable has {len(modules)} modules, wanted one.")
    program: bytes = modules[0].as_serialized_hlo_module_proto()
    return program


def _calls(program: str, audit: _native.Audit) -> list[Call]:
    # Thousands of calls come from a few lines.
    stack = functools.cache(
        lambda sources: tuple(dict.fromkeys(Source(source.file, source.line, source.function) for source in sources))
    )
    names = [one.name for one in audit.objects()]
    return [
        Call(
            program,
            index,
            call.name,
            call.target,
            call.kind,
            call.place,
            stack(call.sources),
            call.op_name,
            tuple(names[position] for position in sorted({*call.reads, *call.writes})),
        )
        for index, call in enumerate(audit.calls())
    ]


def _became(
    audits: Mapping[str, _native.Audit], calls: Mapping[str, Sequence[Call]]
) -> tuple[tuple[Lost, ...], tuple[Moved, ...]]:
    """What XLA took out of the program, and what out of a loop."""
    of = calls[WRITTEN]
    # A call of `entangle` goes when the payload does: nothing is lost by that.
    lost = tuple(
        Lost(of[one.call], None if one.merged_with is None else of[one.merged_with], one.never_runs)
        for one in audits[WRITTEN].lost(audits[COMPILED])
        if of[one.call].kind != "entangle"
    )
    moved = tuple(
        Moved(of[one.call], tuple(Source(line.file, line.line, line.function) for line in one.out_of))
        for one in audits[WRITTEN].moved(audits[COMPILED])
        if of[one.call].kind != "entangle"
    )
    return lost, moved


def _entangle(calls: list[Call], cost: _native.Cost) -> Entangle:
    leaves = list(enumerate(cost.payload))
    return Entangle(
        call=calls[cost.call],
        payload_bytes=sum(leaf.bytes for leaf in cost.payload),
        leaves=len(cost.payload),
        witnesses=cost.witnesses,
        copies=tuple(
            Copy(i, leaf.bytes, leaf.copied_by, leaf.why or "unknown", leaf.whom)
            for i, leaf in leaves
            if leaf.copied_by is not None
        ),
        transposes=tuple(cost.transposes),
        collectives=tuple(cost.collectives),
        dropped=(
            *(f"payload leaf {i} has no elements" for i, leaf in leaves if not leaf.has_elements),
            *(f"operand {i}, a witness, is a constant or has no elements" for i in cost.dropped_witnesses),
        ),
    )
