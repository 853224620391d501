"""What can only be seen on a GPU: `checks.py [--require] [--small] OUT.json`. See `ci/gpu`, which calls this.

Needs nothing but jax and the package, because a machine with a GPU may have no network and no pytest.
Runs on a model of the driver too (`ci/gpu-model`), which shows that the checks themselves work.
"""

import argparse
import ctypes
import datetime
import functools
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import dumps
import jax
import jax.numpy as jnp
import numpy as np
import programs

from entangle_jax import _info, audit, entangle, testing

_TEMPORARY = tempfile.TemporaryDirectory(prefix="entangle-gpu-")  # is removed with this object
DUMPS = Path(_TEMPORARY.name)


@dataclass
class Sizes:
    """How often and how large. The options of the command."""

    runs: int = 50
    iterations: int = 10_000
    repeats: int = 5
    matrix: int = 256
    donated: int = 1024
    demo_runs: int = 20
    demo_numbers: int = 0  # how many the demo sorts; 0: as many as it does


SMALL = Sizes(runs=10, iterations=10, repeats=2, matrix=16, donated=64, demo_runs=3, demo_numbers=64)
"""For a model of the driver, which interprets kernels: its times say nothing."""

GPUS = {"cuda": "CUDA", "rocm": "ROCM"}
"""Platforms as jax names them, and as it registers native targets for them."""


SIZES = Sizes()

KERNELS = True
"""Whether kernels are run. A model of ROCm counts them and leaves them out."""


class Skipped(Exception):
    """This check has nothing to look at here."""


def only_on_gpu(check):
    @functools.wraps(check)
    def checked(platform):
        if platform not in GPUS:
            raise Skipped(f"jax computes on {platform}")
        return check(platform)

    return checked


def matrix(size=None):
    """So scaled that products of it neither grow nor vanish."""
    size = size or SIZES.matrix
    values = np.random.default_rng(0).standard_normal((size, size)) / np.sqrt(size)
    return jnp.asarray(values, jnp.float32)


SMALL_DEMO = """
import argparse, dataclasses, sys
import jax.numpy as jnp
from entangle_jax import _demo, testing
numbers, kernels = map(int, sys.argv.pop(1).split(","))
few = lambda: (testing.slot(0), jnp.asarray([(7 * i) % numbers for i in range(numbers)], jnp.int32))
sorts = [dataclasses.replace(each, arguments=few) for each in _demo.SCENARIOS if each.name in {"sorts", "loop"}]
others = [each for each in _demo.SCENARIOS if each.name not in {"sorts", "loop"}]
parser = argparse.ArgumentParser()
_demo.add_arguments(parser)
sys.exit(_demo.run(parser.parse_args(), others + sorts * kernels))
"""
"""The demo's command with fewer numbers to sort, or without the scenarios that sort."""


