"""Order native side-effecting calls in JAX programs.

>>> from entangle_jax import entangle
>>> x = entangle(payload, witness)  # doctest: +SKIP

`x` is `payload`, and whatever uses it runs after whatever made `witness`. See `entangle`; and `Handle`, with which
nobody has to place such calls by hand.
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
    from entangle_jax._audit import RaceError, Report, audit
    from entangle_jax._handle import Handle

_registration.register()

__all__ = [
    "Handle",
    "OrderingWarning",
    "RaceError",
    "Report",
    "__version__",
    "audit",
    "entangle",
    "export_checks",
    "testing",
]


# Imported when they are used, so that no program pays for what it does not need.
_LATER = {"Handle": "_handle", "RaceError": "_audit", "Report": "_audit", "audit": "_audit", "testing": "testing"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_LATER[name]}")
    value = module if name == _LATER[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
