import jax
import jax.numpy as jnp
import pytest
from absent import DUMPED, compile_for

from entangle_jax import entangle, testing

pytestmark = pytest.mark.thunk_passes

MATRIX = jax.ShapeDtypeStruct((256, 256), jnp.float32)


def steps(tie, name):
    def six(x):
        for _ in range(6):
            x = tie(jnp.sin(x @ x), x[0, 0])
        return x

    six.__name__ = f"{DUMPED}_{name}"
    return six


def test_one_graph_holds_every_step(gpu):
    outside, graphs = compile_for(gpu, steps(entangle, "ours"), MATRIX).thunks()
    assert not outside
    assert len(graphs) == 1
    assert graphs[0]["kCustomCall"] == 6


def test_a_handler_without_the_trait_cuts_the_graph(gpu, unaware):
    # What the test above would see if the handler did not say that it may be recorded.
    outside, graphs = compile_for(gpu, steps(unaware, "plain"), MATRIX).thunks()
    assert outside["kCustomCall"] == 6
    assert all(graph["kCustomCall"] == 0 for graph in graphs)


def test_slots_are_recorded_too(gpu):
    # Or no test could look at the order inside of a graph.
    def program(token):
        for i in range(3):
            value = testing.read(token)
            token = testing.write(entangle(token, value), i)
        return token, testing.read(token)

    program.__name__ = f"{DUMPED}_slots"
    outside, graphs = compile_for(gpu, program, jax.ShapeDtypeStruct((), jnp.int32)).thunks()
    assert not outside["kCustomCall"]
    assert sum(graph["kCustomCall"] for graph in graphs) == 10
