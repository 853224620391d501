"""`ordered`: native calls and callbacks run as the function reads, and nothing else changes."""

import functools
import re
import threading
import warnings

import compiled
import delays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

import entangle_jax
from entangle_jax import Handle, OrderingWarning, _private, audit, ordered, reads, testing, writes
from entangle_jax._ordering import saved

X = delays.numbers(3_000)
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


@reads("slot", handle="token")
def read(token, *late, label=None):
    return testing.read(token, *late, label=label)


@writes("slot", handle="token")
def write(token, value, label=None):
    return testing.write(token, value, label=label)


def late(x, n=3):
    """An operand that is there only after some work."""
    for i in range(n):
        x = jnp.sort(x ^ (i + 1))
    return x


def run(fn, *args):
    """The results of one run, and what ran: `r0`, `w1`, ..."""
    testing.reset()
    out = jax.block_until_ready(fn(*args))
    jax.effects_barrier()
    return jax.tree.map(lambda x: x.tolist() if hasattr(x, "tolist") else x, out), [
        f"{access.op[0]}{access.value:g}" for access in testing.log()
    ]


def races(fn, *args):
    return audit(fn, *args, reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET]).races


def entangles(fn, *args):
    return len(compiled.native_calls(compiled.text(fn, *args)))


def program(token, x):
    before = read(token, late(x))
    write(token, 1.0)
    after = read(token)
    return before, after, late(x, 6)[0] * 0


def test_a_read_before_a_write_reads_what_was_there_and_one_after_it_what_is():
    for fn in (ordered(program), jax.jit(ordered(program))):
        (before, after, _), log = run(fn, testing.slot(0), X)
        assert (before, after) == (0, 1)
        assert log == ["r0", "w1", "r1"]
    assert run(jax.jit(program), testing.slot(0), X)[0][:2] != [0, 1]
    assert not races(ordered(program), testing.slot(0), X)
    assert races(program, testing.slot(0), X)


def test_straight_code_costs_one_entangle_an_access_and_none_for_the_first():
    def many(token):
        out = []
        for i in range(5):
            out += [read(token), read(token, jnp.float32(i)), write(token, i)]
        return out

    assert 0 < entangles(ordered(many), testing.slot(0)) <= 15 - 2
    assert entangles(ordered(lambda token: (read(token), read(token, token))), testing.slot(0)) == 0
    assert entangles(ordered(lambda token: write(token, 1)), testing.slot(0)) == 0


def test_reads_stay_free_of_each_other_and_objects_of_each_other():
    def two(a, b, x):
        read(a, late(x), label="a1"), read(a, label="a2")
        write(b, 1, label="b1")
        write(a, 1, label="a3")
        return read(b, label="b2"), read(a, label="a4"), read(a, late(x), label="a5")

    depends = compiled.paths(
        compiled.text(ordered(lambda *args: [*two(*args), two(*args)]), testing.slot(0), testing.slot(1), X)
    )
    assert "a1" not in depends["a2"]
    assert not {"b1", "b2"} & depends["a4"]
    assert not {"a1", "a3"} & depends["b2"]
    assert {"b1"} <= depends["b2"]
    assert {"a3"} <= depends["a4"]


def test_without_a_handle_all_of_a_resource_is_one_object_and_resources_are_free_of_each_other():
    whole = (
        reads("one")(functools.partial(testing.read, label="r")),
        writes("one")(functools.partial(testing.write, label="w")),
    )
    other = writes("other")(functools.partial(testing.write, label="o"))

    def fn(a, b):
        whole[1](a, 1)
        other(b, 1)
        return whole[0](b)

    depends = compiled.paths(compiled.text(ordered(fn), testing.slot(0), testing.slot(1)))
    assert depends["r"] == {"w"}
    assert depends["o"] == frozenset()


@pytest.mark.parametrize(
    ("handles", "same"),
    [
        (lambda tokens, i: (tokens[0], tokens[1]), False),
        (lambda tokens, i: (tokens[0], tokens[0]), True),
        (lambda tokens, i: (tokens[0], tokens[i]), True),
        (lambda tokens, i: (tokens[i], tokens[i + 1]), True),
        (lambda tokens, i: (tokens[0], tokens[0] + 0 * i), True),
        (lambda tokens, i: (tokens[0], jnp.where(i > 0, tokens[0], tokens[1])), True),
        (lambda tokens, i: (jnp.int32(0), jnp.int32(1)), False),
        (lambda tokens, i: (jnp.int32(0), jnp.array([0, 1])[i]), True),
        (lambda tokens, i: (tokens[0], jax.lax.fori_loop(0, i, lambda _, t: t + 1, tokens[0])), True),
        (lambda tokens, i: (tokens[0], jax.lax.fori_loop(0, i, lambda _, t: t, tokens[1])), False),
        (lambda tokens, i: (tokens[0], jnp.flip(tokens)[0]), True),
        (lambda tokens, i: (tokens[0], tokens.astype(jnp.int8)[1].astype(jnp.int32)), True),
        (lambda tokens, i: (tokens[0], jax.jit(jnp.copy)(tokens[1])), False),
        (lambda tokens, i: (tokens[0], i), False),
    ],
)
def test_two_handles_are_one_object_unless_they_are_known_to_be_two(handles, same):
    def fn(tokens, i):
        a, b = handles(tokens, i)
        return write(a, 1.0, label="a"), write(b, 2.0, label="b")

    depends = compiled.paths(compiled.text(ordered(fn), jnp.arange(2), jnp.int32(1)))
    assert ("a" in depends["b"]) == same


def test_one_array_passed_twice_is_one_object():
    fn = ordered(lambda a, b: (write(a, 1.0, label="a"), write(b, 2.0, label="b")))
    depends = compiled.paths(compiled.text(lambda a: fn(a, a), testing.slot(0)))
    assert "a" in depends["b"]


