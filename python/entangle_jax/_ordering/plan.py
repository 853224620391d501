"""The plan of a jaxpr: which of its equations are accesses, which have accesses inside, and what they touch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from entangle_jax import _marks, _private
from entangle_jax._ordering import accesses, jaxprs, objects
from entangle_jax._ordering.objects import Object, Origins

Touches = dict[Object, bool]
"""What is touched; with True what is written."""


@dataclass(frozen=True)
class Access:
    """An equation that is one access."""

    touches: Touches
    waits: tuple[int, ...]
    """Which operands may be made to wait. The first is the one to use, unless all have to wait."""
    witnesses: tuple[int, ...]
    """Which results only the call itself can give. Later accesses may wait for any one of these."""
    hides: bool = False
    """It may make any number of calls, with or without its operands, whether or not its results need them."""
    alone: bool = False
    """It is the only one in a marked function that is one access, and stands in the branch of that one."""
    inside: Plan | None = None
    """Of a marked function that is one access: the accesses that are seen in it."""
    kept: bool = False
    """XLA keeps the call, whether or not its results are used."""
    has_derivative: bool = False
    """JAX would differentiate the call, into a call that is in no order."""
    named: tuple[accesses.Declared, ...] = ()
    """What was said of the call where it is used."""

    @property
    def is_named(self) -> bool:
        """Whether something was."""
        return bool(self.named)


@dataclass(frozen=True)
class Active:
    """A mark around what is planned, and which object of its resource is meant."""

    resource: str
    writes: bool
    origins: Origins
    opaque: bool = False
    debug: bool = False


@dataclass(frozen=True)
class Region:
    """An equation with accesses inside."""

    touches: Touches
    plans: tuple[Plan, ...]
    """Of those jaxprs in it that run, in an order that the equation's rule knows."""
    kept: bool = False
    """XLA keeps all writes in it."""
    marks: tuple[Active, ...] = ()
    """The marks around it, which are also around what its rules for derivatives call."""

    @property
    def is_named(self) -> bool:
        """Whether some of these accesses were named where they are used."""
        return any(plan.is_named for plan in self.plans)


@dataclass
class Plan:
    """A jaxpr and its steps."""

    jaxpr: jaxprs.Open
    steps: dict[int, Access | Region] = field(default_factory=dict)
    """By the number of the equation. All others are as they were."""
    touches: Touches = field(default_factory=dict)
    kept: bool = True
    """XLA keeps all writes in it."""
    results: list[Origins] = field(default_factory=list)
    handles: list[Origins] = field(default_factory=list)
    """Of the arguments that tell the objects of the mark apart which this jaxpr is."""

    @property
    def is_named(self) -> bool:
        """Whether some of its accesses were named where they are used."""
        return any(step.is_named for step in self.steps.values())


@dataclass(frozen=True)
class _Use:
    """How an access is known."""

    named: tuple[str, ...]
    """The names without a resource that it has in `ordered`."""
    marked: frozenset[str]
    """The resources of the marks around it."""
    writes: bool


