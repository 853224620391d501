"""Making factors, from Python: what cannot be part of a program."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sparse_lu import _native
from sparse_lu._native import Pattern
from sparse_lu._solve import native_refactor
from sparse_lu._targets import DTYPES

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import ArrayLike


def analyze(rows: ArrayLike, columns: ArrayLike, n: int) -> Pattern:
    """The symbolic part of a factorisation, for all matrices with elements at the same positions.

    Args:
      rows: int[nnz], the row of each element. Elements may come in any order; those at one position are added up.
      columns: int[nnz], their columns.
      n: how many rows and columns the matrix has.

    Returns:
      The pattern. Factors that are made with it share it.

    Raises:
      TypeError: `rows` or `columns` is traced.
      ValueError: a position is outside of the matrix, `rows` and `columns` are not integers or have different lengths,
        or `n` is less than 1.
    """
    return Pattern(_indices("rows", rows), _indices("columns", columns), n)


def _indices(what: str, values: ArrayLike) -> np.ndarray[Any, np.dtype[np.int32]]:
    if isinstance(values, jax.core.Tracer):
        raise TypeError(
            f"sparse_lu.analyze: {what} is traced; call `analyze` outside of jit, since it makes a Python object"
        )
    array = np.asarray(values)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"sparse_lu.analyze: {what} is {array.dtype}[{','.join(map(str, array.shape))}], wanted int[nnz]"
        )
    narrow = array.astype(np.int32, order="C")
    if not np.array_equal(narrow, array):
        raise ValueError(f"sparse_lu.analyze: {what} has indices beyond 32 bits")
    return narrow


class Factors:
    """Owns native factors and frees them with itself: keep it for as long as programs use its token.

    Attributes:
      pattern: what `analyze` returned.
      token: int32[...], what `refactor`, `solve` and `free` take; it has the batch dimensions of the values.
    """

    def __init__(self, pattern: Pattern, dtype: Any, batch: tuple[int, ...]) -> None:
        name = np.dtype(dtype).name
        if name not in DTYPES:
            raise TypeError(f"sparse_lu.factor: the values are {name}, wanted one of {', '.join(DTYPES)}")
        self.pattern = pattern
        self._native = _native.Factors(pattern, name, math.prod(batch))
        self.token = jnp.asarray(np.asarray(self._native.tokens, np.int32).reshape(batch))

    def free(self) -> None:
        """Free the factors now. Calls that are running keep theirs; later ones fail. Freeing twice does nothing."""
        self._native.free()

    def __enter__(self) -> Factors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()


def factor(pattern: Pattern, values: ArrayLike) -> Factors:
    """Factorise a matrix, or each of a batch.

    Args:
      pattern: what `analyze` returned.
      values: float or complex[..., nnz], in the order of the positions given to `analyze`.

    Returns:
      The factors, which own the native memory. Matrices of a batch have factors and tokens of their own.

    Raises:
      TypeError: `values` is traced, or has another dtype.
      jax.errors.JaxRuntimeError: a matrix is singular, or there are more or fewer values than the pattern has elements.
    """
    if isinstance(values, jax.core.Tracer):
        raise TypeError(
            "sparse_lu.factor: the values are traced. It makes an object that Python owns, so call it outside of jit, "
            "and `refactor` inside"
        )
    array = jnp.asarray(values)
    if array.ndim == 0:
        raise TypeError("sparse_lu.factor: the values are a scalar, wanted [..., nnz]")
    factors = Factors(pattern, array.dtype, array.shape[:-1])
    jax.block_until_ready(native_refactor(factors.token, array))
    return factors
