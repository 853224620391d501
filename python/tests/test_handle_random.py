"""Random programs of reads and writes, with branches and loops, run natively and compared with plain Python.

All of them are right, and every warning is an error here. A hundred of them; a thousand, and other ones each time, with
the profile `soak` of conftest.py.
"""

import itertools

import compiled
import delays
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from entangle_jax import Handle, testing

OBJECTS = 3
LATEST = 3
MOST = 3  # iterations
RUNS = 3

# A program is a list of statements. `late` says after how much other work an operand is there: an access without a data
# path to those before it is ready early and runs too soon.
objects = st.integers(0, OBJECTS - 1)
late = st.integers(0, LATEST)
accesses = st.one_of(
    st.tuples(st.just("read"), objects, late),
    st.tuples(st.just("read"), objects, late),
    st.tuples(st.just("write"), objects, late),
    st.tuples(st.just("copy"), objects),  # writes what was read last, plus one
    st.tuples(st.just("read twice"), objects, late),  # through one handle, and goes on from both reads
    st.tuples(st.just("read in a map"), objects, late),  # through a handle from outside, and goes on after it
    st.tuples(st.just("after"), objects, late),
    st.tuples(st.just("read both"), st.permutations(range(OBJECTS)).map(lambda those: tuple(those[:2]))),
    st.tuples(st.just("write both"), st.permutations(range(OBJECTS)).map(lambda those: tuple(those[:2]))),
)


def blocks(statements, size):
    return st.lists(statements, min_size=1, max_size=size)


def nested(block):
    return st.one_of(
        st.tuples(st.just("branch"), st.booleans(), block, block),
        st.tuples(st.just("closing branch"), st.booleans(), block, block),
        st.tuples(st.just("closing jit"), block),
        st.tuples(st.just("scan"), st.integers(1, MOST), block),
        st.tuples(st.just("while"), st.integers(0, MOST), block),
    )


inner = blocks(st.one_of(accesses, accesses, nested(blocks(accesses, 2))), 3)
programs = blocks(st.one_of(accesses, accesses, accesses, nested(inner)), 9)


def number(block, numbers):
    """Give every statement a number of its own, by which its values and its label are known."""
    return [
        (next(numbers), kind, *(number(x, numbers) if isinstance(x, list) else x for x in rest))
        for kind, *rest in block
    ]


def width(block):
    """How many values the block reads, at most: the others are -1."""
    widths = {
        "read": lambda *_: 1,
        "read both": lambda *_: 2,
        "read twice": lambda *_: 2,
        "read in a map": lambda *_: 2,
        "branch": lambda _, then, other: max(width(then), width(other)),
        "closing branch": lambda _, then, other: max(width(then), width(other)),
        "closing jit": width,
        "scan": lambda count, body: count * width(body),
        "while": lambda _, body: MOST * width(body),
    }
    return sum(widths[kind](*rest) for _, kind, *rest in block if kind in widths)


class InPython:
    """Runs the program as it is written."""

    def __init__(self):
        self.values = dict.fromkeys(range(OBJECTS), 0.0)
        self.last = 0.0

    def block(self, block, step):
        seen = []
        for statement in block:
            now = self.statement(step, *statement)
            seen += now + [-1.0] * (width([statement]) - len(now))
        return seen

    def statement(self, step, i, kind, *rest):
        match kind, *rest:
            case "read", obj, _:
                self.last = self.values[obj]
                return [self.last]
            case "write", obj, _:
                self.values[obj] = value_of(i, step)
            case "copy", obj:
                self.values[obj] = self.last + 1
            case "read twice" | "read in a map", obj, _:
                self.last = self.values[obj]
                return [self.last, self.last]
            case "read both", (a, b):
                self.last = self.values[b]
                return [self.values[a], self.values[b]]
            case "write both", (a, b):
                self.values[a], self.values[b] = value_of(i, step), value_of(i, step) + 0.5
            case "closing jit", body:
                return self.block(body, step)
            case "branch" | "closing branch", taken, then, other:
                return self.block(then if taken else other, step)
            case "scan" | "while", count, body:
                return [value for k in range(count) for value in self.block(body, step_of(step, k))]
        return []


def value_of(i, step):
    return i + 100.0 * step


def step_of(step, i):
    return 4 * step + i + 1


