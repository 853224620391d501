"""One rule for each construct: how tokens go into it, through its bodies and branches, and out of it.

A rule builds the construct anew, by its public function where there is one, around bodies that take and return tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from entangle_jax import _private
from entangle_jax._entangle import entangle
from entangle_jax._ordering import jaxprs
from entangle_jax._ordering.evaluate import RULES, Evaluation, Results, Rule, no_derivative, without_derivative
from entangle_jax._ordering.world import Cell, Tokens, World

if TYPE_CHECKING:
    from entangle_jax._ordering.plan import Plan, Region

_private.register_exclusion(__file__)

Body = Callable[[dict[Cell, Tokens], Sequence[Any]], tuple[dict[Cell, Tokens], list[Any]]]


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _body(evaluation: Evaluation, plan: Plan, cells: dict[Cell, bool], *, of_loop: bool = False) -> Body:
    """A function from tokens and arguments to tokens and results. It computes each token that it returns."""

    def body(tokens: dict[Cell, Tokens], operands: Sequence[Any]) -> tuple[dict[Cell, Tokens], list[Any]]:
        results, world = evaluation.run(plan, operands, World.entered(cells, tokens))
        return world.leave(cells, tokens if of_loop else None), results

    return body


# Tokens are handed on as flat lists: JAX sorts the keys of dictionaries, and ours have no order.
def _flat(tokens: dict[Cell, Tokens]) -> list[Any]:
    return [token for pair in tokens.values() for token in pair if token is not None]


def _like(tokens: dict[Cell, Tokens], flat: Sequence[Any]) -> dict[Cell, Tokens]:
    values = iter(flat)
    return {
        cell: (None if a is None else next(values), None if b is None else next(values))
        for cell, (a, b) in tokens.items()
    }


class _Flat:
    """A body as a function of flat lists: tokens and arguments, to tokens and results."""

    def __init__(self, body: Body, tokens: dict[Cell, Tokens], cells: dict[Cell, bool]) -> None:
        self._body = body
        self._tokens = tokens
        self._tokens_out: dict[Cell, Tokens] = {
            cell: (True if written else None, True) for cell, written in cells.items()
        }
        self.count_in = len(_flat(tokens))
        self.count = len(_flat(self._tokens_out))
        """How many tokens come out."""

    def __call__(self, *operands: Any) -> list[Any]:
        tokens, results = self._body(_like(self._tokens, operands[: self.count_in]), operands[self.count_in :])
        return [*_flat(tokens), *results]

    def split(self, results: Sequence[Any]) -> tuple[dict[Cell, Tokens], list[Any]]:
        """Results as tokens and the others."""
        return _like(self._tokens_out, results[: self.count]), list(results[self.count :])


@_rule("jit", "pjit")
def _jit(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    cells = evaluation.cells_of(region)
    tokens = world.enter(cells)
    flat = _Flat(_body(evaluation, region.plans[0], cells), tokens, cells)
    jaxpr = jax.make_jaxpr(flat)(*_flat(tokens), *ins)
    results = jaxprs.bind_jit(eqn, jaxpr, _flat(tokens), ins, flat.count)
    left, outs = flat.split(results)
    return outs, world.left(cells, left, kept=region.kept)


@_rule("remat2", "checkpoint")
def _checkpoint(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    cells = evaluation.cells_of(region)
    tokens = world.enter(cells)
    flat = _Flat(_body(evaluation, region.plans[0], cells), tokens, cells)
    jaxpr = jax.make_jaxpr(flat)(*_flat(tokens), *ins)
    results = jaxprs.bind_checkpoint(eqn, jaxpr, [*_flat(tokens), *ins])
    left, outs = flat.split(results)
    return outs, world.left(cells, left, kept=region.kept)


@_rule("closed_call", "core_call", "core_closed_call")
def _call(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    del eqn
    return evaluation.run(region.plans[0], ins, world)


@_rule("scan")
def _scan(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    scan = jaxprs.scan(eqn)
    cells = evaluation.cells_of(region)
    consts, carry, xs = ins[: scan.consts], ins[scan.consts :][: scan.carry], ins[scan.consts + scan.carry :]
    loop = _Loop(evaluation, cells, world)

    def step(state: Any, x: Any) -> Any:
        tokens, carry = state
        tokens, results = loop.run(region.plans[0], tokens, [*consts, *carry, *x])
        return (tokens, results[: scan.carry]), results[scan.carry :]

    (tokens, carry), ys = jax.lax.scan(
        step, (loop.start, list(carry)), list(xs), length=scan.length, reverse=scan.reverse, unroll=scan.unroll
    )
    return [*carry, *ys], loop.end(tokens, kept=region.kept)


@_rule("while")
def _while(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    parts = jaxprs.while_(eqn)
    condition, body = region.plans
    evaluation = replace(evaluation, saves=False)
    cells = evaluation.cells_of(region)
    of_condition, of_body = ins[: parts.condition_consts], ins[parts.condition_consts :][: parts.body_consts]
    carry = list(ins[parts.condition_consts + parts.body_consts :])
    loop = _Loop(evaluation, cells, world)
    refused = _refused_if_batched(eqn, region, evaluation)

    def go(tokens: Any, carry: Any) -> Any:
        tokens, (result,) = loop.run(condition, tokens, [*of_condition, *carry])
        return tokens, refused(result)

    if not evaluation.cells_of(condition):

        def test(state: Any) -> Any:
            return refused(evaluation.run(condition, [*of_condition, *state[1]], World())[0][0])

        def step(state: Any) -> Any:
            tokens, carry = state
            return loop.run(body, tokens, [*of_body, *carry])

        tokens, results = jax.lax.while_loop(test, step, (loop.start, carry))
        return list(results), loop.end(tokens, kept=region.kept)

    # The calls of the condition are evaluated in the body, whose results can be waited for, and once before the loop.
    def step_and_test(state: Any) -> Any:
        _, tokens, carry = state
        tokens, carry = loop.run(body, tokens, [*of_body, *carry])
        tokens, more = go(tokens, carry)
        return more, tokens, carry

    tokens, more = go(loop.start, carry)
    _, tokens, results = jax.lax.while_loop(lambda state: state[0], step_and_test, (more, tokens, carry))
    return list(results), loop.end(tokens, kept=region.kept)


class _Loop:
    """The tokens that a loop carries, and those that all iterations share: of objects that it reads only."""

    def __init__(self, evaluation: Evaluation, cells: dict[Cell, bool], world: World) -> None:
        self._evaluation, self._cells, self._world = evaluation, cells, world
        self._entered = world.enter(cells, into_loop=True)
        self.start = self._carried(self._entered)

    def _carried(self, tokens: dict[Cell, Tokens]) -> list[Any]:
        """For a written object both tokens, otherwise the one that stands for the reads."""
        return [list(tokens[cell]) if written else [tokens[cell][1]] for cell, written in self._cells.items()]

    def run(self, plan: Plan, carried: list[Any], operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """A body of the loop: from the carried tokens and operands to the carried tokens and results."""
        tokens = {}
        for (cell, written), those in zip(self._cells.items(), carried, strict=True):
            tokens[cell] = (those[0], those[1]) if written else (self._entered[cell][0], those[0])
        after, results = _body(self._evaluation, plan, self._cells, of_loop=True)(tokens, operands)
        return self._carried(after), results

    def end(self, carried: list[Any], *, kept: bool) -> World:
        """The world after the loop."""
        tokens: dict[Cell, Tokens] = {
            cell: (those[0], those[1]) if written else (None, those[0])
            for (cell, written), those in zip(self._cells.items(), carried, strict=True)
        }
        return self._world.left(self._cells, tokens, kept=kept)


@_rule("cond")
def _cond(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    cells = evaluation.cells_of(region)
    tokens = world.enter(cells)
    flats = [_Flat(_body(evaluation, plan, cells), tokens, cells) for plan in region.plans]
    if (platforms := jaxprs.platforms_of(eqn)) is not None:
        # Only one branch is lowered: the others may make calls that this platform does not know.
        each = {name: flat for flat, names in zip(flats, platforms, strict=True) for name in names or ()}
        default = next((flat for flat, names in zip(flats, platforms, strict=True) if names is None), None)
        results = jax.lax.platform_dependent(*_flat(tokens), *ins[1:], default=default, **each)
    else:
        index = _refused_if_batched(eqn, region, evaluation)(ins[0])
        results = jax.lax.switch(index, flats, *_flat(tokens), *ins[1:])
    tokens, outs = flats[0].split(results)
    return outs, world.left(cells, tokens, kept=region.kept)


def _refused_if_batched(eqn: Any, region: Region, evaluation: Evaluation) -> Callable[[Any], Any]:
    """The identity on a predicate, with an error under an outer `vmap` that batches it.

    JAX would run both branches then, or the loop's body for elements that have ended: what these write is written.
    """
    if not any(evaluation.cells_of(region).values()):
        return lambda predicate: predicate

    @jax.custom_batching.custom_vmap
    def refused(predicate: Any) -> Any:
        return predicate

    @refused.def_vmap
    def _(axis_size: int, in_batched: Any, predicate: Any) -> Any:
        del axis_size, in_batched, predicate
        raise TypeError(
            f"entangle_jax.ordered: `vmap` batches the predicate of the `{eqn.primitive.name}` at "
            f"{jaxprs.line(eqn)}, so JAX would also make the writes that are not to be made. Use `jax.lax.map`."
        )

    return refused


@_rule("shard_map")
def _shard_map(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    """Each device has tokens of its own, so nothing is said between devices."""
    one = jaxprs.shard_map(eqn)
    cells = evaluation.cells_of(region)
    entered = world.enter(cells)
    spec = jax.sharding.PartitionSpec(one.axes)
    devices = 1
    for axis in one.axes:
        devices *= one.mesh.shape[axis]
    flat = _Flat(_body(evaluation, region.plans[0], cells), entered, cells)
    count_in = len(_flat(entered))

    def body(*operands: Any) -> Any:
        # As all other tokens they are typed as the same on all devices, though each device waits for its own.
        tokens = [entangle(jnp.zeros((), jnp.int32), token) for token in operands[:count_in]]
        results = flat(*tokens, *operands[count_in:])
        return [token.reshape((1,)) for token in results[: flat.count]], tuple(results[flat.count :])

    zeros = jnp.zeros((devices,), jnp.int32)
    if jax.sharding.AxisType.Explicit in one.mesh.axis_types:  # there the type says how an array is split
        zeros = jax.reshard(zeros, jax.sharding.NamedSharding(one.mesh, spec))
    spread = [entangle(zeros, token) for token in _flat(entered)]
    tokens, outs = jax.shard_map(
        body,
        mesh=one.mesh,
        in_specs=(*[spec] * count_in, *one.in_specs),
        out_specs=(spec, one.out_specs),
        check_vma=one.check_vma,
        axis_names=set(one.axes),
    )(*spread, *ins)
    left, _ = flat.split([*tokens, *outs])
    return list(outs), world.left(cells, left, kept=region.kept)


@_rule("custom_jvp_call")
def _custom_jvp(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    """Its derivative, taken from outside of `ordered`, is in order too, if no access needs a tangent."""
    cells = evaluation.cells_of(region)
    tokens = world.enter(cells)
    flat = _Flat(_body(evaluation, region.plans[0], cells), tokens, cells)
    count = len(_flat(tokens))
    consts = jaxprs.param(eqn, "num_consts")
    function = jax.custom_jvp(flat)

    def jvp(primals: Any, tangents: Any) -> Any:
        zero = jax.custom_derivatives.SymbolicZero
        zeros = [type(tangent) is zero for tangent in tangents[count:]]
        jaxpr, zeros_out = jaxprs.jvp_of_custom_jvp(eqn, zeros)
        operands = [*primals[count + consts :], *(t for t in tangents[count + consts :] if type(t) is not zero)]
        plan = _replan(evaluation, region, eqn, jaxpr, cells, linear=zeros[consts:].count(False))
        after, results = _body(evaluation, plan, cells)(_like(tokens, primals[:count]), operands)
        outs, live = results[: len(zeros_out)], iter(results[len(zeros_out) :])
        flat_after = _flat(after)
        tangents_out = [
            zero(jax.typeof(out).to_tangent_aval()) if is_zero else next(live)
            for out, is_zero in zip([*flat_after, *outs], [*[True] * len(flat_after), *zeros_out], strict=True)
        ]
        return [*flat_after, *outs], tangents_out

    function.defjvp(jvp, symbolic_zeros=True)
    left, outs = flat.split(function(*_flat(tokens), *ins))
    return outs, world.left(cells, left, kept=region.kept)


@_rule("custom_vjp_call")
def _custom_vjp(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    """Its forward rule, taken from outside of `ordered`, is in order too. Its backward rule must have no access."""
    cells = evaluation.cells_of(region)
    tokens = world.enter(cells)
    flat = _Flat(_body(evaluation, region.plans[0], cells), tokens, cells)
    count = len(_flat(tokens))
    consts = jaxprs.param(eqn, "num_consts")
    function = jax.custom_vjp(flat)

    def forward(*primals: Any) -> Any:
        values = [primal.value for primal in primals]
        nonzeros = [primal.perturbed for primal in primals[count:]]
        rule = jaxprs.forward_of_custom_vjp(eqn, nonzeros)
        plan = _replan(evaluation, region, eqn, rule.jaxpr, cells)
        after, results = _body(evaluation, plan, cells)(_like(tokens, values[:count]), values[count + consts :])
        fresh = sum(forwarded is None for forwarded in rule.residuals)
        made, outs = iter(results[:fresh]), results[fresh:]
        operands = values[count:]
        residuals = [next(made) if i is None else operands[i] for i in rule.residuals]
        return [*_flat(after), *outs], residuals

    def backward(residuals: Any, cotangents: Any) -> Any:
        rule = jaxprs.backward_of_custom_vjp(eqn)
        operands = [*residuals, *cotangents[flat.count :]]
        jaxpr = jaxprs.opened(jax.make_jaxpr(rule)(*operands))
        plan = evaluation.planner.plan(jaxpr, [None] * len(jaxpr.jaxpr.invars), region.marks)
        if evaluation.cells_of(plan) or evaluation.cells.unknown_write(plan.touches):
            raise no_derivative(eqn)
        return (*[None] * (count + consts), *rule(*operands))

    function.defvjp(forward, backward, symbolic_zeros=True)
    left, outs = flat.split(function(*_flat(tokens), *ins))
    return outs, world.left(cells, left, kept=region.kept)


@_rule("custom_vmap_call")
def _custom_vmap(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    """Its rule for batches, if an outer `vmap` asks for it, is in order too."""
    cells = evaluation.cells_of(region)
    tokens = world.enter(cells)
    flat = _Flat(_body(evaluation, region.plans[0], cells), tokens, cells)
    count = len(_flat(tokens))
    function = jax.custom_batching.custom_vmap(flat)

    @function.def_vmap
    def _(axis_size: int, in_batched: Sequence[bool], *operands: Any) -> Any:
        rule, batched_out = jaxprs.batching_of_custom_vmap(eqn, axis_size, in_batched[count:])
        jaxpr = jaxprs.opened(jax.make_jaxpr(rule)(*operands[count:]))
        plan = _replan(evaluation, region, eqn, jaxpr, cells)
        after, results = _body(evaluation, plan, cells)(_like(tokens, operands[:count]), operands[count:])
        flat_after = _flat(after)
        return [*flat_after, *results], [*[False] * len(flat_after), *batched_out]

    left, outs = flat.split(function(*_flat(tokens), *ins))
    return outs, world.left(cells, left, kept=region.kept)


@_rule("custom_linear_solve")
def _linear_solve(evaluation: Evaluation, region: Region, eqn: Any, ins: list[Any], world: World) -> Results:
    """The solve runs; its derivative, taken from outside of `ordered`, would be solves in no order."""
    cells = evaluation.cells_of(region)
    tokens = world.enter(cells)
    flat = _Flat(_body(evaluation, region.plans[0], cells), tokens, cells)
    solve, consts = jaxprs.solve_of_linear_solve(eqn)
    right = len(jaxprs.opened(solve).jaxpr.invars) - (consts.stop - consts.start)
    function = without_derivative(flat, eqn)
    left, outs = flat.split(function(*_flat(tokens), *ins[consts], *ins[len(ins) - right :]))
    return outs, world.left(cells, left, kept=region.kept)


def _replan(
    evaluation: Evaluation, region: Region, eqn: Any, jaxpr: jaxprs.Open, cells: dict[Cell, bool], linear: int = 0
) -> Plan:
    """The plan of a rule for derivatives or batches, which may touch only what the function itself touches.

    `linear`: so many of its last arguments are tangents. No access may need one: transposed, it would be in no order.
    """
    invars = jaxpr.jaxpr.invars
    plan = evaluation.planner.plan(jaxpr, [None] * len(invars), region.marks)
    inside = evaluation.cells_of(plan)
    more = any(cell not in cells or (writes and not cells[cell]) for cell, writes in inside.items())
    if more or evaluation.cells.unknown_write(plan.touches):
        raise no_derivative(eqn)
    tainted = set(invars[len(invars) - linear :])
    for i, one in enumerate(jaxpr.jaxpr.eqns):
        if any(not jaxprs.is_literal(v) and v in tainted for v in one.invars):
            tainted |= set(one.outvars)
            if i in plan.steps and evaluation.cells_of(plan.steps[i]):
                raise no_derivative(eqn)
    return plan