def test_a_read_of_what_is_not_written_may_run_once_and_a_volatile_one_runs_as_often_as_written(slots):
    def five(kind):
        rate = reads("rates", **kind)(lambda token: testing.read(token))
        return lambda token: jax.lax.scan(lambda c, _: (c + rate(token), rate(token)), 0.0, length=5)

    assert run(jax.jit(ordered(five({}))), testing.slot(0))[1] == ["r0"]
    assert run(jax.jit(ordered(five({"volatile": True}))), testing.slot(0))[1] == ["r0"] * 10


def test_a_last_write_happens_even_if_its_result_is_not_used():
    seen = []

    def record(x):
        seen.append(float(x))
        return x

    @writes("file")
    def save(x):
        return jax.pure_callback(record, SCALAR, x)

    def fn(x, big):
        save(x)
        save(x + 1)
        jax.lax.fori_loop(0, 2, lambda i, x: save(x), x + 2)
        return big

    def computed(x, big):
        fn(x, big)
        return big, big + 1, big + 2

    for kept in (fn, computed, lambda x, big: fn(x, None)):
        seen.clear()
        jax.block_until_ready(jax.jit(ordered(kept))(jnp.float32(1), jnp.ones(1000)))
        jax.effects_barrier()
        assert seen == [1, 2, 3, 3]
        text = jax.jit(ordered(kept), donate_argnums=1).lower(jnp.float32(1), jnp.ones(1000)).compile().as_text()
        assert not compiled.copies(text, "f32[1000]")


def test_calls_without_operands_and_without_results_are_in_order():
    seen = []

    def add(name, value=None):
        def call(*_):
            seen.append(name)
            return None if value is None else np.float32(value)

        return call

    @writes("queue")
    def nothing_in(name):
        return io_callback(add(name, 1), SCALAR)

    @writes("queue")
    def nothing_out(name, x):
        io_callback(add(name), None, x)

    @writes("queue")
    def neither(name):
        io_callback(add(name), None)

    def fn(x):
        nothing_out("a", late(x))
        neither("b")
        y = nothing_in("c")
        nothing_out("d", late(x, 2))
        neither("e")
        jax.lax.fori_loop(0, 2, lambda i, _: neither("f"), None)
        nothing_in("g")
        return y

    step = jax.jit(ordered(fn))
    for _ in range(5):
        seen.clear()
        step(X).block_until_ready()
        jax.effects_barrier()
        assert seen == ["a", "b", "c", "d", "e", "f", "f", "g"]
    text = step.lower(X).compile().as_text()
    assert len(compiled.instructions(text, "conditional")) >= 6


def test_callbacks_are_told_apart_by_their_functions():
    state = [0.0]

    class Store:
        def get(self, _):
            return np.float32(state[0])

        def put(self, x):
            state[0] = float(x)
            return np.float32(0)

        def other(self, _):
            return np.float32(0)

    store = Store()

    def fn(x):
        a = jax.pure_callback(store.get, SCALAR, late(x))
        jax.pure_callback(store.put, SCALAR, jnp.float32(3))
        c = jax.pure_callback(store.other, SCALAR, jnp.float32(3))
        return a, jax.pure_callback(functools.partial(store.get), SCALAR, x), c, late(x, 6)

    step = jax.jit(ordered(fn, reads=[store.get], writes=[store.put]))
    for _ in range(3):
        state[0] = 0.0
        a, b, *_ = jax.block_until_ready(step(X))
        assert (a, b) == (0, 3)


def test_foreign_calls_are_named_by_target_by_operand_and_by_resource():
    def fn(a, b, x):
        before = testing.read(a, late(x), label="before")
        testing.write(a, 1.0, label="write")
        testing.write(b, 1.0, label="other")
        return before, testing.read(a, label="after")

    args = testing.slot(0), testing.slot(1), X
    read_, write_ = testing.READ_TARGET, testing.WRITE_TARGET
    for options, free in (
        ({"reads": [read_], "writes": [write_]}, False),
        ({"reads": [(read_, 0)], "writes": [(write_, (0,))]}, True),
        ({"reads": {"m": [(read_, 0)]}, "writes": {"m": [(write_, 0)]}}, True),
    ):
        depends = compiled.paths(compiled.text(ordered(fn, **options), *args))
        assert depends["write"] == {"before"}
        assert ("write" in depends["other"]) != free
        assert "write" in depends["after"]
    depends = compiled.paths(compiled.text(ordered(fn, reads={"m": [read_]}, writes={"n": [write_]}), *args))
    assert depends["write"] == frozenset()


