"""XLA tokens as payload and witness; a Ref as witness, and as payload an error that says what to do."""

import functools

import compiled
import delays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from entangle_jax import Handle, OrderingWarning, entangle
from entangle_jax.testing import read, slot, write

W = jnp.float32(1.0)


def through_a_token(tie):
    """The read orders a token, and the token the write."""

    def program(token):
        seen = read(token, label="a")
        order = tie(jax.lax.create_token(0.0), seen)
        order = jax.lax.after_all(order, jax.lax.create_token(1.0))
        token = write(tie(token, order), 2.0, label="w")
        return read(token, label="b")

    return program


def beside_a_token(tie):
    """Token and array are leaves of one payload, and move together."""

    def program(token):
        _, token = tie((jax.lax.create_token(0.0), token), read(token, label="a"))
        return read(write(token, 2.0, label="w"), label="b")

    return program


def made_of_all(tie):
    def program(token):
        order = jax.lax.after_all(jax.lax.create_token(0.0), tie(jax.lax.create_token(0.0), read(token, label="a")))
        (_, _), token = tie(((order, order), token), order)
        return read(write(token, 2.0, label="w"), label="b")

    return program


@pytest.mark.parametrize("program", [through_a_token, beside_a_token, made_of_all], ids=lambda p: p.__name__)
def test_tokens_carry_order(program, slots):
    executable = jax.jit(program(entangle)).lower(slot(0)).compile()
    assert "a" in compiled.paths(executable.as_text())["w"]
    assert "token[]" in compiled.native_calls(executable.as_text())[0].text
    assert "a" not in compiled.paths(compiled.text(program(lambda p, *_: p), slot(0))).get("w", ())
    for _ in range(5):
        slots.reset()
        assert executable(slot(0)) == 2
        assert [access.label for access in slots.log()] == ["a", "w", "b"]


def test_tokens_in_loops_and_branches(slots):
    """Made inside: jax itself has no tokens in the carry of a loop."""

    def program(token):
        def step(_, token):
            seen = read(token, label="a")
            order = entangle(jax.lax.create_token(0.0), seen)

            def change(token, seen):
                order = entangle(jax.lax.create_token(0.0), seen)
                return write(entangle(token, order), seen + 1, label="w")

            return jax.lax.cond(seen < 10, change, lambda token, _: token, entangle(token, order), seen)

        return jax.lax.fori_loop(0, 3, step, token)

    executable = jax.jit(program).lower(slot(0)).compile()
    assert "a@0" in compiled.paths(executable.as_text())["w@0"]
    executable(slot(0)).block_until_ready()
    assert [access.label for access in slots.log()] == ["a", "w"] * 3


def test_tokens_outside_of_jit():
    token = jax.lax.create_token(0.0)
    result = entangle(token, W)
    assert jax.typeof(result) == jax.typeof(token)
    assert entangle(W, token, result) == 1
    together = entangle((W, token, jnp.ones(3)), result)
    np.testing.assert_array_equal(together[2], np.ones(3))
    jax.lax.after_all(together[1], token)


def test_tokens_under_derivatives_and_batches():
    def f(x):
        order = entangle(jax.lax.create_token(0.0), x)
        return entangle((x, order), order)[0] * x

    assert jax.grad(f)(2.0) == 4
    assert jax.jvp(f, (2.0,), (1.0,)) == (4, 4)
    np.testing.assert_array_equal(jax.vmap(jax.grad(f))(jnp.arange(3.0)), 2 * np.arange(3.0))
    assert jax.jit(jax.grad(jax.checkpoint(f)))(2.0) == 4


@pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
def test_tokens_in_a_sharded_program_gather_nothing(shardy):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    with compiled.partitioner(shardy):
        x = jax.device_put(jnp.arange(24.0).reshape(8, 3), NamedSharding(mesh, P("i")))

        def program(x, w):
            order, x = entangle((jax.lax.create_token(0.0), x * 2), w + 1)
            return entangle(x, order) + 1

        hlo = compiled.text(program, x, x)
        assert compiled.collectives(hlo) == []
        assert [each.shape.split("{")[0] for each in compiled.native_calls(hlo)] == ["(token[], f32[2,3]", "f32[2,3]"]
        np.testing.assert_array_equal(jax.jit(program)(x, x), 2 * np.arange(24.0).reshape(8, 3) + 1)


REMEDY = r"wanted an array; entangle orders values: read the Ref first, `entangle\(ref\[\.\.\.\], \.\.\.\)`"


