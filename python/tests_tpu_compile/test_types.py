"""Every dtype and shape, as payload and as witness: awaited whole, in place, without a warning."""

import math

import compiled
import jax
import jax.numpy as jnp
import pytest
from absent import array, compile_for_tpu, kernels, sizes

from entangle_jax import entangle

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


