"""Runs tests of `python/tests` with the model as the GPU: on one device, on four, and on four with concurrent graphs.

`ci/gpu-model suite` calls this, in an environment that has the model in place of the driver. Each file has a process of
its own, with a limit. Here stands what runs, and why each of the others does not.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

FILES = (
    "order", "eager", "batching", "derivatives", "calls", "errors", "tokens_and_refs", "handle", "ordered", "marks", "one_device",
    "warnings", "handle_misuse", "memory_kinds", "value", "threads", "handle_callbacks", "handle_marks", "handles_without_leaves",
    "sharding",
)  # fmt: skip

LEFT_OUT = {
    "derivatives::test_two_transformations_give_what_they_give_for_the_identity": "kernels that call functions",
    "derivatives::test_in_a_custom_linear_solve": "cuSOLVER, which the model has not",
    "one_device::test_a_callback_that_raises_lets_no_device_run_on": "it sets time limits of XLA:CPU",
    "ordered::test_a_read_of_what_is_not_written_may_run_once_and_a_volatile_one_runs_as_often_as_written": "XLA:GPU "
    "hoists no call out of a loop, so it runs five times",
}

NEED_FOUR = (
    "order::test_a_write_waits_for_the_read_before_it[under_shard_map]",
    "order::test_each_write_of_a_loop_waits_for_the_reads_before_it[map_of_a_shard]",
    "eager::test_an_eager_result_is_committed_as_its_payload_is",
    "batching::test_spmd_axis_name",
    "batching::test_a_batch_over_an_axis_of_an_explicit_mesh",
)
"""Left out on one device: they need more."""

NEED_FOUR_FILES = ("sharding", "one_device")

OTHER_FILES = {
    "audit_command": "the command line, in processes on the CPU",
    "demo": "the demo's table and command; `tests_gpu/checks.py` runs the demo on the model",
    "docs": "what the pages say, which is about the CPU",
    "gpu_registration": "which handlers are registered, without a GPU",
    "handle_mutations": "takes out parts of `Handle`; `mutants.py` does so on the model",
    "mutations": "takes out parts of `entangle`; `mutants.py` does so on the model",
    "ordered_mutations": "takes out parts of `ordered`, and looks at jaxprs",
    "private_names": "names of jax in the sources",
    "tpu": "lowering for a TPU",
}
"""Why the others do not run here."""

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
