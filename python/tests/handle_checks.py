"""What every `Handle` must do, as functions of the class, so that a class with one dependence less can be tried too.

A check raises `AssertionError`, or whatever the broken class makes JAX raise. Order is judged by the data path in the
compiled program, and by the values that were read.
"""

import functools

import compiled
import delays
import jax
import jax.numpy as jnp
import numpy as np

from entangle_jax import audit, testing

RUNS = 5
TARGETS = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def read(token, label, *late):
    """A native read, not before `late` is there. With the label no two reads are equal and merged."""
    return testing.read(token, *late, label=label)


def write(token, label, value):
    return testing.write(token, value, label=label)


def sorts(x, first, count):
    for i in range(first, first + count):
        x = jnp.sort(x ^ i)
    return x


def noise(seed=0, size=20_000):
    return jnp.asarray(delays.numbers(size, seed))


# The write has nothing to wait for and the first read does: only a data path keeps the write from running first.
# Under the CPU's runtime, which runs what is ready, it does run first without one.
def read_write_read(handle, x, value):
    before, handle = handle.read(read, "before", *(sorts(x, i, 1) for i in range(3)))
    _, handle = handle.write(write, "write", value)
    after, handle = handle.read(read, "after")
    return jnp.stack([before, after]), handle, sorts(x + after.astype(x.dtype), 3, 4)


def alone(handle, x):
    return read_write_read(handle, x, 1.0)


def in_scan(handle, x):
    def body(handle, value):
        seen, handle, y = read_write_read(handle, x, value)
        return handle, (seen, y[0])

    handle, (seen, y) = jax.lax.scan(body, handle, jnp.arange(1.0, 4.0))
    return seen, handle, y


def in_while_loop(handle, x):
    def body(carry):
        handle, seen, y, step = carry
        now, handle, y = read_write_read(handle, y, step + 1.0)
        return handle, seen.at[step].set(now), y, step + 1

    handle, seen, y, _ = jax.lax.while_loop(lambda carry: carry[3] < 3, body, (handle, jnp.zeros((3, 2)), x, 0))
    return seen, handle, y


def in_cond(handle, x):
    def untouched(handle):
        return jnp.full(2, -1.0), handle, x

    return jax.lax.cond(x[0] >= 0, lambda handle: read_write_read(handle, x, 1.0), untouched, handle)


def around_cond(handle, x):
    """A read in one branch only: a write after the branches waits for it."""

    def reads(handle):
        return handle.read(read, "before", *(sorts(x, i, 1) for i in range(3)))

    before, handle = jax.lax.cond(x[0] >= 0, reads, lambda handle: (jnp.float32(-1), handle), handle)
    _, handle = handle.write(write, "write", 1.0)
    after, handle = handle.read(read, "after")
    return jnp.stack([before, after]), handle, sorts(x + after.astype(x.dtype), 3, 4)


def around_scan(handle, x):
    """Reads in a loop: a write after the loop waits for all of them."""

    def body(handle, i):
        before, handle = handle.read(read, "before", jnp.sort(x ^ i))
        return handle, before

    handle, before = jax.lax.scan(body, handle, jnp.arange(3, dtype=x.dtype))
    _, handle = handle.write(write, "write", 1.0)
    after, handle = handle.read(read, "after")
    return jnp.stack([jnp.max(before), after]), handle, sorts(x + after.astype(x.dtype), 3, 4)


def in_vmap(handle, x):
    """The reads are batched, the handle is not: one write for all of them."""
    batch = jnp.stack([x, x + 1])
    before, handle = jax.vmap(
        lambda x: handle.read(read, "before", *(sorts(x, i, 1) for i in range(3))), out_axes=(0, None)
    )(batch)
    _, handle = handle.write(write, "write", 1.0)
    after, handle = jax.vmap(lambda x: handle.read(read, "after", x), out_axes=(0, None))(batch)
    return jnp.stack([before, after], axis=-1), handle, sorts(x + after[0].astype(x.dtype), 3, 4)


def in_shard_map(handle, x):
    """Two devices, each with an object of its own."""
    spec = jax.P("d")

    @functools.partial(jax.shard_map, mesh=two_devices(), in_specs=(jax.P(), spec), out_specs=spec)
    def program(handle, x):
        handle = jax.tree.map(lambda token: token + jax.lax.axis_index("d"), handle)
        seen, _, y = read_write_read(handle, x, 1.0)
        return seen[None], y

    seen, y = program(handle, x)
    return seen, handle, y


def two_devices():
    devices = jax.devices()[:2]
    assert len(devices) == 2, "wanted two devices; conftest.py asks for them"
    return jax.sharding.Mesh(np.array(devices), "d")


def in_checkpoint(handle, x):
    return jax.checkpoint(lambda handle, x: read_write_read(handle, x, 1.0))(handle, x)


