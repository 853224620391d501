import jax
import jax.numpy as jnp
import pytest
from absent import compile_for
from dumps import DUMPED
from programs import SCHEDULING_MODES, nothing, read_write_read, recorded, steps

from entangle_jax import audit, entangle, testing

pytestmark = pytest.mark.thunk_passes

MATRIX = jax.ShapeDtypeStruct((256, 256), jnp.float32)
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
TOKEN = jax.ShapeDtypeStruct((), jnp.int32)


def named(name, function):
    function.__name__ = f"{DUMPED}_{name}"
    return function


def test_one_graph_holds_every_step(gpu):
    outside, graphs = compile_for(gpu, named("ours", steps(entangle)), MATRIX, SCALAR).thunks()
    assert not outside
    assert len(graphs) == 1
    assert graphs[0]["kCustomCall"] == 6


def test_a_handler_without_the_trait_cuts_the_graph(gpu, plain):
    # What the test above would see if the handler did not say that it may be recorded.
    outside, graphs = compile_for(gpu, named("plain", steps(plain)), MATRIX, SCALAR).thunks()
    assert outside["kCustomCall"] == 6
    assert all(graph["kCustomCall"] == 0 for graph in graphs)


def test_entangle_adds_nothing_to_the_graph_but_its_own_calls(gpu):
    _, (with_it,) = compile_for(gpu, named("with", steps(entangle)), MATRIX, SCALAR).thunks()
    _, (without,) = compile_for(gpu, named("without", steps(nothing)), MATRIX, SCALAR).thunks()
    assert with_it - without == {"kCustomCall": 6}
    assert not without - with_it


@pytest.mark.parametrize("mode", SCHEDULING_MODES)
def test_in_every_way_to_schedule_a_graph_its_calls_are_ordered_by_data(gpu, mode):
    # Where a graph is not recorded one after the other, only the data path is left to order its nodes.
    def compiled(name, tie):
        function = named(f"{name}_{mode}", read_write_read(tie))
        return compile_for(gpu, function, TOKEN, MATRIX, compiler_options=recorded(mode))

    def races(program):
        return audit(program.stage, reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET]).races

    ours, without = compiled("ordered", entangle), compiled("unordered", nothing)
    for program, calls in ((ours, 5), (without, 3)):
        outside, graphs = program.thunks()
        assert not outside
        assert [graph["kCustomCall"] for graph in graphs] == [calls]
    assert not races(ours)
    assert races(without)
