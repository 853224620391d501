"""Compiles for one GPU that is not there, named by `--gpu`. `ci/gpu-compile` makes the environments and calls this."""

import absent
import pytest


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
def unaware(gpu):
    """Native calls that an XLA extension author gets without entangle's lowering: `unaware(payload, *witnesses)`.

    The handler is the plain one, under a name of its own, so that it has no trait, no sharding rule and no
    partitioner; the result is aliased to the payload, and layouts are row-major. What entangle does about each of
    these is shown against it.
    """
    import jax

    from entangle_jax import _native

    plain, _ = _native.targets()[gpu.upper()]["entangle"]
    jax.ffi.register_ffi_target("entangle_unaware", plain, platform=gpu.upper())

    def call(payload, *witnesses):
        result = jax.ShapeDtypeStruct(payload.shape, payload.dtype)
        return jax.ffi.ffi_call("entangle_unaware", result, input_output_aliases={0: 0})(payload, *witnesses)

    return call
