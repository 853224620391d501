"""`reads` and `writes`: what a function does to the world, said once.

In a trace, a mark is a jitted function of its own whose name is the record: a reserved prefix, what it does, and the
resource. The name stands in the jaxpr, and in the `op_name` of everything that the function becomes in the compiled
program, whatever transformations come between. JAX has every rule for a jitted function already, so a mark needs no
primitive and no rule. Outside of a trace, a mark just calls the function.

Where a mark says which argument is the handle, that argument passes through an `entangle` without witnesses at the
start of the function. It lowers to nothing, and transformations may add, drop and reorder arguments around it.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast
from urllib.parse import quote, unquote

import jax

from entangle_jax import _nested, _private
from entangle_jax._leaves import is_ref, is_token
from entangle_jax._ordering import jaxprs
from entangle_jax._primitive import entangle_p

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
R = TypeVar("R")

_private.register_exclusion(__file__)

PREFIX = "entangle_jax"
"""Every mark's name begins with it."""


OF_HANDLES = "entangle_jax.Handle"
"""The resource of the accesses through a `Handle`, which are in order by construction."""

UNNAMED = "an unnamed resource"
"""The resource of the calls that `ordered` is told of without one."""


@dataclass(frozen=True)
class Mark:
    """What a function does to a resource."""

    resource: str
    writes: bool
    volatile: bool = False
    """It reads what others change: its calls are ordered as writes are, and reported as reads."""
    handle: bool = False
    """An argument tells the objects of the resource apart."""
    opaque: bool = False
    """The function as a whole is one access, whatever calls are in it."""
    debug: bool = False
    """A callback of `jax.debug` in it is an access too: `ordered` was told of it."""

    @property
    def orders_as_a_write(self) -> bool:
        """Whether calls of the function are to run as often, and in the order, that the program says."""
        return self.writes or self.volatile

    def name(self, fn: Any) -> str:
        """The name of a jitted function that is so marked: `entangle_jax:reads.volatile:rates.file:lookup`."""
        return self.name_of(getattr(fn, "__name__", None) or type(fn).__name__)

    def name_of(self, function: str) -> str:
        """The same, by the function's name."""
        flags = [flag for flag in ("volatile", "handle", "opaque", "debug") if getattr(self, flag)]
        what = ".".join(["writes" if self.writes else "reads", *flags])
        # A name is one part of an `op_name`, whose parts are separated by slashes.
        return ":".join([PREFIX, what, quote(self.resource, safe=""), quote(function, safe="<>")])

    def __str__(self) -> str:
        """As the user wrote it."""
        volatile = ", volatile=True" if self.volatile else ""
        return f"{'writes' if self.writes else 'reads'}({self.resource!r}{volatile})"


@functools.lru_cache(maxsize=4096)
def parse(name: str) -> Mark | None:
    """The mark that a jitted function's name records; None if it is the name of another function."""
    prefix, *rest = name.split(":")
    if prefix != PREFIX or len(rest) != 3:
        return None
    kind, *flags = rest[0].split(".")
    return Mark(unquote(rest[1]), kind == "writes", **dict.fromkeys(flags, True))


def function_of(name: str) -> str:
    """The name of the function whose mark a jitted function's name records."""
    return unquote(name.rpartition(":")[2])


