"""What is known of the accesses that a handle is ordered after, and a warning where it misses one.

What is known of a handle's past is no part of the pytree. It is lost, not wrong, wherever JAX makes a new handle out of
the leaves: at the boundary of `jit`, of a loop's body, of a branch. And it is never compared across two traces, so a
handle that a function closes over may be used each time that the function is traced.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import jax

from entangle_jax import _private
from entangle_jax._warnings import user_line, warn_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class _Object:
    """The accesses of one object within one trace that a later access may miss."""

    __slots__ = ("forgotten", "reads", "write")

    def __init__(self) -> None:
        self.write: _Access | None = None
        """The last write."""
        self.reads: dict[int, str] = {}
        """By identity, each read since then that no later read comes after: where it was made."""
        self.forgotten: str | None = None
        """One of those whose handles are all gone, so that no access can be ordered after it any more."""


class _Access:
    """One access. The handles that are ordered after it hold it."""

    __slots__ = ("place", "read_of")

    def __init__(self, what: str) -> None:
        self.place = f"the {what} at {user_line()}"
        self.read_of: list[_Object] = []

    def __del__(self) -> None:
        for of in self.read_of:
            if (place := of.reads.pop(id(self), None)) is not None:
                of.forgotten = place


class _Seen:
    """The accesses of one object that a handle is ordered after."""

    __slots__ = ("of", "origin", "reads", "write")

    def __init__(self, of: _Object, origin: Any, write: _Access | None = None, reads: Iterable[_Access] = ()) -> None:
        self.of = of
        self.origin = origin
        self.write = write
        self.reads = frozenset(reads)

    def missed(self, *, reads: bool) -> str | None:
        """The place of an access that it is not ordered after: a write, or, if they matter, a read."""
        if self.of.write is not self.write:
            assert self.of.write is not None
            return self.of.write.place
        if not reads:
            return None
        seen = {id(each) for each in self.reads}
        return next((place for key, place in self.of.reads.items() if key not in seen), self.of.forgotten)

    def then(self, access: _Access, *, writes: bool) -> _Seen:
        """What the handle that this access returns has seen."""
        of = self.of
        if writes:
            of.write, of.reads, of.forgotten = access, {}, None
            return _Seen(of, self.origin, access)
        for each in self.reads:
            of.reads.pop(id(each), None)
        of.reads[id(access)] = access.place
        access.read_of.append(of)
        return _Seen(of, self.origin, self.write, [access])

    def merged(self, others: list[_Seen]) -> _Seen:
        """What a handle has seen of this object that is ordered after all that the others are."""
        same = [each for each in others if each.of is self.of]
        write = self.of.write if any(each.write is self.of.write for each in same) else self.write
        return _Seen(self.of, self.origin, write, frozenset().union(*(each.reads for each in same)))


class Past:
    """The accesses that a handle is ordered after, as far as they are known in one trace."""

    __slots__ = ("seen", "trace")

    def __init__(self, trace: Any, seen: Any) -> None:
        self.trace = trace
        self.seen = seen
        """A `_Seen`, or, for a handle that was joined from several, a tuple of what they have here."""

    @classmethod
    def unknown(cls, trace: Any, token: Any, before: Past | None) -> Past:
        """The past of a handle of this token that was just made, or that comes from outside of this trace.

        Args:
          trace: the trace that is going on.
          token: where its leaves come from is where the handle comes from,
          before: unless this was its past outside of this trace.
        """
        origins = [seen.origin for seen in before.objects()] if before else []
        return cls(trace, _Seen(_Object(), origins[0] if len(origins) == 1 else _origin(token)))

    @classmethod
    def joined(cls, trace: Any, pasts: list[Past]) -> Past:
        """The past of a handle that is ordered after all that these are."""
        seen = tuple(past.seen for past in pasts)
        objects = jax.tree.leaves(seen)
        return cls(trace, _map(lambda each: each.merged(objects), seen))

    def split(self, count: int) -> list[Past | None]:
        """The pasts of the handles that it was joined from."""
        if not isinstance(self.seen, tuple):
            return [None] * count
        return [Past(self.trace, each) for each in self.seen]

    def objects(self) -> list[_Seen]:
        """What is seen of each object."""
        return jax.tree.leaves(self.seen) if isinstance(self.seen, tuple) else [self.seen]

    def check(self, what: str, *, after_reads: bool) -> None:
        """Warn if the handle is not ordered after a write, or, where it is to be, after a read."""
        for seen in self.objects():
            if missed := seen.missed(reads=after_reads):
                warn_user(
                    f"this {what} uses an old handle, so it is not ordered after {missed}. "
                    "Go on with the handle that an access returns, not with the one that it was called on"
                )

    def check_loop(self, what: str) -> None:
        """Warn if the handle comes from outside of a loop that we are in."""
        loops = dict.fromkeys(_loop_since(seen.origin) for seen in self.objects())
        for loop in filter(None, loops):
            warn_user(
                f"this {what} uses a handle from outside of the loop of {loop}, so neither the next iteration nor what "
                "follows the loop is ordered after it. Carry the handle: pass it in the initial value of the loop, and "
                "return from the body the handle that the access returns"
            )

    def then(self, what: str, *, writes: bool) -> Past:
        """The past of the handle that an access returns."""
        access = _Access(what)
        return Past(self.trace, _map(lambda seen: seen.then(access, writes=writes), self.seen))


def _map(function: Callable[[_Seen], _Seen], seen: Any) -> Any:
    # `jax.tree.map` takes ten times as long where there is one object, as there mostly is.
    return tuple(_map(function, each) for each in seen) if isinstance(seen, tuple) else function(seen)


def current_trace() -> Any:
    """The trace that is going on. To compare: it is not kept alive."""
    return weakref.ref(_private.trace_ctx.trace)


def _origin(token: Any) -> Any:
    """The innermost trace that made a leaf of the token; None if none did."""
    traces, depth = _private.traces(), -1
    for leaf in jax.tree.leaves(token):
        if isinstance(leaf, jax.core.Tracer):
            trace = _private.trace_of(leaf)
            if trace not in traces:
                return current_trace()  # nothing can be said about it
            depth = max(depth, traces.index(trace))
    return weakref.ref(traces[depth]) if depth >= 0 else None


def _loop_since(origin: Any) -> str | None:
    """The innermost loop that we are in and this trace is not; None if there is none."""
    traces = _private.traces()
    if origin is not None:
        if origin() not in traces:
            return None
        traces = traces[traces.index(origin()) + 1 :]
    return next((loop for trace in reversed(traces) if (loop := _private.loop_traced(trace))), None)
