"""A handle that is misused is an error or a warning; one that is used well is neither."""

import dataclasses
import gc
import inspect
import re
import warnings

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from entangle_jax import Handle, OrderingWarning, _past, testing

# What cannot be is an error.


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, r"Handle: the token is None, wanted at least one array"),
        ((), r"Handle: the token is \(\), wanted at least one array"),
        ({"id": "seven"}, r"Handle: token leaf \['id'\] is a str, wanted an array"),
    ],
)
def test_a_token_without_arrays_is_an_error(token, message):
    with pytest.raises(TypeError, match=message):
        Handle(token)


@pytest.mark.parametrize("result", [None, (), 1.0])
@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_result_without_arrays_is_an_error(transform, access, result):
    def callee(token):
        return result

    with pytest.raises(TypeError, match=rf"Handle\.{access}: callee returned .*, wanted at least one jax array"):
        transform(lambda handle: getattr(handle, access)(callee)[1])(Handle(0))


@pytest.mark.parametrize(
    "new", [lambda result: (result,), lambda result: result[None], lambda result: result.astype(float)]
)
def test_a_new_token_unlike_the_old_one_is_an_error(new):
    with pytest.raises(TypeError, match=r"Handle\.write: the new token is .*, wanted one like the old one, int32\[\]"):
        Handle(0).write(testing.write, 1.0, token=new)


def test_arguments_that_cannot_be_are_named():
    handle = Handle(testing.slot(0))
    for access in (handle.read, handle.write):
        with pytest.raises(TypeError, match=r"`fn` is of type float, wanted the function to call with the token"):
            access(1.0)
    with pytest.raises(TypeError, match=r"`token` is of type int, wanted a function that takes the new token"):
        handle.write(testing.write, 1.0, token=1)
    with pytest.raises(TypeError, match="the token is a Handle already"):
        Handle(handle)
    for token in ([handle, handle], {"a": (testing.slot(0), handle)}):
        with pytest.raises(TypeError, match=r"the token contains a Handle, wanted arrays.*use `Handle\.join\(a, b\)`"):
            Handle(token)
    with pytest.raises(TypeError, match="the token contains a Handle"):
        handle.write(testing.write, 1.0, token=lambda written: [handle])
    for join in (lambda: Handle.join(handle, 1), lambda: handle.join([handle])):
        with pytest.raises(TypeError, match=r"Handle\.join: argument 1 is of type (int|list), wanted a Handle"):
            join()


def test_what_is_known_of_a_handles_past_is_freed_without_the_cyclic_collector():
    def kept():
        return sum(isinstance(each, _past._Access) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    before = kept()
    try:
        handle = Handle(testing.slot(0))
        for value in range(20):
            _, handle = handle.write(testing.write, value)
            _, handle = handle.read(testing.read)
        assert kept() <= before + 2
    finally:
        gc.enable()


def test_joining_a_handle_with_itself_is_an_error():
    handle = Handle(0)
    with pytest.raises(ValueError, match="a handle is given twice"):
        Handle.join(handle, handle)


def test_splitting_what_was_not_joined_is_an_error():
    with pytest.raises(TypeError, match=r"Handle\.split: the token is of type ArrayImpl, wanted a tuple"):
        Handle(0).split()


def test_an_access_that_failed_is_no_access(slots):
    def fails(token):
        raise RuntimeError("no")

    handle = Handle(slots.slot(0))
    with pytest.raises(RuntimeError, match="no"):
        handle.write(fails)
    handle.write(testing.write, 1.0)


def test_a_handle_is_not_changed_in_part():
    """The new token would be read and the old one written."""
    handle = Handle(testing.slot(0))
    with pytest.raises(TypeError):
        dataclasses.replace(handle, token=testing.slot(1))
    for part in ("token", "fence"):
        with pytest.raises(AttributeError):
            setattr(handle, part, testing.slot(1))
    with pytest.raises(AttributeError):
        handle.tokens = testing.slot(1)


PASSED_AS_AN_ARRAY = {
    "jax.numpy": jnp.sin,
    "jnp.asarray": jnp.asarray,
    "jnp.stack": lambda handle: jnp.stack([handle, handle]),
    "arithmetic": lambda handle: jnp.ones(()) + handle,
    "ffi_call": lambda handle: jax.ffi.ffi_call("solve", jax.ShapeDtypeStruct((), jnp.float32))(handle),
    "numpy": np.asarray,
    "shape": lambda handle: handle.shape,
    "method": lambda handle: handle.astype(float),
    "testing": testing.read,
    "testing.write": lambda handle: testing.write(handle, 1.0),
}


@pytest.mark.parametrize("pass_it", PASSED_AS_AN_ARRAY.values(), ids=PASSED_AS_AN_ARRAY)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_handle_where_an_array_is_wanted_is_told_of_its_token(transform, pass_it):
    with pytest.raises((TypeError, AttributeError), match=r"Handle.*`handle\.token`"):
        transform(pass_it)(Handle(testing.slot(0)))


def test_a_handle_has_no_attributes_of_arrays():
    handle = Handle(0)
    assert not hasattr(handle, "shape")
    with pytest.raises(AttributeError, match=r"^'Handle' object has no attribute 'nonsense'$"):
        handle.nonsense


# A handle that is used twice. Every other warning is an error in these tests.


def line_above():
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno - 1}"


