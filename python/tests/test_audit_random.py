"""Random programs: the audit proves nothing false, and raises no alarm on a right program through `Handle`.

What is proven is checked twice: against an interpreter of the program as it is written (`jaxpr_oracle`), and by running the
compiled program with delays and comparing its results and the native log of writes with that interpreter. 50 programs and
25 through `Handle`, always the same; 5,000 and 500, and other ones each time, with the profile `soak` of conftest.py.
"""

import jax
import jaxpr_oracle
import numpy as np
import pytest
import random_programs
from hypothesis import given, settings
from hypothesis import strategies as st

from entangle_jax import audit, testing

TARGETS = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}
RUNS = 3
SOAK = settings().max_examples >= 2_000
EXAMPLES = 5_000 if SOAK else settings().max_examples
HANDLE_EXAMPLES = 500 if SOAK else settings().max_examples // 2

numbers = st.integers(0, 2**32 - 1)

pytestmark = pytest.mark.filterwarnings("ignore::entangle_jax.OrderingWarning")


def expect_order(compiled, arguments, results, happened):
    """Run the program; it must return what it says, and have written what it says in the order that it says."""
    for _ in range(RUNS):
        testing.reset()
        got = jax.tree.leaves(jax.block_until_ready(compiled(*arguments)))
        for value, wanted in zip(got, results, strict=True):
            np.testing.assert_array_equal(value, wanted)
        written = {}
        for access in testing.log():
            if access.op == "write":
                written.setdefault(access.slot, []).append(access.value)
        assert written == happened.writes()


@given(numbers)
@settings(max_examples=EXAMPLES)
def test_nothing_false_is_proven(number):
    program, arguments = random_programs.program(number), random_programs.arguments()
    lowered = jax.jit(program).lower(*arguments)
    if testing.WRITE_TARGET not in lowered.as_text():
        return  # nothing to prove
    if audit(lowered, **TARGETS).races:
        return
    results, happened = jaxpr_oracle.run(program, *arguments)
    assert happened.races() == [], number
    expect_order(lowered.compile(), arguments, results, happened)


@given(numbers)
@settings(max_examples=HANDLE_EXAMPLES)
def test_no_right_program_raises_an_alarm(number):
    program, arguments = random_programs.handle_program(number), random_programs.handle_arguments()
    lowered = jax.jit(program).lower(*arguments)
    if testing.WRITE_TARGET not in lowered.as_text():
        return
    assert audit(lowered, **TARGETS).races == (), number
    results, happened = jaxpr_oracle.run(program, *arguments)
    assert happened.races() == [], number
    expect_order(lowered.compile(), arguments, results, happened)


def test_the_random_programs_are_neither_all_proven_nor_all_races():
    races = []
    for number in range(40):
        lowered = jax.jit(random_programs.program(number)).lower(*random_programs.arguments())
        if testing.WRITE_TARGET in lowered.as_text():
            races.append(bool(audit(lowered, **TARGETS).races))
    assert 5 < sum(races) < len(races) - 5
