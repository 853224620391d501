"""The audit finds every race, raises no false alarm, and says what entangle cost."""

import dataclasses
import functools
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import entangle_jax
from entangle_jax import RaceError, _audit, _native, audit, entangle, testing
from entangle_jax._demo import METHODS, SCENARIOS

TARGETS = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}
TOKEN = jax.ShapeDtypeStruct((), jnp.int32)
read, write = testing.read, testing.write


def races(function, *arguments, **options):
    return audit(function, *(arguments or (TOKEN,)), **{**TARGETS, **options}).races


def kinds(found):
    return sorted((race.first.kind, race.second.kind, race.loop is not None) for race in found)


def step(token):
    """One read and one write, in order."""
    value = read(token)
    return write(entangle(token, value), 1.0), value


# Programs in order.


def reads_only(token):
    return read(token, label="a"), read(token, label="b")


def two_handles(token):
    return read(token), write(testing.slot(7), 1.0)


def chained_by_token_results(token):
    token = write(token, 1.0)
    token = write(token, 2.0)
    return read(token)


def in_scan(token):
    return lax.scan(lambda token, _: step(token), token, length=3)


def in_while(token):
    return lax.while_loop(lambda c: c[1] < 3, lambda c: (step(c[0])[0], c[1] + 1), (token, 0))


def in_cond(token):
    value = read(token)
    token = entangle(token, value)
    token = lax.cond(value > 0, lambda t: write(t, 1.0), lambda t: write(t, 2.0), token)
    return value, read(token)


def in_nested_jit_and_pytree(token):
    @jax.jit
    def inner(tree):
        token, value = step(tree["token"])
        return {"token": token, "value": value}

    return inner(inner({"token": token, "value": 0.0}))


def in_vmap_and_checkpoint(token):
    value = jax.checkpoint(lambda x: read(token, x).sum())(jnp.ones(3))
    return write(entangle(token, value), 1.0)


ORDERED = [
    reads_only,
    two_handles,
    chained_by_token_results,
    in_scan,
    in_while,
    in_cond,
    in_nested_jit_and_pytree,
    in_vmap_and_checkpoint,
]


@pytest.mark.parametrize("program", ORDERED, ids=lambda f: f.__name__)
def test_no_false_alarm(program):
    assert races(program) == ()


def test_no_false_alarm_with_donation():
    report = audit(jax.jit(step, donate_argnums=0), TOKEN, **TARGETS)
    assert report.races == ()
    assert [one.copies for one in report.entangles] == [()]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_each_hazard_of_the_demo_is_a_race_unless_entangled(scenario, method):
    program = jax.jit(method.scope(scenario.build(method.tie, method.scope)))
    assert bool(races(program, *scenario.arguments())) == (method.name not in {"entangle", "ordered"})


# Programs out of order, and which pairs race: (first, second, in a later iteration).


def write_in_loop_with_read_before(token):
    value = read(token)
    return value, lax.scan(lambda t, _: (write(t, 1.0), None), token, length=3)[0]


def write_in_loop_with_read_after(token):
    out = lax.scan(lambda t, _: (write(t, 1.0), None), token, length=3)[0]
    return out, read(token)


def write_in_loop_with_read_in_the_next_iteration(token):
    def body(carry, _):
        value = read(token)  # the token of the outside, which waits for nothing
        return write(entangle(token, value), carry.astype(jnp.float32)), value

    return lax.scan(body, token, length=3)


def race_in_one_branch(token):
    value = read(token)
    return value, lax.cond(jnp.sin(1.0 * token) > 0.5, lambda: write(token, 1.0), lambda: token)


def handle_as_a_constant(_):
    token = testing.slot(3)
    return read(token), write(token, 1.0)


def handle_through_pytree_and_jit(token):
    @jax.jit
    def use(tree):
        return jax.jit(lambda t: read(t["deep"][0]))(tree)

    return use({"deep": [token]}), jax.jit(lambda t: write(t, 1.0))(token)


UNORDERED = {
    write_in_loop_with_read_before: [("read", "write", False)],
    write_in_loop_with_read_after: [("write", "read", False)],
    write_in_loop_with_read_in_the_next_iteration: None,  # XLA may take the read out of the loop: see below
    race_in_one_branch: [("read", "write", False)],
    handle_as_a_constant: [("read", "write", False)],
    handle_through_pytree_and_jit: [("read", "write", False)],
}


