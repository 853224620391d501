"""The audit proves nothing false: each program here was once called free of races, or a right one a race."""

from types import SimpleNamespace

import delays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec

from entangle_jax import Handle, _partitioning, audit, entangle, testing

TARGETS = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}
CALLBACK = f"xla_ffi_python_{'cpu' if jax.default_backend() == 'cpu' else 'gpu'}_callback"
TOKEN = jax.ShapeDtypeStruct((), jnp.int32)
PREDICATE = jax.ShapeDtypeStruct((), jnp.bool_)
FLOATS = jax.ShapeDtypeStruct((8,), jnp.float32)
FLOAT = jax.ShapeDtypeStruct((), jnp.float32)
read, write = testing.read, testing.write


def races(function, *arguments, **options):
    return audit(function, *arguments, **{**TARGETS, **options}).races


# What a handle is. Each makes a handle that may be the slot beside it: reading it and writing the slot is a race.

CONSTANT = {
    "a choice, converted": (lambda p: jnp.where(p, jnp.int16(200), jnp.int16(3)).astype(jnp.int32), 200),
    "a choice, cut to 8 bits": (
        lambda p: jnp.where(p, jnp.int16(200), jnp.int16(3)).astype(jnp.int8).astype(jnp.int32),
        -56,
    ),
    "a constant, cut to 8 bits": (lambda p: jnp.int32(300).astype(jnp.uint8).astype(jnp.int32), 44),
    "a choice, clipped": (lambda p: jnp.clip(jnp.where(p, 1, 9), 2, 3).astype(jnp.int32), 3),
    "a table with something added": (lambda p: jnp.arange(4, dtype=jnp.int32).at[p.astype(int)].add(5)[1], 6),
    "a count of a loop": (lambda p: lax.fori_loop(0, 3, lambda i, h: h + i, jnp.int32(0)), 3),
    "a sum over a batch": (
        lambda p: jax.vmap(lambda _: lax.psum(jnp.int32(1), "x"), axis_name="x")(jnp.broadcast_to(p, 4))[0],
        4,
    ),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_a_number_made_of_constants_may_be_the_constant_that_it_is(name):
    make, slot = CONSTANT[name]
    assert races(lambda p: (read(make(p)), write(jnp.int32(slot), 1.0)), PREDICATE)


OF_ARGUMENTS = {
    "argmax": (lambda x: jnp.argmax(x).astype(jnp.int32), 3),
    "indices of top_k": (lambda x: lax.top_k(x, 2)[1][0], 3),
    "values of top_k": (lambda x: lax.top_k(jnp.where(x > 0, jnp.arange(8), 9), 2)[0][0].astype(jnp.int32), 7),
    "clip": (lambda x: jnp.clip(x[0].astype(jnp.int32), 2, 3), 2),
    "count": (lambda x: jnp.sum(x > 0, dtype=jnp.int32), 5),
    "search": (lambda x: jnp.searchsorted(jnp.arange(4.0), x[0]).astype(jnp.int32), 2),
    "comparison": (lambda x: (x[0] > 0).astype(jnp.int32), 1),
    "random": (lambda x: jax.random.randint(jax.random.key(x[0].astype(jnp.int32)), (), 0, 9), 4),
    "of a callback": (lambda x: jax.pure_callback(lambda x: np.int32(5), TOKEN, x), 5),
}


@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_what_an_argument_chooses_among_constants_may_be_any_of_them(name):
    make, slot = OF_ARGUMENTS[name]
    assert races(lambda x: (read(make(x)), write(testing.slot(slot), 1.0)), FLOATS)


CHOSEN = {
    "plus one": lambda p, token: jnp.where(p, 5, token) + 1,
    "at least zero": lambda p, token: jnp.maximum(jnp.where(p, 6, token), 0),
    "in a loop": lambda p, token: lax.fori_loop(0, 2, lambda _, h: h + p.astype(jnp.int32), jnp.where(p, 4, token)),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_constant_that_is_computed_with_an_argument_is_not_lost(name):
    assert races(lambda p, token: (read(CHOSEN[name](p, token)), write(testing.slot(6), 1.0)), PREDICATE, TOKEN)


def test_a_number_computed_from_one_argument_may_be_another_argument():
    assert races(lambda a, b: (read(a + 1), write(b, 1.0)), TOKEN, TOKEN)


def test_what_is_passed_on_unchanged_is_still_told_apart():
    unchanged = {
        "plus zero": lambda h: h + 0,
        "a wider type": lambda h: h.astype(jnp.int8).astype(jnp.int32) if h.dtype == jnp.int8 else h,
        "a barrier": lambda h: lax.optimization_barrier((h, jnp.float32(1)))[0],
        "a loop": lambda h: lax.fori_loop(0, 3, lambda _, h: entangle(h, read(h)), h),
        "a choice of itself": lambda h: jnp.where(h > 2, h, h),
    }
    for name, change in unchanged.items():
        assert races(lambda a, b, change=change: (read(change(a)), write(b, 1.0)), TOKEN, TOKEN) == (), name


def test_a_result_of_another_type_is_no_token():
    # What a read returns is a number of the object's own, here used as the name of another object.
    assert races(lambda a, b: (write(read(a).astype(jnp.int32), 1.0), read(b)), TOKEN, TOKEN)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))