class Planner:
    """Makes the plans of one function."""

    def __init__(self, specification: accesses.Specification) -> None:
        self._specification = specification
        self._plans: dict[Any, tuple[Any, Plan]] = {}
        self.seen: set[int] = set()
        """The identities of those named calls that were found."""
        self._uses: dict[int, _Use] = {}
        """By the identity of the equation. Plans keep their jaxprs, and so their equations."""

    def plan(self, jaxpr: Any, origins: list[Origins], marks: tuple[Active, ...] = ()) -> Plan:
        """The plan of a jaxpr whose arguments have these origins.

        Raises:
          NotImplementedError: there are accesses inside of an operation that no rule knows.
        """
        key = (id(jaxpr), tuple(origins), marks)
        if key not in self._plans:
            # The jaxpr too, so that no other one gets its identity.
            self._plans[key] = jaxpr, self._new(jaxprs.opened(jaxpr), origins, marks)
        return self._plans[key][1]

    def split(self) -> list[tuple[str, str]]:
        """What is named without a resource and marked with one: pairs of both, if calls of one object are in no order.

        A call that is named and marked touches two objects. Those that are only named and those that are only marked
        touch one of these each, and do not wait for each other.
        """
        uses = list(self._uses.values())
        found = []
        for resource in dict.fromkeys(resource for use in uses for resource in use.marked):
            named = [use for use in uses if use.named and resource not in use.marked]
            marked = [use for use in uses if not use.named and resource in use.marked]
            if any(one.writes or other.writes for one in named for other in marked):
                both = (name for use in uses if resource in use.marked for name in use.named)
                found += [(name, resource) for name in dict.fromkeys(both)]
        return found

    def _new(self, opened: jaxprs.Open, origins: list[Origins], marks: tuple[Active, ...]) -> Plan:
        plan = Plan(opened)
        of: dict[Any, Origins] = dict(zip(opened.jaxpr.invars, origins, strict=True))
        of |= {v: objects.constant(value) for v, value in zip(opened.jaxpr.constvars, opened.consts, strict=True)}

        def read(atom: Any) -> Origins:
            return objects.constant(atom.val) if jaxprs.is_literal(atom) else of[atom]

        for i, eqn in enumerate(opened.jaxpr.eqns):
            ins = [read(atom) for atom in eqn.invars]
            step, outs = self._step(eqn, ins, marks)
            if step is not None and step.touches:
                plan.steps[i] = step
                plan.kept &= step.kept or not any(step.touches.values())
                for touched, writes in step.touches.items():
                    plan.touches[touched] = plan.touches.get(touched, False) or writes
            if is_handle(eqn):
                plan.handles += ins
            of |= dict(zip(eqn.outvars, outs, strict=True))
        plan.results = [read(atom) for atom in opened.jaxpr.outvars]
        return plan

    def _step(
        self, eqn: Any, ins: list[Origins], marks: tuple[Active, ...]
    ) -> tuple[Access | Region | None, list[Origins]]:
        named = self._specification.of_call(eqn)
        self.seen |= {id(one) for one in named}
        mark = accesses.mark_of(eqn)
        if mark is not None and mark.resource != _marks.OF_HANDLES:
            marks = (*marks, self._active(mark, eqn, ins))
        # XLA of jax 0.12 stops the process on many conditionals with the tokens of ordered effects. So where there are
        # such, each call in the function is an access, and what hides calls stands in a branch of its own.
        if mark is not None and mark.opaque and not _private.ordered_effects.filter_in(eqn.effects):
            return self._opaque(eqn, ins, named, marks)
        if named or (marks and accesses.is_native(eqn)) or (any(one.debug for one in marks) and accesses.is_debug(eqn)):
            return self._access(eqn, ins, named, marks), [None] * len(eqn.outvars)
        if not any(True for _ in jaxprs.inner_jaxprs(eqn)):
            return None, objects.of_results(eqn, ins)
        flow = FLOWS.get(eqn.primitive.name, _unknown)
        with jaxprs.inside(eqn):
            plans, outs = flow(self, eqn, ins, marks)
        touches: Touches = {}
        for one in plans:
            for touched, writes in one.touches.items():
                touches[touched] = touches.get(touched, False) or writes
        if flow is _unknown and any(mark.opaque for mark in marks) and (touches or accesses.hides(eqn)):
            return self._access(eqn, ins, named, marks, touches), outs
        if touches and flow is _unknown:
            raise NotImplementedError(
                f"entangle_jax.ordered: there are accesses inside of `{eqn.primitive.name}` at {jaxprs.line(eqn)}, "
                "which `ordered` cannot put in order: it has no rule for this operation. Call it outside of `ordered`, "
                'or mark the function around it as one access, with `writes("...", opaque=True)`.'
            )
        if mark is not None and len(plans) == 1 and (alone := _lone_access(plans[0], eqn)) is not None:
            return alone, outs
        return Region(touches, tuple(plans), all(plan.kept for plan in plans), marks), outs

    def _active(self, mark: Any, eqn: Any, ins: list[Origins]) -> Active:
        origins: Origins = None
        if mark.handle and not mark.opaque:
            handles = self.plan(jaxprs.param(eqn, "jaxpr"), ins).handles
            origins = objects.join(*handles) if handles else None
        return Active(mark.resource, mark.orders_as_a_write, origins, mark.opaque, mark.debug)

    def _opaque(
        self, eqn: Any, ins: list[Origins], named: list[accesses.Declared], marks: tuple[Active, ...]
    ) -> tuple[Access, list[Origins]]:
        """A marked function that is one access, with what is in it in order too, as far as it is seen."""
        with jaxprs.inside(eqn):
            inside = self.plan(jaxprs.param(eqn, "jaxpr"), ins, marks)
        access = self._access(eqn, ins, named, marks, inside.touches)
        if len(inside.steps) == 1:
            ((number, step),) = inside.steps.items()
            if isinstance(step, Access):
                inside = replace(inside, steps={number: replace(step, alone=True)})
        # The accesses in it say themselves whether they have derivatives.
        return replace(access, inside=inside, has_derivative=not inside.steps), inside.results

    def _access(
        self,
        eqn: Any,
        ins: list[Origins],
        named: list[accesses.Declared],
        marks: tuple[Active, ...],
        inside: Touches | None = None,
    ) -> Access:
        touches = dict(inside or {})
        self._uses[id(eqn)] = _Use(
            tuple(str(one) for one in named if one.resource == _marks.UNNAMED),
            frozenset(mark.resource for mark in marks if mark.resource != _marks.UNNAMED),
            any(one.writes for one in named) or any(mark.writes for mark in marks),
        )

        def touch(resource: str, origins: Origins, writes: bool) -> None:
            touches[resource, origins] = touches.get((resource, origins), False) or writes

        first: list[int] = []
        for one in named:
            if one.operands is None:
                touch(one.resource, None, one.writes)
                continue
            if max(one.operands) >= len(ins):
                raise ValueError(
                    f"entangle_jax.ordered: the handle of {one} is operand {max(one.operands)}, and the call at "
                    f"{jaxprs.line(eqn)} has {len(ins)}."
                )
            touch(one.resource, objects.join(*(ins[i] for i in one.operands)), one.writes)
            first += [i for i in one.operands if i not in first]
        for mark in marks:
            touch(mark.resource, mark.origins, mark.writes)
            # Where the handle of the mark goes, whatever functions are between.
            handles = (i for i, one in enumerate(ins) if one and mark.origins and one <= mark.origins)
            first += [i for i in handles if i not in first]
        usable = sorted((i for i, v in enumerate(eqn.invars) if _is_usable(v)), key=lambda i: _bytes(eqn.invars[i]))
        waits = (*(i for i in first if i in usable), *(i for i in usable if i not in first))
        witnesses = sorted(
            (i for i, v in enumerate(eqn.outvars) if _is_usable(v)), key=lambda i: _bytes(eqn.outvars[i])
        )
        hides = any(True for _ in jaxprs.inner_jaxprs(eqn)) or (
            any(mark.opaque for mark in marks) and accesses.hides(eqn)
        )
        return Access(
            touches,
            waits,
            tuple(witnesses),
            hides,
            kept=bool(eqn.effects) and not hides,
            has_derivative=not accesses.refuses_derivatives(eqn),
            named=tuple(named),
        )


