"""Takes out of the package, one at a time, what keeps calls in order on a GPU: the tests on the model must fail.

    mutants.py WHEEL TESTS PYTEST-ARGUMENT...

Runs in the environment that `ci/gpu-model` makes, with the model in place of the driver. The wheel is unpacked and
changed. For what is compiled, the repository is copied and built.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Mutant:
    """A part of the source that is taken out, and a test that must fail without it."""

    name: str
    changes: tuple
    """Pairs of what is searched for, in all sources, and what stands there instead."""
    caught_by: str
    compiled: bool = False


MUTANTS = (
    Mutant(
        "no aliasing",
        ((r"operand_output_aliases=\{i: i for [^}]*\}", "operand_output_aliases={}"),),
        "test_cost.py -k donated",
    ),
    Mutant(
        "no data edge",
        ((r"lowering\(ctx, \*_partitioning\.behind_barriers\(ctx, operands, n\)\)", "operands[:n]"),),
        "test_order.py -k with_entangle",
    ),
    Mutant(
        "no context switch",
        (
            (r"unsafe \{ sys::cuCtxPushCurrent_v2\(context\) \}", "{ let _ = context; sys::CUresult::CUDA_SUCCESS }"),
            (
                r"unsafe \{ sys::cuCtxPopCurrent_v2\(&raw mut popped\) \}",
                "{ let _: *mut sys::CUcontext = &raw mut popped; sys::CUresult::CUDA_SUCCESS }",
            ),
        ),
        "test_devices.py -k in_the_context_of_its_stream",  # XLA itself calls in the right one
        compiled=True,
    ),
)


def change(folder, mutant):
    """Change the one place in the sources under `folder` that each pattern is found in, wherever that is."""
    files = [file for suffix in ("py", "rs") for file in Path(folder).rglob(f"*.{suffix}")]
    for pattern, instead in mutant.changes:
        found = [file for file in files if re.search(pattern, file.read_text())]
        assert len(found) == 1, f"{mutant.name}: `{pattern}` is in {found}, wanted one file: adapt this script"
        text, count = re.subn(pattern, lambda _, instead=instead: instead, found[0].read_text())
        assert count == 1, f"{mutant.name}: `{pattern}` is there {count} times"
        found[0].write_text(text)


def build(mutant, folder):
    """A wheel of the changed repository."""
    for name in ("crates", "python", "Cargo.toml", "Cargo.lock", "LICENSE", "README.md"):
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "target")
        shutil.copytree(source, folder / name, ignore=ignored) if source.is_dir() else shutil.copy(
            source, folder / name
        )
    change(folder / "crates", mutant)
    # What does not change was compiled before.
    environment = os.environ | {"CARGO_TARGET_DIR": str(ROOT / "target"), "RUSTFLAGS": "--cap-lints warn"}
    command = ["maturin", "build", "--quiet", "--manifest-path", folder / "python/Cargo.toml", "--out", folder / "dist"]
    subprocess.run([*command, "--interpreter", sys.executable], check=True, env=environment)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def fails(mutant, wheel, tests, arguments):
    """Whether its test fails with the changed package, as it should."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "site")
        wheel = build(mutant, Path(folder)) if mutant.compiled else wheel
        zipfile.ZipFile(wheel).extractall(site)
        if not mutant.compiled:
            change(site, mutant)
        environment = os.environ | {"PYTHONPATH": str(site)}
        file, *selected = mutant.caught_by.split()
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-q",
            "-x",
            "-c",
            "python/pyproject.toml",
            "--rootdir",
            "python",
        ]
        command += ["-p", "no:cacheprovider", f"{tests}/{file}", *selected, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        # 1: a test failed; 70: there was a violation as well. Anything else is no test that failed.
        ran = re.search(r"\d+ failed|\d+ error", done.stdout)
        print(
            f"{mutant.name}: {done.stdout.strip().splitlines()[-1] if done.stdout else done.stderr[-300:]}", flush=True
        )
        return bool(ran) and done.returncode in {1, 70}


def main():
    """Returns the exit status: 0 if each mutant is caught."""
    wheel, tests, *arguments = sys.argv[1:]
    missed = [mutant.name for mutant in MUTANTS if not fails(mutant, wheel, tests, arguments)]
    print(f"{len(MUTANTS) - len(missed)} of {len(MUTANTS)} mutants caught" + (f", missed: {missed}" if missed else ""))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
