"""klujax: a circuit whose one factorisation is changed in place, each solution compared with scipy's.

The program is that of `examples/klu_refactor.py`. It is wrong as it is, and right under `ordered` with the names of klujax's
primitives or with marks on its functions, with nothing else changed; and written with `Handle`.
"""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import klujax
import numpy as np
import pytest
from fixes import fix_of, mended

from entangle_jax import Handle, audit, calls, ordered, reads, writes

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from klu_refactor import STAGES, STEPS, ladder, reference

RUNS = 5

# By the position of the factorisation among the operands of klujax's calls.
NAMES = {"reads": [("solve_with_numeric_f64", 1)], "writes": [("refactor_and_solve_f64", 5)]}


def circuit_of(refactor_and_solve, solve_with_numeric):
    def circuit(numeric, symbolic, rows, columns, values, sources):
        """`STEPS` matrices; after each the factorisation is changed in place, and `STAGES` systems are solved with it."""
        solutions = []
        for Ax, b in zip(values, sources, strict=True):
            x, _ = refactor_and_solve(rows, columns, Ax, b, numeric, symbolic)
            solutions.append(x)
            for _ in range(STAGES - 1):
                x = solve_with_numeric(numeric, b + x, symbolic)
                solutions.append(x)
        return jnp.stack(solutions)

    return circuit


untied = circuit_of(klujax.refactor_and_solve, klujax.solve_with_numeric)
marked = circuit_of(
    writes("klu", handle="numeric")(klujax.refactor_and_solve),
    reads("klu", handle="numeric")(klujax.solve_with_numeric),
)


def refactor_and_solve(numeric, rows, columns, Ax, b, symbolic):
    # Not `klujax.refactor`: nothing that it returns comes from its native call, so XLA drops it.
    x, _ = klujax.refactor_and_solve(rows, columns, Ax, b, numeric, symbolic)
    return x


def solve(numeric, b, symbolic):
    return klujax.solve_with_numeric(numeric, b, symbolic)


def step(handle, Ax, b, rows, columns, symbolic):
    x, handle = handle.write(refactor_and_solve, rows, columns, Ax, b, symbolic)
    xs = [x]
    for _ in range(STAGES - 1):
        x, handle = handle.read(solve, b + xs[-1], symbolic)
        xs.append(x)
    return handle, jnp.stack(xs)


def unrolled(handle, values, sources, *pattern):
    xs = []
    for Ax, b in zip(values, sources, strict=True):
        handle, x = step(handle, Ax, b, *pattern)
        xs.append(x)
    return handle, jnp.stack(xs)


def scanned(handle, values, sources, *pattern):
    return jax.lax.scan(lambda handle, system: step(handle, *system, *pattern), handle, (values, sources))


@functools.cache
def network():
    rng = np.random.default_rng(0)
    matrices = [ladder(rng) for _ in range(STEPS)]
    sources = rng.normal(size=(STEPS, matrices[0].shape[0]))
    return matrices, sources, np.reshape(reference(matrices, sources), (STEPS, STAGES, -1))


def factorised(matrices):
    """The pattern, the values of all matrices, and the analysis and the factorisation of the first.

    The last two own the native memory; the tokens are the numbers in them.
    """
    rows, columns = (indices.astype(np.int32) for indices in matrices[0].tocoo().coords)
    values = np.stack([matrix.data for matrix in matrices])
    symbolic = klujax.analyze(rows, columns, matrices[0].shape[0])
    return rows, columns, values, symbolic, klujax.factor(rows, columns, values[0], symbolic)


@pytest.fixture(scope="module")
def arguments():
    """The factorisation, the analysis of the pattern, the pattern, the matrices and the sources."""
    matrices, sources, _ = network()
    rows, columns, values, symbolic, numeric = factorised(matrices)
    yield (
        jnp.asarray(numeric.as_list(), "uint64"),
        jnp.asarray(symbolic.raw, "uint64"),
        *map(jnp.asarray, (rows, columns, values, sources)),
    )
    jax.effects_barrier()
    del symbolic, numeric


def wrong(program, arguments):
    """In how many of the runs some of the solutions were wrong."""
    expected = np.reshape(network()[2], (STEPS * STAGES, -1))
    program = jax.jit(program)
    return sum(not np.allclose(program(*arguments), expected, rtol=1e-9, atol=1e-12) for _ in range(RUNS))