def test_what_is_named_and_not_called_is_told():
    with pytest.warns(OrderingWarning, match="`ordered` was told of 'my_solve', and the function makes no such call"):
        jax.jit(ordered(program, reads=["my_solve"])).lower(testing.slot(0), X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(ordered(program, reads=[testing.READ_TARGET])).lower(testing.slot(0), X)


def test_what_is_named_without_a_resource_and_marked_with_one_is_told(slots):
    """One write is both, the other is only named, and the read, which is only marked, does not wait for that."""

    def fn(token, x):
        write(token, 0.5, label="both")
        testing.write(token, 1.0, label="named")
        return read(token, x, label="marked")

    def waits(**options):
        return compiled.paths(compiled.text(ordered(fn, **options), testing.slot(0), X))["marked"]

    named, target = [testing.WRITE_TARGET], testing.WRITE_TARGET
    told = (
        rf"`ordered` was told of '{target}' without a resource, and the function calls it in a function that is marked "
        rf"with 'slot': .*name them with its resource: `{{'slot': \['{target}'\]}}`"
    )
    with pytest.warns(OrderingWarning, match=told):
        assert waits(writes=named) == {"both"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert waits(writes={"slot": named}) == {"both", "named"}
        # All that is marked is named too, or all that is named is marked; or nothing is both.
        assert waits(writes=named, reads=[testing.READ_TARGET]) == {"both", "named"}
        jax.jit(ordered(program, writes=named)).lower(testing.slot(0), X)
        jax.jit(ordered(lambda token: (testing.write(token, 1.0), read(token)), writes=named)).lower(testing.slot(0))


def test_a_function_without_accesses_lowers_to_the_same_text():
    def fn(x, flag, y=2):
        z = jax.lax.scan(lambda c, a: (c + a, jnp.sin(c)), 0.0, x)
        w = jax.jit(jnp.cumsum)(x) if flag else x
        v = jax.lax.cond(z[0] > 0, lambda: jnp.sum(w), lambda: 0.0)
        u = jax.lax.while_loop(lambda c: c < 3, lambda c: c + y, 0)
        jax.debug.print("{}", u)
        jax.debug.print("{}", v, ordered=True)
        io_callback(lambda a: None, None, v, ordered=True)
        return {"z": z, "v": jax.checkpoint(jnp.sin)(v), "u": u, "p": jax.pure_callback(lambda a: a, SCALAR, v)}

    x = jnp.arange(4.0)
    texts = [jax.jit(f, static_argnums=1).lower(x, True).as_text() for f in (fn, ordered(fn))]
    assert texts[0] == texts[1]


def test_source_lines_names_and_scopes_are_the_users():
    def fn(token, x):
        with jax.named_scope("outer"):
            a = read(token, x)

        @jax.jit
        def my_inner(token):
            with jax.named_scope("inner"):
                return write(token, 1.0)

        def body(c, k):
            with jax.named_scope("body"):
                return c, read(token, k)

        return a, my_inner(token), jax.lax.scan(body, 0, jnp.arange(2.0))

    report = audit(ordered(fn), testing.slot(0), X, reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET])
    lines = {source.file for call in report.calls for source in call.sources[:1]}
    assert lines <= {__file__, testing.__file__}
    of_entangles = [call for call in report.calls if call.kind == "entangle"]
    assert of_entangles
    assert all(call.source.file == __file__ for call in of_entangles), of_entangles
    names = [call.op_name for call in report.calls if call.kind in ("read", "write") and call.program == "compiled"]
    assert any("fn)/outer/" in name for name in names)
    assert any("my_inner)" in name and "/inner/" in name for name in names)
    assert any("/body/" in name for name in names)


def test_nested_jits_keep_names_donation_and_shardings():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    split = NamedSharding(mesh, PartitionSpec("i"))

    @functools.partial(jax.jit, donate_argnums=1, in_shardings=(None, split), out_shardings=(None, split))
    def my_step(token, x):
        write(token, 1.0)
        return read(token), x + 1

    def fn(token, x):
        read(token)
        return my_step(token, x)

    jaxpr = jax.make_jaxpr(ordered(fn))(testing.slot(0), jnp.arange(4.0))
    (inner,) = [eqn for eqn in jaxpr.eqns if eqn.params.get("name") == "my_step"]
    assert inner.params["donated_invars"][-1] is True
    assert split in inner.params["in_shardings"]
    assert split in inner.params["out_shardings"]


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("check", [False, True])
def test_in_shard_map_each_device_has_its_own_order_and_nothing_is_communicated(explicit, check, slots):
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2,), ("i",), axis_types=(kind,), devices=jax.devices()[:2])
    spec = PartitionSpec("i")

    def each(token, x):
        before = read(token[0], late(x))
        write(token[0], before + 1)

        def body(c, k):
            write(token[0], read(token[0], late(x)) + 1)
            return c, read(token[0])

        _, ys = jax.lax.scan(body, 0, jnp.arange(2))
        return before[None], read(token[0])[None], ys[None]

    def fn(token, x):
        # JAX cannot split a native write outside of `shard_map`.
        split = jax.shard_map(each, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=check)
        return split(token, x), split(token, x)

    step = jax.jit(ordered(fn))
    args = [jax.device_put(x, NamedSharding(mesh, spec)) for x in (jnp.arange(2, dtype=jnp.int32), jnp.asarray(X))]
    (first, second), _ = run(step, *args)
    assert first == ([0, 0], [3, 3], [[2, 3], [2, 3]])
    assert second == ([3, 3], [6, 6], [[5, 6], [5, 6]])
    assert not compiled.collectives(compiled.text(step, *args))


def test_a_batch_of_calls_is_one_access(slots):
    def each(token, x):
        before = read(token)
        write(token, x)
        return before, read(token)

    for fn in (ordered(jax.vmap(each)), jax.vmap(ordered(each))):
        (before, after), log = run(jax.jit(fn), jnp.arange(3), jnp.arange(1.0, 4.0))
        assert (before, after) == ([0, 0, 0], [1, 2, 3])
        assert len(log) == 9


@pytest.mark.parametrize("flow", ["cond", "while"])
def test_a_predicate_that_an_outer_vmap_batches_is_refused(flow):
    def fn(token, flag):
        if flow == "cond":
            return jax.lax.cond(flag > 0, lambda: write(token, 1.0), lambda: token)
        return jax.lax.while_loop(lambda k: k < flag, lambda k: k + 1 + 0 * write(token, 1.0), 0)

    batched = jax.vmap(ordered(fn), in_axes=(None, 0))
    with pytest.raises(TypeError, match=rf"`vmap` batches the predicate of the `{flow}` at .*test_ordered.py:\d+"):
        jax.jit(batched)(testing.slot(0), jnp.arange(2))
    with pytest.raises(TypeError, match="`vmap` batches the predicate"):
        jax.jit(jax.vmap(jax.jit(ordered(fn)), in_axes=(None, 0)))(testing.slot(0), jnp.arange(2))
    if flow == "cond":
        jax.jit(jax.vmap(ordered(fn), in_axes=(0, None)))(jnp.arange(2), jnp.int32(1))


