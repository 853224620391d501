"""Jaxprs and the parameters of JAX's primitives. JAX promises nothing about these: they are read here alone."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from entangle_jax import _private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_private.register_exclusion(__file__)


class Open(NamedTuple):
    """A jaxpr and the values of its constants."""

    jaxpr: Any
    consts: Sequence[Any]


def opened(jaxpr: Any) -> Open:
    """Until jax 0.11 a closed jaxpr holds an open one and the constants; since then every jaxpr holds its constants."""
    if hasattr(jaxpr, "jaxpr"):
        return Open(jaxpr.jaxpr, jaxpr.consts)
    return Open(jaxpr, getattr(jaxpr, "consts", ()))


def is_jaxpr(value: Any) -> bool:
    """Whether it is a jaxpr, closed or open."""
    return hasattr(value, "eqns") and hasattr(value, "outvars" if not hasattr(value, "jaxpr") else "jaxpr")


def is_literal(atom: Any) -> bool:
    """Whether an operand of an equation is a constant that stands in the equation."""
    return hasattr(atom, "val")


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """The jaxprs that are parameters of an equation."""
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if is_jaxpr(item):
                yield item


def param(eqn: Any, name: str) -> Any:
    """A parameter of an equation.

    Raises:
      NotImplementedError: this jax does not have it.
    """
    if name not in eqn.params:
        raise NotImplementedError(
            f"entangle_jax.ordered: `{eqn.primitive.name}` of jax {jax.__version__} has no parameter `{name}`: install "
            "a newer entangle-jax, or an older jax."
        )
    return eqn.params[name]


def evaluate(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Bind the equation's primitive again."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    # Until jax 0.10.1 these are two: functions, which are bound as operands, and parameters.
    subfuns, params = bound if isinstance(bound, tuple) else ((), bound)
    results = eqn.primitive.bind(*subfuns, *operands, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


_around: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("_around", default=())


@contextlib.contextmanager
def inside(eqn: Any) -> Iterator[None]:
    """Within it, what has no line of its own has this equation's."""
    token = _around.set((*_around.get(), eqn))
    try:
        yield
    finally:
        _around.reset(token)


@contextlib.contextmanager
def context(eqn: Any) -> Iterator[None]:
    """Within it, what is traced has the equation's source line, names, and settings."""
    names = _private.current_name_stack() + eqn.source_info.name_stack
    with inside(eqn), _private.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
        yield


def line(eqn: Any) -> str:
    """The user's line that an equation comes from."""
    for one in (eqn, *reversed(_around.get())):
        if any(True for _ in _private.user_frames(one.source_info.traceback)):
            return _private.summarize(one.source_info)
    return "an unknown line"


class Scan(NamedTuple):
    """A `scan`: its body takes constants, the carry and an element of each of the others."""

    body: Any
    consts: int
    carry: int
    length: int
    reverse: bool
    unroll: Any


def scan(eqn: Any) -> Scan:
    """The parameters of a `scan`."""
    if "ft_in" in eqn.params:  # since jax 0.11
        consts, carry = (len(list(part)) for part in list(eqn.params["ft_in"].unpack())[:2])
    else:
        consts, carry = param(eqn, "num_consts"), param(eqn, "num_carry")
    return Scan(
        *(param(eqn, "jaxpr"), consts, carry, param(eqn, "length"), param(eqn, "reverse"), param(eqn, "unroll"))
    )


class While(NamedTuple):
    """A `while`: operands are the condition's constants, the body's, and the carry."""

    condition: Any
    body: Any
    condition_consts: int
    body_consts: int


def while_(eqn: Any) -> While:
    """The parameters of a `while`."""
    names = ("cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts")
    return While(*(param(eqn, name) for name in names))


def platforms_of(eqn: Any) -> Sequence[Sequence[str] | None] | None:
    """The platforms of each branch of a `platform_dependent`, None for the default; None if it is a plain `cond`."""
    return cast("Sequence[Sequence[str] | None] | None", eqn.params.get("branches_platforms"))


