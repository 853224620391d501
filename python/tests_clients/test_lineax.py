"""lineax with a solver that keeps one factorisation, as direct solvers do: each solve has to find its own.

`lineax.linear_solve` calls its solver when it is lowered, so no jaxpr shows the call: the mark is `opaque`. Nothing else is
changed.
"""

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest
import scipy.linalg

from entangle_jax import calls, ordered, writes

RUNS = 5


class OneFactorisation(lineax.AbstractLinearSolver):
    """A solver on the host that holds the factorisation of one matrix: of the last one that it was given."""

    def init(self, operator, options):
        del options

        def factor(matrix):
            _HELD[:] = [scipy.linalg.lu_factor(matrix)]
            return np.int32(len(_HELD))

        return jax.pure_callback(factor, jax.ShapeDtypeStruct((), jnp.int32), operator.as_matrix())

    def compute(self, state, vector, options):
        del options

        def solve(_, vector):
            return scipy.linalg.lu_solve(_HELD[0], vector).astype(np.float32)

        solution = jax.pure_callback(solve, jax.ShapeDtypeStruct(vector.shape, vector.dtype), state, vector)
        return solution, lineax.RESULTS.successful, {}

    def transpose(self, state, options):
        raise NotImplementedError

    def conj(self, state, options):
        raise NotImplementedError

    def assume_full_rank(self):
        return True


_HELD = []


def solve(matrix, vector):
    return lineax.linear_solve(lineax.MatrixLinearOperator(matrix), vector, OneFactorisation()).value


def program_of(solve):
    def program(a, b, vector):
        """The first matrix is factorised again after the second one: to XLA that is the same call."""
        x = solve(a, vector)
        y = solve(b, x)
        return x, y, solve(a, y)

    return program


untied, marked = program_of(solve), program_of(writes("solver", opaque=True)(solve))


def wrong(program):
    rng = np.random.default_rng(0)
    a, b = (np.float32(rng.normal(size=(5, 5)) + 5 * np.eye(5)) for _ in range(2))
    vector = np.float32(rng.normal(size=5))
    x = np.linalg.solve(a, vector)
    y = np.linalg.solve(b, x)
    expected = x, y, np.linalg.solve(a, y)
    program = jax.jit(program)
    return sum(
        not all(np.allclose(*pair, rtol=1e-4) for pair in zip(program(a, b, vector), expected, strict=True))
        for _ in range(RUNS)
    )


@pytest.mark.parametrize("program", [untied, marked], ids=["untied", "marked alone"])
def test_a_solve_finds_the_factorisation_of_another_matrix(program, tally):
    assert tally("lineax", "untied" if program is untied else "marked alone", wrong(program), RUNS) == RUNS


def test_ordered_each_solve_finds_its_own(tally):
    assert tally("lineax", "ordered, marked", wrong(ordered(marked)), RUNS) == 0


def test_the_list_of_calls_shows_what_lineax_binds():
    names = {call.name for call in calls(untied, *[jax.ShapeDtypeStruct((5, 5), jnp.float32)] * 2, jnp.zeros(5))}
    assert "linear_solve" in names
