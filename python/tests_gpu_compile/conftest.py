"""Compiles for one GPU that is not there, named by `--gpu`. `ci/gpu-compile` makes the environments and calls this."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "tests_gpu"))

import absent


def pytest_addoption(parser):
    parser.addoption("--gpu", choices=("cuda", "rocm"), required=True, help="the platform to compile for")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu_compile: compiles for a GPU that is not there")
    config.addinivalue_line(
        "markers", "thunk_passes: reads the thunks after the thunk passes, which jaxlib 0.10 does not dump"
    )
    absent.prepare(config.getoption("gpu"))


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.gpu_compile)


@pytest.fixture(scope="session")
def gpu(request):
    """`"cuda"` or `"rocm"`."""
    return request.config.getoption("gpu")


@pytest.fixture(scope="session")
def plain(gpu):
    """A native call as it is without what entangle does about graphs, layouts and shardings. See `programs.plain`."""
    import programs

    return programs.plain(gpu.upper())
