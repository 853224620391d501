"""Runs a program again and again while one call of the driver fails: `faulty.py MODE CASE...`.

MODE is a way to schedule graphs, or `none` for no graphs. A CASE is a function of the driver and which of its calls fails:
`cuLaunchKernel:2`. Without cases it lists those that there are. Each line of output is "begin CASE", then "CASE WHOSE OUTCOME
MESSAGE": WHOSE is "ours", "XLA's", or "none's" if the call was not made this time. OUTCOME is "right", "error" or "WRONG", with
"!" behind it if the program does not run as it should after that either.
"""

import contextlib
import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests_gpu")]

import jax
import model
import numpy as np
from launched import compile_in

from entangle_jax import entangle, testing

RUNS = 3
"""Of each program: the first one is done without its graph, the second one launches it for the first time."""

KERNELS = jax.devices()[0].client.platform_version.lower().find("rocm") < 0
"""Whether the model runs kernels."""


def program(token, x):
    """Two reads around a write, and a kernel before and after a payload."""
    before = testing.read(token, label="before")
    token = entangle(token, before)
    token = entangle(token, testing.write(token, 1.0, label="write"))
    x = entangle(x * 2, before) + 1 if KERNELS else entangle(x, before)
    return before, testing.read(token, label="after"), x


def outcome(mode):
    """Copy arguments to the device, compile, run, and copy results back."""
    wanted = np.arange(4, dtype=np.float32)
    token, x = jax.device_put((np.int32(0), wanted))
    compiled = compile_in(mode, program, token, x)
    for _ in range(RUNS):
        testing.reset()
        before, after, y = compiled(token, x)
        if (float(before), float(after)) != (0.0, 1.0) or not np.array_equal(y, wanted * 2 + 1 if KERNELS else wanted):
            return "WRONG"
        if [access.label for access in testing.log()] != ["before", "write", "after"]:
            return "WRONG"
    return "right"


def attempt(mode):
    """The outcome, and what the error says."""
    try:
        return outcome(mode), ""
    except Exception as error:
        return "error", " ".join(str(error).split()) or "NO MESSAGE"
    finally:
        # A program with side effects that failed is an error once more, of whatever waits for all of them.
        with contextlib.suppress(Exception):
            jax.effects_barrier()


def main():
    mode, *cases = sys.argv[1:]
    mode = None if mode == "none" else mode
    for _ in range(2):  # what happens only the first time
        assert attempt(mode) == ("right", "")
    if not cases:
        before = model.report().calls
        assert attempt(mode) == ("right", "")
        calls = model.report().calls - before
        print(*(f"{function}:{nth + 1}" for function in sorted(calls) for nth in range(calls[function])), sep="\n")
    for case in cases:
        function, nth = case.split(":")
        print("begin", case, flush=True)
        with model.failing(function, nth=int(nth)) as answered:
            found, message = attempt(mode)
            whose = "none's" if not answered() else "ours" if model.failed_call_was_ours() else "XLA's"
        after, _ = (found, "") if found == "right" else attempt(mode)
        print(case, whose, found + ("" if after == "right" else "!"), message, flush=True)


if __name__ == "__main__":
    main()