@pytest.mark.parametrize("program", UNORDERED, ids=lambda f: f.__name__)
def test_a_race_is_found(program):
    report = audit(program, TOKEN, **TARGETS)
    wanted = UNORDERED[program]
    found = [(race.first.kind, race.second.kind, race.loop is not None) for race in report.races]
    if wanted is None:
        assert ("write", "read", True) in found
    else:
        # The same pair may stand in the compiled program in another order of lines.
        assert {frozenset(pair[:2]) for pair in found} == {frozenset(pair[:2]) for pair in wanted}
    assert report.races[0].handle
    with pytest.raises(RaceError, match="RACE"):
        report.raise_if_races()


def test_a_write_that_no_iteration_waits_for_races_with_itself():
    def program(token):
        return lax.fori_loop(0, 3, lambda i, x: x + write(token, i.astype(jnp.float32)), 0)

    assert ("write", "write", True) in kinds(races(program))


def test_a_schedule_is_no_proof_and_is_called_what_it_is():
    found = races(lambda token: (read(token), write(token, 1.0)))
    assert [race.unproven for race in found] == ["schedule"]


def test_operands_that_hold_the_handle_can_be_named():
    def program(token):
        # As if operand 1 of the write were the handle: it is a float, made of the token.
        return read(token, label="x"), write(testing.slot(1), token.astype(jnp.float32))

    assert races(program) == ()
    elsewhere = audit(program, TOKEN, reads=[testing.READ_TARGET], writes=[(testing.WRITE_TARGET, 1)])
    both = audit(program, TOKEN, reads=[testing.READ_TARGET], writes=[(testing.WRITE_TARGET, [0, 1])])
    assert elsewhere.calls
    assert both.calls


def test_lost_calls_are_named_with_their_lines():
    def program(token):
        first = read(token)
        write(token, 1.0)
        return first, read(token)

    report = audit(program, TOKEN, **TARGETS)
    (lost,) = report.lost
    assert lost.call.kind == "read"
    assert lost.merged_with.target == testing.READ_TARGET
    assert lost.call.source.file == __file__
    assert "LOST" in str(report)
    dropped = audit(lambda token: jnp.where(False, read(token), 0.0), TOKEN, **TARGETS).lost
    assert [one.merged_with for one in dropped] == [None]


def test_calls_point_at_the_line_of_the_user():
    calls = audit(step, TOKEN, **TARGETS).calls
    assert {call.source.file for call in calls} == {__file__}
    line = step.__code__.co_firstlineno
    assert {call.kind: call.source.line - line for call in calls} == {"read": 2, "entangle": 3, "write": 3}


X = jnp.ones((64, 64))


@pytest.mark.parametrize(
    ("program", "options", "why"),
    [
        (lambda x: entangle(x, x[0]), {}, "argument not donated"),
        (lambda x: entangle(x, x[0]), {"donate_argnums": 0}, None),
        (lambda x: entangle(x * 2, x[0]), {}, None),
        (lambda x: ((y := x * 2), entangle(y, x[0]) + 1, y), {}, "still used"),
    ],
    ids=["argument", "donated", "computed", "still used"],
)
def test_a_copy_and_its_cause(program, options, why):
    (one,) = audit(jax.jit(program, **options), X).entangles
    assert one.payload_bytes == X.nbytes
    assert [copy.why for copy in one.copies] == ([] if why is None else [why])
    assert one.copied_bytes == (0 if why is None else X.nbytes)


def test_a_witness_that_orders_nothing_is_told():
    with pytest.warns(entangle_jax.OrderingWarning):
        (one,) = audit(lambda x: entangle(x * 2, x[:0]), X).entangles
    assert one.dropped == ("operand 1, a witness, is a constant or has no elements",)


def test_what_is_given_decides_what_is_looked_at():
    jitted = jax.jit(step)
    lowered = jitted.lower(TOKEN)
    assert audit(step, TOKEN).programs == audit(jitted, TOKEN).programs == audit(lowered).programs
    assert audit(lowered).programs == ("as written", "compiled")
    of_compiled = audit(lowered.compile(), **TARGETS)
    assert of_compiled.programs == ("compiled",)
    assert "calls that XLA merged or dropped are not seen" in str(of_compiled)


