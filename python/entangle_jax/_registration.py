"""Registers the native handlers and the partitioner with jax, once, at import."""

import jax

from entangle_jax import _native, _partitioning
from entangle_jax._primitive import TARGET


def register() -> None:
    """Register every target of the native module for its platform. What a platform's plugin lacks waits for it."""
    for platform, targets in _native.targets().items():
        for target, capsule in targets.items():
            jax.ffi.register_ffi_target(target, capsule, platform=platform)
    _partitioning.register(TARGET)
