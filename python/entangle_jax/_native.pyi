"""The native module: handlers for XLA, the slots of `entangle_jax.testing`, and the audit. See python/src."""

from typing import Any

__version__: str

FFI_API_VERSION: tuple[int, int]
"""The version of the XLA FFI API that the handlers report."""

def targets() -> dict[str, dict[str, tuple[Any, Any | None]]]:
    """`{platform: {target: (plain, in_graph)}}`: every handler in this build, by platform name as jax registers it.

    Both are capsules; `in_graph` is the handler that may be recorded into CUDA or HIP graphs, `None` where there are
    none.
    """

def slots_reset(value: float) -> None:
    """Give every slot this value and empty the log."""

def slots_log() -> list[tuple[str, int, float, str | None]]:
    """`(op, slot, value, label)` of every access since the last reset, in the order in which they ran."""

class Access:
    """What some native calls do, and to which object. The rules are those of `entangle_audit::Access`."""

    def __new__(
        cls,
        *,
        writes: bool,
        target: str | None = None,
        op_name: str | None = None,
        name: str | None = None,
        resource: str | None = None,
        operands: list[int] | None = None,
        attribute: str | None = None,
        whole: bool = False,
    ) -> Access:
        """Of the calls for which all that is given of `target`, `op_name` and `name` holds.

        Args:
          writes: whether they change the object.
          target: the name that the native code is registered under.
          op_name: a part of JAX's name for the call.
          name: the name of the instruction.
          resource: the name of what they touch.
          operands: what these hold is the object, among those of the resource.
          attribute: the object is what this attribute names, among those of the resource.
          whole: they touch all of the resource, or any object if there is none. So do calls of a resource of which
            nothing else is said; without a resource those touch what operand 0 holds.

        Raises:
          ValueError: no call is named, or the object in two ways.
        """

    @staticmethod
    def parse(text: str, writes: bool) -> Access:
        """Read `[RESOURCE=]TARGET[:OBJECT]`. Raises `ValueError` if it is something else."""

    @property
    def writes(self) -> bool: ...
    @property
    def target(self) -> str | None: ...
    @property
    def resource(self) -> str | None: ...

class Source:
    """A line of source code."""

    file: str
    line: int
    function: str

class Call:
    """A native call."""

    name: str
    target: str
    kind: str
    """`"read"`, `"write"` or `"entangle"`."""
    place: tuple[str, ...]
    sources: tuple[Source, ...]
    op_name: str
    operand_types: list[str]
    """Such as `f32[3,4]`; empty for an operand that is made where the call is, or is no array of a usual type."""
    reads: list[int]
    """The objects that it reads, by their positions in `Audit.objects`."""
    writes: list[int]

class Object:
    """Something that native calls touch."""

    name: str
    may_be: list[int]
    """The others that may be the same one."""

class Race:
    """Two calls, by their positions, without a data path."""

    first: int
    second: int
    handle: str
    later_iteration_of: str | None
    loop_sources: list[Source]
    """Where that loop comes from, the innermost line first."""
    unproven: str | None
    """`"control edge"`, `"schedule"` or nothing."""

class Races:
    """The races, and how many more there are than are listed."""

    list: list[Race]
    more: int

class PayloadLeaf:
    """A leaf of a payload, and the copy of it if there is one."""

    bytes: int
    has_elements: bool
    copied_by: str | None
    why: str | None
    whom: str | None

class Cost:
    """What one call of `entangle` cost."""

    call: int
    payload: list[PayloadLeaf]
    witnesses: int
    dropped_witnesses: list[int]
    transposes: list[str]
    collectives: list[str]

class Graph:
    """Arrows between calls, without those that others imply, and how many calls were left out."""

    edges: list[tuple[int, int]]
    more: int

class Lost:
    """A call that the compiled program lacks, and the one that it was merged with, if with one."""

    call: int
    merged_with: int | None
    never_runs: bool
    """It has a side effect, and was dropped with the branch or loop around it."""

class Moved:
    """A call that the compiled program makes outside of a loop that it was in."""

    call: int
    """Its position among the calls of the program as written."""
    to: int
    """Its position among the calls of the compiled program."""
    out_of: list[Source]
    """Where the loop comes from, the innermost line first."""

class Audit:
    """One program, read and followed. `entangle_jax._audit` gives words to these answers."""

    def __new__(
        cls,
        program: bytes,
        accesses: list[Access],
        *,
        same: list[list[int]] = ...,
        pair_by_name: bool = True,
    ) -> Audit:
        """Read a serialized `HloModuleProto` or `HloProto`.

        Args:
          program: the bytes.
          accesses: what its calls do. All others are not looked at.
          same: groups of arguments, by their numbers, that are one object.
          pair_by_name: arguments whose names differ in `.token` and `.fence` alone are one object too.

        Raises:
          ValueError: the bytes are something else, or a call does not have the operand or attribute asked for.
        """

    @property
    def module(self) -> str: ...
    @property
    def id(self) -> int:
        """XLA's number for the program, the same before and after compilation; 0 if it is not known."""

    @property
    def targets(self) -> list[str]:
        """The targets of all native calls, looked at or not."""

    @property
    def arguments(self) -> list[str]:
        """JAX's names of the arguments, by their numbers; empty where there is none."""

    @property
    def instructions(self) -> int: ...
    @property
    def is_scheduled(self) -> bool: ...
    def calls(self) -> list[Call]: ...
    def order_of_the_trace(self) -> list[int]:
        """For each call, when the program makes it. Only of a program that is not optimized."""

    def objects(self) -> list[Object]: ...
    def races(self) -> Races: ...
    def all_ordered(self, firsts: list[int], seconds: list[int], later_iteration: bool) -> bool | None:
        """Whether each of `seconds` comes after each of `firsts` by data; None if there is no such pair."""

    def before_each(self, calls: list[int]) -> list[list[int]]:
        """Of each of these calls, in ascending order, the positions in the list of those before it by data."""

    def costs(self) -> list[Cost]: ...
    def graph(self) -> Graph: ...
    def lost(self, compiled: Audit) -> list[Lost]:
        """Calls of this program that `compiled` lacks."""

    def counterparts(self, compiled: Audit) -> list[int | None]:
        """For each call of `compiled`, the call of this program, as written, that it was."""

    def moved(self, compiled: Audit) -> list[Moved]:
        """Calls of this program that `compiled` makes outside of a loop that they were in."""

def draw(dot: str) -> str:
    """Draw a graph in the DOT language as SVG. Raises `ValueError` if it cannot."""
