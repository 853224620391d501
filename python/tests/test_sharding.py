"""Promise 4 on many devices: each leaf stays split as it is, and nothing is sent anywhere."""

import itertools

import compiled
import delays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from entangle_jax import entangle
from entangle_jax.testing import read, slot, write

SHARDY_AND_GSPMD = pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
PAYLOAD = [P("i"), P(None, "i"), P(), P("i", "j"), P(("i", "j")), P(None, ("i", "j"))]
WITNESS = [P("i"), P("j", "i"), P(), P(None, "j")]


def mesh_of(kind, axes=2):
    shape, names = ((2, 2), ("i", "j")) if axes == 2 else ((4,), ("i",))
    return jax.make_mesh(shape, names, axis_types=(kind,) * axes)


def place(x, mesh, spec):
    return jax.device_put(x, NamedSharding(mesh, spec))


def assert_local(function, *arguments, calls=1):
    """No communication, and the calls are made on what each device holds."""
    hlo = compiled.text(function, *arguments)
    assert compiled.collectives(hlo) == []
    assert len(compiled.native_calls(hlo)) == calls
    compiled.layouts_agree(hlo)
    return hlo


@SHARDY_AND_GSPMD
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("spec", PAYLOAD, ids=str)
def test_payload_and_witness_stay_split_as_they_are(spec, kind, shardy):
    mesh = mesh_of(kind)
    x, w = np.arange(64.0, dtype=np.float32).reshape(8, 8), np.ones((4, 8), np.float32)
    with compiled.partitioner(shardy), jax.set_mesh(mesh):
        payload = place(x, mesh, spec)
        witnesses = [place(w, mesh, each) for each in WITNESS]
        # One program for all witnesses: each is split in its own way.
        program = jax.jit(lambda p, *w: entangle(p * 2, *(each + 1 for each in w)) + 1)
        hlo = assert_local(program, payload, *witnesses)
        result = program(payload, *witnesses)
        np.testing.assert_array_equal(result, 2 * x + 1)
        assert result.sharding.is_equivalent_to(payload.sharding, 2)
        local = ",".join(map(str, payload.addressable_shards[0].data.shape))
        assert compiled.native_calls(hlo)[0].shape.startswith(f"f32[{local}]")
        if kind is AxisType.Explicit:
            assert jax.typeof(result).sharding.spec == jax.typeof(payload).sharding.spec
        # Eagerly.
        result = entangle(payload, *witnesses)
        np.testing.assert_array_equal(result, x)
        assert result.sharding.is_equivalent_to(payload.sharding, 2)


@SHARDY_AND_GSPMD
@pytest.mark.parametrize(("p", "w"), list(itertools.product([P("i"), P()], repeat=2)), ids=str)
def test_on_a_mesh_of_one_dimension(p, w, shardy):
    mesh = mesh_of(AxisType.Auto, axes=1)
    with compiled.partitioner(shardy):
        payload, witness = place(jnp.arange(8.0), mesh, p), place(jnp.ones((4, 3)), mesh, w)
        program = jax.jit(lambda p, w: entangle(p + 1, w * 2))
        assert_local(program, payload, witness)
        assert program(payload, witness).sharding.is_equivalent_to(payload.sharding, 1)


@SHARDY_AND_GSPMD
def test_leaves_are_split_each_in_its_own_way(shardy):
    mesh = mesh_of(AxisType.Auto)
    with compiled.partitioner(shardy):
        payload = {
            "a": place(jnp.ones((8, 8)), mesh, P("i", "j")),
            "b": place(jnp.ones((8,)), mesh, P("j")),
            "token": place(jnp.int32(3), mesh, P()),
            "key": place(jax.random.split(jax.random.key(0), 4), mesh, P("i")),
        }
        witness = place(jnp.ones((2, 2, 2)), mesh, P("j", None, "i"))
        program = jax.jit(lambda p, w: entangle(p, w * 2))
        assert_local(program, payload, witness)
        result = program(payload, witness)
        for name in payload:
            assert result[name].sharding.is_equivalent_to(payload[name].sharding, payload[name].ndim), name


