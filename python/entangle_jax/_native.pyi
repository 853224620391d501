"""The native module: handlers for XLA, and the slots of `entangle_jax.testing`."""

from typing import Any

__version__: str

FFI_API_VERSION: tuple[int, int]
"""The version of the XLA FFI API that the handlers report."""

def targets() -> dict[str, dict[str, tuple[Any, Any | None]]]:
    """`{platform: {target: (plain, in_graph)}}`: every handler in this build, by platform name as jax registers it.

    Both are capsules; `in_graph` is the handler that may be recorded into CUDA or HIP graphs, `None` where there are none.
    """

def slots_reset(value: float) -> None:
    """Give every slot this value and empty the log."""

def slots_log() -> list[tuple[str, int, float, str | None]]:
    """`(op, slot, value, label)` of every access since the last reset, in the order in which they ran."""
