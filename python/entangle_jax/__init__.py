"""Order native side-effecting calls in JAX programs.

>>> from entangle_jax import entangle
>>> x = entangle(payload, witness)  # doctest: +SKIP

`x` is `payload`, and whatever uses it runs after whatever made `witness`. See `entangle`; and `Handle`, with which
nobody has to place such calls by hand.
"""

from entangle_jax import _installation, _registration  # the installation first: it says what is wrong
from entangle_jax._entangle import entangle
from entangle_jax._export import export_checks
from entangle_jax._handle import Handle
from entangle_jax._leaves import OrderingWarning
from entangle_jax._native import __version__

_registration.register()

__all__ = ["Handle", "OrderingWarning", "__version__", "entangle", "export_checks"]
