"""The model of the driver, as tests see it: what it counted, what it saw that no program may do, and what it is to do.

See `ci/gpu_model/src/model.cc`, which has the other side.
"""

import contextlib
import ctypes
from collections import Counter
from dataclasses import dataclass, field

import jax

_driver = ctypes.CDLL("libcuda.so.1")  # on ROCm as well: HIP is on the same core
_driver.gpu_model_report.restype = ctypes.c_char_p
_driver.gpu_model_failed.restype = ctypes.c_long
_driver.gpu_model_failed_caller.restype = ctypes.c_char_p
_driver.gpu_model_fail.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_char_p)
_driver.gpu_model_order.argtypes = (ctypes.c_int, ctypes.c_uint, ctypes.c_long)

FIRST, RANDOM, LAST = range(3)
"""In which order a graph runs the nodes that are ready."""

OUT_OF_MEMORY, UNKNOWN = 2, 999
"""Errors of the driver; HIP has the same."""

OURS = "_native"
"""The library that our handlers are in."""


@dataclass
class Report:
    """What happened so far."""

    calls: Counter = field(default_factory=Counter)
    """Calls of the driver, by function."""
    did: Counter = field(default_factory=Counter)
    """What the device did, by kind."""
    missing: Counter = field(default_factory=Counter)
    """What was asked that the model does not have."""
    violations: list = field(default_factory=list)

    def __sub__(self, earlier):
        return Report(
            self.calls - earlier.calls,
            self.did - earlier.did,
            self.missing - earlier.missing,
            self.violations[len(earlier.violations) :],
        )

    def work(self, *kinds):
        """How much was done that begins with one of these: "kernel: ", "copy", "graph", ..."""
        return sum(times for kind, times in self.did.items() if kind.startswith(kinds))


def report():
    """What happened so far."""
    found = Report()
    for line in _driver.gpu_model_report().decode().splitlines():
        what, _, rest = line.partition(" ")
        if what == "call":
            function, times = rest.split()
            found.calls[function] += int(times)
        elif what in {"did", "missing"}:
            times, _, kind = rest.partition(" ")
            (found.did if what == "did" else found.missing)[kind] += int(times)
        else:
            found.violations.append(rest)
    return found


def forgive():
    """Forget the violations: the test wanted them."""
    _driver.gpu_model_forgive()


def set_order(order=RANDOM, seed=1, jitter_us=0):
    """How graphs run their nodes, and by how much work on a stream may start late."""
    _driver.gpu_model_order(order, seed, jitter_us)


@contextlib.contextmanager
def failing(function, *, nth=1, error=UNKNOWN, caller=""):
    """The `nth` call of a function from here on (0: each one) answers an error, if that library makes it.

    Gives a function that says how many calls have done so.
    """
    _driver.gpu_model_fail(function.encode(), nth, error, caller.encode())
    try:
        yield _driver.gpu_model_failed
    finally:
        _driver.gpu_model_fail(b"", 0, 0, b"")


def failed_call_was_ours():
    """Whether the last call that was made to fail came from our handlers."""
    return OURS in _driver.gpu_model_failed_caller().decode().rpartition("/")[2]


@contextlib.contextmanager
def skipping_kernels():
    """Kernels that the model cannot run are left out: what they would compute is not looked at."""
    _driver.gpu_model_skip_kernels(1)
    try:
        yield
    finally:
        jax.effects_barrier()
        _driver.gpu_model_skip_kernels(0)
