"""The native log of each hazard of the demo, launch by launch, with random node order: right with ours, scrambled without."""

import dataclasses

import jax
import jax.numpy as jnp
import model
import numpy as np
import programs
import pytest
from launched import compile_in, graphs_of, is_ever_wrong, logs

from entangle_jax import Handle, entangle, testing
from entangle_jax._demo import SCENARIOS

SORTED = 64
"""How many numbers the demo's sorts sort here: kernels are interpreted."""


def small(scenario):
    if scenario.name not in {"sorts", "loop"}:
        return scenario
    numbers = np.random.default_rng(0).integers(2**31, size=SORTED, dtype=np.int32)
    return dataclasses.replace(scenario, arguments=lambda: (testing.slot(0), jax.device_put(numbers)))


BY_NAME = {scenario.name: small(scenario) for scenario in SCENARIOS}


def expected(name):
    """The log that the source says."""
    if name.startswith("chain-"):
        return " ".join(f"w{i} r{i}" for i in range(1, int(name.removeprefix("chain-")) + 1))
    return "r0 w1 r1 r1 w2 r2" if name == "loop" else "r0 w1 r1"


def hazard(name, tie):
    scenario = BY_NAME[name]
    return scenario.build(tie, lambda function: function), scenario.arguments()


# The same hazards with a handle.
def chain(length):
    def program(token):
        handle, values = Handle(token), []
        for i in range(1, length + 1):
            _, handle = handle.write(testing.write, float(i))
            value, handle = handle.read(testing.read)
            values.append(value)
        return values

    return program


def read_write_read(handle, value, *late):
    before, handle = handle.read(testing.read, *late)
    _, handle = handle.write(testing.write, value)
    after, handle = handle.read(testing.read)
    return (before, after), handle


def among_sorts(handle, x, step):
    values, handle = read_write_read(handle, step + 1, *(jnp.sort(x ^ (10 * step + i)) for i in range(3)))
    y = x + values[1].astype(x.dtype)
    for i in range(3, 7):
        y = jnp.sort(y ^ (10 * step + i))
    return values, handle, y


def sorts(token, x):
    values, _, y = among_sorts(Handle(token), x, 0)
    return values, y


def loop(token, x):
    def body(step, carry):
        handle, values, _ = carry
        pair, handle, y = among_sorts(handle, x, step)
        return handle, values.at[step].set(jnp.stack(pair)), y

    _, values, y = jax.lax.fori_loop(0, 2, body, (Handle(token), jnp.zeros((2, 2)), x))
    return values, y


WITH_HANDLES = {
    "read-write-read": lambda token: read_write_read(Handle(token), 1.0)[0],
    **{f"chain-{i}": chain(i) for i in range(2, 7)},
    "sorts": sorts,
    "loop": loop,
}
WITHOUT_KERNELS = [name for name in BY_NAME if name not in {"sorts", "loop"}]

every_hazard = pytest.mark.parametrize(
    "name", [name if name in WITHOUT_KERNELS else pytest.param(name, marks=pytest.mark.kernels) for name in BY_NAME]
)


def test_the_handles_have_the_hazards_of_the_demo():
    assert WITH_HANDLES.keys() == BY_NAME.keys()


@every_hazard
def test_no_launch_has_another_order_with_entangle(name, mode, launches):
    function, arguments = hazard(name, entangle)
    compiled = compile_in(mode, function, *arguments)
    assert set(logs(compiled, *arguments, launches=launches)) == {expected(name)}
    assert (graphs_of(compiled, *arguments) > 0) == (mode is not None)


@every_hazard
def test_no_launch_has_another_order_with_a_handle(name, mode, launches):
    arguments = BY_NAME[name].arguments()
    compiled = compile_in(mode, WITH_HANDLES[name], *arguments)
    with model.skipping_kernels():  # a handle begins with a copy, which is a kernel
        assert set(logs(compiled, *arguments, launches=launches)) == {expected(name)}
        assert (graphs_of(compiled, *arguments) > 0) == (mode is not None)


@pytest.mark.parametrize("order", [model.FIRST, model.LAST])
@pytest.mark.parametrize("mode", programs.SCHEDULING_MODES)
def test_the_first_and_the_last_order_that_the_edges_allow_are_right(mode, order):
    model.set_order(order)
    for name in WITHOUT_KERNELS:
        function, arguments = hazard(name, entangle)
        assert set(logs(compile_in(mode, function, *arguments), *arguments, launches=3)) == {expected(name)}


# -------------------------------------------------------------------------------------------------------- controls
@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_without_any_order_concurrent_graphs_are_scrambled(name, launches):
    function, arguments = hazard(name, programs.nothing)
    seen = logs(compile_in("CONCURRENT", function, *arguments), *arguments, launches=launches)
    assert len(seen) > 1
    assert expected(name) not in seen


@pytest.mark.parametrize("mode", ["SERIALIZE", "LHS", "CONCURRENT_REGIONS"])
@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_without_any_order_no_launch_is_right_in_any_other_graph(name, mode):
    function, arguments = hazard(name, programs.nothing)
    assert expected(name) not in logs(compile_in(mode, function, *arguments), *arguments, launches=20)


@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_a_barrier_is_not_enough_in_concurrent_graphs(name, launches):
    function, arguments = hazard(name, programs.barrier)
    compiled = compile_in("CONCURRENT", function, *arguments)
    assert is_ever_wrong(compiled, *arguments, right=expected(name), launches=launches)


def test_work_without_a_graph_runs_as_it_was_enqueued(launches):
    """One stream: only the order in which XLA enqueues can be wrong there."""
    function, arguments = hazard("read-write-read", programs.nothing)
    assert len(logs(compile_in(None, function, *arguments), *arguments, launches=launches)) == 1
