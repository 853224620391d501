"""Every test runs on four CPU devices, as the first thing that jax is told."""

import time

import jax
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_num_cpu_devices", 4)

# Every example compiles programs: the time it takes says nothing. `ci/soak` runs the profile `soak`.
settings.register_profile(
    "default", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", settings.get_profile("default"), max_examples=2000, derandomize=False, print_blob=True
)
settings.register_profile("soak-short", settings.get_profile("soak"), max_examples=100)
settings.load_profile("default")

from entangle_jax import testing  # noqa: E402 (after the number of devices is set)


@pytest.fixture
def slots():
    """The native slots, all at zero, with an empty log."""
    testing.reset()
    time.sleep(0.01)
    while testing.log():  # a program that the test before did not wait for
        testing.reset()
        time.sleep(0.01)
    yield testing
    testing.reset()
