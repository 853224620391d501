"""mpi4jax on two and four processes: wrong as it is, right under `ordered`, with nothing else changed.

What mpi4jax's own ordered effects do, they go on doing: `ordered` adds the native state and the callbacks that they do not
know, and leaves the rest as it is.
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


def run(program, how, processes):
    """How many of the runs were wrong, or None if the processes wait for each other for good."""
    script = Path(__file__).parent / "mpi_programs.py"
    # Who waits for the others gives up the processor, since there may be fewer of those than processes.
    yields = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    command = ["mpirun", "--allow-run-as-root", *yields, "-n", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPI4JAX_NO_WARN_JAX_VERSION": "1"}
    process = subprocess.Popen(
        [*command, sys.executable, str(script), program, how, str(RUNS)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout.readline() == "running\n"
    try:
        out, _ = process.communicate(timeout=SECONDS_UNTIL_STUCK if how == "untied" else SECONDS_AT_MOST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()  # closes the pipe too
        return None
    assert process.returncode == 0
    return json.loads(out)["wrong"]


PROGRAMS = ["rounds", "looped", "ring", "mixed"]


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("program", PROGRAMS)
def test_ordered_is_right(program, processes):
    assert run(program, "ordered", processes) == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_untied_it_is_wrong_or_waits_for_good(program):
    assert run(program, "untied", 2) != 0