class InJax:
    """The same, through handles."""

    def __init__(self, delayed):
        self.delayed = delayed

    def block(self, block, state, step, facts):
        seen = []
        for statement in block:
            now, state = self.statement(state, step, facts, *statement)
            seen.append(now)
        return jnp.concatenate([jnp.zeros(0), *seen]), state

    def statement(self, state, step, facts, i, kind, *rest):
        handles, last = state
        nothing = jnp.zeros(0)
        label = f"s{i}"
        match kind, *rest:
            case "read", obj, late:
                last, handle = handles[obj].read(testing.read, self.delayed[late], label=label)
                return last[None], (replaced(handles, {obj: handle}), last)
            case "write", obj, late:
                zero = jnp.minimum(self.delayed[late][0], 0)  # which XLA cannot know
                _, handle = handles[obj].write(testing.write, value_of(i, step) + zero, label=label)
                return nothing, (replaced(handles, {obj: handle}), last)
            case "copy", obj:
                _, handle = handles[obj].write(testing.write, last + 1, label=label)
                return nothing, (replaced(handles, {obj: handle}), last)
            case "read twice", obj, late:
                first, one = handles[obj].read(testing.read, self.delayed[late], label=label)
                second, other = handles[obj].read(testing.read, self.delayed[late][:1], label=label)
                handle, _ = Handle.join(one, other).split()
                return jnp.stack([first, second]), (replaced(handles, {obj: handle}), second)
            case "read in a map", obj, late:
                seen = jax.lax.map(
                    lambda i: handles[obj].read(testing.read, self.delayed[late], i, label=label)[0], jnp.arange(2)
                )
                return seen, (replaced(handles, {obj: handles[obj].after(seen)}), seen[1])
            case "after", obj, late:
                return nothing, (replaced(handles, {obj: handles[obj].after(self.delayed[late])}), last)
            case "read both", (a, b):
                joined = Handle.join(handles[a], handles[b])
                seen, joined = joined.read(lambda tokens: [testing.read(token, label=label) for token in tokens])
                return jnp.stack(seen), (replaced(handles, dict(zip((a, b), joined.split(), strict=True))), seen[1])
            case "write both", (a, b):
                joined = Handle.join(handles[a], handles[b])
                values = value_of(i, step), value_of(i, step) + 0.5
                _, joined = joined.write(
                    lambda tokens: [testing.write(*each, label=label) for each in zip(tokens, values, strict=True)]
                )
                return nothing, (replaced(handles, dict(zip((a, b), joined.split(), strict=True))), last)
        return self.nested(state, step, facts, i, kind, *rest)

    def nested(self, state, step, facts, i, kind, *rest):
        match kind, *rest:
            case "closing jit", body:
                return jax.jit(lambda: self.block(body, state, step, facts))()
            case "branch" | "closing branch", _, then, other:
                size = max(width(then), width(other))

                def branch(block):
                    def run(state):
                        seen, state = self.block(block, state, step, facts)
                        return jnp.pad(seen, (0, size - len(seen)), constant_values=-1), state

                    return run

                if kind == "branch":
                    return jax.lax.cond(facts[i] > 0, branch(then), branch(other), state)
                return jax.lax.cond(facts[i] > 0, lambda: branch(then)(state), lambda: branch(other)(state))
            case "scan", count, body:

                def scanned(state, k):
                    seen, state = self.block(body, state, step_of(step, k), facts)
                    return state, seen

                state, seen = jax.lax.scan(scanned, state, jnp.arange(count))
                return seen.ravel(), state
            case "while", _, body:

                def once(k, carry):
                    seen, state = carry
                    now, state = self.block(body, state, step_of(step, k), facts)
                    return jax.lax.dynamic_update_slice(seen, now, (k * len(now),)), state

                return jax.lax.fori_loop(0, facts[i], once, (jnp.full(MOST * width(body), -1.0), state))
        raise AssertionError(kind)


def replaced(handles, new):
    return tuple(new.get(i, handle) for i, handle in enumerate(handles))


def facts_of(block):
    """What a program is told when it runs, by number of the statement: whether to branch, how often to loop."""
    found = {}
    for i, kind, *rest in block:
        if kind in ("branch", "closing branch", "while"):
            found[i] = int(rest[0])
        for inner_block in rest:
            if isinstance(inner_block, list):
                found |= facts_of(inner_block)
    return found


X = delays.numbers(3_000)


def compile_program(block):
    def program(x, facts):
        delayed = [x]
        for i in range(LATEST):
            delayed.append(jnp.sort(delayed[-1] ^ (i + 1)))
        handles = tuple(Handle(testing.slot(i)) for i in range(OBJECTS))
        seen, (_, last) = InJax(delayed).block(block, (handles, jnp.float32(0)), 0, facts)
        y = delayed[-1] ^ last.astype(x.dtype)
        for _ in range(3):
            y = jnp.sort(y ^ 1)
        return seen, y

    facts = facts_of(block)
    return jax.jit(program).lower(X, facts).compile(), facts


def touches(kind, rest):
    """The objects that a statement touches, and whether it reads them only."""
    if kind in ("branch", "closing branch", "closing jit", "scan", "while"):
        return set(range(OBJECTS)), False
    return ({rest[0]} if isinstance(rest[0], int) else set(rest[0])), kind.startswith("read")


def check_paths(block, depends):
    """Between the accesses of the outermost block: a path where there has to be one, and none between two readers."""
    accesses_so_far = []
    for i, kind, *rest in block:
        those, reads = touches(kind, rest)
        here = f"s{i}"
        for there, kind_there, those_there, reads_there in accesses_so_far:
            if not those & those_there:
                continue
            if not (reads and reads_there):
                if here in depends and there in depends:
                    assert there in depends[here], f"{here} does not wait for {there}"
            elif kind == kind_there == "read" and those == those_there and uninterrupted(block, there, here, those):
                assert there not in depends[here], f"{here} waits for {there}, and both are reads"
                assert here not in depends[there]
        accesses_so_far.append((here, kind, those, reads))


def uninterrupted(block, first, last, those):
    """Whether there are plain reads alone between two accesses. What else the object went through, it waited for."""
    labels = [f"s{i}" for i, *_ in block]
    between = block[labels.index(first) + 1 : labels.index(last)]
    return not any(touches(kind, rest)[0] & those and kind != "read" for _, kind, *rest in between)


@settings(max_examples=max(100, settings().max_examples // 2))
@given(programs)
def test_no_random_program_reads_a_wrong_value_or_orders_two_readers(program):
    block = number(program, itertools.count())
    expected = InPython().block(block, 0)
    run, facts = compile_program(block)
    check_paths(block, compiled.paths(run.as_text()))
    for _ in range(RUNS):
        testing.reset()
        seen, _ = jax.block_until_ready(run(X, facts))
        np.testing.assert_array_equal(np.asarray(seen), expected)
