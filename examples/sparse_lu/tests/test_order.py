"""Programs that solve and refactorise: wrong as XLA orders them, right under `ordered`, and the audit agrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sparse_lu
from systems import error, factorised, live, random_system, refactorise, scipy_solve

from entangle_jax import Handle, RaceError, audit, ordered

N = 300


@pytest.fixture
def system():
    """Factors, their values, others to refactorise with, and a right-hand side; the solution with `k * first` is `x / k`."""
    rng = np.random.default_rng(0)
    rows, columns, first = random_system(rng, N)
    b = rng.normal(size=N)
    return factorised(rows, columns, first, N), first, b, scipy_solve(rows, columns, first, N, b)


def proves(function, *operands):
    """The audit finds a race in the function, and none once it is ordered."""
    with pytest.raises(RaceError):
        audit(function, *operands).raise_if_races()
    audit(ordered(function), *operands).raise_if_races()


def test_no_solve_overtakes_a_refactorisation(system):
    factors, first, b, x = system
    values = first * np.array([[2.0], [3.0], [4.0]])

    def loop(token, values, b):
        solutions = []
        for each in values:
            solutions.append(sparse_lu.solve(token, b))
            sparse_lu.refactor(token, each)
        return [*solutions, sparse_lu.solve(token, b)]

    def is_wrong(function):
        refactorise(factors, first)
        solutions = jax.block_until_ready(function(factors.token, values, b))
        return any(error(ours, x / k) > 1e-9 for k, ours in enumerate(solutions, 1))

    runs = 24
    plain, in_order = jax.jit(loop), jax.jit(ordered(loop))
    assert sum(is_wrong(plain) for _ in range(runs)) > runs / 2
    assert sum(is_wrong(in_order) for _ in range(runs)) == 0
    proves(loop, factors.token, values, b)


def test_a_handle_orders_it_too(system):
    factors, first, b, x = system

    @jax.jit
    def step(handle, values, b):
        before, handle = handle.read(sparse_lu.solve, b)
        _, handle = handle.write(sparse_lu.refactor, values)
        after, handle = handle.read(sparse_lu.solve, b)
        return before, after

    before, after = step(Handle(factors.token), 2 * first, b)
    assert max(error(before, x), error(after, x / 2)) < 1e-9


@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_a_newton_iteration_in_a_loop_takes_the_steps_that_its_text_says(loop):
    """Of `A x + x ** 3 = b`, two steps with each Jacobian; the third solve tells which matrix the factors are of."""
    rng = np.random.default_rng(1)
    rows, columns, linear = random_system(rng, N)
    diagonal = [np.flatnonzero((rows == i) & (columns == i))[0] for i in range(N)]
    b, ones, steps = 3 * rng.normal(size=N), np.ones(N), 4
    factors = factorised(rows, columns, linear, N)

    def newton(token, b):
        def residual(x):
            return jnp.zeros(N).at[rows].add(linear * x[columns]) + x**3 - b

        def step(x):
            x = x - sparse_lu.solve(token, residual(x))
            x = x - sparse_lu.solve(token, residual(x))
            sparse_lu.refactor(token, jnp.asarray(linear).at[jnp.array(diagonal)].add(3 * x**2))
            return x, sparse_lu.solve(token, ones)

        if loop == "scan":
            return jax.lax.scan(lambda x, _: step(x), jnp.zeros(N), length=steps)[1][-1]
        start = 0, jnp.zeros(N), jnp.zeros(N)
        return jax.lax.while_loop(lambda carry: carry[0] < steps, lambda carry: (carry[0] + 1, *step(carry[1])), start)[
            2
        ]

    jacobian, x = linear, np.zeros(N)
    for _ in range(steps):
        for _ in range(2):
            product = np.zeros(N)
            np.add.at(product, rows, linear * x[columns])
            x = x - scipy_solve(rows, columns, jacobian, N, product + x**3 - b)
        jacobian = linear.copy()
        jacobian[diagonal] += 3 * x**2
    wanted = scipy_solve(rows, columns, jacobian, N, ones)

    function = jax.jit(ordered(newton))
    for _ in range(5):
        refactorise(factors, linear)
        assert error(function(factors.token, b), wanted) < 1e-9
    proves(newton, factors.token, b)


def gradient_of(factors, values, b):
    refactorise(factors, values)
    return jax.grad(lambda values, b: jnp.sum(sparse_lu.solve(factors.token, b, values) ** 3), (0, 1))(values, b)


def test_a_gradient_is_that_of_the_matrix_that_was_factorised_then(system):
    factors, first, b, _ = system

    def gradients(token, first, b):
        gradient = jax.grad(lambda values, b: jnp.sum(sparse_lu.solve(token, b, values) ** 3), (0, 1))
        before = gradient(first, b)
        sparse_lu.refactor(token, 2 * first)
        return before, gradient(2 * first, b)

    wanted = gradient_of(factors, first, b), gradient_of(factors, 2 * first, b)
    function = jax.jit(ordered(gradients))
    for _ in range(5):
        refactorise(factors, first)
        got = function(factors.token, first, b)
        assert max(map(error, jax.tree.leaves(got), map(np.asarray, jax.tree.leaves(wanted)))) < 1e-9
    proves(gradients, factors.token, first, b)


def test_gradients_in_a_loop_are_those_of_each_of_its_matrices(system):
    factors, first, b, _ = system
    scales = np.array([1.0, 2.0, 3.0])

    def sweep(token, scales, b):
        def step(_, scale):
            sparse_lu.refactor(token, scale * first)
            gradient = jax.grad(lambda values, b: jnp.sum(sparse_lu.solve(token, b, values) ** 3), (0, 1))
            return None, gradient(scale * first, b)

        return jax.lax.scan(step, None, scales)[1]

    wanted = [gradient_of(factors, scale * first, b) for scale in scales]
    for _ in range(5):
        for got, right in zip(
            jax.jit(ordered(sweep))(factors.token, scales, b), zip(*wanted, strict=True), strict=True
        ):
            assert error(got, np.stack(right)) < 1e-9
    proves(sweep, factors.token, scales, b)


def test_the_backward_pass_of_a_program_that_refactorises_first_is_ordered(system):
    factors, first, b, _ = system

    def loss(token, values, b):
        sparse_lu.refactor(token, values)
        return jnp.sum(sparse_lu.solve(token, b, values) ** 3)

    gradient = jax.grad(loss, (1, 2))
    wanted = gradient_of(factors, 2 * first, b)
    for _ in range(5):
        refactorise(factors, first)
        got = jax.jit(ordered(gradient))(factors.token, 2 * first, b)
        assert max(map(error, got, map(np.asarray, wanted))) < 1e-9
    proves(gradient, factors.token, first, b)


def test_a_derivative_is_not_taken_with_the_factors_of_a_later_matrix(system):
    factors, first, b, _ = system

    def loss(
        token, values, b
    ):  # its backward pass would have to solve with the first matrix, after the second is there
        x = sparse_lu.solve(token, b, values)
        sparse_lu.refactor(token, 2 * values)
        return jnp.sum(sparse_lu.solve(token, x, 2 * values))

    refactorise(factors, first)
    for differentiated in (jax.grad(loss, 1), jax.grad(loss, 2)):
        with pytest.raises(Exception, match="the factors were refactorised after the solve that is differentiated"):
            jax.block_until_ready(jax.jit(ordered(differentiated))(factors.token, first, b))
    refactorise(factors, first)
    _, tangent = jax.linearize(lambda b: sparse_lu.solve(factors.token, b), b)
    refactorise(factors, 2 * first)
    with pytest.raises(Exception, match="the factors were refactorised after the solve that is differentiated"):
        jax.block_until_ready(tangent(b))


def test_forward_mode_follows_a_program_that_refactorises(system):
    factors, first, b, _ = system

    def two(token, values, b):
        x = sparse_lu.solve(token, b, values)
        sparse_lu.refactor(token, 2 * values)
        return sparse_lu.solve(token, x, 2 * values)

    refactorise(factors, first)
    direction = np.random.default_rng(2).normal(size=len(first))
    got = jax.jit(ordered(lambda *args: jax.jvp(lambda v: two(args[0], v, args[2]), (args[1],), (direction,))[1]))(
        factors.token, first, b
    )
    refactorise(factors, first)
    wanted = jax.jvp(
        lambda v: sparse_lu.solve(factors.token, sparse_lu.solve(factors.token, b, v), v) / 2, (first,), (direction,)
    )[1]
    assert error(got, wanted) < 1e-9


def test_factors_are_not_freed_before_a_solve_has_used_them(system):
    _, first, b, x = system
    rng = np.random.default_rng(0)
    rows, columns, _ = random_system(rng, N)
    pattern = sparse_lu.analyze(rows, columns, N)

    def last_use(token, b):
        x = sparse_lu.solve(token, b)
        y = sparse_lu.solve(token, x)
        return x, y, sparse_lu.free(token)

    function = jax.jit(ordered(last_use))
    for _ in range(20):
        factors, before = sparse_lu.factor(pattern, first), live()
        assert error(function(factors.token, b)[0], x) < 1e-9
        assert live() == before - 1
        for stale in (sparse_lu.solve, sparse_lu.refactor, lambda token, _: sparse_lu.free(token)):
            with pytest.raises(Exception, match=f"the factors of token {factors.token} have been freed"):
                jax.block_until_ready(stale(factors.token, b if stale is sparse_lu.solve else first))
        factors.free()  # does nothing: they are gone
        assert live() == before - 1
    factors = sparse_lu.factor(pattern, first)
    proves(last_use, factors.token, b)


def test_a_solve_after_free_in_the_same_program_is_an_error(system):
    factors, _, b, _ = system

    def late(token, b):
        sparse_lu.free(token)
        return sparse_lu.solve(token, b)

    with pytest.raises(Exception, match="have been freed"):
        jax.block_until_ready(jax.jit(ordered(late))(factors.token, b))