def check_demo(platform):
    """Every scenario of the demo is right with entangle in every run, and has the data path."""
    runs = SIZES.demo_runs if platform in GPUS else 2
    if SIZES.demo_numbers:
        how = ["-c", SMALL_DEMO, f"{SIZES.demo_numbers},{int(KERNELS)}"]
    else:
        how = ["-m", "entangle_jax", "demo"]
    command = [sys.executable, "-P", *how, "--json", "--runs", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads(done.stdout)
    assert found["ok"]
    return {"device": found["device"], "results": found["results"], "verdict": found["verdict"]}


def check_order_in_graphs(platform):
    """In each way to schedule a graph, the native log has the order of the source in every run."""
    found = {}
    for mode in programs.SCHEDULING_MODES:
        ours = _run_recorded(platform, mode, entangle)
        assert ours["right"] == SIZES.runs, f"{mode}: {ours}"
        # Whether it goes wrong without entangle is a matter of luck; how often it did is worth to know.
        found[mode] = {"entangle": ours, "nothing": _run_recorded(platform, mode, programs.nothing)}
    return found


def _run_recorded(platform, mode, tie):
    program = programs.read_write_read(tie)
    program.__name__ = f"{dumps.DUMPED}_{mode}_{tie.__name__}"
    arguments = testing.slot(0), matrix()
    options = programs.recorded(mode) if platform in GPUS else None
    compiled = jax.jit(program).lower(*arguments).compile(options)
    right = 0
    for _ in range(SIZES.runs):
        testing.reset()
        before, after, _ = jax.block_until_ready(compiled(*arguments))
        order = [access.label for access in testing.log()]
        right += (float(before), float(after), order) == (0.0, 1.0, ["before", "write", "after"])
    return {
        "right": right,
        "runs": SIZES.runs,
        "graphs": _graphs(platform, program.__name__, 5 if tie is entangle else 3),
    }


def _graphs(platform, name, calls):
    """How many graphs the program is; an error if a native call is outside of them."""
    if platform not in GPUS:
        return 0
    if jax.__version_info__ < (0, 12):
        return "not dumped by this jaxlib"
    outside, graphs = dumps.thunks(DUMPS, name)
    assert not outside["kCustomCall"], f"{name}: {outside} outside of its graphs"
    assert sum(graph["kCustomCall"] for graph in graphs) == calls, f"{name}: {graphs}"
    return len(graphs)


def check_data_path(platform):
    """The program that runs has no race; the same one without entangle has."""
    del platform
    arguments = testing.slot(0), matrix()
    races = {
        tie.__name__: len(
            audit(
                jax.jit(programs.read_write_read(tie)).lower(*arguments).compile(),
                reads=[testing.READ_TARGET],
                writes=[testing.WRITE_TARGET],
            ).races
        )
        for tie in (entangle, programs.nothing)
    }
    assert races["entangle"] == 0, races
    assert races["nothing"] > 0, races
    return races


def check_donation(platform):
    """A donated payload comes back at its own address; one that is not donated does not."""
    del platform
    pointers = {}
    for donated in (True, False):
        x, signal = matrix(SIZES.donated), jnp.float32(1)  # made anew each time
        before = x.unsafe_buffer_pointer()
        tied = jax.jit(entangle, donate_argnums=0 if donated else ())(x, signal)
        pointers[donated] = before == tied.unsafe_buffer_pointer()
        np.testing.assert_array_equal(tied, matrix(SIZES.donated))
    assert pointers == {True: True, False: False}
    return {"donated stays in place": pointers[True]}


@only_on_gpu
def check_kernels(platform):
    """A program launches no more kernels and copies with entangle than without it."""
    del platform
    counts = {}
    # Without products, all sines would become one kernel, which entangle prevents as a barrier does.
    without = programs.nothing if KERNELS else programs.barrier
    for tie in (without, entangle):
        # Without graphs, whose kernels a trace need not show.
        options = {"xla_gpu_graph_min_graph_size": 1_000_000}
        compiled = jax.jit(programs.steps(tie, 20)).lower(matrix(), jnp.float32(1)).compile(options)
        counts[tie.__name__] = len(_device_events(compiled, matrix(), jnp.float32(1)))
    assert 0 < counts["entangle"] <= counts[without.__name__], counts
    return counts


def _device_events(compiled, *arguments):
    """What the device did in one run, as the profiler saw it; or as the driver counted it, where it is a model."""
    jax.block_until_ready(compiled(*arguments))
    if (report := _counters()) is not None:
        before = report()
        jax.block_until_ready(compiled(*arguments))
        return list((report() - before).elements())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(compiled(*arguments))
        (file,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        profile = jax.profiler.ProfileData.from_file(file)
        planes = [plane for plane in profile.planes if plane.name.startswith("/device:GPU")]
        events = [
            event.name for plane in planes for line in plane.lines if "Stream" in line.name for event in line.events
        ]
    assert events, f"the trace has no events of a GPU: {[plane.name for plane in profile.planes]}"
    return events


def _counters():
    """What a model of the driver has counted, as a function; None: it is no model. (See ci/gpu_model/src/model.cc.)"""
    try:
        report = ctypes.CDLL("libcuda.so.1").gpu_model_report
    except (OSError, AttributeError):
        return None
    report.restype = ctypes.c_char_p

    def did():
        lines = [line.split(" ", 2) for line in report().decode().splitlines()]
        return Counter({line[2]: int(line[1]) for line in lines if line[0] == "did"})

    return did


def check_errors(platform):
    """A result that XLA did not alias is an error that names the leaf, not garbage."""
    del platform
    x = jnp.zeros((2, 3))
    not_aliased = jax.ffi.ffi_call("entangle", jax.ShapeDtypeStruct(x.shape, x.dtype))
    message = "no error"
    try:
        jax.block_until_ready(jax.jit(lambda x: not_aliased(x + 1))(x))
    except jax.errors.JaxRuntimeError as error:
        message = str(error)
    assert "payload leaf 0 of 1" in message, message
    return message.splitlines()[0]


def check_times(platform):
    """Wall-clock time of a step of a loop of 10,000, each with six products, sines and ties."""
    ties = {"no-op": programs.nothing, "optimization_barrier": programs.barrier, "entangle": entangle}
    if platform in GPUS:
        ties["plain handler"] = programs.plain(GPUS[platform])
    iterations = SIZES.iterations if platform in GPUS else 10
    arguments = matrix(SIZES.matrix // 2), jnp.float32(1)
    compiled = {name: jax.jit(programs.loop(tie, iterations)).lower(*arguments).compile() for name, tie in ties.items()}
    seconds = {name: [] for name in ties}
    for repeat in range(SIZES.repeats + 1):
        for name, program in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            if repeat:  # the first one warms up
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(those) for name, those in seconds.items()}
    return {
        "iterations": iterations,
        "ties in an iteration": 6,
        "microseconds of an iteration": {name: 1e6 * median / iterations for name, median in medians.items()},
        "spread": {name: (max(those) - min(those)) / medians[name] for name, those in seconds.items()},
        "ratio to no-op": {name: median / medians["no-op"] for name, median in medians.items()},
    }


CHECKS = (check_data_path, check_donation, check_order_in_graphs, check_kernels, check_errors, check_demo, check_times)


def run(check, platform):
    """One row of the report."""
    start = time.monotonic()
    row = {"name": check.__name__.removeprefix("check_"), "about": check.__doc__}
    try:
        row |= {"outcome": "passed", "found": check(platform)}
    except Skipped as why:
        row |= {"outcome": "skipped", "found": str(why)}
    except Exception:
        row |= {"outcome": "FAILED", "found": traceback.format_exc()}
    row["seconds"] = round(time.monotonic() - start, 1)
    print(f"{row['outcome']:<8} {row['seconds']:>6} s  {row['name']}", flush=True)
    if row["outcome"] == "FAILED":
        print(row["found"], flush=True)
    return row


def main():
    """Run all checks. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--require", action="store_true", help="a check that is skipped is a failure")
    parser.add_argument("out", type=Path, help="where to write the report, as JSON")
    parser.add_argument("--small", action="store_true", help="for a model of the driver: few runs of small programs")
    parser.add_argument("--no-kernels", action="store_true", help="for a model of the driver that leaves them out")
    for size in fields(Sizes):
        parser.add_argument(f"--{size.name.replace('_', '-')}", type=int, metavar="N")
    arguments = parser.parse_args()
    for size in fields(Sizes):
        given = getattr(arguments, size.name)
        setattr(SIZES, size.name, getattr(SMALL if arguments.small else SIZES, size.name) if given is None else given)
    if arguments.no_kernels:
        global KERNELS
        KERNELS, programs.product = False, jnp.multiply
    # XLA reads its flags when the first backend starts, which is below.
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *dumps.flags(DUMPS)])
    client = jax.devices()[0].client
    platform = next((name for name in GPUS if name in client.platform_version), client.platform)
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "platform": platform,
        "device": jax.devices()[0].device_kind,
        "driver and runtime": client.platform_version,
        "info": _info.info(),
        "checks": [],
    }
    print(f"{platform}: {len(jax.devices())} x {report['device']}", flush=True)
    for check in CHECKS:
        report["checks"].append(run(check, platform))
        arguments.out.write_text(
            json.dumps(report, indent=2) + "\n"
        )  # what there is, should the next one not come back
    outcomes = [row["outcome"] for row in report["checks"]]
    passed, skipped, failed = (outcomes.count(outcome) for outcome in ("passed", "skipped", "FAILED"))
    if arguments.require and skipped:
        print(f"{skipped} skipped, which is a failure here: this machine was to have a GPU that jax can use")
        failed, skipped = failed + skipped, 0
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
