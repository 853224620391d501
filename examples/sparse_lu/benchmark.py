"""Times `sparse_lu` beside klujax and scipy's `splu` on the same matrices, and prints the ratios.

The matrices are a five-point grid and a ladder of resistors. klujax and sparse_lu refactorise in place; `splu` has to
factorise anew. All three take turns, and each time is the least of several. With `--short` the matrices are small, and
the times tell little.
"""

import argparse
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


def least_times(functions, rounds):
    """The least time of each function in seconds. Their results must be the same."""
    first, *others = [np.asarray(function()) for function in functions]
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-9, atol=1e-12)
    durations = []
    for _ in range(rounds):
        for function in functions:
            start = time.perf_counter()
            jax.block_until_ready(function())
            durations.append(time.perf_counter() - start)
    return np.reshape(durations, (rounds, len(functions))).min(axis=0)


def compare(name, matrix, rounds):
    rows, columns = (indices.astype(np.int32) for indices in matrix.tocoo().coords)
    values, n = matrix.data, matrix.shape[0]
    b = np.random.default_rng(0).normal(size=n)

    factors = sparse_lu.factor(sparse_lu.analyze(rows, columns, n), values)
    ours = jax.jit(lambda token, v, b: sparse_lu.solve(sparse_lu.refactor(token, v), b))

    symbolic = klujax.analyze(rows, columns, n)
    numeric = klujax.factor(rows, columns, values, symbolic)
    handles = jax.numpy.asarray(symbolic.raw, "uint64"), jax.numpy.asarray(numeric.as_list(), "uint64")
    klu = jax.jit(lambda v, b, s, n, r, c: klujax.refactor_and_solve(r, c, v, b, n, s)[0])

    by_columns = matrix.tocsc()
    lu = scipy.sparse.linalg.splu(by_columns)

    print(f"{name}: {n:,} unknowns, {len(values):,} elements")
    for what, functions in {
        "refactor and solve": [
            lambda: ours(factors.token, values, b),
            lambda: klu(values, b, *handles, rows, columns),
            lambda: scipy.sparse.linalg.splu(by_columns).solve(b),
        ],
        "solve": [
            lambda: sparse_lu.solve(factors.token, b),
            lambda: klujax.solve_with_numeric(numeric, b, symbolic),
            lambda: lu.solve(b),
        ],
    }.items():
        mine, of_klujax, of_splu = least_times(functions, rounds)
        print(
            f"  {what}: sparse_lu {1e3 * mine:.2f} ms, "
            f"klujax {1e3 * of_klujax:.2f} ms (ratio {mine / of_klujax:.2f}), "
            f"splu {1e3 * of_splu:.2f} ms (ratio {mine / of_splu:.2f})"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="small matrices, few rounds")
    if parser.parse_args().short:
        matrices, rounds = {"grid 20x20": grid(20), "ladder of 200 nodes": ladder(100)}, 2
    else:
        matrices = {"grid 50x50": grid(50), "grid 150x150": grid(150), "ladder of 10,000 nodes": ladder(5000)}
        rounds = 25
    for name, matrix in matrices.items():
        compare(name, matrix, rounds)


if __name__ == "__main__":
    main()
