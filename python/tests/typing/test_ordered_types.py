"""What a type checker makes of `reads`, `writes` and `ordered`; it is run too."""

from typing import TYPE_CHECKING, assert_type

import jax
import jax.numpy as jnp

from entangle_jax import ordered, reads, writes

if TYPE_CHECKING:
    from collections.abc import Callable


@reads("typing.matrix", handle="token")
def solve(token: jax.Array, b: jax.Array, *, steps: int = 1) -> tuple[jax.Array, int]:
    return token * b, steps


class Solver:
    @writes("typing.matrix")
    def refactor(self, token: jax.Array, values: float) -> jax.Array:
        return token * values


@ordered
def step(token: jax.Array, name: str) -> dict[str, jax.Array]:
    return {name: solve(token, token)[0]}


def test_marked_and_ordered_functions_keep_their_types() -> None:
    token = jnp.ones(())
    assert_type(solve(token, token, steps=2), tuple[jax.Array, int])
    assert_type(Solver().refactor(token, 2.0), jax.Array)
    assert_type(step(token, "a"), dict[str, jax.Array])

    decorated = ordered(reads=["typing_read"], writes={"typing.matrix": [("typing_write", 0)]})

    def plain(token: jax.Array) -> int:
        del token
        return 3

    assert_type(ordered(plain)(token), int)
    wrapped: Callable[[jax.Array], int] = reads("typing.matrix")(plain)
    assert_type(wrapped(token), int)
    assert callable(decorated)


def wrong(token: jax.Array) -> None:
    """Each line is an error to a type checker, or the comment on it would be."""
    solve(token, "b")  # type: ignore[arg-type]
    solve(token)  # type: ignore[call-arg]
    step(token, 3)  # type: ignore[arg-type]
    reads(solve)  # type: ignore[arg-type]
    writes("typing.matrix", volatile=True)  # type: ignore[call-arg]
