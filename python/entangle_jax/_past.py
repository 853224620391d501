"""Whether a handle is used after another access has replaced it.

What is known of a handle's past is no part of the pytree. It is lost, not wrong, wherever JAX makes a new handle out of
the leaves: at the boundary of `jit`, of a loop's body, of a branch. And it is never compared across two traces, so a
handle that a function closes over may be used each time that the function is traced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from entangle_jax._leaves import user_line, warn_user


@dataclass(eq=False, slots=True)
class _Access:
    """One access of an object."""

    line: str
    """Where it was made."""
    after: _Access | None
    """For a read, the last write that it is ordered after; for a write nothing, or the past would never end."""
    writes: bool

    @property
    def write(self) -> _Access | None:
        """The last write that what follows is ordered after."""
        return self if self.writes else self.after


@dataclass(eq=False, slots=True)
class _Record:
    """The accesses of one object within one trace, as far as a later access may miss one."""

    write: _Access | None = None
    """The last write."""
    last: _Access | None = None
    """The last access in the chain that began with the last write."""
    stray: _Access | None = None
    """A read since then that is not in this chain, if there is one."""


@dataclass(eq=False, slots=True)
class Past:
    """The accesses that a handle is ordered after."""

    trace: Any
    record: _Record
    last: _Access | None = None

    @classmethod
    def unknown(cls, trace: Any) -> Past:
        """The past of a handle that has just been made, or that comes from outside of this trace."""
        return cls(trace, _Record())

    def check(self, what: str, *, after_reads: bool) -> None:
        """Warn if the handle is not ordered after a write, or, where it is to be, after a read."""
        record = self.record
        if record.write is not (self.last.write if self.last else None):
            missed = record.write
            kind = "write"
        elif after_reads and (record.last is not self.last or record.stray):
            missed = record.stray if record.last is self.last else record.last
            kind = "read"
        else:
            return
        assert missed is not None
        warn_user(
            f"this {what} uses an old handle, so it is not ordered after the {kind} at {missed.line}. "
            "Go on with the handle that an access returns, not with the one that it was called on"
        )

    def then(self, *, writes: bool) -> Past:
        """The past of the handle that an access returns."""
        record = self.record
        after = None if writes or self.last is None else self.last.write
        access = _Access(user_line(), after, writes)
        if writes:
            record.write, record.last, record.stray = access, access, None
        elif record.last is self.last:
            record.last = access
        else:
            record.stray = access
        return Past(self.trace, record, access)


@dataclass(eq=False, slots=True)
class Pasts:
    """The past of a handle that was joined from several."""

    trace: Any
    parts: tuple[Past | Pasts, ...]

    def check(self, what: str, *, after_reads: bool) -> None:
        """As for each of the parts."""
        for part in self.parts:
            part.check(what, after_reads=after_reads)

    def then(self, *, writes: bool) -> Pasts:
        """As for each of the parts."""
        return Pasts(self.trace, tuple(part.then(writes=writes) for part in self.parts))