def is_handle(eqn: Any) -> bool:
    """Whether an equation says which argument tells the objects of a mark apart. See `_marks.py`."""
    return eqn.primitive.name == "entangle" and len(eqn.invars) == eqn.params["n"] == 1 and not eqn.params["shared"]


def _is_usable(atom: Any) -> bool:
    """Whether a data path can lead through it: it is an array with elements, or an XLA token."""
    if atom.aval is _private.abstract_token:
        return True
    size = getattr(atom.aval, "size", None)
    return hasattr(atom.aval, "dtype") and not hasattr(atom.aval, "inner_aval") and size is not None and _nonzero(size)


def _nonzero(size: Any) -> bool:
    return not isinstance(size, int) or size > 0  # a symbolic size may be zero, but the program is written for all


def _bytes(atom: Any) -> int:
    if atom.aval is _private.abstract_token:
        return _LARGE
    size = atom.aval.size
    return int(size) * atom.aval.dtype.itemsize if isinstance(size, int) else _LARGE


_LARGE = 1 << 62


def _lone_access(plan: Plan, eqn: Any) -> Access | None:
    """A mark with one access, whose operand is the mark's own and whose result is one of the mark's, as that access."""
    if len(plan.steps) != 1:
        return None
    ((number, step),) = plan.steps.items()
    if not isinstance(step, Access) or step.hides or step.has_derivative:
        return None
    jaxpr = plan.jaxpr.jaxpr
    sources: dict[Any, Any] = {}
    for one in jaxpr.eqns:
        if objects.forwards(one):
            for operand, result in zip(one.invars, one.outvars, strict=False):
                if not jaxprs.is_literal(operand) and operand.aval.size == result.aval.size:
                    sources[result] = sources.get(operand, operand)
    call = jaxpr.eqns[number]
    own = {v: i for i, v in enumerate(jaxpr.invars)}
    operands = [sources.get(v, v) for v in (call.invars[i] for i in step.waits) if not jaxprs.is_literal(v)]
    waits = tuple(dict.fromkeys(own[v] for v in operands if v in own))
    made = {call.outvars[i] for i in step.witnesses}
    witnesses = tuple(
        i
        for i, v in enumerate(jaxpr.outvars)
        if not jaxprs.is_literal(v) and sources.get(v, v) in made and _is_usable(eqn.outvars[i])
    )
    return Access(step.touches, waits, witnesses, kept=step.kept) if waits and witnesses else None


