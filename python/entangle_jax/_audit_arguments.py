"""Which arguments of a program are the parts of one `Handle`: the token and the fence stand for one object."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import jax

from entangle_jax import _private
from entangle_jax._handle import Handle

if TYPE_CHECKING:
    from collections.abc import Sequence


def handles(stage: jax.stages.Lowered | jax.stages.Compiled) -> list[list[int]] | None:
    """Pairs of arguments, by their numbers in the program, that are a leaf of a token and the same leaf of its fence.

    None if the program does not say how its arguments are numbered: then only their names are left.
    """
    try:
        info = stage.args_info
    except (AttributeError, NotImplementedError, ValueError):
        return None
    kept = _private.kept_arguments(stage)
    pairs, first = [], 0
    for part in jax.tree.leaves(info, is_leaf=lambda part: isinstance(part, Handle)):
        count = len(jax.tree.leaves(part))
        if isinstance(part, Handle):
            token = len(jax.tree.leaves(part.token))
            pairs += [(first + i, first + token + i) for i in range(count - token)]
        first += count
    if kept is None:
        return None
    # An argument that nothing uses has no number.
    numbers = {position: number for number, position in enumerate(sorted(kept))}
    return [[numbers[a], numbers[b]] for a, b in pairs if a in numbers and b in numbers]


def are_unnamed(names: Sequence[str]) -> bool:
    """Whether several arguments of a program have no names but those that jax gives to a flat list of them."""
    return sum(re.fullmatch(r"|(flat_)?args\[\d+\]", name) is not None for name in names) > 1
