"""Each step of the lowering is needed: with any one of them taken out, a check fails that passes otherwise.

For the dependences inside of `Handle` see `test_handle_mutations.py`.
"""

import mutations
import pytest

# What is lost: the module of checks that shows it, the file, what stands there, and what stands there instead.
MUTATIONS = {
    "a witness on one device stays there": (
        "one_device_checks",
        "_partitioning.py",
        "*map(_on_all_devices, shardings[n:])",
        "*shardings[n:]",
    ),
    "a leaf on one device stays there": (
        "one_device_checks",
        "_partitioning.py",
        "_on_all_devices(each) for each in (result_sharding",
        "each for each in (result_sharding",
    ),
    "Shardy sees the mesh of a witness": (
        "one_device_checks",
        "_partitioning.py",
        "(i >= n or operand.type.rank == 0)",
        "(i < n and operand.type.rank == 0)",
    ),
    "Shardy sees the mesh of a scalar leaf": (
        "one_device_checks",
        "_partitioning.py",
        "(i >= n or operand.type.rank == 0)",
        "i >= n",
    ),
    "all leaves share a call": (
        "test_memory_kinds",
        "_primitive.py",
        "calls = [[i] for i in on_host]",
        "calls, on_device = [], [*on_device, *on_host]",
    ),
    "a leaf on the host does not wait for the leaves before": (
        "test_memory_kinds",
        "_primitive.py",
        "            current[i] = result",
        "            current[i] = result if leaves == calls[-1] else current[i]",
    ),
    "a leaf on the host waits for nothing but the leaves before": (
        "test_memory_kinds",
        "_primitive.py",
        "order = [*leaves, *(i for i in range(len(operands)) if i not in leaves)]",
        "order = [*leaves, *(i for i in range(len(operands) if leaves == calls[0] else n) if i not in leaves)]",
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_without_this_step_a_check_fails(mutation, tmp_path):
    checks, file, old, new = MUTATIONS[mutation]
    assert mutations.failure_without(file, old, new, tmp_path, checks)
