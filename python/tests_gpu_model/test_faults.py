"""A driver that answers errors, and handlers that do: a clear error each time, no crash, no garbage."""

import contextlib
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import model
import numpy as np
import programs
import pytest
from conftest import platform
from launched import compile_in

from entangle_jax import entangle, testing

HERE = Path(__file__).parent

# A call that failed left things as they were, which later calls of XLA may not expect: that is no violation of XLA's.
PERMISSIVE = os.environ | {"GPU_MODEL_STRICT": "0"}

# What the slots ask of the driver when a call is enqueued, and how it is called there.
OURS = {
    "cuda": {
        "cuStreamGetCtx", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode",
        "cuMemHostAlloc", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuLaunchHostFunc", "cuStreamIsCapturing",
    },
    "rocm": {
        "hipThreadExchangeStreamCaptureMode", "hipHostMalloc", "hipMemcpyDtoHAsync", "hipMemcpyHtoDAsync",
        "hipLaunchHostFunc", "hipStreamIsCapturing",
    },
}  # fmt: skip


def read_write_read(token):
    before = testing.read(token, label="before")
    token = entangle(token, before)
    token = entangle(token, testing.write(token, 1.0, label="write"))
    return before, testing.read(token, label="after")


def right(compiled, token):
    testing.reset()
    before, after = jax.block_until_ready(compiled(token))
    return (float(before), float(after)) == (0.0, 1.0)


def forget_what_failed():
    """A program with side effects that failed is an error once more, of whatever waits for all of them."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()


def pytest_generate_tests(metafunc):
    if "function" in metafunc.fixturenames:
        metafunc.parametrize("function", sorted(OURS[platform()]))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("mode", [None, "CONCURRENT"])
def test_an_error_of_the_driver_is_an_error_of_the_call_that_names_it(function, nth, mode):
    token = testing.slot(0)
    compiled = compile_in(mode, read_write_read, token)
    if mode:
        assert right(compiled, token)  # the first run is done without the graph
    with model.failing(function, nth=nth, caller=model.OURS) as answered:
        try:
            found = right(compiled, token)
        except jax.errors.JaxRuntimeError as error:
            assert function.removesuffix("_v2") in str(error), error
            assert answered() == 1
        else:
            assert found
            assert answered() == 0, f"{function} failed, and no error says so"
    forget_what_failed()
    fresh = compile_in(mode, read_write_read, token)
    assert right(fresh, token)
    assert right(fresh, token)


OUT_OF_MEMORY = """
import sys
sys.path += sys.argv[2:]
import jax, model
from entangle_jax import testing
token = testing.slot(0)
with model.failing(sys.argv[1], error=model.OUT_OF_MEMORY, caller=model.OURS):
    jax.block_until_ready(jax.jit(testing.read)(token))
"""


def test_out_of_memory_is_said(gpu):
    """In a process of its own: slots keep memory for later calls, and ask for none."""
    allocate = {"cuda": "cuMemHostAlloc", "rocm": "hipHostMalloc"}[gpu]
    command = [sys.executable, "-P", "-c", OUT_OF_MEMORY, allocate, HERE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=PERMISSIVE)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert allocate in last, last
    assert "out of memory" in last.lower(), last


def refuses(x):
    """A call of the handler that XLA was not told to alias, which is an error of the handler."""
    return jax.ffi.ffi_call("entangle", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_an_error_of_the_handler_is_said_and_an_executable_that_failed_to_record_stays_broken(mode):
    x = jax.device_put(np.arange(4, dtype=np.float32))
    compiled = compile_in(mode, lambda x: refuses(x), x)
    for _ in range(3):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"payload leaf 0 of 1|[Rr]ecorded"):
            jax.block_until_ready(compiled(x))
    # The process goes on, and other programs run.
    token = testing.slot(0)
    assert right(compile_in(mode, read_write_read, token), token)


@pytest.mark.kernels
@pytest.mark.parametrize("mode", programs.SCHEDULING_MODES)
def test_a_handler_that_fails_in_a_branch_breaks_the_graph_that_it_is_recorded_into(mode):
    """XLA records both branches, whichever is taken: XLA's own behaviour, which the docs say."""

    def program(x, fails):
        return jax.lax.cond(fails, refuses, lambda x: x, x + 1)

    x = jnp.arange(4.0)
    compiled = compile_in(mode, program, x, False)
    messages = set()
    for _ in range(3):
        try:
            np.testing.assert_array_equal(jax.block_until_ready(compiled(x, False)), np.arange(4.0) + 1)
        except jax.errors.JaxRuntimeError as error:
            messages.add(str(error).splitlines()[0])
    assert messages
    assert all("payload leaf 0 of 1" in message or "ecorded" in message for message in messages), messages