def write_then_write(handle):
    handle.write(testing.write, 1.0)
    first = line_above()
    handle.write(testing.write, 2.0)
    second = line_above()
    return "this write", "the write", first, second


def write_then_read(handle):
    handle.write(testing.write, 1.0)
    first = line_above()
    handle.read(testing.read)
    second = line_above()
    return "this read", "the write", first, second


def read_then_write(handle):
    handle.read(testing.read)
    first = line_above()
    handle.write(testing.write, 1.0)
    second = line_above()
    return "this write", "the read", first, second


def older_by_several_accesses(handle):
    old = handle
    _, handle = handle.read(testing.read)
    _, handle = handle.write(testing.write, 1.0)
    _, handle = handle.write(testing.write, 2.0)
    first = line_above()
    _, handle = handle.read(testing.read)
    old.read(testing.read)
    second = line_above()
    return "this read", "the write", first, second


def one_of_two_reads_is_forgotten(handle):
    handle.read(testing.read)
    first = line_above()
    _, handle = handle.read(testing.read)
    _, handle = handle.read(testing.read)
    handle.write(testing.write, 1.0)
    second = line_above()
    return "this write", "the read", first, second


def the_other_of_two_reads_is_forgotten(handle):
    _, kept = handle.read(testing.read)
    handle.read(testing.read)
    first = line_above()
    kept.write(testing.write, 1.0)
    second = line_above()
    return "this write", "the read", first, second


def freed_before_a_read(handle):
    handle.read(testing.read)
    first = line_above()
    handle.wait()
    second = line_above()
    return "this wait", "the read", first, second


def used_after_it_was_joined(handle):
    joined = Handle.join(handle, Handle(testing.slot(1)))
    joined.write(lambda tokens: testing.write(tokens[0], 1.0))
    first = line_above()
    handle.read(testing.read)
    second = line_above()
    return "this read", "the write", first, second


def joined_after_it_was_used(handle):
    handle.write(testing.write, 1.0)
    first = line_above()
    joined = Handle.join(Handle(testing.slot(1)), handle)
    joined.read(lambda tokens: testing.read(tokens[0]))
    second = line_above()
    return "this read", "the write", first, second


def split_after_it_was_used(handle):
    joined = Handle.join(Handle(testing.slot(1)), handle)
    joined.write(lambda tokens: testing.write(tokens[0], 1.0))
    first = line_above()
    joined.split()[1].read(testing.read)
    second = line_above()
    return "this read", "the write", first, second


def two_reads_of_one_handle_are_joined_and_a_third_is_forgotten(handle):
    handle.read(testing.read)
    first = line_above()
    joined = Handle.join(handle.read(testing.read)[1], handle.read(testing.read)[1])
    joined.write(lambda tokens: testing.write(tokens[0], 1.0))
    second = line_above()
    return "this write", "the read", first, second


def one_part_is_used_after_the_other_was_written(handle):
    joined = Handle.join(handle.read(testing.read)[1], handle.read(testing.read)[1])
    one, other = joined.split()
    one.write(testing.write, 1.0)
    first = line_above()
    other.read(testing.read)
    second = line_above()
    return "this read", "the write", first, second


def what_it_is_to_come_after_is_forgotten(handle):
    handle.after(jnp.ones(3))
    first = line_above()
    handle.write(testing.write, 1.0)
    second = line_above()
    return "this write", "the after", first, second


