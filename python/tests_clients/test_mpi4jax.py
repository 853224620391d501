"""mpi4jax on two and four processes: wrong as it is, right under `ordered`, with nothing else changed.

What mpi4jax's own ordered effects do, they go on doing: `ordered` adds the native state and the callbacks that they do not
know, and leaves the rest as it is. Where these effects end (batches, branches, checkpoints) is a test too.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = 5
SECONDS_UNTIL_STUCK = 30
"""From the moment when the program is compiled and runs. Right, it needs one or two."""

SECONDS_AT_MOST = 300
"""For a program that is expected to end."""


def start(processes, *arguments):
    script = Path(__file__).parent / "mpi_programs.py"
    # Who waits for the others gives up the processor, since there may be fewer of those than processes.
    yields = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    command = ["mpirun", "--allow-run-as-root", *yields, "-n", str(processes)]
    return subprocess.Popen(
        [*command, sys.executable, str(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MPI4JAX_NO_WARN_JAX_VERSION": "1"},
        start_new_session=True,
    )


def stop(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()  # closes the pipe too


def found(process):
    """What the first process prints last."""
    try:
        out, _ = process.communicate(timeout=SECONDS_AT_MOST)
    except subprocess.TimeoutExpired:
        stop(process)
        raise
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def wrong(program, how, processes):
    """How many of the runs were wrong, or None if the processes wait for each other for good."""
    process = start(processes, program, how, RUNS)
    assert process.stdout.readline() == "running\n"
    if how == "untied":
        try:
            process.wait(timeout=SECONDS_UNTIL_STUCK)
        except subprocess.TimeoutExpired:
            stop(process)
            return None
    return found(process)["wrong"]


PROGRAMS = ["rounds", "looped", "condition", "batched", "ring", "mixed"]


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("program", PROGRAMS)
def test_ordered_is_right_and_ends(program, processes, tally):
    count = tally(f"mpi4jax, {program}, {processes} processes", "ordered", wrong(program, "ordered", processes), RUNS)
    assert count == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_untied_it_is_wrong_or_waits_for_good(program, tally):
    count = tally(f"mpi4jax, {program}, 2 processes", "untied", wrong(program, "untied", 2), RUNS)
    assert count is None or count > 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_audit_finds_the_race_and_its_end(program):
    untied, ordered = found(start(2, program, "audit"))
    assert untied > 0
    assert ordered == 0


@pytest.fixture(scope="module")
def limits():
    return found(start(2, "limits"))


def test_what_mpi4jax_does_itself_it_does_under_ordered_too(limits):
    sums = [[1, 3, 5], 1]  # of 0, 1, 2 and 1, 2, 3, by one collective
    assert limits["a batch of sums"] == [sums, sums]
    derivative = [[2, 6, 10], 1]
    assert limits["a derivative"] == [derivative, derivative]


def test_a_batched_branch_is_refused_where_mpi4jax_would_communicate_in_both(limits):
    alone, ordered = limits["a batched branch"]
    assert alone == [[1, 3, 50], 2]  # one branch was taken by each element, and both collectives were made
    assert ordered.startswith("TypeError: entangle_jax.ordered: `vmap` batches the predicate of the `cond` at ")
    assert ordered.endswith("so JAX would also make the writes that are not to be made. Use `jax.lax.map`.")


def test_what_mpi4jax_cannot_do_stays_an_error(limits):
    missing = "NotImplementedError: Batching rule for 'bcast_mpi' not implemented"
    assert limits["a batch of broadcasts"] == [missing, missing]
    alone, ordered = limits["a checkpoint"]
    assert alone.startswith("NotImplementedError: Effects not supported in AD of `checkpoint`/`remat`: ")
    assert ordered.startswith("TypeError: entangle_jax.ordered: the derivative of `allreduce_mpi` at ")
    assert ordered.endswith("Differentiate first: `ordered(jax.grad(f))`, not `jax.grad(ordered(f))`.")
