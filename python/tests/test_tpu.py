"""What stands for the call on TPU: lowered on any machine, and evaluated with a kernel that does what an empty one does.

`tests_tpu_compile` has what the compiler for TPU makes of it.
"""

import functools
import re
import warnings

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from entangle_jax import OrderingWarning, _tpu, entangle, testing

mlir.register_lowering(_tpu._kernel_p, lambda ctx, *operands, n: operands[:n], platform="cpu")

KERNEL = re.compile(r"stablehlo\.custom_call @tpu_custom_call\(([^)]*)\).*: \((.*)\) -> (.*) loc")


def lowered(function, *arguments):
    """The StableHLO of a program for TPU. A warning is an error."""
    function = function if hasattr(function, "trace") else jax.jit(function)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function.trace(*arguments).lower(lowering_platforms=("tpu",)).as_text(debug_info=True)


def kernels(text):
    """Of each kernel the types of its operands and of its results."""
    return [(operands.split(", "), results.strip("()").split(", ")) for _, operands, results in KERNEL.findall(text)]


def bits(x):
    return np.asarray(x).view(np.uint8) if np.ndim(x) else np.asarray(x)[None].view(np.uint8)


FLOATS = [-0.0, np.nan, 1.5]
COMPLEX = [complex(-0.0, np.nan), complex(np.inf, -0.0), 1 + 2j]
SPECIAL = {
    "bool": [True, False, True],
    "int4": [-8, 0, 7],
    "uint4": [0, 1, 15],
    "int8": [-128, 0, 127],
    "uint8": [0, 1, 255],
    "int16": [-(2**15), 0, 2**15 - 1],
    "int32": [-(2**31), 0, 2**31 - 1],
    "uint32": [0, 1, 2**32 - 1],
    "int64": [-(2**63), 0, 2**63 - 1],
    "uint64": [0, 1, 2**64 - 1],
    **{f"float8_{kind}": FLOATS for kind in ("e4m3fn", "e5m2", "e4m3b11fnuz")},
    **dict.fromkeys(("bfloat16", "float16", "float32", "float64"), FLOATS),
    **dict.fromkeys(("complex64", "complex128"), COMPLEX),
}


@pytest.mark.parametrize("shape", [(3,), (), (3, 1)], ids=str)
@pytest.mark.parametrize("dtype", SPECIAL)
def test_every_value_comes_back_bit_by_bit(dtype, shape):
    with jax.enable_x64(True):
        values = np.array(SPECIAL[dtype], np.uint64 if dtype == "uint64" else None).astype(jnp.dtype(dtype))
        x = jnp.asarray(values[1] if shape == () else values.reshape(shape))
        others = jnp.arange(4.0), jnp.bool_(True), jax.random.key(3)
        for n, arrays in ((1, (x, *others)), (2, (x, *others)), (4, (*others, x)), (2, (x, x))):
            results = jax.jit(functools.partial(_tpu._tie, _tpu._LOCAL, n))(*arrays)
            assert len(results) == n
            for result, array in zip(results, arrays, strict=False):
                assert jax.typeof(result) == jax.typeof(array)
                if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
                    result, array = jax.random.key_data(result), jax.random.key_data(array)
                np.testing.assert_array_equal(bits(result), bits(array))


@pytest.mark.parametrize("dtype", SPECIAL)
def test_the_numbers_of_an_array_depend_on_every_element(dtype):
    with jax.enable_x64(True):
        x = jnp.zeros((2, 3), dtype)
        one = jnp.ones((), dtype) if dtype != "complex64" else jnp.complex64(1j)
        before = jax.jit(_tpu._numbers)(x)
        assert before
        for place in np.ndindex(2, 3):
            after = jax.jit(_tpu._numbers)(x.at[place].set(one))
            assert any(a != b for a, b in zip(before, after, strict=True)), place


def test_numbers_depend_on_all_64_bits():
    with jax.enable_x64(True):
        for a, b in ((2**40, 2**40 + 1), (2**40, 2**41), (1.0, 1.0 + 1e-12)):
            first, second = (_tpu._numbers(jnp.asarray([x])) for x in (a, b))
            assert any(x != y for x, y in zip(first, second, strict=True)), (a, b)


def test_one_kernel_has_all_leaves_in_place_and_says_nothing_of_layouts():
    text = lowered(
        lambda p, w: entangle(p, w, p["a"]), {"a": jnp.ones((3, 5)), "b": jnp.float16(1)}, [jnp.ones(7), jnp.int32(2)]
    )
    ((operands, results),) = kernels(text)
    assert operands == ["tensor<3x5xf32>", "tensor<1xui16>", "tensor<7xf32>", "tensor<1xi32>"]
    assert results == operands[:2]
    assert text.count("stablehlo.output_operand_alias<") == 2
    assert "operand_layouts" not in text
    assert "result_layouts" not in text
    assert "optimization_barrier" not in text


def test_calls_with_nothing_to_wait_for_are_no_kernels():
    def program(x):
        value, derivative = jax.linearize(jax.checkpoint(lambda x: entangle(x, x * 2)), x)
        return value, derivative(x)

    assert len(kernels(lowered(program, jnp.ones(3)))) == 1  # of the value; its derivative holds no witness


def test_a_shape_that_is_not_known_yet_is_awaited_by_a_number():
    n, m = jax.export.symbolic_shape("n, m")
    shapes = jax.ShapeDtypeStruct((n, 3), jnp.float16), jax.ShapeDtypeStruct((m,), jnp.bool_)
    exported = jax.export.export(jax.jit(lambda x, w: entangle(x, w)), platforms=("tpu",))(*shapes)
    ((operands, results),) = kernels(exported.mlir_module() + " loc")
    assert results == ["tensor<1xi32>"]
    assert operands == ["tensor<1xi32>", "tensor<1xi32>"]


