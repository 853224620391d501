"""Leaves in host memory: XLA:GPU compiles no call that has a result there beside another result.

The CPU's memory kinds are all one memory, so what is looked at is the program: which calls there are, and what each waits for.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from entangle_jax import entangle


def on_host(x):
    return jax.device_put(x, jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host"))


def calls(*arguments):
    """For each call in the program as it is handed to XLA: its operands, and its results."""
    text = jax.jit(entangle).lower(*arguments).as_text()
    return [
        (re.findall(r"%\w+(?:#\d+)?", operands), [f"{name}#{i}" for i in range(int(count))] if count else [name])
        for name, count, operands in re.findall(r"(%\w+)(?::(\d+))? = stablehlo.custom_call @entangle\(([^)]*)\)", text)
    ]


def test_leaves_in_device_memory_share_a_call_with_no_leaf_on_the_host():
    x, y, w = jnp.arange(3.0), jnp.int32(1), jnp.ones(2)
    assert len(calls((x, y, {"z": x + 1}), w)) == 1
    counts = [len(results) for _, results in calls((x, on_host(x), y, on_host(y)), w)]
    assert counts == [2, 1, 1]
    assert [len(results) for _, results in calls((on_host(x), on_host(y)), w)] == [1, 1]
    assert [len(results) for _, results in calls(on_host(x), w)] == [1]


def test_no_leaf_runs_ahead_of_a_witness_or_of_a_leaf_in_other_memory():
    x = jnp.arange(3.0)
    empty = jnp.zeros(0)  # it orders nothing, and must not break the chain
    w = on_host(jnp.ones(2))
    with pytest.warns(UserWarning, match="no elements"):
        found = calls((empty, on_host(x), x, on_host(x + 1)), w)
    arguments = {f"%arg{i}" for i in range(5)}
    waits = {name: {name} for name in arguments}
    for operands, results in found:
        behind = set().union(*(waits[name] for name in operands))
        # Each call is given something of every operand, directly.
        assert len(operands) == 5
        assert behind == arguments, (operands, behind)
        for result in results:
            waits[result] = behind
    # And a later call is given what came out of the earlier ones, so that it runs after them.
    for i, (operands, _) in enumerate(found):
        for _, earlier in found[:i]:
            assert set(earlier) <= set(operands), (operands, earlier)


def test_values_and_memory_stay():
    payload = {"a": jnp.arange(4.0), "b": on_host(jnp.arange(3)), "c": on_host(jnp.ones((2, 2)))}
    for result in (entangle(payload, jnp.ones(2)), jax.jit(entangle)(payload, jnp.ones(2))):
        jax.tree.map(np.testing.assert_array_equal, result, payload)
        assert jax.tree.map(lambda x: jax.typeof(x).memory_space, result) == jax.tree.map(
            lambda x: jax.typeof(x).memory_space, payload
        )
    _, tangents = jax.jvp(lambda p: entangle(p, jnp.ones(2)), ({"a": payload["a"]},), ({"a": payload["a"]},))
    np.testing.assert_array_equal(tangents["a"], payload["a"])


CHECKS = [
    test_leaves_in_device_memory_share_a_call_with_no_leaf_on_the_host,
    test_no_leaf_runs_ahead_of_a_witness_or_of_a_leaf_in_other_memory,
    test_values_and_memory_stay,
]
