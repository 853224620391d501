"""vmap: one native call for a whole batch, however it is nested."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sparse_lu
from systems import error, factorised, live, native_calls, random_system, refactorise, scipy_solve

N = 20


@pytest.fixture
def batch():
    """Rows, columns, and values of 2 by 3 matrices, with right-hand sides of another batch of 4."""
    rng = np.random.default_rng(0)
    rows, columns, values = random_system(rng, N)
    return rows, columns, values * rng.uniform(0.8, 1.2, (2, 3, 1)), rng.normal(size=(4, N))


def solutions(rows, columns, values, b):
    """`[..., n]`: of each matrix, for the right-hand side that stands at the same place."""
    batch = np.broadcast_shapes(values.shape[:-1], b.shape[:-1])
    values, b = np.broadcast_to(values, (*batch, values.shape[-1])), np.broadcast_to(b, (*batch, N))
    return np.stack([scipy_solve(rows, columns, values[i], N, b[i]) for i in np.ndindex(batch)]).reshape(*batch, N)


@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_right_hand_sides_are_not_solved_one_by_one(batch, trans):
    rows, columns, values, b = batch
    factors = factorised(rows, columns, values[0, 0], N)
    solve = jax.vmap(lambda b: sparse_lu.solve(factors.token, b, trans=trans), 1, 1)
    assert error(jax.jit(solve)(b.T), scipy_solve(rows, columns, values[0, 0], N, b.T, trans)) < 1e-12
    nested = jax.vmap(jax.vmap(lambda b: sparse_lu.solve(factors.token, b)))
    b = b.reshape(2, 2, N)
    assert error(jax.jit(nested)(b), solutions(rows, columns, values[0, 0], b)) < 1e-12
    assert native_calls(solve, b[0].T) == native_calls(nested, b) == ["sparse_lu_solve_float64"]


def test_each_matrix_of_a_batch_has_its_own_factors(batch):
    rows, columns, values, b = batch
    factors = factorised(rows, columns, values, N)
    assert factors.token.shape == (2, 3)
    refactor = jax.vmap(jax.vmap(sparse_lu.refactor))
    solve = jax.vmap(jax.vmap(sparse_lu.solve, (0, None)), (0, None))
    token = jax.jit(refactor)(factors.token, values[::-1])
    assert error(jax.jit(solve)(token, b[0]), solutions(rows, columns, values[::-1], b[0])) < 1e-12
    assert native_calls(refactor, token, values) == ["sparse_lu_refactor_float64"]
    assert native_calls(solve, token, b[0]) == ["sparse_lu_solve_float64"]


def test_batches_of_matrices_and_of_right_hand_sides_do_not_mix(batch):
    rows, columns, values, b = batch
    factors = factorised(rows, columns, values, N)
    row, solve, vmap = factors.token[1], sparse_lu.solve, jax.vmap
    for function, tokens, sides, of_values, of_b in [  # the last two: the same batch, as numpy broadcasts it
        (vmap(vmap(solve, (None, 0)), (0, None)), row, b, values[1][:, None], b),  # 3 matrices, 4 sides for each
        (vmap(vmap(solve, (0, None)), (None, 0)), row, b, values[1], b[:, None]),  # the other way round
        (vmap(vmap(solve, (0, None)), (0, 0)), factors.token, b[:2], values, b[:2, None]),  # a side for each row
        (vmap(vmap(solve), (0, None)), factors.token, b[:3], values, b[:3]),  # a side for each column
        (vmap(vmap(vmap(solve, (None, 0)), (0, None)), (0, None)), factors.token, b, values[:, :, None], b),
    ]:
        assert error(jax.jit(function)(tokens, sides), solutions(rows, columns, of_values, of_b)) < 1e-12
        assert native_calls(function, tokens, sides) == ["sparse_lu_solve_float64"]


def test_derivatives_of_a_batch_are_those_of_its_members(batch):
    rows, columns, values, b = batch
    values = values[0]
    factors = factorised(rows, columns, values, N)

    def loss(token, values, b):
        return jnp.sum(sparse_lu.solve(token, b, values) ** 3)

    gradient = jax.grad(loss, (1, 2))
    got = jax.jit(jax.vmap(jax.vmap(gradient, (None, None, 0)), (0, 0, None)))(factors.token, values, b)
    single = factorised(rows, columns, values[0], N)
    for i, matrix in enumerate(values):
        refactorise(single, matrix)
        for j, side in enumerate(b):
            for ours, wanted in zip(got, gradient(single.token, matrix, side), strict=True):
                assert error(ours[i, j], wanted) < 1e-12


def test_a_batch_is_freed_as_a_whole_and_once(batch):
    rows, columns, values, b = batch
    before = live()
    factors = factorised(rows, columns, values, N)
    assert live() == before + 6
    free = jax.vmap(jax.vmap(sparse_lu.free))
    assert jnp.array_equal(free(factors.token), factors.token)
    assert live() == before
    for call in (lambda: free(factors.token), lambda: jax.vmap(sparse_lu.solve, (0, None))(factors.token[0], b[0])):
        with pytest.raises(Exception, match="have been freed"):
            jax.block_until_ready(call())


def test_factors_are_not_given_two_matrices(batch):
    rows, columns, values, _ = batch
    one = factorised(rows, columns, values[0, 0], N)
    with pytest.raises(Exception, match="3 matrices do not fit into the factors of 1 tokens"):
        jax.block_until_ready(jax.vmap(sparse_lu.refactor, (None, 0))(one.token, values[0]))
    with pytest.raises(Exception, match=rf"token {one.token} is there twice"):
        jax.block_until_ready(jax.vmap(sparse_lu.refactor)(jnp.stack([one.token, one.token]), values[0, :2]))
