"""The identity on what an access gave, which `jax.checkpoint` saves whatever its policy.

`jax.checkpoint(ordered(f))` would make the accesses of `f` again when it is differentiated, and by then an object may
have changed. It computes again what the backward pass needs and what is not saved.
"""

from __future__ import annotations

from typing import Any

from jax.interpreters import ad, batching, mlir

from entangle_jax import _private

_private.register_exclusion(__file__)


saved_p: Any = _private.Primitive("entangle_saved")
saved_p.def_impl(lambda x: x)
saved_p.def_abstract_eval(lambda aval: aval)
mlir.register_lowering(saved_p, lambda ctx, operand: [operand])
batching.primitive_batchers[saved_p] = lambda operands, dims: (saved_p.bind(*operands), *dims)
ad.primitive_jvps[saved_p] = lambda primals, tangents: (saved_p.bind(*primals), *tangents)


def _checkpoint(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """The rule of `jax.checkpoint`. What it does not know in the forward pass waits for the backward pass."""
    del saveable
    if unknown[0]:
        return None, eqn, [True], [True], [v for v, there in zip(eqn.invars, instantiated, strict=True) if not there]
    return eqn, None, [False], [False], []


_private.partial_eval_jaxpr_custom_rules[saved_p] = _checkpoint
