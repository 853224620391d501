"""What a type checker makes of `Handle`; it is run too."""

from typing import assert_type

import jax
import jax.numpy as jnp

from entangle_jax import Handle


def solve(token: jax.Array, b: jax.Array, *, steps: int = 1) -> tuple[jax.Array, int]:
    return token * b, steps


def refactor(token: jax.Array, values: float) -> jax.Array:
    return token * values


def solve_both(tokens: tuple[jax.Array, dict[str, jax.Array]]) -> jax.Array:
    return tokens[0] + tokens[1]["id"]


def test_results_and_tokens_keep_their_types() -> None:
    handle = Handle(jnp.ones(()))
    assert_type(handle, Handle[jax.Array])

    solution, handle = handle.read(solve, jnp.ones(3), steps=2)
    assert_type(solution, tuple[jax.Array, int])
    assert_type(handle, Handle[jax.Array])

    status, handle = handle.write(refactor, 2.0)
    assert_type(status, jax.Array)
    assert_type(handle, Handle[jax.Array])
    assert_type(handle.token, jax.Array)
    assert_type(handle.wait(), jax.Array)

    replaced, handle = handle.write(solve, jnp.ones(()), token=lambda result: result[0])
    assert_type(replaced, tuple[jax.Array, int])

    joined = Handle.join(handle, Handle({"id": jnp.zeros(())}))
    assert_type(joined, Handle[tuple[jax.Array, dict[str, jax.Array]]])
    total, joined = joined.read(solve_both)
    assert_type(total, jax.Array)


def wrong(handle: Handle[jax.Array]) -> None:
    """Each line is an error to a type checker, or the comment on it would be."""
    handle.read(solve, "b")  # type: ignore[arg-type]
    handle.read(solve)  # type: ignore[call-arg]
    handle.write(solve_both)  # type: ignore[arg-type]
    handle.write(refactor, 1.0, token=lambda result: 1)  # type: ignore[arg-type, return-value]
