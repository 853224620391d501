"""Programs over four devices in which a witness or a payload leaf lives on one of them, as results of callbacks do.

Each check raises if something is out of order or is sent about. They are run by `test_one_device.py`, and by
`test_mutations.py` on the package with one of its fixes taken out.
"""

import functools
import time

import compiled
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from entangle_jax import Handle, entangle, testing

INT = jax.ShapeDtypeStruct((), jnp.int32)
SETTINGS = [(shardy, kind) for shardy in (True, False) for kind in (AxisType.Auto, AxisType.Explicit)]


def in_each_setting(check):
    """Run the check with Shardy and GSPMD, on an automatic and an explicit mesh."""

    @functools.wraps(check)
    def checks():
        for shardy, kind in SETTINGS:
            if not shardy and kind is AxisType.Explicit:
                continue  # GSPMD knows no explicit meshes
            mesh = jax.make_mesh((4,), ("i",), axis_types=(kind,))
            with compiled.partitioner(shardy), jax.set_mesh(mesh):
                check(mesh)

    return checks


def split(x, mesh):
    return jax.device_put(x, NamedSharding(mesh, P("i")))


def write_on_each(token, x, mesh):
    """A native write on each device, to the slot that its share of the token names."""
    write = jax.shard_map(
        lambda token, x: testing.write(token[0], x[0])[None], mesh=mesh, in_specs=(P("i"), P("i")), out_specs=P("i")
    )
    return write(token, x)


def inputs(mesh):
    return split(jnp.arange(4, dtype=jnp.int32), mesh), split(jnp.arange(4.0), mesh)


def assert_witnesses_are_broadcast(hlo):
    """By the data path: of what comes from a callback, each call is given what an all-reduce made for all devices."""
    for part in compiled.parse(hlo).values():
        for call in part.instructions.values():
            if call.op != "custom-call" or 'custom_call_target="entangle"' not in call.text:
                continue
            pending, seen = list(call.operands), set()
            while pending:
                name = pending.pop()
                made = part.instructions[name]
                assert made.op != "conditional", f"{call.name} waits for a callback on one device alone\n{hlo}"
                if name not in seen and not made.op.startswith("all-reduce"):
                    pending += made.operands
                seen.add(name)


def assert_each_run_is(wanted, program, *arguments, seen, runs=20):
    for _ in range(runs):
        seen.clear()
        testing.reset()
        jax.block_until_ready(program(*arguments))
        assert seen == wanted, f"{seen}, wanted {wanted}"


@in_each_setting
def writes_of_other_devices_overtake_a_callback(mesh):
    seen = []

    def on_host(_):
        time.sleep(0.02)
        seen.append(len(testing.log()))
        return np.int32(0)

    for callback in (io_callback, jax.pure_callback):

        def program(token, x, callback=callback):
            return write_on_each(entangle(token, callback(on_host, INT, x.sum())), x, mesh)

        arguments = inputs(mesh)
        executable = jax.jit(program).lower(*arguments).compile()
        assert_witnesses_are_broadcast(executable.as_text())
        assert_each_run_is([0], executable, *arguments, seen=seen)


@in_each_setting
def a_write_through_a_handle_overtakes_a_callback(mesh):
    seen = []

    def on_host(_):
        time.sleep(0.02)
        seen.append(len(testing.log()))
        return np.int32(0)

    def program(token, x):
        handle = Handle(token)
        # In a jitted function of its own, as callbacks of libraries are.
        read = jax.jit(lambda token: io_callback(on_host, INT, x.sum() + token.sum()))
        _, handle = handle.read(read)
        return handle.write(lambda token: write_on_each(token, x, mesh))[0]

    arguments = inputs(mesh)
    executable = jax.jit(program).lower(*arguments).compile()
    assert_witnesses_are_broadcast(executable.as_text())
    assert_each_run_is([0], executable, *arguments, seen=seen)


@in_each_setting
def callbacks_on_two_devices_run_in_another_order(mesh):
    seen = []

    def call(name, device, after):
        def on_host(_):
            time.sleep(after)
            seen.append(name)
            return np.int32(0)

        where = SingleDeviceSharding(jax.devices()[device])
        return lambda token: io_callback(on_host, INT, token.sum(), sharding=where)

    def program(token):
        _, handle = Handle(token).write(call("first", 0, 0.02))
        _, handle = handle.write(call("second", 1, 0.01))
        _, handle = handle.write(call("third", 0, 0))
        return handle.wait()

    token = jax.device_put(jnp.int32(0), NamedSharding(mesh, P()))
    executable = jax.jit(program).lower(token).compile()
    assert_witnesses_are_broadcast(executable.as_text())
    assert_each_run_is(["first", "second", "third"], executable, token, seen=seen)


@in_each_setting
def a_witness_on_one_device_gathers_the_payload(mesh):
    x = split(jnp.arange(8.0), mesh)

    def program(x):
        return entangle(x, io_callback(lambda _: np.int32(0), INT, x.sum())) * 2

    executable = jax.jit(program).lower(x).compile()
    hlo = executable.as_text()
    assert compiled.collectives(hlo) == ["all-reduce"] * 2, compiled.collectives(hlo)
    assert len(compiled.native_calls(hlo)) == 1
    result = executable(x)
    assert result.sharding.is_equivalent_to(x.sharding, 1), result.sharding
    np.testing.assert_array_equal(result, 2 * x)


@in_each_setting
def leaves_do_not_wait_for_a_leaf_on_one_device(mesh):
    """Nor does a leaf on one device make XLA gather the leaves beside it."""
    seen = []

    def on_host(_):
        time.sleep(0.02)
        seen.append(len(testing.log()))
        return np.int32(7)

    def program(token, x):
        made, token = entangle((io_callback(on_host, INT, x.sum()), token), x)
        return made, write_on_each(token, x, mesh)

    arguments = inputs(mesh)
    executable = jax.jit(program).lower(*arguments).compile()
    hlo = executable.as_text()
    assert_witnesses_are_broadcast(hlo)
    assert "all-gather" not in compiled.collectives(hlo)
    assert_each_run_is([0], executable, *arguments, seen=seen)
    assert executable(*arguments)[0] == 7

    def alone(x):
        made, y = entangle((io_callback(on_host, INT, x.sum()), x + 1), x.sum())
        return made, y

    x = split(jnp.arange(8.0), mesh)
    executable = jax.jit(alone).lower(x).compile()
    assert "all-gather" not in compiled.collectives(executable.as_text())
    assert_witnesses_are_broadcast(executable.as_text())
    assert executable(x)[1].sharding.is_equivalent_to(x.sharding, 1)


@in_each_setting
def a_payload_on_one_device_does_not_wait_for_split_witnesses(mesh):
    x = split(jnp.arange(8.0), mesh)

    def program(x):
        return entangle(io_callback(lambda _: np.int32(5), INT, x.sum()), x * 2)

    executable = jax.jit(program).lower(x).compile()
    hlo = executable.as_text()
    assert_witnesses_are_broadcast(hlo)
    assert "all-gather" not in compiled.collectives(hlo)
    assert executable(x) == 5


CHECKS = [
    writes_of_other_devices_overtake_a_callback,
    a_write_through_a_handle_overtakes_a_callback,
    callbacks_on_two_devices_run_in_another_order,
    a_witness_on_one_device_gathers_the_payload,
    leaves_do_not_wait_for_a_leaf_on_one_device,
    a_payload_on_one_device_does_not_wait_for_split_witnesses,
]
