"""A handle of a native object whose readers and writers are in order by construction.

A handle holds the token of the object twice, and the second copy is the fence. Reads are given the token, writes are
given the fence; every access makes what comes after it wait, with one `entangle` (and `after` with two): ::

    read     result = fn(token)      fence        = entangle(fence, result)
    write    result = fn(fence)      token, fence = entangle((token, fence), result)
    after                            token        = entangle(token, *values)
                                     fence        = entangle(fence, *values)

So the token depends on the writes alone, which leaves reads free among themselves, and the fence depends on every
access, which is what a write has to wait for. With `t` and `f` for the two::

    t ──┬────────► read ──► a       two reads: no path leads from one to the other
        ├────────► read ──► b
        │     f ─► entangle(f, a) ─► entangle(f, b) ─► write ──► c      after both reads
        └──────────────────────────────────────┬─────────────────┘
                       entangle((t, f), c) ────► t, f                   all that follows is after the write

Why a second copy and not a small signal: a write takes its token as it is from the fence, so one native call
suffices. And the fence has the shapes, the sharding, the batch axes and the type over a mesh of the token, so whatever
is said of a handle in `in_axes`, `in_specs` or a loop's carry is true of both. It is a copy in memory of its own, so
a handle can be donated. The structure is the same after any number of accesses; what it cost is memory for the token,
which is why a token should be the small array that names the object.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp

from entangle_jax import _marks, _private
from entangle_jax._entangle import entangle
from entangle_jax._leaves import is_ref, is_token, path_of
from entangle_jax._past import Past, current_trace

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
R = TypeVar("R")
P = ParamSpec("P")

_private.register_exclusion(__file__)

# What an access says of itself to `audit`. The objects are told apart by the token.
_READS = _marks.Mark(_marks.OF_HANDLES, writes=False, handle=True)
_WRITES = _marks.Mark(_marks.OF_HANDLES, writes=True, handle=True)

_NEW: Any = object()


class Handle(Generic[T]):
    """A native object that some calls read and some change, such that XLA cannot run them in a wrong order.

    Reads may run in any order among themselves. A write comes after every earlier read and write, and every later
    access comes after the write. Each access returns its result and the handle to use from there on: ::

        handle = Handle(token)                                # token: the array that names the object
        x, handle = handle.read(solve, b)                     # x = solve(token, b)
        y, handle = handle.read(solve, c)                     # free to run before or beside the other solve
        _, handle = handle.write(refactor, values)            # after both
        z, handle = handle.read(solve, b)                     # with the new values

    A handle is a pytree whose structure, shapes and dtypes never change. So it can be the carry of a loop, go through
    `cond`, `jit`, `vmap`, `shard_map`, `checkpoint` and `grad`, and be donated. It works outside of `jit` too. An
    access costs one `entangle` of the token.

    If you use an old handle, which another access has replaced, the new access does not wait for that one. Within one
    function, an `OrderingWarning` names both lines. To use an old handle on purpose, make a new one from it:
    `Handle(old.token, old.fence)`. If the body of a loop writes through a handle, the loop has to carry that handle. An
    `OrderingWarning` names the loop if the body uses a handle from outside instead.

    Args:
      token: a pytree with at least one array, of any shape and dtype. Python numbers and numpy arrays become arrays as
        they do in `jax.numpy`. Keep it small: the handle holds it twice, in memory of its own.
      fence: give it only to make a new handle from an old one, or to say something about each part, as in
        `vmap(f, in_axes=Handle(0, 0))`.

    Raises:
      TypeError: a leaf of the token is not an array, or there is none; or the token contains handles (see `join`).

    Examples:
      >>> import jax
      >>> from entangle_jax import Handle, testing
      >>> @jax.jit
      ... def program(handle):
      ...     before, handle = handle.read(testing.read)
      ...     _, handle = handle.write(testing.write, 1.0)
      ...     after, handle = handle.read(testing.read)
      ...     return before, after, handle
      >>> testing.reset()
      >>> before, after, handle = program(Handle(testing.slot(0)))
      >>> float(before), float(after)
      (0.0, 1.0)
    """

    __slots__ = ("__weakref__", "_fence", "_past", "_token")

    _token: T
    _fence: T
    _past: Past | None
    """The accesses that this handle is ordered after, as far as they are known: no part of the pytree."""

    def __init__(self, token: T, fence: T = _NEW) -> None:
        _expect_no_handles(token)
        if fence is _NEW:
            token = fence = _arrays(token)
        else:
            _expect_no_handles(fence)
        self._token, self._fence, self._past = _copies(token), _copies(fence), None

    @property
    def token(self) -> T:
        """The token, which waits for every write so far: for a call that reads, where you cannot use `read`."""
        return self._token

    @property
    def fence(self) -> T:
        """The token again, in memory of its own, which waits for every access so far. See `wait`."""
        return self._fence

    def read(self, fn: Callable[Concatenate[T, P], R], /, *args: P.args, **kwargs: P.kwargs) -> tuple[R, Handle[T]]:
        """Call `fn(token, *args, **kwargs)`, which uses the object and leaves it as it is.

        The call waits for every earlier write, and every later write waits for the call. XLA may run it again, drop it,
        or merge it with an equal read, as it may any computation.

        Args:
          fn: what to call with the token. What it returns must contain an array.
          *args: passed to `fn`.
          **kwargs: passed to `fn`.

        Returns:
          What `fn` returned, and the handle to use from here on.

        Raises:
          TypeError: what `fn` returned contains no array, so a later write could not wait for it.

        Warns:
          OrderingWarning: this handle is older than a write of the same object.
        """
        _expect_callable("read", "fn", fn, "the function to call with the token")
        past = self._past_of("read", after_reads=False)
        result = _marks.call(_READS, fn, self.token, *args, **kwargs)
        _expect_result("read", fn, result)
        fence = entangle(self.fence, result)
        return result, _made(self.token, fence, past.then("read", writes=False))

    def write(
        self, fn: Callable[Concatenate[T, ...], R], /, *args: Any, token: Callable[[R], T] | None = None, **kwargs: Any
    ) -> tuple[R, Handle[T]]:
        """Call `fn(token, *args, **kwargs)`, which changes the object.

        The call waits for every earlier access, and every later access waits for the call.

        Args:
          fn: what to call with the token. What it returns must contain an array. Give the native call in it
            `has_side_effect=True`, or XLA drops the call if nothing uses its result or a later access.
          *args: passed to `fn`.
          token: for a write that replaces the object: a function that takes the new token out of what `fn` returned. It
            must have the structure, shapes and dtypes of the old one. Without it, the token keeps its value.
          **kwargs: passed to `fn`.

        Returns:
          What `fn` returned, and the handle to use from here on.

        Raises:
          TypeError: what `fn` returned contains no array, so later accesses could not wait for it; or the new
            token is not like the old one.

        Warns:
          OrderingWarning: this handle is older than another access of the same object, or a loop's body uses it from
            outside of the loop.
        """
        _expect_callable("write", "fn", fn, "the function to call with the token")
        if token is not None:
            _expect_callable("write", "token", token, "a function that takes the new token out of the result")
        past = self._past_of("write", after_reads=True)
        past.check_loop("write")
        result = _marks.call(_WRITES, fn, self.fence, *args, **kwargs)
        _expect_result("write", fn, result)
        both = (self.token, self.fence) if token is None else self._renewed(token(result))
        new, fence = entangle(both, result)
        return result, _made(new, fence, past.then("write", writes=True))

    def after(self, *values: Any) -> Handle[T]:
        """Return a handle whose later accesses all wait for `values`.

        Use it if a call has to come after something that it does not use: a report after the step that it is about, or
        a write after a snapshot.

        Args:
          *values: pytrees of arrays, as the witnesses of `entangle`.

        Returns:
          The handle to use from here on.

        Raises:
          TypeError: one of the values is not an array.

        Warns:
          OrderingWarning: `values` contain no array.

        Examples:
          >>> import jax
          >>> from entangle_jax import Handle, testing
          >>> @jax.jit
          ... def program(handle, x):
          ...     y = x * x
          ...     handle = handle.after(y)
          ...     return y, handle.write(testing.write, 1.0)[1]  # the write waits for y
          >>> y, handle = program(Handle(testing.slot(0)), 3.0)
          >>> float(y)
          9.0
        """
        past = self._past_in(current_trace())
        # Two calls: in one, the reads that follow would wait for the reads before.
        return _made(entangle(self.token, *values), entangle(self.fence, *values), past.then("after", writes=False))

    def wait(self) -> T:
        """Return a token that waits for every access so far: to free the object, or to wait for all accesses.

        Warns:
          OrderingWarning: this handle is older than another access of the same object.

        Examples:
          >>> from entangle_jax import Handle, testing
          >>> _, handle = Handle(testing.slot(0)).write(testing.write, 1.0)
          >>> free = lambda token: testing.write(token, 0.0)  # stands for a call that frees the object
          >>> int(free(handle.wait()))
          0
        """
        self._past_of("wait", after_reads=True)
        return self.fence

    @overload
    def join(self: Handle[T1], b: Handle[T2], /) -> Handle[tuple[T1, T2]]: ...
    @overload
    def join(self: Handle[T1], b: Handle[T2], c: Handle[T3], /) -> Handle[tuple[T1, T2, T3]]: ...
    @overload
    def join(self, *others: Handle[Any]) -> Handle[tuple[Any, ...]]: ...
    def join(self, *others: Handle[Any]) -> Handle[Any]:
        """Make one handle of several, for calls that use several objects; `split` takes it apart again.

        `Handle.join(a, b, c)` and `a.join(b, c)` are the same. The new token is the tuple of their tokens. Each of them
        waits for the earlier accesses of all the objects. So a call is in order too if it is given one token, and
        reaches the other objects through it.

        Args:
          *others: the other handles.

        Returns:
          The handle of all these objects.

        Raises:
          TypeError: one of them is not a handle.
          ValueError: a handle is given twice.

        Examples:
          >>> from entangle_jax import Handle, testing
          >>> both = Handle.join(Handle(testing.slot(0)), Handle(testing.slot(1)))
          >>> _, both = both.write(lambda tokens: [testing.write(token, 7.0) for token in tokens])
          >>> a, b = both.split()
          >>> float(b.read(testing.read)[0])
          7.0
        """
        handles = (self, *others)
        for i, handle in enumerate(handles):
            if not isinstance(handle, Handle):
                raise TypeError(
                    f"entangle_jax.Handle.join: argument {i} is of type {type(handle).__name__}, wanted a Handle: "
                    "`Handle.join(a, b)`."
                )
        if len({id(handle) for handle in handles}) < len(handles):
            raise ValueError("entangle_jax.Handle.join: a handle is given twice; pass one handle for each object.")
        tokens, fences = tuple(handle.token for handle in handles), tuple(handle.fence for handle in handles)
        # Two calls: in one, the tokens would wait for the reads as the fences do.
        trace = current_trace()
        past = Past.joined(trace, [handle._past_in(trace) for handle in handles])
        # Copies, because two handles that reads of one handle returned have one token.
        return _made(_copies(entangle(tokens, tokens)), _copies(entangle(fences, fences)), past)

    def split(self) -> tuple[Handle[Any], ...]:
        """Return the handles that `join` made this one of, in their order. `join` shows an example.

        Raises:
          TypeError: the token is not a tuple.
        """
        if not isinstance(self.token, tuple):
            raise TypeError(
                f"entangle_jax.Handle.split: the token is of type {type(self.token).__name__}, wanted a tuple: the "
                "handle is not one that `Handle.join` made."
            )
        fences: Any = self.fence
        pasts = self._past.split(len(self.token)) if self._past else [None] * len(self.token)
        return tuple(_made(*each) for each in zip(self.token, fences, pasts, strict=True))

    def __repr__(self) -> str:
        return f"Handle(token={self.token!r}, fence={self.fence!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """To pickle and copy: without its past, which belongs to this process."""
        return _made, (self.token, self.fence)

    # A handle that is passed where an array is wanted: JAX looks for `__jax_array__` first, before it complains itself.

    @property
    def __jax_array__(self) -> NoReturn:
        raise TypeError(_NO_ARRAY)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(_NO_ARRAY)

    def __getattr__(self, name: str) -> NoReturn:
        message = f"'Handle' object has no attribute {name!r}"
        raise AttributeError(f"{message}: {_NO_ARRAY}" if hasattr(jax.Array, name) else message, name=name, obj=self)

    def _renewed(self, new: Any) -> tuple[T, T]:
        """A new token, and the fence for it."""
        _expect_no_handles(new)
        new = _arrays(new)
        wanted, got = (jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree) for tree in (self.token, new))
        if wanted != got:
            raise TypeError(
                f"entangle_jax.Handle.write: the new token is {got}, wanted one like the old one, {wanted}: a handle "
                "keeps its structure, shapes and dtypes, so that a loop can carry it. Make a new `Handle` instead."
            )
        return _copies(new), _copies(new)

    def _past_in(self, trace: Any) -> Past:
        if self._past is None or self._past.trace != trace:
            self._past = Past.unknown(trace, self.fence, self._past)
        return self._past

    def _past_of(self, what: str, *, after_reads: bool) -> Past:
        """The accesses before this one, after a warning if it is not ordered after them."""
        past = self._past_in(current_trace())
        past.check(what, after_reads=after_reads)
        return past


def _made(token: Any, fence: Any, past: Past | None = None) -> Handle[Any]:
    """A handle of these, which are not looked at and not copied."""
    handle: Handle[Any] = object.__new__(Handle)
    handle._token, handle._fence, handle._past = token, fence, past
    return handle


_TOKEN, _FENCE = jax.tree_util.GetAttrKey("token"), jax.tree_util.GetAttrKey("fence")

jax.tree_util.register_pytree_with_keys(
    Handle,
    lambda handle: (((_TOKEN, handle._token), (_FENCE, handle._fence)), None),
    lambda _, parts: _made(*parts),
    lambda handle: ((handle._token, handle._fence), None),
)

_NO_ARRAY = (
    "entangle_jax: a Handle was passed where an array is wanted. Pass the function to the handle's `read` or `write`, "
    "which call it with the token; or, to leave the order to yourself, pass `handle.token`."
)


def _copies(token: T) -> T:
    """The token in memory of its own. In a program that costs nothing that donation would not cost anyway."""
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf, token)


def _expect_no_handles(token: Any) -> None:
    if isinstance(token, Handle):
        raise TypeError("entangle_jax.Handle: the token is a Handle already.")
    for leaf in jax.tree.leaves(token, is_leaf=lambda node: isinstance(node, Handle)):
        if isinstance(leaf, Handle):
            raise TypeError(
                "entangle_jax.Handle: the token contains a Handle, wanted arrays. To make one handle of several, for "
                "calls that touch all of their objects, use `Handle.join(a, b)`."
            )


def _arrays(token: Any) -> Any:
    leaves, treedef = jax.tree.flatten(token)
    if not leaves:
        raise TypeError(
            f"entangle_jax.Handle: the token is {token!r}, wanted at least one array: the one that names the object."
        )
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, jax.Array):
            try:
                # Not weakly typed, so that a number and what a native call returns for it are of one type.
                leaves[i] = jnp.asarray(leaf, jnp.result_type(leaf))
            except TypeError as error:
                where = path_of("token", token, i)
                raise TypeError(f"entangle_jax.Handle: {where} is a {type(leaf).__name__}, wanted an array.") from error
    return jax.tree.unflatten(treedef, leaves)


def _expect_callable(access: str, argument: str, value: Any, wanted: str) -> None:
    if not callable(value):
        raise TypeError(
            f"entangle_jax.Handle.{access}: `{argument}` is of type {type(value).__name__}, wanted {wanted}."
        )


def _expect_result(access: str, fn: Any, result: Any) -> None:
    if not any(isinstance(leaf, jax.Array) or is_token(leaf) or is_ref(leaf) for leaf in jax.tree.leaves(result)):
        raise TypeError(
            f"entangle_jax.Handle.{access}: {getattr(fn, '__name__', fn)} returned {result!r}, wanted at least one "
            "jax array, since nothing can wait for a call without one. Return something that it computes, such as a "
            "status."
        )


# For `jax.export`: the token and the fence are all that there is. A second import of this module, as by
# `importlib.reload`, finds the name taken, and the first class keeps it.
with contextlib.suppress(ValueError):
    jax.export.register_pytree_node_serialization(
        Handle,
        serialized_name="entangle_jax.Handle",
        serialize_auxdata=lambda _: b"",
        deserialize_auxdata=lambda _: None,
    )