@SHARDY_AND_GSPMD
def test_a_token_waits_for_a_sharded_witness_without_gathering_it(shardy):
    mesh = mesh_of(AxisType.Auto, axes=1)
    with compiled.partitioner(shardy):
        token, witness = place(jnp.int32(1), mesh, P()), place(jnp.zeros(65_536), mesh, P("i"))
        program = jax.jit(lambda t, w: entangle(t, w * 2) + 1)
        hlo = assert_local(program, token, witness)
        assert "f32[65536]" not in hlo
        assert_local(jax.jit(lambda t, w: entangle(t, w)), token, witness)


@SHARDY_AND_GSPMD
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_derivatives_and_batches_stay_split(kind, shardy):
    mesh = mesh_of(kind)
    with compiled.partitioner(shardy), jax.set_mesh(mesh):
        x, w = place(jnp.ones((8, 8)), mesh, P("i", "j")), place(jnp.ones((8, 8)), mesh, P("i"))
        assert_local(jax.jit(lambda x, w: jax.jvp(lambda x: entangle(x * x, w * 2), (x,), (x,))), x, w, calls=2)
        program = jax.jit(lambda x, w: jax.vjp(lambda x: entangle(x * x, w * 2), x)[1](x))
        assert compiled.collectives(compiled.text(program, x, w)) == []
        assert_local(jax.jit(jax.vmap(lambda x, w: entangle(x * x, w * 2), in_axes=(1, None), out_axes=1)), x, w)


def test_two_ordered_psums_stay_two_all_reduces():
    mesh = mesh_of(AxisType.Auto, axes=1)

    def program(tie):
        def each(x, y):
            first = jax.lax.psum(x, "i")
            return first, jax.lax.psum(tie(y, first), "i")

        return jax.jit(jax.shard_map(each, mesh=mesh, in_specs=P("i"), out_specs=P()))

    x, y = place(jnp.arange(8.0), mesh, P("i")), place(jnp.ones(8), mesh, P("i"))
    ops = [
        each
        for each in compiled.instructions(compiled.text(program(entangle), x, y))
        if each.op.startswith("all-reduce")
    ]
    assert len([each for each in ops if not each.op.endswith("-done")]) == 2
    got, wanted = program(entangle)(x, y), program(lambda p, *_: p)(x, y)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


def test_partial_sums_stay_partial_and_are_summed_once():
    """A value that is still to be summed over an axis: on each device it is another, and so it stays."""
    mesh = mesh_of(AxisType.Explicit, axes=1)
    with jax.set_mesh(mesh):
        x = jax.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), P("i"))

        @jax.jit
        def program(x, w):
            partial = entangle(jnp.einsum("ij,ik->jk", x, x, out_sharding=P(unreduced={"i"})), w)
            assert jax.typeof(partial).sharding.spec.unreduced == {"i"}
            return jax.sharding.reshard(partial, P())

        np.testing.assert_array_equal(program(x, jnp.ones(3)), np.asarray(x).T @ np.asarray(x))
        ops = compiled.collectives(compiled.text(program, x, jnp.ones(3)))
        assert [op.removesuffix("-start") for op in ops if not op.endswith("-done")] == ["all-reduce"]


@SHARDY_AND_GSPMD
def test_leaves_that_nobody_has_split_yet(shardy):
    """Made in the program, beside one that is split: GSPMD asks about them before it knows anything of them."""
    mesh = mesh_of(AxisType.Auto, axes=1)
    with compiled.partitioner(shardy):
        x = place(jnp.ones((8, 3)), mesh, P("i"))
        for payload in (
            lambda x: (jnp.zeros((4, 4)), x * 2, jnp.arange(4)),
            lambda x: (x, jnp.zeros(4)),
            lambda x: jnp.zeros(4),
        ):
            result = jax.jit(lambda x, payload=payload: entangle(payload(x), x + 1))(x)
            jax.tree.map(np.testing.assert_array_equal, result, payload(x))


