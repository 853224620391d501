"""Warnings that point at the line of the user's code."""

import os
import sys
import warnings
from types import FrameType

import jax


class OrderingWarning(UserWarning):
    """A call of `entangle`, `ordered`, or a method of `Handle`, does not order what it seems to order.

    Turn it into an error with `warnings.simplefilter("error", entangle_jax.OrderingWarning)`.

    Examples:
      >>> import warnings
      >>> import jax.numpy as jnp
      >>> from entangle_jax import OrderingWarning, entangle
      >>> with warnings.catch_warnings(record=True) as caught:
      ...     warnings.simplefilter("always")
      ...     x = entangle(jnp.ones(3), None)  # nothing to wait for
      >>> [warning.category.__name__ for warning in caught]
      ['OrderingWarning']
    """


_NOT_THE_USERS = tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in (__file__, jax.__file__))


def warn_user(message: str) -> None:
    """Issue an `OrderingWarning` that points at the line of the user's code by which we were called."""
    _, level = _user_frame()
    warnings.warn(f"entangle: {message}.", OrderingWarning, stacklevel=level)


def user_line() -> str:
    """The line of the user's code by which we were called, as `file:line`."""
    frame, _ = _user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _user_frame() -> tuple[FrameType, int]:
    """The innermost frame that is neither ours nor JAX's, and how many levels it is above the one that called us."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
        level += 1
    return frame, level