def matrix(x):
    """A function with a native read in it, that has a derivative."""

    @jax.custom_jvp
    def scaled(x, token, late):
        return x * read(token, late)

    @scaled.defjvp
    def _(primals, tangents):
        (x, token, late), (dx, _, _) = primals, tangents
        rate = read(token, late)
        return x * rate, dx * rate

    return scaled


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("transform", ["grad", "jvp", "linearize", "hessian", "vjp of scan"])
def test_derivatives_see_what_the_function_sees(transform, outside, slots):
    scaled = matrix(None)

    def fn(x, token, y):
        write(token, 2.0)
        a = scaled(x, token, late(y))
        write(token, 3.0)
        b = scaled(a * a, token, late(y))
        if transform == "vjp of scan":

            def body(c, k):
                write(token, k)
                return scaled(c, token, late(y)), None

            b, _ = jax.lax.scan(body, b, jnp.arange(1.0, 3.0))
        write(token, 9.0)
        return b

    def transformed(f):
        match transform:
            case "jvp":
                return lambda x, *rest: jax.jvp(lambda x: f(x, *rest), (x,), (x * 0 + 1,))[1]
            case "linearize":
                return lambda x, *rest: jax.linearize(lambda x: f(x, *rest), x)[1](x * 0 + 1)
            case "hessian":
                return jax.hessian(f)
            case _:
                return jax.grad(f)

    # (2 x)^2 * 3, and twice that after the loop
    expected = {"hessian": 24.0, "vjp of scan": 2 * 24.0 * 5}.get(transform, 24.0 * 5)
    step = transformed(ordered(fn)) if outside else ordered(transformed(fn))
    if (transform, outside) == ("vjp of scan", False):
        # To differentiate a loop JAX takes out of it what nothing in it changes, reads too, before `ordered` sees it.
        jaxpr = jax.make_jaxpr(transformed(fn))(jnp.float32(5), testing.slot(0), X)
        loops = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
        assert testing.READ_TARGET not in str(loops)
        return
    for _ in range(3):
        testing.reset()
        assert jax.jit(step)(jnp.float32(5), testing.slot(0), X) == expected


def test_a_custom_vjp_with_accesses_in_its_backward_pass_is_in_order_inside_and_refused_outside(slots):
    @jax.custom_vjp
    def scaled(x, token):
        return x * read(token)

    scaled.defvjp(
        lambda x, token: (x * read(token), token), lambda token, ct: (ct * read(token), np.zeros((), jax.dtypes.float0))
    )

    def fn(x, token, y):
        write(token, 2.0)
        a = scaled(x, token)
        write(token, late(y)[0] * 0 + 3.0)
        return a

    # The backward pass comes after the function, so it reads 3.
    assert jax.jit(ordered(jax.grad(fn)))(jnp.float32(5), testing.slot(0), X) == 3
    with pytest.raises(
        TypeError,
        match=r"the derivative of `custom_vjp_call` at .*test_ordered.py:\d+.* has native calls.*Differentiate first",
    ):
        jax.jit(jax.grad(ordered(fn)))(jnp.float32(5), testing.slot(0), X)


def test_a_custom_vjp_without_accesses_in_its_backward_pass_is_right_from_outside(slots):
    @jax.custom_vjp
    def scaled(x, token):
        return x * read(token)

    def forward(x, token):
        rate = read(token)
        return x * rate, rate

    scaled.defvjp(forward, lambda rate, ct: (ct * rate, np.zeros((), jax.dtypes.float0)))

    def fn(x, token, y):
        write(token, late(y)[0] * 0 + 2.0)
        a = scaled(x, token)
        write(token, 3.0)
        return a * a

    for step in (ordered(jax.grad(fn)), jax.grad(ordered(fn))):
        testing.reset()
        assert jax.jit(step)(jnp.float32(5), testing.slot(0), X) == 2 * 5 * 2 * 2


def test_a_checkpointed_read_is_not_read_again_after_a_write_when_differentiated_from_outside(slots):
    def fn(x, token, y):
        write(token, 2.0)
        a = jax.checkpoint(lambda x: jnp.sin(x * jax.lax.stop_gradient(read(token))))(x)
        write(token, late(y)[0] * 0 + 3.0)
        return a

    for _ in range(3):
        testing.reset()
        got = jax.jit(jax.grad(ordered(fn)))(jnp.float32(1), testing.slot(0), X)
        np.testing.assert_allclose(got, 2 * np.cos(2.0), rtol=1e-6)


@writes("slot", handle="token")
def write_quietly(token, value):
    """A write that JAX takes for a function of its operands, so that a checkpoint would make it again."""
    call = jax.ffi.ffi_call(testing.WRITE_TARGET, jax.ShapeDtypeStruct((), jnp.int32), vmap_method="sequential")
    return call(token, jax.lax.stop_gradient(jnp.asarray(value, jnp.float32)))


def twice(x, token):
    a = jnp.sin(x * jax.lax.stop_gradient(read(token)))
    write_quietly(token, 3.0)
    return a * jnp.sin(a * jax.lax.stop_gradient(read(token)))


def scanned(x, token):
    return jax.lax.scan(lambda c, k: (twice(c, token) + 0 * k, None), x, jnp.arange(2.0))[0]


def looped(x, token):
    def once(i, seen):
        return seen + read(token) + 0 * write_quietly(token, i)

    return jnp.sin(x * jax.lax.stop_gradient(jax.lax.fori_loop(0, 2 + jnp.int32(x * 0), once, jnp.float32(1))))


def sharded(x, token):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    everywhere = PartitionSpec()
    return jax.shard_map(twice, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)(x, token)


def test_a_checkpoint_around_a_loop_of_an_ordered_function_is_left_to_jax(slots):
    """In a `while_loop` JAX can save nothing, so it fails on what insists."""

    def fn(x, token):
        once = lambda k: k + ordered(lambda token: (write_quietly(token, 1.0), 1 + 0 * read(token))[1])(token)
        return jnp.sin(x * jax.lax.stop_gradient(jax.lax.while_loop(lambda k: k < x, once, jnp.float32(0))))

    assert jax.grad(jax.checkpoint(fn))(jnp.float32(1), testing.slot(0)) == jnp.cos(jnp.float32(1))


@pytest.mark.parametrize("there", [False, True])
def test_what_a_checkpoint_does_not_know_yet_is_left_for_the_backward_pass(there):
    (eqn,) = jax.make_jaxpr(saved.saved_p.bind)(1.0).eqns
    known, staged, unknown, instantiated, residuals = saved._checkpoint(None, [True], [there], eqn)
    assert (known, staged, unknown, instantiated) == (None, eqn, [True], [True])
    assert residuals == ([] if there else list(eqn.invars))


