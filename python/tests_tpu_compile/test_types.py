"""Every dtype and shape, as payload and as witness: awaited whole, in place, without a warning."""

import math

import compiled
import jax
import jax.numpy as jnp
import pytest
from absent import array, compile_for_tpu, kernels, sizes

from entangle_jax import OrderingWarning, entangle

DTYPES = (
    "bool",
    "int4",
    "int8",
    "uint8",
    "int16",
    "int32",
    "uint32",
    "float8_e4m3fn",
    "bfloat16",
    "float16",
    "float32",
    "complex64",
)
# Not those of two bits, which XLA itself does not compute with on this chip.
RARE = ("uint4", "uint16", "float8_e5m2", "float8_e4m3", "float8_e4m3b11fnuz", "float4_e2m1fn")
SHAPES = ((), (1,), (3, 5, 40), (256, 512))


def computed(x):
    """Something of the same type that XLA has to compute."""
    if x.dtype == jnp.bool_:
        return ~x
    if x.dtype == jnp.complex64:
        return x * jnp.complex64(2 + 1j)
    return (x.astype(jnp.float32) * 3).astype(x.dtype)


def operands(hlo, call):
    (part,) = (part for name, part in compiled.parse(hlo).items() if name and call.name in part.instructions)
    return [part.instructions[name].shape for name in call.operands]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_of_payload_and_witness_goes_through_one_kernel(dtype, shape):
    payload, witness = array(*shape, dtype=dtype), array(*shape, dtype=dtype)
    hlo = compile_for_tpu(lambda x, w: computed(entangle(computed(x), computed(w))), payload, witness)
    (call,) = kernels(hlo)
    parts = 2 if dtype == "complex64" else 1
    assert sizes(call.shape) == [math.prod(shape)] * parts
    given = [size for shape in operands(hlo, call) for size in sizes(shape)]
    assert given == [math.prod(shape)] * 2 * parts
    for part in range(parts):
        assert f"{{{part if parts > 1 else ''}}}: ({part}, {{}})" in call.text, "not in place"


@pytest.mark.parametrize("role", ["payload", "witness"])
@pytest.mark.parametrize("dtype", RARE)
def test_rare_dtypes_compile_too(dtype, role):
    other, rare = array(16), array(3, 40, dtype=dtype)
    arguments = (rare, other) if role == "payload" else (other, rare)
    hlo = compile_for_tpu(lambda x, w: entangle(computed(x), computed(w)), *arguments)
    assert len(kernels(hlo)) == 1


@pytest.mark.parametrize("shape", [(), (3, 40)], ids=str)
@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_64_bits_are_awaited_by_numbers_and_stay_in_their_fusions(dtype, shape):
    """XLA takes such arrays apart on TPU, and does not look for them in kernels."""
    with jax.enable_x64(True):
        wide, other = array(*shape, dtype=dtype), array(16)
        for arguments in ((wide, other), (other, wide), (wide, wide)):
            hlo = compile_for_tpu(lambda x, w: entangle(x + 1, w + 1) + 1, *arguments)
            (call,) = kernels(hlo)
            assert call.shape.startswith("f32[16]" if arguments[0] is other else "s32[1]")


def test_random_keys():
    def program(seeds, w):
        tied = entangle(jax.random.wrap_key_data(seeds), w)
        assert str(jax.typeof(tied)) == "key<fry>[7]"
        return jax.random.bits(entangle(jax.random.key(1), tied)), jax.random.key_data(tied)

    hlo = compile_for_tpu(program, array(7, 2, dtype="uint32"), array(3))
    assert {call.shape[:8] for call in kernels(hlo)} == {"u32[7,2]", "u32[2]{0"}


def test_batched_arrays_keep_their_axes_and_weak_types_stay_weak():
    def program(x, w):
        weak = entangle(1.0, w)
        assert jax.typeof(weak).weak_type
        return jax.vmap(entangle, in_axes=(1, 0), out_axes=1)(x, w) * weak

    hlo = compile_for_tpu(program, array(3, 8), array(8))
    assert {call.shape[:8] for call in kernels(hlo)} == {"f32[3,8]", "f32[1]{0"}


def test_leaves_without_elements_do_no_harm():
    def program(x, empty, w):
        with pytest.warns(OrderingWarning, match="no elements"):
            return entangle((x, empty), w)

    assert len(kernels(compile_for_tpu(program, array(3), array(0, 5), array(2)))) == 1


@pytest.mark.parametrize("on_host", ["payload", "witness", "both"])
def test_arrays_in_the_memory_of_the_host_go_through_that_of_the_chip(on_host):
    def placed(role):
        host = on_host in (role, "both")
        return array(256, 512, memory_kind="pinned_host" if host else None)

    payload, witness = placed("payload"), placed("witness")
    hlo = compile_for_tpu(entangle, payload, witness, out_shardings=payload.sharding)
    assert len(kernels(hlo)) == 1
    assert ("S(5)" in hlo.split("->")[1].split("}}")[0]) == (on_host != "witness"), "not where it was"
