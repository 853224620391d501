"""What a random program says of the audit: is what it proves true, and does it raise an alarm on a right program?

What is proven is checked twice: against an interpreter of the program as it is written (`jaxpr_oracle`), and by running the
compiled program with delays and comparing its results and the native log of writes with that interpreter.
"""

import enum

import jax
import jaxpr_oracle
import numpy as np
import random_programs

from entangle_jax import audit, testing

TARGETS = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}
RUNS = 3


class Outcome(enum.StrEnum):
    """What came of one program."""

    NOTHING = "no write in it: nothing to prove"
    RACES = "races reported"
    PROVEN = "proven free of races"
    NOT_RUN = "proven, and not run: two devices use one slot of the process"
    FALSE_PROOF = "false proof"
    WRONG_RUN = "proven, and a run went wrong"
    ALARM = "alarm on a right program"


FAILURES = {Outcome.FALSE_PROOF, Outcome.WRONG_RUN, Outcome.ALARM}


def any_program(number):
    """A program that may have races."""
    return _check(random_programs.program(number), random_programs.arguments())


def device_program(number):
    """Likewise on several devices."""
    return _check(random_programs.device_program(number), random_programs.device_arguments())


def right_program(number):
    """A program through `Handle`, which has none."""
    outcome = _check(random_programs.handle_program(number), random_programs.handle_arguments())
    return Outcome.ALARM if outcome == Outcome.RACES else outcome


KINDS = {"random": any_program, "devices": device_program, "handle": right_program}


def _check(program, arguments):
    lowered = jax.jit(program).lower(*arguments)
    if testing.WRITE_TARGET not in lowered.as_text():
        return Outcome.NOTHING
    if audit(lowered, **TARGETS).races:
        return Outcome.RACES
    results, happened = jaxpr_oracle.run(program, *arguments)
    if happened.races():
        return Outcome.FALSE_PROOF
    if happened.devices_meet():
        return Outcome.NOT_RUN
    return Outcome.PROVEN if runs_right(lowered.compile(), arguments, results, happened) else Outcome.WRONG_RUN


def runs_right(compiled, arguments, results, happened):
    """Whether the program returns what it says, and writes what it says in the order that it says."""
    for _ in range(RUNS):
        testing.reset()
        got = jax.tree.leaves(jax.block_until_ready(compiled(*arguments)))
        if not all(np.array_equal(value, wanted) for value, wanted in zip(got, results, strict=True)):
            return False
        written = {}
        for access in testing.log():
            if access.op == "write":
                written.setdefault(access.slot, []).append(access.value)
        if written != happened.writes():
            return False
    return True
