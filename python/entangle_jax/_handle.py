"""A handle of a native object whose readers and writers are in order by construction.

A handle holds the token of the object twice, and the second copy is the fence. Reads are given the token, writes are
given the fence; every access makes what comes after it wait, with one `entangle`: ::

    read     result = fn(token)      fence        = entangle(fence, result)
    write    result = fn(fence)      token, fence = entangle((token, fence), result)

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
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

import jax
import jax.numpy as jnp

from entangle_jax import _private
from entangle_jax._entangle import entangle
from entangle_jax._leaves import is_token, path_of
from entangle_jax._past import Past, Pasts

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
R = TypeVar("R")
P = ParamSpec("P")

_private.register_exclusion(__file__)

_NEW: Any = object()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Handle(Generic[T]):
    """A native object that some calls read and some change, such that XLA cannot run them in a wrong order.

    Reads stay free among themselves; a write comes after every earlier read and write, and whatever follows comes
    after the write. Each access returns its result and the handle to use from there on: ::

        handle = Handle(token)                                # token: the array that names the object
        x, handle = handle.read(solve, b)                     # x = solve(token, b)
        y, handle = handle.read(solve, c)                     # free to run before or beside the other solve
        _, handle = handle.write(refactor, values)            # after both
        z, handle = handle.read(solve, b)                     # with the new values

    A handle is a pytree whose structure, shapes and dtypes stay as they are: it may be the carry of a loop, go through
    `cond`, `jit`, `vmap`, `shard_map`, `checkpoint` and `grad`, and be donated. An access costs one `entangle` of the
    token. Outside of `jit` a handle works just as well.

    An access through an old handle, one that another access has already replaced, is not ordered after that
    access. Where this can be seen, which is within one function, an `OrderingWarning` names both places. To use an
    old handle on purpose make a new one of it, `Handle(old.token, old.fence)`.

    Args:
      token: a pytree with at least one array, of any shape and dtype. Keep it small: the handle holds it twice.
      fence: not for you to give, except for a copy of a handle or to say something of each of its parts, as in
        `vmap(f, in_axes=Handle(0, 0))`.

    Raises:
      TypeError: a leaf of the token is not an array, or there is none.
    """

    token: T
    """The token, ordered after every write so far: for calls that read and that `read` does not suit."""

    fence: T = _NEW
    """The token again, in memory of its own, ordered after every access so far. See `wait`."""

    _past: ClassVar[Past | Pasts | None] = None  # of an instance, but no field
    """The accesses that this handle is ordered after, as far as they are known: no part of the pytree."""

    def __post_init__(self) -> None:
        if self.fence is _NEW:
            object.__setattr__(self, "token", _arrays(self.token))
            object.__setattr__(self, "fence", jax.tree.map(jnp.copy, self.token))

    def read(self, fn: Callable[Concatenate[T, P], R], /, *args: P.args, **kwargs: P.kwargs) -> tuple[R, Handle[T]]:
        """Call `fn(token, *args, **kwargs)`, which uses the object and leaves it as it is.

        The call is ordered after every earlier write, and every later write after the call. `fn` may run again, not
        at all, or merged with an equal read, as any computation under XLA.

        Returns:
          What `fn` returned, and the handle to use from here on.

        Raises:
          TypeError: there is no array in what `fn` returned, so a later write could not wait for it.

        Warns:
          OrderingWarning: this handle is older than a write of the same object.
        """
        _expect_callable("read", "fn", fn, "the function to call with the token")
        past = self._past_of("read", after_reads=False)
        result = fn(self.token, *args, **kwargs)
        _expect_result("read", fn, result)
        fence = entangle(self.fence, result)
        return result, _with_past(Handle(self.token, fence), past.then(writes=False))

    def write(
        self, fn: Callable[Concatenate[T, ...], R], /, *args: Any, token: Callable[[R], T] | None = None, **kwargs: Any
    ) -> tuple[R, Handle[T]]:
        """Call `fn(token, *args, **kwargs)`, which changes the object.

        The call is ordered after every earlier access, and every later access after the call.

        Args:
          fn: what to call. Mark the native call in it as a side effect, or XLA drops it if nobody uses what follows.
          *args: passed to `fn`.
          token: takes a new token, of the structure, shapes and dtypes of the old one, out of what `fn` returned, for
            objects that a write replaces. Without it the token stays.
          **kwargs: passed to `fn`.

        Returns:
          What `fn` returned, and the handle to use from here on.

        Raises:
          TypeError: there is no array in what `fn` returned, so later accesses could not wait for it; or the new
            token is not like the old one.

        Warns:
          OrderingWarning: this handle is older than another access of the same object.
        """
        _expect_callable("write", "fn", fn, "the function to call with the token")
        if token is not None:
            _expect_callable("write", "token", token, "a function that takes the new token out of the result")
        past = self._past_of("write", after_reads=True)
        result = fn(self.fence, *args, **kwargs)
        _expect_result("write", fn, result)
        both = (self.token, self.fence) if token is None else self._copies(token(result))
        both = entangle(both, result)
        return result, _with_past(Handle(*both), past.then(writes=True))

    def wait(self) -> T:
        """Return the token, ordered after every access so far: to free the object, or to wait for all of it.

        Warns:
          OrderingWarning: this handle is older than another access of the same object.
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
        """Make one handle of several, for calls that touch all of their objects; `split` takes it apart again.

        `Handle.join(a, b, c)` and `a.join(b, c)` are the same.

        The token is the tuple of their tokens. Each of them is ordered after what happened to every one of the objects:
        a call that is given one token and reaches the other objects through it is in order too.

        Raises:
          TypeError: one of them is no handle.
          ValueError: a handle is given twice.
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
        joined = Handle(entangle(tokens, tokens), entangle(fences, fences))
        trace = _private.get_opaque_trace_state()
        return _with_past(joined, Pasts(trace, tuple(handle._past_in(trace) for handle in handles)))

    def split(self) -> tuple[Handle[Any], ...]:
        """The handles of the objects of a handle that was made by `join`, in their order.

        Raises:
          TypeError: the token is not a tuple.
        """
        if not isinstance(self.token, tuple):
            raise TypeError(
                f"entangle_jax.Handle.split: the token is of type {type(self.token).__name__}, wanted a tuple: the "
                "handle is not one that `Handle.join` made."
            )
        fences = cast("tuple[Any, ...]", self.fence)
        handles = tuple(Handle(token, fence) for token, fence in zip(self.token, fences, strict=True))
        if isinstance(self._past, Pasts):
            handles = tuple(_with_past(handle, past) for handle, past in zip(handles, self._past.parts, strict=True))
        return handles

    def __getstate__(self) -> dict[str, Any]:
        """To pickle and copy: without its past, which belongs to this process."""
        return {"token": self.token, "fence": self.fence}

    def _copies(self, new: Any) -> tuple[T, T]:
        """A new token and a copy of it, for the fence."""
        new = _arrays(new)
        wanted, got = (jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree) for tree in (self.token, new))
        if wanted != got:
            raise TypeError(
                f"entangle_jax.Handle.write: the new token is {got}, wanted one like the old one, {wanted}: a handle "
                "keeps its structure, shapes and dtypes, so that a loop can carry it. Make a new `Handle` instead."
            )
        return new, jax.tree.map(jnp.copy, new)

    def _past_in(self, trace: Any) -> Past | Pasts:
        past = self._past
        if past is None or past.trace != trace:
            past = Past.unknown(trace)
            _with_past(self, past)
        return past

    def _past_of(self, what: str, *, after_reads: bool) -> Past | Pasts:
        """The accesses before this one, after a warning if it is not ordered after them."""
        past = self._past_in(_private.get_opaque_trace_state())
        past.check(what, after_reads=after_reads)
        return past


def _with_past(handle: Handle[T], past: Past | Pasts) -> Handle[T]:
    object.__setattr__(handle, "_past", past)
    return handle


def _arrays(token: Any) -> Any:
    if isinstance(token, Handle):
        raise TypeError("entangle_jax.Handle: the token is a Handle already.")
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
    if not any(isinstance(leaf, jax.Array) or is_token(leaf) for leaf in jax.tree.leaves(result)):
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
        deserialize_auxdata=lambda _: (),
    )