# shard_map: over what the result varies is what the payload varies over.
@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize(
    ("p", "w"),
    [(P("i"), P("i")), (P(), P("i")), (P("i"), P()), (P(), P()), (P("j"), P("i")), (P("i", "j"), P())],
    ids=str,
)
def test_shard_map_varies_as_the_payload_does(p, w, check):
    mesh = mesh_of(AxisType.Auto)
    x = jnp.arange(16.0).reshape(4, 4)
    varying = []

    def each(x, w):
        result = entangle(x, w)
        varying.append((jax.typeof(result).mat.varying, jax.typeof(x).mat.varying))
        return result + 1

    program = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=(p, w), out_specs=p, check_vma=check))
    np.testing.assert_array_equal(program(x, jnp.ones((4, 4))), x + 1)
    assert all(got == wanted for got, wanted in varying)
    assert compiled.collectives(compiled.text(program, place(x, mesh, p), place(jnp.ones((4, 4)), mesh, w))) == []


def test_a_shared_leaf_of_a_tree_in_shard_map_keeps_its_own_axes():
    mesh = mesh_of(AxisType.Auto)

    def each(x, y):
        a, b = entangle((x, y), x)
        return a, b

    # If `b` were said to vary over "i" as well, this would be an error.
    program = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=(P("i"), P()), out_specs=(P("i"), P())))
    np.testing.assert_array_equal(program(jnp.arange(4.0), jnp.ones(3))[1], jnp.ones(3))


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
def test_derivatives_in_and_of_shard_map(check):
    mesh = mesh_of(AxisType.Auto, axes=1)

    def f(tie):
        def each(x, s):
            y = tie(jnp.sin(x) * s, x * 2)
            s = tie(s, y)  # invariant, and waits for something varying
            return jax.lax.psum((y * s).sum(), "i")

        return jax.shard_map(each, mesh=mesh, in_specs=(P("i"), P()), out_specs=P(), check_vma=check)

    x, s = jnp.arange(8.0), jnp.float32(2)
    for of in (jax.grad, jax.jacfwd):
        got, wanted = (jax.jit(of(f(tie), argnums=(0, 1)))(x, s) for tie in (entangle, lambda p, *_: p))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, wanted)


def test_one_axis_manual_and_the_other_automatic():
    mesh = mesh_of(AxisType.Auto)
    x, w = place(jnp.arange(64.0).reshape(8, 8), mesh, P("i", "j")), place(jnp.ones((8, 8)), mesh, P("j"))
    program = jax.jit(
        jax.shard_map(
            lambda x, w: entangle(x * 2, w + 1), mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"), axis_names={"i"}
        )
    )
    assert_local(program, x, w)
    np.testing.assert_array_equal(program(x, w), 2 * x)


@pytest.mark.filterwarnings("ignore:.*pmap.*:DeprecationWarning")
def test_pmap():
    x = jnp.arange(8.0).reshape(4, 2)
    result = jax.pmap(lambda x, w: entangle(x + 1, w), in_axes=(0, None))(x, jnp.ones(3))
    np.testing.assert_array_equal(result, x + 1)
    result = jax.pmap(lambda x: entangle(x, jax.lax.psum(x, "d")), axis_name="d")(x)
    np.testing.assert_array_equal(result, x)


def test_native_calls_on_each_device_are_in_order(slots):
    mesh = mesh_of(AxisType.Auto, axes=1)

    def each(tokens):
        token = tokens[0]
        before = read(token, label="a")
        token = write(entangle(token, before), 5.0, label="w")
        return jnp.stack([before, read(token, label="b")])[None]

    program = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
    result = program(slot(0) + jnp.arange(4, dtype=jnp.int32))
    np.testing.assert_array_equal(result, [[0, 5]] * 4)
    for i in range(4):
        assert [access.label for access in slots.log() if access.slot == i] == ["a", "w", "b"]


