"""From which version on a runtime records a handler that enqueues nothing: what the registration assumes is what happens."""

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
from launched import compile_in, graphs_of, logs

from entangle_jax import _native, _registration, entangle, testing

PLATFORM = {"cuda": "CUDA", "rocm": "ROCM"}


def read_write_read(tie):
    def program(token):
        before = testing.read(token)
        token = tie(token, before)
        token = tie(token, testing.write(token, 1.0))
        return before, testing.read(token)

    return program


def accepts(gpu):
    return _registration.accepts_empty_capture(PLATFORM[gpu])[0]


def test_the_versions_decide_as_expected(gpu):
    assert accepts(gpu) == (jax.__version_info__ >= (0, 10, 2))


@pytest.fixture(scope="module")
def forced(gpu):
    """entangle's handler that lets itself be recorded, whatever the version."""
    _, in_graph = _native.targets()[PLATFORM[gpu]]["entangle"]
    jax.ffi.register_ffi_target("entangle_forced", in_graph, platform=PLATFORM[gpu])

    def tie(payload, *witnesses):
        result = jax.ShapeDtypeStruct(payload.shape, payload.dtype)
        return jax.ffi.ffi_call("entangle_forced", result, input_output_aliases={0: 0})(payload, *witnesses)

    return tie


def test_a_recorded_call_that_enqueues_nothing_is_an_error_exactly_where_it_is_not_registered(gpu, forced):
    x = jax.device_put(np.ones(4, np.float32))
    compiled = compile_in("SERIALIZE", lambda x, y: forced(x, y), x, x)

    def run():
        for _ in range(3):
            np.testing.assert_array_equal(jax.block_until_ready(compiled(x, x)), np.ones(4))

    if accepts(gpu):
        run()
    else:
        with pytest.raises(jax.errors.JaxRuntimeError, match="graph is empty"):
            run()


@pytest.mark.parametrize("mode", programs.SCHEDULING_MODES)
def test_the_plain_handler_is_right_and_cuts_the_graph(gpu, mode, launches):
    plain = programs.plain(PLATFORM[gpu])
    token = testing.slot(0)
    counts = {}
    for tie in (plain, entangle):
        compiled = compile_in(mode, read_write_read(tie), token)
        assert set(logs(compiled, token, launches=launches)) == {"r0 w1 r1"}
        counts[tie] = graphs_of(compiled, token)
    assert counts[entangle] == (1 if accepts(gpu) else counts[plain])


@pytest.mark.kernels
def test_a_plain_handler_between_kernels_leaves_a_graph_on_each_side():
    plain = programs.plain("CUDA")
    x = jnp.ones(4)

    def program(tie):
        return lambda x: tie(tie(x + 1, x) * 2, x) + 3

    ours, cut = (graphs_of(compile_in("SERIALIZE", program(tie), x), x) for tie in (entangle, plain))
    assert cut == 3
    assert ours == (1 if jax.__version_info__ >= (0, 10, 2) else 3)
