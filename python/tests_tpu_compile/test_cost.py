"""What entangle adds to a program: a kernel, and no copy of what is donated or computed."""

import compiled
import jax
import jax.numpy as jnp
import pytest
from absent import array, compile_for_tpu, kernels
from jax.experimental.layout import Format, Layout

from entangle_jax import entangle

LARGE = (1024, 1024)


def moves(hlo):
    """Copies of arrays as large as the payload here, but for those that are part of a computation (a fusion)."""
    fused = {each.attribute("calls") for each in compiled.instructions(hlo, "fusion")}
    parts = [part for name, part in compiled.parse(hlo).items() if name not in {None, *fused}]
    found = [each for part in parts for each in part.instructions.values() if each.op == "copy"]
    return [each.text for each in found if "[1024,1024]" in each.shape]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "bool", "complex64"])
def test_a_computed_payload_is_not_copied(dtype):
    def program(x, w):
        made = ~x if dtype == "bool" else x * jnp.asarray(3, dtype)
        tied = entangle(made, w)
        return ~tied if dtype == "bool" else tied * jnp.asarray(3, dtype)

    hlo = compile_for_tpu(program, array(*LARGE, dtype=dtype), array(*LARGE))
    assert len(kernels(hlo)) == 1
    assert moves(hlo) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float16"])
def test_a_donated_payload_is_not_copied(dtype):
    hlo = compile_for_tpu(entangle, array(*LARGE, dtype=dtype), array(*LARGE, dtype=dtype), donate_argnums=0)
    assert moves(hlo) == []


def test_a_payload_that_is_still_needed_is_copied_once():
    # What the tests above would see.
    assert len(moves(compile_for_tpu(entangle, array(*LARGE), array()))) == 1


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_payload_and_witness_are_taken_in_the_layout_that_they_have(order):
    """A kernel that wants row-major arrays gets copies of all others."""
    argument = array(*LARGE)
    format_ = Format(Layout(order), argument.sharding)
    compiled_ = jax.jit(entangle, in_shardings=(format_, format_), out_shardings=format_, donate_argnums=0)
    hlo = compile_for_tpu(compiled_, argument, argument)
    (call,) = kernels(hlo)
    assert f"{{{order[1]},{order[0]}:" in call.shape
    assert moves(hlo) == []


def test_narrow_arrays_keep_the_layout_that_the_chip_prefers():
    hlo = compile_for_tpu(lambda x, w: entangle(jnp.sin(x), w) + 1, array(1000, 3), array(1000, 3))
    assert [each.text for each in compiled.instructions(hlo, "copy")] == []


def test_ten_leaves_and_ten_witnesses_are_one_kernel():
    leaves = [array(16, dtype=dtype) for dtype in ("float32", "int8", "float16", "bool", "complex64")] * 2
    hlo = compile_for_tpu(
        lambda xs, ws: entangle([jnp.logical_not(x) if x.dtype == bool else x * x for x in xs], ws), leaves, leaves
    )
    assert len(kernels(hlo)) == 1