def test_a_ref_as_payload_is_told_to_be_read_first():
    ref = jax.new_ref(jnp.zeros(3))
    with pytest.raises(TypeError, match="the payload is a .*Ref, " + REMEDY):
        entangle(ref, W)
    with pytest.raises(TypeError, match=r"payload leaf \['r'\] is a .*Ref, " + REMEDY):
        entangle({"r": ref}, W, ref)
    with pytest.raises(TypeError, match=REMEDY):
        jax.jit(lambda x: entangle(ref, x))(W)
    for function in (lambda ref: entangle(ref, 1.0), lambda ref: entangle(ref, W), lambda ref: entangle(ref, ref)):
        with pytest.raises(TypeError, match=REMEDY):
            jax.jit(function)(jax.new_ref(W))
    with pytest.raises(TypeError, match=REMEDY):
        jax.jit(lambda x: entangle(jax.new_ref(x), x))(W)


def keep_in_a_ref(token, ref, slow):
    ref[...] = read(token, slow, label="a")


def plainly(token, slow, ref):
    keep_in_a_ref(token, ref, slow)
    return write(entangle(token, ref), 3.0, label="w"), ref[...]


def in_a_tree(token, slow, ref):
    keep_in_a_ref(token, ref, slow)
    return write(entangle(token, 1.0, {"ref": [ref, slow]}), 3.0, label="w"), ref[...]


def in_scan(token, slow, ref):
    def body(token, _):
        keep_in_a_ref(token, ref, slow)
        return write(entangle(token, ref), 3.0, label="w"), None

    return jax.lax.scan(body, token, None, length=2)[0], ref[...]


def in_a_branch(token, slow, ref):
    def branch(token):
        keep_in_a_ref(token, ref, slow)
        return write(entangle(token, ref), 3.0, label="w")

    return jax.lax.cond(slow[0] >= 0, branch, lambda token: token, token), ref[...]


@pytest.mark.parametrize("program", [plainly, in_a_tree, in_scan, in_a_branch], ids=lambda p: p.__name__)
@pytest.mark.parametrize("made", ["inside", "argument", "closed over"])
def test_a_write_does_not_overtake_the_call_whose_result_is_in_a_ref(program, made, slots):
    def run(token, x, ref=None):
        slow = x
        for i in range(3):
            slow = jnp.sort(slow ^ i)
        ref = jax.new_ref(jnp.float32(0)) if ref is None else ref
        return program(token, slow, ref)

    x = jnp.asarray(delays.numbers(20_000))
    ref = jax.new_ref(jnp.float32(0))
    arguments = (slot(0), x, ref) if made == "argument" else (slot(0), x)
    jitted = jax.jit(functools.partial(run, ref=ref) if made == "closed over" else run)
    depends = compiled.paths(compiled.text(jitted, *arguments))
    for name in depends:
        if name.startswith("w"):
            assert name.replace("w", "a") in depends[name]
    for _ in range(5):
        slots.reset()
        jax.block_until_ready(jitted(*arguments))
        count = 2 if program is in_scan else 1
        assert [access.label for access in slots.log()] == ["a", "w"] * count


def test_outside_of_jit_a_ref_is_its_value_now(slots):
    ref = jax.new_ref(jnp.float32(0))
    ref[...] = read(slot(0), label="a")
    for witnesses in ((ref,), (ref, ref), ({"a": [ref]}, W)):
        assert entangle(slot(1), *witnesses) == 1
    ref[...] = jnp.float32(2)
    assert entangle(W, ref) == 1
    assert ref[...] == 2
    there = jax.device_put(W, jax.devices()[1])
    with pytest.raises(ValueError, match=r"different devices: the payload on .*:0.*witness leaf \[0\] on .*:1"):
        entangle(jax.device_put(W, jax.devices()[0]), jax.new_ref(there))


def test_a_ref_without_elements_orders_nothing_and_warns():
    with pytest.warns(OrderingWarning, match="witness leaf .*has no elements"):
        jax.jit(lambda x: entangle(x, jax.new_ref(jnp.zeros((0, 3)))))(W)


def test_a_write_does_not_overtake_a_read_that_returns_a_ref(slots):
    def look(token):
        ref = jax.new_ref(jnp.float32(0))
        ref[...] = read(token, label="a")
        return ref

    def program(token):
        seen, handle = Handle(token).read(look)
        _, handle = handle.write(write, 3.0, label="w")
        return seen[...], handle

    assert "a" in compiled.paths(compiled.text(program, slot(0)))["w"]


def test_a_ref_that_is_read_first_is_in_order(slots):
    @jax.jit
    def program(token):
        ref = jax.new_ref(jnp.float32(0))
        ref[...] = read(token, label="a")
        token = write(entangle(token, ref[...]), 3.0, label="w")
        ref[...] = entangle(ref[...], token) + 1
        return ref[...], token

    value, _ = program(slot(0))
    assert value == 1
    assert [access.label for access in slots.log()] == ["a", "w"]
