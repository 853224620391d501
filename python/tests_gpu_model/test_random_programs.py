"""Random programs in concurrent graphs whose nodes run in random order: what the audit proves is so, and `ordered` keeps order.

Two kinds of programs: those of `python/tests`, which need kernels, and `programs_without_kernels`, which ROCm's model runs too.
"""

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections import Counter
from pathlib import Path

import jax
import model
import programs
import programs_without_kernels as bare
import pytest

sys.path.append(str(Path(__file__).parent.parent / "tests"))

import jaxpr_oracle
import ordered_programs
import random_programs
from conftest import platform
from hypothesis import HealthCheck, Phase, given, seed, settings
from random_checks import TARGETS, runs_right

from entangle_jax import audit, entangle, ordered, testing

pytestmark = pytest.mark.filterwarnings("ignore::entangle_jax.OrderingWarning")

SEEDS = 5
"""In how many ways a program's nodes are ordered. Each is launched a few times."""

CONTROLS = 20
"""So many of the programs that run right are run without their ties too."""

CONCURRENT = programs.recorded("CONCURRENT")


def how_many(short, long):
    """In --short, and in the long form."""
    return pytest.mark.parametrize("count", [short, pytest.param(long, marks=pytest.mark.long)])


def short_and_long(kinds, short):
    """All of these kinds, of which --short looks at some."""
    return pytest.mark.parametrize(
        "kind", [kind if kind in short else pytest.param(kind, marks=pytest.mark.long) for kind in kinds]
    )


def in_random_orders(run):
    """What some runs give."""
    for number in range(SEEDS):
        model.set_order(model.RANDOM, seed=number, jitter_us=20)
        yield run()


# ----------------------------------------------------------------------------------------------------------- the audit
NOT_PROVEN, NOT_RUN, RIGHT, WRONG = "not proven", "needs a kernel that the model cannot run", "right", "WRONG"


def compiled_for_graphs(program, arguments):
    return jax.jit(program).lower(*arguments).compile(CONCURRENT)


def outcome(compiled, arguments, is_right):
    """What comes of a program that is run."""
    try:
        jax.block_until_ready(compiled(*arguments))
    except jax.errors.JaxRuntimeError as error:
        if "CUDA_ERROR_NOT_SUPPORTED" in str(error):
            return NOT_RUN
        raise
    return RIGHT if all(in_random_orders(lambda: is_right(compiled))) else WRONG


def outcome_of(program, arguments, *, proven):
    """The same of a program whose text says what it gives."""
    compiled = compiled_for_graphs(program, arguments)
    if proven and (testing.WRITE_TARGET not in compiled.as_text() or audit(compiled, **TARGETS).races):
        return NOT_PROVEN
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):  # which computes all that a program may have
        results, happened = jaxpr_oracle.run(program, *jax.device_put(arguments, cpu))
    return outcome(compiled, arguments, lambda ran: runs_right(ran, arguments, results, happened))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Untied:
    """A `Handle` that orders nothing."""

    handle: jax.Array

    def read(self, function, *rest):
        return function(self.handle, *rest), self

    def write(self, function, *rest):
        return function(self.handle, *rest), self