MISTAKES = [
    write_then_write,
    write_then_read,
    read_then_write,
    older_by_several_accesses,
    one_of_two_reads_is_forgotten,
    the_other_of_two_reads_is_forgotten,
    freed_before_a_read,
    used_after_it_was_joined,
    joined_after_it_was_used,
    split_after_it_was_used,
    two_reads_of_one_handle_are_joined_and_a_third_is_forgotten,
    one_part_is_used_after_the_other_was_written,
    what_it_is_to_come_after_is_forgotten,
]


TRACED_BY = ["scan", "cond", "vmap", "grad", "checkpoint"]


@pytest.mark.parametrize(
    ("mistake", "transform"),
    [(mistake, transform) for mistake in MISTAKES for transform in ("eager", "jit")]
    + [(write_then_read, transform) for transform in TRACED_BY],
)
def test_a_handle_that_is_used_twice_is_reported_with_both_places(mistake, transform):
    places = []

    def traced(handle, x):
        places.append(mistake(handle))
        return x

    handle, x = Handle(testing.slot(0)), jnp.float32(0)
    run = {
        "eager": traced,
        "jit": jax.jit(traced),
        "scan": lambda handle, x: jax.lax.scan(lambda c, _: ((c[0], traced(*c)), None), (handle, x), None, length=2),
        "cond": lambda handle, x: jax.lax.cond(x > 0, traced, lambda handle, x: x, handle, x),
        "vmap": lambda handle, x: jax.vmap(lambda x: traced(handle, x))(x[None]),
        "grad": lambda handle, x: jax.grad(lambda x: traced(handle, x))(x),
        "checkpoint": jax.checkpoint(traced),
    }[transform]
    with pytest.warns(OrderingWarning) as record:
        run(handle, x)
    what, other, first, second = places[0]
    (warning,) = {str(each.message): each for each in record}.values()
    assert f"{what} uses an old handle, so it is not ordered after {other} at {first}" in str(warning.message)
    assert f"{warning.filename}:{warning.lineno}" == second


def test_an_old_handle_may_be_used_on_purpose():
    old = Handle(testing.slot(0))
    old.write(testing.write, 1.0)
    Handle(old.token, old.fence).write(testing.write, 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderingWarning)
        old.write(testing.write, 2.0)


# These are no mistakes, and every warning is an error.


def write_and_read(handle):
    _, handle = handle.write(testing.write, 1.0)
    seen, _ = handle.read(testing.read)
    return seen


def traced_again(handle):
    function = jax.jit(lambda handle, x: write_and_read(handle) + x.sum())
    return [function(handle, jnp.zeros(n)) for n in (1, 2, 3)]


def closed_over_and_traced_again(handle):
    function = jax.jit(lambda x: write_and_read(handle) + x.sum())
    return [function(jnp.zeros(n)) for n in (1, 2, 3)]


def closed_over_in_both_branches(handle):
    return jax.jit(lambda x: jax.lax.cond(x > 0, lambda: write_and_read(handle), lambda: 2 * write_and_read(handle)))(
        1.0
    )


def given_to_both_branches(handle):
    return jax.lax.cond(True, write_and_read, lambda handle: 2 * write_and_read(handle), handle)


def switched(handle):
    return jax.lax.switch(1, [lambda x=x: handle.write(testing.write, x)[0] for x in (1.0, 2.0, 3.0)])


def carried_by_a_scan_whose_body_is_traced_twice(handle):
    def body(carry, _):
        handle, x = carry
        _, handle = handle.write(testing.write, 1.0)
        return (handle, x + jnp.float32(1)), None

    return jax.lax.scan(body, (handle, 1), None, length=3)  # an int at first, so the body is traced again


def under_checkpoint_and_grad(handle):
    def block(x):
        # A call that is marked as a side effect has no derivative under checkpoint in jax 0.10.
        y, after = handle.write(lambda token: testing.read(token, x) * x)
        return after.read(lambda token: testing.read(token, y) * y)[0]

    return jax.grad(jax.checkpoint(block))(2.0)


def under_grad_again_and_again(handle):
    return [jax.grad(lambda x: x * write_and_read(handle))(x) for x in (1.0, 2.0)]


def under_vmap_again_and_again(handle):
    return [jax.vmap(lambda x: x * write_and_read(handle))(jnp.arange(3.0)) for _ in range(2)]


def under_hessian(handle):
    return jax.hessian(lambda x: x * x * write_and_read(handle))(2.0)


def traced_for_its_shape_first(handle):
    jax.eval_shape(write_and_read, handle)
    jax.make_jaxpr(lambda: write_and_read(handle))()
    return write_and_read(handle)


