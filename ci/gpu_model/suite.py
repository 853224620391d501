"""Runs tests of `python/tests` with the model as the GPU: on one device, on four, and on four with concurrent graphs.

`ci/gpu-model suite` calls this, in an environment that has the model in place of the driver. With words it runs a part:
`ci/gpu-model suite concurrent handle order`. Each file has a process of its own, with a limit. Here stands what runs,
and why each of the others does not.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

FILES = (
    "order", "eager", "batching", "derivatives", "calls", "errors", "tokens_and_refs", "handle", "ordered", "marks",
    "one_device", "warnings", "handle_misuse", "memory_kinds", "value", "threads", "handle_callbacks", "handle_marks",
    "handles_without_leaves", "faults", "handle_random", "processes", "properties", "sharding", "audit", "audited",
    "audit_truth", "audit_marks", "audit_fixes", "audit_report", "export", "testing",
)  # fmt: skip

LEFT_OUT = {
    "derivatives::test_in_a_custom_linear_solve": "cuSOLVER, which the model has not",
    "properties::test_the_layout_of_each_operand_is_that_of_its_result[convolution]": "cuDNN, which the model has not",
    "testing::test_the_example_of_the_module_runs": "examples run one after the other, and one does not "
    "wait for its write",
    "audit_report::test_a_read_that_was_taken_out_of_a_loop_is_called_moved": "XLA:GPU hoists no call out of a loop",
    "audit::test_a_copy_and_its_cause[still used]": "XLA:GPU copies within the fusion that computes the payload",
    "processes::test_two_processes_share_a_program_without_communication_for_entangle": "NCCL between processes, "
    "which is not in the model",
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
    "errors::test_different_devices_are_named_leaf_by_leaf",
    "tokens_and_refs::test_tokens_in_a_sharded_program_gather_nothing",
    "tokens_and_refs::test_outside_of_jit_a_ref_is_its_value_now",
    "handle::test_what_every_handle_must_do[in_shard_map]",
    "handle::test_no_run_of_a_hazard_reads_a_wrong_value[in_shard_map]",
    "handle::test_audit_finds_no_race_when_the_handle_is_an_argument[in_shard_map]",
    "handle::test_structure_shapes_and_dtypes_do_not_change_with_accesses[shard_map",
    "handle::test_handles_of_several_devices_go_through_shard_map",
    "ordered::test_nested_jits_keep_names_donation_and_shardings",
    "ordered::test_in_shard_map_each_device_has_its_own_order_and_nothing_is_communicated",
    "audit_truth::test_collectives_compute_or_fill_in",
    "audit_truth::test_a_result_on_one_device_proves_nothing_for_the_others",
    "audit_truth::test_a_result_on_one_device_that_is_brought_to_all_is_a_proof",
    "audit_truth::test_callbacks_on_one_device_are_in_order_there",
    "testing::test_in_shard_map_a_result_varies_as_its_inputs_do",
    "export::test_sharded_programs_stay_local",
    "export::test_symbolic_sizes_of_a_sharded_program_stay_local",
    "export::test_the_compilation_cache_hits_in_a_second_process",
    "export::test_a_serialized_executable_loads_in_another_process",
)
"""Left out on one device: they need more."""

NEED_FOUR_FILES = ("sharding", "one_device")
"""And files of which nearly all do."""

OTHER_FILES = {
    "audit_command": "the command line, in processes on the CPU",
    "audit_random": "`tests_gpu_model/test_random_programs.py` has such programs in concurrent graphs",
    "audit_waits": "`tests_gpu_model/test_loops_and_branches.py` has such programs in concurrent graphs",
    "demo": "the demo's table and command; `tests_gpu/checks.py` runs the demo on the model",
    "distributed": "two processes: NCCL between processes is not in the model",
    "docs": "what the pages say, which is about the CPU",
    "gpu_registration": "which handlers are registered, without a GPU",
    "handle_mutations": "takes out parts of `Handle`; `mutants.py` does so on the model",
    "mutations": "takes out parts of `entangle`; `mutants.py` does so on the model",
    "ordered_law": "`tests_gpu_model/test_random_programs.py` has such programs in concurrent graphs",
    "ordered_mutations": "takes out parts of `ordered`, and looks at jaxprs",
    "private_names": "names of jax in the sources",
    "tpu": "lowering for a TPU",
}
"""Why the others do not run here."""

WAYS = {
    "one-device": {"GPU_MODEL_DEVICES": "1"},
    "four-devices": {"GPU_MODEL_DEVICES": "4", "GPU_MODEL_JITTER_US": "20"},
    "concurrent": {
        "GPU_MODEL_DEVICES": "4",
        "GPU_MODEL_JITTER_US": "20",
        "XLA_FLAGS": "--xla_gpu_command_buffer_scheduling_mode=CONCURRENT --xla_gpu_graph_min_graph_size=1",
    },
}
SECONDS = 1800
"""A process that takes longer is a failure, and shows where each thread was."""


def check_lists():
    """Every file stands in one of the two lists, and there is every test that is left out."""
    there = {path.stem.removeprefix("test_") for path in (ROOT / "python/tests").glob("test_*.py")}
    listed = [*FILES, *OTHER_FILES]
    assert sorted(there) == sorted(listed), f"in one of FILES and OTHER_FILES should be: {there ^ set(listed)}"
    for each in (*LEFT_OUT, *NEED_FOUR):
        file, _, test = each.partition("::")
        text = (ROOT / f"python/tests/test_{file}.py").read_text()
        assert f"def {test.partition('[')[0]}(" in text, f"no such test: {each}"


def passes(way, name):
    """Whether all tests of that file pass."""
    environment = os.environ | WAYS[way]
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {WAYS[way].get('XLA_FLAGS', '')}"
    command = [sys.executable, "-P", "-X", "faulthandler", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-c", "python/pyproject.toml", "--rootdir", "python"]
    command += ["-o", f"faulthandler_timeout={SECONDS // 2}", "-o", "faulthandler_exit_on_timeout=true"]
    command += [f"python/tests/test_{name}.py"]
    one = WAYS[way]["GPU_MODEL_DEVICES"] == "1"
    for each in (*LEFT_OUT, *(NEED_FOUR if one else ())):
        file, _, test = each.partition("::")
        command += [f"--deselect=tests/test_{file}.py::{test}"] if file == name else []
    command = ["timeout", "--signal=ABRT", "--kill-after=20", str(SECONDS), *command]
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, text=True, capture_output=True)
    last = done.stdout.strip().rpartition("\n")[2]
    print(f"{name}, {way}: {last} ({time.monotonic() - start:.0f} s)", flush=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", flush=True)
    return done.returncode == 0


def main():
    """Runs the ways and the files that are named, or all. Returns the exit status: 0 if everything passes."""
    words = sys.argv[1:]
    if unknown := set(words) - {*WAYS, *FILES}:
        sys.exit(f"suite: {', '.join(sorted(unknown))}: none of {', '.join([*WAYS, *FILES])}")
    check_lists()
    ran = [
        (way, name)
        for way in [way for way in WAYS if way in words] or WAYS
        for name in [name for name in FILES if name in words] or FILES
        if not (way == "one-device" and name in NEED_FOUR_FILES)
    ]
    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(lambda each: passes(*each), ran))
    failed = [f"{name}, {way}" for (way, name), passed in zip(ran, outcomes, strict=True) if not passed]
    print(f"{len(failed)} of {len(ran)} failed: {failed}" if failed else f"all {len(ran)} passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
