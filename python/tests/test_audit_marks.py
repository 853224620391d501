"""The audit of a program with marks needs no names, and a proof of it is no weaker for that."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import ordered_programs as programs
import pytest
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir

from entangle_jax import Handle, _native, audit, entangle, ordered, reads, testing, writes

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
read = reads("slot", handle="token")(testing.read)
write = writes("slot", handle="token")(testing.write)


def program(token):
    before = read(token)
    write(token, 1.0)
    return before, read(token)


def test_a_race_between_marked_calls_is_found_and_none_where_they_are_in_order():
    report = audit(program, testing.slot(0))
    assert report.races
    assert {call.kind for race in report.races for call in (race.first, race.second)} == {"read", "write"}
    audit(ordered(program), testing.slot(0)).raise_if_races()
    with jax.disable_jit():
        assert audit(program, testing.slot(0)).races


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap", "checkpoint", "scan"])
def test_a_race_is_found_through_transformations(transform):
    match transform:
        case "jit":
            fn = jax.jit(program)
        case "grad":
            fn = lambda token: jax.grad(lambda x: x * sum(program(token)))(1.0)
        case "vmap":
            fn = lambda token: jax.vmap(lambda x: x * program(token)[1])(jnp.arange(2.0))
        case "checkpoint":
            fn = lambda token: jax.checkpoint(lambda x: x * sum(program(token)))(1.0)
        case "scan":
            fn = lambda token: jax.lax.scan(lambda c, _: (c, program(token)), 0, length=2)
    assert audit(fn, testing.slot(0)).races
    audit(ordered(fn), testing.slot(0)).raise_if_races()


def test_objects_are_told_apart_by_the_handle_and_resources_by_their_names():
    def fn(a, b):
        return read(a), write(b, 1.0)

    assert not audit(fn, testing.slot(0), testing.slot(1)).races
    whole = lambda a, b: (reads("slot")(testing.read)(a), write(b, 1.0))
    assert audit(whole, testing.slot(0), testing.slot(1)).races
    other = lambda a, b: (reads("other")(testing.read)(a), write(b, 1.0))
    assert not audit(other, testing.slot(0), testing.slot(1)).races


def test_callbacks_are_told_apart_by_their_marks():
    get = reads("store")(lambda x: jax.pure_callback(lambda x: x, SCALAR, x))
    put = writes("store")(lambda x: io_callback(lambda x: x, SCALAR, x))
    other = writes("other")(lambda x: io_callback(lambda x: x, SCALAR, x))
    assert audit(lambda x: (get(x), put(x)), 1.0).races
    assert not audit(lambda x: (get(x), other(x)), 1.0).races
    audit(ordered(lambda x: (get(x), put(x), get(x))), 1.0).raise_if_races()


def test_what_comes_after_a_call_without_results_is_proven_to_wait_for_it():
    put = writes("store")(lambda x: io_callback(lambda x: None, None, x))
    program = lambda x: (put(x), put(x + 1))
    assert audit(program, 1.0).races
    audit(ordered(program), 1.0).raise_if_races()


NAMED = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}


def test_what_a_handle_holds_races_with_a_named_call_that_is_given_the_same():
    def half(token):
        before, _ = Handle(token).read(testing.read)
        testing.write(token, 1.0)
        return before

    report = audit(half, testing.slot(0), writes=[testing.WRITE_TARGET])  # the read is known by the handle alone
    assert [race.handle for race in report.races] == ["argument 0 (token)"]
    assert {one.name for one in report.objects} == {"argument 0 (token)"}
    assert "Taken for different" not in str(report)


@pytest.mark.parametrize("given", [{}, NAMED], ids=["alone", "named too"])
def test_an_object_is_listed_once_that_a_handle_holds_and_a_mark_or_a_name_touches(given):
    def through_handle(token):
        before, handle = Handle(token).read(read)
        return before, handle.write(testing.write, 1.0)[0]

    report = audit(through_handle, testing.slot(0), **given)
    assert not report.races
    assert "Taken for different" not in str(report)


def test_an_object_is_listed_once_whose_reads_are_both_marked_and_named():
    def half(token):
        before = read(token)
        testing.write(token, 1.0)
        return before

    assert "Taken for different" not in str(audit(half, testing.slot(0), **NAMED))
    # The name of the write alone says nothing of the resource of the mark: that these are two is an assumption.
    assert (
        "Taken for different objects, which no program can prove:\n"
        f"  argument 0 (token): written by {testing.WRITE_TARGET}\n"
        f"  slot, argument 0 (token): read by {testing.READ_TARGET}\n"
    ) in str(audit(half, testing.slot(0), writes=[testing.WRITE_TARGET]))


def test_a_mark_is_not_lost_whose_primitive_becomes_a_call_under_another_name():
    primitive = Primitive("slot_read_late")
    primitive.def_abstract_eval(lambda token: jax.core.ShapedArray((), jnp.float32))
    mlir.register_lowering(primitive, mlir.lower_fun(lambda token: testing.read(token), multiple_results=False))
    both = reads("slot", opaque=True)(lambda token: primitive.bind(token) + testing.read(token))
    report = audit(lambda token: (both(token), write(token, 1.0)), testing.slot(0))
    assert report.races
    assert report.unused_marks == ()


def test_calls_that_were_merged_count_for_all_the_marks_that_they_had():
    a, b = reads("a")(testing.read), reads("b")(testing.read)

    def fn(token, changed):
        return a(token), b(token), writes(changed)(testing.write)(token, 1.0)

    for changed in "ab":
        report = audit(functools.partial(fn, changed=changed), testing.slot(0))
        compiled_too = [race for race in report.races if "compiled" in race.programs]
        assert compiled_too, str(report)
    assert not audit(functools.partial(fn, changed="c"), testing.slot(0)).races


def test_library_calls_in_a_marked_function_are_no_accesses():
    def fn(token, x):
        before = reads("slot")(lambda: testing.read(token) + jnp.linalg.cholesky(x).sum())()
        token = entangle(token, before)
        return before, writes("slot")(lambda: (testing.write(token, 1.0), jnp.linalg.qr(x)))()

    report = audit(fn, testing.slot(0), jnp.eye(3))
    assert {call.target for call in report.calls} == {testing.READ_TARGET, testing.WRITE_TARGET, "entangle"}


def test_a_lowered_and_a_compiled_program_say_their_marks_too():
    lowered = jax.jit(program).lower(testing.slot(0))
    assert audit(lowered).races
    assert audit(lowered.compile()).races
    lowered = jax.jit(ordered(program)).lower(testing.slot(0))
    audit(lowered).raise_if_races()


@pytest.mark.parametrize("kind", programs.CONSTRUCTS)
def test_every_construct_in_order_has_no_race_and_without_order_has_one(kind):
    body = [("write", 0, 0), ("read", 0, 1), ("write", 2, 0)]
    branches = programs.BRANCHES.get(kind)
    block = (kind, 0, *[body] * branches) if branches else (kind, 2, body)
    fn = programs.function_of([("read", 0, 1), block, ("write", 0, 0), ("read", 0, 0), ("read", 2, 0)])
    args = jnp.asarray(programs.TOKENS), jnp.asarray(np.arange(50, dtype=np.int32)), jnp.asarray([1, 0], jnp.int32)
    report = audit(ordered(fn), *args)
    assert not report.races, str(report)
    assert report.looked
    assert audit(fn, *args).races


def test_a_dropped_marked_call_and_a_resource_that_is_only_read_are_listed():
    def unused(token):
        return testing.read(token)

    def program(token):
        reads("marks.other")(unused)(token)
        writes("marks.slot")(testing.write)(token, 1.0)
        return reads("marks.slto")(testing.read)(token)

    report = audit(program, testing.slot(0))
    (dropped,) = report.unused_marks
    assert dropped.startswith("reads('marks.other') unused at ")
    assert "program)" in dropped.rpartition(":")[2]
    assert report.only_read == ("marks.other", "marks.slto")
    assert f"LOST  {dropped}" in str(report)
    assert "Only read here, so in no order: 'marks.other', 'marks.slto'." in str(report)
    right = audit(ordered(lambda token: (write(token, 1.0), read(token))), testing.slot(0))
    assert (right.unused_marks, right.only_read) == ((), ())


def test_of_equal_marked_calls_the_dropped_ones_are_listed():
    def program(token, flag):
        read(token)
        write(token, 1.0)
        read(token)

        def step(carry, _):
            read(token)
            return carry + read(token), None

        return (
            read(token),
            jax.lax.cond(flag, lambda: 1.0, lambda: read(token)),
            jax.lax.scan(step, 0.0, None, length=2),
        )

    def lines(report):
        return [int(dropped.rpartition(":")[2].partition(" ")[0]) - first for dropped in report.unused_marks]

    first = program.__code__.co_firstlineno
    arguments = testing.slot(0), jnp.bool_(True)
    assert lines(audit(program, *arguments)) == [1, 3, 6]
    # With `ordered` the write waits for the first one, and nothing waits for the others.
    assert lines(audit(ordered(program), *arguments)) == [3, 6]
    # Here XLA drops them or merges them, and they are told as calls.
    kept = audit(jax.jit(program, keep_unused=True), *arguments)
    assert lines(kept) == []
    assert {1, 3, 6} <= {lost.call.source.line - first for lost in kept.lost}


def test_what_comes_after_a_call_without_operands_is_proven():
    pull = writes("marks.queue")(lambda: io_callback(lambda: np.float32(0), jax.ShapeDtypeStruct((), jnp.float32)))
    push = writes("marks.queue")(lambda x: io_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), x))

    def program(x):
        return pull(), push(x), pull(), pull()

    assert audit(program, jnp.float32(1)).races
    assert not audit(ordered(program), jnp.float32(1)).races


TOLD = {
    "by target": {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]},
    "with the operand": {"reads": [(testing.READ_TARGET, 0)], "writes": [(testing.WRITE_TARGET, 0)]},
    "by resource": {"reads": {"told": [testing.READ_TARGET]}, "writes": {"told": [(testing.WRITE_TARGET, 0)]}},
    "twice": {
        "reads": {"a": [testing.READ_TARGET], "b": [testing.READ_TARGET]},
        "writes": {"b": [testing.WRITE_TARGET]},
    },
}


def unmarked(token):
    before = testing.read(token)
    testing.write(token, 1.0)
    return before, testing.read(token)


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
def test_what_ordered_was_told_is_known_to_the_audit(told):
    in_order = ordered(unmarked, **told)
    report = audit(in_order, testing.slot(0))
    assert not report.races
    assert {call.kind for call in report.calls if call.target == testing.READ_TARGET} == {"read"}
    # Two ordered functions, one after the other in a third, which is not: what one wrote the other may read too soon.
    assert audit(lambda token: (in_order(token), in_order(token)), testing.slot(0)).races
    assert not audit(ordered(lambda token: (in_order(token), in_order(token))), testing.slot(0)).races


def test_callbacks_that_ordered_was_told_of_by_their_functions_are_known_to_the_audit():
    state = [np.float32(0)]
    look, put = lambda: state[0], lambda x: state.__setitem__(0, x)

    def fn(x):
        before = jax.pure_callback(look, SCALAR)
        io_callback(put, None, x)
        return before, jax.pure_callback(look, SCALAR)

    both = ordered(fn, reads=[look], writes=[put])
    report = audit(both, jnp.float32(1))
    assert not report.races
    assert sorted(call.kind for call in report.calls if call.kind != "entangle" and call.program == "compiled") == [
        "read",
        "read",
        "write",
    ]
    assert audit(lambda x: (both(x), both(x)), jnp.float32(1)).races


def foreign(name, result, function):
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda *_, **__: jax.core.ShapedArray((), result))
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    return primitive


their_read = foreign("their_read", jnp.float32, testing.read)
their_write = foreign("their_write", jnp.int32, lambda value, token: testing.write(token, value))


call_python = foreign("their_python", jnp.float32, lambda token: jax.pure_callback(lambda: np.float32(0), SCALAR))


def two_objects(look, change):
    def fn(a, b, x):
        before = look(a), look(b)
        written = change(x, a), change(x + 1, b)
        return before, look(a), look(b), written

    return fn


@pytest.mark.parametrize("how", ["marked", "named"])
def test_objects_that_foreign_primitives_touch_are_told_apart(how):
    if how == "marked":
        fn = two_objects(reads("theirs", handle=0)(their_read.bind), writes("theirs", handle=1)(their_write.bind))
        in_order = ordered(fn)
    else:
        fn = two_objects(their_read.bind, their_write.bind)
        in_order = ordered(fn, reads=[("their_read", 0)], writes=[(their_write, 1)])
    args = testing.slot(0), testing.slot(1), jnp.float32(1)
    report = audit(in_order, *args)
    assert not report.races
    assert "Taken for different objects" in str(report)
    testing.reset()
    assert [float(value) for value in jax.tree.leaves(jax.jit(in_order)(*args)[:3])] == [0, 0, 1, 2]
    if how == "marked":
        assert audit(fn, *args).races


DROPPED = {
    "computed": lambda value, token: testing.write(jnp.int32(0) + token * 0, value),
    "dropped": lambda value, token: testing.write(jnp.int32(0), value),
}


@pytest.mark.parametrize("lowered", DROPPED.values(), ids=DROPPED)
def test_a_call_that_is_not_given_the_handle_of_its_primitive_may_touch_any_object(lowered):
    look = reads("theirs", handle=0)(their_read.bind)
    change = writes("theirs", handle=1)(foreign("their_other_write", jnp.int32, lowered).bind)
    assert audit(lambda a, b: (look(a), change(jnp.float32(1), b)), testing.slot(0), testing.slot(1)).races


def test_of_a_primitive_that_makes_two_calls_the_audit_takes_the_one_that_it_is_told_of():
    def solved(token):  # as a solver that checks something in Python too
        return testing.read(token) + 0 * jax.pure_callback(lambda: np.float32(0), SCALAR)

    solve = foreign("their_solve", jnp.float32, solved)
    told = {"reads": {"theirs": ["their_solve"]}, "writes": {"theirs": [testing.WRITE_TARGET]}}
    program = ordered(lambda token: (solve.bind(token), testing.write(token, 1.0), solve.bind(token)), **told)
    # Nothing says that the callback touches nothing, and it is not given the handle.
    assert {race.second.target for race in audit(program, testing.slot(0)).races} != {testing.READ_TARGET}
    targets = {"reads": {"theirs": [testing.READ_TARGET]}, "writes": {"theirs": [testing.WRITE_TARGET]}}
    audit(program, testing.slot(0), **targets).raise_if_races()
    # Names for another resource say nothing of this one, and none says what else is called in a function that is marked.
    assert audit(program, testing.slot(0), reads={"other": [testing.READ_TARGET]}, writes=targets["writes"]).races
    both = reads("theirs")(lambda token: (solve.bind(token), call_python.bind(token)))
    assert audit(half(both), testing.slot(0), **targets).races
    # Nor what is called in another such function.
    look, other = reads("theirs")(solve.bind), reads("theirs")(call_python.bind)
    assert audit(half(lambda token: (look(token), other(token))), testing.slot(0), **targets).races
    assert not audit(half(lambda token: (look(token), token)), testing.slot(0), **targets).races
    # Nor what a primitive makes that is no access itself, since it has a function of its own inside.
    with_function = Primitive("their_with_function")
    with_function.def_abstract_eval(lambda token, jaxpr: jax.core.ShapedArray((), jnp.float32))
    call = lambda token, jaxpr: jax.pure_callback(lambda: np.float32(0), SCALAR)
    mlir.register_lowering(with_function, mlir.lower_fun(call, multiple_results=False))
    inside = jax.make_jaxpr(lambda token: token)(testing.slot(0))
    both = reads("theirs")(lambda token: (solve.bind(token), with_function.bind(token, jaxpr=inside)))
    assert audit(half(both), testing.slot(0), **targets).races


def half(both):
    """A function whose write waits for the first of two results."""

    def fn(token):
        first, second = both(token)
        return first, second, writes("theirs")(testing.write)(entangle(token, first), 1.0)

    return fn


def test_of_a_compiled_program_the_names_say_more_than_what_ordered_was_told():
    # There is no trace, so the marks do not say which operand is the handle, and may be around other calls too.
    told = {"reads": [("their_read", 0)], "writes": [(their_write, 1)]}
    args = testing.slot(0), testing.slot(1), jnp.float32(1)
    compiled = jax.jit(ordered(two_objects(their_read.bind, their_write.bind), **told)).lower(*args).compile()
    assert audit(compiled).races
    assert not audit(compiled, **NAMED).races
    # If they leave a call out, the marks still count: it is not known which object that one touches.
    assert audit(compiled, writes=[testing.WRITE_TARGET]).races


@pytest.fixture(scope="module")
def own_targets():
    """Targets of a user, with names that begin as those of libraries do."""
    handlers = _native.targets()["cpu"]
    jax.ffi.register_ffi_target("custom_read", handlers[testing.READ_TARGET][0], platform="cpu")
    jax.ffi.register_ffi_target("product_write", handlers[testing.WRITE_TARGET][0], platform="cpu")
    return (
        reads("slot", handle=0)(lambda token: jax.ffi.ffi_call("custom_read", SCALAR)(token)),
        writes("slot", handle=0)(
            lambda token: jax.ffi.ffi_call("product_write", token, has_side_effect=True)(token, np.float32(1))
        ),
    )


@pytest.mark.parametrize("stage", ["function", "lowered", "compiled"])
def test_a_target_is_no_library_call_because_its_name_begins_as_theirs(stage, own_targets):
    look, change = own_targets
    fn = lambda token: (look(token), change(token))
    lowered = jax.jit(fn).lower(testing.slot(0))
    given = {"function": (fn, testing.slot(0)), "lowered": (lowered,), "compiled": (lowered.compile(),)}[stage]
    report = audit(*given)
    assert {call.target for call in report.calls} == {"custom_read", "product_write"}
    assert report.races
    assert report.unused_marks == ()
    assert not audit(ordered(fn), testing.slot(0)).races


@pytest.mark.parametrize("params", [{}, {"target_name": "other"}], ids=["by its name", "by a parameter"])
def test_a_primitive_that_is_not_of_jax_is_not_taken_for_one_of_jax(params):
    theirs = foreign("callback_write", jnp.int32, lambda token, value, **_: testing.write(token, value))
    change = writes("theirs")(functools.partial(theirs.bind, **params))
    fn = lambda token: (reads("theirs")(testing.read)(token), change(token, jnp.float32(1)))
    assert audit(fn, testing.slot(0)).races
    assert not audit(ordered(fn), testing.slot(0)).races


@pytest.mark.parametrize("named", [False, True])
def test_the_handle_of_a_mark_is_not_that_of_a_mark_around_it(named):
    if named:
        change = ordered(lambda token: testing.write(token, 1.0), writes={"inner": [(testing.WRITE_TARGET, 0)]})
    else:
        change = writes("inner", handle=0)(lambda token: testing.write(token, 1.0))
    both = writes("slot", handle=0)(lambda a, b: change(b))
    fn = lambda a, b: (read(a), both(a, b))
    args = testing.slot(0), testing.slot(1)
    assert audit(fn, *args).races
    assert not audit(ordered(fn), *args).races


def test_the_handle_of_a_mark_is_not_that_of_one_of_the_same_name_around_it():
    def named_alike(function):
        function.__name__ = "change"
        return writes("slot", handle=0)(function)

    inner = named_alike(lambda token: testing.write(token, 1.0))
    outer = named_alike(lambda a, b: inner(b))
    args = testing.slot(0), testing.slot(1)
    assert audit(lambda a, b: (read(a), outer(a, b)), *args).races
    assert audit(lambda a, b: (read(b), outer(a, b)), *args).races


def test_a_primitive_may_give_the_handle_to_a_call_like_one_in_the_trace_at_another_place():
    def tell(index, token):
        return io_callback(lambda index, token: np.float32(0), SCALAR, index, token)

    told = foreign("their_tell", jnp.float32, tell)
    both = writes("theirs", handle=0)(
        lambda token, index: (io_callback(lambda token: np.float32(0), SCALAR, token), told.bind(index, token))
    )
    look = reads("theirs", handle=0)(lambda token: jax.pure_callback(lambda token: np.float32(0), SCALAR, token))

    def fn(token, index):
        first, second = both(token, index)
        return second, look(entangle(token, first))

    assert audit(fn, testing.slot(0), testing.slot(1)).races


def test_the_condition_of_a_loop_is_not_given_what_its_body_is():
    """The condition reads with an argument that is no handle: it may touch any object of the mark."""

    def steps(token, other):
        condition = lambda k: testing.read(other, k) > k
        return jax.lax.while_loop(condition, lambda k: k + 1 + testing.read(token), jnp.float32(0))

    counted = reads("slot", handle=0)(steps)
    report = audit(lambda token, other: (counted(token, other), write(token, 1.0)), testing.slot(0), testing.slot(1))
    assert [race.first.op_name.split("/while/")[1][:5] for race in report.races] == ["cond/", "body/"]


def test_callbacks_of_jax_debug_that_ordered_was_told_of_are_known_to_the_audit_and_to_ordered(slots):
    seen = []
    put = lambda x: seen.append(float(x))
    both = ordered(lambda x: (jax.debug.callback(put, x), jax.debug.callback(put, x + 1)), writes=[put])
    twice = lambda x: (both(x), both(x + 2))
    x = jnp.float32(1)
    report = audit(both, x)
    assert not report.races
    assert {call.kind for call in report.calls if call.program == "compiled"} == {"entangle", "write"}
    assert audit(twice, x).races
    assert not audit(ordered(twice), x).races
    for run in (jax.jit(ordered(twice)), jax.jit(ordered(jax.jit(twice)))):
        seen.clear()
        run(x)
        jax.effects_barrier()
        assert seen == [1, 2, 3, 4]
    # In a marked function they are no accesses.
    assert not audit(writes("slot")(lambda x: (jax.debug.callback(put, x), jax.debug.callback(put, x + 1))), x).calls


def test_calls_for_other_platforms_are_not_missed():
    def change(token):
        cuda = lambda token: jax.ffi.ffi_call("write_on_cuda", token, has_side_effect=True)(token)
        return jax.lax.platform_dependent(token, cpu=lambda token: testing.write(token, 1.0), cuda=cuda)

    fn = lambda token: (read(token), writes("slot", handle=0)(change)(token))
    for report in (audit(fn, testing.slot(0)), audit(ordered(fn), testing.slot(0))):
        assert report.unused_marks == ()
        assert {call.target for call in report.calls} <= {testing.READ_TARGET, testing.WRITE_TARGET, "entangle"}
    assert audit(fn, testing.slot(0)).races
    assert not audit(ordered(fn), testing.slot(0)).races


NEVER = {
    "scan": lambda token: jax.lax.scan(lambda c, _: (c, write(token, 1.0)), 0, length=0),
    "cond": lambda token: jax.lax.cond(False, lambda: write(token, 1.0), lambda: token),
    "while": lambda token: jax.lax.while_loop(lambda _: False, lambda token: write(token, 1.0), token),
}


@pytest.mark.parametrize("never", NEVER.values(), ids=NEVER)
def test_a_call_with_a_side_effect_that_never_runs_is_listed_and_no_error(never):
    report = audit(ordered(lambda token: (read(token), never(token), read(token))), testing.slot(0))
    assert not report.races
    (dropped,) = report.unused_marks
    assert dropped.startswith("writes('slot') write at ")
    # Where there is such a call without its mark, it may be the one.
    with pytest.raises(ValueError, match="marked calls that the program does not have: entangle_testing_write in"):
        audit(lambda token: (never(token), testing.write(token, 2.0)), testing.slot(0))
