"""Random systems, and what scipy and numpy say about them."""

import gc

import jax
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import sparse_lu


def random_system(rng, n, dtype=np.float64, per_row=4):
    """Rows, columns and values of a matrix whose diagonal dominates: in any order, with several elements at one place."""
    count = (per_row - 1) * n
    rows = np.concatenate([np.arange(n), rng.integers(0, n, count)])
    columns = np.concatenate([np.arange(n), rng.integers(0, n, count)])
    order = rng.permutation(n + count)
    values = np.concatenate([rng.uniform(1, 2, n) * per_row, rng.uniform(-1, 1, count)]).astype(dtype)
    if np.issubdtype(dtype, np.complexfloating):
        values = values * np.exp(1j * rng.uniform(0, 0.5, n + count)).astype(dtype)
    return rows[order], columns[order], values[order]


def random_array(rng, shape, dtype=np.float64):
    array = rng.normal(size=shape)
    return (array + 1j * rng.normal(size=shape) if np.issubdtype(dtype, np.complexfloating) else array).astype(dtype)


def factorised(rows, columns, values, n):
    return sparse_lu.factor(sparse_lu.analyze(rows, columns, n), values)


def refactorise(factors, values):
    jax.block_until_ready(sparse_lu.refactor(factors.token, values))


def live():
    """How many objects there are, without those that only the garbage collector can drop."""
    gc.collect()
    return sparse_lu.live()


def as_scipy(rows, columns, values, n):
    return scipy.sparse.csc_array((values, (rows, columns)), shape=(n, n))


def scipy_solve(rows, columns, values, n, b, trans="N"):
    return scipy.sparse.linalg.splu(as_scipy(rows, columns, values, n)).solve(b, trans)


def error(x, y):
    """The relative error of `x`."""
    return np.linalg.norm(np.asarray(x) - y) / np.linalg.norm(y)


def native_calls(function, *operands):
    """The targets of the native calls in the compiled program."""
    program = jax.jit(function).lower(*operands).compile().as_text()
    assert " while(" not in program
    return sorted(
        line.split('custom_call_target="')[1].split('"')[0]
        for line in program.splitlines()
        if "custom_call_target=" in line
    )
