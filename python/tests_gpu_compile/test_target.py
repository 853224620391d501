import jax
import jax.numpy as jnp
import pytest
from absent import compile_for

from entangle_jax import _registration, entangle, testing

X = jax.ShapeDtypeStruct((16,), jnp.float32)


def test_the_compile_step_finds_the_native_targets(gpu):
    def program(token, x):
        return testing.write(entangle(token, x), testing.read(token))

    compiled = compile_for(gpu, program, jax.ShapeDtypeStruct((), jnp.int32), X)
    for target in _registration.registered()[gpu.upper()].targets:
        assert len(compiled.native_calls(target)) == 1


def test_a_target_that_is_not_registered_is_an_error(gpu):
    # What the test above would see.
    def missing(x):
        return jax.ffi.ffi_call("entangle_of_another_planet", X)(x)

    with pytest.raises(jax.errors.JaxRuntimeError, match="entangle_of_another_planet"):
        compile_for(gpu, missing, X)


def test_the_handler_that_is_registered_fits_the_runtime(gpu):
    found = _registration.registered()[gpu.upper()]
    assert found.graphs
    assert f"jax-{ {'cuda': 'cuda12', 'rocm': 'rocm7'}[gpu] }-pjrt" in found.why
