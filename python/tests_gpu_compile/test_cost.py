import re

import jax
import jax.numpy as jnp
import pytest
from absent import compile_for, devices
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec
from programs import nothing

from entangle_jax import audit, entangle

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "collective-broadcast", "reduce-scatter")


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def moves(compiled):
    """Operations that move data without computing anything."""
    operations = compiled.operations()
    return {name: operations[name] for name in ("copy", "copy-start", "transpose")}


def assert_layouts_agree(compiled):
    """Each result has the memory of its operand, so the two must have one layout."""
    for call in compiled.native_calls():
        result, operand = re.search(r" = (\S+) custom-call\((%[\w.\-]+)", call).groups()
        assert result == compiled.shape_of(operand)


def convolutions(tie):
    """Half precision on a GPU wants the channels last, whatever the order of the dimensions in the program is."""

    def chain(x, w, signal):
        for _ in range(3):
            x = tie(jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")), signal, x[0, 0, 0, 0])
        return x

    half = jnp.float16
    return chain, array(8, 64, 32, 32, dtype=half), array(64, 64, 3, 3, dtype=half), array()


def dots(tie):
    """Transposes around each call, which XLA does by layout alone if it may."""

    def chain(x, w, signal):
        for _ in range(3):
            y = tie(jnp.swapaxes(jnp.sin(x @ w), 1, 2), signal, x[0, 0, 0])
            x = jnp.swapaxes(y, 1, 2)
        return x

    half = jnp.float16
    return chain, array(4, 128, 64, dtype=half), array(4, 64, 64, dtype=half), array()


def test_a_chain_of_layouts_gets_no_transpose_and_no_copy(gpu, plain):
    # A convolution asks the device which algorithm to take; without one, only the CUDA plugin has a default.
    build = convolutions if gpu == "cuda" else dots
    without, ours, constrained = (compile_for(gpu, *build(tie)) for tie in (nothing, entangle, plain))
    assert len(ours.native_calls()) == 3
    assert moves(ours) == moves(without)
    assert_layouts_agree(ours)
    assert sum(moves(constrained).values()) > sum(moves(without).values()), "row-major layouts would have been as good"


PAYLOAD = array(512, 512)


def copies(compiled):
    """Copies of anything as large as the payload, whatever they belong to."""
    return re.findall(r"f32\[512,512\]\S* copy", compiled.text)


def donated(x, w):
    return entangle(x, jnp.sum(w))


def intermediate(x, w):
    return jnp.sin(entangle(jnp.cos(x), jnp.sum(w), w))


def many_leaves(xs, w):
    return [x + 1 for x in entangle([x * 2 for x in xs], w)]


def updated_in_place(x, w):
    before = x[0, 0]
    x = entangle(x, before, w)
    return before, x.at[0, 0].add(1)


def in_a_loop(x, w):
    return jax.lax.fori_loop(0, 5, lambda _, x: entangle(jnp.sin(x), w, x[0, 0]), x)


@pytest.mark.parametrize("function", [donated, intermediate, many_leaves, updated_in_place, in_a_loop])
def test_a_payload_that_is_donated_or_computed_is_not_copied(gpu, function):
    arguments = ([PAYLOAD] * 3 if function is many_leaves else PAYLOAD, PAYLOAD)
    compiled = compile_for(gpu, function, *arguments, donate_argnums=0)
    (call,) = audit(compiled.stage).entangles
    assert call.payload_bytes == call.leaves * 512 * 512 * 4
    assert call.copies == ()
    assert not copies(compiled), compiled.text


def test_a_donated_payload_with_a_layout_of_its_own_is_not_copied(gpu):
    mesh = jax.sharding.Mesh(devices(gpu), ("only",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    turned = Format(Layout((1, 0)), everywhere)
    arguments = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere) for x in (PAYLOAD, array())]
    compiled = compile_for(
        gpu, entangle, *arguments, mesh=mesh, donate_argnums=0, in_shardings=(turned, everywhere), out_shardings=turned
    )
    (call,) = compiled.native_calls()
    assert " = f32[512,512]{0,1} custom-call(" in call
    assert not copies(compiled), compiled.text


def kept(x, w):
    return entangle(x, jnp.sum(w))


def test_a_payload_that_is_still_needed_is_copied_once(gpu):
    # What the test above would see if there were a copy to see.
    compiled = compile_for(gpu, kept, PAYLOAD, PAYLOAD)
    (call,) = audit(compiled.stage).entangles
    assert [copy.why for copy in call.copies] == ["argument not donated"]
    assert len(copies(compiled)) == 1, compiled.text


def test_a_sharded_payload_stays_where_it_is(gpu, plain):
    mesh = jax.sharding.Mesh(devices(gpu, 4), ("x",))
    arguments = [
        jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("x"))),
        jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec())),
    ]

    def local(tie):
        return compile_for(gpu, lambda x, signal: tie(x * 2, signal) + 1, *arguments, mesh=mesh)

    def collectives(compiled):
        return [name for name in compiled.operations() if name.startswith(COLLECTIVES)]

    ours = local(entangle)
    (call,) = ours.native_calls()
    assert " = f32[16,128]{1,0} custom-call(" in call
    assert collectives(ours) == []
    assert collectives(local(plain)) != [], "no sharding rule would have been as good"


def test_a_witness_that_is_sharded_over_four_devices_is_not_gathered(gpu):
    mesh = jax.sharding.Mesh(devices(gpu, 4), ("x",))
    token = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    witness = jax.ShapeDtypeStruct((65_536,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("x")))
    compiled = compile_for(gpu, lambda token, x: entangle(token, jnp.sin(x)), token, witness, mesh=mesh)
    assert len(compiled.native_calls()) == 1
    assert not [name for name in compiled.operations() if name.startswith(COLLECTIVES)]
