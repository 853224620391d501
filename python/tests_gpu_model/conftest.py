"""Everything here runs on a model of the GPU's driver, by XLA's own runtime. `ci/gpu-model` makes it and calls this."""

import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests_gpu")]

import jax
import model
import programs

from entangle_jax import testing


def pytest_addoption(parser):
    parser.addoption("--launches", type=int, default=200, help="how often a program is launched to see its order")


def pytest_configure(config):
    config.addinivalue_line("markers", "kernels: needs what kernels compute, which the model can run on CUDA alone")
    config.addinivalue_line("markers", "long: needs minutes, so it is left out of --short")
    config.addinivalue_line("markers", "devices(count): needs so many devices")
    assert platform() in {"cuda", "rocm"}, "there is no model of a driver here: see ci/gpu-model"


def platform():
    return (
        "rocm" if "rocm" in jax.devices()[0].client.platform_version else jax.default_backend().replace("gpu", "cuda")
    )


def pytest_collection_modifyitems(items, config):
    left_out, kept = [], []
    for item in items:
        needs = item.get_closest_marker("devices")
        enough = len(jax.devices()) == (needs.args[0] if needs else 1)
        runs = enough and not (platform() == "rocm" and item.get_closest_marker("kernels"))
        (kept if runs else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(scope="session")
def gpu():
    """`"cuda"` or `"rocm"`."""
    return platform()


@pytest.fixture(scope="session")
def launches(request):
    return request.config.getoption("launches")


@pytest.fixture(autouse=True)
def no_violation():
    """What no program may do fails the test, whatever it was about. It begins with slots at zero."""
    model.set_order(model.RANDOM, seed=1, jitter_us=20)
    testing.reset()
    yield
    jax.effects_barrier()
    found = model.report().violations
    model.forgive()
    assert not found, f"{len(found)} violations, the first: {found[0]}"


@pytest.fixture(params=[None, *programs.SCHEDULING_MODES])
def mode(request):
    """A way to schedule graphs; None: without graphs."""
    return request.param