# How origins pass through constructs with jaxprs inside: `flow(planner, eqn, ins, marks)` returns the plans of the
# jaxprs that run, and the origins of the results.
def _unknown(planner: Planner, eqn: Any, ins: list[Origins], marks: Any) -> Any:
    del ins
    plans = []
    for jaxpr in jaxprs.inner_jaxprs(eqn):
        count = len(jaxprs.opened(jaxpr).jaxpr.invars)
        plans.append(planner.plan(jaxpr, [None] * count, marks))
    return plans, [None] * len(eqn.outvars)


def _call(name: str) -> Any:
    """The operands are the jaxpr's arguments, and the results are its results."""

    def flow(planner: Planner, eqn: Any, ins: list[Origins], marks: Any) -> Any:
        plan = planner.plan(jaxprs.param(eqn, name), ins, marks)
        return [plan], plan.results

    return flow


def _scan(planner: Planner, eqn: Any, ins: list[Origins], marks: Any) -> Any:
    scan = jaxprs.scan(eqn)
    consts, carry = ins[: scan.consts], ins[scan.consts : scan.consts + scan.carry]
    elements = [objects.part_of(one) for one in ins[scan.consts + scan.carry :]]
    while True:
        plan = planner.plan(scan.body, [*consts, *carry, *elements], marks)
        after = [objects.join(a, b) for a, b in zip(carry, plan.results[: scan.carry], strict=True)]
        if after == carry:
            return [plan], [*carry, *map(objects.part_of, plan.results[scan.carry :])]
        carry = after


def _while(planner: Planner, eqn: Any, ins: list[Origins], marks: Any) -> Any:
    loop = jaxprs.while_(eqn)
    of_condition, of_body = ins[: loop.condition_consts], ins[loop.condition_consts :][: loop.body_consts]
    carry = ins[loop.condition_consts + loop.body_consts :]
    while True:
        body = planner.plan(loop.body, [*of_body, *carry], marks)
        after = [objects.join(a, b) for a, b in zip(carry, body.results, strict=True)]
        if after == carry:
            return [planner.plan(loop.condition, [*of_condition, *carry], marks), body], carry
        carry = after


def _cond(planner: Planner, eqn: Any, ins: list[Origins], marks: Any) -> Any:
    plans = [planner.plan(branch, ins[1:], marks) for branch in jaxprs.param(eqn, "branches")]
    return plans, [objects.join(*those) for those in zip(*(plan.results for plan in plans), strict=True)]


def _linear_solve(planner: Planner, eqn: Any, ins: list[Origins], marks: Any) -> Any:
    solve, consts = jaxprs.solve_of_linear_solve(eqn)
    count = len(jaxprs.opened(solve).jaxpr.invars) - (consts.stop - consts.start)
    plan = planner.plan(solve, [*ins[consts], *ins[len(ins) - count :]], marks)
    return [plan], [None] * len(eqn.outvars)


FLOWS: dict[str, Any] = {
    **dict.fromkeys(
        ("jit", "pjit", "closed_call", "core_closed_call", "remat2", "checkpoint", "shard_map"), _call("jaxpr")
    ),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"), _call("call_jaxpr")),
    "custom_vmap_call": _call("call"),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "custom_linear_solve": _linear_solve,
}
