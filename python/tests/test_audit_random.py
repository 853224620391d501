"""Random programs: the audit proves nothing false, and raises no alarm on a right program through `Handle`.

How each is checked: `random_checks`. Here 50 programs, 25 on several devices and 25 through `Handle`, always the same;
`ci/soak` takes 5,000, 500 and 500, and other ones each time (`soak_audit.py`).
"""

import pytest
import random_checks
from random_checks import FAILURES, Outcome

pytestmark = pytest.mark.filterwarnings("ignore::entangle_jax.OrderingWarning")


def test_nothing_false_is_proven():
    came = {number: random_checks.any_program(number) for number in range(50)}
    assert {number: outcome for number, outcome in came.items() if outcome in FAILURES} == {}
    # They are neither all proven nor all races.
    assert min(list(came.values()).count(outcome) for outcome in (Outcome.PROVEN, Outcome.RACES)) > 5


def test_nothing_false_is_proven_of_several_devices():
    came = {number: random_checks.device_program(number) for number in range(25)}
    assert {number: outcome for number, outcome in came.items() if outcome in FAILURES} == {}
    assert min(list(came.values()).count(outcome) for outcome in (Outcome.PROVEN, Outcome.RACES)) > 2


def test_no_right_program_raises_an_alarm():
    came = {number: random_checks.right_program(number) for number in range(25)}
    assert {number: outcome for number, outcome in came.items() if outcome in FAILURES} == {}
    assert list(came.values()).count(Outcome.PROVEN) > 15
