"""Which arguments of a program are the parts of one `Handle`: the token and the fence stand for one object."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jax

from entangle_jax import _private
from entangle_jax._handle import Handle

if TYPE_CHECKING:
    from entangle_jax import _native


def handles(stage: jax.stages.Lowered | jax.stages.Compiled) -> list[list[int]] | None:
    """Pairs of arguments, by their numbers in the program, that are a leaf of a token and the same leaf of its fence.

    None if the program does not say how its arguments are numbered: then only their names are left.
    """
    info = _arguments(stage)
    return None if info is None else _numbered(stage, _pairs(info))


def handles_in_order(stage: jax.stages.Lowered | jax.stages.Compiled, *trees: Any) -> list[list[int]] | None:
    """Likewise for a program that was given the leaves of `trees` one by one, in their order; None if it was not."""
    info = _arguments(stage)
    if info is None:
        return None
    if pairs := _pairs(info):
        return _numbered(stage, pairs)
    leaves = [leaf for leaf in jax.tree.leaves(trees) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
    taken = jax.tree.leaves(info)
    if not leaves or [(x.shape, x.dtype) for x in leaves] != [(x.shape, x.dtype) for x in taken]:
        return None
    return _numbered(stage, _pairs(trees))


def _arguments(stage: jax.stages.Lowered | jax.stages.Compiled) -> Any:
    try:
        return stage.args_info
    except (AttributeError, NotImplementedError, ValueError):
        return None


def _pairs(tree: Any) -> list[tuple[int, int]]:
    """The positions of the leaves of each token, and of the same leaves of its fence, among all arrays."""
    pairs, first = [], 0
    for part in jax.tree.leaves(tree, is_leaf=lambda part: isinstance(part, Handle)):
        arrays = [leaf for leaf in jax.tree.leaves(part) if hasattr(leaf, "shape")]
        if isinstance(part, Handle):
            token = len(jax.tree.leaves(part.token))
            pairs += [(first + i, first + token + i) for i in range(len(arrays) - token)]
        first += len(arrays)
    return pairs


def _numbered(stage: jax.stages.Lowered | jax.stages.Compiled, pairs: list[tuple[int, int]]) -> list[list[int]] | None:
    kept = _private.kept_arguments(stage)
    if kept is None:
        return None
    # An argument that nothing uses has no number.
    numbers = {position: number for number, position in enumerate(kept)}
    return [[numbers[a], numbers[b]] for a, b in pairs if a in numbers and b in numbers]


def are_unnamed(audit: _native.Audit) -> bool:
    """Whether calls touch several arguments that have no names, or are numbered leaves of something."""
    unnamed = [re.fullmatch(r"|.*\[\d+\]", name) is not None for name in audit.arguments]
    if sum(unnamed) < 2:
        return False
    touched = (re.search(r"\bargument (\d+) ", one.name) for one in audit.objects())
    return sum(unnamed[number] for number in {int(found[1]) for found in touched if found}) > 1
