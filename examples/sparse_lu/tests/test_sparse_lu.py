"""The solver against scipy, its derivatives, its errors, its order and its memory."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import sparse_lu

from entangle_jax import Handle, RaceError, audit, ordered

jax.config.update("jax_enable_x64", True)


def system(rng, n, dtype=np.float64):
    """Positions, with duplicates, and values of a matrix whose diagonal dominates."""
    count = 3 * n
    rows = np.concatenate([np.arange(n), rng.integers(0, n, count)])
    columns = np.concatenate([np.arange(n), rng.integers(0, n, count)])
    order = rng.permutation(n + count)
    values = np.concatenate([rng.uniform(4, 8, n), rng.uniform(-1, 1, count)]).astype(dtype)
    if np.issubdtype(dtype, np.complexfloating):
        values = values * np.exp(1j * rng.uniform(0, 0.5, n + count)).astype(dtype)
    return rows[order], columns[order], values[order]


def as_scipy(rows, columns, values, n):
    return scipy.sparse.csc_array((values, (rows, columns)), shape=(n, n))


def error(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


def test_no_solution_of_1000_random_systems_is_wrong():
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(50):
        n = int(rng.integers(1, 60))
        rows, columns, values = system(rng, n)
        with sparse_lu.factor(sparse_lu.analyze(rows, columns, n), values) as factors:
            for _ in range(20):
                values = values * rng.uniform(0.8, 1.2, len(values))
                b = rng.normal(size=n)
                matrix = as_scipy(rows, columns, values, n)
                assert np.linalg.cond(matrix.toarray()) < 1e6
                jax.block_until_ready(sparse_lu.refactor(factors.token, values))
                worst = max(worst, error(sparse_lu.solve(factors.token, b), scipy.sparse.linalg.spsolve(matrix, b)))
    assert worst <= 1e-9


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_neither_transposed_nor_complex_nor_many_right_hand_sides_are_mistaken(dtype, trans):
    rng = np.random.default_rng(1)
    n = 40
    rows, columns, values = system(rng, n, np.dtype(dtype).type)
    factors = sparse_lu.factor(sparse_lu.analyze(rows, columns, n), values)
    b = rng.normal(size=(n, 3)).astype(dtype)
    wanted = scipy.sparse.linalg.splu(as_scipy(rows, columns, values, n)).solve(b, trans)
    tolerance = 1e-4 if dtype in ("float32", "complex64") else 1e-12
    assert error(sparse_lu.solve(factors.token, b, trans=trans), wanted) < tolerance
    batch = jax.jit(jax.vmap(lambda b: sparse_lu.solve(factors.token, b, trans=trans), 1, 1))
    assert error(batch(b), wanted) < tolerance
    program = batch.lower(b).compile().as_text()
    assert program.count('custom_call_target="sparse_lu_solve') == 1
    assert "while" not in program


def test_each_matrix_of_a_batch_has_its_own_factors():
    rng = np.random.default_rng(2)
    n = 20
    rows, columns, values = system(rng, n)
    values = values * rng.uniform(0.8, 1.2, (4, 1))
    pattern = sparse_lu.analyze(rows, columns, n)
    factors = sparse_lu.factor(pattern, values)
    b = rng.normal(size=n)
    token = jax.jit(jax.vmap(sparse_lu.refactor))(factors.token, values[::-1])
    x = jax.jit(jax.vmap(sparse_lu.solve, (0, None)))(token, b)
    wanted = [scipy.sparse.linalg.spsolve(as_scipy(rows, columns, each, n), b) for each in values[::-1]]
    assert error(x, np.stack(wanted)) < 1e-12
    one = sparse_lu.factor(pattern, values[0])
    with pytest.raises(Exception, match="4 matrices do not fit into the factors of 1 tokens"):
        jax.block_until_ready(jax.vmap(sparse_lu.refactor, (None, 0))(one.token, values))


@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_derivatives_are_those_of_finite_differences(trans):
    rng = np.random.default_rng(3)
    n = 8
    rows, columns, values = system(rng, n)
    factors = sparse_lu.factor(sparse_lu.analyze(rows, columns, n), values)
    b, weights = rng.normal(size=n), rng.normal(size=n)

    def loss(values, b):
        return jnp.sum(weights * sparse_lu.solve(factors.token, b, values, trans=trans) ** 2)

    def reference(values, b):
        matrix = as_scipy(rows, columns, values, n)
        return np.sum(weights * scipy.sparse.linalg.spsolve(matrix if trans == "N" else matrix.T.tocsc(), b) ** 2)

    direction = rng.normal(size=len(values)), rng.normal(size=n)
    step = 1e-6
    ends = [reference(values + sign * step * direction[0], b + sign * step * direction[1]) for sign in (1, -1)]
    wanted = (ends[0] - ends[1]) / (2 * step)
    gradients = jax.jit(jax.grad(loss, (0, 1)))(values, b)
    assert sum(map(np.vdot, gradients, direction)) == pytest.approx(wanted, rel=1e-6)
    assert jax.jvp(loss, (values, b), direction)[1] == pytest.approx(wanted, rel=1e-6)


def test_errors_say_what_is_wrong():
    pattern = sparse_lu.analyze([0, 0, 1, 1], [0, 1, 0, 1], 2)
    factors = sparse_lu.factor(pattern, np.array([1.0, 2, 3, 5]))
    for values, text in [
        ([1.0, 2, 2, 4], "singular to working precision"),
        ([0.1, 0.2, 0.3, 0.6], "singular to working precision"),
        ([1.0, 2, 3], "there are 3 values, and the pattern has 4 elements"),
        ([1.0, np.nan, 3, 4], "value 1 is not finite"),
    ]:
        with pytest.raises(Exception, match=text):
            jax.block_until_ready(sparse_lu.refactor(factors.token, np.array(values)))
        with pytest.raises(Exception, match="the last refactorisation failed"):
            jax.block_until_ready(sparse_lu.solve(factors.token, np.ones(2)))
    jax.block_until_ready(sparse_lu.refactor(factors.token, np.array([1.0, 2, 3, 5])))
    for b, text in [(np.ones(3), "has 3 rows, the matrix has 2"), (np.ones(2, np.float32), "f64, the other operand")]:
        with pytest.raises(Exception, match=text):
            jax.block_until_ready(sparse_lu.solve(factors.token, b))
    factors.free()
    with pytest.raises(Exception, match="have been freed"):
        jax.block_until_ready(sparse_lu.solve(factors.token, np.ones(2)))
    with pytest.raises(ValueError, match="element 1 is in row 2, wanted 0 to 1"):
        sparse_lu.analyze([0, 2], [0, 0], 2)


def test_no_factors_outlive_their_owner():
    gc.collect()
    before = sparse_lu.live()
    factors = sparse_lu.factor(sparse_lu.analyze([0], [0], 1), np.ones((3, 1)))
    assert sparse_lu.live() == before + 3
    del factors
    gc.collect()
    assert sparse_lu.live() == before


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_memory_is_flat_over_10000_refactorisations():
    n = 100
    rows, columns, values = system(np.random.default_rng(4), n)
    factors = sparse_lu.factor(sparse_lu.analyze(rows, columns, n), values)
    many = jax.jit(lambda token, values: jax.lax.fori_loop(0, 1000, lambda _, t: sparse_lu.refactor(t, values), token))
    jax.block_until_ready(many(factors.token, values))
    before = resident()
    for _ in range(10):
        jax.block_until_ready(many(factors.token, values))
    assert resident() - before < 4 << 20  # one kilobyte each would be 10 MB


def program(token, values, b):
    """Each solution is that of the matrix before; without order XLA may refactorise first."""
    solutions = []
    for each in values:
        solutions.append(sparse_lu.solve(token, b))
        sparse_lu.refactor(token, each)
    return solutions, sparse_lu.solve(token, b)


def test_no_solve_overtakes_a_refactorisation():
    rng = np.random.default_rng(5)
    n = 300
    rows, columns, first = system(rng, n)
    values = first * np.array([[2.0], [3.0], [4.0]])
    factors = sparse_lu.factor(sparse_lu.analyze(rows, columns, n), first)
    b = rng.normal(size=n)
    x = scipy.sparse.linalg.spsolve(as_scipy(rows, columns, first, n), b)
    wanted = [x, x / 2, x / 3, x / 4]

    def wrong(function):
        jax.block_until_ready(sparse_lu.refactor(factors.token, first))
        solutions, last = jax.block_until_ready(function(factors.token, values, b))
        return sum(error(np.asarray(x), y) > 1e-9 for x, y in zip([*solutions, last], wanted, strict=True))

    assert sum(wrong(jax.jit(program)) for _ in range(5)) > 0
    assert [wrong(jax.jit(ordered(program))) for _ in range(5)] == [0] * 5
    audit(ordered(program), factors.token, values, b).raise_if_races()
    with pytest.raises(RaceError):
        audit(program, factors.token, values, b).raise_if_races()


def test_a_handle_orders_it_too():
    factors = sparse_lu.factor(sparse_lu.analyze([0], [0], 1), np.array([2.0]))

    @jax.jit
    def step(handle, b):
        before, handle = handle.read(sparse_lu.solve, b)
        _, handle = handle.write(sparse_lu.refactor, jnp.array([4.0]))
        after, handle = handle.read(sparse_lu.solve, b)
        return before, after

    before, after = step(Handle(factors.token), jnp.ones(1))
    assert (before[0], after[0]) == (0.5, 0.25)
