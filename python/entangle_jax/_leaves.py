"""What `entangle` was given: which leaves are operands, and what is wrong with the others."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ref import AbstractRef

from entangle_jax import _private
from entangle_jax._warnings import warn_user


class Operands:
    """The operands of one native call, and how its results make up the payload again."""

    __slots__ = ("payload", "places", "shared", "treedef", "witnesses")

    def __init__(
        self, payload: list[Any], witnesses: list[Any], shared: tuple[int, ...], places: list[int], treedef: Any
    ) -> None:
        self.payload = payload
        """Each distinct leaf of the payload, as an array."""
        self.witnesses = witnesses
        """Each distinct leaf of the witnesses that is not a leaf of the payload as well."""
        self.shared = shared
        """Indices into `payload` of the leaves that are witnesses as well."""
        self.places = places
        """For each leaf of the payload in order: which of `payload` it is."""
        self.treedef = treedef
        """The structure of the payload."""


def sort_leaves(payload: Any, witnesses: tuple[Any, ...], *, warn: bool) -> Operands:
    """Sort the leaves of a call of `entangle` into operands.

    Raises:
      TypeError: a leaf is not an array; the message names it.
    """
    leaves, treedef = jax.tree.flatten(payload)
    leaves = [_unwrapped(leaf) for leaf in leaves]
    witness_leaves = [value_of_witness(leaf) for leaf in jax.tree.leaves(witnesses)]

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


def value_of_witness(leaf: Any) -> Any:
    """A leaf of the witnesses as something to wait for: a Ref is its value now, which waits for what was written."""
    return leaf[...] if is_ref(leaf) else _unwrapped(leaf)


def is_ref(leaf: Any) -> bool:
    """Whether it is a Ref, concrete or traced."""
    return isinstance(leaf, jax.Ref) or isinstance(getattr(leaf, "aval", None), AbstractRef)


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
    if is_ref(leaf):
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
    # What is on the host is there already, however many elements it has: nothing waits for it.
    is_waited_for = [_is_traced_or_on_device(leaf) for leaf in witness_leaves]
    if not any(is_waited_for) or all(map(_is_empty, [*leaves, *itertools.compress(witness_leaves, is_waited_for)])):
        return  # there is nothing to order
    for i, leaf in enumerate(leaves):
        if _is_empty(leaf):
            _warn_of_empty(path_of("payload", payload, i), leaf, "it is not ordered")
    for i, leaf in enumerate(witness_leaves):
        if is_waited_for[i] and _is_empty(leaf):
            _warn_of_empty(path_of("witness", witnesses, i), leaf, "it orders nothing")


def _warn_of_empty(where: str, leaf: Any, consequence: str) -> None:
    warn_user(
        f"{where} has no elements (shape {tuple(leaf.shape)}); XLA replaces such arrays by constants, so {consequence}"
    )


def _is_empty(leaf: Any) -> bool:
    # A symbolic dimension is not an int: it may be zero, but the program is written for all its values.
    return any(isinstance(dim, int) and dim == 0 for dim in getattr(leaf, "shape", ()))
