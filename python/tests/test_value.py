"""Promise 1, and 4 on one device: the payload comes back bit for bit, through one native call, without copies."""

from collections import namedtuple
from dataclasses import dataclass, field

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from entangle_jax import _primitive, entangle

W = jnp.float32(1.0)
EAGERLY_AND_JITTED = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])

# Every dtype that jax has had since 0.10, by the bits of one element.
BITS = {
    "bool": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "int8": 8, "uint8": 8,
    "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64,
    "bfloat16": 16, "float16": 16, "float32": 32, "float64": 64, "complex64": 64, "complex128": 128,
    "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6, "float8_e3m4": 8, "float8_e4m3": 8, "float8_e4m3b11fnuz": 8,
    "float8_e4m3fn": 8, "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
}  # fmt: skip
HERE = {str(each.dtype) for each in vars(jnp).values() if type(each) is type(jnp.float32)}
HERE -= {"int1", "uint1"}  # they have names, but XLA's language has no integers of one bit
SIX_BITS = {"float6_e2m3fn", "float6_e3m2fn"}
if jax.__version_info__ < (0, 11):
    HERE -= SIX_BITS  # 0.10.2 has names for them, but its jaxlib no arrays: "Invalid XLA PrimitiveType"


def test_no_dtype_that_jax_has_is_left_out():
    assert set(BITS) - SIX_BITS <= HERE <= set(BITS)


def every_value(dtype):
    """All values of a narrow type, and of a wide one every kind of value, NaNs with payloads included."""
    bits = BITS[dtype]
    if bits < 8 and not dtype.startswith("float"):
        return np.arange(2**bits).astype(np.int8).astype(jnp.dtype(dtype))
    if bits <= 8:
        return np.arange(2**bits, dtype=np.uint8).view(jnp.dtype(dtype))
    if bits == 16:
        return np.arange(2**16, dtype=np.uint16).view(jnp.dtype(dtype))
    signs = [0, 1, 0x80000000, 0x807FFFFF, 0xDEADBEEF]
    words = [*signs, 0x7F800000, 0x7F800001, 0x7FA00001, 0x7FC12345, 0xFFC00000]
    longs = [*signs, 0x7FF0000000000001, 0x7FF8000000012345, 0x8000000000000000, 0x000FFFFFFFFFFFFF, 0xFFF0000000000000]
    raw = np.array(words, np.uint32) if bits == 32 or dtype == "complex64" else np.array(longs, np.uint64)
    return raw.view(jnp.dtype(dtype))


def bits_of(array):
    return np.asarray(array).tobytes()


@EAGERLY_AND_JITTED
@pytest.mark.parametrize("dtype", [dtype for dtype in BITS if dtype in HERE])
def test_no_bit_of_any_dtype_changes(dtype, transform):
    with jax.enable_x64(True):
        value = every_value(dtype)
        payload = jnp.asarray(value)
        result = transform(lambda p, w: entangle(p, w))(payload, W)
        assert result.dtype == payload.dtype == dtype
        assert bits_of(result) == bits_of(payload) == bits_of(value)
        as_witness = transform(lambda p, w: entangle(p, w))(W, payload)
        assert as_witness == W
        hlo = compiled.text(lambda p, w: entangle((p, w), p, w + 1), payload, W)
        assert len(compiled.native_calls(hlo)) == 1


@EAGERLY_AND_JITTED
def test_nan_and_infinity_of_a_witness_do_not_leak(transform):
    for witness in (jnp.nan, jnp.inf, -jnp.inf):
        result = transform(lambda p, w: entangle(p, w))(jnp.arange(3.0), jnp.full(3, witness))
        np.testing.assert_array_equal(result, [0.0, 1.0, 2.0])


@EAGERLY_AND_JITTED
@pytest.mark.parametrize(
    "value", [True, 3, 2.5, 1j, np.float32(2), np.arange(3), np.int8(-1), np.float64(0.1)], ids=repr
)
def test_host_values_become_the_arrays_that_jnp_makes(value, transform):
    result = transform(lambda w: entangle(value, w))(W)
    wanted = jnp.asarray(value)
    assert isinstance(result, jax.Array)
    assert jax.typeof(result) == jax.typeof(wanted)
    assert bits_of(result) == bits_of(wanted)


