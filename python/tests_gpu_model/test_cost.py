"""What entangle costs on the device, counted by the driver: nothing more. And a donated payload stays where it is."""

import jax
import jax.numpy as jnp
import model
import numpy as np
import programs
import pytest
from launched import compile_in, graphs_of

from entangle_jax import entangle

WORK = ("kernel", "product", "copy", "set", "graph", "host function")


def matrix(size=16):
    return jax.device_put((np.random.default_rng(0).standard_normal((size, size)) / np.sqrt(size)).astype(np.float32))


def work_of_one_run(compiled, *arguments):
    for _ in range(3):  # a graph is recorded by the first run, and launched by later ones
        jax.block_until_ready(compiled(*arguments))
    before = model.report()
    jax.block_until_ready(compiled(*arguments))
    done = model.report() - before
    return {kind: done.work(kind) for kind in WORK}


@pytest.mark.kernels
def test_no_kernel_no_copy_and_no_graph_more_than_without(mode):
    arguments = matrix(), jax.device_put(np.float32(1))
    ours, none = (
        work_of_one_run(compile_in(mode, programs.steps(tie, 20), *arguments), *arguments)
        for tie in (entangle, programs.nothing)
    )
    assert ours == none
    assert none["kernel"] > 0


def test_no_kernel_no_copy_and_no_graph_more_than_with_a_barrier(mode, monkeypatch):
    """Where products are not to be had (ROCm): without a tie, one kernel would compute all the sines."""
    monkeypatch.setattr(programs, "product", jnp.multiply)
    arguments = matrix(), jax.device_put(np.float32(1))
    with model.skipping_kernels():
        ours, barrier = (
            work_of_one_run(compile_in(mode, programs.steps(tie, 20), *arguments), *arguments)
            for tie in (entangle, programs.barrier)
        )
    assert ours == barrier
    assert ours["kernel"] == 20


@pytest.mark.kernels
def test_the_counters_see_a_copy_more():
    """An argument that is not donated is copied once, so the test above can fail."""
    arguments = matrix(), jax.device_put(np.float32(1))
    ours, none = (
        work_of_one_run(compile_in(None, lambda x, y, tie=tie: tie(x, y) + 1, *arguments), *arguments)
        for tie in (entangle, programs.nothing)
    )
    assert sum(ours.values()) > sum(none.values())


@pytest.mark.parametrize("donated", [True, False])
def test_a_donated_payload_keeps_its_address_and_no_other_does(donated):
    x, signal = matrix(), jax.device_put(np.float32(1))
    before = x.unsafe_buffer_pointer()
    tied = jax.jit(entangle, donate_argnums=0 if donated else ())(x, signal)
    assert (tied.unsafe_buffer_pointer() == before) == donated
    np.testing.assert_array_equal(tied, matrix())


def test_a_donated_payload_keeps_its_address_in_a_graph(mode, gpu):
    """Run after run: the first one is done without the graph."""

    def program(x, signal):
        return entangle(entangle(x, signal * 2) * 2, signal + 1)

    x, signal = matrix(), jax.device_put(np.float32(1))
    compiled = compile_in(mode, program, x, signal, donate_argnums=0)
    wanted, before = np.asarray(x), x.unsafe_buffer_pointer()
    with model.skipping_kernels():  # on ROCm, so that nothing is computed there
        for _ in range(6):
            x = compiled(x, signal)
            wanted = wanted * (2 if gpu == "cuda" else 1)
            assert x.unsafe_buffer_pointer() == before
            np.testing.assert_array_equal(x, wanted)
        counted = model.report()
        x = jax.block_until_ready(compiled(x, signal))
        assert ((model.report() - counted).work("graph") > 0) == (mode is not None)


@pytest.mark.kernels
def test_arguments_at_other_addresses_are_recorded_again(mode):
    def program(x, signal):
        return entangle(x + 1, signal * 3) * 2

    compiled = compile_in(mode, program, matrix(), jnp.float32(1))
    kept = []
    for i in range(6):
        x = matrix() + i
        kept.append(x)  # so that its memory is not given out again
        np.testing.assert_allclose(compiled(x, jnp.float32(i)), (np.asarray(x) + 1) * 2, rtol=1e-6)
    assert (graphs_of(compiled, kept[0], jnp.float32(1)) > 0) == (mode is not None)