def read_by_many_and_never_written(handle):
    return [handle.read(testing.read)[0] for _ in range(3)]


def branched_reads_that_go_on(handle):
    a, _ = handle.read(testing.read)
    b, other = handle.read(testing.read)
    c, _ = other.read(testing.read)
    return a, b, c


def one_line_in_a_loop(handle):
    for i in range(3):
        _, handle = handle.write(testing.write, float(i))
    return handle.wait()


def waited_for_and_used_again(handle):
    jax.block_until_ready(handle.wait())
    return write_and_read(handle)


def joined_and_split(handle):
    other = Handle(testing.slot(1))
    for _ in range(2):
        joined = Handle.join(handle, other)
        _, joined = joined.read(lambda tokens: testing.read(tokens[0]))
        _, joined = joined.write(lambda tokens: testing.write(tokens[1], 1.0))
        handle, other = joined.split()
        _, handle = handle.write(testing.write, 1.0)
        _, other = other.read(testing.read)
    return handle, other


def two_reads_joined(handle):
    _, one = handle.read(testing.read)
    _, other = handle.read(testing.read)
    _, joined = Handle.join(one, other).write(lambda tokens: testing.write(tokens[0], 1.0))
    _, joined = joined.read(lambda tokens: testing.read(tokens[1]))
    return joined.write(lambda tokens: testing.write(tokens[0], 2.0))[1].wait()


def many_reads_joined(handle):
    joined = Handle.join(*(handle.read(testing.read)[1] for _ in range(10)))
    return joined.write(lambda tokens: testing.write(tokens[0], 1.0))[0]


def two_reads_joined_in_joined_handles(handle):
    other = Handle(testing.slot(1))
    first, second = (Handle.join(handle.read(testing.read)[1], each) for each in (other, Handle(testing.slot(2))))
    joined = Handle.join(first, second)
    _, joined = joined.write(lambda tokens: testing.write(tokens[0][0], 1.0))
    return joined.split()[1].split()[1].write(testing.write, 2.0)[0]


def an_old_handle_joined_with_a_new_one(handle):
    _, new = handle.write(testing.write, 1.0)
    return Handle.join(handle, new).write(lambda tokens: testing.write(tokens[0], 2.0))[0]


def after_values(handle):
    seen, handle = handle.read(testing.read)
    handle = handle.after(seen, {"a": jnp.ones(3)}, 1.0).after()
    _, handle = handle.write(testing.write, 1.0)
    return handle.after(jnp.ones(3)).wait()


def two_handles(handle):
    return write_and_read(handle), write_and_read(Handle(testing.slot(1)))


def a_step_that_is_jitted(handle):
    step = jax.jit(lambda handle: handle.write(testing.write, 1.0)[1], donate_argnums=0)
    for _ in range(3):
        handle = step(handle)
    return write_and_read(handle)


FINE = [
    traced_again,
    closed_over_and_traced_again,
    closed_over_in_both_branches,
    given_to_both_branches,
    switched,
    carried_by_a_scan_whose_body_is_traced_twice,
    under_checkpoint_and_grad,
    under_grad_again_and_again,
    under_vmap_again_and_again,
    under_hessian,
    traced_for_its_shape_first,
    read_by_many_and_never_written,
    branched_reads_that_go_on,
    one_line_in_a_loop,
    waited_for_and_used_again,
    joined_and_split,
    two_reads_joined,
    many_reads_joined,
    two_reads_joined_in_joined_handles,
    an_old_handle_joined_with_a_new_one,
    after_values,
    two_handles,
    a_step_that_is_jitted,
]


@pytest.mark.parametrize("program", FINE, ids=lambda program: program.__name__)
def test_what_is_no_mistake_is_not_reported(program):
    jax.block_until_ready(program(Handle(testing.slot(0))))
    if program is not a_step_that_is_jitted:
        jax.block_until_ready(jax.jit(program)(Handle(testing.slot(0))))


# A handle that a loop's body uses from outside of the loop.


def scan(body, handle):
    """Each loop calls `body(handle, i)`, which returns a handle, and carries the handle that it returned."""
    return jax.lax.scan(lambda handle, i: (body(handle, i), None), handle, jnp.arange(3))[0]


def scan_in_reverse_and_unrolled(body, handle):
    return jax.lax.scan(lambda handle, i: (body(handle, i), None), handle, jnp.arange(3), reverse=True, unroll=2)[0]


def while_body(body, handle):
    return jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (body(*c), c[1] + 1), (handle, 0))[0]


