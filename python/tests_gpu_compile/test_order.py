import jax
import pytest
from absent import compile_for

from entangle_jax import audit, testing
from entangle_jax._demo import METHODS, SCENARIOS, data_paths, needed

OURS = [method for method in METHODS if method.name in ("ordered", "entangle")]
OTHERS = [method for method in METHODS if method not in OURS]


def name(thing):
    return thing.name


def smaller(x):
    # Without a device XLA sorts by a network, whose kernels take minutes to compile for 100,000 numbers. The
    # operations and what passes between them are the same for 1,000.
    return jax.ShapeDtypeStruct(tuple(min(size, 1000) for size in x.shape), x.dtype)


def compiled(gpu, scenario, method):
    function = method.scope(scenario.build(method.tie, method.scope))
    return compile_for(gpu, function, *(smaller(x) for x in scenario.arguments())).stage


def races(program):
    return audit(program, reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET]).races


@pytest.mark.parametrize("method", OURS, ids=name)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_every_call_needs_by_data_the_one_before_it(gpu, scenario, method):
    program = compiled(gpu, scenario, method)
    assert all(data_paths(program, needed(scenario.pairs, method)))
    assert not races(program)


@pytest.mark.parametrize("method", OTHERS, ids=name)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
def test_without_them_no_data_path_is_left(gpu, scenario, method):
    program = compiled(gpu, scenario, method)
    assert not any(data_paths(program, scenario.pairs))
    assert races(program)