def bind_jit(eqn: Any, jaxpr: Any, more: Sequence[Any], operands: Sequence[Any], more_results: int) -> list[Any]:
    """Bind a jitted function again, whose jaxpr takes `more` operands and has so many more results before the others.

    Its name, its donated arguments and its shardings stay.
    """
    params = dict(eqn.params) | {"jaxpr": jaxpr}
    for name, filler in (
        ("in_shardings", _private.UNSPECIFIED),
        ("in_layouts", None),
        ("donated_invars", False),
    ):
        params[name] = (*[filler] * len(more), *param(eqn, name))
    for name, filler in (("out_shardings", _private.UNSPECIFIED), ("out_layouts", None)):
        params[name] = (*[filler] * more_results, *param(eqn, name))
    return list(eqn.primitive.bind(*more, *operands, **params))


@functools.cache
def _plain_jit() -> tuple[Any, dict[str, Any]]:
    """The primitive of jitted functions, and its parameters where none is given, for no arguments and no results."""
    with jax.disable_jit(False):
        (eqn,) = jax.make_jaxpr(jax.jit(lambda: (), inline=False))().eqns
    return eqn.primitive, eqn.params


def closed(jaxpr: Any) -> Any:
    """A jaxpr without constants, as a parameter of a jitted function: until jax 0.11 that is of another type."""
    kind = type(_plain_jit()[1]["jaxpr"])
    return jaxpr if isinstance(jaxpr, kind) else kind(jaxpr, ())