@EAGERLY_AND_JITTED
def test_a_weak_type_stays_weak_and_a_strong_one_strong(transform):
    for payload in (jnp.asarray(1.0), jnp.float32(1.0), jnp.asarray(2), jnp.int32(2)):
        result = transform(lambda p, w: entangle(p, w))(payload, W)
        assert jax.typeof(result) == jax.typeof(payload)
        assert (result + jnp.float16(1)).dtype == (payload + jnp.float16(1)).dtype


@EAGERLY_AND_JITTED
@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys_stay_keys(implementation, transform):
    for key in (
        jax.random.key(7, impl=implementation),
        jax.random.split(jax.random.key(7, impl=implementation), (2, 3)),
    ):
        result, other = transform(lambda p, w: (entangle(p, w), entangle(w, p)))(key, W)
        assert result.dtype == key.dtype
        assert jax.random.key_impl(result) == jax.random.key_impl(key)
        np.testing.assert_array_equal(jax.random.key_data(result), jax.random.key_data(key))
        assert other == W
        batched = jax.vmap(lambda p, w: entangle(p, w), in_axes=(None, 0))(key, jnp.ones(2))
        np.testing.assert_array_equal(jax.random.key_data(batched)[1], jax.random.key_data(key))


Pair = namedtuple("Pair", ["first", "second"])


@jax.tree_util.register_dataclass
@dataclass
class Module:
    weight: jax.Array
    name: str = field(default="m", metadata={"static": True})


LEAF = jnp.arange(3.0)
TREES = {
    "array": LEAF,
    "tuple": (LEAF, LEAF + 1),
    "nested": {"a": [LEAF, (W, None)], "b": Pair(LEAF, {"c": W})},
    "one element": [(LEAF,)],
    "None inside": (None, LEAF, None),
    "dataclass with static data": Module(LEAF, "named"),
    "the same leaf twice": (LEAF, [LEAF, W], W),
    "functools": jax.tree_util.Partial(jnp.add, LEAF),
}


@EAGERLY_AND_JITTED
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_the_structure_comes_back(tree, transform):
    for payload, witnesses in ((tree, (W,)), (tree, (tree,)), (tree, (W, tree, [tree, None], None))):
        result = transform(lambda p, w: entangle(p, *w))(payload, witnesses)
        assert jax.tree.structure(result) == jax.tree.structure(payload)
        jax.tree.map(np.testing.assert_array_equal, result, payload)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(result))


class Wrapped:
    """As the parameters of some neural network libraries are."""

    def __init__(self, array):
        self.array = array

    def __jax_array__(self):
        return self.array


@EAGERLY_AND_JITTED
def test_objects_that_say_they_are_arrays_are_arrays(transform):
    result = transform(lambda x, w: entangle({"p": Wrapped(x)}, Wrapped(w)))(LEAF, W)
    assert isinstance(result["p"], jax.Array)
    np.testing.assert_array_equal(result["p"], LEAF)
    # As a witness it may be computed in the program: dropped, it would order nothing.
    (call,) = compiled.native_calls(compiled.text(lambda x, w: entangle(x, Wrapped(w + 1)), LEAF, W))
    assert len(call.operands) == 2


def test_a_tree_whose_structure_has_no_hash():
    """Such as a module that holds a numpy array as static data: no argument for `jit`, but no reason to refuse it."""
    module = Module(LEAF, np.arange(3))
    result = entangle(module, W)
    assert result.name is module.name
    np.testing.assert_array_equal(result.weight, LEAF)
    np.testing.assert_array_equal(jax.jit(lambda x, w: entangle(Module(x, np.arange(3)), w).weight)(LEAF, W), LEAF)
    assert entangle(W, module) == 1


def test_without_witnesses_the_object_itself_comes_back():
    for payload in (LEAF, {"a": 1}, None, object()):
        assert entangle(payload) is payload