@SHARDY_AND_GSPMD
def test_a_constraint_on_the_result_reaches_the_payload(shardy):
    """As it does through the identity: what is made in the program is made where it is wanted."""
    mesh = mesh_of(AxisType.Auto)
    with compiled.partitioner(shardy):
        wanted = NamedSharding(mesh, P("i", "j"))
        program = jax.jit(lambda w: entangle(jnp.zeros((8, 8)) + w, w), out_shardings=wanted)
        hlo = assert_local(program, place(jnp.float32(1), mesh, P()))
        assert compiled.native_calls(hlo)[0].shape.startswith("f32[4,4]")


@SHARDY_AND_GSPMD
def test_donated_shards_are_not_copied(shardy):
    mesh = mesh_of(AxisType.Auto, axes=1)
    with compiled.partitioner(shardy):
        x = place(jnp.zeros((512, 512)), mesh, P("i"))
        program = jax.jit(lambda x, w: entangle(x, w) + w, donate_argnums=0, out_shardings=x.sharding)
        hlo = assert_local(program, x, place(jnp.float32(1), mesh, P()))
        assert compiled.copies(hlo, "f32[128,512]") == []


@SHARDY_AND_GSPMD
def test_dimensions_that_do_not_divide_and_dimensions_of_zero(shardy):
    mesh = mesh_of(AxisType.Auto, axes=1)
    with compiled.partitioner(shardy):
        constrain = lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("i")))
        program = jax.jit(lambda x, w: constrain(entangle(constrain(x * 2), constrain(w + 1))))
        x = jnp.arange(7.0)
        np.testing.assert_array_equal(program(x, jnp.ones((5, 2))), 2 * x)
        batched = jax.jit(jax.vmap(lambda x, w: entangle(x, w), in_axes=(None, 0), out_axes=None))
        np.testing.assert_array_equal(batched(place(jnp.arange(8.0), mesh, P("i")), jnp.ones((0, 2))), jnp.arange(8.0))


@SHARDY_AND_GSPMD
@pytest.mark.parametrize("dtype", ["bool", "int4", "bfloat16", "float8_e4m3fn", "complex64", "uint8"])
def test_every_kind_of_dtype_is_split(dtype, shardy):
    mesh = mesh_of(AxisType.Auto, axes=1)
    with compiled.partitioner(shardy):
        x = place(jnp.ones((8, 2), dtype), mesh, P("i"))
        program = jax.jit(lambda x, w: entangle(x, w * 2))
        assert_local(program, x, place(jnp.ones(4), mesh, P("i")))
        assert program(x, jnp.ones(4)).dtype == dtype


@pytest.mark.parametrize("together", [True, False], ids=["all devices", "its own share"])
def test_a_device_waits_for_the_others_only_through_a_witness_that_brings_them_together(together, slots):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    everywhere, split = P(), P("i")

    def reading(token, x):  # one read a device, late on the last one
        rounds = jnp.where(jax.lax.axis_index("i") == 3, 60, 0)
        x = jax.lax.fori_loop(0, rounds, lambda _, x: jnp.sort(x[::-1] * 1.001 + 1), x)
        return slots.read(token, x)[None]

    def program(token, x):
        seen = jax.shard_map(reading, mesh=mesh, in_specs=(everywhere, split), out_specs=split)(token, x)
        token = entangle(token, seen.sum() if together else seen)
        writing = jax.shard_map(
            lambda token: slots.write(jax.lax.pcast(token, ("i",), to="varying"), 9.0)[None],
            mesh=mesh, in_specs=everywhere, out_specs=split,
        )  # fmt: skip
        return seen, writing(token)

    token = jax.device_put(slots.slot(0), NamedSharding(mesh, everywhere))
    x = jax.device_put(jnp.arange(delays.at_most(80_000) * 1.0), NamedSharding(mesh, split))
    executable = jax.jit(program).lower(token, x).compile()
    assert compiled.collectives(executable.as_text()) == (["all-reduce"] if together else [])
    runs = []
    for _ in range(5):
        slots.reset()
        seen, _ = jax.block_until_ready(executable(token, x))
        runs.append(seen.tolist() == [0] * 4)
    assert all(runs) if together else not all(runs), runs
