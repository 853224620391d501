"""Random programs of native accesses that compute nothing: a model of ROCm, which runs no kernels, runs them too.

A program is a list of statements: accesses of a slot, ties, and constructs with programs inside. Each access has a number,
which is its label, and the value of a write. `function_of` makes a function of a program; `expected` is what its text says.
"""

import functools
import itertools
import random

import jax
import numpy as np

from entangle_jax import entangle, testing, writes

TARGETS = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}
SLOTS = 2
TRIPS = 2

BRANCH, LOOP = "cond", "fori_loop"
CONSTRUCTS = ("jit", "checkpoint", "custom_jvp", "custom_vjp", "marked", "unrolled scan", LOOP, BRANCH)


def arguments():
    """A handle of each slot, something to return, and two predicates."""
    handles, kept, *predicates = (
        tuple(map(np.int32, range(SLOTS))),
        np.int32(0),
        np.bool_(False),
        np.bool_(True),
    )
    return jax.device_put((handles, kept, tuple(predicates)))


# -------------------------------------------------------------------------------------------------------- the programs
class _Writer:
    def __init__(self, number, kinds):
        self.rng = random.Random(number)
        self.kinds = kinds
        self.numbers = itertools.count(1)
        self.ties = self.rng.choice([1.0, 0.9])

    def block(self, count, depth):
        return [statement for _ in range(count) for statement in self.statements(depth)]

    def statements(self, depth):
        if depth and self.kinds and self.rng.random() < 0.4:
            return [self.construct(self.rng.choice(self.kinds), lambda: self.block(self.rng.randint(1, 3), depth - 1))]
        return self.access(self.rng.choice(["read", "read", "write"]), self.rng.randrange(SLOTS))

    def access(self, kind, slot):
        tied = [("tie", slot)] if self.rng.random() < self.ties else []
        return [(kind, slot, next(self.numbers)), *tied]

    def construct(self, kind, body):
        return (kind, self.rng.randrange(2), body(), body()) if kind == BRANCH else (kind, body())


def program(number, kinds=CONSTRUCTS):
    """The random program of that number, with these constructs in it."""
    writer = _Writer(number, kinds)
    return writer.block(writer.rng.randint(4, 7), depth=2)


def of_class(kind, number):
    """A program in which a construct of that kind has to be in order."""
    writer = _Writer(number, ())
    inside = lambda: [*writer.access("write", 0), *writer.block(2, 0), *writer.access("read", 0)]
    return [
        *writer.access("read", 0),
        writer.construct(kind, inside),
        *writer.access("write", 0),
        *writer.access("read", 0),
    ]


# ------------------------------------------------------------------------------------------------------ as JAX functions
def function_of(program, tie):
    """A function of `arguments()`, whose accesses are tied by `tie`."""

    def function(handles, kept, predicates):
        return _Run(tie, predicates).block(program, (handles, kept))

    return function


def _no_rule(*_):
    raise AssertionError("a derivative is not asked for")


class _Run:
    """One trace. A state is the handles, and what keeps alive all that is read."""

    def __init__(self, tie, predicates):
        self.tie = tie
        self.predicates = predicates

    def block(self, block, state):
        (*handles,), kept = state
        results = {}
        for kind, *rest in block:
            match kind, *rest:
                case "read", slot, number:
                    results[slot] = testing.read(handles[slot], label=str(number))
                    kept = entangle(kept, results[slot])
                case "write", slot, number:
                    results[slot] = testing.write(handles[slot], float(number), label=str(number))
                    kept = entangle(kept, results[slot])
                case "tie", slot:
                    handles[slot] = self.tie(handles[slot], results[slot])
                case _:
                    (*handles,), kept = self.construct(kind, rest, (tuple(handles), kept))
        return tuple(handles), kept

    def construct(self, kind, rest, state):
        if kind == BRANCH:
            taken, *bodies = rest
            return jax.lax.cond(
                self.predicates[taken], *(functools.partial(self.block, body) for body in bodies), state
            )
        run = functools.partial(self.block, *rest)
        match kind:
            case "jit":
                return jax.jit(run)(state)
            case "checkpoint":
                return jax.checkpoint(run)(state)
            case "custom_jvp":
                f = jax.custom_jvp(run)
                f.defjvp(_no_rule)
                return f(state)
            case "custom_vjp":
                f = jax.custom_vjp(run)
                f.defvjp(_no_rule, _no_rule)
                return f(state)
            case "marked":
                return writes("queue")(run)(state)
            case "unrolled scan":
                return jax.lax.scan(lambda state, _: (run(state), None), state, length=TRIPS, unroll=TRIPS)[0]
        return jax.lax.fori_loop(0, TRIPS, lambda _, state: run(state), state)


# --------------------------------------------------------------------------------------------------- what they have to do
def expected(program):
    """For each slot its accesses: the writes, and between two of them the reads, which may run in any order."""
    return _by_slot(_accesses(program, {}))


def happened():
    """The same of the native log."""
    return _by_slot((access.op, access.slot, access.label, access.value) for access in testing.log())


def _accesses(program, slots):
    """What Python would do, one statement after the other."""
    for kind, *rest in program:
        match kind, *rest:
            case "read", slot, number:
                yield kind, slot, str(number), slots.get(slot, 0.0)
            case "write", slot, number:
                slots[slot] = float(number)
                yield kind, slot, str(number), float(number)
            case "tie", _:
                pass
            case "cond", taken, *bodies:
                yield from _accesses(bodies[not taken], slots)
            case _, body:
                for _ in range(TRIPS if kind in ("unrolled scan", LOOP) else 1):
                    yield from _accesses(body, slots)


def _by_slot(accesses):
    found = {slot: [] for slot in range(SLOTS)}
    for kind, slot, *access in accesses:
        if kind == "write" or not found[slot] or found[slot][-1][0] == "write":
            found[slot].append((kind, []))
        found[slot][-1][1].append(tuple(access))
    return {slot: [(kind, sorted(set(these))) for kind, these in runs] for slot, runs in found.items()}
