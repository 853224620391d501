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
                if step is None or not (self.cells_of(step) or step.is_named):
                    outs = jaxprs.evaluate(eqn, ins)
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
        if not cells:
            return _call(eqn, step, ins), world
        waits = world.waits(cells)

        def call(*operands: Any) -> list[Any]:
            return _call(eqn, step, operands) if step.inside is None else self._opaque(step.inside, eqn, operands)

        bind = without_derivative(call, eqn) if step.has_derivative else call
        if (step.hides and not step.alone) or not step.witnesses or (waits and not step.waits):
            outs, witness = _guarded(bind, eqn, ins, waits, step)
            *outs, witness = self._saved([*outs, witness])
            return outs, world.after(cells, (witness,), kept=step.kept)
        if waits:
            one = step.waits[0]
            ins[one] = _waiting(ins[one], waits)
        outs = bind(*ins)
        if not step.kept:  # or JAX saves it: what has a side effect it never makes again
            outs = self._saved(outs)
        witnesses = step.witnesses if step.hides else step.witnesses[:1]
        return outs, world.after(cells, tuple(outs[i] for i in witnesses), kept=step.kept)

    def _opaque(self, inside: Plan, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """The results of a marked function that is one access, and then what stands for the accesses seen in it."""
        if not (cells := self.cells_of(inside)):
            return jaxprs.evaluate(eqn, operands)
        outs, world = RULES[eqn.primitive.name](self, Region(inside.touches, (inside,)), eqn, list(operands), World())
        return [*outs, *world.waits(dict.fromkeys(cells, True))]

    def _saved(self, values: list[Any]) -> list[Any]:
        return [saved_p.bind(value) for value in values] if self.saves else values


def _call(eqn: Any, step: Access, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation, with marks that say what was said of it where it is used."""
    kind = {"opaque": step.hides, "debug": accesses.is_debug(eqn)}
    marks = [(one.mark(**kind), one.name, one.operands or ()) for one in step.named]
    return _marks.call_equation(marks, eqn, operands) if marks else jaxprs.evaluate(eqn, operands)


def _waiting(value: Any, waits: list[Any]) -> Any:
    """The value, which waits for the others: `entangle` without a look at what is known to be arrays."""
    value = value if isinstance(value, jax.Array) else jnp.asarray(value)
    if any(one is value for one in waits):
        return entangle(value, *waits)
    return entangle_p.bind(value, *waits, n=1, shared=())[0]


def _guarded(
    bind: Callable[..., list[Any]], eqn: Any, ins: list[Any], waits: list[Any], step: Access
) -> tuple[list[Any], Any]:
    """What has no operand to wait with, or no result to wait for: in a branch, on a condition that waits.

    XLA does not know that the condition is always true. What comes out of the branch waits for all that is in it,
    and by data for the results of the calls if there are any.
    """
    true = entangle(jnp.ones((), bool), *(waits or [jnp.zeros((), jnp.int32)]))
    count = len(eqn.outvars)
    arrays = [i for i, v in enumerate(eqn.outvars) if v.aval is not _private.abstract_token]

    def taken(*ins: Any) -> Any:
        outs = bind(*ins)
        made = [*(outs[i] for i in step.witnesses), *outs[count:]]
        return [outs[i] for i in arrays], entangle(jnp.zeros((), jnp.int32), *(made or [jnp.ones((), jnp.int32)]))

    def not_taken(*_: Any) -> Any:
        outs = [_zeros(eqn.outvars[i].aval) for i in arrays]
        return outs, entangle(jnp.ones((), jnp.int32), jnp.zeros((), jnp.int32))

    those, witness = _branch(true, taken, not_taken, ins, may_batch=accesses.is_callback(eqn))
    outs: dict[int, Any] = dict(zip(arrays, those, strict=True))
    # JAX returns no XLA token from a branch.
    tokens = {i: entangle(jax.lax.create_token(), witness) for i in range(count) if i not in outs}
    return [(outs | tokens)[i] for i in range(count)], witness


def _branch(true: Any, taken: Any, not_taken: Any, operands: Sequence[Any], *, may_batch: bool) -> Any:
    """A branch on a condition that is the same for a whole batch.

    JAX batches no branch with a callback, whatever the condition. So that is done here: both branches are batched.
    """
    if not may_batch:
        return jax.lax.cond(true, lambda: taken(*operands), lambda: not_taken(*operands))

    @jax.custom_batching.custom_vmap
    def branch(true: Any, *operands: Any) -> Any:
        return jax.lax.cond(true, taken, not_taken, *operands)

    @branch.def_vmap
    def _(size: int, batched: list[bool], true: Any, *operands: Any) -> Any:
        axes = tuple(0 if one else None for one in batched[1:])
        on, off = (jax.vmap(one, axes, axis_size=size) for one in (taken, not_taken))
        outs = _branch(true, on, off, operands, may_batch=True)
        return outs, jax.tree.map(lambda _: True, outs)

    return branch(true, *operands)


def _zeros(aval: Any) -> Any:
    """A value of that type, whichever: it is never used."""
    sharding = None if aval.sharding.mesh.empty else aval.sharding
    zeros = jax.lax.full(aval.shape, 0, aval.dtype, sharding=sharding)
    axes = tuple(sorted(aval.mat.varying))
    return jax.lax.pcast(zeros, axes, to="varying") if axes else zeros


def without_derivative(call: Callable[..., list[Any]], eqn: Any) -> Callable[..., list[Any]]:
    """The call, with an error for whoever differentiates it from outside of `ordered`."""
    wrapped = jax.custom_jvp(call)
    message = str(no_derivative(eqn))  # now, where its line is known

    @wrapped.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        del primals, tangents
        raise TypeError(message)

    return wrapped


def no_derivative(eqn: Any) -> TypeError:
    """What to say to whoever differentiates an ordered function whose derivative has accesses in it."""
    return TypeError(
        f"entangle_jax.ordered: the derivative of `{eqn.primitive.name}` at {jaxprs.line(eqn)} has native calls that "
        "cannot be put in order from here. Differentiate first: `ordered(jax.grad(f))`, not `jax.grad(ordered(f))`."
    )
