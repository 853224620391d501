"""Promise 6: every operand keeps its own batch axis, the result has the payload's; no loop, no transpose."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from entangle_jax import OrderingWarning, entangle
from entangle_jax.testing import read, slot, write

A = jnp.arange(24.0).reshape(2, 3, 4)
W = jnp.float32(1.0)


def first(payload, *witnesses):
    del witnesses
    return payload


def both(**axes):
    """The same `vmap` of `entangle` and of a function that returns its first argument."""
    return jax.vmap(lambda p, w: entangle(p, w), **axes), jax.vmap(first, **axes)


@pytest.mark.parametrize("out", [0, 1, -1, 2])
@pytest.mark.parametrize(
    ("payload_axis", "witness_axis"), [(0, 0), (1, 1), (2, -1), (-1, 0), (-2, 1), (0, None), (1, 0), (-3, 2)]
)
def test_any_axes_in_and_out(payload_axis, witness_axis, out):
    size = A.shape[payload_axis]
    witness = W if witness_axis is None else jnp.moveaxis(jnp.ones((size, 5, 7)), 0, witness_axis)
    got, wanted = both(in_axes=(payload_axis, witness_axis), out_axes=out)
    np.testing.assert_array_equal(got(A, witness), wanted(A, witness))


def test_axes_differ_from_leaf_to_leaf():
    payload = {"a": A, "b": jnp.ones((5, 3)), "c": W}
    axes = {"a": 1, "b": -1, "c": None}
    out = {"a": 2, "b": 0, "c": None}
    got, wanted = both(in_axes=(axes, 0), out_axes=out)
    jax.tree.map(np.testing.assert_array_equal, got(payload, jnp.ones(3)), wanted(payload, jnp.ones(3)))


def test_a_payload_that_is_not_batched_stays_so():
    """Or every later native write of it would run once an element."""
    result = jax.vmap(lambda w: entangle((W, A), w), out_axes=None)(jnp.ones(4))
    np.testing.assert_array_equal(result[1], A)
    nested = jax.vmap(lambda v: jax.vmap(lambda w: entangle(W, v, w), out_axes=None)(jnp.ones(2)), out_axes=None)
    assert nested(jnp.ones(3)).shape == ()


def test_an_unbatched_token_with_batched_reads_is_written_once(slots):
    """The case from public reports: four reads in the batch, and one write by what waits for all of them."""

    @jax.jit
    def program(token, values):
        def one(value):
            seen = read(token, value, label="r")
            return seen, write(entangle(token, seen), 7.0, label="w")

        return jax.vmap(one, out_axes=(0, None))(values)

    jax.block_until_ready(program(slot(0), jnp.arange(4.0)))
    assert [access.label for access in slots.log()] == ["r"] * 4 + ["w"]


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_batching_adds_no_loop_and_no_transpose(levels):
    f = lambda p, w: entangle(p, w)
    for _ in range(levels):
        f = jax.vmap(f, in_axes=(1, -1))
    witness = jnp.zeros((7, 6, 5)[-levels:])
    # The axes are moved where the caller says so, and only there: not for the call.
    hlo = compiled.text(f, jnp.zeros((4, 5, 6, 7)), witness)
    wanted = compiled.text(
        lambda p, w: jnp.moveaxis(p, (1, 2, 3)[:levels], range(levels)), jnp.zeros((4, 5, 6, 7)), witness
    )
    (call,) = compiled.native_calls(hlo)
    assert call.shape.startswith("f32[4,5,6,7]")
    ops = [
        sorted(each.op for each in compiled.instructions(text) if each.op in ("while", "transpose"))
        for text in (hlo, wanted)
    ]
    assert ops[0] == ops[1]
    compiled.layouts_agree(hlo)


def test_a_large_batch_is_one_call():
    hlo = compiled.text(jax.vmap(lambda p, w: entangle(p * 2, w)), jnp.zeros(100_000), jnp.zeros((100_000, 2)))
    assert len(compiled.native_calls(hlo)) == 1
    assert not compiled.instructions(hlo, "while")


@pytest.mark.parametrize("nest", [1, 2])
def test_nested_batches(nest):
    f, g = lambda p, w: entangle(p, w), first
    for axis in [(0, 1), (1, None)][:nest]:
        f, g = jax.vmap(f, in_axes=axis), jax.vmap(g, in_axes=axis)
    witness = jnp.ones((3, 2)) if nest == 1 else jnp.ones((9, 3))
    payload = A if nest == 1 else jnp.moveaxis(A, 0, 1)
    np.testing.assert_array_equal(f(payload, witness), g(payload, witness))


def test_a_batch_of_zero():
    """The payload has no elements then, and XLA deletes it: the call says so, and the shapes are right."""
    result = jax.vmap(lambda p, w: entangle(p, w))(jnp.zeros((0, 3)), jnp.zeros((0,)))
    assert result.shape == (0, 3)
    result = jax.jit(jax.vmap(lambda p, w: entangle(p, w), in_axes=(None, 0), out_axes=None))(A, jnp.zeros((0, 3)))
    np.testing.assert_array_equal(result, A)
    with pytest.warns(OrderingWarning, match="has no elements"):
        jax.jit(jax.vmap(lambda p, w: entangle(p, w)))(jnp.zeros((2, 0)), jnp.zeros(2))


def test_batching_of_typed_keys():
    keys = jax.random.split(jax.random.key(0), (2, 3))
    got, wanted = both(in_axes=(1, None), out_axes=1)
    np.testing.assert_array_equal(jax.random.key_data(got(keys, keys)), jax.random.key_data(wanted(keys, keys)))


@pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
def test_spmd_axis_name(shardy):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh), compiled.partitioner(shardy):
        payload = jax.device_put(jnp.zeros((4, 3)), NamedSharding(mesh, P("i")))
        witness = jax.device_put(jnp.zeros((5, 4)), NamedSharding(mesh, P(None, "i")))

        def one(p, w):
            p = jax.lax.with_sharding_constraint(p, NamedSharding(mesh, P(None)))
            return entangle(p + 1, w * 2)

        batched = jax.jit(jax.vmap(one, in_axes=(0, 1), spmd_axis_name="i"))
        hlo = compiled.text(batched, payload, witness)
        assert compiled.collectives(hlo) == []
        assert compiled.native_calls(hlo)[0].shape.startswith("f32[1,3]")
        assert batched(payload, witness).sharding.spec[0] == "i"


@pytest.mark.parametrize("where", ["payload", "witness", "both"])
def test_a_batch_over_an_axis_of_an_explicit_mesh(where):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        payload = jax.device_put(jnp.arange(12.0).reshape(4, 3), P("i") if where != "witness" else P())
        witness = jax.device_put(jnp.zeros((4, 5)), P("i") if where != "payload" else P())
        if where == "both":
            batched = jax.jit(jax.vmap(lambda p, w: entangle(p + 1, w * 2)))
        else:
            axes = (0, None) if where == "payload" else (None, 0)
            batched = jax.jit(jax.vmap(lambda p, w: entangle(p + 1, w * 2), in_axes=axes, out_axes=axes[0]))
        result = batched(payload, witness)
        np.testing.assert_array_equal(result, np.arange(12.0).reshape(4, 3) + 1)
        assert jax.typeof(result).sharding.spec == jax.typeof(payload + 1).sharding.spec
        assert compiled.collectives(compiled.text(batched, payload, witness)) == []


def test_vmap_of_grad_of_scan_and_grad_of_vmap_of_scan():
    def f(tie):
        def step(carry, x):
            state, total = carry
            total = total + jnp.sin(x * state["v"]).sum()
            return (tie({"v": state["v"] * 1.1, "n": state["n"]}, total), total), tie(x, total)

        def run(v, xs):
            (state, total), ys = jax.lax.scan(step, ({"v": v, "n": jnp.int32(3)}, 0.0), xs)
            return total + ys.sum() + state["v"].sum()

        return run

    v, xs = jnp.linspace(0.1, 1, 6).reshape(3, 2), jnp.arange(5.0)

    def transforms(run):
        return (
            jax.vmap(jax.grad(run), in_axes=(0, None))(v, xs),
            jax.grad(lambda v: jax.vmap(run, in_axes=(0, None))(v, xs).sum())(v),
            jax.vmap(jax.jacfwd(run), in_axes=(0, None))(v, xs),
            jax.vmap(jax.checkpoint(run), in_axes=(0, None))(v, xs),
        )

    got, wanted = jax.jit(lambda: [transforms(f(tie)) for tie in (entangle, first)])()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, wanted)


@pytest.mark.parametrize("batched", ["payload", "witness", "predicate"])
def test_in_a_batched_while_loop_and_cond(batched):
    def f(tie):
        def run(x, n):
            x, _ = jax.lax.while_loop(lambda s: s[1] < n, lambda s: (tie(s[0] * 2, s[1]), s[1] + 1), (x, 0))
            return jax.lax.cond(n > 2, lambda x: tie(x, n), lambda x: tie(-x, x), x)

        return run

    x, n = jnp.arange(3.0), jnp.array([1, 2, 3])
    axes = {"payload": (0, None), "witness": (None, 0), "predicate": (0, 0)}[batched]
    arguments = x if axes[0] == 0 else x[1], n if axes[1] == 0 else n[1]
    got, wanted = (jax.vmap(f(tie), in_axes=axes)(*arguments) for tie in (entangle, first))
    np.testing.assert_array_equal(got, wanted)
