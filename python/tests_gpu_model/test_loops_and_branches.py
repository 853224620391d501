"""What waits for a loop or a branch in a concurrent graph: what uses a result that the loop or branch computes.

A loop or branch is one node of the graph, and XLA orders nodes by the buffers that they use. So what uses a computed result
waits for all calls inside, also for those that the result does not depend on. Nothing writes a result that is only passed
through, so nothing waits for that. The audit's rules are the same.

No buffer is shared by accident, which would put an edge there: each handle has one of its own, and everything that a loop or
branch computes is a result of the program.
"""

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
from launched import graphs_of, is_ever_wrong, logs

from entangle_jax import audit, entangle, testing

pytestmark = pytest.mark.kernels  # and HIP has no loops or branches in graphs

SORTED = 64


def passed_through(x, *needs):
    del needs
    return jax.lax.optimization_barrier(x)


def computed(x, *needs):
    return sum(needs, x * 2 + 1)


def entangled(x, *needs):
    """`entangle` writes its result's buffer, though it changes nothing there."""
    return entangle(x, *needs or [jnp.ones((), jnp.int32)])


def another_handle():
    """Of the same slot."""
    return jax.device_put(np.int32(0))


def handles():
    return testing.slot(0), another_handle()


# ------------------------------------------------------------------------------------- a result that needs the call inside
def read_in_a_loop(result):
    """The write waits for a result of a loop that reads.

    The loop's counter is larger than its other results, and one more result takes the buffer of its condition.
    """

    def program(token, other, x):
        def body(state):
            step, x, _ = state
            value = testing.read(token, step)
            return step + 1, result(x, value), value

        start = jnp.zeros(3, jnp.int32), x, jnp.float32(0)
        step, x, value = jax.lax.while_loop(lambda state: state[0][0] < 2, body, start)
        tied = entangle(other, x)
        return step, x, value, value > 1, tied, testing.write(tied, 5.0)

    return program, (*handles(), jnp.float32(3))


def read_in_a_branch(result):
    """The same with a branch that is taken."""

    def program(token, other, x, taken):
        def read(x):
            value = testing.read(token)
            return result(x, value), value

        x, value = jax.lax.cond(taken, read, lambda x: (result(x), jnp.float32(0)), x)
        tied = entangle(other, x)
        return value, x, tied, testing.write(tied, 5.0)

    return program, (*handles(), jnp.float32(3), jax.device_put(np.bool_(True)))


# ----------------------------------------------------------------------------- a result that does not need the call inside
def numbers():
    return jax.device_put(np.random.default_rng(0).integers(2**31, size=SORTED, dtype=np.int32))


def late_write(token, x):
    """A write that has to wait for sorts."""
    for i in range(3):
        x = jnp.sort(x ^ i)
    value = 1 + (x[0] >> 31).astype(jnp.float32)
    return testing.write(token, value), value, x


def write_in_a_loop(result):
    """The read waits for a result of a loop that writes, and that result needs nothing of the write."""

    def program(token, other, x, noise, zero):
        def body(state):
            step, x, _, _, noise = state
            return step + 1, result(x), *late_write(token, noise ^ step[0])

        start = jnp.zeros(3, jnp.int32), x, token + 1, zero, noise
        step, x, *rest = jax.lax.while_loop(lambda state: state[0][0] < 3, body, start)
        tied = entangle(other, x)
        return step, x, rest, tied, testing.read(tied), rest[1] > 1

    return program, (*handles(), jnp.float32(3), numbers(), jnp.float32(0))


def write_in_a_branch(result):
    """The same with a branch that is taken."""

    def program(token, other, x, noise, zero, taken):
        def write(x):
            return result(x), *late_write(token, noise)

        x, *rest = jax.lax.cond(taken, write, lambda x: (result(x), token + 1, zero, noise ^ 5), x)
        tied = entangle(other, x)
        return x, rest, tied, testing.read(tied), taken.astype(jnp.int32)

    return program, (*handles(), jnp.float32(3), numbers(), jnp.float32(0), jax.device_put(np.bool_(True)))


def write_in_a_branch_of_a_branch(result):
    """The same with the write in a branch of that branch."""

    def program(token, other, x, noise, zero, taken, inner):
        def write(x):
            leave = lambda noise: (token + 2, zero + 2, noise ^ 7)
            return result(x), *jax.lax.cond(inner, lambda noise: late_write(token, noise), leave, noise)

        x, *rest = jax.lax.cond(taken, write, lambda x: (result(x), token + 1, zero, noise ^ 5), x)
        tied = entangle(other, x)
        return x, rest, tied, testing.read(tied), taken.astype(jnp.int32), inner.astype(jnp.int32)

    predicates = (jax.device_put(np.bool_(True)) for _ in range(2))
    return program, (*handles(), jnp.float32(3), numbers(), jnp.float32(0), *predicates)


WAITS = pytest.mark.parametrize(
    ("build", "right"),
    [
        (read_in_a_loop, "r0 r0 w5"),
        (read_in_a_branch, "r0 w5"),
        (write_in_a_loop, "w1 w1 w1 r1"),
        (write_in_a_branch, "w1 r1"),
        (write_in_a_branch_of_a_branch, "w1 r1"),
    ],
)


def races(compiled):
    """Those between a read and a write, if the first two arguments are handles of one object."""
    report = audit(compiled, reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET], same=[(0, 1)])
    return [race for race in report.races if {race.first.kind, race.second.kind} == {"read", "write"}]


def whole_graph(program, *arguments):
    """In one concurrent graph, loops and branches with it."""
    options = programs.recorded("CONCURRENT") | {
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUSTOM_CALL,WHILE,CONDITIONAL"
    }
    compiled = jax.jit(program).lower(*arguments).compile(options)
    assert graphs_of(compiled, *arguments) == 1
    return compiled


@pytest.mark.parametrize("result", [computed, entangled])
@WAITS
def test_what_uses_a_result_that_a_loop_or_branch_computes_waits_for_the_calls_inside(build, right, result, launches):
    program, arguments = build(result)
    compiled = whole_graph(program, *arguments)
    assert not races(compiled)
    assert set(logs(compiled, *arguments, launches=launches)) == {right}


@WAITS
def test_what_uses_a_result_that_is_only_passed_through_does_not_wait(build, right, launches):
    program, arguments = build(passed_through)
    compiled = whole_graph(program, *arguments)
    assert races(compiled)
    assert is_ever_wrong(compiled, *arguments, right=right, launches=launches)
