"""Random trees, dtypes, shapes, batch axes and transformations: all as with `lambda payload, *witnesses: payload`.

`ci/soak` runs these with thousands of examples.
"""

import collections
import warnings

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from jax.experimental.layout import Format, Layout

from entangle_jax import OrderingWarning, entangle

FLOATS = ["float32", "bfloat16", "float16"]
DTYPES = [*FLOATS, "complex64", "int32", "uint8", "int16", "bool", "float8_e4m3fn", "int4", "key"]
Point = collections.namedtuple("Point", ["x", "y"])


def identity(payload, *witnesses):
    del witnesses
    return payload


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def bits(x):
    return np.asarray(jax.random.key_data(x) if is_key(x) else x).tobytes()


@st.composite
def arrays(draw, dtypes=tuple(DTYPES), largest=3):
    """Arrays of any bits: NaNs, infinities, denormals and negative zeros are in them."""
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(0 if draw(st.booleans()) else 1, largest), max_size=3)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype == "key":
        return jax.random.wrap_key_data(jnp.asarray(random.integers(0, 2**32, (*shape, 2), np.uint32)))
    size = int(np.prod(shape))
    if dtype in ("bool", "int4"):
        return jnp.asarray(random.integers(0, 2, shape), dtype)
    raw = random.bytes(max(size, 1) * jnp.dtype(dtype).itemsize)
    return jnp.asarray(np.frombuffer(raw, jnp.dtype(dtype))[:size].reshape(shape))


def trees(leaves):
    return st.recursive(
        leaves | st.none(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
            st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            st.builds(Point, inner, inner),
        ),
        max_leaves=4,
    )


@st.composite
def calls(draw, dtypes=tuple(DTYPES)):
    """A payload and witnesses. Leaves may be there twice, and in both."""
    payload = draw(trees(arrays(dtypes)))
    leaves = jax.tree.leaves(payload)
    others = arrays(dtypes) | st.sampled_from(leaves) if leaves else arrays(dtypes)
    witnesses = draw(st.lists(trees(others), min_size=1, max_size=3))
    if leaves and draw(st.booleans()):
        payload = (payload, draw(st.sampled_from(leaves)))
    return payload, tuple(witnesses)


def has_gap(payload, witnesses):
    leaves, others = jax.tree.leaves(payload), jax.tree.leaves(witnesses)
    return not leaves or not others or any(0 in leaf.shape for leaf in leaves + others)


def assert_same(got, wanted):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        if not is_key(a):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert is_key(a) is is_key(b)


@given(calls())
def test_the_value_comes_back_bit_for_bit_and_gaps_warn(call):
    payload, witnesses = call
    # A new signature for each example, or one that was seen would not warn again.
    jax.clear_caches()
    for function in (entangle, jax.jit(entangle)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(payload, *witnesses)
        assert jax.tree.structure(result) == jax.tree.structure(payload)
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(payload), strict=True):
            assert jax.typeof(a) == jax.typeof(b)
            assert bits(a) == bits(b)
        assert bool(caught) == has_gap(payload, witnesses)
        assert all(each.category is OrderingWarning for each in caught)


@given(calls(), st.data())
def test_batches_along_any_axes(call, data):
    payload, witnesses = call
    size = data.draw(st.integers(0, 3), label="batch")

    def axis_of(leaf, role):
        return data.draw(st.none() | st.integers(-leaf.ndim - 1, leaf.ndim), label=role)

    leaves, treedef = jax.tree.flatten((payload, witnesses))
    axes = [axis_of(leaf, "in") for leaf in leaves]
    batched = [
        leaf if axis is None else jnp.broadcast_to(jnp.expand_dims(leaf, axis), _inserted(leaf.shape, axis, size))
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    assume(any(axis is not None for axis in axes))
    # What is not batched may go out as it is, which fails for what is.
    n = len(jax.tree.leaves(payload))
    out = [None if axis is None else axis_of(leaf, "out") or 0 for leaf, axis in zip(leaves, axes[:n], strict=False)]

    def flat(tie):
        def function(*leaves):
            payload, witnesses = jax.tree.unflatten(treedef, leaves)
            return jax.tree.leaves(tie(payload, *witnesses))

        return jax.vmap(function, in_axes=tuple(axes), out_axes=out)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderingWarning)
        assert_same(jax.jit(flat(entangle))(*batched), flat(identity)(*batched))


def _inserted(shape, axis, size):
    shape = list(shape)
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, size)
    return tuple(shape)


def _tangent(x):
    return jnp.ones_like(x) if jnp.issubdtype(x.dtype, jnp.inexact) else np.zeros(x.shape, jax.dtypes.float0)


def forward(f, p, w):
    return jax.jvp(f, (p, w), jax.tree.map(_tangent, (p, w)))


def reverse(f, p, w):
    value, vjp = jax.vjp(f, p, w)
    return value, vjp(jax.tree.map(_tangent, value))


