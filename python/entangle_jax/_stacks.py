"""Which lines of a call's stack are told: those that the reader wrote, and where they lead into a library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_of_a_library(file: str) -> bool:
    """Whether a file is of an installed package."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def told(files: Sequence[str], at_most: int) -> list[int]:
    """The positions to print, of a stack whose innermost file comes first: never none of one's own for a library's.

    The innermost line makes the call. The outermost line of a library before one's own first line is what one called.
    """
    own = next((i for i, file in enumerate(files) if not is_of_a_library(file)), None)
    if own is None:
        return list(range(min(len(files), at_most)))
    inner = sorted({0, own - 1} - {-1, own})
    mine = [i for i in range(own, len(files)) if not is_of_a_library(files[i])]
    return [*inner, *mine][:at_most]