@pytest.mark.parametrize(("how", "program"), [("untied", untied), ("marked alone", marked)])
def test_a_solve_uses_the_factorisation_of_another_step(how, program, arguments, tally):
    assert tally("klujax", how, wrong(program, arguments), RUNS) == RUNS


@pytest.mark.parametrize(("how", "program"), [("named", ordered(untied, **NAMES)), ("marked", ordered(marked))])
def test_ordered_each_solve_uses_the_factorisation_of_its_own_step(how, program, arguments, tally):
    assert tally("klujax", f"ordered, {how}", wrong(program, arguments), RUNS) == 0


def refactored(numeric, symbolic, rows, columns, values, sources):
    """What `klujax.refactor` returns is the handle that it was given, so nothing needs its native call."""
    solutions = []
    for Ax, b in zip(values, sources, strict=True):
        klujax.refactor(rows, columns, Ax, numeric, symbolic)
        solutions.append(klujax.solve_with_numeric(numeric, b, symbolic))
    return jnp.stack(solutions)


def test_a_factorisation_that_nothing_needs_is_dropped_and_ordered_keeps_it(arguments):
    expected = network()[2][:, 0]

    def right(program):
        return [np.allclose(*pair, rtol=1e-9, atol=1e-12) for pair in zip(program(*arguments), expected, strict=True)]

    assert sum(right(jax.jit(refactored))) <= 1
    named = {"reads": [("solve_with_numeric_f64", 1)], "writes": [("refactor_f64", 4)]}
    assert all(right(jax.jit(ordered(refactored, **named))))
    audit(ordered(refactored, **named), *arguments, **named).raise_if_races()


def test_the_audit_finds_the_race_and_its_end(arguments):
    report = audit(untied, *arguments, **NAMES)
    assert {race.handle for race in report.races} == {"argument 0 (numeric)"}
    audit(ordered(untied, **NAMES), *arguments).raise_if_races()
    assert audit(marked, *arguments).races
    audit(ordered(marked), *arguments).raise_if_races()


def test_the_fix_that_is_printed_names_klujax_primitives_and_makes_the_circuit_right(arguments):
    report = audit(untied, *arguments, **NAMES)
    names = 'reads=["solve_with_numeric_f64"], writes=["refactor_and_solve_f64"]'
    assert fix_of(report) == f"circuit = ordered(circuit, {names})"
    assert wrong(mended(report, untied), arguments) == 0
    report = audit(marked, *arguments)
    assert fix_of(report) == "circuit = ordered(circuit)"
    assert wrong(mended(report, marked), arguments) == 0


def test_the_list_of_calls_has_the_names_and_the_operands(arguments):
    found = {call.name: call for call in calls(untied, *arguments)}
    for name, operand in (*NAMES["reads"], *NAMES["writes"]):
        assert operand in found[name].handles
        assert found[name].targets == (name,)


@pytest.mark.parametrize("program", [unrolled, scanned])
def test_every_solution_is_that_of_its_own_values(program):
    matrices, sources, expected = network()
    rows, columns, values, symbolic, numeric = factorised(matrices)
    pattern = rows, columns, jnp.asarray(symbolic.raw, "uint64")
    jitted = jax.jit(program, donate_argnums=0)
    for _ in range(3):
        handle = Handle(jnp.asarray(numeric.as_list(), "uint64"))
        _, xs = jax.block_until_ready(jitted(handle, values, sources, *pattern))
        np.testing.assert_allclose(xs, expected, rtol=1e-9, atol=1e-12)
    del symbolic, numeric


def test_a_batch_is_solved_between_two_factorisations():
    matrices, sources, expected = network()
    rows, columns, values, symbolic, numeric = factorised(matrices)
    raw = jnp.asarray(symbolic.raw, "uint64")

    @jax.jit
    def program(handle):
        first, handle = handle.write(refactor_and_solve, rows, columns, values[0], sources[0], raw)
        batch, handle = jax.vmap(lambda b: handle.read(solve, b, raw), out_axes=(0, None))(sources[:3] + first)
        second, _ = handle.write(refactor_and_solve, rows, columns, values[1], sources[1], raw)
        return first, batch, second

    first, batch, second = program(Handle(jnp.asarray(numeric.as_list(), "uint64")))
    np.testing.assert_allclose(first, expected[0, 0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(matrices[0] @ batch.T, (sources[:3] + first).T, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(second, expected[1, 0], rtol=1e-9, atol=1e-12)
    del symbolic, numeric
