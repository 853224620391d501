"""Evaluates a jaxpr by its plan: each access waits for those that it has to come after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from entangle_jax import _marks, _private
from entangle_jax._entangle import entangle
from entangle_jax._ordering import accesses, jaxprs, objects
from entangle_jax._ordering.plan import Access, Plan, Planner, Region
from entangle_jax._ordering.saved import saved_p
from entangle_jax._ordering.world import Cell, World
from entangle_jax._primitive import entangle_p

_private.register_exclusion(__file__)

Results = tuple[list[Any], World]

Rule = Callable[["Evaluation", Region, Any, list[Any], World], Results]
"""`rule(evaluation, region, eqn, operands, world)` evaluates an equation with accesses inside."""

RULES: dict[str, Rule] = {}
"""By the name of the primitive. See `rules.py`."""


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one function."""

    cells: objects.Cells
    planner: Planner
    saves: bool
    """Whether a checkpoint around it saves what accesses gave. In a `while_loop` it cannot save anything."""

    def cells_of(self, step: Access | Region | Plan) -> dict[Cell, bool]:
        """What a step touches that has to be in order, and whether it writes it."""
        return self.cells.in_order(step.touches)

    def run(self, plan: Plan, operands: Sequence[Any], world: World) -> Results:
        """The results of the plan's jaxpr, and the world after it."""
        jaxpr, consts = plan.jaxpr
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= dict(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if jaxprs.is_literal(atom) else values[atom]

        for i, eqn in enumerate(jaxpr.eqns):
            ins = [read(atom) for atom in eqn.invars]
            step = plan.steps.get(i)
            with jaxprs.context(eqn):
                if step is None or not self.cells_of(step):
                    outs = _call(eqn, step.named if isinstance(step, Access) else (), ins)
                elif isinstance(step, Access):
                    outs, world = self._access(step, eqn, ins, world)
                else:
                    outs, world = RULES[eqn.primitive.name](self, step, eqn, ins, world)
                    if eqn.primitive.name == "while":
                        outs = self._saved(outs)
            values |= dict(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars], world

    def _access(self, step: Access, eqn: Any, ins: list[Any], world: World) -> Results:
        cells = self.cells_of(step)
        waits = world.waits(cells)

        def call(*operands: Any) -> list[Any]:
            return _call(eqn, step.named, operands)

        bind = without_derivative(call, eqn) if step.has_derivative else call
        if not step.witnesses or (waits and not step.waits):
            outs, witness = _guarded(bind, eqn, ins, waits, step.witnesses)
            *outs, witness = self._saved([*outs, witness])
            return outs, world.after(cells, (witness,), kept=step.kept)
        if waits:
            which = step.waits if step.all_of_it else step.waits[:1]
            moved = _waiting([ins[i] for i in which], waits)
            for i, value in zip(which, moved, strict=True):
                ins[i] = value
        outs = bind(*ins)
        if not step.kept:  # or JAX saves it: what has a side effect it never makes again
            outs = self._saved(outs)
        witnesses = step.witnesses if step.all_of_it else step.witnesses[:1]
        return outs, world.after(cells, tuple(outs[i] for i in witnesses), kept=step.kept)

    def _saved(self, values: list[Any]) -> list[Any]:
        return [saved_p.bind(value) for value in values] if self.saves else values


def _call(eqn: Any, named: Sequence[accesses.Declared], operands: Sequence[Any]) -> list[Any]:
    """The results of an equation, with marks that say what was said of it where it is used."""
    marks = [(one.mark, str(one), one.operands or ()) for one in named]
    return _marks.call_equation(marks, eqn, operands) if marks else jaxprs.evaluate(eqn, operands)


def _waiting(values: list[Any], waits: list[Any]) -> list[Any]:
    """The values, which wait for the others: `entangle` without a look at what is known to be arrays."""
    values = [value if isinstance(value, jax.Array) else jnp.asarray(value) for value in values]
    of = {id(value) for value in values}
    if len(of) < len(values) or not of.isdisjoint(map(id, waits)):
        return entangle(values, *waits)
    return list(entangle_p.bind(*values, *waits, n=len(values), shared=()))


def _guarded(
    bind: Callable[..., list[Any]], eqn: Any, ins: list[Any], waits: list[Any], witnesses: Sequence[int]
) -> tuple[list[Any], Any]:
    """A call that has no operand to wait with, or no result to wait for: in a branch, on a condition that waits.

    XLA does not know that the condition is always true. What comes out of the branch waits for all that is in it,
    and by data for the results of the call if it has any.
    """
    true = entangle(jnp.ones((), bool), *(waits or [jnp.zeros((), jnp.int32)]))

    def taken() -> Any:
        outs = bind(*ins)
        return outs, entangle(jnp.zeros((), jnp.int32), *([outs[i] for i in witnesses] or [jnp.ones((), jnp.int32)]))

    def not_taken() -> Any:
        return [_zeros(v.aval) for v in eqn.outvars], entangle(jnp.ones((), jnp.int32), jnp.zeros((), jnp.int32))

    return jax.lax.cond(true, taken, not_taken)


def _zeros(aval: Any) -> Any:
    zeros = jnp.zeros(aval.shape, aval.dtype)
    axes = tuple(sorted(aval.mat.varying))
    return jax.lax.pcast(zeros, axes, to="varying") if axes else zeros


def without_derivative(call: Callable[..., list[Any]], eqn: Any) -> Callable[..., list[Any]]:
    """The call, with an error for whoever differentiates it from outside of `ordered`."""
    wrapped = jax.custom_jvp(call)

    @wrapped.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        del primals, tangents
        raise no_derivative(eqn)

    return wrapped


def no_derivative(eqn: Any) -> TypeError:
    """What to say to whoever differentiates an ordered function whose derivative has accesses in it."""
    return TypeError(
        f"entangle_jax.ordered: the derivative of `{eqn.primitive.name}` at {jaxprs.line(eqn)} has native calls that "
        "cannot be put in order from here. Differentiate first: `ordered(jax.grad(f))`, not `jax.grad(ordered(f))`."
    )
