"""Each step for what lives on one device is needed: with any one of them taken out, a check fails."""

import mutations
import pytest

MUTATIONS = {
    "a witness on one device stays there": ("*map(_on_all_devices, shardings[n:])", "*shardings[n:]"),
    "a leaf on one device stays there": (
        "_on_all_devices(each) for each in (result_sharding",
        "each for each in (result_sharding",
    ),
    "Shardy sees the mesh of a witness": ("(i >= n or operand.type.rank == 0)", "(i < n and operand.type.rank == 0)"),
    "Shardy sees the mesh of a scalar leaf": ("(i >= n or operand.type.rank == 0)", "i >= n"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_without_this_step_a_check_fails(mutation, tmp_path):
    old, new = MUTATIONS[mutation]
    assert mutations.failure_without("_partitioning.py", old, new, tmp_path, "one_device_checks")