def test_a_jitted_ordered_function_that_was_traced_before_makes_no_access_again_either(slots):
    step = jax.jit(ordered(twice))
    args = jnp.float32(1), testing.slot(0)
    testing.reset(2.0)
    wanted = jax.grad(step)(*args)
    testing.reset(2.0)
    np.testing.assert_allclose(jax.grad(jax.checkpoint(lambda x, token: step(x, token)))(*args), wanted, rtol=1e-6)


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.nothing_saveable], ids=["default", "nothing saved"])
@pytest.mark.parametrize("jitted", [lambda f: f, jax.jit], ids=["", "jit"])
@pytest.mark.parametrize(
    "function",
    [
        twice,
        looped,
        scanned,
        sharded,
        lambda x, token: jax.jit(twice)(x, token),
        lambda x, token: jax.checkpoint(twice)(x, token),
        lambda x, token: jax.lax.cond(x > 0, twice, lambda x, token: x, x, token),
    ],
    ids=["straight", "while", "scan", "shard_map", "jit", "checkpoint", "cond"],
)
def test_a_checkpoint_around_an_ordered_function_makes_no_access_again(function, jitted, policy, slots):
    args = jnp.float32(1), testing.slot(0)
    around = jax.checkpoint(jitted(ordered(function)), policy=policy)
    testing.reset(2.0)
    wanted = jax.block_until_ready(jax.jit(jax.value_and_grad(ordered(function)))(*args)), testing.log()
    assert [one.op for one in wanted[1]][:3] == (
        ["read", "write", "read"] if function is not looped else ["read", "write"] * 2
    )[:3]
    testing.reset(2.0)
    try:
        got = jax.block_until_ready(jax.jit(jax.value_and_grad(around))(*args)), testing.log()
    except NotImplementedError as error:  # of JAX, until 0.10.2, for calls inside of most constructs
        assert function not in (twice, looped)
        assert jax.__version_info__ < (0, 11)
        assert "Effects not supported in partial-eval of `checkpoint`/`remat`" in str(error)
        return
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-6)
    assert [(one.op, one.value) for one in got[1]] == [(one.op, one.value) for one in wanted[1]]


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("loop", ["none", "scan", "while"])
def test_callbacks_with_ordered_effects_are_in_order_with_those_without(loop, opaque):
    """JAX puts those with ordered effects in order among themselves, and `ordered` all of them."""
    seen = []

    def add(name, value=None):
        return lambda *_: seen.append(name) or value

    push = writes("queue", opaque=opaque)(lambda name: io_callback(add(name), None, ordered=True))
    put = writes("queue", opaque=opaque)(lambda name, x: io_callback(add(name), None, x, ordered=True))
    pull = writes("queue")(lambda name: io_callback(add(name, np.float32(0)), SCALAR))

    def fn(x):
        put("a", late(x)[0])
        pull("b")
        push("c")
        match loop:
            case "scan":
                jax.lax.scan(lambda c, _: (c, (pull("d"), push("e"))[0]), 0, length=2)
            case "while":
                jax.lax.fori_loop(0, x[0] * 0 + 2, lambda _, c: (pull("d"), push("e"), c)[2], 0)
        pull("f")
        put("g", late(x, 2)[0])
        return pull("h")

    def runs(step):
        seen.clear()
        jax.block_until_ready(step(X))
        jax.effects_barrier()
        return "".join(seen)

    expected = "abc" + "dede" * (loop != "none") + "fgh"
    step = jax.jit(ordered(fn))
    assert [runs(step) for _ in range(3)] == [expected] * 3
    assert runs(jax.jit(fn)) != expected


def test_ordered_effects_and_prints_are_left_as_they_are(capfd):
    def fn(token, x):
        jax.debug.print("first {}", read(token), ordered=True)
        write(token, 1.0)
        jax.debug.print("second {}", read(token), ordered=True)
        return read(token)

    jax.jit(ordered(fn))(testing.slot(0), X).block_until_ready()
    jax.effects_barrier()
    assert re.findall(r"\w+ \d", capfd.readouterr().out)[-2:] == ["first 0", "second 1"]


def native_primitive(name, *, writes_late):
    """A primitive of somebody else: its calls appear when it is lowered. It writes slot 0, and gives what it is given."""
    primitive = _private.Primitive(name)
    primitive.def_abstract_eval(lambda x: x)

    def lowered(x):
        value = 1.0 + late(jnp.asarray(X), 3 * writes_late)[0] * 0
        testing.write(jnp.int32(0), value)  # without an operand of the primitive, and without a result
        return x + 0

    mlir.register_lowering(primitive, mlir.lower_fun(lowered, multiple_results=False))
    batching.primitive_batchers[primitive] = lambda args, dims: (primitive.bind(*args), *dims)
    return primitive


hidden_write = native_primitive("test_hidden_write", writes_late=True)


def opaque_visible(token, x):
    testing.write(token, 1.0 + late(x)[0] * 0)
    return testing.read(token)  # needs nothing of the write


def opaque_without_operands(token, x):
    testing.write(jnp.int32(0), 1.0 + late(jnp.asarray(X))[0] * 0)
    return testing.read(jnp.int32(0))


def opaque_hidden(token, x):
    hidden_write.bind(x)
    return testing.read(token)


def opaque_hidden_in_a_function_without_a_rule(token, x):
    y = jax.custom_derivatives.linear_call(lambda r, y: hidden_write.bind(y), lambda r, ct: ct, (), jnp.float32(0))
    return testing.read(token) + y


OPAQUE = [
    opaque_visible,
    opaque_without_operands,
    opaque_hidden,
    opaque_hidden_in_a_function_without_a_rule,
]


