"""A handle that is a pytree node without leaves: XLA can order nothing by it, and that must not be silent."""

import compiled
import jax
import jax.numpy as jnp
import pytest

from entangle_jax import OrderingWarning, entangle, testing


class HandleObject:
    """Wraps a native handle the way some packages do: JAX passes it around without looking inside."""

    def __init__(self, raw):
        self.raw = raw


jax.tree_util.register_pytree_node(HandleObject, lambda handle: ((), handle), lambda handle, _: handle)


@pytest.fixture
def handle():
    return HandleObject(testing.slot(0))


@pytest.fixture(params=["eager", "jit"])
def call(request):
    return entangle if request.param == "eager" else jax.jit(entangle)


def test_as_payload_it_is_not_ordered_and_warns(handle, call):
    with pytest.warns(OrderingWarning, match="the payload has no array leaves, so nothing waits for the witnesses"):
        assert call(handle, jnp.float32(1.0)) is handle


def test_as_the_only_witness_it_orders_nothing_and_warns(handle, call):
    with pytest.warns(OrderingWarning, match="the witnesses have no array leaves.*pass the raw array that it wraps"):
        assert float(call(jnp.float32(1.0), handle)) == 1.0


def test_the_warning_points_at_the_line_of_the_user(handle):
    with pytest.warns(OrderingWarning) as caught:
        entangle(handle, jnp.float32(1.0))
    assert [warning.filename for warning in caught] == [__file__]


def test_beside_an_array_it_is_carried_along_in_silence(handle, call):
    payload, number = call((handle, jnp.float32(1.0)), jnp.float32(2.0))
    assert (payload, float(number)) == (handle, 1.0)


def accesses(tie):
    def program(token):
        before = testing.read(token, label="before")
        token = tie(token, before)
        return before, testing.write(token, 1.0, label="write")

    return compiled.paths(compiled.text(program, testing.slot(0)))


def test_the_raw_array_is_ordered_and_the_object_around_it_is_not():
    assert accesses(entangle)["write"] == {"before"}

    def entangle_object(token, witness):
        with pytest.warns(OrderingWarning):
            return entangle(HandleObject(token), witness).raw

    assert accesses(entangle_object)["write"] == set()
