"""splineax on KLU: one sparsity pattern, many values, each solution compared with scipy's.

splineax keeps a factorisation behind a token that goes through `entangle` after each solve, with the solution as the
witness: a pytree module with small leaves and large ones, jitted, scanned, differentiated and batched.

Its solutions cannot be wrong: the token holds the matrix too, and a solve whose factorisation has been overwritten factorises
again. That is what order saves here, and what is counted, since klujax counts it.
"""

import importlib.metadata

import equinox as eqx
import jax
import jax.numpy as jnp
import klujax
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import splineax as splx
import splineax.solvers._klu
from fixes import fix_of, mended
from jax.experimental.sparse import BCOO

import entangle_jax
from entangle_jax import audit, calls, ordered

jax.config.update("jax_enable_x64", True)

N, SETS, RUNS = 300, 20, 5
AGAIN = "factorisations made again"
SOLVER = splx.KLU()
PATTERN = splx.sparsity_pattern_tag()
"""All matrices here have one pattern: with this tag splineax factorises in place."""

NAMED = {
    "reads": {
        "klu.numeric": ["linear_solve", "rcond_f64"],  # lineax's primitive calls the solver when it is lowered
        "klu.symbolic": ["linear_solve", "rcond_f64", "factor_f64", "refactor_status_f64"],
    },
    "writes": {
        "klu.numeric": ["refactor_status_f64", "factor_f64", "free_numeric"],
        "klu.symbolic": ["free_symbolic"],
    },
}
"""What the primitives that splineax binds do to the factorisation and to the analysis of the pattern."""

TARGETS = NAMED | {
    "reads": {
        resource: ["solve_with_numeric_status_f64" if name == "linear_solve" else name for name in names]
        for resource, names in NAMED["reads"].items()
    }
}
"""The same for their native targets."""


@pytest.fixture(scope="module")
def systems():
    """The pattern, `SETS` sets of values with a heavy diagonal, and right-hand sides."""
    rng = np.random.default_rng(0)
    pattern = (scipy.sparse.random_array((N, N), density=0.01, rng=rng) + scipy.sparse.eye_array(N)).tocoo()
    indices = np.stack(pattern.coords, axis=1).astype(np.int32)
    on_diagonal = indices[:, 0] == indices[:, 1]
    values = np.where(on_diagonal, rng.uniform(5, 9, (SETS, len(indices))), rng.uniform(-1, 1, (SETS, len(indices))))
    return indices, values, rng.normal(size=(SETS, N))


def by_scipy(indices, values, b):
    matrix = scipy.sparse.coo_array((values, tuple(indices.T)), shape=(N, N))
    return scipy.sparse.linalg.spsolve(matrix.tocsc(), b)


def operator_of(indices, values):
    return splx.BCOOLinearOperator(BCOO((values, indices), shape=(N, N)), PATTERN)


def step(indices, state, values, b):
    """Refactorise in place, solve, and track the solution: what comes next waits for it."""
    solution, state = splx.linear_solve(operator_of(indices, values), b, SOLVER, state=state)
    return state, solution.value


def first(indices, values, b):
    solution, state = splx.linear_solve(operator_of(indices, values), b, SOLVER)
    return state, solution.value


def unrolled(indices, values, b):
    state, x = first(indices, values[0], b[0])
    xs = [x]
    for i in range(1, SETS):
        state, x = step(indices, state, values[i], b[i])
        xs.append(x)
    state.release()
    return jnp.stack(xs)


def scanned(indices, values, b):
    state, x = first(indices, values[0], b[0])
    arrays, rest = eqx.partition(state, eqx.is_array)

    def body(arrays, system):
        state, x = step(indices, eqx.combine(arrays, rest), *system)
        return eqx.filter(state, eqx.is_array), x

    arrays, xs = jax.lax.scan(body, arrays, (values[1:], b[1:]))
    eqx.combine(arrays, rest).release()
    return jnp.concatenate([x[None], xs])


def test_splineax_runs_on_this_package():
    assert importlib.metadata.version("entangle-jax") == entangle_jax.__version__ != "0.1.1"
    requirement = next(each for each in importlib.metadata.requires("splineax") if each.startswith("entangle-jax"))
    assert requirement == "entangle-jax>=0.1.1"


@pytest.mark.parametrize("program", [unrolled, scanned])
def test_every_solution_is_that_of_its_own_values(systems, program):
    indices, values, b = systems
    expected = [by_scipy(indices, *system) for system in zip(values, b, strict=True)]
    compiled = jax.jit(program).lower(*systems).compile()
    assert 'custom_call_target="entangle"' in compiled.as_text()
    for _ in range(5):
        np.testing.assert_allclose(compiled(indices, values, b), expected, rtol=1e-8, atol=1e-10)


def without_entangle(monkeypatch):
    """What splineax would be without this package."""
    monkeypatch.setattr(splineax.solvers._klu, "entangle", lambda payload, *witnesses: payload)
    jax.clear_caches()