@pytest.mark.parametrize("inside", OPAQUE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("around", ["plain", "scan", "jit", "vmap outside"])
def test_calls_of_an_opaque_function_that_give_nothing_to_its_results_are_in_order(inside, around, slots):
    whole = writes("slot", opaque=True)(inside)
    look = reads("slot")(testing.read)

    def fn(token, x):
        before = look(token, late(x))
        if around == "scan":
            _, (inner, within) = jax.lax.scan(lambda c, _: (c, (whole(token, x), look(token))), 0, length=2)
            inner, within = inner[0], within[0]
        else:
            inner, within = (jax.jit(whole) if around == "jit" else whole)(token, x), look(token)
        writes("slot")(testing.write)(token, 5.0)
        return before, inner, within, look(token), late(x, 6)[0] * 0

    step = jax.jit(ordered(fn))
    if around == "vmap outside":
        step = jax.jit(lambda token, x: jax.tree.map(lambda y: y[0], jax.vmap(ordered(fn), (None, 0))(token, x[None])))
    for _ in range(3):
        (*values, _), log = run(step, testing.slot(0), X)
        assert values == [0, 1, 1, 5]
        assert log[-2:] == ["w5", "r5"]
    if around != "vmap outside":
        assert run(jax.jit(fn), testing.slot(0), X)[0][:4] != [0, 1, 1, 5]
        assert not audit(ordered(fn), testing.slot(0), X).races


def test_an_opaque_function_runs_in_one_branch_that_xla_keeps(slots):
    whole = writes("slot", opaque=True)(hidden_write.bind)
    look = reads("slot")(testing.read)
    text = compiled.text(ordered(lambda token, x: (look(token), whole(x), look(token))), testing.slot(0), X)
    found = compiled.instructions(text, "conditional")
    # jax 0.10.0 leaves one on a constant: which platform it is.
    assert sum(not each.operands[0].startswith("constant") for each in found) == 1


def test_what_an_opaque_function_does_under_other_marks_and_names_is_in_order_too(slots):
    @writes("all", opaque=True)
    def both(token, x):
        writes("other")(testing.write)(token, 1.0 + late(x)[0] * 0)
        return testing.read(testing.slot(1))

    def fn(token, x):
        return both(token, x), reads("other")(testing.read)(token)

    for _ in range(3):
        assert run(jax.jit(ordered(fn)), testing.slot(0), X)[0] == (0, 1)
    assert run(jax.jit(fn), testing.slot(0), X)[0] != (0, 1)

    named = {"reads": {"other": [testing.READ_TARGET]}, "writes": {"other": [testing.WRITE_TARGET]}}
    whole = writes("all", opaque=True)(opaque_visible)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = jax.jit(ordered(lambda token, x: (whole(token, x), testing.read(token)), **named))
        assert run(step, testing.slot(0), X)[0] == (1, 1)


def test_opaque_functions_with_different_handles_are_in_order(slots):
    """What they use is not seen: here both write slot 0, whatever their handle."""
    whole = writes("slot", handle="token", opaque=True)(lambda token, x: hidden_write.bind(x))

    def fn(a, b, x):
        return whole(a, x), reads("slot", handle="token")(testing.read)(b)

    for _ in range(3):
        assert run(jax.jit(ordered(fn)), testing.slot(1), testing.slot(0), X)[0][1] == 1
    assert run(jax.jit(fn), testing.slot(1), testing.slot(0), X)[0][1] == 0


def test_a_last_write_in_an_opaque_function_happens(slots):
    seen = []

    @writes("file", opaque=True)
    def save(x):
        jax.pure_callback(lambda x: seen.append(float(x)) or x, SCALAR, x)
        return x + 1

    jax.jit(ordered(lambda x: (save(x), x)[1]))(jnp.float32(3)).block_until_ready()
    assert seen == [3]


def test_derivatives_from_outside_of_an_opaque_function_see_what_it_sees(slots):
    whole = writes("slot", opaque=True)(lambda x, token, y: matrix(None)(x, token, late(y)))

    def fn(x, token, y):
        write_slot = writes("slot")(testing.write)
        write_slot(token, 2.0)
        a = whole(x, token, y)
        write_slot(token, 3.0)
        return a * a

    for step in (ordered(jax.grad(fn)), jax.grad(ordered(fn))):
        testing.reset()
        assert jax.jit(step)(jnp.float32(5), testing.slot(0), X) == 2 * 5 * 2 * 2
    hidden = writes("slot", opaque=True)(hidden_write.bind)
    with pytest.raises(
        TypeError, match=r"the derivative of `test_hidden_write` at .*test_ordered.py:\d+.*Differentiate"
    ):
        jax.grad(ordered(lambda x, token: (writes("slot")(testing.write)(token, 1.0), hidden(x))[1]))(
            1.0, testing.slot(0)
        )


def test_an_opaque_function_returns_keys_tokens_and_arrays_over_a_mesh(slots):
    whole = writes("slot", opaque=True)

    def fn(token, x):
        key = whole(lambda token: (testing.write(token, 1.0), jax.random.key(3))[1])(token)
        xla_token = whole(lambda token: (testing.write(token, 2.0), jax.lax.create_token())[1])(token)
        return key, reads("slot")(testing.read)(token), jax.lax.after_all(xla_token)

    key, value, _ = jax.jit(ordered(fn))(testing.slot(0), X)
    assert (key, value) == (jax.random.key(3), 2)
    devices = jax.devices()[:2]
    mesh = jax.make_mesh((len(devices),), ("i",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices)
    x = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, PartitionSpec("i")))
    twice = whole(lambda x: x * 2 + 0 * testing.read(testing.slot(0)))
    y = jax.jit(ordered(twice))(x)
    assert y.sharding == x.sharding
    assert y.tolist() == [0, 2, 4, 6]


def test_an_operation_with_accesses_inside_that_has_no_rule_is_an_error_with_the_line():
    def fn(x):
        return jax.custom_derivatives.linear_call(lambda r, x: x * read(r), lambda r, ct: ct, testing.slot(0), x)

    with pytest.raises(NotImplementedError, match=r"accesses inside of `linear_call` at .*test_ordered.py:\d+"):
        jax.jit(ordered(fn)).lower(1.0)


