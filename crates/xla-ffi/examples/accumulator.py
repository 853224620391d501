"""Calls the handlers of accumulator.rs from JAX: `python accumulator.py [LIBRARY]`."""

import ctypes
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from entangle_jax import entangle

HERE = Path(__file__).parent
NAME = {"darwin": "libaccumulator.dylib", "win32": "accumulator.dll"}.get(sys.platform, "libaccumulator.so")
library = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else str(HERE / "../../../target/debug/examples" / NAME))
for handler in ("accumulator_add", "accumulator_total"):
    jax.ffi.register_ffi_target(handler, jax.ffi.pycapsule(getattr(library, handler)), platform="cpu")


def add(token, values):
    """Add all `values` to the total of `token`; returns the token."""
    call = jax.ffi.ffi_call("accumulator_add", jax.ShapeDtypeStruct((), jnp.int32), has_side_effect=True)
    return call(token, values)


def total(token):
    """Read the total of `token`."""
    return jax.ffi.ffi_call("accumulator_total", jax.ShapeDtypeStruct((), jnp.float32))(token)


@jax.jit
def sums(token, rows):
    """The total before each row is added, and after the last one."""

    def step(token, row):
        before = total(token)
        token = entangle(token, before)  # `add` below changes what `total` above reads
        return add(token, row), before

    token, before = jax.lax.scan(step, token, rows)
    return before, total(token)


rows = jnp.arange(12.0).reshape(4, 3)
before, after = sums(jnp.int32(7), rows)
assert before.tolist() == [0.0, 3.0, 15.0, 36.0], before
assert after == 66.0, after

try:
    jax.block_until_ready(total(jnp.int32(-1)))
except jax.errors.JaxRuntimeError as error:
    assert "accumulator: the token is -1, wanted 0 or more" in str(error), error
else:
    raise AssertionError("a negative token is an error")
print("accumulator: right")
