"""Times `sparse_lu` beside klujax and scipy's `splu` on the same matrices, and prints the ratios.

A five-point grid and a ladder of resistors; each time is the least of several runs. klujax and sparse_lu refactorise in
place; `splu` factorises anew, because it has nothing else.
"""

import time

import jax
import klujax  # also switches jax to 64 bits
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import sparse_lu


def grid(side):
    line = scipy.sparse.diags_array([-1.0, 2.1, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    return scipy.sparse.csr_array(scipy.sparse.kronsum(line, line))


def ladder(rungs):
    rail = scipy.sparse.diags_array([-1.0, 3.5, -1.2], offsets=[-1, 0, 1], shape=(rungs, rungs))
    return scipy.sparse.csr_array(
        scipy.sparse.block_array([[rail, -scipy.sparse.eye_array(rungs)], [-scipy.sparse.eye_array(rungs), rail]])
    )


def least(run, times=7):
    run()
    durations = []
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(run())
        durations.append(time.perf_counter() - start)
    return min(durations)


def compare(name, matrix):
    rows, columns = (indices.astype(np.int32) for indices in matrix.tocoo().coords)
    values, n = matrix.data, matrix.shape[0]
    b = np.random.default_rng(0).normal(size=n)
    factors = sparse_lu.factor(sparse_lu.analyze(rows, columns, n), values)
    symbolic = klujax.analyze(rows, columns, n)
    numeric = klujax.factor(rows, columns, values, symbolic)
    lu = scipy.sparse.linalg.splu(matrix.tocsc())
    both = jax.jit(lambda token, v, b: sparse_lu.solve(sparse_lu.refactor(token, v), b))
    klu = jax.jit(lambda v, b, s, n, r, c: klujax.refactor_and_solve(r, c, v, b, n, s)[0])
    raw = jax.numpy.asarray(symbolic.raw, "uint64"), jax.numpy.asarray(numeric.as_list(), "uint64")
    ours = [least(lambda: both(factors.token, values, b)), least(lambda: sparse_lu.solve(factors.token, b))]
    theirs = [
        least(lambda: klu(values, b, *raw, rows, columns)),
        least(lambda: klujax.solve_with_numeric(numeric, b, symbolic)),
    ]
    scipys = [least(lambda: scipy.sparse.linalg.splu(matrix.tocsc()).solve(b)), least(lambda: lu.solve(b))]
    print(f"{name}, {len(values):,} elements")
    for what, mine, of_klu, of_scipy in zip(["refactor and solve", "solve"], ours, theirs, scipys, strict=True):
        print(
            f"  {what}: sparse_lu {1e3 * mine:.2f} ms, "
            f"klujax {1e3 * of_klu:.2f} ms (ratio {mine / of_klu:.2f}), "
            f"splu {1e3 * of_scipy:.2f} ms (ratio {mine / of_scipy:.2f})"
        )


if __name__ == "__main__":
    for name, matrix in [
        ("grid 50x50", grid(50)),
        ("grid 150x150", grid(150)),
        ("ladder of 10,000 nodes", ladder(5000)),
    ]:
        compare(name, matrix)
