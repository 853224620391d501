"""A witness or a payload leaf on one of several devices: the others have a constant for it, which waits for nothing."""

import one_device_checks
import pytest


@pytest.mark.parametrize("check", one_device_checks.CHECKS, ids=lambda check: check.__name__)
def test_none_of_these(check, slots):
    check()