NAMES = f"{testing.READ_TARGET}, {testing.WRITE_TARGET}"


@pytest.mark.parametrize(
    ("program", "targets", "said"),
    [
        (
            lambda token: (read(token), write(token, 1.0)),
            {},
            f"no targets were given, so no order was looked at.*Other targets that are called: {NAMES}",
        ),
        (lambda token: token + 1, TARGETS, f"of the targets given, {NAMES}, none is called.*called: none"),
    ],
    ids=["none", "not called"],
)
def test_nothing_that_was_not_looked_at_is_called_free_of_races(program, targets, said):
    jax.block_until_ready(jax.jit(step)(testing.slot(0)))  # so that jax has registered its targets
    report = audit(program, TOKEN, **targets)
    assert not report.looked
    assert "not looked for races" in str(report)
    assert "no races" not in str(report)
    assert re.search(said, str(report))
    with pytest.raises(ValueError, match=said):
        report.raise_if_races()


def test_a_target_that_is_not_called_is_named_beside_those_that_are():
    jax.block_until_ready(jax.jit(step)(testing.slot(0)))
    report = audit(lambda token: write(token, 1.0), TOKEN, **TARGETS)
    assert (report.not_called, report.not_given) == ((testing.READ_TARGET,), ())
    assert f"Given, but not called here: {testing.READ_TARGET}. Other targets that are called: none." in str(report)
    report.raise_if_races()


def test_calls_are_counted_once_for_both_programs():
    assert "2 native calls, 1 entangle call" in str(audit(step, TOKEN, **TARGETS))
    dropped = audit(lambda token: jnp.where(False, read(token), 0.0) + write(token, 1.0), TOKEN, **TARGETS)
    assert "2 native calls (1 compiled), no entangle calls" in str(dropped)


def test_a_call_behind_a_wrapper_is_told_by_the_line_that_called_it():
    def solve(token):
        return read(token)

    def program(token):
        return solve(token), write(token, 1.0)

    (race,) = audit(program, TOKEN, **TARGETS).races
    first, line = program.__code__.co_firstlineno, solve.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} (" in str(race.first)
    assert f"called at {__file__}:{first + 1} (" in str(race.first)
    assert "entangle_jax/_audit.py" not in str(race.first)


def test_order_can_be_asked_for():
    report = audit(step, TOKEN, **TARGETS)
    assert report.ordered(testing.READ_TARGET, testing.WRITE_TARGET)
    assert not report.ordered(testing.WRITE_TARGET, testing.READ_TARGET)
    with pytest.raises(
        ValueError, match=r"other is no call .* have calls of: entangle, entangle_testing_read, entangle_"
    ):
        report.ordered("other", testing.READ_TARGET)
    with pytest.raises(ValueError, match="are not in a loop together"):
        report.ordered(testing.READ_TARGET, testing.WRITE_TARGET, later_iteration=True)
    looped = audit(in_scan, TOKEN, **TARGETS)
    assert looped.ordered(testing.WRITE_TARGET, testing.READ_TARGET, later_iteration=True)


def test_a_report_is_frozen_and_goes_to_json_and_dot():
    report = audit(lambda token: (read(token), write(token, 1.0)), TOKEN, **TARGETS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.races = ()
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["races"][0]["handle"] == report.races[0].handle
    assert plain["races"][0]["first"]["target"] in (testing.READ_TARGET, testing.WRITE_TARGET)
    dot = report.to_dot()
    assert dot.count("shape=box") == 2
    assert dot.count('label="race"') == 1


def test_the_picture_is_svg_with_every_call_and_the_race_in_red():
    report = audit(lambda token: (read(token), write(token, 1.0)), TOKEN, **TARGETS)
    svg = report._repr_svg_()
    assert svg.lstrip().startswith("<?xml") or svg.lstrip().startswith("<svg")
    assert testing.READ_TARGET in svg
    assert testing.WRITE_TARGET in svg
    assert re.search(r"#ff0000|red", svg, re.IGNORECASE)
    assert set(report._repr_mimebundle_()) == {"text/plain", "text/html", "image/svg+xml"}


def test_the_picture_is_no_larger_than_what_is_in_it_and_has_a_background_of_its_own():
    svg = audit(lambda token: (read(token), write(token, 1.0)), TOKEN, **TARGETS)._repr_svg_()
    x, y, width, height = map(float, re.search(r'viewBox="(\S+) (\S+) (\S+) (\S+)"', svg).groups())
    rectangle = r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="([^"]+)"'
    background, *boxes = re.findall(rectangle, svg)
    assert background == (f"{x:g}", f"{y:g}", f"{width:g}", f"{height:g}", "white")
    assert len(boxes) == 2
    left, top, wide, high = (list(map(float, side)) for side in list(zip(*boxes, strict=True))[:4])
    bottom, right = (max(map(sum, zip(*edge, strict=True))) for edge in ((top, high), (left, wide)))
    for inside, outside in ((x, min(left)), (y, min(top)), (right, x + width), (bottom, y + height)):
        assert 0 < outside - inside < 12


