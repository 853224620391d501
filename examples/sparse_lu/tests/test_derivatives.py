"""Derivatives against finite differences of scipy's solutions, with JAX's conventions for complex numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sparse_lu
from systems import error, factorised, random_array, random_system, refactorise, scipy_solve

N = 8
STEP = 1e-6


def difference(function, point, direction, step=STEP):
    """The derivative of a function of several arrays in a direction."""
    ends = [function(*(x + sign * step * d for x, d in zip(point, direction, strict=True))) for sign in (1, -1)]
    return (ends[0] - ends[1]) / (2 * step)


@pytest.fixture(params=["float64", "complex128"])
def dtype(request):
    return np.dtype(request.param).type


@pytest.fixture(params=[(N,), (N, 3)], ids=["one", "many"])
def problem(request, dtype):
    """Structure and factors, and for values and right-hand side a point and a direction."""
    rng = np.random.default_rng(3)
    rows, columns, values = random_system(rng, N, dtype)
    point = values, random_array(rng, request.param, dtype)
    direction = random_array(rng, values.shape, dtype), random_array(rng, request.param, dtype)
    return (rows, columns), factorised(rows, columns, values, N), point, direction


@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_derivatives_of_solutions_are_those_of_finite_differences(problem, trans):
    structure, factors, point, direction = problem

    def ours(values, b):
        return sparse_lu.solve(factors.token, b, values, trans=trans)

    wanted = difference(lambda values, b: scipy_solve(*structure, values, N, b, trans), point, direction)
    assert error(jax.jvp(ours, point, direction)[1], wanted) < 1e-7
    assert error(jax.linearize(ours, *point)[1](*direction), wanted) < 1e-7
    # A vector-Jacobian product does not conjugate: sum(cotangent * tangent) is the same on both sides, in its real part where
    # the function conjugates.
    cotangent = random_array(np.random.default_rng(4), point[1].shape, point[1].dtype)
    products = jax.jit(lambda point, cotangent: jax.vjp(ours, *point)[1](cotangent))(point, cotangent)
    left, right = sum(np.sum(p * d) for p, d in zip(products, direction, strict=True)), np.sum(cotangent * wanted)
    if trans == "H":
        left, right = left.real, right.real
    assert left == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_gradients_of_a_real_loss_are_those_of_finite_differences(problem, trans):
    structure, factors, point, direction = problem
    weights = np.random.default_rng(5).normal(size=point[1].shape)

    def loss(x):
        return (weights * abs(x) ** 2 + abs(x.real) * x.imag).sum()

    def ours(values, b):
        return loss(sparse_lu.solve(factors.token, b, values, trans=trans))

    wanted = difference(lambda values, b: loss(scipy_solve(*structure, values, N, b, trans)), point, direction)
    gradients = jax.jit(jax.grad(ours, (0, 1)))(*point)
    assert sum(np.sum(g * d) for g, d in zip(gradients, direction, strict=True)).real == pytest.approx(wanted, rel=1e-6)
    assert jax.jvp(ours, point, direction)[1] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("trans", ["N", "T"])
def test_gradients_of_a_holomorphic_loss_are_those_of_finite_differences(problem, trans):
    structure, factors, point, direction = problem
    holomorphic = np.iscomplexobj(point[0])

    def ours(values, b):
        return jnp.sum(sparse_lu.solve(factors.token, b, values, trans=trans) ** 3)

    wanted = difference(lambda values, b: np.sum(scipy_solve(*structure, values, N, b, trans) ** 3), point, direction)
    gradients = jax.grad(ours, (0, 1), holomorphic=holomorphic)(*point)
    assert sum(np.sum(g * d) for g, d in zip(gradients, direction, strict=True)) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_second_derivatives_are_those_of_finite_differences(problem, trans):
    _, factors, point, direction = problem

    def gradient(values, b):
        def loss(values, b):
            x = sparse_lu.solve(factors.token, b, values, trans=trans)
            return jnp.sum(x.real**3 + x.imag**2 * x.real)

        return jnp.concatenate([jnp.ravel(g) for g in jax.grad(loss, (0, 1))(values, b)])

    def refactorised(values, b):
        refactorise(factors, values)
        return gradient(values, b)

    wanted = difference(refactorised, point, direction)
    refactorise(factors, point[0])
    assert error(jax.jit(lambda *point: jax.jvp(gradient, point, direction)[1])(*point), wanted) < 1e-6
    weights = random_array(np.random.default_rng(6), wanted.shape, wanted.dtype)
    reverse = jax.grad(lambda *point: jnp.sum(weights * gradient(*point)).real, (0, 1))
    product = sum(np.sum(g * d) for g, d in zip(jax.jit(reverse)(*point), direction, strict=True)).real
    assert product == pytest.approx(float(np.sum(weights * wanted).real), rel=1e-5)


def test_without_values_only_the_right_hand_side_is_differentiated(problem):
    structure, factors, point, direction = problem
    solve = jax.linear_transpose(lambda b: sparse_lu.solve(factors.token, b), point[1])
    (transposed,) = solve(direction[1])
    assert error(transposed, scipy_solve(*structure, point[0], N, direction[1], "T")) < 1e-12
    tangent = jax.jvp(lambda b: sparse_lu.solve(factors.token, b), point[1:], direction[1:])[1]
    assert error(tangent, scipy_solve(*structure, point[0], N, direction[1])) < 1e-12
