"""Registers the native handlers and the partitioner with jax, once, at import."""

import importlib.metadata
import re
import sys
from typing import NamedTuple

import jax
import jaxlib

from entangle_jax import _native, _partitioning, _private
from entangle_jax._primitive import TARGET

EMPTY_CAPTURE_SINCE = (0, 10, 2)
"""The first version whose GPU runtime accepts a handler that may be recorded into a graph and then enqueues nothing.

Older ones answer such a handler with an error when the program runs.
"""

RUNTIMES = {"CUDA": ("jax-cuda12-pjrt", "jax-cuda13-pjrt"), "ROCM": ("jax-rocm7-pjrt",)}
"""The packages that hold the GPU runtime. Those that are called plugins hold kernels alone."""


class Registered(NamedTuple):
    """What was registered for a platform."""

    targets: tuple[str, ...]
    """The names of the native targets."""
    graphs: bool
    """Whether the handlers let themselves be recorded into CUDA or HIP graphs."""
    why: str
    """Why so."""


_registered: dict[str, Registered] = {}


def registered() -> dict[str, Registered]:
    """What was registered, by platform as jax names it: `"cpu"`, `"CUDA"`, `"ROCM"`."""
    return dict(_registered)


def register() -> None:
    """Register every target of the native module for its platform. What a platform's plugin lacks waits for it.

    Doing so again is harmless: the handlers are the same ones.

    Raises:
      ImportError: jaxlib refuses a handler.
    """
    for platform, targets in _native.targets().items():
        graphs, why = accepts_empty_capture(platform)
        for target, (plain, in_graph) in targets.items():
            handler = in_graph if graphs else plain
            try:
                if platform == "cpu":  # a refusal shall be known now; doing it twice is harmless
                    _private.register_host_target(target, handler, "Host", 1)
                jax.ffi.register_ffi_target(target, handler, platform=platform)
            except RuntimeError as error:
                raise ImportError(_refused(target, platform, str(error))) from error
        _registered[platform] = Registered(tuple(targets), graphs, why)
    _partitioning.register(TARGET)


def accepts_empty_capture(platform: str) -> tuple[bool, str]:
    """Whether the runtime of a platform records a handler that enqueues nothing, and how that is known."""
    if platform not in RUNTIMES:
        return False, "there are no graphs"
    versions = {"jaxlib": jaxlib.__version__} | _runtimes(platform)
    name, oldest = min(versions.items(), key=lambda item: _release(item[1]))
    since = ".".join(map(str, EMPTY_CAPTURE_SINCE))
    if _release(oldest) < EMPTY_CAPTURE_SINCE:
        return False, f"{name} {oldest} is older than {since} and refuses a call that enqueues nothing"
    return True, f"{' and '.join(f'{name} {version}' for name, version in versions.items())}: {since} or newer"


def _runtimes(platform: str) -> dict[str, str]:
    """The installed packages that hold the runtime of a platform. None: jaxlib itself holds it, or there is none."""
    if "jax_plugins" not in sys.modules:
        return {}  # jax found none of them, so there is no need to search the disk
    found = {}
    for name in RUNTIMES[platform]:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


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
        f"entangle-jax {_native.__version__}: jaxlib {jaxlib.__version__} refused the native handler `{target}` for "
        f"{platform}, {cause}. Programs that call `entangle` cannot run in this process. {remedy}. jaxlib said: {error}"
    )
