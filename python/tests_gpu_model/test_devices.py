"""Several devices: contexts, one handle for each device, one program over all of them."""

import jax
import meddling
import model
import numpy as np
import programs
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from launched import accesses, compile_in

from entangle_jax import entangle, testing

SEVERAL = [pytest.param(count, marks=pytest.mark.devices(count)) for count in (2, 4)]
several = pytest.mark.parametrize("count", SEVERAL)


def read_write_read(token):
    before = testing.read(token)
    token = entangle(token, before)
    token = entangle(token, testing.write(token, 7.0))
    return before, testing.read(token)


@several
def test_a_handle_on_each_device_is_in_order_there(count, mode):
    tokens = [jax.device_put(np.int32(i), device) for i, device in enumerate(jax.devices())]
    compiled = [compile_in(mode, read_write_read, token) for token in tokens]
    for _ in range(10):
        testing.reset()
        # All at once: a call in the context of another device is a violation.
        results = [program(token) for program, token in zip(compiled, tokens, strict=True)]
        for device, (before, after) in zip(jax.devices(), jax.block_until_ready(results), strict=True):
            assert (float(before), float(after)) == (0.0, 7.0)
            assert after.devices() == {device}
        jax.effects_barrier()
        for slot in range(count):
            mine = [access.op for access in testing.log() if access.slot == slot]
            assert mine == ["read", "write", "read"]


@several
def test_shard_map_runs_a_handle_of_its_own_on_each_device(count):
    mesh = jax.make_mesh((count,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def local(token):
        return tuple(value[None] for value in read_write_read(token[0]))

    tokens = jax.device_put(np.arange(count, dtype=np.int32), NamedSharding(mesh, P("d")))
    program = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    for mode in programs.SCHEDULING_MODES:
        with model.skipping_kernels():  # of ROCm: slices and reshapes
            compiled = program.lower(tokens).compile(programs.recorded(mode))
            for _ in range(5):
                testing.reset()
                jax.block_until_ready(compiled(tokens))
                jax.effects_barrier()
                log = testing.log()
                assert len(log) == 3 * count, accesses()
                for slot in {access.slot for access in log}:
                    ops = [access.op for access in log if access.slot == slot]
                    assert ops == ["read", "write", "read"] * (len(ops) // 3)


@several
def test_a_sharded_payload_is_entangled_where_it_lies(count):
    mesh = jax.make_mesh((count,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    split = NamedSharding(mesh, P("d"))
    x, y = (jax.device_put(np.arange(8, dtype=np.float32) * i, split) for i in (1, 2))
    compiled = jax.jit(entangle).lower(x, y).compile()
    assert not {"all-gather", "all-reduce", "collective-permute"} & set(compiled.as_text().replace("(", " ").split())
    tied = compiled(x, y)
    assert tied.sharding == split
    np.testing.assert_array_equal(tied, np.arange(8))


@pytest.mark.kernels  # HIP takes the device from the stream
def test_a_slot_is_used_in_the_context_of_its_stream_whatever_context_another_handler_leaves():
    meddling.register()

    def program(token):
        before = testing.read(meddling.away(token))
        token = entangle(token, before)
        written = testing.write(token, 7.0)
        token = entangle(token, written)
        return before, meddling.back(token)

    token = testing.slot(0)
    compiled = compile_in(None, program, token)
    for _ in range(3):
        testing.reset()
        assert float(jax.block_until_ready(compiled(token))[0]) == 0
        jax.effects_barrier()
        assert accesses() == "r0 w7"
