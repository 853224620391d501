"""Which calls does a function make that XLA cannot see into: native calls, callbacks, primitives of other packages.

For somebody else's library: the names to give to `ordered` and `audit`, the operands that look like handles, and the
lines that make the calls. `calls` traces the function and walks its jaxpr; the function does not run.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from entangle_jax import _private, _stacks
from entangle_jax._ordering import accesses, jaxprs
from entangle_jax._primitive import entangle_p

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_private.register_exclusion(__file__)

_POINTERS = 8
"""An array of up to so many 64-bit integers may be a handle: one factorisation for each of a few matrices."""

_CALLBACKS = ("pure_callback", "io_callback", "debug_callback")

_CALLS = ("jit", "pjit", "closed_call")
"""Primitives that call a function once: not worth to be named as what a call stands in."""

_SAME_VALUE = ("reshape", "squeeze", "convert_element_type", "bitcast_convert_type", "copy", "stop_gradient")
"""Primitives whose result names the same object as their operand does."""


@dataclasses.dataclass(frozen=True)
class CallSite:
    """A call that XLA cannot see into, at one place of a function. The body of a loop counts once.

    Examples:
      >>> from entangle_jax import calls, testing
      >>> found = calls(lambda token: testing.write(token, testing.read(token)), testing.slot(0))
      >>> found[0].name, found[0].operands, found[0].handles
      ('entangle_testing_read', ('int32[]',), (0,))
    """

    index: int
    """Its position among the calls of the function, in the order of the text."""
    kind: str
    """`"native call"`, `"callback"`, or `"primitive"`: one that is not jax's own."""
    name: str
    """The native target, the Python function of a callback, or the name of the primitive."""
    operands: tuple[str, ...]
    """Dtype and shape of each operand, such as `"float32[3,4]"`."""
    results: tuple[str, ...]
    """Dtype and shape of each result."""
    handles: tuple[int, ...]
    """The operands that look like handles: one integer, or a few pointers. A guess, for you to check."""
    shared: dict[int, tuple[int, ...]]
    """For each of those operands that other calls are given too: the `index` of these calls."""
    side_effect: bool
    """Whether the call is marked as a side effect, so that XLA keeps it when nothing uses its results."""
    targets: tuple[str, ...] | None
    """The native targets that XLA calls for it: its own name for a native call, those of a primitive's lowering on this
    platform, none for a callback. None if that is not known."""
    around: tuple[str, ...]
    """The primitives in whose bodies it is, the outermost first, such as `("scan", "cond")`."""
    sources: tuple[str, ...]
    """The lines of source code that made it, as `file:line`, the innermost first."""

    def __str__(self) -> str:
        """What is called, with which operands; which calls share its handles; and where it stands."""
        operands = (f"{operand}{' (handle?)' * (i in self.handles)}" for i, operand in enumerate(self.operands))
        text = f"{self.index}. {self.kind} {self.name}({', '.join(operands)}) -> ({', '.join(self.results)})"
        lines = [text + ", side effect" * self.side_effect]
        lines += [
            f"   operand {i} is also given to {', '.join(f'call {other}' for other in others)}"
            for i, others in self.shared.items()
        ]
        if self.kind == "primitive":
            none = "not known" if self.targets is None else "none, XLA sees what it does"
            lines.append(f"   native target: {', '.join(self.targets or ()) or none}")
        files = [source.rpartition(":")[0] for source in self.sources]
        called = "\n      called at ".join(self.sources[i] for i in _stacks.told(files))
        lines.append(f"   at {called or 'an unknown line'}")
        if self.around:
            lines.append(f"   in the body of {' in '.join(reversed(self.around))}")
        return "\n".join(lines)