def fori_loop(body, handle):
    return jax.lax.fori_loop(0, 3, lambda i, handle: body(handle, i), handle)


def fori_loop_of_unknown_length(body, handle):
    count = jnp.int32(3)
    return jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, handle: body(handle, i), handle))(count)


def scan_in_scan(body, handle):
    def outer(handle, _):
        return scan(body, handle), None

    return jax.lax.scan(outer, handle, None, length=2)[0]


def scan_under_vmap(body, handle):
    return jax.vmap(lambda _: scan(body, handle), out_axes=None, axis_size=2)(jnp.ones(2))


def scan_under_grad(body, handle):
    return jax.grad(lambda x: (x, scan(body, handle)), has_aux=True)(1.0)[1]


LOOPS = [
    scan,
    scan_in_reverse_and_unrolled,
    while_body,
    fori_loop,
    fori_loop_of_unknown_length,
    scan_in_scan,
    scan_under_vmap,
    scan_under_grad,
]


def write_it(handle, i):
    _, handle = handle.write(testing.write, i.astype(float))
    return handle


WRITE_LINE = inspect.getsourcelines(write_it)[1] + 1


def read_it_first(handle, i):
    return write_it(handle.read(testing.read)[1], i)


def in_jit(handle, i):
    return jax.jit(lambda i: write_it(handle, i))(i)


def in_a_branch(handle, i):
    return jax.lax.cond(i > 0, lambda: write_it(handle, i), lambda: read_it_first(handle, i))


def in_a_switch(handle, i):
    return jax.lax.switch(i, [lambda: write_it(handle, i)] * 3)


def in_checkpoint(handle, i):
    return jax.checkpoint(lambda i: write_it(handle, i))(i)


def in_vmap(handle, i):
    return jax.vmap(lambda _: write_it(handle, i), out_axes=None, axis_size=2)(jnp.ones(2))


def in_grad(handle, i):
    return jax.grad(lambda x: (x, write_it(handle, i)), has_aux=True)(1.0)[1]


def after_a_value(handle, i):
    return write_it(handle.after(i), i)


def joined(handle, i):
    both = Handle.join(handle, Handle(testing.slot(1)))
    return both.write(lambda tokens: testing.write(tokens[0], 1.0))[1].split()[0]


BODIES = [
    write_it,
    read_it_first,
    in_jit,
    in_a_branch,
    in_a_switch,
    in_checkpoint,
    in_vmap,
    in_grad,
    after_a_value,
    joined,
]


PAIRS = [(scan, body) for body in BODIES] + [(loop, body) for loop in LOOPS[1:] for body in (write_it, read_it_first)]
of_pairs = pytest.mark.parametrize(("loop", "body"), PAIRS, ids=lambda function: function.__name__)
WITHIN = {
    "eager": lambda program: program(Handle(testing.slot(0))),
    "jit": lambda program: jax.eval_shape(program, Handle(testing.slot(0))),
    "jit that makes it": lambda program: jax.eval_shape(lambda token: program(Handle(token)), testing.slot(0)),
}
of_where_it_is_made = pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)


@of_where_it_is_made
@of_pairs
def test_iterations_that_write_through_a_handle_from_outside_are_reported(loop, body, within):
    def program(handle):
        def closing_over(carried, i):
            body(handle, i)
            return carried

        loop(closing_over, Handle(testing.slot(2)))

    with pytest.warns(OrderingWarning) as caught:
        within(program)
    # A loop may trace its body more than once.
    (message,) = {str(each.message) for each in caught}
    assert re.search(
        rf"this write uses a handle from outside of the loop of \S+ at {__file__}:\d+, so neither", message
    )
    assert "Carry the handle: " in message
    if body is not joined:
        assert {(each.filename, each.lineno) for each in caught} == {(__file__, WRITE_LINE)}


@of_where_it_is_made
@of_pairs
def test_a_handle_that_is_carried_is_not_reported(loop, body, within):
    within(lambda handle: loop(body, handle))


def test_a_write_in_the_condition_of_a_loop_is_reported():
    def condition(i):
        write_it(handle, i)
        return i < 3

    handle = Handle(testing.slot(0))
    with pytest.warns(OrderingWarning, match="from outside of the loop of condition at"):
        jax.lax.while_loop(condition, lambda i: i + 1, 0)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_elements_of_a_map_that_write_through_one_handle_are_reported(batch_size):
    handle = Handle(testing.slot(0))
    with pytest.warns(OrderingWarning, match="from outside of the loop of"):
        jax.lax.map(lambda x: write_it(handle, x).token, jnp.arange(4), batch_size=batch_size)


