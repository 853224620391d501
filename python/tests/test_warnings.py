"""What cannot be ordered says so, at trace time, at the user's line; and nothing else does."""

import inspect
import warnings

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from entangle_jax import OrderingWarning, entangle

W = jnp.float32(1.0)
EMPTY = jnp.zeros((3, 0))


class Handle:
    """A pytree node without leaves, as the handle objects of some packages are."""


jax.tree_util.register_pytree_node(Handle, lambda _: ((), None), lambda *_: Handle())

GAPS = {
    "no witness leaves": ((W, None), "the witnesses have no array leaves"),
    "no witness leaves in many": ((W, None, (), {}), "the witnesses have no array leaves"),
    "a handle object as witness": ((W, Handle()), r"a handle object without leaves\? pass the raw array"),
    "no payload leaves": ((None, W), "the payload has no array leaves"),
    "a handle object as payload": ((Handle(), W), "the payload has no array leaves"),
    "an empty payload": ((EMPTY, W), r"the payload has no elements \(shape \(3, 0\)\).*it is not ordered"),
    "an empty leaf of the payload": (({"a": W, "b": [EMPTY]}, W), r"payload leaf \['b'\]\[0\] has no elements"),
    "an empty witness": ((W, EMPTY), r"witness leaf \[0\] has no elements \(shape \(3, 0\)\).*it orders nothing"),
    "an empty leaf of the second witness": ((W, W, {"c": EMPTY}), r"witness leaf \[1\]\['c'\] has no elements"),
    "an empty array of the host as payload": ((np.zeros(0), W), "the payload has no elements"),
}


def called(*arguments):
    return entangle(*arguments)


LINE = inspect.getsourcelines(called)[1] + 1


@pytest.mark.parametrize("how", ["eagerly", "traced", "in vmap", "in grad", "in scan", "with disable_jit"])
@pytest.mark.parametrize(("arguments", "text"), GAPS.values(), ids=GAPS)
def test_a_gap_warns_at_the_users_line(arguments, text, how):
    jax.clear_caches()  # the same signature may have been seen by a test before this one
    with pytest.warns(OrderingWarning, match=text) as caught:
        match how:
            case "eagerly":
                called(*arguments)
            case "traced":
                jax.make_jaxpr(lambda: called(*arguments))()
            case "in vmap":
                jax.vmap(lambda _: called(*arguments))(jnp.ones(2))
            case "in grad":
                jax.grad(lambda x: (called(*arguments), x)[1])(1.0)
            case "in scan":
                jax.lax.scan(lambda c, _: (c, called(*arguments)), 0, None, length=2)
            case "with disable_jit":
                with jax.disable_jit():
                    called(*arguments)
    # A loop may trace its body more than once.
    assert {str(each.message) for each in caught} == {str(caught[0].message)}
    assert {(each.filename, each.lineno) for each in caught} == {(__file__, LINE)}
    assert str(caught[0].message).startswith("entangle: ")


def test_eagerly_every_new_signature_warns():
    for length in (101, 102):
        with pytest.warns(OrderingWarning):
            entangle(jnp.ones(length), None)


def test_one_call_may_have_several_gaps():
    jax.clear_caches()
    with pytest.warns(OrderingWarning) as caught:
        entangle({"a": EMPTY, "b": W}, EMPTY)
    assert len(caught) == 2


def test_users_may_make_it_an_error():
    assert issubclass(OrderingWarning, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OrderingWarning)
        with pytest.raises(OrderingWarning, match="nothing to wait for"):
            jax.jit(lambda x: entangle(x, None))(W)


def test_as_an_error_it_is_raised_each_time_outside_of_jit():
    with warnings.catch_warnings():
        warnings.simplefilter("error", OrderingWarning)
        for _ in range(3):
            with pytest.raises(OrderingWarning, match="has no elements"):
                entangle(W, jnp.zeros((0, 103)))


