"""`python -m entangle_jax info`: what is installed here, and what works where."""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import sys
from typing import Any

import jax

from entangle_jax import _native, _registration

_PLUGIN = re.compile(r"jax[-_.]([a-z0-9]+)[-_.](plugin|pjrt)|libtpu")


def info() -> dict[str, Any]:
    """Return versions, native targets and platforms, as JSON can hold them."""
    return {
        "versions": {**versions(), **_plugins(), "Python": platform.python_version()},
        "machine": f"{platform.system()} {platform.machine()}",
        "ffi_api": {"handlers": "{}.{}".format(*_native.FFI_API_VERSION), "jaxlib": _ffi_api_of_jaxlib()},
        "platforms": {name: there._asdict() for name, there in _registration.registered().items()},
        "kernels": ["TPU"],
        "backend": _backend(),
    }


def versions() -> dict[str, str]:
    """The versions that decide what happens on the CPU."""
    return {"entangle-jax": _native.__version__, "jax": jax.__version__, "jaxlib": importlib.metadata.version("jaxlib")}


def _plugins() -> dict[str, str]:
    """The installed plugins of jax for other platforms, with their versions."""
    names = (
        (distribution.metadata["Name"] or "", distribution.version)
        for distribution in importlib.metadata.distributions()
    )
    return dict(sorted((name, version) for name, version in names if _PLUGIN.fullmatch(name.lower())))


def _ffi_api_of_jaxlib() -> str:
    """The version in the header that jaxlib ships; a runtime takes handlers of its own version and older."""
    header = os.path.join(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        with open(header, encoding="utf-8") as file:
            found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", file.read()))
        return f"{found['MAJOR']}.{found['MINOR']}"
    except (OSError, KeyError) as error:
        return f"unknown ({error!r})"


def _backend() -> dict[str, Any]:
    """What jax computes on by default; an installation that cannot start says why."""
    try:
        return {"name": jax.default_backend(), "devices": [device.device_kind for device in jax.devices()]}
    except RuntimeError as error:
        return {"error": str(error)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print it. Returns the exit status."""
    found = info()
    if arguments.json:
        json.dump(found, sys.stdout, indent=2)
        print()
        return 0
    backend = found["backend"]
    rows = [
        *found["versions"].items(),
        ("machine", found["machine"]),
        ("XLA FFI API", f"{found['ffi_api']['handlers']} (this jaxlib: {found['ffi_api']['jaxlib']})"),
        (
            "default backend",
            backend.get("error") or f"{backend['name']}, {len(backend['devices'])} x {backend['devices'][0]}",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {value}" for name, value in rows))
    print("\nregistered for")
    for name, there in found["platforms"].items():
        print(f"  {name}: {', '.join(there['targets'])}")
        print(f"    graph-compatible: {'yes' if there['graphs'] else 'no'} ({there['why']})")
    print(f"\nordered by an empty kernel, without native targets\n  {', '.join(found['kernels'])}")
    return 0
