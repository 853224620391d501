"""A circuit simulator's inner loop on klujax: one factorisation, changed in place, inside one `jit`.

    pip install './python[examples]'         # in a checkout; 'entangle-jax[examples]>=0.2' once that is on the registry
    python examples/klu_refactor.py

In every time step the conductances of a ladder network of 10,000 nodes change: its matrix is factorised again, in
place, and four systems are solved with it, as a Rosenbrock method does. To XLA the factorisation is a number, the
handle, which never changes. So nothing tells it that the solves of one step have to be done before the next step
overwrites the factorisation.

All 40 solutions are compared with `scipy.sparse.linalg.spsolve`: untied, with `entangle` after each solve, and with
`ordered` around the untied program, which is told which of klujax's primitives read the factorisation and which change
it. Exit status 0: with either all of them were right in every run, and entangle warned of handles that it cannot order.

(klujax and splineax-klujax both install a module `klujax`: keep them in environments of their own.)
"""

import argparse
import importlib.metadata
import sys
import warnings
from collections.abc import Callable
from functools import partial

import jax
import klujax  # also switches jax to 64 bits and to the CPU
import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from entangle_jax import OrderingWarning, entangle, ordered

RUNGS, STEPS, STAGES = 5_000, 10, 4


def ladder(rng: np.random.Generator) -> scipy.sparse.csr_array:
    """The nodal matrix of a ladder: rails and rungs of resistors with amplifiers, and leaks to ground at each node.

    The elements have random values. The pattern is always the same, and factorising hardly fills it in.
    """
    first, second = np.arange(RUNGS), np.arange(RUNGS) + RUNGS
    branches = np.concatenate(
        [np.stack([first, second]), np.stack([first[:-1], first[1:]]), np.stack([second[:-1], second[1:]])], axis=1
    )
    count, nodes = branches.shape[1], 2 * RUNGS
    incidence = scipy.sparse.csr_array(
        (np.repeat([1.0, -1.0], count), (np.tile(np.arange(count), 2), branches.ravel())), shape=(count, nodes)
    )
    conductances = scipy.sparse.diags_array(rng.uniform(0.5, 2.0, count))
    amplifiers = scipy.sparse.csr_array((rng.uniform(0.0, 0.1, count), tuple(branches)), shape=(nodes, nodes))
    matrix = (
        incidence.T @ conductances @ incidence + scipy.sparse.diags_array(rng.uniform(0.5, 1.0, nodes)) + amplifiers
    )
    matrix = scipy.sparse.csr_array(matrix)
    matrix.sort_indices()
    return matrix


# All arrays are arguments: XLA would spend minutes on folding index arrays that are constants of the program.
def simulate(tie: Callable[..., jax.Array], rows, columns, values, sources, symbolic, numeric):
    """Solve `STAGES` systems with each row of `values`. `symbolic` and `numeric` are klujax's raw handles."""
    solutions = []
    for Ax, b in zip(values, sources, strict=True):
        # `klujax.refactor` would be dead code in here: it returns the handle that it was given and not what the native
        # call returned, so nothing uses the call, and XLA drops it. No tie can help: there is nothing to tie. This
        # one returns a solution, so it stays.
        x, _ = klujax.refactor_and_solve(rows, columns, Ax, b, numeric, symbolic)
        solutions.append(x)
        for _ in range(STAGES - 1):
            numeric = tie(numeric, x)  # the next solve reads what the call before has left in the factorisation
            x = klujax.solve_with_numeric(numeric, b + x, symbolic)
            solutions.append(x)
        numeric = tie(numeric, x)  # the next step overwrites it
    return solutions


def reference(matrices: list[scipy.sparse.csr_array], sources: np.ndarray) -> list[np.ndarray]:
    """The same by scipy."""
    solutions = []
    for matrix, b in zip(matrices, sources, strict=True):
        x = np.zeros_like(b)
        for _ in range(STAGES):
            x = scipy.sparse.linalg.spsolve(matrix.tocsc(), b + x)
            solutions.append(x)
    return solutions


def warns_of_handle_objects(numeric: klujax.KLUNumeric, witness: jax.Array) -> bool:
    """The handle objects of klujax are pytree nodes without leaves: entangle cannot order them and has to say so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entangle(numeric, witness)
        entangle(witness, numeric)
    return [warning.category for warning in caught] == [OrderingWarning, OrderingWarning]


def untied(handle: jax.Array, witness: jax.Array) -> jax.Array:
    """What `entangle` is without its effect."""
    del witness
    return handle


in_order = ordered(partial(simulate, untied), reads=["solve_with_numeric_f64"], writes=["refactor_and_solve_f64"])
"""The untied program, told which of klujax's primitives read the factorisation and which change it."""


def circuit() -> tuple[list[scipy.sparse.csr_array], np.ndarray]:
    """The matrix and the sources of each time step."""
    rng = np.random.default_rng(0)
    matrices = [ladder(rng) for _ in range(STEPS)]
    return matrices, rng.normal(size=(STEPS, matrices[0].shape[0]))


def arrays(matrices: list[scipy.sparse.csr_array], sources: np.ndarray):
    """The arguments of `simulate` after `tie`, and klujax's objects.

    The objects own the native memory, so they have to outlive the program; what is entangled is the numbers in them.
    """
    rows, columns = (indices.astype(np.int32) for indices in matrices[0].tocoo().coords)
    values = np.stack([matrix.data for matrix in matrices])
    symbolic = klujax.analyze(rows, columns, matrices[0].shape[0])
    numeric = klujax.factor(rows, columns, values[0], symbolic)
    handles = jax.numpy.asarray(symbolic.raw, "uint64"), jax.numpy.asarray(numeric.as_list(), "uint64")
    return (rows, columns, values, sources, *handles), (symbolic, numeric)


def main() -> int:
    parser = argparse.ArgumentParser(description="Refactorise in place, with entangle and without.")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="how often to run each program (default: 5)")
    runs = parser.parse_args().runs

    matrices, sources = circuit()
    expected = reference(matrices, sources)
    arguments, (symbolic, numeric) = arrays(matrices, sources)
    values = arguments[2]

    good = warns_of_handle_objects(numeric, jax.numpy.asarray(sources[0]))
    print(f"klujax {importlib.metadata.version('klujax')}, jax {jax.__version__}: {STEPS} refactorisations, ", end="")
    print(f"{len(expected)} solutions of {values.shape[1]:,} nonzeros and {sources.shape[1]:,} unknowns")
    print(f"entangling handle objects, not the numbers in them: {'OrderingWarning, rightly' if good else 'NO WARNING'}")
    programs = {
        "untied": partial(simulate, untied),
        "with entangle": partial(simulate, entangle),
        "with ordered": in_order,
    }
    for name, program in programs.items():
        wrong = []
        step = jax.jit(program)
        for _ in range(runs):
            solutions = jax.block_until_ready(step(*arguments))
            right = (np.allclose(x, y, rtol=1e-9, atol=1e-12) for x, y in zip(solutions, expected, strict=True))
            wrong.append(len(expected) - sum(right))
        print(f"wrong solutions {name}, run by run: {', '.join(map(str, wrong))}")
        if name != "untied":
            good = good and not any(wrong)
    del symbolic, numeric
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