def in_jit(handle, x):
    return jax.jit(lambda handle, x: read_write_read(handle, x, 1.0))(handle, x)


ONCE = np.array([0.0, 1.0])
THRICE = np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]])
HAZARDS = {
    alone: ONCE,
    in_jit: ONCE,
    in_scan: THRICE,
    in_while_loop: THRICE,
    in_cond: ONCE,
    around_cond: ONCE,
    around_scan: ONCE,
    in_vmap: np.array([ONCE, ONCE]),
    in_shard_map: np.array([ONCE, ONCE]),
    in_checkpoint: ONCE,
}


@functools.cache
def compile_hazard(handle_class, hazard):
    program = jax.jit(lambda token, x: hazard(handle_class(token), x)[::2])  # the handle is dead code: so be it
    return program.lower(testing.slot(0), noise()).compile()


def check_hazard(handle_class, hazard, runs=RUNS):
    program = compile_hazard(handle_class, hazard)
    depends = compiled.paths(program.as_text())
    assert_follows(depends, "write", "before")
    assert_follows(depends, "after", "write")
    assert audit(program, **TARGETS).races == ()
    for _ in range(runs):
        testing.reset()
        seen, _ = jax.block_until_ready(program(testing.slot(0), noise()))
        np.testing.assert_array_equal(seen, HAZARDS[hazard])


def assert_follows(depends, then, first):
    """Assert that `then` depends on `first`: of the same iteration, if both are in a loop, otherwise on all of them."""
    iterations = {label: [name for name in depends if name.split("@")[0] == label] for label in (first, then)}
    for name in iterations[then]:
        same = [each for each in iterations[first] if each.split("@")[1:] == name.split("@")[1:]]
        assert depends[name].issuperset(same or iterations[first]), (
            f"{name} does not depend on {same or iterations[first]}"
        )
    assert iterations[first]
    assert iterations[then]


def path(program, *arguments):
    """Compile a program and return `has_path(first, then)`, by label."""
    depends = compiled.paths(compiled.text(program, *arguments))

    def has_path(first, then):
        assert first in depends, f"{first} is not in the program: {list(depends)}"
        return first in depends[then]

    return has_path


@check
def two_readers_of_one_handle_have_no_path_between_them(handle_class):
    def program(token):
        handle = handle_class(token)
        w, handle = handle.write(write, "w", 1.0)
        a, handle = handle.read(read, "a")
        b, handle = handle.read(read, "b")
        v, handle = handle.write(write, "v", 2.0)
        c, handle = handle.read(read, "c")
        return (w, a, b, v, c)

    has_path = path(program, testing.slot(0))
    assert not has_path("a", "b")
    assert not has_path("b", "a")
    for first, then in [("w", "a"), ("w", "b"), ("a", "v"), ("b", "v"), ("v", "c")]:
        assert has_path(first, then), (first, then)


@check
def two_writes_without_a_read_between_them_are_in_order(handle_class):
    def program(token, x):
        handle = handle_class(token)
        w, handle = handle.write(write, "w", jnp.float32(sorts(x, 0, 3)[0]))
        v, handle = handle.write(write, "v", 2.0)
        return (w, v)

    assert path(program, testing.slot(0), noise())("w", "v")


@check
def what_waits_is_ordered_after_reads_and_writes(handle_class):
    def program(token):
        handle = handle_class(token)
        w, handle = handle.write(write, "w", 1.0)
        a, handle = handle.read(read, "a")
        free = write(handle.wait(), "free", 0.0)
        token = read(handle.token, "token")
        return (w, a, free, token)

    has_path = path(program, testing.slot(0))
    assert has_path("w", "free")
    assert has_path("a", "free")
    assert has_path("w", "token")
    assert not has_path("a", "token")


@check
def a_new_token_waits_for_all_of_the_result(handle_class):
    def replace(token):
        return write(token, "first", 1.0), write(token + 1, "second", 1.0)

    def program(token):
        handle = handle_class(token)
        result, handle = handle.write(replace, token=lambda result: result[0])
        a, handle = handle.read(read, "a")
        v, handle = handle.write(write, "v", 2.0)
        return (result, a, v)

    has_path = path(program, testing.slot(0))
    for first in "first", "second":
        assert has_path(first, "a")
        assert has_path(first, "v")


