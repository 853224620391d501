"""A driver that answers errors, and handlers that do: a clear error each time, no crash, no garbage."""

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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


def test_out_of_memory_is_said(gpu):
    """In a process of its own: slots keep memory for later calls, and ask for none."""
    allocate = {"cuda": "cuMemHostAlloc", "rocm": "hipHostMalloc"}[gpu]
    done = faulty(allocate, model.OUT_OF_MEMORY, model.OURS)
    assert done.stdout.split() == ["error"], done.stderr
    assert "out of memory" in done.stderr.lower()


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


def faulty(function, error=model.UNKNOWN, caller=""):
    """A program whose next call of that function fails, by that library, in a process of its own: see `faulty.py`."""
    command = [sys.executable, "-P", HERE / "faulty.py", function, str(error), caller]
    # A call that failed left things as they were, which later calls of XLA may not expect: that is no violation of XLA's.
    environment = os.environ | {"GPU_MODEL_STRICT": "0"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)


XLA_ENDS = {"cuModuleGetGlobal_v2", "hipModuleGetGlobal"}
"""If one of these fails, XLA ends the process itself, with "Check failed"."""

XLA_IGNORES = {"cuStreamWaitEvent", "hipStreamWaitEvent"}
"""If one of these fails, XLA logs it and goes on, and a result may be read before it is there."""


@pytest.mark.long
def test_whatever_call_the_driver_fails_there_is_an_error_or_the_right_answer():
    """Each function that a program calls, in turn, in a process of its own."""
    functions = sorted(faulty("").stdout.split()[1:])
    assert len(functions) > 15
    with ThreadPoolExecutor(2) as threads:
        outcomes = dict(zip(functions, threads.map(faulty, functions), strict=True))
    ended = {function for function, done in outcomes.items() if done.returncode < 0}
    assert not {
        function: done.stderr[-500:] for function, done in outcomes.items() if function not in ended and not said(done)
    }
    assert ended <= XLA_ENDS
    assert all("Check failed" in outcomes[function].stderr or "F0" in outcomes[function].stderr for function in ended)


def said(done):
    return done.returncode == 0 and done.stdout.split()[0] in {"right", "error"}
