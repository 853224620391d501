"""What to write so that two calls do not race, in the terms that the program uses already.

A program that threads a `Handle` is told which handle to use; one that calls `entangle` itself, where the next call of
it goes; and one that threads nothing is told to leave the order to `ordered`.
"""

from __future__ import annotations

import functools
import linecache
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from entangle_jax import _marks, _stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from entangle_jax._audit_report import Call, Source
    from entangle_jax._calls import Named

_MARK = re.compile(rf"\b{_marks.PREFIX}:[^/()]*:[^/()]*:[^/()]*")
"""The name of a marked function in that of a call."""

_PRIMITIVE = re.compile(r"[A-Za-z_]\w*")


class Words:
    """How to say it for one program."""

    def __init__(
        self,
        module: str,
        calls: Sequence[Call],
        races: Sequence[tuple[Call, Call]],
        named: Callable[[], Sequence[Named]],
    ) -> None:
        """`calls` and `races`: those of the program as written if it is known, in its order.

        `named` gives the calls of the trace by the names that `ordered` knows.
        """
        name = module.removeprefix("jit_")
        self._function = name if name.isidentifier() and not name.startswith("_") else "fn"
        self._accesses = [call for call in calls if call.kind in {"read", "write"}]
        entangles = [_is_of_the_user(call) for call in calls if call.kind == "entangle"]
        self._entangles = any(entangles)
        self._is_ordered = bool(entangles) and not self._entangles
        self._races = races
        self._named = functools.cache(named)  # which lowers primitives

    def fix(self, first: Call, second: Call, loop: str | None) -> str:
        """The fix for `second`, in later iterations of `loop` if there is one, racing with `first`."""
        if access_of(first) or access_of(second):
            return _of_handles(first, second, loop)
        if self._entangles:
            return _of_entangle(first, second, loop)
        return (self._is_ordered and self._of_operations(first, second)) or self._ordered

    def _of_operations(self, first: Call, second: Call) -> str | None:
        """The fix where one operation makes several calls when it is lowered, which `ordered` does not see."""
        trace = self._named()
        operations = [_operation(call, trace) for call in (first, second)]
        for call, operation in zip((first, second), operations, strict=True):
            marks = [mark for _, mark in _marks_around(call) if mark.resource != _marks.OF_HANDLES]
            if operation is not None and not any(mark.opaque for mark in marks):
                which = f"`{marked_function(call)}`" if marks else "the function around it"
                return f"mark {which} with `opaque=True`: `{operation.name}` makes several calls when it is lowered"
        if operations[0] is not None and operations[0] is operations[1]:
            return (
                f"`{operations[0].name}` makes both calls when it is lowered, where `ordered` does not see them: tie "
                "the second to the first there, with `entangle`"
            )
        return None

    @functools.cached_property
    def _ordered(self) -> str:
        fn = self._function
        unmarked = [call for call in self._accesses if marked_function(call) is None]
        if not unmarked:
            names = list(dict.fromkeys(f"`{marked_function(call)}`" for call in self._accesses))
            are = "are" if len(names) > 1 else "is"
            return f"`{fn} = ordered({fn})` runs {' and '.join(names)}, which {are} marked, in the order of the text"
        trace, resources = self._named(), self._resources_of_unmarked()
        named = []
        for kind in ("read", "write"):
            of_kind = dict.fromkeys(name for call in unmarked if call.kind == kind for name in _names(call, trace))
            listed = f"[{', '.join(map(_quoted, of_kind))}]"
            if resources:
                listed = "{" + ", ".join(f"{_quoted(resource)}: {listed}" for resource in resources) + "}"
            named += [f"{kind}s={listed}"] if of_kind else []
        return f"`{fn} = ordered({fn}, {', '.join(named)})` runs these calls in the order of the text"

    def _resources_of_unmarked(self) -> list[str]:
        """The resources of marked calls that unmarked ones race with: what is named without one is another object."""
        found = []
        for pair in self._races:
            marks = [[mark for _, mark in _marks_around(call) if mark.resource != _marks.OF_HANDLES] for call in pair]
            if not all(marks):
                found += [mark.resource for those in marks for mark in those]
        return list(dict.fromkeys(found))


def access_of(call: Call) -> str | None:
    """The method of a `Handle` that makes the call: `"read"` or `"write"`; None if none does."""
    of_handles = [mark for _, mark in _marks_around(call) if mark.resource == _marks.OF_HANDLES]
    return None if not of_handles else "write" if of_handles[-1].writes else "read"


def marked_function(call: Call) -> str | None:
    """The name of the function that is marked with `reads` or `writes` and makes the call."""
    names = [name for name, mark in _marks_around(call) if mark.resource != _marks.OF_HANDLES]
    return unquote(names[-1].rpartition(":")[2]) if names else None


def _marks_around(call: Call) -> list[tuple[str, _marks.Mark]]:
    """The marks in the name of a call, the outermost first, without those of names that have no resource."""
    found = [(name, _marks.parse(name)) for name in _MARK.findall(call.op_name)]
    return [(name, mark) for name, mark in found if mark is not None and mark.resource != _marks.UNNAMED]


def _is_of_the_user(call: Call) -> bool:
    """Whether a call of `entangle` is in the program's text.

    Those that `ordered` and `Handle` add have the lines of what they order, and those of a library are none to mend.
    """
    if call.own_sources and _stacks.is_of_a_library(call.own_sources[0].file):
        return False
    lines = [linecache.getline(source.file, source.line) for source in call.sources]
    return not any(lines) or any("entangle" in line for line in lines)


