"""What a report says: the order of the program, the few places to mend, and what became of calls."""

import importlib.util
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from entangle_jax import audit, ordered, reads, testing

read, write = testing.read, testing.write
TARGETS = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}
TOKEN = jax.ShapeDtypeStruct((), jnp.int32)


def lines_of(race, function):
    """The lines of both calls, counted from the first of the function."""
    first = function.__code__.co_firstlineno
    return race.first.source.line - first, race.second.source.line - first


def write_then_read(token):
    write(token, 1.0)
    return read(token)


@pytest.mark.parametrize("form", ["both", "compiled alone"])
def test_a_write_before_a_read_is_told_in_this_order_though_the_compiler_has_the_other(form):
    lowered = jax.jit(write_then_read).lower(TOKEN)
    report = audit(lowered if form == "both" else lowered.compile(), **TARGETS)
    (race,) = report.races
    assert (race.first.kind, race.second.kind) == ("write", "read")
    assert lines_of(race, write_then_read) == (1, 2)
    text = str(report)
    assert re.search(
        r"RACE  write .*\n  then read .*\n      both touch argument 0 \(token\), and the second does not wait", text
    )
    native = report._audits["compiled"].races().list[0]
    calls = [call for call in report.calls if call.program == "compiled"]
    scheduled_first = calls[native.first].kind
    said = "; the compiled program lists them the other way round" in text
    assert said == race.reversed == (scheduled_first == "read")


def test_the_order_of_the_trace_counts_and_not_that_of_the_lines():
    def program(token):
        def late():
            return read(token)

        write(token, 1.0)
        return late()

    (race,) = audit(program, TOKEN, **TARGETS).races
    assert (race.first.kind, race.second.kind) == ("write", "read")
    assert lines_of(race, program) == (4, 2)


def six_calls(token):
    write(token, 1.0)
    a = read(token)
    write(token, 2.0)
    b = read(token)
    write(token, 3.0)
    return a, b, read(token)


def test_the_few_races_that_mend_the_others_are_told_in_the_order_of_the_source():
    report = audit(six_calls, TOKEN, **TARGETS)
    told = [race for race in report.races if not race.follows]
    assert [lines_of(race, six_calls) for race in told] == [(i, i + 1) for i in range(1, 6)]
    assert len(report.races) == 12
    assert str(report).count("RACE") == 5
    assert "\nand 7 races that follow from these\n      fix: `six_calls = ordered(six_calls, " in str(report)


def test_a_race_does_not_follow_from_calls_that_may_not_run():
    def program(token):
        before = read(token)
        lax.cond(jnp.sin(1.0 * token) > 0.5, lambda: write(token, 1.0), lambda: token)
        write(token, 2.0)
        return before

    report = audit(program, TOKEN, **TARGETS)
    assert not any(race.follows for race in report.races)
    assert len(report.races) == 3


def test_no_frame_is_told_twice_and_no_name_of_the_compiled_program():
    def program(token):
        def body(total, x):
            return total + jax.jit(lambda: read(token))() + write(token, x), None

        return lax.scan(body, 0.0, jnp.arange(3.0))[0], read(token)

    report = audit(program, TOKEN, **TARGETS)
    text = str(report)
    assert re.search(r"in a later iteration of the loop at \S+test_audit_report.py:\d+\n", text)
    for line in text.splitlines():
        places = re.findall(r"\S+\.py:\d+ \([^)]*\)", line)
        assert len(places) == len(set(places)), line
    for name in {call.name for call in report.calls} | {part for call in report.calls for part in call.place}:
        assert name not in text


def test_equal_reads_under_vmap_are_called_merged():
    def program(tokens):
        return jax.vmap(lambda token: (read(token), 2 * read(token)))(tokens)

    (lost,) = audit(program, jnp.arange(3), **TARGETS).lost
    assert lost.merged_with is not None
    different = audit(lambda a, b: (jax.vmap(read)(a), jax.vmap(read)(b)), jnp.arange(3), jnp.arange(3), **TARGETS)
    assert different.lost == ()


def test_a_call_that_nothing_needs_is_called_dropped():
    report = audit(lambda token: (jnp.where(False, read(token), 0.0), write(token + 1, 1.0)), TOKEN, **TARGETS)
    (lost,) = report.lost
    assert (lost.merged_with, lost.never_runs) == (None, False)
    assert "dropped: XLA found nothing that needs its result, and it has no side effect" in str(report)