def test_leaves_are_arrays_even_where_no_call_is_needed():
    assert isinstance(entangle(1.0, 2.0), jax.Array)
    assert isinstance(jax.jit(lambda: entangle(1.0, 2.0))(), jax.Array)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(entangle({"a": 1, "b": np.ones(2)}, 2.0)))


# Cost: how many calls, what is copied.
def test_ten_leaves_and_ten_witnesses_are_one_call():
    many = [jnp.full(3, float(i)) for i in range(10)]
    call, *others = compiled.native_calls(compiled.text(lambda p, w: entangle(p, *w), many, [x + 1 for x in many]))
    assert others == []
    assert len(call.operands) == 20


def test_a_leaf_that_is_its_own_witness_is_waited_for_by_the_other_leaves():
    hlo = compiled.text(lambda a, b: entangle((a, b), a), LEAF, LEAF)
    (call,) = compiled.native_calls(hlo)
    assert len(call.operands) == 2


def test_a_lone_leaf_that_is_its_own_witness_needs_no_call():
    assert compiled.native_calls(compiled.text(lambda a: entangle(a, a, (a,)), LEAF)) == []
    assert compiled.native_calls(compiled.text(lambda a: entangle((a, [a]), a), LEAF)) == []


def test_equal_leaves_are_operands_once():
    (call,) = compiled.native_calls(compiled.text(lambda a, w: entangle((a, [a, a]), w, (w, w)), LEAF, W))
    assert len(call.operands) == 2


def test_host_witnesses_are_not_baked_into_the_program():
    big = np.full((64, 64), 7.0, np.float32)
    hlo = compiled.text(lambda a, w: entangle(a, big, 1.0, w), LEAF, W)
    assert "64,64" not in hlo
    assert compiled.native_calls(compiled.text(lambda a: entangle(a, big, 1.0), LEAF)) == []


def test_a_donated_payload_is_not_copied():
    payload = jnp.zeros((512, 512))

    def update(p, w):
        return entangle(p, w).at[0, 0].add(w)

    assert compiled.copies(compiled.text(update, payload, W, donate_argnums=0), "f32[512,512]") == []
    # The test can see a copy where there must be one.
    assert compiled.copies(compiled.text(update, payload, W), "f32[512,512]") != []


def test_a_donated_payload_whose_old_element_is_a_witness_is_not_copied():
    def update(x):
        y = x[0, 0]
        x = entangle(x, y)
        return x.at[0, 0].add(1), y

    update = jax.jit(update, donate_argnums=0)
    payload = jnp.full((512, 512), 3.0)
    assert compiled.copies(compiled.text(update, payload), "f32[512,512]") == []
    payload, old = update(payload)
    assert (old, payload[0, 0]) == (3.0, 4.0)


def test_a_payload_computed_in_the_program_is_not_copied():
    hlo = compiled.text(lambda x, w: entangle(x * 2, w) * 3, jnp.zeros((512, 512)), W)
    assert compiled.copies(hlo, "f32[512,512]") == []


@pytest.mark.parametrize("count", [1, 2, 5])
def test_witnesses_are_not_copied(count):
    big = [jnp.zeros((512, 512)) + i for i in range(count)]
    hlo = compiled.text(lambda p, *w: entangle(p * 2, *w), W, *big)
    assert compiled.copies(hlo, "f32[512,512]") == []
    hlo = compiled.text(lambda p, *w: (entangle(p * 2, *(x + 1 for x in w)), [x + 1 for x in w]), W, *big)
    assert compiled.copies(hlo, "f32[512,512]") == []


def test_a_result_that_xla_did_not_alias_is_an_error_and_not_garbage():
    """The same call without the request to alias, as a program of another making might hold it."""
    call = jax.ffi.ffi_call(_primitive.TARGET, jax.ShapeDtypeStruct((2, 3), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"payload leaf 0 of 1 \(f32\[2,3\]\) .*XLA did not alias"):
        jax.jit(lambda p, w: call(p, w))(jnp.ones((2, 3)), W).block_until_ready()
