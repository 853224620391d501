import jax
import pytest
from absent import compile_for

from entangle_jax._datapath import Program
from entangle_jax._demo import METHODS, SCENARIOS


def smaller(x):
    # Without a device XLA sorts by a network, whose kernels take minutes to compile for 100,000 numbers. The
    # operations and what passes between them are the same for 1,000.
    return jax.ShapeDtypeStruct(tuple(min(size, 1000) for size in x.shape), x.dtype)


def ordered_pairs(gpu, scenario, method):
    function = method.scope(scenario.build(method.tie, method.scope))
    arguments = [smaller(x) for x in scenario.arguments()]
    program = Program(compile_for(gpu, function, *arguments).text)
    return [program.has_path(p.first, p.then, next_iteration=p.next_iteration) for p in scenario.pairs]


*OTHERS, ENTANGLE = METHODS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_with_entangle_every_call_needs_by_data_the_one_before_it(gpu, scenario):
    assert ENTANGLE.name == "entangle"
    assert all(ordered_pairs(gpu, scenario, ENTANGLE))


@pytest.mark.parametrize("method", OTHERS, ids=lambda method: method.name)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_without_entangle_no_data_path_is_left(gpu, scenario, method):
    assert not any(ordered_pairs(gpu, scenario, method))