def test_an_inner_loop_that_does_not_carry_the_handle_of_the_outer_one_is_reported():
    def outer(handle, i):
        jax.lax.fori_loop(0, 2, lambda j, _: write_it(handle, j).token, 0)
        return handle, None

    with pytest.warns(OrderingWarning, match="from outside of the loop of"):
        jax.lax.scan(outer, Handle(testing.slot(0)), jnp.arange(3))


def test_a_branch_that_writes_through_a_handle_that_the_body_read_through_is_reported():
    handle = Handle(testing.slot(0))

    def body(x, i):
        _, here = handle.read(testing.read)
        return jax.lax.cond(x > 0, lambda: write_it(here, i).token, lambda: i), None

    with pytest.warns(OrderingWarning, match="from outside of the loop of"):
        jax.lax.scan(body, 0, jnp.arange(3))


def test_without_being_carried_no_later_write_waits_for_the_loop():
    """What the warnings are about."""

    def program(handle):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OrderingWarning)
            jax.lax.scan(lambda c, i: (c, handle.write(testing.write, i, label="in_loop")[0]), 0, jnp.arange(3.0))
        return handle.write(testing.write, 1.0, label="after")[0]

    depends = compiled.paths(compiled.text(program, Handle(testing.slot(0))))
    assert not any(name.startswith("in_loop") for name in depends["after"])
    assert "in_loop@0" not in depends["in_loop@1"]


# Loops that are right without carrying the handle.


def reads_alone(handle):
    return jax.lax.map(lambda x: handle.read(testing.read, x)[0], jnp.arange(3))


def one_handle_for_each_iteration(handle):
    handles = Handle(jnp.arange(3))
    return jax.lax.scan(lambda _, handle: (None, write_it(handle, handle.token)), None, handles)[1]


def one_of_many_handles_in_each_iteration(handle):
    handles = Handle(jnp.arange(3))
    return jax.lax.map(lambda i: write_it(jax.tree.map(lambda leaf: leaf[i], handles), i).token, jnp.arange(3))


def made_in_the_body(handle):
    return jax.lax.map(lambda i: write_it(Handle(i), i).token, jnp.arange(3))


def made_of_an_old_one_on_purpose(handle):
    return jax.lax.map(lambda i: write_it(Handle(handle.token, handle.fence), i).token, jnp.arange(3))


def made_of_a_number_in_the_body(handle):
    return jax.lax.map(lambda i: write_it(Handle(0), i).token, jnp.arange(3))


def closed_over_by_functions_in_the_body(handle):
    def body(handle, x):
        seen, handle = handle.read(lambda token: jax.lax.map(lambda y: testing.read(token, y), x))
        handle = jax.jit(lambda: jax.lax.cond(x[0] > 0, lambda: write_it(handle, x[0]), lambda: handle))()
        return jax.vmap(lambda _: write_it(handle, x[0]), out_axes=None)(x), seen

    return jax.lax.scan(body, handle, jnp.ones((3, 2)))


def waited_for_in_a_loop(handle):
    return jax.lax.map(lambda x: handle.wait() + x, jnp.arange(3))


def carried_after_it_was_used(handle):
    _, handle = handle.write(testing.write, 1.0)
    handle, _ = jax.lax.scan(lambda handle, i: (write_it(handle, i), None), handle, jnp.arange(3))
    return write_it(handle, jnp.int32(1))


def without_a_trace(handle):
    with jax.disable_jit():
        return jax.lax.fori_loop(0, 2, lambda i, handle: write_it(handle, jnp.int32(i)), handle)


RIGHT_LOOPS = [
    reads_alone,
    one_handle_for_each_iteration,
    one_of_many_handles_in_each_iteration,
    made_in_the_body,
    made_of_an_old_one_on_purpose,
    made_of_a_number_in_the_body,
    closed_over_by_functions_in_the_body,
    waited_for_in_a_loop,
    carried_after_it_was_used,
    without_a_trace,
]


@of_where_it_is_made
@pytest.mark.parametrize("program", RIGHT_LOOPS, ids=lambda program: program.__name__)
def test_a_loop_that_is_right_is_not_reported(program, within):
    if program is without_a_trace and within is not WITHIN["eager"]:
        within = jax.disable_jit()(within)
    within(program)