def test_leaves_without_elements_stay_as_they_are():
    with pytest.warns(OrderingWarning, match="no elements"):
        jitted = jax.jit(lambda x, w: entangle(x, w)).trace([jnp.ones(3), jnp.ones((0, 2))], jnp.ones(0)).lower
    text = jitted(lowering_platforms=("tpu",)).as_text(debug_info=True)
    ((operands, _),) = kernels(text)
    assert operands == ["tensor<3xf32>"]


def test_arrays_in_host_memory_go_through_that_of_the_device():
    host = NamedSharding(jax.make_mesh((1,), ("i",)), P(), memory_kind="pinned_host")
    x = jax.ShapeDtypeStruct((3, 5), jnp.float32, sharding=host)
    text = lowered(lambda x, w: entangle(x, w), x, jax.ShapeDtypeStruct((7,), jnp.int8, sharding=host))
    ((operands, _),) = kernels(text)
    assert operands == ["tensor<3x5xf32>", "tensor<7xi8>"]
    assert text.count('_xla_buffer_placement = "device"') == 2
    assert '_xla_buffer_placement = "pinned_host"' in text


def test_xla_tokens_cannot_be_ordered_there_and_that_is_said():
    def program(x):
        token, y = entangle((jax.lax.create_token(0.0), x), x + 1)
        return entangle(entangle(y, token, x), token)

    with pytest.warns(OrderingWarning, match="XLA token cannot be ordered on TPU"):
        text = jax.jit(program).trace(1.0).lower(lowering_platforms=("tpu",)).as_text(debug_info=True)
    assert [len(operands) for operands, _ in kernels(text)] == [2, 2]
    with pytest.warns(OrderingWarning, match="XLA token cannot be ordered on TPU"):
        jax.jit(lambda x: entangle(jax.lax.create_token(0.0), x)).trace(1.0).lower(lowering_platforms=("tpu",))


def arguments(kind, *specs):
    mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(kind, kind))
    shapes = jnp.ones((8, 6)), jnp.ones(4)
    return mesh, [jax.device_put(x, NamedSharding(mesh, P(*spec))) for x, spec in zip(shapes, specs, strict=True)]


def test_with_the_sharding_in_the_types_each_device_has_a_kernel_for_its_share():
    mesh, (x, w) = arguments(AxisType.Explicit, ("i", "j"), (("i", "j"),))
    with jax.set_mesh(mesh):
        ((operands, results),) = kernels(lowered(lambda x, w: entangle(x, w), x, w))
    assert operands == ["tensor<4x3xf32>", "tensor<1xf32>"]
    assert results == ["tensor<4x3xf32>"]


@pytest.mark.parametrize("known", [True, False])
def test_where_xla_splits_the_program_the_kernel_has_numbers(known):
    mesh, (x, w) = arguments(AxisType.Auto, ("i", "j"), (("i", "j"),))
    specs = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
    function = jax.jit(lambda x, w: entangle(x, w), **({} if known else {"in_shardings": specs}))
    given = (x, w) if known else (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(w.shape, w.dtype))
    ((operands, results),) = kernels(lowered(function, *given))
    assert operands == ["tensor<1xi32>", "tensor<1xf32>"]
    assert results == ["tensor<1xi32>"]


@pytest.mark.parametrize("check_vma", [True, False])
def test_in_shard_map_each_device_has_a_kernel_for_its_share(check_vma):
    mesh, (x, w) = arguments(AxisType.Auto, ("i", "j"), ("i",))
    specs = {"in_specs": (P("i", "j"), P("i")), "out_specs": P("i", "j"), "check_vma": check_vma}
    ((operands, _),) = kernels(lowered(jax.shard_map(lambda x, w: entangle(x, w), mesh=mesh, **specs), x, w))
    assert operands == ["tensor<4x3xf32>", "tensor<2xf32>"]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_in_shard_map_over_some_axes(kind):
    mesh, (x, w) = arguments(kind, ("i", "j"), ("i",))
    with jax.set_mesh(mesh):
        local = jax.shard_map(
            lambda x, w: entangle(x, w), in_specs=(P("i"), P("i")), out_specs=P("i"), axis_names={"i"}
        )
        ((operands, _),) = kernels(lowered(local, x, w))
    inside = kind == AxisType.Explicit
    assert operands == (["tensor<4x3xf32>", "tensor<2xf32>"] if inside else ["tensor<1xi32>", "tensor<1xf32>"])


def test_neither_the_import_nor_the_lowering_imports_pallas():
    code = """
import sys
import jax
from entangle_jax import entangle
assert "jax.experimental.mosaic" not in sys.modules
jax.jit(lambda x, w: entangle(x, w)).trace(1.0, 2.0).lower(lowering_platforms=("tpu",))
assert not any("pallas" in name for name in sys.modules)
"""
    fresh.run(code)


def test_slots_say_that_they_are_not_there():
    for program in (testing.read, lambda token: testing.write(token, 1.0)):
        with pytest.raises(NotImplementedError, match=r"no slots on TPU.*io_callback"):
            lowered(program, testing.slot(0))


def test_numbers_of_keys_depend_on_the_key_and_an_array_without_elements_has_none():
    one, two = (_tpu._numbers(jax.random.key(seed)) for seed in (1, 2))
    assert one != two
    assert _tpu._numbers(jnp.zeros((0, 3))) == []
