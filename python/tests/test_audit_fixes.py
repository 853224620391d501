"""The fix that a report prints, done literally, makes the program right.

Each wrong program is given with the text of its fix and with the program after it, which has no race and gives what the
text of the program says, by its results and by the native log.
"""

import linecache
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir

from entangle_jax import Handle, _calls, audit, entangle, ordered, reads, testing, writes

read, write = testing.read, testing.write
TARGETS = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}
XS = jnp.arange(1.0, 4.0)
INT = jax.ShapeDtypeStruct((), jnp.int32)
FLOAT = jax.ShapeDtypeStruct((), jnp.float32)

marked_read = reads("slot", handle="token")(read)
marked_write = writes("slot", handle="token")(write)


def fixes(report):
    """The fixes that a report prints, with the lines of this file as what stands on them."""
    text = str(report)
    found = [line.partition("fix: ")[2] for line in text.splitlines() if "fix: " in line]
    return [re.sub(re.escape(__file__) + r":(\d+)", lambda match: f"<{_tag(int(match[1]))}>", fix) for fix in found]


def _tag(line):
    text = linecache.getline(__file__, line)
    _, mark, tag = text.partition("# @")
    return tag.strip() if mark else f"an untagged line: {text}"


def run(function, *arguments):
    """The results, and what the native calls did, in several runs that must agree."""
    jitted = jax.jit(function)
    seen = []
    for _ in range(5):
        testing.reset()
        results = jax.block_until_ready(jitted(*arguments))
        seen.append(
            (
                [float(x) for leaf in jax.tree.leaves(results) for x in jnp.ravel(leaf)],
                [(a.op, a.value) for a in testing.log()],
            )
        )
    assert all(one == seen[0] for one in seen)
    return seen[0]


# Programs that thread nothing: the fix is one line, and is run as it is printed.


def straight(token):
    write(token, 1.0)
    before = read(token)
    write(token, 2.0)
    return before, read(token)


def in_a_loop(token):
    def body(total, x):
        write(token, x)
        return total + read(token), None

    total, _ = lax.scan(body, jnp.float32(0), XS)
    write(token, 9.0)
    return total, read(token)


def in_a_branch(token):
    before = read(token)
    lax.cond(jnp.sin(1.0 * token) < 0.5, lambda: write(token, 1.0), lambda: write(token, 2.0))
    return before, read(token)


def in_a_jitted_function(token):
    @jax.jit
    def use(value):
        write(token, value)
        return read(token)

    return use(1.0), use(2.0)


NOTHING = f'`{{0}} = ordered({{0}}, reads=["{testing.READ_TARGET}"], writes=["{testing.WRITE_TARGET}"])`'


