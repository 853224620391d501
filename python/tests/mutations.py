"""Takes fixes out of the package, one at a time, to show that a test fails without each of them.

A `Mutation` changes lines of the package and names the tests that must fail then: ::

    MUTATIONS = {
        "a witness on one device orders that device alone": Mutation(
            ["test_order.py::test_a_witness_on_one_device_orders_all_devices"],
            ("_primitive.py", "operands = replicated(operands)", "pass"),
        ),
    }

    @pytest.mark.parametrize("name", MUTATIONS)
    def test_without_this_fix_its_tests_fail(name, tmp_path):
        assert_fails(MUTATIONS[name], tmp_path)

    def test_with_all_fixes_no_test_fails(tmp_path):
        assert_passes(MUTATIONS.values(), tmp_path)

The tests run in a process of their own, on a copy of the package.
"""

import shutil
from pathlib import Path

import fresh
import pytest

import entangle_jax

PACKAGE = Path(entangle_jax.__file__).parent
TESTS = Path(__file__).parent


class Mutation:
    """`edits` of the package, each as `(file, old text, new text)`, that make all of `tests` fail.

    A test is named as for pytest, from the folder of the tests: `test_order.py::test_name`, of which one set of
    parameters has to fail, or `test_order.py::test_name[parameters]`.
    """

    def __init__(self, tests, *edits):
        assert tests
        assert edits
        self.tests, self.edits = tests, edits


def replaced(file, source, old, new):
    """Return `source` with `new` for `old`, which must be there once, so that no mutation changes nothing in silence."""
    count = source.count(old)
    assert count == 1, f"`{old}` is in {file} {count} times, wanted once: adapt the mutation"
    assert old != new
    return source.replace(old, new)


def copy_package(folder, edits=()):
    """Copy the package into `folder`, with the edits made, and return what to put on the path."""
    copy = Path(folder) / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in edits:
        (copy / file).write_text(replaced(file, (copy / file).read_text(), old, new))
    return Path(folder)


def assert_fails(mutation, folder):
    """Assert that each of the mutation's tests fails on a copy of the package with its edits."""
    _, failed, output = _run(copy_package(folder, mutation.edits), mutation.tests)
    for test in mutation.tests:
        assert any(each == test or each.startswith(f"{test}[") for each in failed), (
            f"{test} does not fail without the fix, or did not run:\n{output}"
        )


def assert_passes(mutations, folder):
    """Assert that no test of any of the mutations fails on a copy of the package as it is."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    status, _, output = _run(copy_package(folder), tests)
    assert status == pytest.ExitCode.OK, output


def failure_without(file, old, new, folder, checks):
    """The name of the first of `checks` that fails once `old` is `new` in that file of the package; None if all pass.

    `checks` is a module beside this one that lists functions in `CHECKS`. They run on 4 devices of the host.
    """
    code = """
        import sys

        sys.path.insert(0, sys.argv[1])
        import jax

        jax.config.update("jax_num_cpu_devices", 4)
        import importlib

        import entangle_jax

        assert entangle_jax.__file__.startswith(sys.argv[2]), entangle_jax.__file__
        for check in importlib.import_module(sys.argv[3]).CHECKS:
            try:
                check()
            except Exception as error:
                print("failed:", check.__name__, repr(error)[:300], flush=True)
                break
    """
    path = copy_package(folder, [(file, old, new)])
    _, output, errors = fresh.finish(fresh.start(code, TESTS, path, checks, path=path))
    assert "Traceback" not in errors, errors
    found = [line.split()[1] for line in output.splitlines() if line.startswith("failed: ")]
    return found[0] if found else None


_PYTEST = """
    import sys
    from pathlib import Path

    import entangle_jax
    import pytest

    class Failed:
        def __init__(self):
            self.tests = []

        def pytest_runtest_logreport(self, report):
            if report.failed:
                self.tests.append(Path(report.nodeid.split("::")[0]).name + "::" + report.nodeid.split("::", 1)[1])

    path, *arguments = sys.argv[1:]
    assert Path(entangle_jax.__file__).is_relative_to(path), entangle_jax.__file__
    failed = Failed()
    status = pytest.main(arguments, plugins=[failed])
    print()
    for test in failed.tests:
        print("failed:", test)
    sys.exit(status)
"""


def _run(path, tests):
    """Run tests in a process of their own, on the package in `path`: the exit status, what failed, the output."""
    arguments = ["-q", "-p", "no:cacheprovider", *(TESTS / test for test in tests)]
    if len(tests) == 1:
        arguments.append("-x")
    process = fresh.start(_PYTEST, path, *arguments, path=path, env={"PYTEST_ADDOPTS": ""})
    status, output, errors = fresh.finish(process, timeout=600)
    failed = [line.removeprefix("failed: ") for line in output.splitlines() if line.startswith("failed: ")]
    return status, failed, f"{output}\n{errors}"
