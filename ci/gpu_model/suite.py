"""Runs tests of `python/tests` with the model as the GPU: on one device, on four, and on four with concurrent graphs.

`ci/gpu-model suite` calls this, in an environment that has the model in place of the driver. Each file has a process of
its own, with a limit. Here stands what runs, and why each of the others does not.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

FILES = ("order", "eager", "batching", "derivatives")

LEFT_OUT = {
    "test_the_memory_kind_stays_as_it_does_through_the_identity[unpinned_host]": "a memory kind of the CPU alone",
    "test_two_transformations_give_what_they_give_for_the_identity": "kernels that call functions",
    "test_in_a_custom_linear_solve": "cuSOLVER, which the model has not",
}

NEED_FOUR = (
    "test_a_write_waits_for_the_read_before_it[under_shard_map]",
    "test_each_write_of_a_loop_waits_for_the_reads_before_it[map_of_a_shard]",
    "test_an_eager_result_is_committed_as_its_payload_is",
    "test_spmd_axis_name",
    "test_a_batch_over_an_axis_of_an_explicit_mesh",
)
"""Left out on one device: they need more."""

OTHER_FILES = {
    "sharding": "a program over four devices did not end on the model, probably for want of NCCL",
    "the rest": "not looked at yet",
}

WAYS = {
    "one device": {"GPU_MODEL_DEVICES": "1"},
    "four devices": {"GPU_MODEL_DEVICES": "4"},
    "four devices, concurrent graphs": {
        "GPU_MODEL_DEVICES": "4",
        "XLA_FLAGS": "--xla_gpu_command_buffer_scheduling_mode=CONCURRENT --xla_gpu_graph_min_graph_size=1",
    },
}
SECONDS = 300
"""A process that takes longer is a failure, and shows where each thread was."""


def passes(way, name):
    """Whether all tests of that file pass."""
    environment = os.environ | WAYS[way]
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {WAYS[way].get('XLA_FLAGS', '')}"
    file = f"python/tests/test_{name}.py"
    command = [sys.executable, "-P", "-X", "faulthandler", "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider"]
    command += ["-c", "python/pyproject.toml", "--rootdir", "python"]
    command += ["-o", "faulthandler_timeout=60", "-o", "faulthandler_exit_on_timeout=true", file]
    one = WAYS[way]["GPU_MODEL_DEVICES"] == "1"
    for test in (*LEFT_OUT, *(NEED_FOUR if one else ())):
        command += [f"--deselect={file}::{test}", f"--deselect=tests/test_{name}.py::{test}"]
    command = ["timeout", "--signal=ABRT", "--kill-after=20", str(SECONDS), *command]
    print(f"== {name}, {way}", flush=True)
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main():
    """Returns the exit status: 0 if everything passes."""
    failed = [f"{name}, {way}" for way in WAYS for name in FILES if not passes(way, name)]
    print(f"{len(failed)} of {len(WAYS) * len(FILES)} failed: {failed}" if failed else "all passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
