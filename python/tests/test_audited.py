"""`entangle_jax.testing.audited`: a test cannot run a program with a race and pass."""

import threading

import jax
import jax.numpy as jnp
import pytest

from entangle_jax import Handle, RaceError, entangle, ordered, reads, testing, writes

TARGETS = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}


def racy(token):
    return testing.read(token), testing.write(token, 1.0)


def tidy(token):
    before = testing.read(token)
    return before, testing.write(entangle(token, before), 1.0)


def test_a_program_with_a_race_does_not_run():
    testing.reset()
    with testing.audited(**TARGETS) as reports:
        jax.block_until_ready(jax.jit(tidy)(testing.slot(0)))
        ran = testing.log()
        for _ in range(2):
            with pytest.raises(RaceError, match=r"jit_racy \(as written and compiled\): 1 race"):
                jax.jit(racy)(testing.slot(0))
    assert testing.log() == ran
    assert [len(report.races) for report in reports] == [0, 1, 1]
    jax.block_until_ready(jax.jit(racy)(testing.slot(0)))  # not watched any more


def test_a_race_in_another_thread_is_seen_too():
    raised = []

    def work():
        try:
            jax.jit(lambda token: racy(token))(testing.slot(0))
        except RaceError as error:
            raised.append(error)

    with testing.audited(**TARGETS) as reports:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(raised) == len(reports) == 1


def test_marks_and_handles_need_no_names():
    read, write = reads("slot", handle="token")(testing.read), writes("slot", handle="token")(testing.write)

    def marked(token):
        return read(token), write(token, 1.0)

    def of_handle(token):
        handle = Handle(token)
        before, handle = handle.read(testing.read)
        return before, handle.write(testing.write, 1.0)[0]

    with testing.audited() as reports:
        with pytest.raises(RaceError, match=r"`marked = ordered\(marked\)` runs `read` and `write`"):
            jax.jit(marked)(testing.slot(0))
        jax.block_until_ready(jax.jit(ordered(marked))(testing.slot(0)))
        jax.block_until_ready(jax.jit(of_handle)(testing.slot(0)))
    assert [report.looked for report in reports] == [True] * 3


def test_programs_without_native_calls_are_left_alone():
    with testing.audited(**TARGETS) as reports:
        jax.block_until_ready(jax.jit(lambda x: jnp.sin(x) + 1)(1.0))
    assert reports == []


def test_contexts_nest_and_leave_jax_as_it_was():
    from jax._src import compiler

    before = compiler.compile_or_get_cached
    outer = testing.audited(**TARGETS)
    inner = testing.audited(**TARGETS)
    seen = outer.__enter__()
    also = inner.__enter__()
    jax.block_until_ready(jax.jit(lambda token: tidy(token))(testing.slot(0)))
    outer.__exit__(None, None, None)  # in another order than they were entered
    jax.block_until_ready(jax.jit(lambda token: tidy(token))(testing.slot(1)))
    inner.__exit__(None, None, None)
    assert (len(seen), len(also)) == (1, 2)
    assert compiler.compile_or_get_cached is before


def test_bad_targets_are_refused_at_the_start():
    with pytest.raises(ValueError, match="`reads` names targets and `writes` names none"), testing.audited(reads=["x"]):
        pass
    with pytest.raises(TypeError, match="wanted a list of targets"), testing.audited(writes="x"):
        pass
