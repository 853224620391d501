"""Payload leaves and witnesses in device memory and in pinned memory of the host."""

import jax
import numpy as np
import pytest

from entangle_jax import entangle


def in_memory(kind, first=0.0):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=kind)
    return jax.device_put(np.arange(4, dtype=np.float32) + first, sharding)


KINDS = ["device", "pinned_host"]


@pytest.mark.parametrize("witness", KINDS)
@pytest.mark.parametrize("payload", [[a, b] for a in KINDS for b in KINDS] + [[kind] for kind in KINDS], ids="-".join)
@pytest.mark.parametrize("donated", [False, True])
def test_each_leaf_keeps_its_value_and_its_memory(payload, witness, donated):
    leaves = [in_memory(kind, first) for first, kind in enumerate(payload)]
    tied = jax.jit(entangle, donate_argnums=0 if donated else ())(leaves, in_memory(witness))
    for first, (leaf, kind) in enumerate(zip(tied, payload, strict=True)):
        np.testing.assert_array_equal(leaf, np.arange(4, dtype=np.float32) + first)
        assert leaf.sharding.memory_kind == kind
