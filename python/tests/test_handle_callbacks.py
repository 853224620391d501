"""Without native calls: `pure_callback` and unordered `io_callback` on a Python object, ordered by `Handle`."""

import time

import delays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from entangle_jax import Handle

FLOAT = jax.ShapeDtypeStruct((), jnp.float32)


class Register:
    """A value in Python, with a log of what was done to it."""

    def __init__(self):
        self.value, self.log = 0.0, []

    def read(self, token, *late):
        def on_host(token, *_):
            self.log.append("read")
            return np.float32(self.value)

        return jax.pure_callback(on_host, FLOAT, token, *late, vmap_method="sequential")

    def write(self, token, value):
        def on_host(token, value):
            time.sleep(0.002)  # a read that does not wait has the time to overtake
            self.value = float(value)
            self.log.append("write")
            return token

        return io_callback(on_host, jax.ShapeDtypeStruct((), jnp.int32), token, value)


def late(x):
    for i in range(3):
        x = jnp.sort(x ^ i)
    return x


def read_write_read(register, handle, x, value):
    before, handle = handle.read(register.read, late(x))
    _, handle = handle.write(register.write, value)
    after, handle = handle.read(register.read)
    return jnp.stack([before, after]), handle


def once(register, handle, x):
    return read_write_read(register, handle, x, 1.0)[0]


def in_scan(register, handle, x):
    return jax.lax.scan(
        lambda handle, value: read_write_read(register, handle, x, value)[::-1], handle, jnp.arange(1.0, 4.0)
    )[1]


def in_while_loop(register, handle, x):
    def body(carry):
        handle, seen, i = carry
        now, handle = read_write_read(register, handle, x, i + 1.0)
        return handle, seen.at[i].set(now), i + 1

    return jax.lax.while_loop(lambda carry: carry[2] < 3, body, (handle, jnp.zeros((3, 2)), 0))[1]


def in_cond(register, handle, x):
    def branch(handle):
        return read_write_read(register, handle, x, 1.0)[0]

    return jax.lax.cond(x[0] >= 0, branch, lambda handle: jnp.zeros(2), handle)


ONCE, THRICE = [0, 1], [[0, 1], [1, 2], [2, 3]]
PROGRAMS = {once: ONCE, in_scan: THRICE, in_while_loop: THRICE, in_cond: ONCE}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_callbacks_run_in_order(program):
    register = Register()
    x = jnp.asarray(delays.numbers(20_000))
    jitted = jax.jit(lambda handle, x: program(register, handle, x))
    for _ in range(5):
        register.value, register.log = 0.0, []
        seen = jax.block_until_ready(jitted(Handle(0), x))
        np.testing.assert_array_equal(seen, PROGRAMS[program])
        assert register.log == ["read", "write", "read"] * (len(register.log) // 3)
