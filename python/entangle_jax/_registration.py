"""Registers the native handlers and the partitioner with jax, once, at import."""

import jax
import jaxlib

from entangle_jax import _native, _partitioning
from entangle_jax._primitive import TARGET


def register() -> None:
    """Register every target of the native module for its platform. What a platform's plugin lacks waits for it.

    Doing so again is harmless: the handlers are the same ones.

    Raises:
      ImportError: jaxlib refuses a handler.
    """
    for platform, targets in _native.targets().items():
        for target, capsule in targets.items():
            try:
                jax.ffi.register_ffi_target(target, capsule, platform=platform)
            except RuntimeError as error:
                raise ImportError(_refused(target, platform, str(error))) from error
    _partitioning.register(TARGET)


def _refused(target: str, platform: str, error: str) -> str:
    """What it means that jaxlib does not take a handler."""
    cause = "for a reason that this version of entangle-jax does not know"
    remedy = "Report it to entangle-jax with the versions of jax and jaxlib, or install an older jax"
    if "Duplicate" in error:
        cause = (
            "because another native library has registered that name in this process: a second copy of entangle-jax "
            "that was imported before from another folder, or another package that uses the same name"
        )
        remedy = f"Keep one copy (this one is {_native.__file__}) and start a new process"
    elif "API version" in error:
        cause = "because the two do not speak the same version of the XLA FFI"
        remedy = "Upgrade entangle-jax (`pip install --upgrade entangle-jax`), or install an older jax"
    return (
        f"entangle-jax {_native.__version__}: jaxlib {jaxlib.__version__} refused the native handler `{target}` for {platform}, {cause}. "
        f"Programs that call `entangle` cannot run in this process. {remedy}. jaxlib said: {error}"
    )