COLLECTIVES = {
    "psum": (lambda h: lax.psum(jnp.int32(1), "x") + 0 * h[0], 4),
    "psum of the handle": (lambda h: lax.psum(h[0], "x"), 6),
    "ppermute": (lambda h: lax.ppermute(h, "x", [(0, 1)])[0], 0),
    "psum_scatter": (lambda h: lax.psum_scatter(jnp.ones(4, jnp.int32), "x", tiled=True)[0] + 0 * h[0], 4),
    "all_gather": (lambda h: lax.all_gather(jnp.int32([7]) + 0 * h, "x", tiled=True)[1], 7),
    "axis_index": (lambda h: lax.axis_index("x") + 0 * h[0], 2),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_compute_or_fill_in(mesh, name):
    make, slot = COLLECTIVES[name]

    def on_each(handles):
        value, token = read(make(handles)), write(testing.slot(slot), 1.0)
        return value[None], token[None]

    spec = PartitionSpec("x")
    program = jax.jit(jax.shard_map(on_each, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    assert races(program, jax.ShapeDtypeStruct((4,), jnp.int32, sharding=NamedSharding(mesh, spec)))


# Loops and branches.


def through_a_handle(loop):
    def program(token, count, x):
        handle = Handle(token)
        seen, handle = loop(handle, count, x)
        _, handle = handle.write(write, 5.0)
        return seen, handle.read(read)[0]

    return program


def reading(x):
    def step(_, carry):
        handle, seen = carry
        value, handle = handle.read(read, x)
        return handle, seen + value

    return step


def scanned(handle, x):
    handle, values = lax.scan(lambda h, _: h.read(read, x)[::-1], handle, length=3)
    return handle, values.sum()


HOISTED = {
    "fori_loop": lambda h, n, x: lax.fori_loop(0, 3, reading(x), (h, 0.0))[::-1],
    "fori_loop, traced": lambda h, n, x: lax.fori_loop(0, n, reading(x), (h, 0.0))[::-1],
    "fori_loop, zero": lambda h, n, x: lax.fori_loop(0, 0, reading(x), (h, 0.0))[::-1],
    "while_loop": lambda h, n, x: lax.while_loop(
        lambda c: c[1] < n, lambda c: (reading(x)(0, c[0]), c[1] + 1), ((h, 0.0), 0)
    )[0][::-1],
    "scan": lambda h, n, x: scanned(h, x)[::-1],
    "nested": lambda h, n, x: lax.fori_loop(0, n, lambda i, c: lax.fori_loop(0, n, reading(x), c), (h, 0.0))[::-1],
    "nested scans": lambda h, n, x: lax.fori_loop(
        0, n, lambda i, c: (lambda s: (s[0], s[1] + c[1]))(scanned(c[0], x)), (h, 0.0)
    )[::-1],
    "in a branch": lambda h, n, x: lax.cond(
        n > 1, lambda h: lax.fori_loop(0, n, reading(x), (h, 0.0)), lambda h: reading(x)(0, (h, 0.0)), h
    )[::-1],
}


@pytest.mark.parametrize("name", HOISTED)
@pytest.mark.parametrize("given", ["an argument", "made here"])
def test_reads_that_are_taken_out_of_a_loop_are_no_race(name, given):
    def program(token, count, x):
        handle = token if given == "an argument" else Handle(token)
        seen, handle = HOISTED[name](handle, count, x)
        _, handle = handle.write(write, 5.0)
        return seen, handle.read(read)[0]

    token = Handle(testing.slot(0)) if given == "an argument" else TOKEN
    assert races(program, token, jnp.int32(0), jnp.float32(1)) == ()


def test_reads_that_are_taken_out_of_a_loop_by_hand_are_no_race():
    def program(token, count, x):
        def step(_, carry):
            token, seen = carry
            value = read(token, x)
            return entangle(token, value), seen + value

        token, seen = lax.fori_loop(0, count, step, (token, jnp.float32(0)))
        return seen, write(token, 1.0)

    assert races(program, TOKEN, TOKEN, FLOAT) == ()


def late(x):
    for i in range(6):
        x = jnp.sort(x ^ i)
    return x


NOISE = delays.numbers(30_000)


def passed_through_a_loop(token, noise, count):
    value = read(token, late(noise))

    def step(_, carry):
        witness, seen = carry
        return lax.optimization_barrier((witness, value))[0], seen + value

    witness, seen = lax.fori_loop(0, count, step, (count, jnp.float32(0)))
    return seen, write(entangle(token, witness), 1.0)


def passed_through_a_branch(token, noise, count):
    value = read(token, late(noise))

    def branch(factor):
        return lambda witness: (lax.optimization_barrier((witness, value))[0], value * factor)

    witness, seen = lax.cond(count > 1, branch(1.0), branch(2.0), count)
    return seen, write(entangle(token, witness), 1.0)


def passed_through_nested(token, noise, count):
    value = read(token, late(noise))

    def inner(_, carry):
        witness, _ = carry
        return lax.cond(count > 1, lambda w: (w, value), lambda w: (w, value * 2), witness)

    def outer(_, carry):
        return lax.fori_loop(0, count, inner, carry)

    witness, seen = lax.fori_loop(0, count, outer, (count, jnp.float32(0)))
    return seen, write(entangle(token, witness), 1.0)


def decided_by_a_read(token, noise, count):
    # What both branches hand on waits for nothing, not even for what decides between them.
    value = read(token, late(noise))
    same, seen = lax.cond(value > 1, lambda t: (t, value * 3), lambda t: (t, value + count), token)
    return seen, write(same, 1.0)


def a_loop_that_a_read_ends(token, noise, count):
    value = read(token, late(noise))
    same, seen = lax.while_loop(lambda c: c[1] < value, lambda c: (c[0], c[1] + count), (token, jnp.float32(0)))
    return seen, write(same, 1.0)


PASSED_THROUGH = [
    passed_through_a_loop,
    passed_through_a_branch,
    passed_through_nested,
    decided_by_a_read,
    a_loop_that_a_read_ends,
]


@pytest.mark.parametrize("program", PASSED_THROUGH, ids=lambda program: program.__name__)
@pytest.mark.parametrize("form", ["both", "compiled"])
def test_what_is_only_passed_through_makes_nothing_wait(program, form):
    lowered = jax.jit(program).lower(TOKEN, jax.ShapeDtypeStruct(NOISE.shape, jnp.int32), jnp.int32(2))
    assert audit(lowered if form == "both" else lowered.compile(), **TARGETS).races


# Conditionals whose choice is a constant.


FOLDED = {
    "a number": lambda count: jnp.int32(1),
    "past the end": lambda count: jnp.int32(7),
    "a largest number": lambda count: jnp.argmax(jnp.array([1, 3, 2])),
    "times zero": lambda count: count * 0 + 1,
    "a loop": lambda count: lax.fori_loop(0, 1, lambda _, i: i + 1, jnp.int32(0)),
}


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("branches", [2, 3])
def test_calls_in_branches_that_never_run_are_no_race(name, branches):
    # XLA leaves the conditional behind, with the calls of the other branches in it.
    def program(token, count, x):
        def writing(value):
            def branch(token):
                token = write(token, value + x)
                seen = read(token)
                return seen, entangle(token, seen)

            return branch

        seen, token = lax.switch(FOLDED[name](count), [writing(float(i)) for i in range(branches)], token)
        return seen, write(token, x)

    assert races(program, TOKEN, TOKEN, FLOAT) == ()


@pytest.mark.parametrize("name", ["an argument", *FOLDED])
def test_a_conditional_that_xla_removes_makes_nothing_wait(name):
    # Each branch makes the witness anew, and one of them calls beside it.
    def program(token, other, flag, count, x):
        choice = flag if name == "an argument" else FOLDED[name](count) > 0

        def beside(witness):
            return entangle(witness, jnp.int32(1)), write(token, x)

        def alone(witness):
            return entangle(witness, jnp.int32(1)), token + 1

        witness, written = lax.cond(choice, beside, alone, x)
        return read(entangle(other, witness)), written

    arguments = TOKEN, TOKEN, PREDICATE, TOKEN, FLOAT
    report = audit(program, *arguments, **TARGETS, same=[(0, 1)])
    assert bool(report.races) == (name != "an argument")


# Witnesses on one device.


def after_a_callback(mesh, bring):
    """A callback on the first device, then a write on each that waits for its result, brought to all devices or not."""

    def program(token, x):
        value = io_callback(lambda t: np.float32(1), FLOAT, token)

        def each(t, v):
            return write(entangle(t, lax.psum(v, "x")) if bring else t, 1.0)

        token = token if bring else entangle(token, value)
        on_each = jax.shard_map(
            each, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec()), out_specs=PartitionSpec(), check_vma=False
        )
        return on_each(token, value if bring else x[0]), x.sum()

    token = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("x")))
    named = {"reads": {"log": [CALLBACK]}, "writes": {"log": [testing.WRITE_TARGET]}}
    return audit(jax.jit(program), token, x, **named)