class Calls(tuple[CallSite, ...]):
    """The calls of a function in the order of its text. Printed, it is a table that ends with what to do.

    Examples:
      >>> from entangle_jax import calls, testing
      >>> found = calls(lambda token: testing.write(token, testing.read(token)), testing.slot(0))
      >>> [call.name for call in found]
      ['entangle_testing_read', 'entangle_testing_write']
    """

    __slots__ = ()

    def __str__(self) -> str:
        """The calls, and how to name them to `ordered`."""
        if not self:
            return (
                "This function makes no native call and no callback, and binds no primitive but jax's own: XLA sees "
                "all that it does, so there is nothing to order."
            )
        names = dict.fromkeys(call.name for call in self)
        advice = (
            f"Calls: {len(self)}, names: {len(names)}. If two calls share an object and one of them changes it, say "
            "which read it and which write it, by the names above: ordered(function, reads=[...], writes=[...])"
        )
        return "\n".join([*map(str, self), "", advice])

    __repr__ = __str__


def calls(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Calls:
    """List the native calls, the callbacks, and the primitives of other packages that a function makes.

    >>> import jax
    >>> from entangle_jax import calls, testing
    >>> for call in calls(lambda token: testing.write(token, 1.0), testing.slot(0)):
    ...     print(call.kind, call.name, call.operands, call.handles)
    native call entangle_testing_write ('int32[]', 'float32[]') (0,)

    Args:
      fn: the function, jitted or not. It is traced and does not run.
      *args: its arguments: arrays, or `jax.ShapeDtypeStruct`s in place of arrays, and any others.
      **kwargs: its keyword arguments, likewise.

    Returns:
      The calls in the order of the function's text, each with its operands, those of them that look like handles,
      and the lines that make it. Calls of `entangle` itself are left out.

    Raises:
      TypeError: `fn` is not callable.
    """
    if not callable(fn):
        raise TypeError(f"entangle_jax.calls: got a {type(fn).__name__}, wanted the function to look into.")
    found = list(_walk(_trace(fn, args, kwargs), {}, ()))
    users: dict[Any, list[int]] = {}
    for index, call in enumerate(found):
        for value in dict.fromkeys(call.values):
            users.setdefault(value, []).append(index)
    return Calls(_site(index, call, users) for index, call in enumerate(found))


@dataclasses.dataclass(frozen=True)
class Named:
    """A call in a trace as `ordered` knows it, and as it is found in the compiled program."""

    name: str
    """The native target, or the name of the primitive, also of a callback."""
    targets: tuple[str, ...]
    """The native targets; none for a callback, whose target differs between platforms."""
    line: tuple[str, int] | None
    """The innermost line of source code."""

    def may_become(self, target: str) -> bool:
        """Whether the compiled program may have a call of this target for it."""
        return target in self.targets or (not self.targets and "callback" in target)


def named(jaxpr: Any) -> list[Named]:
    """The calls of a trace. Primitives that are not of JAX are lowered, each alone, to see what they become."""
    found = []
    for call in _walk(jaxprs.opened(jaxpr).jaxpr, {}, ()):
        # What a function of a library calls has no line of its own.
        frames = (
            frame
            for eqn in (call.eqn, *reversed(call.around))
            for frame in _private.user_frames(eqn.source_info.traceback)
        )
        line = next(((frame.file_name, frame.start_line) for frame in frames), None)
        match call.kind:
            case "native call":
                found.append(Named(call.name, (call.name,), line))
            case "callback":
                found.append(Named(str(call.eqn.primitive.name), (), line))
            case _:
                found += [Named(call.name, targets, line)] if (targets := _targets(call.eqn)) else []
    return found


def _trace(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The jaxpr of `fn`, where arguments that are no arrays stay what they are."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    dynamic = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]

    def of_arrays(*arrays: Any) -> list[Any]:
        filled = list(leaves)
        for i, array in zip(dynamic, arrays, strict=True):
            filled[i] = array
        args, kwargs = jax.tree.unflatten(treedef, filled)
        return [leaf for leaf in jax.tree.leaves(fn(*args, **kwargs)) if _is_array(leaf)]

    with jax.disable_jit(disable=False):
        return jaxprs.opened(jax.make_jaxpr(of_arrays)(*(leaves[i] for i in dynamic))).jaxpr


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


@dataclasses.dataclass(frozen=True)
class _Found:
    kind: str
    name: str
    eqn: Any
    values: tuple[Any, ...]
    """For each operand what tells its value from others."""
    around: tuple[Any, ...]
    """The equations whose bodies it stands in, the outermost first."""


def _walk(jaxpr: Any, origin: dict[Any, Any], around: tuple[Any, ...]) -> Iterator[_Found]:
    """Yield the calls. `origin` says of a variable which other one has the same value, as far as that is known."""
    for eqn in jaxpr.eqns:
        values = tuple(id(v) if jaxprs.is_literal(v) else origin.get(v, v) for v in eqn.invars)
        kind, name = _kind_of(eqn)
        if kind:
            yield _Found(kind, name, eqn, values, around)
            continue
        if eqn.primitive is entangle_p or eqn.primitive.name in _SAME_VALUE:
            origin.update(zip(eqn.outvars, values, strict=False))
        for inner in map(jaxprs.opened, jaxprs.inner_jaxprs(eqn)):
            # A body is given the operands in order; a branch, all but the first; a loop's condition, the last ones.
            pairs = zip(reversed(inner.jaxpr.invars), reversed(values), strict=False)
            yield from _walk(inner.jaxpr, dict(pairs), (*around, eqn))


def _kind_of(eqn: Any) -> tuple[str, str]:
    """The kind and the name of a call; an empty kind if XLA can see what it does."""
    name = str(eqn.primitive.name)
    if name == "ffi_call":
        return "native call", str(eqn.params["target_name"])
    if name in _CALLBACKS:
        return "callback", _name_of(eqn)
    return ("" if accesses.is_of_jax(eqn.primitive) else "primitive"), name


def _name_of(eqn: Any) -> str:
    """The name of the Python function of a callback, without the wrappers that jax and `functools` put around it."""
    function = list(jaxprs.functions_of(eqn))[-1]
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def _site(index: int, call: _Found, users: dict[Any, list[int]]) -> CallSite:
    eqn = call.eqn
    handles = tuple(i for i, v in enumerate(eqn.invars) if _may_be_handle(v.aval))
    others = {i: tuple(user for user in users[call.values[i]] if user != index) for i in handles}
    # What is jitted has the lines inside of it alone, so the lines that lead there are those of the equations around.
    frames = (
        frame
        for around in (eqn, *reversed(call.around))
        for frame in _private.user_frames(around.source_info.traceback)
    )
    return CallSite(
        index=index,
        kind=call.kind,
        name=call.name,
        operands=tuple(_type_of(v.aval) for v in eqn.invars),
        results=tuple(_type_of(v.aval) for v in eqn.outvars),
        handles=handles,
        shared={i: those for i, those in others.items() if those},
        side_effect=bool(eqn.params.get("has_side_effect")) or bool(eqn.effects),
        targets=(call.name,) if call.kind == "native call" else _targets(eqn) if call.kind == "primitive" else (),
        around=tuple(name for name in (str(around.primitive.name) for around in call.around) if name not in _CALLS),
        sources=tuple(dict.fromkeys(f"{frame.file_name}:{frame.start_line}" for frame in frames)),
    )


def _targets(eqn: Any) -> tuple[str, ...] | None:
    """The native targets of a primitive, which its jaxpr does not say: lower it alone, and look. None if that fails."""

    def alone(*operands: Any) -> Any:
        return jaxprs.evaluate(eqn, operands)[:1]

    operands = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)
    try:
        text = jax.jit(alone).lower(*operands).as_text()
    except Exception:  # no lowering for this platform, or one that works only where the call stands, as in a mesh
        return None
    return tuple(dict.fromkeys(re.findall(r"stablehlo\.custom_call @([\w.$]+)\(", text)))


def _may_be_handle(aval: Any) -> bool:
    """One integer of 32 or 64 bits, a few pointers, or the bytes of one or two: `int32[]`, `uint64[2]`, `uint8[8]`."""
    if not _is_array(aval) or not jnp.issubdtype(aval.dtype, jnp.integer):
        return False
    if not all(isinstance(dim, int) for dim in aval.shape):  # a symbolic dimension
        return False
    size, width = math.prod(aval.shape), aval.dtype.itemsize
    if width == 1:
        return size in {8, 16}
    return 1 <= size <= (_POINTERS if width == 8 else 1) and width >= 4


def _type_of(aval: Any) -> str:
    if not _is_array(aval):
        return str(aval)
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