def factorised_again(program, systems):
    """How often klujax, in all runs, found a factorisation gone and made it again. The solutions are right all the same."""
    compiled = jax.jit(program).lower(*systems).compile()
    expected = [by_scipy(systems[0], *system) for system in zip(*systems[1:], strict=True)]
    klujax.reset_rebuild_count()
    for _ in range(RUNS):
        np.testing.assert_allclose(compiled(*systems), expected, rtol=1e-8, atol=1e-10)
        jax.effects_barrier()
    return klujax.rebuild_count()


def test_as_it_is_each_solve_finds_its_factorisation(systems, tally):
    count = tally("splineax", "as it is", factorised_again(unrolled, systems), RUNS, AGAIN)
    assert count == 0


def test_untied_the_next_factorisation_overwrites_that_of_a_solve(systems, monkeypatch, tally):
    without_entangle(monkeypatch)
    count = tally("splineax", "untied", factorised_again(unrolled, systems), RUNS, AGAIN)
    assert count > RUNS


def test_ordered_each_solve_finds_its_factorisation(systems, monkeypatch, tally):
    without_entangle(monkeypatch)
    program = ordered(unrolled, **NAMED)
    count = tally("splineax", "ordered", factorised_again(program, systems), RUNS, AGAIN)
    assert count == 0


@pytest.mark.parametrize("program", [unrolled, scanned])
def test_the_audit_finds_the_race_without_entangle_and_none_as_it_is_or_ordered(systems, program, monkeypatch):
    audit(program, *systems, **TARGETS).raise_if_races()
    without_entangle(monkeypatch)
    assert audit(program, *systems, **TARGETS).races
    # `linear_solve` calls Python too, which does not touch the factorisation: the targets say so.
    audit(ordered(program, **NAMED), *systems, **TARGETS).raise_if_races()


def test_the_fix_that_is_printed_names_the_primitive_and_not_what_it_calls_when_it_is_lowered(systems, monkeypatch):
    without_entangle(monkeypatch)
    one = {"reads": {"klu": TARGETS["reads"]["klu.numeric"]}, "writes": {"klu": TARGETS["writes"]["klu.numeric"]}}
    report = audit(scanned, *systems, **one)
    names = 'reads=["linear_solve", "rcond_f64"], writes=["factor_f64", "refactor_status_f64", "free_numeric"]'
    assert fix_of(report) == f"scanned = ordered(scanned, {names})"
    audit(mended(report, scanned), *systems, **one).raise_if_races()
    # As it is, splineax calls `entangle` itself: its own lines are not for the caller to mend.
    monkeypatch.undo()
    jax.clear_caches()
    as_one = audit(scanned, *systems, writes={"klu": ["free_numeric", "free_symbolic"]})
    assert fix_of(as_one) == 'scanned = ordered(scanned, writes=["free_numeric", "free_symbolic"])'


def test_the_list_of_calls_has_the_names_that_ordered_is_given(systems):
    found = {call.name: call for call in calls(unrolled, *systems)}
    assert {name for named in NAMED.values() for names in named.values() for name in names} <= set(found)
    assert "solve_with_numeric_status_f64" in found["linear_solve"].targets


def test_outside_of_jit_too(systems):
    indices, values, b = systems
    np.testing.assert_allclose(unrolled(*systems)[-1], by_scipy(indices, values[-1], b[-1]), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("program", [unrolled, scanned])
def test_gradients_are_those_of_the_solutions(systems, program):
    indices, values, b = systems
    weights = np.random.default_rng(1).normal(size=(SETS, N))
    gradient = jax.jit(jax.grad(lambda values: jnp.vdot(weights, program(indices, values, b))))(values)
    for i in range(SETS):
        x = by_scipy(indices, values[i], b[i])
        adjoint = by_scipy(indices[:, ::-1], values[i], weights[i])
        np.testing.assert_allclose(gradient[i], -adjoint[indices[:, 0]] * x[indices[:, 1]], rtol=1e-7, atol=1e-9)


def test_a_batch_of_right_hand_sides_is_solved_between_two_factorisations(systems):
    indices, values, b = systems

    @jax.jit
    def program(values, b):
        state, x = first(indices, values[0], b[0])
        state, y = step(indices, state, values[1], b[0])
        batch = jax.vmap(lambda b: step(indices, state, values[1], b)[1])(b)
        state = state.track(batch)
        state, z = step(indices, state, values[2], b[0])
        state.release()
        return x, y, batch, z

    x, y, batch, z = program(values, b)
    for got, i in ((x, 0), (y, 1), (z, 2)):
        np.testing.assert_allclose(got, by_scipy(indices, values[i], b[0]), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(batch, [by_scipy(indices, values[1], each) for each in b], rtol=1e-8, atol=1e-10)