@contextlib.contextmanager
def no_ties():
    """Programs that are made here have no `entangle` and no `Handle`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_programs, "entangle", programs.nothing)
        patch.setattr(random_programs, "Handle", Untied)
        yield


def with_entangle(number):
    return random_programs.program(number), random_programs.arguments()


def with_handles(number):
    return random_programs.handle_program(number), random_programs.handle_arguments()


@pytest.mark.kernels
@how_many(short=5, long=40)
def test_no_run_contradicts_what_the_audit_proves(count):
    """The same programs without their ties go wrong in a good part, so the runs would show it."""
    came, without = Counter(), Counter()
    for number, make in itertools.product(range(count), (with_entangle, with_handles)):
        came[found := outcome_of(*make(number), proven=True)] += 1
        if found == RIGHT and without.total() < CONTROLS:
            with no_ties():
                without[outcome_of(*make(number), proven=False)] += 1
    print(f"{2 * count} programs: {dict(came)}; some of the right ones without ties: {dict(without)}")
    assert not came[WRONG], came
    assert came[RIGHT] >= count, came
    assert without[WRONG] >= without.total() / 3 > 0, without


# On ROCm, loops that run a known number of times: their counters are kernels, and need not be run.
@pytest.fixture
def without_counters(gpu):
    with model.skipping_kernels() if gpu == "rocm" else contextlib.nullcontext():
        yield


def ran_right(program, compiled):
    testing.reset()
    jax.block_until_ready(compiled(*bare.arguments()))
    jax.effects_barrier()
    return bare.happened() == bare.expected(program)


@pytest.mark.usefixtures("without_counters")
@how_many(short=5, long=80)
def test_no_run_contradicts_what_the_audit_proves_of_programs_without_kernels(count):
    came, without = Counter(), Counter()
    for number in range(count):
        program = bare.program(number)
        tied, untied = (
            compiled_for_graphs(bare.function_of(program, tie), bare.arguments())
            for tie in (entangle, programs.nothing)
        )
        is_right = functools.partial(ran_right, program)
        if audit(tied, **bare.TARGETS).races:
            came[NOT_PROVEN] += 1
            continue
        came[found := outcome(tied, bare.arguments(), is_right)] += 1
        if found == RIGHT and without.total() < CONTROLS:
            without[outcome(untied, bare.arguments(), is_right)] += 1
    print(f"{count} programs: {dict(came)}; some of the right ones without ties: {dict(without)}")
    assert not came[WRONG], came
    assert came[RIGHT] >= count / 2, came
    assert without[WRONG] >= without.total() / 3 > 0, without


# --------------------------------------------------------------------------------------------------------- `ordered`
def some_programs(strategy, count):
    """A few programs, always the same ones."""
    found = []

    @seed(0)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(strategy)
    def collect(program):
        found.append(program)

    collect()
    return found


def all_that(function):
    """What runs of a program gave, in order or not."""
    compiled = compiled_for_graphs(function, ordered_programs.arguments())
    return in_random_orders(lambda: ordered_programs.observed(compiled))


def is_in_order(function, program):
    compiled = compiled_for_graphs(function, bare.arguments())
    return all(in_random_orders(lambda: ran_right(program, compiled)))


@pytest.mark.kernels
@short_and_long(ordered_programs.CONSTRUCTS, short=("while_loop", "cond"))
def test_programs_of_a_class_are_in_order_under_ordered_and_scrambled_without(kind):
    for program in some_programs(ordered_programs.of_class(kind), 2):
        expected = ordered_programs.expected(program)
        function = ordered_programs.function_of(program)
        assert all(came == expected for came in all_that(ordered(function))), program
        assert any(came != expected for came in all_that(function)), program


@pytest.mark.kernels
@how_many(short=5, long=60)
def test_the_law_of_ordered_holds_in_concurrent_graphs(count):
    for program in some_programs(ordered_programs.programs, count):
        expected = ordered_programs.expected(program)
        assert all(came == expected for came in all_that(ordered(ordered_programs.function_of(program)))), program


# Under `ordered`, a branch is chosen by a number, which a kernel keeps within its range.
BARE_CONSTRUCTS = [kind for kind in bare.CONSTRUCTS if kind != bare.BRANCH or platform() == "cuda"]


@pytest.mark.usefixtures("without_counters")
@short_and_long(BARE_CONSTRUCTS, short=("fori_loop", "jit"))
def test_programs_without_kernels_of_a_class_are_in_order_under_ordered_and_scrambled_without(kind):
    for number in range(2):
        program = bare.of_class(kind, number)
        function = bare.function_of(program, programs.nothing)
        assert is_in_order(ordered(function, **bare.TARGETS), program), program
        assert not is_in_order(function, program), program


@pytest.mark.usefixtures("without_counters")
@how_many(short=5, long=60)
def test_the_law_of_ordered_holds_for_programs_without_kernels(count):
    for number in range(count):
        program = bare.program(number, BARE_CONSTRUCTS)
        assert is_in_order(ordered(bare.function_of(program, programs.nothing), **bare.TARGETS), program), program
