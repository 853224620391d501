"""The programs that are run on a GPU (`checks.py`), and compiled for GPUs that are not there (`tests_gpu_compile`)."""

import jax
import jax.numpy as jnp

from entangle_jax import testing

SCHEDULING_MODES = ("SERIALIZE", "CONCURRENT", "LHS", "CONCURRENT_REGIONS")
"""How XLA may order what it records into a graph (`--xla_gpu_command_buffer_scheduling_mode`)."""


def recorded(mode):
    """Compiler options: record all that can be recorded, in that way."""
    return {"xla_gpu_command_buffer_scheduling_mode": mode, "xla_gpu_graph_min_graph_size": 1}


product = jnp.matmul
"""What takes time in these programs. A model of ROCm has no library that multiplies matrices: there it is `jnp.multiply`."""


def read_write_read(tie, steps=6):
    """Two reads around a write, of which only the reads have anything else to wait for or to be waited for."""

    def program(token, x):
        a = b = x
        for _ in range(steps):
            a = jnp.sin(product(a, x))
        before = testing.read(token, a, label="before")
        token = tie(token, before)
        token = tie(token, testing.write(token, 1.0, label="write"))
        after = testing.read(token, label="after")
        b = b + after
        for _ in range(steps):
            b = jnp.sin(product(b, x))
        return before, after, b

    return program


def steps(tie, count=6):
    """As many times a product, a sine and a tie: each kernel is needed by the next one, so no two can become one."""

    def chain(x, signal):
        for _ in range(count):
            x = tie(jnp.sin(product(x, x)), signal)
        return x

    return chain


def loop(tie, iterations):
    """That chain in a loop."""

    def looped(x, signal):
        return jax.lax.fori_loop(0, iterations, lambda _, x: steps(tie)(x, signal), x)

    return looped


def nothing(payload, *witnesses):
    """No order at all."""
    del witnesses
    return payload


def barrier(payload, *witnesses):
    """What JAX has for it."""
    return jax.lax.optimization_barrier((payload, *witnesses))[0]


def plain(platform):
    """`entangle` with the handler that does not let itself be recorded: `plain(platform)(payload, *witnesses)`.

    The handler goes by a name of its own, which has no partitioner and no sharding rule. Everything else is the same.
    """
    from entangle_jax import _native

    handler, _ = _native.targets()[platform]["entangle"]
    jax.ffi.register_ffi_target("entangle_plain", handler, platform=platform)

    def tie(payload, *witnesses):
        result = jax.ShapeDtypeStruct(payload.shape, payload.dtype)
        return jax.ffi.ffi_call("entangle_plain", result, input_output_aliases={0: 0})(payload, *witnesses)

    return tie
