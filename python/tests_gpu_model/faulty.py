"""Runs a program again and again while one call of the driver fails, each time in a process of its own: `faulty.py MODE CASE...`.

MODE is a way to schedule graphs, or `none` for no graphs. A CASE is a function of the driver and which of its calls fails:
`cuLaunchKernel:2`. Without cases it lists those that there are. Each line of output is the JSON of what came of one case.
"""

import contextlib
import functools
import json
import os
import select
import signal
import sys
import tempfile
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests_gpu")]
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads should not fork

import jax
import model
import numpy as np
from launched import compile_in

from entangle_jax import entangle, testing

RUNS = 3
"""Of each program: the first one is done without its graph, the second one launches it for the first time."""

JITTER_US = 1000
"""Work starts late, so what does not wait for it is seen."""

SECONDS = 60
"""A case that takes longer hangs."""


def runs_kernels():
    return "rocm" not in jax.devices()[0].client.platform_version.lower()


def program(token, x):
    """Two reads around a write, and a kernel before and after a payload."""
    before = testing.read(token, label="before")
    token = entangle(token, before)
    token = entangle(token, testing.write(token, 1.0, label="write"))
    x = entangle(x * 2, before) + 1 if runs_kernels() else entangle(x, before)
    return before, testing.read(token, label="after"), x


def outcome(mode):
    """Copy arguments to the device, compile, run, and copy results back."""
    wanted = np.arange(4, dtype=np.float32)
    token, x = jax.device_put((np.int32(0), wanted))
    compiled = compile_in(mode, program, token, x)
    for _ in range(RUNS):
        testing.reset()
        before, after, y = compiled(token, x)
        if (float(before), float(after)) != (0.0, 1.0):
            return "WRONG"
        if not np.array_equal(y, wanted * 2 + 1 if runs_kernels() else wanted):
            return "WRONG"
        if [access.label for access in testing.log()] != ["before", "write", "after"]:
            return "WRONG"
    return "right"


def attempt(mode):
    """The outcome, and what the error says."""
    try:
        return outcome(mode), ""
    except Exception as error:
        return "error", " ".join(str(error).split())
    finally:
        # A program with side effects that failed is an error once more, of whatever waits for all of them.
        with contextlib.suppress(Exception):
            jax.effects_barrier()


def begin(mode):
    """What happens only the first time."""
    model.set_order(model.RANDOM, seed=1, jitter_us=JITTER_US)
    for _ in range(2):
        assert attempt(mode) == ("right", "")


def all_cases(mode):
    begin(mode)
    before = model.report().calls
    assert attempt(mode) == ("right", "")
    calls = model.report().calls - before
    return [f"{function}:{nth + 1}" for function in sorted(calls) for nth in range(calls[function])]


def come_of(mode, case):
    """Whose call failed: "ours", "XLA's", or "none" if it was not made this time. What came of that, and of the next attempt."""
    begin(mode)
    function, nth = case.split(":")
    with model.failing(function, nth=int(nth)) as answered:
        found, message = attempt(mode)
        whose = "none" if not answered() else "ours" if model.failed_call_was_ours() else "XLA"
    return {
        "whose": whose,
        "outcome": found,
        "message": message,
        "next": found if found == "right" else attempt(mode)[0],
    }


class Process:
    """One that does `work`, whose result is JSON."""

    def __init__(self, work):
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `end`)
        self.results, write = os.pipe()
        self.id = os.fork()
        if not self.id:
            os.dup2(self.said.fileno(), sys.stderr.fileno())
            os.write(write, json.dumps(work()).encode())
            os._exit(0)
        os.close(write)

    def end(self):
        """The result; None, how it ended, and what it said."""
        with self.said, open(self.results, "rb") as results:
            in_time = select.select([results], [], [], SECONDS)[0]
            if not in_time:
                os.kill(self.id, signal.SIGKILL)
            result = results.read()
            os.waitpid(self.id, 0)
            self.said.seek(0)
            return (json.loads(result) if result else None), ("ended" if in_time else "hangs"), self.said.read()


def end(case, process):
    """Print what came of it."""
    found, ended, said = process.end()
    if found is None:
        caller = said.rpartition("fails as asked, in ")[2].partition("\n")[0]
        whose = "ours" if model.OURS in caller.rpartition("/")[2] else "XLA"
        found = {"whose": whose, "outcome": ended, "message": said[-3000:], "next": ended}
    print(json.dumps({"case": case, **found}), flush=True)


def main():
    mode, *cases = sys.argv[1:]
    mode = None if mode == "none" else mode
    if not cases:
        print(json.dumps(all_cases(mode)))
    running = []
    for case in cases:
        if len(running) == os.cpu_count():
            end(*running.pop(0))
        running.append((case, Process(functools.partial(come_of, mode, case))))
    for case, process in running:
        end(case, process)


if __name__ == "__main__":
    main()