def _names(call: Call, trace: Sequence[Named]) -> list[str]:
    """What `ordered` knows the call by: its native target, or the primitive that lowers to it.

    The trace says which; where it is not known, JAX's name for the call has to do. A solver that is traced when it is
    lowered is known by the primitive alone.
    """
    if found := _in_trace(call, trace):
        return list(dict.fromkeys(one.name for one in found))
    last = call.op_name.rpartition("/")[2]
    is_primitive = _PRIMITIVE.fullmatch(last) and last not in {"ffi_call", "custom_call"}
    return [last if is_primitive else call.target]


def _in_trace(call: Call, trace: Sequence[Named]) -> list[Named]:
    """What of the trace the call may be: what is at its line, if anything is."""
    may_be = [one for one in trace if one.may_become(call.target)]
    line = (call.source.file, call.source.line)
    return [one for one in may_be if one.line == line] or may_be


def _operation(call: Call, trace: Sequence[Named]) -> Named | None:
    """The operation that makes this call and others when it is lowered; None if the call is an operation of its own."""
    found = _in_trace(call, trace)
    return found[0] if found and all(len(one.targets) > 1 for one in found) else None


def _of_handles(first: Call, second: Call, loop: str | None) -> str:
    a, b = _Place.of(first, second)
    if loop is not None:
        return (
            f"carry the handle through {loop}: return from its body the handle that {a.access} returned, and begin "
            f"the body with the one that it is given"
        )
    if not access_of(second):
        return f"make the call at {b.line} by `{second.kind}` of the handle that {a.access} returned"
    if not access_of(first):
        return (
            f"make the call at {a.line} by `{first.kind}` of the handle, and call {b.access} on the handle that this "
            "returns"
        )
    match a.inside:
        case "loop":
            return (
                f"return from the body of the loop the handle that {a.access} returned, and call {b.access} on the "
                "handle that comes out of the loop"
            )
        case "branch":
            return (
                f"return from the branch the handle that {a.access} returned, and call {b.access} on the handle that "
                "comes out of the conditional"
            )
    into = {"loop": ", passed into the loop by its carry", "branch": ", passed into the branch"}.get(b.inside, "")
    return f"call {b.access} on the handle that {a.access} returned{into}"


def _of_entangle(first: Call, second: Call, loop: str | None) -> str:
    a, b = _Place.of(first, second)
    tie = f"`token = entangle(token, result)`, with the result of {a.call}"
    if loop is not None:
        return (
            f"carry the token through {loop}: make the calls of its body with the token that it is given, end it with "
            f"{tie}, and return that token from it"
        )
    match a.inside:
        case "loop":
            return (
                f"end the body of the loop around {a.call} with {tie}, carry that token, and call {b.call} with the "
                "token that comes out of the loop"
            )
        case "branch":
            return (
                f"end the branch around {a.call} with {tie}, return that token from it, and call {b.call} with the "
                "token that comes out of the conditional"
            )
    return f"after {a.line}: {tie}; call {b.call} with that token"


class _Place:
    """A call as it looks from the innermost function around it and another call."""

    def __init__(self, call: Call, frame: Source | None, inner: Source | None, inside: str) -> None:
        frame = frame or call.source
        what = inner.function if inner is not None and inner.function else call.target
        self.line = str(frame)
        self.call = f"`{what.rpartition('.')[2] or what}` at {frame}"
        self.access = f"the `{access_of(call)}` at {frame}"
        self.inside = inside
        """`"loop"` or `"branch"` if the other call is not in that."""

    @classmethod
    def of(cls, a: Call, b: Call) -> tuple[_Place, _Place]:
        """Both calls, each as seen from where their call stacks part."""
        stacks = aligned(a, b)
        same = _common(*stacks)
        place = _common(a.place, b.place)
        of_a = cls(a, *_frames(stacks[0], same), _kind(a.place[place:]))
        of_b = cls(b, *_frames(stacks[1], same), _kind(b.place[place:]))
        return of_a, of_b


def aligned(a: Call, b: Call) -> tuple[list[Source], list[Source]]:
    """The call stacks of both, the outermost line first, from the outermost function on that both know.

    Some versions of jax know less of what led to a call than to another one.
    """
    stacks = [list(reversed(call.own_sources)) for call in (a, b)]
    for one, other in (stacks, stacks[::-1]):
        if one:
            start = (one[0].file, one[0].function)
            at = next((i for i, source in enumerate(other) if (source.file, source.function) == start), 0)
            del other[:at]
    return stacks[0], stacks[1]


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many elements agree from the start on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _frames(stack: Sequence[Source], common: int) -> tuple[Source | None, Source | None]:
    """The line of the common function that makes the call, and the line inside of the function that it calls.

    A function that is defined in the common one, such as the body of a loop, counts as a part of it.
    """
    if not stack:
        return None, None
    place = min(common, len(stack) - 1)
    within = f"{stack[place].function}.<locals>."
    while place + 1 < len(stack) and stack[place + 1].function.startswith(within):
        place += 1
    return stack[place], stack[place + 1] if place + 1 < len(stack) else None


def _kind(place: Sequence[str]) -> str:
    for part in place:
        if part.startswith(("body of ", "condition of ")):
            return "loop"
        if part.startswith("branch "):
            return "branch"
    return ""


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