def test_a_call_that_returns_only_a_token_of_xla_is_waited_for():
    """The write is before the read by the token of the call between them alone."""

    @writes("slot")
    def fence(x):
        return jax.ffi.ffi_call("test_fence", _private.abstract_token, has_side_effect=True)(x)

    def fn(token, x):
        writes("slot")(testing.write)(token, 1.0, label="w")
        return fence(x), reads("slot")(testing.read)(token, label="r")

    eqns = jax.make_jaxpr(ordered(fn))(testing.slot(0), X).eqns  # there is no such target to compile it with
    written, fenced, seen = (eqn for eqn in eqns if eqn.primitive.name in {"jit", "pjit"})
    waits = {eqn.outvars[0]: eqn.invars[1:] for eqn in eqns if eqn.primitive.name == "entangle"}
    assert waits[fenced.invars[0]] == written.outvars
    assert waits[seen.invars[-1]] == fenced.outvars


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("jitted", [False, True])
def test_refs_are_read_and_written_as_the_function_says(opaque, jitted, slots):
    """Refs that the function makes, is given and closes over, in marked functions too, in a loop and in straight code."""

    @writes("slot", opaque=opaque)
    def count(ref, token, x):
        testing.write(token, ref[...] + 1 + late(x)[0] * 0)
        ref[...] = testing.read(token)

    closed_over = jax.new_ref(jnp.float32(10))

    def fn(given, token, x):
        own = jax.new_ref(jnp.float32(20))
        count(own, token, x)
        count(given, token, x)
        given[...] += reads("slot")(testing.read)(token)

        def body(c, k):
            writes("slot")(testing.write)(token, k)
            own[...] += reads("slot")(testing.read)(token)
            return c, None

        jax.lax.scan(body, 0, jnp.arange(3.0))
        count(closed_over, token, x)
        return own[...], reads("slot")(testing.read)(token)

    given = jax.new_ref(jnp.float32(1))
    step = ordered(fn)
    if jitted:
        step = jax.jit(lambda given, token, x: ordered(fn)(given, token, x))
    own, seen = step(given, testing.slot(0), X)
    assert (own, given[...], closed_over[...], seen) == (21 + 3, 4, 11, 11)


def test_tokens_of_xla_pass(slots):
    def fn(token, x):
        xla_token = jax.lax.create_token()
        write(token, 4.0)
        return read(token) + x, jax.lax.after_all(xla_token)

    assert jax.jit(lambda token, x: ordered(fn)(token, x)[0])(testing.slot(0), jnp.float32(1)) == 5


def test_what_is_no_array_stays_what_it_is():
    seen = []

    class Model:
        scale = 3

        @ordered
        def step(self, token, name, n, x):
            seen.append((name, n))
            for i in range(n):
                write(token, i * self.scale)
            return {"value": read(token), "name": name, "n": n, "x": x, "none": None, "f": 1.5}

    model, x = Model(), np.arange(3)
    for _ in range(2):
        out = model.step(testing.slot(0), "a", 3, x)
        assert (out["value"], out["name"], out["n"], out["f"], out["none"]) == (6, "a", 3, 1.5, None)
        assert type(out["n"]) is int
    assert seen == [("a", 3)]
    assert model.step(testing.slot(0), "b", True, x)["n"] is True
    assert model.step(testing.slot(0), "b", 1, x)["n"] is not True
    assert seen == [("a", 3), ("b", True), ("b", 1)]

    @jax.jit
    def inside(token):
        return model.step(token, "c", 2, x)["value"]

    assert inside(testing.slot(0)) == 3


@pytest.mark.parametrize("around", ["nothing", "scan", "vmap", "opaque"])
@pytest.mark.parametrize("default", [False, True])
def test_of_what_depends_on_the_platform_the_branch_of_this_one_is_in_order(around, default, slots):
    def change(token):
        call = jax.ffi.ffi_call("write_elsewhere", token, has_side_effect=True, vmap_method="sequential")
        elsewhere = lambda token: call(token)
        here = lambda token: write(token, read(token) + 1.0)
        branches = {"default": here} if default else {"cpu": here}
        return jax.lax.platform_dependent(token, **branches, cuda=elsewhere, rocm=elsewhere)

    change = writes("slot", handle=0, opaque=around == "opaque")(change)

    def fn(token, x):
        before = read(token, late(x))
        change(token)
        if around == "scan":
            jax.lax.scan(lambda c, _: (c, change(token)), 0, length=2)
        return before, read(token)

    args = testing.slot(0), X
    last = 3 if around == "scan" else 1
    in_order = ordered(fn)
    if around == "vmap":
        in_order = lambda token, x: [
            value[0] for value in jax.vmap(lambda k: ordered(fn)(token + 0 * k, x))(jnp.zeros(1, jnp.int32))
        ]
    results, log = run(jax.jit(in_order), *args)
    assert list(results) == [0, last]
    assert [one for one in log if one[0] == "w"] == [f"w{i + 1}" for i in range(last)]


def test_numbers_that_are_equal_and_not_the_same_are_different_signatures():
    traced = []

    @ordered
    def signed(x, number):
        traced.append(number)
        return jnp.copysign(x, np.real(number)), type(number)

    x = jnp.float32(1)
    for kind in (float, complex, np.float32, np.float64, np.complex64):
        traced.clear()
        results = [signed(x, kind(number)) for number in (0.0, -0.0, 0.0, np.nan, np.nan)]
        assert [float(value) for value, _ in results][:3] == [1, -1, 1]
        assert {each for _, each in results} == {kind}
        assert len(traced) == 3, "a NaN is the same each time"


def test_a_second_call_outside_of_jit_traces_nothing():
    traces = []

    @ordered
    def fn(token, x):
        traces.append(1)
        return read(token) + x

    for i in range(3):
        fn(testing.slot(0), jnp.float32(i))
    fn(testing.slot(0), jnp.ones(2))
    assert len(traces) == 2


