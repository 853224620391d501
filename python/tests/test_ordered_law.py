"""The law of `ordered`: every run gives the values and the writes that a plain Python interpretation of the jaxpr gives.

Sixty random programs, others with each version of JAX: CI runs three of these. Thousands, and other ones each time, with
the profile `soak` of conftest.py.
"""

import jax
import ordered_programs as programs
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from entangle_jax import audit, ordered

LATEST = programs.LATEST
RUNS = 3
SOAK = not settings().derandomize


def the_same_each_time(test):
    return test if SOAK else seed(f"the law on jax {jax.__version__}")(test)


def audit_of_what_runs_right(program):
    """The audit of the program under `ordered`, whose runs are as its text says."""
    expected = programs.expected(program)
    fn = ordered(programs.function_of(program))
    compiled = jax.jit(fn).lower(*programs.arguments()).compile()
    for _ in range(RUNS):
        assert programs.observed(compiled) == expected
    return audit(fn, *programs.arguments())


@the_same_each_time
@settings(max_examples=settings().max_examples if SOAK else 60)
@given(programs.programs)
def test_no_random_program_reads_a_wrong_value_or_writes_in_a_wrong_order(program):
    report = audit_of_what_runs_right(program)
    assert not report.races, str(report)


FOUND = [
    # Reads that may not run, in a loop, before the write of the next iteration and after the loop.
    [("scan", 3, [("write", 1, 0), ("read", 0, 0), ("fori_loop", 1, [("read", 1, LATEST)])])],
    [("scan", 1, [("write", 1, 0), ("fori_loop", 1, [("read", 1, 0)])]), ("write", 1, 0)],
    [("scan", 2, [("write", 1, 0), ("cond", 1, [("read", 1, LATEST)], [])]), ("write", 1, 0)],
]


@pytest.mark.parametrize("program", FOUND, ids=str)
def test_what_random_programs_have_found_is_in_order(program):
    report = audit_of_what_runs_right(program)
    assert not report.races, str(report)


def some_of_class(kind, count):
    """A few programs of that class, always the same ones."""
    found = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs.of_class(kind))
    def collect(program):
        found.append(program)

    collect()
    return found


@pytest.mark.parametrize("kind", programs.CONSTRUCTS)
def test_nearly_all_programs_of_a_class_are_wrong_without_and_none_is_with(kind):
    wrong, all_of_them = 0, some_of_class(kind, 10 if SOAK else 2)
    for program in all_of_them:
        expected = programs.expected(program)
        fn = programs.function_of(program)
        with_order = jax.jit(ordered(fn)).lower(*programs.arguments()).compile()
        without = jax.jit(fn).lower(*programs.arguments()).compile()
        for _ in range(RUNS):
            assert programs.observed(with_order) == expected, program
        wrong += any(programs.observed(without) != expected for _ in range(RUNS))
    assert wrong >= 0.9 * len(all_of_them), f"{wrong} of {len(all_of_them)} are wrong without"
