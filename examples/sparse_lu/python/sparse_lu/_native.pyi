"""The native module: src/lib.rs."""

from typing import Any

import numpy as np

Indices = np.ndarray[Any, np.dtype[np.int32]]

class Pattern:
    """The structure of a matrix."""

    def __new__(cls, rows: Indices, columns: Indices, n: int) -> Pattern: ...
    @property
    def n(self) -> int: ...
    @property
    def nnz(self) -> int: ...

class Factors:
    """Owns factors: they are freed with it."""

    def __new__(cls, pattern: Pattern, dtype: str, count: int) -> Factors: ...
    @property
    def tokens(self) -> list[int]: ...
    def free(self) -> None: ...

def live() -> int: ...