def test_a_write_that_never_runs_is_not_called_unneeded():
    def program(token):
        return lax.while_loop(lambda c: c[1] < 0, lambda c: (write(c[0], 1.0), c[1] + 1), (token, 0))

    report = audit(program, TOKEN, **TARGETS)
    (lost,) = report.lost
    assert lost.never_runs
    assert "dropped: XLA found that the branch or the loop around it never runs" in str(report)


def hoisted(token):
    def body(total, x):
        return total + x * read(token), None

    return lax.scan(body, 0.0, jnp.arange(5.0))[0], write(token + 1, 1.0)


def test_a_read_that_was_taken_out_of_a_loop_is_called_moved():
    report = audit(hoisted, TOKEN, **TARGETS)
    (moved,) = report.moved
    assert moved.call.kind == "read"
    assert moved.out_of[0].line == hoisted.__code__.co_firstlineno + 4
    assert report.lost == ()
    assert re.search(
        r"MOVED read .*\n      runs once, before the loop at \S+, instead of in each iteration: nothing that it is given "
        r"changes there\. If what it reads does, mark it with `reads\(\.\.\., volatile=True\)` and use `ordered`",
        str(report),
    )
    # And done so, it stays.
    volatile = reads("slot", volatile=True)(read)

    def mended(token):
        def body(total, x):
            return total + x * volatile(token), None

        return lax.scan(body, 0.0, jnp.arange(5.0))[0]

    assert audit(ordered(mended), TOKEN).moved == ()


def test_a_loop_that_was_unrolled_has_not_moved_its_calls():
    def program(token):
        return lax.scan(lambda token, x: (write(token, x), None), token, jnp.arange(1.0))[0]

    report = audit(program, TOKEN, **TARGETS)
    assert report.moved == ()
    assert report.lost == ()


NEWCOMER = """
from entangle_jax import entangle, testing

def program(token):
    done = testing.write(token, 1.0)
    a = testing.read(token)
    token = entangle(token, a)
    changed = testing.write(token, 2.0)
    b = testing.read(token)
    last = testing.write(token, 3.0)
    c = testing.read(token)
    return a, b, c
"""


def test_the_fixes_that_a_newcomer_is_told_done_in_order_end_in_the_right_answer(tmp_path):
    source, rounds = NEWCOMER.splitlines(), 0
    while report := _audited(tmp_path / f"program_{rounds}.py", source)[1].races:
        lines = []
        for race in report:
            if not race.follows:
                said = re.fullmatch(
                    r"after (\S+\.py):(\d+): `token = entangle\(token, result\)`, with the result of `\w+` at \1:\2; call "
                    r"`\w+` at \1:(\d+) with that token",
                    race.fix,
                )
                assert said, race.fix
                assert int(said[2]) < int(said[3])
                lines.append(int(said[2]))
        assert lines == sorted(lines)
        for line in sorted(set(lines), reverse=True):
            result = source[line - 1].partition("=")[0].strip()
            source.insert(line, f"    token = entangle(token, {result})")
        rounds += 1
        assert rounds == 1, "one report is enough"
    program, _ = _audited(tmp_path / "right.py", source)
    for _ in range(5):
        testing.reset()
        assert [float(x) for x in jax.block_until_ready(jax.jit(program)(testing.slot(0)))] == [1, 2, 3]
        assert [(a.op, a.value) for a in testing.log()] == [(op, v) for v in (1, 2, 3) for op in ("write", "read")]


def _audited(path, source):
    path.write_text("\n".join(source))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.program, audit(module.program, TOKEN, **TARGETS)


def test_a_newcomer_who_threads_nothing_is_told_one_line():
    names = {"six_calls": six_calls, "ordered": ordered}
    report = audit(six_calls, TOKEN, **TARGETS)
    (fix,) = {race.fix for race in report.races}
    exec(fix.split("`")[1], names)
    audit(names["six_calls"], TOKEN, **TARGETS).raise_if_races()
    for _ in range(5):
        testing.reset()
        assert [float(x) for x in jax.jit(names["six_calls"])(testing.slot(0))] == [1, 2, 3]