def test_the_picture_leaves_out_a_race_of_another_program_than_the_drawn_one():
    def program(token):
        return jnp.where(False, read(token), 0.0), write(token, 1.0)  # XLA drops the read

    report = audit(program, TOKEN, **TARGETS)
    assert [race.programs for race in report.races] == [("as written",)]
    assert 'label="race' not in report.to_dot()


def test_the_table_says_how_much_it_leaves_out():
    report = dataclasses.replace(audit(step, TOKEN, **TARGETS), more_races=3)
    assert "\nand 3 races more" in repr(report)


@pytest.mark.parametrize(("bytes_", "text"), [(4, "4 B"), (1536, "1.5 KiB"), (X.nbytes, "16 KiB"), (3 << 21, "6 MiB")])
def test_sizes_can_be_read_by_people(bytes_, text):
    assert text in str(audit(lambda x: entangle(x, x[0]), jnp.zeros(bytes_ // 4)))


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="got an object of type int, wanted a function"):
        audit(3)
    with pytest.raises(TypeError, match=r"type str, .*for XLA's dump files: `python -m entangle_jax audit FILE`"):
        audit("step.hlo.pb")
    lowered = jax.jit(step).lower(TOKEN)
    for given in (lowered, lowered.compile()):
        with pytest.raises(TypeError, match="has its arguments already"):
            audit(given, TOKEN)
    with pytest.raises(TypeError, match=r"reads is 'my_solve', wanted a list of targets"):
        audit(step, TOKEN, reads="my_solve")
    several = SimpleNamespace(runtime_executable=lambda: SimpleNamespace(hlo_modules=lambda: [None, None]))
    with pytest.raises(ValueError, match="the executable has 2 modules, wanted one"):
        _audit._optimized(several)
    for spec in (("name", "0"), ("name", "x y"), ("name", -1), 3, ("name", [0, -1]), ("name", 1, 2), ""):
        with pytest.raises(TypeError, match=r"a target is .*, wanted its name; or a pair"):
            audit(step, TOKEN, writes=[spec])
    with pytest.raises(TypeError, match="with an operand that no call can have"):
        audit(step, TOKEN, writes=[("name", 1 << 99)])
    with pytest.raises(TypeError, match="a resource in writes is 3, wanted its name"):
        audit(step, TOKEN, writes={3: ["name"]})
    with pytest.raises(TypeError, match=r"writes\['scene'\] is 'name', wanted a list of targets"):
        audit(step, TOKEN, writes={"scene": "name"})
    with pytest.raises(ValueError, match=r"operand 7 of target .* has 2 operand"):
        audit(step, TOKEN, writes=[(testing.WRITE_TARGET, 7)])


@pytest.mark.parametrize("program", [b"", b"\x00", b"abc" * 100, bytes(range(256)) * 40])
def test_bytes_that_are_no_program_are_an_error(program):
    with pytest.raises(ValueError, match=r"."):
        _native.Audit(program, [])


def test_a_truncated_program_is_an_error_or_a_smaller_one():
    whole = jax.jit(step).lower(TOKEN).compiler_ir("hlo").as_serialized_hlo_module_proto()
    for length in range(0, len(whole) - 1, 7):
        try:
            _native.Audit(whole[:length], []).races()
        except ValueError as error:
            assert str(error)


def test_what_not_every_program_needs_is_imported_when_it_is_used():
    lines = (
        "import entangle_jax, sys\n"
        "later = {'entangle_jax._audit', 'entangle_jax._handle'}\n"
        "assert not later & set(sys.modules), sys.modules\n"
        "assert {'Handle', 'audit'} <= set(dir(entangle_jax))\n"
        "assert entangle_jax.Handle is entangle_jax.Handle\n"
        "from entangle_jax import *\n"
        "assert later <= set(sys.modules) and audit and Handle\n"
    )
    subprocess.run([sys.executable, "-c", lines], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'audits'"):
        _ = entangle_jax.audits


# Which element of an array, and which constant, a handle is.


SLOTS = jax.ShapeDtypeStruct((4,), jnp.int32)
INDEX = jax.ShapeDtypeStruct((), jnp.int32)
INDICES = jax.ShapeDtypeStruct((4,), jnp.int32)


def of_moved(move):
    """Reads element 0 of what `move` makes of four handles, which may be element 2 of the four, and writes that."""
    return lambda slots, *rest: (read(move(slots, *rest)[0]), write(slots[2], 1.0))


MOVED = {
    "roll": (jnp.roll, [INDEX]),
    "gather": (lambda slots, indices: slots[indices], [INDICES]),
    "vmapped gather": (lambda slots, indices: jax.vmap(lambda i: slots[i])(indices), [INDICES]),
    "transpose": (lambda slots: slots.reshape(2, 2).T.reshape(4)[1:], []),
    "reverse": (lambda slots: slots[::-1][1:], []),
    "sort": (lambda slots: jnp.sort(slots), []),
    "argsort": (lambda slots, keys: slots[jnp.argsort(keys)], [INDICES]),
    "sort by keys": (lambda slots, keys: lax.sort((keys, slots), num_keys=1)[1], [INDICES]),
    "reverse in a loop": (lambda slots: lax.fori_loop(0, 2, lambda _, s: jnp.roll(s, 1), slots), []),
    "scatter": (lambda slots, indices: slots.at[indices].set(slots), [INDICES]),
    "product": (lambda slots, indices: jnp.eye(4, dtype=jnp.int32)[indices] @ slots, [INDICES]),
    "pad": (lambda slots: lax.pad(slots, jnp.int32(0), [(1, -1, 0)])[3:], []),
    "update": (lambda slots, i: lax.dynamic_update_slice(slots, slots[2:3], (i,)), [INDEX]),
}


@pytest.mark.parametrize("name", MOVED)
def test_an_element_is_found_again_wherever_it_was_moved(name):
    move, rest = MOVED[name]
    found = races(of_moved(move), SLOTS, *rest)
    assert {frozenset((race.first.kind, race.second.kind)) for race in found} == {frozenset(("read", "write"))}


STAYING = {
    "arithmetic": lambda slots: slots + 0,
    "reshape": lambda slots: slots.reshape(2, 2).reshape(4),
    "entangle": lambda slots: entangle(slots, jnp.ones(3)),
    "loop": lambda slots: lax.fori_loop(0, 2, lambda i, s: s + 0 * i, slots),
    "branch": lambda slots: lax.cond(slots.sum() > 3, lambda s: s * 1, lambda s: s, slots),
}


@pytest.mark.parametrize("name", STAYING)
def test_elements_that_stay_in_place_are_told_apart(name):
    assert races(of_moved(STAYING[name]), SLOTS) == ()


def test_a_ring_of_handles_races_with_its_next_iteration():
    def ring(slots):
        def body(slots, _):
            return jnp.roll(slots, 1), (read(slots[0]), write(slots[1], 1.0))

        return lax.scan(body, slots, None, length=4)

    assert ("write", "write", True) in kinds(races(ring, SLOTS))


def table(i):
    return jnp.array([7, 9, 11], jnp.int32)[i]


@pytest.mark.parametrize(
    ("handle", "written", "racing"),
    [
        (lambda i: read(table(i)), 9, True),
        (lambda i: read(table(i)), 8, False),
        (lambda _: read(table(1)), 9, True),
        (lambda _: read(table(1)), 7, False),
        (lambda i: read(jnp.arange(4, dtype=jnp.int32)[i]), 2, True),
        (lambda i: read(jnp.arange(4, dtype=jnp.int32)[i]), 4, True),  # XLA computes it, and it may be any
        (lambda _: lax.map(read, table(jnp.arange(3))), 11, True),
        (lambda _: jax.vmap(read)(jnp.arange(3, dtype=jnp.int32)), 1, True),
        (lambda _: read(jnp.uint32(9).astype(jnp.int32)), 9, True),
    ],
)
def test_a_constant_is_every_equal_constant_and_no_other(handle, written, racing):
    found = races(lambda i: (handle(i), write(testing.slot(written), 1.0)), INDEX)
    assert bool(found) == racing


def test_equal_constants_made_twice_are_one_handle():
    def program(_):
        first, second = jnp.arange(3, dtype=jnp.int32), jnp.arange(3, dtype=jnp.int32)
        return read(first[1]), write(second[1], 1.0), write(second[2], 1.0)

    assert kinds(races(program)) == [("read", "write", False)]


def test_a_handle_made_in_a_loop_is_looked_at():
    def program(token, xs):
        first = read(token)

        def body(carry, x):
            made = jax.random.randint(jax.random.key(3), (), 0, 5, dtype=jnp.int32)
            return carry + read(made, x), write(jnp.arange(3, dtype=jnp.int32)[1], x)

        return lax.scan(body, first, xs)

    assert ("write", "write", True) in kinds(races(program, TOKEN, jnp.ones(3)))


def test_races_on_two_handles_at_one_line_are_not_taken_for_one():
    def use(token):
        return read(token), write(token, 1.0)

    def program(a, b):
        results = []
        for token, kept in ((a, False), (b, True)):
            value, written = use(token)
            results += [value if kept else jnp.where(False, value, 0.0), written]  # XLA drops the other read
        return results

    found = {race.handle: race.programs for race in races(program, TOKEN, TOKEN)}
    assert found == {"argument 0 (a)": ("as written",), "argument 1 (b)": ("as written", "compiled")}


def test_races_that_are_not_listed_are_counted_once():
    def program(token):
        return lax.scan(lambda c, _: (c, [write(token, float(i)) for i in range(150)]), 0, length=3)[1]

    report = audit(program, TOKEN, **TARGETS)
    assert len(report.races) + report.more_races == 150 * 151 // 2


def test_the_order_of_all_pairs_of_a_long_chain_is_soon_told():
    def program(token):
        return [token := write(token, float(i)) for i in range(300)]

    report = audit(program, TOKEN, **TARGETS)
    assert not report.ordered(testing.WRITE_TARGET, testing.WRITE_TARGET), "no call comes after itself"
    of = [call for call in report.calls if call.program == "as written"]
    assert report.ordered(of[0], of[-1])
    assert not report.ordered(of[-1], of[0])
    with pytest.raises(ValueError, match="are not in the same program"):
        report.ordered(of[0], next(call for call in report.calls if call.program == "compiled"))


def test_a_fault_of_the_audit_is_an_error_that_asks_to_be_reported():
    program = jax.jit(step).lower(TOKEN).compiler_ir("hlo").as_serialized_hlo_module_proto()
    known = _native.Audit(program, [_native.Access(writes=False, target=testing.READ_TARGET)])
    with pytest.raises(RuntimeError, match=r"a fault in entangle_jax.audit: index out of bounds.*; please report it"):
        known.all_ordered([0], [7], False)


class Model:
    """An object with a jitted method."""

    @functools.partial(jax.jit, static_argnums=0)
    def step(self, token):
        return read(token), write(token, self.value())

    def value(self):
        return 1.0


def test_a_jitted_method_is_audited_with_its_object():
    assert len(audit(Model().step, TOKEN, **TARGETS).races) == 1
    bound = functools.partial(jax.jit(lambda token, value: (read(token), write(token, value))), value=1.0)
    assert len(audit(bound, TOKEN, **TARGETS).races) == 1


def test_names_of_targets_are_not_handed_to_the_function():
    for name in ("read", "write"):
        for fn in (step, lambda token, **_: step(token), jax.jit(step).lower(TOKEN)):
            arguments = () if isinstance(fn, jax.stages.Lowered) else (TOKEN,)
            with pytest.raises(
                TypeError,
                match=rf"got `{name}=\['my_solve'\]`, which the function does not take: the native targets are given as "
                rf"`{name}s`",
            ):
                audit(fn, *arguments, **{name: ["my_solve"]})
    takes_it = lambda token, read: (testing.read(token), testing.write(token, read))
    assert len(audit(takes_it, TOKEN, read=1.0, **TARGETS).races) == 1
