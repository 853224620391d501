"""Using factors, in programs: native calls, what they do to the factors, and derivatives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from entangle_jax import reads, writes
from sparse_lu import _targets

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike

FACTORS = "sparse_lu.factors"
"""The resource. The token tells its objects apart."""

_ANY_VERSION = 0


@jax.jit
def native_refactor(token: Array, values: Array) -> Array:
    """The call, without a mark."""
    _expect_dtype("refactor", "values", values)
    result = jax.ShapeDtypeStruct(token.shape, jnp.int32)
    call = jax.ffi.ffi_call(
        f"sparse_lu_refactor_{values.dtype}", result, vmap_method="expand_dims", has_side_effect=True
    )
    out: Array = call(token, values)
    return out


@writes(FACTORS, handle="token")
def refactor(token: ArrayLike, values: ArrayLike) -> Array:
    """Factorise another matrix of the same pattern in place.

    Under `vmap` one native call does the whole batch, several matrices at once. Each needs a token of its own.

    Args:
      token: int32[], of `Factors`.
      values: the dtype of the factors, [nnz]. Derivatives go through the values given to `solve`, not through these.

    Returns:
      The token, for others to wait for.

    Raises:
      TypeError: the token is not an int32[], or factors cannot have the dtype of the values.
      ValueError: `values` is not a vector.
      jax.errors.JaxRuntimeError: when the program runs. The matrix is singular (solving fails until a later `refactor`
        succeeds), a value is not finite, there are more or fewer than the pattern has elements, the factors have
        another dtype, or have been freed.
    """
    values = jnp.asarray(values)
    if values.ndim != 1:
        raise ValueError(f"sparse_lu.refactor: the values are {_short(values)}, wanted [nnz]; use jax.vmap for a batch")
    out: Array = native_refactor(_as_token("refactor", token), jax.lax.stop_gradient(values))
    return out


@reads(FACTORS, handle="token")
def solve(
    token: ArrayLike, b: ArrayLike, values: ArrayLike | None = None, *, trans: Literal["N", "T", "H"] = "N"
) -> Array:
    """Solve `A x = b`, with the matrix that was factorised last.

    Under `vmap` over right-hand sides one native call solves for all of them; under `vmap` over tokens one native call
    solves with all factors, several at once.

    Args:
      token: int32[], of `Factors`.
      b: the dtype of the factors, [n] or [n, k] for `k` right-hand sides.
      values: [nnz], those that the token was factorised with last, for derivatives with respect to the matrix. Without
        them, only `b` has a derivative. They do not change the solution. A derivative solves with the same factors
        again, so compute it before the next `refactor`.
      trans: "N" for `A`, "T" for its transpose, "H" for its conjugate transpose.

    Returns:
      `x`, of the shape of `b`.

    Raises:
      ValueError: `trans` or the shape of `b` is not one of these.
      TypeError: the token is not an int32[], the dtype of `b` is not that of any factors, or not that of `values`.
      jax.errors.JaxRuntimeError: when the program runs. Nothing was factorised, `b` does not fit the matrix, the
        factors have another dtype, have been freed, or were refactorised before the derivative of this solve.
    """
    if trans not in ("N", "T", "H"):
        raise ValueError(f"sparse_lu.solve: trans is {trans!r}, wanted 'N', 'T' or 'H'")
    b = jnp.asarray(b)
    _expect_dtype("solve", "b", b)
    if b.ndim not in (1, 2) or b.shape[0] == 0:
        raise ValueError(f"sparse_lu.solve: b is {_short(b)}, wanted [n] or [n, k]; use jax.vmap for a batch")
    if values is not None:
        values = jnp.asarray(values)
        if values.dtype != b.dtype or values.ndim != 1:
            raise TypeError(
                f"sparse_lu.solve: the values are {_short(values)}, wanted {b.dtype}[nnz], since b is {_short(b)}"
            )
    out: Array = _solve(_as_token("solve", token), b, values, trans)
    return out


@partial(jax.jit, static_argnames="trans")
def _solve(token: Array, b: Array, values: Array | None, trans: str) -> Array:
    if trans == "H":  # conj(A).T x = b
        x: Array = _solve(token, b.conj(), values, "T")
        return x.conj()
    out: Array = _differentiable_solve(token, b, values, trans == "T")
    return out


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _differentiable_solve(token: Array, b: Array, values: Array | None, transposed: bool) -> Array:
    return _linear_solve(token, jnp.int32(_ANY_VERSION), transposed, b, values)


@_differentiable_solve.defjvp
def _solve_jvp(transposed: bool, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    """A derivative solves with this matrix again, perhaps much later: that fails if the factors have changed."""
    token, b, values = primals
    _, *tangents_of_b_and_values = tangents
    solve = partial(_linear_solve, token, _version(token), transposed)
    out: tuple[Array, Array] = jax.jvp(solve, (b, values), tuple(tangents_of_b_and_values))
    return out


def _linear_solve(token: Array, version: Array, transposed: bool, b: Array, values: Array | None) -> Array:
    x: Array = jax.lax.custom_linear_solve(
        lambda x: _multiply(token, values, x, transposed=transposed),
        b,
        lambda _, b: _native_solve(token, version, b, transposed=transposed),
        lambda _, b: _native_solve(token, version, b, transposed=not transposed),
    )
    return x


def _native_solve(token: Array, version: Array, b: Array, *, transposed: bool) -> Array:
    if b.size == 0:
        return b
    sides = b[None] if b.ndim == 1 else b.T  # each right-hand side in one piece
    result = jax.ShapeDtypeStruct(sides.shape, b.dtype)
    call = jax.ffi.ffi_call(f"sparse_lu_solve_{b.dtype}", result, vmap_method="expand_dims")
    x = call(token, version, sides, transposed=np.bool_(transposed))
    return x[0] if b.ndim == 1 else x.T


def _version(token: Array) -> Array:
    """Another number after each `refactor`."""
    result = jax.ShapeDtypeStruct(token.shape, jnp.int32)
    version: Array = jax.ffi.ffi_call("sparse_lu_version", result, vmap_method="expand_dims")(token)
    return version


def _multiply(token: Array, values: Array | None, x: Array, *, transposed: bool) -> Array:
    """The matrix times `x`, in JAX, which differentiates it with respect to the values and runs it for nothing else."""
    if values is None:
        return x
    rows, columns = _indices(token, values.shape[-1])
    if transposed:
        rows, columns = columns, rows
    elements = values if x.ndim == 1 else values[:, None]
    return jnp.zeros_like(x).at[rows].add(elements * x[columns])


def _indices(token: Array, nnz: int) -> tuple[Array, Array]:
    """Where the elements are. That never changes, so the call needs no order."""
    index = jax.ShapeDtypeStruct((nnz,), jnp.int32)
    rows, columns = jax.ffi.ffi_call("sparse_lu_indices", (index, index), vmap_method="expand_dims")(token)
    return rows, columns


@writes(FACTORS, handle="token")
def free(token: ArrayLike) -> Array:
    """Free factors from within a program. `Factors` does that too, when Python drops it.

    Args:
      token: int32[].

    Returns:
      The token, for others to wait for.

    Raises:
      TypeError: the token is not an int32[].
      jax.errors.JaxRuntimeError: when the program runs, and they have been freed already.
    """
    token = _as_token("free", token)
    result = jax.ShapeDtypeStruct(token.shape, jnp.int32)
    out: Array = jax.ffi.ffi_call("sparse_lu_free", result, vmap_method="expand_dims", has_side_effect=True)(token)
    return out


def _as_token(function: str, token: ArrayLike) -> Array:
    wanted = "wanted int32[], the token of `Factors`; use jax.vmap for a batch"
    try:
        array = jnp.asarray(token)
    except TypeError:
        raise TypeError(f"sparse_lu.{function}: the token is a {type(token).__name__}, {wanted}") from None
    if array.ndim != 0 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"sparse_lu.{function}: the token is {_short(array)}, {wanted}")
    return array.astype(jnp.int32)


def _short(array: Array) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _expect_dtype(function: str, what: str, array: Array) -> None:
    if array.dtype.name not in _targets.DTYPES:
        wanted = ", ".join(_targets.DTYPES)
        raise TypeError(f"sparse_lu.{function}: {what} is {_short(array)}, wanted one of {wanted}")
