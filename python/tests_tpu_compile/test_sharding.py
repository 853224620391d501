"""Over several chips: each orders its own share, and nothing is gathered."""

import compiled
import jax
import jax.numpy as jnp
import pytest
from absent import array, compile_for_tpu, kernels, mesh_of, paths, read, sizes, write
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from entangle_jax import entangle

EXPLICIT = (AxisType.Explicit, AxisType.Explicit)


def program(x, w):
    return entangle(jnp.sin(x), jnp.cos(w)) * 2


def exchanged(hlo):
    """How many elements the arrays have that chips exchange."""
    moves = [each for each in compiled.instructions(hlo) if each.op.startswith(compiled.COLLECTIVES)]
    return [size for each in moves for size in sizes(each.shape)]


def assert_kernel_of(hlo, shape):
    (call,) = kernels(hlo)
    assert call.shape.startswith(shape), call.text


@pytest.mark.parametrize("check_vma", [True, False])
def test_in_shard_map_each_chip_waits_for_its_share(check_vma):
    mesh = mesh_of("x")
    local = jax.shard_map(program, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P("x"), check_vma=check_vma)
    hlo = compile_for_tpu(local, array(32, 128, mesh=mesh, spec="x"), array(64, mesh=mesh, spec="x"))
    assert_kernel_of(hlo, "f32[8,128]")
    assert compiled.collectives(hlo) == []


def test_in_shard_map_types_that_vary_are_kept():
    mesh = mesh_of("x", "y")

    def local(x, w):
        tied = entangle(x, w)
        assert jax.typeof(tied).mat.varying == {"x"}
        return entangle(w, x), jax.lax.psum(tied, "x")

    specs = {"in_specs": (P("x"), P("y")), "out_specs": (P("y"), P())}
    hlo = compile_for_tpu(
        jax.shard_map(local, mesh=mesh, **specs), array(32, mesh=mesh, spec="x"), array(64, mesh=mesh, spec="y")
    )
    assert {call.shape[:7] for call in kernels(hlo)} == {"f32[16]", "f32[32]"}


@pytest.mark.parametrize("shardy", [True, False])
@pytest.mark.parametrize("spec", [("x", "y"), (("x", "y"),), (None, "y")])
def test_with_the_sharding_in_the_type_each_chip_waits_for_its_share(spec, shardy):
    mesh = mesh_of("x", "y", types=EXPLICIT)
    with jax.set_mesh(mesh), compiled.partitioner(shardy=shardy):
        hlo = compile_for_tpu(program, array(32, 128, mesh=mesh, spec=spec), array(64, mesh=mesh, spec=("y",)))
    shape = {("x", "y"): "f32[16,64]", (("x", "y"),): "f32[8,128]", (None, "y"): "f32[32,64]"}[spec]
    assert_kernel_of(hlo, shape)
    assert compiled.collectives(hlo) == []


@pytest.mark.parametrize("shardy", [True, False])
@pytest.mark.parametrize("spec", [("x", "y"), (("x", "y"),), ()])
def test_where_xla_splits_the_program_all_chips_wait_for_every_share_by_a_number(spec, shardy):
    mesh = mesh_of("x", "y")
    arguments = array(32, 128, mesh=mesh, spec=spec), array(64, mesh=mesh, spec=("y",))
    with compiled.partitioner(shardy=shardy):
        hlo = compile_for_tpu(program, *arguments)
    (call,) = kernels(hlo)
    assert call.shape.startswith("s32[1]")
    assert set(compiled.collectives(hlo)) <= {"all-reduce"}
    assert exchanged(hlo) == [1]


def test_some_axes_manual_and_the_others_left_to_xla():
    mesh = mesh_of("x", "y")
    local = jax.shard_map(program, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
    hlo = compile_for_tpu(local, array(32, 128, mesh=mesh, spec=("x", "y")), array(64, mesh=mesh, spec="y"))
    (call,) = kernels(hlo)
    assert call.shape.startswith("s32[1]")
    assert set(compiled.collectives(hlo)) <= {"all-reduce"}
    assert exchanged(hlo) == [1]


def test_some_axes_manual_and_the_others_in_the_type():
    mesh = mesh_of("x", "y", types=EXPLICIT)
    with jax.set_mesh(mesh):
        local = jax.shard_map(program, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
        hlo = compile_for_tpu(local, array(32, 128, mesh=mesh, spec=("x", "y")), array(64, mesh=mesh, spec="y"))
    assert_kernel_of(hlo, "f32[16,64]")
    assert compiled.collectives(hlo) == []


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_call_of_the_host_is_awaited_by_all_chips(kind):
    """It is one chip that calls the host; the others wait for it by what that one sends them."""
    mesh = mesh_of("x", "y", types=(kind, kind))

    def program(token, x):
        before = read(token, "before")
        done = write(entangle(token, before), token, "write")
        return entangle(x * 2, done), read(entangle(token, done), "after")

    arguments = array(dtype="int32", mesh=mesh), array(32, 128, mesh=mesh, spec=("x", "y"))
    with jax.set_mesh(mesh):
        hlo = compile_for_tpu(program, *arguments)
    found = paths(hlo)
    assert "call_before" in found["call_write"]
    assert "call_write" in found["call_after"]
    assert set(exchanged(hlo)) == {1}


def test_shardings_that_stand_at_the_jit_alone():
    mesh = mesh_of("x", "y")
    shardings = tuple(array(1, mesh=mesh, spec=(axis,)).sharding for axis in ("x", "y"))
    shapes = jax.ShapeDtypeStruct((32, 128), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.float32)
    hlo = compile_for_tpu(jax.jit(program, in_shardings=shardings), *shapes)
    (call,) = kernels(hlo)
    assert call.shape.startswith("s32[1]")
    assert exchanged(hlo) == [1]
