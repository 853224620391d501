"""What `entangle` was given: which leaves are operands, and what is wrong with the others."""

import os
import sys
import warnings
from dataclasses import dataclass
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ref import AbstractRef

from entangle_jax import _private


class OrderingWarning(UserWarning):
    """A call of `entangle` that cannot order what it was asked to order.

    Turn it into an error with `warnings.simplefilter("error", entangle_jax.OrderingWarning)`.
    """


@dataclass(slots=True)
class Operands:
    """The operands of one native call, and how its results make up the payload again."""

    payload: list[Any]
    """Each distinct leaf of the payload, as an array."""
    witnesses: list[Any]
    """Each distinct leaf of the witnesses that is not a leaf of the payload as well."""
    shared: tuple[int, ...]
    """Indices into `payload` of the leaves that are witnesses as well."""
    places: list[int]
    """For each leaf of the payload in order: which of `payload` it is."""
    treedef: Any
    """The structure of the payload."""


def sort_leaves(payload: Any, witnesses: tuple[Any, ...], *, warn: bool) -> Operands:
    """Sort the leaves of a call of `entangle` into operands.

    Raises:
      TypeError: a leaf is not an array; the message names it.
    """
    leaves, treedef = jax.tree.flatten(payload)
    leaves = [_unwrapped(leaf) for leaf in leaves]
    witness_leaves = [_unwrapped(leaf) for leaf in jax.tree.leaves(witnesses)]

    operands: list[Any] = []
    index: dict[int, int] = {}  # of a leaf's identity in `operands`
    places = []
    for i, leaf in enumerate(leaves):
        if id(leaf) not in index:
            index[id(leaf)] = len(operands)
            operands.append(leaf if _is_traced_or_on_device(leaf) else _array_of(leaf, "payload", payload, i))
        places.append(index[id(leaf)])

    others: dict[int, Any] = {}
    shared: dict[int, None] = {}
    for i, leaf in enumerate(witness_leaves):
        if is_there_already(leaf):
            continue
        if not _is_traced_or_on_device(leaf):
            _array_of(leaf, "witness", witnesses, i)  # it may be no array at all
        elif (place := index.get(id(leaf))) is not None:
            shared[place] = None
        else:
            others[id(leaf)] = leaf

    if warn:
        _warn_of_gaps(payload, leaves, witnesses, witness_leaves)
    return Operands(operands, list(others.values()), tuple(shared), places, treedef)


def _unwrapped(leaf: Any) -> Any:
    """An object that says it is an array (`__jax_array__`) as that array: it may well be computed in the program."""
    if isinstance(leaf, jax.Array | jax.core.Tracer):  # a traced Ref is no array, and says that it is one
        return leaf
    return jnp.asarray(leaf) if hasattr(leaf, "__jax_array__") else leaf


def _is_traced_or_on_device(leaf: Any) -> bool:
    """Whether it is something that a program computes: an array, a traced array, or an XLA token."""
    return isinstance(leaf, jax.Array) or is_token(leaf)


def is_token(leaf: Any) -> bool:
    """Whether it is an XLA token, concrete or traced: it has no shape and no dtype."""
    try:
        return jax.typeof(leaf) is _private.abstract_token
    except TypeError:
        return False


_HOST_VALUES = (bool, int, float, complex, np.generic, np.ndarray)


def is_there_already(witness: Any) -> bool:
    """Whether it is a value of the host, which nothing computes and nobody has to wait for."""
    if isinstance(witness, np.generic | np.ndarray):
        return witness.dtype.kind in "biufc"
    return isinstance(witness, _HOST_VALUES)


def _array_of(leaf: Any, role: str, tree: Any, index: int) -> Any:
    """A value of the host as an array, as `jnp.asarray` makes it."""
    if isinstance(leaf, _HOST_VALUES):
        try:
            return jnp.asarray(leaf)
        except TypeError:
            pass  # strings, dates and objects: the message below says more
    where = path_of(role, tree, index)
    what = f"a {type(leaf).__module__}.{type(leaf).__qualname__}".replace("builtins.", "")
    if isinstance(leaf, np.ndarray | np.generic):
        what = f"a numpy array of dtype {leaf.dtype}"
    remedy = "pass arrays, or pytrees of arrays"
    if isinstance(getattr(leaf, "aval", None), AbstractRef) or isinstance(leaf, jax.Ref):
        remedy = "entangle orders values: read the Ref first, `entangle(ref[...], ...)`"
    elif isinstance(leaf, jax.ShapeDtypeStruct):
        remedy = "pass the array itself, or trace the call with `jax.eval_shape`"
    elif callable(leaf):
        remedy = (
            "leave functions out; for an Equinox module, split off its arrays with "
            "`arrays, rest = eqx.partition(module, eqx.is_array)`, entangle `arrays`, and `eqx.combine` the two"
        )
    elif hasattr(leaf, "__dict__"):
        remedy += "; if it holds arrays, make its class a pytree, with `jax.tree_util.register_dataclass` for example"
    raise TypeError(f"entangle: {where} is {what}, wanted an array; {remedy}.")


def path_of(role: str, tree: Any, index: int) -> str:
    """The name of a leaf in a message, such as `payload leaf ['a'][0]` or `witness leaf [1].weight`."""
    path, _ = jax.tree_util.tree_flatten_with_path(tree)[0][index]
    text = jax.tree_util.keystr(path)
    return f"the {role}" if not text else f"{role} leaf {text}"


def _warn_of_gaps(payload: Any, leaves: list[Any], witnesses: tuple[Any, ...], witness_leaves: list[Any]) -> None:
    """Warn of everything in this call that no lowering can order."""
    if not leaves:
        warn_user("the payload has no array leaves, so nothing waits for the witnesses")
    if not witness_leaves:
        warn_user(
            "the witnesses have no array leaves, so there is nothing to wait for "
            "(a handle object without leaves? pass the raw array that it wraps)"
        )
    for role, tree, those in (("payload", payload, leaves), ("witness", witnesses, witness_leaves)):
        for i, leaf in enumerate(those):
            # A witness of the host counts as there already, however many elements it has.
            if _is_empty(leaf) and (role == "payload" or _is_traced_or_on_device(leaf)):
                consequence = "is not ordered" if role == "payload" else "orders nothing"
                warn_user(
                    f"{path_of(role, tree, i)} has no elements (shape {tuple(leaf.shape)}); XLA replaces such arrays "
                    f"by constants, so it {consequence}"
                )


def _is_empty(leaf: Any) -> bool:
    # A symbolic dimension is not an int: it may be zero, but the program is written for all its values.
    return any(isinstance(dim, int) and dim == 0 for dim in getattr(leaf, "shape", ()))


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
    """The innermost frame that is neither ours nor JAX's, and how many levels above our caller's callee it is."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
        level += 1
    return frame, level