def reads(
    resource: str, *, handle: str | int | None = None, volatile: bool = False, opaque: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Say that the native calls and callbacks in a function use a resource, and leave it as it is.

    A resource is something that JAX does not see and that calls share, such as a factorisation, a file or a simulator.
    You choose its name: ::

        @reads("mylib.matrix", handle="token")
        def solve(token, b):
            return jax.ffi.ffi_call("lu_solve", b)(token, b)

    Two equal calls give the same if there is no write between them, so XLA may merge them, drop them, or take them out
    of a loop. The mark orders nothing by itself: `ordered` puts the calls in order, and `audit` checks that they are.

    Args:
      resource: the name of what is read. All packages share these names, so use `"package.resource"`.
      handle: the name or the position of the argument that tells the objects of the resource apart: an array, or a
        pytree of arrays. Two calls touch the same object unless their handles are known to come from different
        arguments of the program, from different constants, or from different elements of one array. Without it, all
        calls that touch the resource touch the same object.
      volatile: something outside the program changes what is read, such as a file or a clock. The calls run as often,
        and in the order, that the program says, as those of `writes` do. Reports still list them as reads.
      opaque: the function as a whole is one access: everything in it runs after every access that comes before it, and
        every access that comes after it waits for all that is in it. Some functions need it because their native calls
        appear only when they are lowered, such as `lineax.linear_solve`. `ordered` runs the function in a branch of a
        conditional, unless it has ordered effects. Inside, native calls that can be seen are in order as elsewhere, and
        so are the operations that may make calls when they are lowered; the calls that one such operation makes are in
        its own order. Which objects are used is not seen either, so all opaque functions of a resource use the same
        one, also with `handle`.

    Returns:
      A decorator. What it returns takes the arguments of the function, traced or not, and returns what the function
      returns. It works on functions, methods, properties, `functools.partial` and other callables.

    Raises:
      TypeError: `resource` is not a name; or the function is a generator or a coroutine function, has no argument
        `handle`, or is not callable.

    Examples:
      >>> import jax
      >>> from entangle_jax import ordered, reads, testing, writes
      >>> look = reads("example.slot", handle="token")(testing.read)
      >>> change = writes("example.slot", handle="token")(testing.write)
      >>> @jax.jit
      ... @ordered
      ... def program(token):
      ...     before = look(token)
      ...     change(token, 1.0)
      ...     return before, look(token)
      >>> testing.reset()
      >>> [float(value) for value in program(testing.slot(0))]
      [0.0, 1.0]
    """
    _expect_resource("reads", resource, handle)
    return _decorator("reads", Mark(resource, False, volatile, handle is not None, opaque), handle)


def writes(
    resource: str, *, handle: str | int | None = None, opaque: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Say that the native calls and callbacks in a function change a resource.

    Within one function that is `ordered`, they run as often, and in the order, that the program says. Use it also for
    calls that change something by reading it, such as taking the next item of a queue, or drawing a random number.

    Args:
      resource: as for `reads`.
      handle: as for `reads`.
      opaque: as for `reads`.

    Returns:
      A decorator, as `reads` does.

    Raises:
      TypeError: as for `reads`.

    Examples:
      >>> import jax
      >>> from jax.experimental import io_callback
      >>> from entangle_jax import ordered, writes
      >>> lines = []
      >>> @writes("example.lines")
      ... def log(x):
      ...     io_callback(lambda x: lines.append(float(x)), None, x)
      >>> @jax.jit
      ... @ordered
      ... def program(x):
      ...     log(x + 1)
      ...     log(x)
      >>> program(1.0)
      >>> jax.effects_barrier()
      >>> lines
      [2.0, 1.0]
    """
    _expect_resource("writes", resource, handle)
    return _decorator("writes", Mark(resource, True, False, handle is not None, opaque), handle)


def _expect_resource(which: str, resource: Any, handle: Any) -> None:
    if not isinstance(resource, str) or not resource:
        got = "''" if resource == "" else f"an object of type {type(resource).__name__}"
        raise TypeError(
            f"entangle_jax.{which}: the resource is {got}, wanted a name: `@{which}('mylib.matrix')` above a function, "
            f"or `{which}('mylib.matrix')(function)`."
        )
    if not isinstance(handle, str | int | None) or isinstance(handle, bool):
        raise TypeError(
            f"entangle_jax.{which}: the handle is of type {type(handle).__name__}, wanted the name or the position of "
            "an argument."
        )


def _decorator(which: str, mark: Mark, handle: str | int | None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        return cast("Callable[P, R]", _marked(which, mark, handle, fn))

    return decorate


def _marked(which: str, mark: Mark, handle: str | int | None, fn: Any) -> Any:
    if isinstance(fn, property):
        return property(*(part and _marked(which, mark, handle, part) for part in (fn.fget, fn.fset, fn.fdel)))
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(_marked(which, mark, handle, fn.__func__))
    _expect_function(which, fn)
    position, keyword = (None, None) if handle is None else _argument(which, fn, handle)
    name = mark.name(fn)

    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if _just_calls():
            return fn(*args, **kwargs)
        return _trace(name, fn, args, kwargs, _leaves_of(args, kwargs, position, keyword))

    return marked


def _expect_function(which: str, fn: Any) -> None:
    if not callable(fn):
        raise TypeError(f"entangle_jax.{which}: got an object of type {type(fn).__name__}, wanted a function.")
    plain = fn.func if isinstance(fn, functools.partial) else fn
    for candidate in (plain, getattr(type(plain), "__call__", None)):  # noqa: B004 (the method itself is wanted)
        for kind, is_one in (
            ("an asynchronous generator", inspect.isasyncgenfunction),
            ("a generator", inspect.isgeneratorfunction),
            ("a coroutine", inspect.iscoroutinefunction),
        ):
            if is_one(candidate):
                raise TypeError(
                    f"entangle_jax.{which}: {getattr(fn, '__name__', fn)} is {kind} function, which runs later than it "
                    "is called; mark the functions that it calls."
                )


def _argument(which: str, fn: Any, handle: str | int) -> tuple[int | None, str | None]:
    """Where the handle is in a call: its position, if it may have one, and its name, if it may be given by name."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a function of C code that does not say
        return (handle, None) if isinstance(handle, int) else (None, handle)
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    if isinstance(handle, int):
        if 0 <= handle < len(positional):
            one = positional[handle]
            return handle, None if one.kind is one.POSITIONAL_ONLY else one.name
        if handle >= 0 and any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return handle, None
    else:
        for i, one in enumerate(positional):
            if one.name == handle:
                return i, None if one.kind is one.POSITIONAL_ONLY else handle
        if any(p.kind is p.VAR_KEYWORD or (p.kind is p.KEYWORD_ONLY and p.name == handle) for p in parameters):
            return None, handle
    raise TypeError(
        f"entangle_jax.{which}: the handle is argument {handle!r}, and {getattr(fn, '__name__', fn)} takes "
        f"{', '.join(p.name for p in parameters) or 'no arguments'}."
    )


def call_equation(marks: Sequence[tuple[Mark, str, Sequence[int]]], eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Bind an equation again, in functions with these marks, names, and operands that are the handle."""
    (mark, function, handle), *others = marks
    name = mark.name_of(function)
    if not others and (results := _nested.call_equation(name, eqn, operands, handle)) is not None:
        return results

    def call(*inner: Any) -> list[Any]:
        return call_equation(others, eqn, inner) if others else jaxprs.evaluate(eqn, inner)

    return cast("list[Any]", _trace(name, call, tuple(operands), {}, handle))


def _just_calls() -> bool:
    """Whether a marked function is called as it is: outside of a trace, and where jit is disabled."""
    return _private.trace_state_clean() or cast("Any", jax.config).jax_disable_jit is True


def call(mark: Mark, fn: Callable[..., R], handle: Any, /, *args: Any, **kwargs: Any) -> R:
    """Call `fn(handle, *args, **kwargs)` as a function with that mark, whose first argument is the handle."""
    if _just_calls():
        return fn(handle, *args, **kwargs)
    args = (handle, *args)
    return cast("R", _trace(mark.name(fn), fn, args, kwargs, _leaves_of(args, kwargs, 0, None)))


def _leaves_of(args: Any, kwargs: Any, position: int | None, keyword: str | None) -> range:
    """Which leaves of `(args, kwargs)` are those of the handle."""
    if position is not None and position < len(args):
        before, handle = args[:position], args[position]
    elif keyword is not None and keyword in kwargs:
        before = (args, {name: value for name, value in kwargs.items() if name < keyword})
        handle = kwargs[keyword]
    else:
        return range(0)
    start = len(jax.tree.leaves(before))
    return range(start, start + len(jax.tree.leaves(handle)))


def _trace(name: str, fn: Any, args: Any, kwargs: Any, handle: Sequence[int]) -> Any:
    """Call the function as a jitted one of the mark's name.

    What is traced is its argument; all else, also what comes out, stays what it is. So do Refs, which the function
    closes over.
    """
    leaves, treedef = jax.tree.flatten((args, kwargs))
    of_handle = [i for i in handle if _is_array(leaves[i])]
    traced = [
        i
        for i, leaf in enumerate(leaves)
        if (isinstance(leaf, jax.core.Tracer) and isinstance(leaf.aval, jax.core.ShapedArray)) or i in of_handle
    ]
    results: list[Any] = []
    places: list[int] = []
    new_refs: list[int] = []
    out_treedef: Any = None

    def call(*arrays: Any) -> list[Any]:
        nonlocal out_treedef
        inner = list(leaves)
        for i, array in zip(traced, arrays, strict=True):
            inner[i] = array
        for i in of_handle:
            inner[i] = entangle_p.bind(inner[i], n=1, shared=())[0]
        inner_args, inner_kwargs = jax.tree.unflatten(treedef, inner)
        results[:], out_treedef = jax.tree.flatten(fn(*inner_args, **inner_kwargs))
        # What was made around the function, and closed over, is what it was. JAX returns no Ref from a jitted function:
        # of one that was made in it, the value is returned.
        made_here = _private.traces()[-1]
        places[:] = [
            i
            for i, leaf in enumerate(results)
            if isinstance(leaf, jax.core.Tracer) and _private.trace_of(leaf) is made_here
        ]
        new_refs[:] = [i for i in places if is_ref(results[i])]
        made = [results[i][...] if i in new_refs else results[i] for i in places]
        for i in places:
            results[i] = None  # no tracer outlives its trace
        return made

    arrays = _nested.call(name, call, [leaves[i] for i in traced])
    for i, array in zip(places, arrays, strict=True):
        results[i] = jax.new_ref(array) if i in new_refs else array
    return jax.tree.unflatten(out_treedef, results)


def _is_array(leaf: Any) -> bool:
    """Whether it is an array, and no Ref and no XLA token: those say that they are arrays once they are traced."""
    return isinstance(leaf, jax.Array) and not is_token(leaf) and isinstance(jax.typeof(leaf), jax.core.ShapedArray)
