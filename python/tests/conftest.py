"""Every test runs on four CPU devices, as the first thing that jax is told."""

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 4)

from entangle_jax import testing  # noqa: E402 (after the number of devices is set)


@pytest.fixture
def slots():
    """The native slots, all at zero, with an empty log."""
    testing.reset()
    yield testing
    testing.reset()
