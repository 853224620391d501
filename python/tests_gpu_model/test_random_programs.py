"""Random programs in concurrent graphs whose nodes run in random order: what the audit proves is so, and `ordered` keeps order.

The programs, and what they must give, are those of `python/tests`.
"""

import sys
from collections import Counter
from pathlib import Path

import jax
import model
import programs
import pytest

sys.path.append(str(Path(__file__).parent.parent / "tests"))

import jaxpr_oracle
import ordered_programs
import random_programs
from hypothesis import HealthCheck, Phase, given, seed, settings
from random_checks import TARGETS, runs_right

from entangle_jax import audit, ordered, testing

pytestmark = [pytest.mark.kernels, pytest.mark.filterwarnings("ignore::entangle_jax.OrderingWarning")]

SEEDS = 5
"""In how many ways a program's nodes are ordered. Each is launched a few times."""

CONCURRENT = programs.recorded("CONCURRENT")

CONSTRUCTS = ("scan", "while_loop", "cond", "switch", "jit", "fori_loop")


# ----------------------------------------------------------------------------------------------------------- the audit
def proven_and_run(program, arguments):
    """What comes of a program that the audit proves free of races, when it is run."""
    lowered = jax.jit(program).lower(*arguments)
    if testing.WRITE_TARGET not in lowered.as_text() or audit(lowered, **TARGETS).races:
        return "not proven"
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):  # which computes all that a program may have
        results, happened = jaxpr_oracle.run(program, *jax.device_put(arguments, cpu))
    try:
        compiled = lowered.compile(CONCURRENT)
        jax.block_until_ready(compiled(*arguments))
    except jax.errors.JaxRuntimeError as error:
        if "CUDA_ERROR_NOT_SUPPORTED" in str(error):
            return "not run"  # a kernel that the model cannot run
        raise
    for number in range(SEEDS):
        model.set_order(model.RANDOM, seed=number, jitter_us=20)
        if not runs_right(compiled, arguments, results, happened):
            return "WRONG"
    return "right"


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.long)])
def test_no_run_contradicts_what_the_audit_proves(count):
    came = Counter()
    for number in range(count):
        came[proven_and_run(random_programs.program(number), random_programs.arguments())] += 1
        came[proven_and_run(random_programs.handle_program(number), random_programs.handle_arguments())] += 1
    print(dict(came))
    assert not came["WRONG"], came
    assert came["right"] >= count / 2, came


# --------------------------------------------------------------------------------------------------------- `ordered`
def some_programs(strategy, count):
    """A few programs, always the same ones."""
    found = []

    @seed(0)
    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @given(strategy)
    def collect(program):
        found.append(program)

    collect()
    return found


def seen(function):
    """What runs of a program gave, in order or not."""
    compiled = jax.jit(function).lower(*ordered_programs.arguments()).compile(CONCURRENT)
    for number in range(SEEDS):
        model.set_order(model.RANDOM, seed=number, jitter_us=20)
        yield ordered_programs.observed(compiled)


@pytest.mark.parametrize("kind", CONSTRUCTS)
def test_programs_of_a_class_are_in_order_under_ordered_and_scrambled_without(kind):
    wrong, all_of_them = 0, some_programs(ordered_programs.of_class(kind), 2)
    for program in all_of_them:
        expected = ordered_programs.expected(program)
        function = ordered_programs.function_of(program)
        assert all(came == expected for came in seen(ordered(function))), program
        wrong += any(came != expected for came in seen(function))
    assert wrong == len(all_of_them)


@pytest.mark.long
def test_the_law_of_ordered_holds_in_concurrent_graphs():
    for program in some_programs(ordered_programs.programs, 60):
        expected = ordered_programs.expected(program)
        assert all(came == expected for came in seen(ordered(ordered_programs.function_of(program)))), program
