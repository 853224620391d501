"""Runs Python code in processes of its own, for what would spoil or end the process of the tests."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import entangle_jax

# The package under test, wherever the tests are: installed, or on a path that only this process knows.
PATH = str(Path(entangle_jax.__file__).parents[1])


def start(code, *args, env=None, path=PATH):
    """Start a process that runs `code`, with `path` searched before all else (-P: before the current folder)."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(path), "PYTHONFAULTHANDLER": "1", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, timeout=300):
    """Return its exit status, output and errors. It is killed if it hangs, which fails the test."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the process hangs; it said so far:\n{out}\n{err}") from None
    return process.returncode, out, err


def run(code, *args, **options):
    """Run `code` to its end and return what it printed. It must not fail, nor complain."""
    status, out, err = finish(start(code, *args, **options))
    assert status == 0, f"exit status {status}\n{out}\n{err}"
    assert "Traceback" not in err, err
    assert "panicked" not in err, err
    return out


def error(code, *args, **options):
    """Run `code`, which must end with an exception, and return that exception's line."""
    status, out, err = finish(start(code, *args, **options))
    assert status == 1, f"exit status {status}\n{out}\n{err}"
    return err.rstrip().rsplit("\n", 1)[-1]
