"""Errors name what was found and what was wanted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sparse_lu
from systems import factorised, refactorise


def two_by_two(values=(1.0, 2.0, 3.0, 5.0), dtype=np.float64):
    return factorised([0, 0, 1, 1], [0, 1, 0, 1], np.array(values, dtype), 2)


@pytest.mark.parametrize(
    ("rows", "columns", "n", "text"),
    [
        ([0, 2], [0, 0], 2, "sparse_lu.analyze: element 1 is in row 2, wanted 0 to 1"),
        ([0, 1], [0, -1], 2, "element 1 is in column -1, wanted 0 to 1"),
        ([0, 1], [0], 2, "there are 2 row indices and 1 column indices"),
        ([0.0, 1.0], [0, 1], 2, r"rows is float64\[2\], wanted int\[nnz\]"),
        ([0, 1], [True, False], 2, r"columns is bool\[2\], wanted int\[nnz\]"),
        ([[0, 1]], [0, 1], 2, r"rows is int64\[1,2\], wanted int\[nnz\]"),
        ([0, 1 << 40], [0, 1], 2, "rows has indices beyond 32 bits"),
        ([0], [0], 0, "n is 0, wanted 1 to 2147483647"),
        ([], [], 0, r"rows is float64\[0\], wanted int\[nnz\]"),
        ([0], [0], -3, "n is -3, wanted 1 to 2147483647"),
        ([0], [0], 1 << 31, "n is 2147483648, wanted 1 to 2147483647"),
    ],
)
def test_a_wrong_structure_is_refused(rows, columns, n, text):
    with pytest.raises(ValueError, match=text):
        sparse_lu.analyze(rows, columns, n)


def test_objects_are_not_made_in_a_trace():
    pattern = sparse_lu.analyze([0], [0], 1)
    for function, argument in [
        (lambda rows: sparse_lu.analyze(rows, [0], 1).n, jnp.zeros(1, int)),
        (lambda values: sparse_lu.factor(pattern, values).token, jnp.ones(1)),
    ]:
        with pytest.raises(TypeError, match=r"traced.* outside of jit"):
            jax.jit(function)(argument)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, 2, 2, 4], "singular to working precision"),
        ([0.1, 0.2, 0.3, 0.6], "singular to working precision"),
        ([1.0, 1.0, 1.0, 1.0 + 2.0**-52], "singular to working precision"),
        ([0.0, 0, 0, 0], "singular to working precision"),
        ([1.0, 2, 3], "there are 3 values, and the pattern has 4 elements"),
        ([], "there are 0 values, and the pattern has 4 elements"),
        ([1.0, np.nan, 3, 4], "value 1 is not finite"),
        ([1.0, 2, 3, -np.inf], "value 3 is not finite"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_values_that_cannot_be_factorised_leave_nothing_to_solve_with(values, text, dtype):
    factors = two_by_two(dtype=dtype)
    b = np.ones(2, dtype)
    with pytest.raises(Exception, match=text):
        factorised([0, 0, 1, 1], [0, 1, 0, 1], np.array(values, dtype), 2)
    with pytest.raises(Exception, match=text):
        refactorise(factors, np.array(values, dtype))
    with pytest.raises(Exception, match=f"the last refactorisation failed.*{text}"):
        jax.block_until_ready(sparse_lu.solve(factors.token, b))
    refactorise(factors, np.array([1.0, 2, 3, 5], dtype))
    np.testing.assert_allclose(sparse_lu.solve(factors.token, b), [-3, 2], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_structures_and_values_that_are_singular_are_refused(dtype):
    values = np.ones(3, dtype)
    with pytest.raises(Exception, match="singular to working precision"):
        factorised([0, 1, 2], [0, 0, 0], values, 3)  # columns without elements
    with pytest.raises(Exception, match="singular to working precision"):
        factorised([0, 1, 1], [0, 1, 1], np.array([1, 1, -1], dtype), 2)  # adds up to zero
    with pytest.raises(Exception, match="singular to working precision"):
        factorised([0], [0], np.zeros(1, dtype), 1)
    with pytest.raises(Exception, match="singular to working precision"):
        factorised(np.zeros(0, int), np.zeros(0, int), np.zeros(0, dtype), 1)


def test_factors_of_no_matrices_are_none():
    factors = sparse_lu.factor(sparse_lu.analyze([0], [0], 1), np.ones((0, 1)))
    assert factors.token.shape == (0,)


def test_operands_of_another_shape_or_type_are_refused():
    factors = two_by_two()
    token, b, values = factors.token, np.ones(2), np.ones(4)
    for call, kind, text in [
        (lambda: sparse_lu.solve(token, np.ones(3)), Exception, "the right-hand side has 3 rows, the matrix has 2"),
        (
            lambda: sparse_lu.solve(token, np.ones((3, 2))),
            Exception,
            "the right-hand side has 3 rows, the matrix has 2",
        ),
        (lambda: sparse_lu.solve(token, np.ones(0)), ValueError, r"b is float64\[0\], wanted \[n\] or \[n, k\]"),
        (lambda: sparse_lu.solve(token, 1.0), ValueError, r"b is float64\[\], wanted \[n\] or \[n, k\]"),
        (lambda: sparse_lu.solve(token, np.ones((2, 2, 2))), ValueError, r"b is float64\[2,2,2\], wanted \[n\] or"),
        (
            lambda: sparse_lu.solve(token, np.ones(2, np.int32)),
            TypeError,
            r"b is int32\[2\], wanted one of float32, float64",
        ),
        (
            lambda: sparse_lu.solve(token, np.ones(2, np.float32)),
            Exception,
            "factors are f64, the other operand is f32",
        ),
        (lambda: sparse_lu.solve(token, b + 0j), Exception, "factors are f64, the other operand is c128"),
        (
            lambda: sparse_lu.refactor(token, np.ones(4, np.float32)),
            Exception,
            "factors are f64, the other operand is f32",
        ),
        (lambda: sparse_lu.refactor(token, np.ones(4, np.int32)), TypeError, r"values is int32\[4\], wanted one of"),
        (lambda: sparse_lu.refactor(token, np.ones((2, 4))), ValueError, r"values are float64\[2,4\], wanted \[nnz\]"),
        (
            lambda: sparse_lu.solve(token, b, values + 0j),
            TypeError,
            r"values are complex128\[4\], wanted float64\[nnz\]",
        ),
        (
            lambda: sparse_lu.solve(token, b, np.ones((4, 1))),
            TypeError,
            r"values are float64\[4,1\], wanted float64\[nnz\]",
        ),
        (lambda: sparse_lu.solve(token, b, trans="C"), ValueError, "trans is 'C', wanted 'N', 'T' or 'H'"),
        (
            lambda: sparse_lu.solve(factors, b),
            TypeError,
            r"token is a Factors, wanted int32\[\], the token of `Factors`",
        ),
        (lambda: sparse_lu.solve(b, b), TypeError, r"token is float64\[2\], wanted int32\[\]"),
        (lambda: sparse_lu.free(np.zeros(2, int)), TypeError, r"token is int64\[2\], wanted int32\[\].*use jax.vmap"),
        (lambda: sparse_lu.refactor(0, values), Exception, "there is no token 0: `factor` has not made it"),
        (lambda: sparse_lu.solve(1 << 30, b), Exception, "there is no token 1073741824: `factor`"),
        (
            lambda: jax.grad(lambda v: sparse_lu.solve(token, b, v).sum())(np.ones(3)),
            Exception,
            "there are 3 values, and",
        ),
        (
            lambda: sparse_lu.factor(sparse_lu.analyze([0], [0], 1), 1.0),
            TypeError,
            r"values are a scalar, wanted \[\.\.\., nnz\]",
        ),
        (
            lambda: sparse_lu.factor(sparse_lu.analyze([0], [0], 1), [1]),
            TypeError,
            "values are int64, wanted one of float32",
        ),
        (
            lambda: sparse_lu.factor(sparse_lu.analyze([0], [0], 1), np.ones(2)),
            Exception,
            "there are 2 values, and the pattern has 1",
        ),
    ]:
        with pytest.raises(kind, match=text):
            jax.block_until_ready(call())