@check
def joined_objects_wait_for_each_other_and_split_ones_for_what_was_joined(handle_class):
    def program(t, u):
        a, b = handle_class(t), handle_class(u)
        w, a = a.write(write, "w", 1.0)
        v, b = b.write(write, "v", 1.0)
        r, a = a.read(read, "r")
        s, b = b.read(read, "s")
        joined = handle_class.join(a, b)
        # Given one token, these reach the other object through it.
        q, joined = joined.read(lambda tokens: read(tokens[0], "q"))
        p, joined = joined.read(lambda tokens: read(tokens[1], "p"))
        x, joined = joined.write(lambda tokens: write(tokens[0], "x", 2.0))
        o, joined = joined.read(lambda tokens: read(tokens[0], "o"))
        a, b = joined.split()
        c, a = a.read(read, "c")
        d, b = b.read(read, "d")
        z, b = b.write(write, "z", 3.0)
        return (w, v, r, s, q, p, x, o, c, d, z)

    has_path = path(program, testing.slot(0), testing.slot(1))
    paths = {"w": "rqpx", "v": "sqpx", "r": "x", "s": "x", "q": "x", "p": "x", "x": "ocdz", "o": "z", "d": "z"}
    for first, those in paths.items():
        for then in those:
            assert has_path(first, then), (first, then)
    no_paths = {"w": "vs", "v": "wr", "r": "sqp", "s": "rqp", "q": "rsp", "p": "rsq", "o": "cd", "c": "dz"}
    for first, those in no_paths.items():
        for then in those:
            assert not has_path(first, then), (first, then)


@check
def a_write_of_joined_objects_waits_for_reads_of_each(handle_class):
    def program(t, u):
        a, b = handle_class(t), handle_class(u)
        r, a = a.read(read, "r")
        s, b = b.read(read, "s")
        # One native call, which is given one of the tokens.
        x, _ = handle_class.join(a, b).write(lambda tokens: write(tokens[0], "x", 2.0))
        return r, s, x

    has_path = path(program, testing.slot(0), testing.slot(1))
    assert has_path("r", "x")
    assert has_path("s", "x")


@check
def no_buffer_stands_twice_in_a_handle(handle_class):
    def replace(token):
        return testing.write(token, 1.0), jnp.copy(token)

    def batched(step):
        return lambda handle: jax.vmap(step)(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), handle))

    steps = [
        lambda handle: handle,
        lambda handle: handle.read(testing.read)[1],
        lambda handle: handle.write(testing.write, 1.0)[1],
        lambda handle: handle.write(replace, token=lambda result: result[1])[1],
        lambda handle: handle_class.join(handle, handle_class(testing.slot(1))),
        lambda handle: handle_class.join(handle, handle_class(testing.slot(1))).split()[0],
        lambda handle: handle_class.join(handle.read(testing.read)[1], handle.read(testing.read)[1]),
    ]
    for step in steps:
        for apply in (step, jax.jit(step), jax.jit(step, donate_argnums=0), batched(step)):
            stepped = apply(handle_class(testing.slot(0)))
            leaves = jax.tree.leaves(stepped)
            assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves) > 0
            jax.jit(lambda handle: handle, donate_argnums=0)(stepped)  # raises if a buffer is donated twice


@check
def a_handle_shares_no_buffer_with_its_caller_or_another_handle(handle_class):
    def make(token):
        return handle_class(token), handle_class(token), handle_class(token, token), handle_class((token, token))

    for apply in (make, jax.jit(make)):
        token = testing.slot(0)
        handles = apply(token)
        leaves = [token, *jax.tree.leaves(handles)]
        assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves) == 11
        jax.jit(lambda handles: handles, donate_argnums=0)(handles)  # raises if a buffer is donated twice
        assert not token.is_deleted()


@check
def what_comes_after_a_value_waits_for_it_and_holds_back_no_read(handle_class):
    def program(token, other, third):
        snapshot = read(third, "snapshot")
        handle = handle_class(token)
        a, handle = handle.read(read, "a")
        b, handle = handle.after(snapshot).read(read, "b")
        handle = handle_class(other)
        c, handle = handle.read(read, "c")
        w, handle = handle.after(snapshot).write(write, "w", 1.0)
        return (a, b, c, w)

    has_path = path(program, testing.slot(0), testing.slot(1), testing.slot(2))
    for first, then in [("snapshot", "b"), ("snapshot", "w"), ("c", "w")]:
        assert has_path(first, then), (first, then)
    assert not has_path("a", "b")


@check
def an_access_costs_one_call_of_one_token(handle_class):
    def entangles(program):
        jaxpr = jax.make_jaxpr(program)(handle_class(testing.slot(0)))
        return [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "entangle"]

    (eqn,) = entangles(lambda handle: handle.read(testing.read))
    assert [v.aval.shape for v in eqn.invars] == [(), ()]
    assert len(eqn.outvars) == 1
    (eqn,) = entangles(lambda handle: handle.write(testing.write, 1.0))
    assert [v.aval.shape for v in eqn.invars] == [(), (), ()]
    assert not entangles(lambda handle: (handle.token, handle.wait()))


# These last: they take longest.
for _hazard in HAZARDS:
    check(functools.partial(check_hazard, hazard=_hazard))