def test_threads_share_one_ordered_function(slots):
    @ordered
    def fn(token, x, late_one):
        write(token, x + late(late_one)[0] * 0)
        return read(token)

    wrong = []

    def work(i):
        token = testing.slot(i)
        for k in range(25):
            value = jnp.float32(100 * i + k)
            if fn(token, value, X) != value:
                wrong.append((i, k))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_two_threads_on_one_object_are_in_order_with_a_handle_around_an_ordered_function(slots):
    @ordered
    def add(token, x):
        before = read(token)
        write(token, before + 1 + late(x)[0] * 0)
        return read(token)

    step, handle, lock, seen = jax.jit(add), [Handle(testing.slot(0))], threading.Lock(), []

    def work():
        for _ in range(20):
            with lock:
                after, handle[0] = handle[0].write(step, X)
                seen.append(after)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jax.block_until_ready(handle[0])
    assert testing.read(handle[0].token) == 40
    assert seen == list(range(1, 41))


def test_compiled_ahead_of_time_and_exported_it_is_as_it_was(slots):
    step = jax.jit(ordered(program))
    args = testing.slot(0), jnp.asarray(X)
    ahead = step.lower(*args).compile()
    exported = jax.export.export(
        step,
        disabled_checks=entangle_jax.export_checks()
        + [
            jax.export.DisabledSafetyCheck.custom_call(target) for target in (testing.READ_TARGET, testing.WRITE_TARGET)
        ],
    )(*args)
    again = jax.export.deserialize(exported.serialize()).call
    for fn in (ahead, jax.jit(again)):
        (before, after, _), log = run(fn, *args)
        assert (before, after) == (0, 1)
        assert log == ["r0", "w1", "r1"]


def test_where_jit_is_disabled_it_is_enabled_again(slots):
    def loop(token, x):
        def body(c, k):
            write(token, k + late(x)[0] * 0)
            return c, jax.lax.cond(k > 0, lambda: read(token), lambda: jnp.float32(-1))

        return jax.lax.scan(body, 0, jnp.arange(3.0))[1], read(token)

    with jax.disable_jit():
        (before, after, _), log = run(ordered(program), testing.slot(0), X)
        in_a_loop = run(ordered(loop), testing.slot(0), X)
        assert audit(program, testing.slot(0), X).races
        assert not audit(ordered(program), testing.slot(0), X).races
    assert (before, after) == (0, 1)
    assert log == ["r0", "w1", "r1"]
    assert in_a_loop == (([-1, 1, 2], 2), ["w0", "w1", "r1", "w2", "r2", "r2"])


def test_errors_say_what_is_wrong():
    with pytest.raises(TypeError, match="got an object of type int, wanted a function"):
        ordered(3)
    with pytest.raises(TypeError, match=r"reads is 'solve', wanted a list of calls, such as \['my_solve'\]"):
        ordered(program, reads="solve")
    with pytest.raises(TypeError, match="a call in writes is 3, wanted the name of a native target"):
        ordered(program, writes=[3])
    with pytest.raises(TypeError, match=r"a call in writes is \('solve', 'x'\), wanted it alone, or a pair"):
        ordered(program, writes=[("solve", "x")])
    with pytest.raises(TypeError, match="a resource in reads is of type int"):
        ordered(reads={3: ["a"]})
    with pytest.raises(
        ValueError, match=r"the handle of 'entangle_testing_write' is operand 4, and the call at .*test.* has 2"
    ):
        jax.jit(ordered(program, writes=[(testing.WRITE_TARGET, 4)])).lower(testing.slot(0), X)


def test_calls_that_an_inner_ordered_was_told_of_are_in_order_in_an_outer_one(slots):
    both = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}

    def twice(token, x):
        return jax.lax.scan(lambda c, _: (c, testing.read(token, x)), None, length=2)[1]

    look, change = ordered(twice, reads=both["reads"]), ordered(testing.write, writes=both["writes"])

    def fn(token, x):
        before = look(token, late(x))
        change(token, 1.0)
        return *before, *look(token, x), late(x, 6)[0] * 0

    for _ in range(3):
        (*values, _), _ = run(jax.jit(ordered(fn)), testing.slot(0), X)
        assert values == [0, 0, 1, 1]
    assert not races(ordered(fn), testing.slot(0), X)
    assert races(fn, testing.slot(0), X)


def test_a_call_waits_by_the_handle_of_its_mark_not_by_an_operand_that_it_drops(slots):
    primitive = _private.Primitive("test_read_with_a_hint")
    primitive.def_abstract_eval(lambda hint, token: jax.core.ShapedArray((), jnp.float32))
    mlir.register_lowering(primitive, mlir.lower_fun(lambda hint, token: testing.read(token), multiple_results=False))
    look = reads("slot", handle="token")(lambda hint, token: jax.jit(primitive.bind)(hint, token))

    def fn(token, x):
        write(token, 1.0 + late(x)[0] * 0)
        return look(jnp.int8(x[0]), token), late(x, 6)[0] * 0

    for _ in range(3):
        (value, _), _ = run(jax.jit(ordered(fn)), testing.slot(0), X)
        assert value == 1
    assert not races(ordered(fn), testing.slot(0), X)


@pytest.mark.parametrize("times", [1, 2])
def test_a_callback_without_results_is_one_access_of_a_batch(times):
    state, log = [0], []

    def put(_):
        state[0] = 1
        log.append("w")

    def get(_):
        log.append("r")
        return np.int32(state[0])

    change = writes("state")(lambda x: io_callback(put, None, x))
    look = reads("state")(lambda x: jax.pure_callback(get, jax.typeof(x), x, vmap_method="sequential"))

    def each(x):
        before = look(x + late(jnp.asarray(X))[0] * 0)
        change(x)
        return before, look(x)

    def batched(fn):
        return functools.reduce(lambda f, _: jax.vmap(f), range(times), fn)

    batch = jnp.arange(4).reshape((4, 1)[:times])
    for fn in (batched(ordered(each)), jax.jit(batched(ordered(each)))):
        state[0] = 0
        log.clear()
        before, after = jax.block_until_ready(fn(batch))
        jax.effects_barrier()
        assert (before == 0).all()
        assert (after == 1).all()
        assert log == ["r"] * 4 + ["w"] * 4 + ["r"] * 4
