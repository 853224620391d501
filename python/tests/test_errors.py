"""What cannot be is an error that says where, what was found, what was wanted, and what to do."""

import dataclasses
import datetime

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from entangle_jax import entangle

W = jnp.float32(1.0)
WRONG = {
    "a string": ("text", "a str"),
    "bytes": (b"bytes", "a bytes"),
    "an object": (object(), "a object"),
    "a date": (datetime.date(2026, 1, 1), "a datetime.date"),
    "a numpy array of strings": (np.array(["a"]), "a numpy array of dtype <U1"),
    "a numpy array of objects": (np.array([object()]), "a numpy array of dtype object"),
    "a numpy date": (np.datetime64("2026-01-01"), r"a numpy array of dtype datetime64\[D\]"),
    "a structured numpy array": (np.zeros(1, [("a", "f4")]), r"a numpy array of dtype \[\('a', '<f4'\)\]"),
}
HOW = pytest.mark.parametrize("how", ["eager", "jit", "vmap", "grad", "disable_jit"])


def call(how, function):
    match how:
        case "eager":
            return function(W)
        case "jit":
            return jax.jit(function)(W)
        case "vmap":
            return jax.vmap(function)(W[None])
        case "grad":
            return jax.grad(lambda x: (function(x), x)[1])(W)
        case "disable_jit":
            with jax.disable_jit():
                return jax.jit(function)(W)


@HOW
@pytest.mark.parametrize(("leaf", "what"), WRONG.values(), ids=WRONG)
def test_a_leaf_that_is_no_array_is_named(leaf, what, how):
    with pytest.raises(
        TypeError, match=rf"^entangle: the payload is {what}, wanted an array; pass arrays, or pytrees of arrays\."
    ):
        call(how, lambda x: entangle(leaf, x))
    with pytest.raises(TypeError, match=rf"^entangle: payload leaf \['a'\]\[1\] is {what}, wanted an array"):
        call(how, lambda x: entangle({"a": [x, leaf]}, x))
    with pytest.raises(TypeError, match=rf"^entangle: witness leaf \[1\]\['b'\] is {what}, wanted an array"):
        call(how, lambda x: entangle(x, x, {"b": leaf}))


@HOW
@pytest.mark.parametrize(
    "function", [jnp.tanh, jax.nn.relu, lambda x: x, jax.jit(jnp.sin)], ids=["ufunc", "custom", "lambda", "jit"]
)
def test_a_function_in_a_module_is_told_how_to_leave(function, how):
    for payload, witness in (((W, function), W), (W, {"activation": function})):
        with pytest.raises(
            TypeError, match=r"leave functions out; .*eqx\.partition\(module, eqx\.is_array\).*eqx\.combine"
        ):
            call(how, lambda x, p=payload, w=witness: entangle(p, x, w))


@dataclasses.dataclass
class Unregistered:
    weight: jax.Array


@HOW
def test_a_class_that_is_no_pytree_is_told_how_to_become_one(how):
    for payload, witness in (((W, Unregistered(W)), W), (W, Unregistered(W))):
        with pytest.raises(TypeError, match=r"test_errors.Unregistered, wanted an array; .*register_dataclass"):
            call(how, lambda x, p=payload, w=witness: entangle(p, x, w))


@HOW
def test_a_shape_is_told_apart_from_an_array(how):
    with pytest.raises(TypeError, match=r"ShapeDtypeStruct, wanted an array; pass the array itself, or .*eval_shape"):
        call(how, lambda x: entangle(jax.ShapeDtypeStruct((3,), jnp.float32), x))


def test_shapes_can_be_asked_for():
    shapes = {"a": jax.ShapeDtypeStruct((3,), jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.int8)}
    result = jax.eval_shape(entangle, shapes, jax.ShapeDtypeStruct((2,), jnp.float32))
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in result.items()} == {
        "a": ((3,), jnp.float32),
        "b": ((), jnp.int8),
    }


def test_different_devices_are_named_leaf_by_leaf():
    here, there = (jax.device_put(W, device) for device in jax.devices()[:2])
    wanted = r"on different devices: payload leaf \['a'\] on \['\w+:0'\]; witness leaf \[0\] on \['\w+:1'\]\. XLA orders work within"
    with pytest.raises(ValueError, match=f"^entangle: payload and witnesses are {wanted}"):
        entangle({"a": here}, there)
    with pytest.raises(ValueError, match=r"payload leaf \[0\] on .*payload leaf \[1\] on .*device_put"):
        entangle((here, there), W)
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(jnp.ones(4), jax.sharding.NamedSharding(mesh, P("i")))
    with pytest.raises(ValueError, match="different devices"):
        entangle(there, sharded)
    # What is not committed goes where the others are.
    assert entangle(W, there).devices() == there.devices()
    assert entangle(W, sharded) == 1


def test_a_tracer_that_leaked_is_named():
    leaked = []
    jax.jit(lambda x: leaked.append(x) or x)(W)
    with pytest.raises(
        jax.errors.UnexpectedTracerError, match=r"witness leaf \[0\]\['a'\] is a tracer \(.*float32\[\].*return it from"
    ):
        entangle(W, {"a": leaked[0]})
    with pytest.raises(jax.errors.UnexpectedTracerError, match="the payload is a tracer"):
        entangle(leaked[0], W)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.jit(lambda x: entangle(x, leaked[0]))(W)
    grad_leak = []
    jax.grad(lambda x: grad_leak.append(x) or x)(1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError, match="the payload is a tracer"):
        entangle(grad_leak[0], W)


def test_a_deleted_array_is_an_error_of_jax():
    x = jnp.ones(3)
    x.delete()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        entangle(x, W)
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        entangle(jnp.ones(3), x)


def test_an_error_of_the_users_own_pytree_is_not_hidden():
    class Broken:
        pass

    def refuse(_):
        raise ValueError("broken on purpose")

    jax.tree_util.register_pytree_node(Broken, refuse, lambda *_: Broken())
    with pytest.raises(ValueError, match="broken on purpose"):
        entangle(Broken(), W)
    with pytest.raises(ValueError, match="broken on purpose"):
        entangle(W, Broken())


def test_no_payload_is_a_plain_type_error():
    with pytest.raises(TypeError, match="payload"):
        entangle()
    with pytest.raises(TypeError):
        entangle(W, witness=W)
