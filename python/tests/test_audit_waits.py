"""What is in a branch or a loop is over where a computed result of it is used: the audit says so, and the programs run so.

The witness of each program here does not depend on the slow write beside it. If each branch computes the witness, the runtime
makes its users wait for the whole branch. If it is passed through, nothing waits: then the read runs before the write.
All that is computed is a result of the program, or XLA shares a buffer, by which the runtime orders by accident.
"""

import delays
import jax
import jax.numpy as jnp
import pytest
from jax import lax

from entangle_jax import audit, entangle, testing
from entangle_jax._audit import COMPILED, WRITTEN

TARGETS = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}
RUNS = 6
BESIDE = (2, 10)
"""So much other work is there for the runtime, which decides what it runs first."""
NOISE = delays.numbers(30_000)


def late(x, rounds):
    for i in range(rounds):
        x = jnp.sort(x ^ i)
    return x


def slow_write(token, x):
    x = late(x, 24)
    value = 1.0 + (x[0] >> 31).astype(jnp.float32)
    return testing.write(token, value), value, x


WITNESSES = {
    "passed through": lambda x: lax.optimization_barrier(x),
    "computed": lambda x: x * 2 + 1,
    "entangled": lambda x: entangle(x, jnp.ones((), jnp.int32)),
}


def after(token, witness):
    tied = entangle(token, witness)
    return witness, tied, testing.read(tied)


def branch(witness):
    def program(token, other, x, noise, flag, count):
        def taken(x):
            return witness(x), *slow_write(token, noise)

        def not_taken(x):
            return witness(x), token + 1, jnp.float32(count), noise ^ 5

        x, *rest = lax.cond(flag, taken, not_taken, x)
        return after(other, x), rest, flag.astype(jnp.int32)

    return program


def nested_branch(witness):
    def program(token, other, x, noise, flag, count):
        def inner(x):
            def taken(noise):
                return slow_write(token, noise)

            def not_taken(noise):
                return token + 2, jnp.float32(count), noise ^ 7

            return witness(x), *lax.cond(count > 1, taken, not_taken, noise)

        def not_taken(x):
            return witness(x), token + 1, jnp.float32(count), noise ^ 5

        x, *rest = lax.cond(flag, inner, not_taken, x)
        return after(other, x), rest, flag.astype(jnp.int32)

    return program


def loop(witness):
    def program(token, other, x, noise, flag, count):
        def body(state):
            i, x, _, _, noise = state
            return i + 1, witness(x), *slow_write(token, noise ^ i[0])

        start = jnp.zeros(3, jnp.int32), x, token + 1, jnp.float32(count), noise
        i, x, *rest = lax.while_loop(lambda state: state[0][0] < count, body, start)
        return i, after(other, x), rest, rest[1] > 1

    return program


def arguments():
    """Two buffers for one object, so that nothing but the witness leads from the write to the read."""
    values = (testing.slot(0), testing.slot(0), jnp.float32(3), jnp.asarray(NOISE), jnp.bool_(True), jnp.int32(2))
    return jax.block_until_ready([jax.device_put(value) for value in values])


def runs(program):
    """How many runs read before the last write."""
    values, wrong = arguments(), 0
    for beside in BESIDE:

        def with_other_work(*values, beside=beside):
            return program(*values), [late(values[3] ^ (k + 100), 3) for k in range(beside)]

        compiled = jax.jit(with_other_work).lower(*values).compile()
        for _ in range(RUNS):
            testing.reset()
            jax.block_until_ready(compiled(*values))
            wrong += testing.log()[-1].op != "read"
    return wrong


def races_in(program):
    """The programs, as written and compiled, in which the read does not wait for the write."""
    # The arguments 0 and 1 are one object. That the writes of two iterations are in no order is another matter.
    races = audit(program, *arguments(), **TARGETS, same=[(0, 1)]).races
    ops = {race.programs: {race.first.target, race.second.target} for race in races}
    return {program for programs, targets in ops.items() for program in programs if testing.READ_TARGET in targets}


@pytest.mark.parametrize("construct", [branch, nested_branch, loop])
@pytest.mark.parametrize("witness", ["computed", "entangled"])
def test_what_uses_a_computed_result_comes_after_the_calls_beside_it(construct, witness):
    program = construct(WITNESSES[witness])
    # XLA may still simplify what is not entangled, or unroll the loop.
    assert races_in(program) == (set() if construct is not loop and witness == "entangled" else {WRITTEN})
    assert runs(program) == 0


@pytest.mark.parametrize("construct", [branch, loop])
def test_what_uses_a_result_that_is_passed_through_comes_before_them(construct):
    program = construct(WITNESSES["passed through"])
    assert COMPILED in races_in(program)
    assert runs(program) > 0