def test_a_result_on_one_device_proves_nothing_for_the_others(mesh, monkeypatch):
    # As if `entangle` did not bring it to all devices.
    monkeypatch.setattr(_partitioning, "_on_all_devices", lambda sharding: sharding)
    (race,) = after_a_callback(mesh, bring=False).races
    assert race.programs == ("compiled",)
    assert {race.first.target, race.second.target} == {CALLBACK, testing.WRITE_TARGET}


@pytest.mark.parametrize("by", ["entangle", "psum"])
def test_a_result_on_one_device_that_is_brought_to_all_is_a_proof(mesh, by):
    assert after_a_callback(mesh, bring=by == "psum").races == ()


def test_callbacks_on_one_device_are_in_order_there(mesh):
    def program(token, x):
        first = io_callback(lambda t: np.float32(1), FLOAT, token)
        second = io_callback(lambda t: np.float32(2), FLOAT, entangle(token, first))
        return second, x.sum()

    sharding = NamedSharding(mesh, PartitionSpec("x"))
    x = jax.device_put(jnp.ones(8), sharding)
    token = jax.device_put(jnp.int32(0), NamedSharding(mesh, PartitionSpec()))
    assert audit(jax.jit(program), token, x, writes={"log": [CALLBACK]}).races == ()


# What was asked.