# ------------------------------------------------------------------------------------------------ each call in turn
# What XLA itself makes of calls of its own that fail. A test below says that it is exactly this.
XLA_ENDS = {
    "cuCtxSetCurrent": "XLA checks that it is on the device",
    "cuModuleGetGlobal": "XLA checks that the constants of a program are there",
    "cuPointerGetAttribute": "XLA checks what memory it copies from",
    "hipSetDevice": "XLA checks that it is on the device",
    "hipModuleGetGlobal": "XLA checks that the constants of a program are there",
}
"""It ends the process."""
if jax.__version_info__ < (0, 11):
    XLA_ENDS["cuMemcpyHtoDAsync"] = "XLA checks that an argument is copied to the device"

XLA_IGNORES = {
    "cuStreamWaitEvent": "a stream goes on before another one is ready",
    "cuEventRecord": "nothing waits for a copy of a result to the host",
    "cuLaunchHostFunc": "nothing waits for a copy of a result to the host",
    "cuMemcpyDtoHAsync": "a result is not copied to the host",
    "hipStreamWaitEvent": "a stream goes on before another one is ready",
    "hipEventRecord": "nothing waits for a copy of a result to the host",
    "hipLaunchHostFunc": "nothing waits for a copy of a result to the host",
    "hipMemcpyDtoHAsync": "a result is not copied to the host",
}
"""A program returns a wrong value without an error, or writes to memory that was freed, which may end the process."""

XLA_ALWAYS_ENDS = {"cuCtxSetCurrent", "hipSetDevice"}
"""Wherever it fails. There are many."""

PARTS, TRIES = 8, 3


def faulty(mode, *cases):
    """What `faulty.py` prints, line by line."""
    command = [sys.executable, "-P", HERE / "faulty.py", mode or "none", *cases]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=PERMISSIVE)
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_which(case):
    """The function that fails there."""
    return case.partition(":")[0].removesuffix("_v2")


@functools.cache
def cases(mode):
    """Each call of each function that the program makes; of one whose every failure ends the process, every tenth call."""
    (found,) = faulty(mode)
    assert len(set(map(of_which, found))) > 12
    always = [case for case in found if of_which(case) in XLA_ALWAYS_ENDS]
    left_out = set(always) - set(always[::10])
    return [case for case in found if case not in left_out]


@functools.cache
def outcomes(mode, part):
    return faulty(mode, *cases(mode)[part::PARTS])


def is_known_of_xla(found):
    known = {"ended": XLA_ENDS | XLA_IGNORES, "WRONG": XLA_IGNORES}.get(found["outcome"], ())
    return found["whose"] == "XLA" and of_which(found["case"]) in known


def expect_an_error_or_the_right_answer(outcomes):
    for found in outcomes:
        is_error = found["outcome"] == "error" and found["message"]
        assert found["outcome"] == "right" or is_error or is_known_of_xla(found), found
        if found["whose"] == "ours":
            assert of_which(found["case"]) in found["message"], found
            assert found["next"] == "right", found


@pytest.mark.parametrize("mode", [None, "CONCURRENT"])
def test_of_some_calls_that_fail_there_is_an_error_or_the_right_answer(mode):
    """In each of a few places. Not where XLA is known to end the process: that is seen below."""
    some = [case for case in cases(mode) if of_which(case) not in XLA_ENDS | XLA_IGNORES]
    expect_an_error_or_the_right_answer(faulty(mode, *some[:: len(some) // 6]))


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_call_the_driver_fails_there_is_an_error_or_the_right_answer(part):
    """Each call in turn. The first run of the program is done without its graph, so calls without a graph are among them."""
    expect_an_error_or_the_right_answer(outcomes("CONCURRENT", part))


@pytest.mark.long
def test_whatever_call_the_driver_fails_without_a_graph_there_is_an_error_or_the_right_answer():
    """Every fourth call."""
    expect_an_error_or_the_right_answer(faulty(None, *cases(None)[::4]))


@pytest.mark.long
def test_what_xla_does_wrong_is_exactly_what_is_listed(gpu):
    """Should XLA mend one of them, the lists and docs/gpu.md say too little good of it."""
    here = {"cuda": "cu", "rocm": "hip"}[gpu]
    ignored, ending = ({name for name in known if name.startswith(here)} for known in (XLA_IGNORES, XLA_ENDS))
    every = [found for part in range(PARTS) for found in outcomes("CONCURRENT", part)]
    for _ in range(TRIES):  # whether a value is wrong if nothing waits for it is a matter of time
        if again := ignored - functions(every, "WRONG"):
            every += faulty("CONCURRENT", *(case for case in cases("CONCURRENT") if of_which(case) in again))
    assert functions(every, "WRONG") == ignored
    assert functions(every, "ended") - ignored == ending


def functions(outcomes, outcome):
    """Those with a call of which that comes."""
    return {of_which(found["case"]) for found in outcomes if found["outcome"] == outcome}
