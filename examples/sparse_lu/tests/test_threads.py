"""Several threads, and Python's global interpreter lock."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import sparse_lu
from systems import error, factorised, live, random_system, refactorise, scipy_solve

from entangle_jax import entangle, ordered

N = 400


@pytest.fixture
def keeps_the_gil():
    """No thread is made to give the lock up: others run only where it is released."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


def test_no_solve_sees_a_half_made_factorisation():
    """Three threads solve while two refactorise: each solution is that of one whole matrix."""
    rng = np.random.default_rng(0)
    rows, columns, values = random_system(rng, N)
    factors = factorised(rows, columns, values, N)
    sides = rng.normal(size=(N, 4))
    x = scipy_solve(rows, columns, values, N, sides)
    scales = [1.0, 2.0, 3.0, 4.0]
    start = threading.Barrier(5)
    running = [True, True]

    def write(which):
        start.wait()
        for step in range(150):
            refactorise(factors, scales[(step + 2 * which) % 4] * values)
        running[which] = False

    def read():
        start.wait()
        seen, wrong = set(), 0
        while any(running):
            solutions = np.asarray(sparse_lu.solve(factors.token, sides))
            errors = [error(solutions, x / scale) for scale in scales]
            wrong += min(errors) > 1e-9
            seen.add(int(np.argmin(errors)))
        return seen, wrong

    with ThreadPoolExecutor(5) as pool:
        writers, readers = [pool.submit(write, which) for which in (0, 1)], [pool.submit(read) for _ in range(3)]
        results = [reader.result() for reader in readers]
        for writer in writers:
            writer.result()
    assert [wrong for _, wrong in results] == [0] * 3
    assert len(set().union(*(seen for seen, _ in results))) > 1  # they did meet


def test_factors_that_another_thread_frees_are_used_or_missed_and_nothing_else():
    rng = np.random.default_rng(1)
    rows, columns, values = random_system(rng, N)
    pattern = sparse_lu.analyze(rows, columns, N)
    b = rng.normal(size=N)
    x = scipy_solve(rows, columns, values, N, b)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(30):
            factors, started = sparse_lu.factor(pattern, values), threading.Event()

            def solve(factors=factors, started=started):
                for _ in range(1000):
                    solution = np.asarray(sparse_lu.solve(factors.token, b))
                    started.set()
                    assert error(solution, x) < 1e-9

            solving = pool.submit(solve)
            started.wait()
            factors.free()
            with pytest.raises(Exception, match="have been freed"):
                solving.result()


def test_native_code_needs_no_gil(keeps_the_gil):
    """A program factorises and solves to its end while this thread holds the lock and never releases it.

    The program frees one object when it begins and another at its end, so that this thread sees both without the lock.
    """
    rows, columns, values = random_system(np.random.default_rng(2), N)
    pattern = sparse_lu.analyze(rows, columns, N)

    @jax.jit
    @ordered
    def program(first, token, values, b):
        token = entangle(token, sparse_lu.free(first))

        def step(_, b):
            sparse_lu.refactor(token, values)
            return sparse_lu.solve(token, b)

        return jax.lax.fori_loop(0, 300, step, b), sparse_lu.free(token)

    def run(first, second):
        jax.block_until_ready(program(first.token, second.token, values, np.ones(N)))

    def pair():
        return sparse_lu.factor(pattern, values), sparse_lu.factor(pattern, values)

    run(*pair())  # compiles it
    for _ in range(100):
        objects = pair()
        before = live()
        thread = threading.Thread(target=run, args=objects)
        thread.start()
        while sparse_lu.live() == before:
            time.sleep(0)  # releases the lock, which starting a program needs
        has_met = sparse_lu.live() == before - 1  # else the program has ended before this thread looked
        for _ in range(100_000_000):
            if sparse_lu.live() == before - 2:
                break
        else:
            pytest.fail("the program waits for the lock")
        thread.join()
        if has_met:
            return
    pytest.fail("the program was never seen running")


@pytest.mark.parametrize("what", ["analyze", "factor", "refactor", "solve"])
def test_other_threads_of_python_run_meanwhile(keeps_the_gil, what):
    rows, columns, values = random_system(np.random.default_rng(3), 4 * N)
    rows, columns = rows.astype(np.int32), columns.astype(np.int32)
    pattern = sparse_lu.analyze(rows, columns, 4 * N)
    factors = sparse_lu.factor(pattern, values)
    b = np.ones(4 * N)
    call = {
        "analyze": lambda: sparse_lu.Pattern(rows, columns, 4 * N),
        "factor": lambda: sparse_lu.factor(pattern, values),
        "refactor": lambda: refactorise(factors, values),
        "solve": lambda: jax.block_until_ready(sparse_lu.solve(factors.token, b)),
    }[what]
    go, ran = threading.Event(), []

    def other():
        go.wait()
        ran.append(what)

    thread = threading.Thread(target=other)
    thread.start()
    go.set()  # the other thread can run now, if only this one releases the lock
    for _ in range(1000):
        if ran:
            break
        call()
    assert ran == [what]
    thread.join()