def both(token):
    value = read(token)
    return value, write(entangle(token, value), 1.0)


MISSPELT = {
    "writes": {"reads": [testing.READ_TARGET], "writes": ["entangle_testing_wriet"]},
    "reads": {"reads": ["entangle_testing_raed"], "writes": [testing.WRITE_TARGET]},
    "a resource's": {"reads": {"db": ["entangle_testing_raed"]}, "writes": {"db": [testing.WRITE_TARGET]}},
    "two in one": {"reads": [testing.READ_TARGET], "writes": [f"{testing.WRITE_TARGET},other"]},
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_name_is_no_proof(name):
    wanted = rf"is no native target: nothing here calls it.*called here: entangle, {testing.READ_TARGET}, {testing.WRITE_TARGET}"
    with pytest.raises(ValueError, match=wanted):
        audit(both, TOKEN, **MISSPELT[name])


def test_reads_without_writes_are_no_proof():
    with pytest.raises(ValueError, match=r"`reads` names targets and `writes` names none.*would find nothing"):
        audit(both, TOKEN, reads=[testing.READ_TARGET])


def test_a_name_that_is_registered_and_not_called_is_listed():
    jax.block_until_ready(jax.jit(both)(testing.slot(0)))  # so that jax has registered its targets
    report = audit(lambda token: write(token, 1.0), TOKEN, **TARGETS)
    assert report.not_called == (testing.READ_TARGET,)
    report.raise_if_races()


# Resources and objects.


def on_a_list():
    """Two callbacks that append to one list in Python, of which one is given no operand."""
    log = []

    def append(*_):
        log.append(len(log))
        return np.float32(len(log))

    return lambda x: (io_callback(append, FLOAT, x), io_callback(append, FLOAT))


def test_callbacks_are_one_object_unless_they_are_told_apart():
    everything = audit(on_a_list(), FLOAT, writes=[CALLBACK])
    assert len(everything.races) == 1
    assert len(audit(on_a_list(), FLOAT, writes={"log": [CALLBACK]}).races) == 1
    assert len(audit(on_a_list(), FLOAT, writes=[(CALLBACK, ())]).races) == 1
    assert audit(on_a_list(), FLOAT, writes={"log": [(CALLBACK, "index")]}).races == ()
    with pytest.raises(ValueError, match=r"has 0 operand.*or name the resource that all of its calls touch"):
        audit(on_a_list(), FLOAT, writes=[(CALLBACK, 0)])


def simulator(geometry, camera):
    """As of a scene: its refit is given the geometry, and its render the camera."""
    return write(geometry, 1.0), read(camera)


def test_a_resource_makes_one_object_of_all_its_calls():
    assert audit(simulator, TOKEN, TOKEN, **TARGETS).races == ()
    scene = {"reads": {"scene": [testing.READ_TARGET]}, "writes": {"scene": [testing.WRITE_TARGET]}}
    (race,) = audit(simulator, TOKEN, TOKEN, **scene).races
    assert race.handle == "scene"
    operands = {"reads": {"scene": [(testing.READ_TARGET, 0)]}, "writes": {"scene": [(testing.WRITE_TARGET, 0)]}}
    assert audit(simulator, TOKEN, TOKEN, **operands).races == ()
    two = {"reads": {"scene": [testing.READ_TARGET]}, "writes": {"camera": [testing.WRITE_TARGET]}}
    assert audit(lambda token: (read(token), write(token, 1.0)), TOKEN, **two).races == ()


def test_what_was_taken_for_different_objects_is_said():
    report = audit(simulator, TOKEN, TOKEN, **TARGETS)
    compiled = {one.name: one for one in report.objects if one.program == "compiled"}
    assert set(compiled) == {"argument 0 (geometry)", "argument 1 (camera)"}
    geometry, camera = compiled["argument 0 (geometry)"], compiled["argument 1 (camera)"]
    assert [call.kind for call in geometry.writers] == ["write"]
    assert [call.kind for call in camera.readers] == ["read"]
    assert geometry.readers == camera.writers == geometry.may_be == ()
    assert (
        "Taken for different objects, which no program can prove:\n"
        f"  argument 0 (geometry): written by {testing.WRITE_TARGET}\n"
        f"  argument 1 (camera): read by {testing.READ_TARGET}\n"
    ) in f"{report}\n"
    assert "Taken for different" not in str(audit(both, TOKEN, **TARGETS))
    assert len(report.to_dict()["objects"]) == 4


def test_an_attribute_names_an_object():
    def program(token):
        return write(token, 1.0, label="a"), write(token, 2.0, label="b"), read(token, label="a")

    named = {"reads": [(testing.READ_TARGET, "label")], "writes": [(testing.WRITE_TARGET, "label")]}
    (race,) = audit(program, TOKEN, **named).races
    assert race.handle == 'label = "a"'
    with pytest.raises(ValueError, match="has no such attribute"):
        audit(program, TOKEN, writes=[(testing.WRITE_TARGET, "scene")])


# The two parts of a handle that is an argument.


def forgotten(handle):
    """Writes through the token of a handle after reads that a later write, through its fence, does not know."""
    return read(handle.token), write(handle.fence, 1.0)


class Wrapper:
    """As another library does it: jax is given the leaves, and the wrapper keeps how they belong together."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)

    def lower(self, *args):
        leaves, tree = jax.tree.flatten(args)
        lowered = jax.jit(lambda leaves: self.function(*jax.tree.unflatten(tree, leaves))).lower(leaves)
        return SimpleNamespace(lowered=lowered)


def in_pmap(handle):
    return jax.pmap(forgotten).lower(jax.tree.map(lambda leaf: leaf[None], handle))


WITHOUT_NAMES = {
    "jit": lambda handle: jax.jit(forgotten).lower(handle),
    "nested": lambda handle: jax.jit(lambda x, tree: forgotten(tree["h"][0])).lower(3.0, {"h": [handle], "g": handle}),
    "keywords": lambda handle: jax.jit(lambda *, h: forgotten(h)).lower(h=handle),
    "pmap": in_pmap,
    "compiled": lambda handle: jax.jit(forgotten).lower(handle).compile(),
}


@pytest.mark.parametrize("name", WITHOUT_NAMES)
def test_a_forgotten_handle_is_found_whatever_its_arguments_are_called(name):
    report = audit(WITHOUT_NAMES[name](Handle(testing.slot(0))), **TARGETS)
    assert report.races
    assert not report.unnamed_arguments


def test_a_forgotten_handle_is_found_behind_another_library():
    handle = Handle(testing.slot(0))
    assert audit(Wrapper(forgotten), handle, **TARGETS).races
    # Its lowered program does not say which leaves belong together.
    lowered = Wrapper(forgotten).lower(handle)
    report = audit(lowered, **TARGETS)
    assert report.unnamed_arguments
    assert "Say which are one object with `same=[(0, 1)]`" in str(report)
    with pytest.raises(ValueError, match="this is no proof"):
        report.raise_if_races()
    assert audit(lowered, **TARGETS, same=[(0, 1)]).races


def test_two_handles_are_two_objects():
    def program(a, b):
        return read(a.token), write(b.fence, 1.0)

    assert races(program, Handle(testing.slot(0)), Handle(testing.slot(1))) == ()