@pytest.mark.parametrize(
    ("program", "results", "written"),
    [
        (straight, [1, 2], [1, 2]),
        (in_a_loop, [6, 9], [1, 2, 3, 9]),
        (in_a_branch, [0, 1], [1]),
        (in_a_jitted_function, [1, 2], [1, 2]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_where_nothing_is_threaded_the_line_that_is_printed_puts_all_calls_in_order(program, results, written):
    report = audit(program, testing.slot(0), **TARGETS)
    (fix,) = fixes(report)
    assert fix == NOTHING.format(program.__name__) + " runs these calls in the order of the text"
    mended = apply(fix, program)
    audit(mended, testing.slot(0), **TARGETS).raise_if_races()
    got, log = run(mended, testing.slot(0))
    assert got == results
    assert [value for op, value in log if op == "write"] == written


def apply(fix, program):
    names = {program.__name__: program, "ordered": ordered}
    exec(fix.split("`")[1], names)
    return names[program.__name__]


def marked(token):
    before = marked_read(token)
    marked_write(token, 1.0)
    return before, marked_read(token)


def test_where_functions_are_marked_the_line_that_is_printed_puts_their_calls_in_order():
    report = audit(marked, testing.slot(0))
    (fix,) = fixes(report)
    assert fix == "`marked = ordered(marked)` runs `read` and `write`, which are marked, in the order of the text"
    mended = apply(fix, marked)
    audit(mended, testing.slot(0)).raise_if_races()
    assert run(mended, testing.slot(0))[0] == [0, 1]


SHELF = []


def with_callbacks(x):
    def put(x):
        SHELF.append(int(x))
        return x

    first = io_callback(put, INT, x)
    count = jax.pure_callback(lambda x: jnp.int32(len(SHELF)), INT, x)
    second = io_callback(put, INT, x + 1)
    return count, first, second


def test_callbacks_are_named_by_their_primitives():
    target = f"xla_ffi_python_{'cpu' if jax.default_backend() == 'cpu' else 'gpu'}_callback"
    (fix,) = fixes(audit(with_callbacks, INT, writes=[target]))
    assert fix.startswith('`with_callbacks = ordered(with_callbacks, writes=["io_callback", "pure_callback"])`')
    mended = jax.jit(apply(fix, with_callbacks))
    audit(mended, INT, writes=[target]).raise_if_races()
    for _ in range(5):
        SHELF.clear()
        assert [int(x) for x in jax.block_until_ready(mended(jnp.int32(1)))] == [1, 1, 2]
        assert SHELF == [1, 2]


# Primitives of other packages, which decide what to call when they are lowered: no jaxpr shows the call.


def late(name, call, result):
    """A primitive that makes a native call in its lowering, as those of klujax and lineax do."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda *operands: jax.core.ShapedArray((), result))
    mlir.register_lowering(primitive, mlir.lower_fun(call, multiple_results=False))
    return primitive.bind


read_late = late("slot_read", lambda token: read(token), jnp.float32)
write_late = late("slot_write", lambda token, value: write(token, value), jnp.int32)
opaque_read = reads("slot", handle="token", opaque=True)(lambda token: read_late(token))
opaque_write = writes("slot", handle="token", opaque=True)(lambda token, value: write_late(token, value))


def with_primitives(token):
    before = read_late(token)
    done = write_late(token, jnp.float32(1))
    return before, read_late(token), done


def with_primitives_in_a_loop(token):
    def body(total, x):
        done = write_late(token, x)
        return total + read_late(token), done

    return lax.scan(body, jnp.float32(0), XS)


def with_opaque_marks(token):
    before = opaque_read(token)
    done = opaque_write(token, jnp.float32(1))
    return before, opaque_read(token), done


def with_marks_and_names(token):
    before = marked_read(token)
    write(token, 1.0)
    return before, marked_read(token)


PRIMITIVES = (
    '`{0} = ordered({0}, reads=["slot_read"], writes=["slot_write"])` runs these calls in the order of the text'
)


@pytest.mark.parametrize(
    ("program", "fix", "results", "written"),
    [
        (with_primitives, PRIMITIVES, [0, 1, 0], [1]),
        (with_primitives_in_a_loop, PRIMITIVES, [6, 0, 0, 0], [1, 2, 3]),
        (
            with_opaque_marks,
            "`{0} = ordered({0})` runs `<lambda>`, which is marked, in the order of the text",
            [0, 1, 0],
            [1],
        ),
        (
            with_marks_and_names,
            f'`{{0}} = ordered({{0}}, writes={{{{"slot": ["{testing.WRITE_TARGET}"]}}}})` runs these calls in the order of the '
            "text",
            [0, 1],
            [1],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_printed_is_what_ordered_can_see(program, fix, results, written):
    targets = {} if program is with_opaque_marks else TARGETS
    report = audit(program, testing.slot(0), **targets)
    assert report.races
    assert fixes(report) == [fix.format(program.__name__)]
    mended = apply(fixes(report)[0], program)
    audit(mended, testing.slot(0), **targets).raise_if_races()
    got, log = run(mended, testing.slot(0))
    assert got == results
    assert [value for op, value in log if op == "write"] == written


@pytest.mark.filterwarnings("ignore::entangle_jax.OrderingWarning")
@pytest.mark.parametrize(
    ("program", "undecorated", "fix", "results"),
    [
        (ordered(straight, writes=[testing.WRITE_TARGET]), straight, NOTHING, [1, 2]),
        (
            ordered(with_primitives, reads=["slot_read"], writes=[testing.WRITE_TARGET]),
            with_primitives,
            PRIMITIVES,
            [0, 1, 0],
        ),
    ],
    ids=["a read is not named", "a write is named by its target and not by its primitive"],
)
def test_where_ordered_is_told_too_little_the_line_that_is_printed_names_all(program, undecorated, fix, results):
    report = audit(program, testing.slot(0), **TARGETS)
    (printed,) = fixes(report)
    assert printed.startswith(fix.partition(" runs these")[0].format(undecorated.__name__))
    # With the decorator that is there, or in its place.
    for wrong in (program, undecorated):
        mended = apply(printed, wrong)
        audit(mended, testing.slot(0), **TARGETS).raise_if_races()
        assert run(mended, testing.slot(0))[0] == results


def two_calls(tie):
    """A primitive that writes and reads when it is lowered."""
    primitive = Primitive("slot_write_and_read")
    primitive.def_abstract_eval(lambda token: jax.core.ShapedArray((), jnp.float32))

    def lowered(token):
        done = write(token, 1.0)
        return read(entangle(token, done) if tie else token)

    mlir.register_lowering(primitive, mlir.lower_fun(lowered, multiple_results=False))
    return primitive.bind


def test_what_an_ordered_function_cannot_see_is_told_to_be_opaque_and_then_to_be_tied_where_it_is_lowered():
    def mended(*, opaque, tie):
        both = writes("slot", opaque=opaque)(two_calls(tie))

        @ordered
        def fn(token):
            before = marked_read(token)
            inside = both(token)
            return before, inside, marked_read(token)

        return fn

    line = "mark {} with `opaque=True`: `slot_write_and_read` makes several calls when it is lowered"
    report = audit(mended(opaque=False, tie=False), testing.slot(0))
    assert fixes(report) == [line.format("`bind`")]
    primitive = two_calls(tie=False)
    named = ordered(
        lambda token: (primitive(token), read(token)), writes=["slot_write_and_read"], reads=TARGETS["reads"]
    )
    assert fixes(audit(named, testing.slot(0), **TARGETS)) == [line.format("the function around it")]
    report = audit(mended(opaque=True, tie=False), testing.slot(0))
    assert fixes(report) == [
        "`slot_write_and_read` makes both calls when it is lowered, where `ordered` does not see them: tie the second to "
        "the first there, with `entangle`"
    ]
    fn = mended(opaque=True, tie=True)
    audit(fn, testing.slot(0)).raise_if_races()
    assert run(fn, testing.slot(0))[0] == [0, 1, 1]


def test_a_primitive_is_lowered_once_to_tell_of_it_however_many_races_there_are(monkeypatch):
    lowered = []
    monkeypatch.setattr(_calls, "_targets", lambda eqn: lowered.append(eqn) or (testing.READ_TARGET,))
    both = writes("slot")(two_calls(tie=False))
    report = audit(ordered(lambda token: [both(token) for _ in range(4)]), testing.slot(0))
    assert len(report.races) > 4
    assert len(lowered) == 4


# Programs that thread a handle, or place their `entangle`s themselves. Lines are told by the tags behind them.


@dataclass
class Case:
    wrong: Any
    fixes: list[str]
    right: Any
    results: list[float]
    written: list[float]
    arguments: tuple[Any, ...] = (0,)


def handle_old_one_for_a_write(token):
    handle = Handle(token)
    before, _ = handle.read(read)  # @read
    _, handle = handle.write(write, 1.0)  # @write
    return before, handle.read(read)[0]


def handle_old_one_for_a_write_mended(token):
    handle = Handle(token)
    before, handle = handle.read(read)
    _, handle = handle.write(write, 1.0)
    return before, handle.read(read)[0]


def handle_old_one_for_a_read(token):
    handle = Handle(token)
    _, _ = handle.write(write, 1.0)  # @write
    return handle.read(read)[0]  # @read


def handle_old_one_for_a_read_mended(token):
    handle = Handle(token)
    _, handle = handle.write(write, 1.0)
    return handle.read(read)[0]


def handle_not_returned_from_the_body(token):
    def body(handle, x):
        _, _ = handle.write(write, x)  # @write
        return handle, None

    handle, _ = lax.scan(body, Handle(token), XS)  # @loop
    return handle.read(read)[0]  # @read


def handle_not_returned_from_the_body_mended(token):
    def body(handle, x):
        _, handle = handle.write(write, x)
        return handle, None

    handle, _ = lax.scan(body, Handle(token), XS)
    return handle.read(read)[0]


def handle_not_returned_from_the_branch(token):
    def taken(handle):
        _, _ = handle.write(write, 1.0)  # @write
        return handle

    handle = lax.cond(jnp.sin(1.0 * token) < 0.5, taken, lambda handle: handle, Handle(token))
    return handle.read(read)[0]  # @read


def handle_not_returned_from_the_branch_mended(token):
    def taken(handle):
        _, handle = handle.write(write, 1.0)
        return handle

    handle = lax.cond(jnp.sin(1.0 * token) < 0.5, taken, lambda handle: handle, Handle(token))
    return handle.read(read)[0]


def handle_left_out_later(token):
    before, _ = Handle(token).read(read)  # @read
    write(token, 1.0)  # @write
    return before


def handle_left_out_later_mended(token):
    before, handle = Handle(token).read(read)
    handle.write(write, 1.0)
    return before


def handle_left_out_before(token):
    handle = Handle(token)
    before = read(token)  # @read
    handle.write(write, 1.0)  # @write
    return before


def handle_left_out_before_mended(token):
    handle = Handle(token)
    before, handle = handle.read(read)
    handle.write(write, 1.0)
    return before


def handle_of_outside_used_in_a_loop(token):
    handle = Handle(token)
    before, _ = handle.read(read)  # @read

    def body(handle, x):
        return handle.write(write, x)[1], None  # @write

    lax.scan(body, handle, XS)
    return before


def handle_of_outside_used_in_a_loop_mended(token):
    handle = Handle(token)
    before, handle = handle.read(read)

    def body(handle, x):
        return handle.write(write, x)[1], None

    lax.scan(body, handle, XS)
    return before


def solve(token):
    return read(token)


def refactor(token, value):
    return write(token, value)


def entangle_one_place_forgotten(token):
    before = solve(token)
    token = entangle(token, before)
    refactor(token, 1.0)  # @refactor
    return before, solve(token)  # @solve


def entangle_one_place_forgotten_mended(token):
    before = solve(token)
    token = entangle(token, before)
    done = refactor(token, 1.0)
    token = entangle(token, done)
    return before, solve(token)


def entangle_forgotten_at_the_end_of_a_body(token):
    def body(token, x):
        write(entangle(token, x), x)  # @write
        return token, None

    token, _ = lax.scan(body, token, XS)  # @loop
    return read(token)  # @read


def entangle_forgotten_at_the_end_of_a_body_mended(token):
    def body(token, x):
        done = write(entangle(token, x), x)
        token = entangle(token, done)
        return token, None

    token, _ = lax.scan(body, token, XS)
    return read(token)


def entangle_forgotten_in_a_branch(token):
    before = read(token)
    token = entangle(token, before)

    def taken(token):
        write(token, 1.0)  # @write
        return token

    token = lax.cond(jnp.sin(1.0 * token) < 0.5, taken, lambda token: token, token)
    return read(token)  # @read


def entangle_forgotten_in_a_branch_mended(token):
    before = read(token)
    token = entangle(token, before)

    def taken(token):
        done = write(token, 1.0)
        return entangle(token, done)

    token = lax.cond(jnp.sin(1.0 * token) < 0.5, taken, lambda token: token, token)
    return read(token)


CASES = [
    Case(
        handle_old_one_for_a_write,
        ["call the `write` at <write> on the handle that the `read` at <read> returned"],
        handle_old_one_for_a_write_mended,
        [0, 1],
        [1],
    ),
    Case(
        handle_old_one_for_a_read,
        ["call the `read` at <read> on the handle that the `write` at <write> returned"],
        handle_old_one_for_a_read_mended,
        [1],
        [1],
    ),
    Case(
        handle_not_returned_from_the_body,
        [
            "carry the handle through the loop at <loop>: return from its body the handle that the `write` at <write> "
            "returned, and begin the body with the one that it is given",
            "return from the body of the loop the handle that the `write` at <write> returned, and call the `read` at "
            "<read> on the handle that comes out of the loop",
        ],
        handle_not_returned_from_the_body_mended,
        [3],
        [1, 2, 3],
    ),
    Case(
        handle_not_returned_from_the_branch,
        [
            "return from the branch the handle that the `write` at <write> returned, and call the `read` at <read> on "
            "the handle that comes out of the conditional"
        ],
        handle_not_returned_from_the_branch_mended,
        [1],
        [1],
    ),
    Case(
        handle_left_out_later,
        ["make the call at <write> by `write` of the handle that the `read` at <read> returned"],
        handle_left_out_later_mended,
        [0],
        [1],
    ),
    Case(
        handle_left_out_before,
        [
            "make the call at <read> by `read` of the handle, and call the `write` at <write> on the handle that this returns"
        ],
        handle_left_out_before_mended,
        [0],
        [1],
    ),
    Case(
        handle_of_outside_used_in_a_loop,
        [
            "call the `write` at <write> on the handle that the `read` at <read> returned, passed into the loop by its carry"
        ],
        handle_of_outside_used_in_a_loop_mended,
        [0],
        [1, 2, 3],
    ),
    Case(
        entangle_one_place_forgotten,
        [
            "after <refactor>: `token = entangle(token, result)`, with the result of `refactor` at <refactor>; call "
            "`solve` at <solve> with that token"
        ],
        entangle_one_place_forgotten_mended,
        [0, 1],
        [1],
    ),
    Case(
        entangle_forgotten_at_the_end_of_a_body,
        [
            "carry the token through the loop at <loop>: make the calls of its body with the token that it is given, end "
            f"it with `token = entangle(token, result)`, with the result of `{testing.WRITE_TARGET}` at <write>, and "
            "return that token from it",
            f"end the body of the loop around `{testing.WRITE_TARGET}` at <write> with `token = entangle(token, "
            f"result)`, with the result of `{testing.WRITE_TARGET}` at <write>, carry that token, and call "
            f"`{testing.READ_TARGET}` at <read> with the token that comes out of the loop",
        ],
        entangle_forgotten_at_the_end_of_a_body_mended,
        [3],
        [1, 2, 3],
    ),
    Case(
        entangle_forgotten_in_a_branch,
        [
            f"end the branch around `{testing.WRITE_TARGET}` at <write> with `token = entangle(token, result)`, with the "
            f"result of `{testing.WRITE_TARGET}` at <write>, return that token from it, and call "
            f"`{testing.READ_TARGET}` at <read> with the token that comes out of the conditional"
        ],
        entangle_forgotten_in_a_branch_mended,
        [1],
        [1],
    ),
]


@pytest.mark.filterwarnings("ignore::entangle_jax.OrderingWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.wrong.__name__)
def test_the_fix_says_what_to_thread_and_doing_so_makes_the_program_right(case):
    report = audit(case.wrong, testing.slot(0), **TARGETS)
    assert report.races
    assert fixes(report) == case.fixes, str(report)
    audit(case.right, testing.slot(0), **TARGETS).raise_if_races()
    results, log = run(case.right, testing.slot(0))
    assert results == case.results
    assert [value for op, value in log if op == "write"] == case.written
