"""Takes a fix out of the package and looks for the check that fails without it."""

import shutil
from pathlib import Path

import fresh

PACKAGE = Path(fresh.PATH) / "entangle_jax"
TESTS = Path(__file__).parent


def failure_without(file, old, new, folder, checks):
    """The name of the first of `checks`, a module beside this one, that fails once `old` is `new` in that file of the
    package; None if all of them pass. They run in a process of their own, on a copy of the package in `folder`."""
    copy = Path(folder) / "entangle_jax"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    source = (copy / file).read_text()
    assert source.count(old) == 1, f"`{old}` is in {file} {source.count(old)} times, wanted once: adapt this test"
    (copy / file).write_text(source.replace(old, new))
    code = f"""
        import sys
        sys.path.insert(0, {str(TESTS)!r})
        import jax
        jax.config.update("jax_num_cpu_devices", 4)
        import entangle_jax
        assert entangle_jax.__file__.startswith({str(folder)!r}), entangle_jax.__file__
        import {checks} as checks
        for check in checks.CHECKS:
            try:
                check()
            except Exception as error:
                print("failed", check.__name__, repr(error)[:300], flush=True)
                break
    """
    _, out, err = fresh.finish(fresh.start(code, path=folder))
    assert "Traceback" not in err, err
    found = [line.split()[1] for line in out.splitlines() if line.startswith("failed ")]
    return found[0] if found else None