def linearized(f, p, w):
    value, linear = jax.linearize(f, p, w)
    return value, linear(*jax.tree.map(_tangent, (p, w)))


def reverse_of_forward(f, p, w):
    return reverse(lambda p, w: forward(f, p, w), p, w)


def checkpointed(f, p, w):
    return reverse(jax.checkpoint(f), p, w)


def scanned(f, p, w):
    def run(p, w):
        return jax.lax.scan(lambda c, _: (f(c, w), None), p, None, length=2)[0]

    return reverse(run, p, w)


def branched(f, p, w):
    return reverse(lambda p, w: jax.lax.cond(jnp.bool_(True), f, lambda p, w: p, p, w), p, w)


def batched(f, p, w):
    return jax.vmap(lambda p, w: reverse(f, p, w), axis_size=2, in_axes=(0, None))(
        jax.tree.map(lambda x: jnp.stack([x, x]), p), w
    )


WAYS = [forward, reverse, linearized, reverse_of_forward, checkpointed, scanned, branched, batched]


@given(calls(dtypes=("float32", "complex64", "bfloat16", "int32", "bool")), st.sampled_from(WAYS), st.booleans())
def test_derivatives_are_those_of_the_identity(call, way, jitted):
    payload, witnesses = call
    assume(jax.tree.leaves(payload))
    event(way.__name__)

    def function(tie):
        def f(p, w):
            p = jax.tree.map(lambda x: x * 2 if jnp.issubdtype(x.dtype, jnp.inexact) else x, p)
            return tie(p, *w, jax.tree.leaves(p)[0])

        def run(p, w):
            # float0 has no place in a compiled program's results.
            found = way(f, p, w)
            return jax.tree.map(lambda x: jnp.zeros(()) if x.dtype == jax.dtypes.float0 else x, found)

        return jax.jit(run) if jitted else run

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderingWarning)
        assert_same(function(entangle)(payload, witnesses), function(identity)(payload, witnesses))


# Layout: the call takes every layout as it comes.
def _transpose(x, data):
    return jnp.transpose(x, data.draw(st.permutations(range(x.ndim)), label="transpose"))


def _reshape(x, data):
    shapes = [(x.size,), (2, x.size // 2), (x.size // 2, 2), (2, 2, x.size // 4), (1, x.size, 1)]
    return x.reshape(data.draw(st.sampled_from(shapes), label="reshape"))


def _dot(x, data):
    side = data.draw(st.sampled_from([0, -1]), label="dot")
    return jnp.tensordot(x, jnp.ones((x.shape[side], 4)), axes=((side,), (0,)))


def _convolution(x, data):
    x = x.reshape(2, -1, 2, 2)
    numbers = data.draw(st.sampled_from([("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("NHWC", "OIHW", "NCHW")]))
    inputs = x.shape[1] if numbers[0] == "NCHW" else 2
    kernel = {"OIHW": (4, inputs, 1, 1), "HWIO": (1, 1, inputs, 4)}[numbers[1]]
    return jax.lax.conv_general_dilated(x, jnp.ones(kernel), (1, 1), "SAME", dimension_numbers=numbers)


def _reduce(x, data):
    del data
    return x.sum(0) if x.ndim > 1 and x[0].size >= 8 else x + 1


STEPS = [_transpose, _reshape, _dot, _reduce]


@pytest.mark.parametrize("also", [[], [_convolution]], ids=["no convolution", "convolution"])
@given(st.data())
def test_the_layout_of_each_operand_is_that_of_its_result(also, data):
    steps = data.draw(st.lists(st.sampled_from(STEPS + also), min_size=1, max_size=3), label="steps")
    # What to draw is drawn once, so that the program may be traced more than once.
    drawn = []

    class Replay:
        def __init__(self):
            self.next = iter(drawn)

        def draw(self, _, label=None):
            del label
            return next(self.next)

    class Record:
        def draw(self, strategy, label=None):
            drawn.append(data.draw(strategy, label=label))
            return drawn[-1]

    def program(tie, source):
        def f(x, w):
            for step in steps:
                y = step(x, source)
                x, y2 = tie((y, w * 2), x)
                w = w + y2[0, 0]
            return x, w

        return f

    x, w = jnp.arange(64.0).reshape(4, 4, 4) / 64, jnp.ones((4, 8))
    jax.eval_shape(program(identity, Record()), x, w)
    # Arguments in layouts of the caller's.
    layout = data.draw(st.permutations(range(3)), label="layout of the argument")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    x = jax.device_put(x, Format(Layout(tuple(layout)), device))
    got = jax.jit(program(entangle, Replay())).lower(x, w).compile()
    compiled.layouts_agree(got.as_text())
    assert len(compiled.native_calls(got.as_text())) == len(steps)
    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    wanted = jax.jit(program(identity, Replay()), compiler_options=quick)(x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got(x, w), wanted)
