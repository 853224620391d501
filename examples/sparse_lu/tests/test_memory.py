"""No native memory is left behind."""

import jax
import numpy as np
import pytest
import sparse_lu
from systems import factorised, live, random_system


def test_no_factors_outlive_their_owner():
    before = live()
    factors = sparse_lu.factor(sparse_lu.analyze([0], [0], 1), np.ones((3, 1)))
    assert live() == before + 3
    del factors
    assert live() == before


def test_factors_that_could_not_be_made_leave_nothing():
    before = live()
    with pytest.raises(Exception, match="singular"):
        sparse_lu.factor(sparse_lu.analyze([0], [0], 1), np.array([[1.0], [0.0]]))
    assert live() == before


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def grows(run):
    """By how many bytes, once it has run a while."""
    run()
    before = resident()
    for _ in range(10):
        run()
    return resident() - before


def test_memory_is_flat_over_10000_refactorisations_and_solves():
    n = 100
    rows, columns, values = random_system(np.random.default_rng(4), n)
    factors = factorised(rows, columns, values, n)

    @jax.jit
    def thousand(token, values, b):
        def step(_, carry):
            token, b = carry
            token = sparse_lu.refactor(token, values)
            return token, sparse_lu.solve(token, b)

        return jax.lax.fori_loop(0, 1000, step, (token, b))

    # One kilobyte each would be 10 MB.
    assert grows(lambda: jax.block_until_ready(thousand(factors.token, values, np.ones(n)))) < 4 << 20


def test_memory_is_flat_over_1000_objects():
    n = 300
    rows, columns, values = random_system(np.random.default_rng(5), n)

    def hundred():
        for _ in range(100):
            factorised(rows, columns, values, n)

    assert grows(hundred) < 8 << 20  # each has more than 50 kB
