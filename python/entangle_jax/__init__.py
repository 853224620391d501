"""Order native calls and callbacks in JAX programs.

XLA orders operations by the data that flows between them. Two calls that share an object behind a handle share no data,
so XLA may swap them, merge them or drop one. There are three ways to say what must wait for what:

- `ordered`: the calls of a function run as the function reads. `reads` and `writes` say what they do.
- `Handle`: the calls that use one object are in order, across jitted functions.
- `entangle`: one value waits for others.

`audit` proves the order of a compiled program.
"""

import importlib
from typing import TYPE_CHECKING, Any

from entangle_jax import _installation, _registration  # noqa: F401 (the installation first: it says what is wrong)
from entangle_jax._entangle import entangle
from entangle_jax._export import export_checks
from entangle_jax._native import __version__
from entangle_jax._warnings import OrderingWarning

if TYPE_CHECKING:
    from entangle_jax import testing
    from entangle_jax._audit import audit
    from entangle_jax._audit_report import RaceError, Report
    from entangle_jax._calls import Calls, CallSite, calls
    from entangle_jax._handle import Handle
    from entangle_jax._marks import reads, writes
    from entangle_jax._ordered import ordered

_registration.register()

__all__ = [
    "CallSite",
    "Calls",
    "Handle",
    "OrderingWarning",
    "RaceError",
    "Report",
    "__version__",
    "audit",
    "calls",
    "entangle",
    "export_checks",
    "ordered",
    "reads",
    "testing",
    "writes",
]


# Imported when they are used, so that no program pays for what it does not need.
_LATER = {
    "CallSite": "_calls",
    "Calls": "_calls",
    "Handle": "_handle",
    "RaceError": "_audit_report",
    "Report": "_audit_report",
    "audit": "_audit",
    "calls": "_calls",
    "ordered": "_ordered",
    "reads": "_marks",
    "testing": "testing",
    "writes": "_marks",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_LATER[name]}")
    value = module if name == _LATER[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
