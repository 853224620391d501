"""A witness or a payload leaf on one of several devices: the others have a constant for it, which waits for nothing."""

import signal

import fresh
import one_device_checks
import pytest


@pytest.mark.parametrize("check", one_device_checks.CHECKS, ids=lambda check: check.__name__)
def test_none_of_these(check, slots):
    check()


def test_a_callback_that_raises_lets_no_device_run_on():
    """It says why at once; the other devices wait for the broadcast until XLA gives up and ends the process."""
    code = f"""
        import sys, threading, time
        sys.path.insert(0, {__file__.rsplit("/", 1)[0]!r})
        import jax
        jax.config.update("jax_num_cpu_devices", 4)
        from jax.experimental import io_callback
        from jax.sharding import AxisType
        from entangle_jax import entangle, testing
        from one_device_checks import INT, inputs, write_on_each
        mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
        def on_host(_):
            raise ValueError("it did not converge")
        def program(token, x):
            return write_on_each(entangle(token, io_callback(on_host, INT, x.sum())), x, mesh)
        def tell():
            time.sleep(1)
            print("writes:", len(testing.log()), flush=True)
        executable = jax.jit(program).lower(*inputs(mesh)).compile()
        threading.Thread(target=tell).start()
        jax.block_until_ready(executable(*inputs(mesh)))
    """
    timeouts = (
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=2 --xla_cpu_collective_call_terminate_timeout_seconds=4"
    )
    status, out, err = fresh.finish(fresh.start(code, env={"XLA_FLAGS": timeouts}))
    assert out == "writes: 0\n"
    assert status == -signal.SIGABRT
    assert err.index("ValueError: it did not converge") < err.index("Termination timeout")
