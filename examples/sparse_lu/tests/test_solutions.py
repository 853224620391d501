"""Solutions beside those of scipy."""

import jax
import numpy as np
import pytest
import scipy.sparse
import sparse_lu
from systems import as_scipy, error, factorised, random_array, random_system, refactorise, scipy_solve


def test_no_solution_of_1000_random_systems_is_wrong():
    rng = np.random.default_rng(0)
    worst, systems = 0.0, 0
    for structure in range(50):
        n = int(rng.integers(200, 300) if structure % 10 == 0 else rng.integers(1, 60))
        rows, columns, values = random_system(rng, n, per_row=int(rng.integers(1, 9)))
        with factorised(rows, columns, values, n) as factors:
            for _ in range(20):
                values = values * rng.uniform(0.8, 1.2, len(values))
                b = rng.normal(size=n)
                assert np.linalg.cond(as_scipy(rows, columns, values, n).toarray(), 1) < 1e6
                refactorise(factors, values)
                worst = max(worst, error(sparse_lu.solve(factors.token, b), scipy_solve(rows, columns, values, n, b)))
                systems += 1
    assert systems == 1000
    assert worst <= 1e-9


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("trans", ["N", "T", "H"])
@pytest.mark.parametrize("columns_of_b", [None, 1, 3])
def test_neither_transposed_nor_complex_nor_many_right_hand_sides_are_mistaken(dtype, trans, columns_of_b):
    rng = np.random.default_rng(1)
    n = 40
    rows, columns, values = random_system(rng, n, np.dtype(dtype).type)
    factors = factorised(rows, columns, values, n)
    b = random_array(rng, n if columns_of_b is None else (n, columns_of_b), dtype)
    x = sparse_lu.solve(factors.token, b, trans=trans)
    assert (x.shape, x.dtype) == (b.shape, b.dtype)
    assert error(x, scipy_solve(rows, columns, values, n, b, trans)) < (1e-4 if np.finfo(dtype).eps > 1e-10 else 1e-12)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("side", [12, 60])
def test_pivots_off_the_diagonal_and_much_fill_are_no_trouble(dtype, side):
    rng = np.random.default_rng(2)
    n = side * side
    line = scipy.sparse.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(side, side))
    grid = scipy.sparse.kronsum(line, line).tocsr()[rng.permutation(n)].tocoo()  # almost no element is on the diagonal
    rows, columns = grid.coords
    values = grid.data * random_array(rng, 1, dtype)
    factors = factorised(rows, columns, values, n)
    b = random_array(rng, (n, 2), dtype)
    for trans in "NTH":
        x = sparse_lu.solve(factors.token, b, trans=trans)
        assert error(x, scipy_solve(rows, columns, values, n, b, trans)) < 1e-9


def test_a_matrix_of_one_element_is_solved():
    factors = factorised([0], [0], np.array([4.0]), 1)
    assert sparse_lu.solve(factors.token, np.array([2.0])) == 0.5
    assert sparse_lu.solve(factors.token, np.array([[2.0, 8.0]])).tolist() == [[0.5, 2.0]]


def test_no_right_hand_sides_have_no_solutions():
    factors = factorised([0, 1], [0, 1], np.array([4.0, 2.0]), 2)
    assert sparse_lu.solve(factors.token, np.ones((2, 0))).shape == (2, 0)


def test_neither_scales_nor_order_nor_duplicates_change_the_solution():
    scales = np.array([1.0, 1e-20, 1e200, 1e-200])
    factors = factorised([3, 1, 2, 0, 1], [3, 1, 2, 0, 1], np.array([1e-200, 0.25e-20, 1e200, 1.0, 0.75e-20]), 4)
    np.testing.assert_allclose(sparse_lu.solve(factors.token, scales), np.ones(4), rtol=1e-12)


def test_a_nearly_singular_matrix_is_solved_as_well_as_its_condition_allows():
    factors = factorised([0, 0, 1, 1], [0, 1, 0, 1], np.array([1.0, 1.0, 1.0, 1.0 + 2.0**-30]), 2)
    x = sparse_lu.solve(factors.token, np.array([2.0, 2.0 + 2.0**-30]))
    np.testing.assert_allclose(x, [1.0, 1.0], rtol=1e-5)


def test_integers_of_any_width_are_indices():
    for dtype in (np.int8, np.uint16, np.int32, np.int64, np.uint64):
        index = np.arange(3, dtype=dtype)
        assert sparse_lu.analyze(index, index[::-1], 3).nnz == 3
    assert sparse_lu.analyze(jax.numpy.arange(3), [2, 1, 0], np.int64(3)).n == 3
