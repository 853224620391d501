"""The native module: handlers for XLA, the slots of `entangle_jax.testing`, and the audit. See python/src."""

from typing import Any

__version__: str

FFI_API_VERSION: tuple[int, int]
"""The version of the XLA FFI API that the handlers report."""

def targets() -> dict[str, dict[str, tuple[Any, Any | None]]]:
    """`{platform: {target: (plain, in_graph)}}`: every handler in this build, by platform name as jax registers it.

    Both are capsules; `in_graph` is the handler that may be recorded into CUDA or HIP graphs, `None` where there are
    none.
    """

def slots_reset(value: float) -> None:
    """Give every slot this value and empty the log."""

def slots_log() -> list[tuple[str, int, float, str | None]]:
    """`(op, slot, value, label)` of every access since the last reset, in the order in which they ran."""

class Audit:
    """One program, read and followed. `entangle_jax._audit` gives names to these answers."""

    def __new__(
        cls,
        program: bytes,
        reads: list[tuple[str, list[int]]],
        writes: list[tuple[str, list[int]]],
        others: list[str],
    ) -> Audit:
        """Read a serialized `HloModuleProto` or `HloProto`. Raises `ValueError` for anything else."""

    @property
    def module(self) -> str: ...
    @property
    def id(self) -> int:
        """XLA's number for the program, the same before and after compilation; 0 if it is not known."""

    @property
    def targets(self) -> list[str]:
        """The targets of all native calls, looked at or not."""

    @property
    def instructions(self) -> int: ...
    @property
    def is_scheduled(self) -> bool: ...
    def calls(
        self,
    ) -> list[tuple[str, str, str, tuple[str, ...], tuple[tuple[str, int, str], ...], str, tuple[str, ...]]]:
        """(name, target, kind, place, sources, op_name, handles) of each native call."""

    def races(self) -> tuple[list[tuple[int, int, str, str | None, str | None]], int]:
        """(first, second, handle, loop, what orders them without proof) of each race, and how many more there are."""

    def all_ordered(self, firsts: list[int], seconds: list[int], later_iteration: bool) -> bool | None:
        """Whether each of `seconds` comes after each of `firsts` by data; None if there is no such pair."""

    def costs(
        self,
    ) -> list[
        tuple[int, list[tuple[int, tuple[str, str, str | None] | None, bool]], int, list[int], list[str], list[str]]
    ]:
        """(call, payload leaves, witnesses, dropped witnesses, transposes, collectives) of each call of `entangle`."""

    def graph(self) -> tuple[list[tuple[int, int]], int]:
        """Arrows between calls, without those that others imply, and how many calls were left out."""

    def lost(self, compiled: Audit) -> list[tuple[int, int | None]]:
        """Calls of this program that `compiled` lacks, and in which call each was merged if in one."""

def draw(dot: str) -> str:
    """Draw a graph in the DOT language as SVG. Raises `ValueError` if it cannot."""