def test_a_witness_of_the_host_does_not_use_up_the_warning_of_an_array_of_its_shape():
    with warnings.catch_warnings():
        warnings.simplefilter("error", OrderingWarning)
        entangle(W, np.zeros((0, 104), np.float32))
    with pytest.warns(OrderingWarning, match="has no elements"):
        entangle(W, jnp.zeros((0, 104), jnp.float32))


def test_no_platform_handler_warns_once_for_all_calls_of_a_program_at_the_users_line():
    def f(x):
        for _ in range(3):
            x = called(x, x + 1)
        return x

    with pytest.warns(OrderingWarning, match="no native handler for metal") as caught:
        jax.jit(f).trace(W).lower(lowering_platforms=("metal",))
    assert len({str(each.message) for each in caught}) == 1
    assert caught[0].filename == __file__
    assert len(caught) == 1


SILENT = {
    "arrays": (W, W),
    "a Python scalar as witness": (W, 3.0),
    "a numpy array as witness": (W, np.ones(3)),
    "an empty numpy array as witness": (W, np.zeros(0)),
    "one witness with leaves among others": (W, None, (), W),
    "a host value among empty trees": (W, None, 1),
    "an empty payload with nothing but the host to wait for": ({"a": EMPTY, "b": W}, np.ones(3), 1.0),
    "a payload of the host": (1.0, W),
    "a scalar payload": ({"a": 1, "b": W}, W),
    "the same leaf": (W, W, W),
    "a lone leaf": ((W,), W),
    "keys": (jax.random.key(0), jax.random.key(1)),
}


@pytest.mark.parametrize("arguments", SILENT.values(), ids=SILENT)
def test_no_false_alarm(arguments):
    jax.clear_caches()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        called(*arguments)
        jax.jit(lambda: called(*arguments))()
        jax.vmap(lambda _: called(*arguments))(jnp.ones(2))


def test_no_false_alarm_for_symbolic_sizes_and_batches_of_zero():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (n,) = jax.export.symbolic_shape("n")
        jax.eval_shape(lambda x, w: entangle(x, w), *(jax.ShapeDtypeStruct((n,), jnp.float32),) * 2)
        jax.vmap(lambda x, w: entangle(x, w))(jnp.zeros(0), jnp.zeros(0))
        jax.vmap(jax.vmap(lambda x, w: entangle(x, w)), in_axes=1)(jnp.zeros((3, 0)), jnp.zeros((3, 0)))


NOTHING_TO_ORDER = {
    "arrays": (EMPTY, EMPTY),
    "trees": ({"a": EMPTY, "b": [jnp.zeros(0)]}, (EMPTY, EMPTY), None, EMPTY),
    "beside the host": (EMPTY, EMPTY, 1.0, np.ones(3)),
    "a payload of the host": (np.zeros(0), EMPTY),
}


@pytest.mark.parametrize("arguments", NOTHING_TO_ORDER.values(), ids=NOTHING_TO_ORDER)
def test_no_false_alarm_where_no_leaf_has_elements(arguments):
    test_no_false_alarm(arguments)


@pytest.mark.parametrize("length", [1, 2, 3, 8])
def test_no_false_alarm_in_associative_scan(length):
    """It calls its function on what is left of an array, down to nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for run in (jax.lax.associative_scan, jax.jit(jax.lax.associative_scan, static_argnums=0)):
            result = run(lambda a, b: entangle(a + b, a), jnp.ones(length))
            np.testing.assert_array_equal(result, jnp.arange(1.0, length + 1))


def test_without_witnesses_nothing_is_asked_for():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert entangle(None) is None
        assert entangle(EMPTY) is EMPTY


def test_by_default_a_user_sees_the_warning_with_his_own_line():
    status, _, errors = fresh.finish(
        fresh.start("import jax.numpy as jnp\nfrom entangle_jax import entangle\nx = jnp.ones(3)\nentangle(x, None)\n")
    )
    assert status == 0, errors
    assert "<string>:4: OrderingWarning: entangle: the witnesses have no array leaves" in errors
