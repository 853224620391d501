"""Order native side-effecting calls in JAX programs.

>>> from entangle_jax import entangle
>>> x = entangle(payload, witness)  # doctest: +SKIP

`x` is `payload`, and whatever uses it runs after whatever made `witness`. See `entangle`; and `Handle`, with which
nobody has to place such calls by hand.
"""

from typing import TYPE_CHECKING, Any

from entangle_jax import _installation, _registration  # noqa: F401 (the installation first: it says what is wrong)
from entangle_jax._entangle import entangle
from entangle_jax._export import export_checks
from entangle_jax._handle import Handle
from entangle_jax._leaves import OrderingWarning
from entangle_jax._native import __version__

if TYPE_CHECKING:
    from entangle_jax._audit import RaceError, Report, audit

_registration.register()

__all__ = ["Handle", "OrderingWarning", "RaceError", "Report", "__version__", "audit", "entangle", "export_checks"]


def __getattr__(name: str) -> Any:
    """`audit` is for development: imported when it is used, not with every program."""
    if name in ("RaceError", "Report", "audit"):
        from entangle_jax import _audit  # noqa: PLC0415 (that is the point)

        return getattr(_audit, name)
    raise AttributeError(f"module 'entangle_jax' has no attribute {name!r}")