def of_equations(invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> Any:
    """A jaxpr without constants of these equations."""
    empty = opened(_plain_jit()[1]["jaxpr"]).jaxpr
    effects = frozenset().union(*(eqn.effects for eqn in eqns))
    return empty.replace(invars=invars, outvars=outvars, eqns=eqns, effects=effects)


def bind_new_jit(name: str, jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
    """Bind a jitted function of that name, which is not inlined and has no settings of its own."""
    primitive, plain = _plain_jit()
    count_in, count_out = len(operands), len(opened(jaxpr).jaxpr.outvars)
    params = plain | {
        "name": name,
        "jaxpr": jaxpr,
        "ctx_mesh": _private.get_ctx_mesh(False),
        "in_shardings": (_private.UNSPECIFIED,) * count_in,
        "in_layouts": (None,) * count_in,
        "donated_invars": (False,) * count_in,
        "out_shardings": (_private.UNSPECIFIED,) * count_out,
        "out_layouts": (None,) * count_out,
    }
    return list(primitive.bind(*operands, **params))


def bind_checkpoint(eqn: Any, jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
    """Bind a checkpointed function again. Its jaxpr must be without constants, so they become operands."""
    inner, consts = opened(jaxpr)
    if consts:
        inner = _private.convert_constvars_jaxpr(inner)
    params = dict(eqn.params) | {"jaxpr": inner}
    return list(eqn.primitive.bind(*consts, *operands, **params))


def jvp_of_custom_jvp(eqn: Any, zeros: Sequence[bool]) -> tuple[Open, list[bool]]:
    """The rule of a `custom_jvp` function for these symbolic zeros.

    Returns:
      Its jaxpr, which takes the primals and those tangents that are not zero, and returns primals and tangents
      likewise; and which of the resulting tangents are zero.
    """
    jaxpr, consts, zeros_out = param(eqn, "jvp_jaxpr_fun").call_wrapped(*zeros[param(eqn, "num_consts") :])
    return Open(jaxpr, consts), list(zeros_out)


class Forward(NamedTuple):
    """The forward rule of a `custom_vjp` function: its results are residuals and then those of the function."""

    jaxpr: Open
    residuals: list[int | None]
    """For each residual: the operand that it is, or None if it is the next of the rule's results."""


def forward_of_custom_vjp(eqn: Any, nonzeros: Sequence[bool]) -> Forward:
    """The forward rule for operands of which these have tangents."""
    consts = param(eqn, "num_consts")
    jaxpr, values = param(eqn, "fwd_jaxpr_thunk").call_wrapped(*nonzeros[consts:])
    _, _, forwarded = param(eqn, "out_trees")()
    return Forward(Open(jaxpr, values), list(forwarded))


def backward_of_custom_vjp(eqn: Any) -> Callable[..., list[Any]]:
    """The backward rule: from residuals and cotangents to the cotangents of the operands that are no constants."""
    rule = param(eqn, "bwd")

    def backward(*operands: Any) -> list[Any]:
        # The rules of functions without `symbolic_zeros` take arrays.
        if not param(eqn, "symbolic_zeros"):
            operands = tuple(
                jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.custom_derivatives.SymbolicZero) else x
                for x in operands
            )
        results = rule.call_wrapped(*operands)
        # Since jax 0.12 a pair, of the cotangents and of what the pass has to tell besides.
        if len(results) == 2 and isinstance(results[0], list | tuple):
            results = results[0]
        return [None if type(one).__name__ in {"Zero", "SymbolicZero"} else one for one in results]

    return backward


def batching_of_custom_vmap(
    eqn: Any, size: int, batched: Sequence[bool]
) -> tuple[Callable[..., list[Any]], list[bool]]:
    """The rule of a `custom_vmap` function for such operands, flat; and, once it has run, which results are batched."""
    rule, in_tree = param(eqn, "rule"), param(eqn, "in_tree")
    batched_out: list[bool] = []

    def flat(*operands: Any) -> list[Any]:
        those = in_tree.unflatten(batched)
        results, which = rule(size, those if isinstance(those, list) else list(those), *in_tree.unflatten(operands))
        batched_out[:] = jax.tree.leaves(which)
        return jax.tree.leaves(results)

    return flat, batched_out


def solve_of_linear_solve(eqn: Any) -> tuple[Any, slice]:
    """The jaxpr by which `custom_linear_solve` solves, and which operands are its constants.

    It takes these and the right-hand side, which are the last operands.
    """
    lengths, jaxprs = param(eqn, "const_lengths"), param(eqn, "jaxprs")
    start = lengths.matvec + lengths.vecmat
    return jaxprs.solve, slice(start, start + lengths.solve)


class ShardMap(NamedTuple):
    """A `shard_map`, in the terms of its public function."""

    body: Any
    mesh: Any
    in_specs: tuple[Any, ...]
    out_specs: tuple[Any, ...]
    check_vma: bool
    axes: tuple[str, ...]


def shard_map(eqn: Any) -> ShardMap:
    """The parameters of a `shard_map`."""
    names = ("jaxpr", "mesh", "in_specs", "out_specs", "check_vma")
    body, mesh, in_specs, out_specs, check = (param(eqn, name) for name in names)
    # Until jax 0.10.1 it has another name.
    axes = eqn.params["manual_axes"] if "manual_axes" in eqn.params else param(eqn, "newly_manual_axes")
    return ShardMap(body, mesh, tuple(in_specs), tuple(out_specs), check, tuple(sorted(axes)))


def functions_of(eqn: Any) -> Iterator[Any]:
    """The Python functions that an equation calls back: as they were given, and without `functools.partial`."""
    callback = eqn.params.get("callback")
    if callback is None:
        return
    found = [callback, getattr(callback, "callback_func", None)]
    # `jax.debug.callback` hands over a closure.
    found += [
        cell.cell_contents for cell in getattr(callback, "__closure__", None) or () if callable(cell.cell_contents)
    ]
    for one in found:
        function = one
        while function is not None:
            yield function
            function = getattr(function, "func", None)


def is_tracer(value: Any) -> bool:
    """Whether a value is known only when the program runs."""
    return isinstance(value, jax.core.Tracer)
