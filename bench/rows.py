"""What is measured: the rows of the table and the lines of the plots."""

from dataclasses import dataclass, field
from typing import Any

# How a row and a line of a plot name what stands between payload and witnesses. "published" is `entangle` of the
# package of that name on PyPI and runs in its own process.
METHODS = ("entangle", "published", "floor", "barrier", "nothing")


@dataclass(frozen=True)
class Row:
    """A ratio of two measurements that are taken in turns."""

    measure: str
    program: str
    over: str
    """What `entangle` is compared with."""
    limit: float | None
    """What the ratio must not exceed; None for one that is there to be compared with."""
    sizes: dict[str, int] = field(default_factory=dict)
    over_sizes: dict[str, int] | None = None
    """Sizes of the other side, if they are not the same."""
    sides: tuple[str, str] = ("large", "small")
    """What the two sizes are called."""
    seconds: float = 0.002
    """For one sample. Short ones are disturbed all or not at all, and the median forgets those that were."""
    rounds: int = 100
    """Pairs of samples in each restart of the processes."""
    restarts: int = 5
    """In how many of the restarts it is measured, at most."""
    short: bool = True
    """Whether the short form has it."""
    devices: int = 1
    alone: bool = False
    """Whether its processes run nothing else, since what it imports changes jax."""
    unit: str = "s"
    also: tuple[str, ...] = ()
    """Other methods to show beside the two."""
    exact: bool = False
    """It does not depend on the machine."""
    whole: tuple[str, float] | None = None
    """A name and a limit in seconds for what `entangle` takes itself: a row of its own."""
    why: str = ""
    """Why it falls short, where it does."""
    ordered: bool = False
    """Whether it is of `ordered` and marks: docs/ordered.md has these too."""


GROWTH = "one of 10,000 calls against one of 1,000"
CHECKS_WHY = (
    "before the handler returns, it checks that XLA gave each result the memory of its operand. Without these "
    "instructions (see below), a program in which XLA did not would return memory that nothing has written."
)
MARK_WHY = (
    "a marked function is traced and lowered as a jitted function of its own at each call, since a closure may have "
    "changed. JAX's own functions for that, with nothing added, are above the limit for a short function "
    "(docs/ordered.md)."
)

COMPILE_WHY = (
    "XLA:CPU compares each pair of operations, and removes the edges that others imply (`xla::ExecutionGraph`, which "
    "takes most of the time in a profile). So its time for one operation grows with their number, and most of all in "
    "one long chain. The floor, which contains no part of this project, takes as long. XLA compiles a loop once, "
    "however often it runs."
)

AUDIT_WHY = (
    "each instruction takes the same work, but a large program no longer fits into the processor's caches, so reading"
    " it (`Module::parse`) takes longer for each instruction."
)

ROWS = [
    Row("1 leaf, 1 witness, in a jitted loop", "loop", "floor", 1.05, also=("barrier",), why=CHECKS_WHY),
    Row("1 leaf, 1 witness, in a jitted loop", "loop", "published", 1.00),
    Row("1 leaf, 1 witness, a chain of 1,000 calls", "chain", "floor", 1.05, seconds=0.01, also=("barrier",)),
    Row("1 leaf, 1 witness, a chain of 1,000 calls", "chain", "published", 1.00, seconds=0.01),
    Row(
        "10 leaves, 10 witnesses, in a jitted loop",
        "loop",
        "published",
        0.45,
        {"leaves": 10, "witnesses": 10, "calls": 2_000},
    ),
    Row(
        "100 leaves, 100 witnesses, in a jitted loop",
        "loop",
        "floor",
        1.10,
        {"leaves": 100, "witnesses": 100, "calls": 200},
    ),
    Row("outside of `jit`, on scalars", "eager", "a + b", 1.3),
    Row("outside of `jit`, on scalars", "eager", "published", 0.25, rounds=30),
    Row("`vmap` over 1,000, in a jitted loop", "batched", "published", 0.05, rounds=30),
    Row("a native read through a `Handle`, in a jitted loop", "handle", "nothing", 2),
    Row("a native write through a `Handle`, in a jitted loop", "handle", "nothing", 2, {"writes": True}),
    Row(
        "64 MB payload, donated, split over 4 devices",
        "donated",
        "nothing",
        1.02,
        {"devices": 4},
        devices=4,
        seconds=0,
        rounds=60,
        also=("published",),
    ),
    Row("64 MB payload, donated, in one `jit`", "donated", "nothing", 1.02, seconds=0, rounds=60, also=("published",)),
    Row("trace and lower, 1,000 calls", "trace_and_lower", "barrier", 1.5, rounds=4, also=("published", "floor")),
    *(
        Row(
            f"trace and lower, 1,000 accesses, {what}",
            "trace_and_lower_in_order",
            "entangle",
            2.0,
            {"by_hand": 0, "named": named},
            {"by_hand": 1, "named": named},
            sides=("ordered", "by hand"),
            rounds=4,
            why="" if named else MARK_WHY,
            ordered=True,
        )
        for what, named in (("named", 1), ("marked", 0))
    ),
    *(
        Row(
            f"a native read, {what}",
            "mark",
            "entangle",
            limit,
            {"how": "marked", "traced": traced},
            {"how": "plain", "traced": traced},
            sides=("marked", "unmarked"),
            rounds=8,
            why=MARK_WHY if traced else "",
            ordered=True,
        )
        for what, traced, limit in (("outside of `jit`", 0, 1.05), ("traced and lowered", 1, 1.5))
    ),
    *(
        Row(
            f"a native read{with_it}, traced and lowered",
            "mark",
            "entangle",
            None,
            {"how": how, "traced": 1, "operations": operations},
            {"how": "plain", "traced": 1, "operations": operations},
            sides=(name, "unmarked"),
            rounds=8,
            short=False,
            ordered=True,
        )
        for how, name, with_it, operations in (
            ("traced", "traced anew, by JAX's functions alone", "", 0),
            ("new jit", "a new `jax.jit(read, inline=False)`", "", 0),
            ("jit", "jitted once", "", 0),
            ("marked jit", "jitted once, and marked", "", 0),
            ("marked", "marked", " and thirty operations of `jax.numpy`", 30),
        )
    ),
    Row(
        "a second call outside of `jit`",
        "second_call",
        "entangle",
        2.0,
        {"ordered": 1},
        {"ordered": 0},
        sides=("ordered", "`jax.jit`"),
        rounds=20,
        why="Python sorts the arguments into arrays and others before JAX looks up the compiled function.",
        ordered=True,
    ),
    Row(
        "the example with klujax, a run of 40 solves",
        "klu",
        "entangle",
        1.05,
        {"by_hand": 0},
        {"by_hand": 1},
        sides=("ordered", "by hand"),
        seconds=0,
        rounds=40,
        alone=True,
        ordered=True,
    ),
    Row("compile, 1,000 calls", "compilation", "published", 1.1, rounds=4, also=("barrier", "floor")),
    Row(
        f"trace and lower, {GROWTH}", "trace_and_lower", "entangle", 1.2, {"calls": 10_000}, {"calls": 1_000}, rounds=1
    ),
    Row(
        f"compile, in chains of 100, {GROWTH}",
        "compilation",
        "entangle",
        1.2,
        {"calls": 10_000, "chains": 100},
        {"calls": 1_000, "chains": 10},
        rounds=1,
        restarts=3,
        short=False,
        why=COMPILE_WHY,
    ),
    Row(
        "compile, 10,000 calls in chains of 100",
        "compilation",
        "floor",
        1.1,
        {"calls": 10_000, "chains": 100},
        rounds=1,
        restarts=3,
        short=False,
    ),
    Row(
        "bytes held by `jax.vjp` of 100 steps, 1 MB witness each",
        "residual_bytes",
        "nothing",
        1.01,
        rounds=1,
        unit="B",
        also=("published",),
        exact=True,
    ),
    Row(
        "64 MB payload outside of `jit`, copied as any argument is",
        "eager_large",
        "x.copy()",
        1.1,
        seconds=0,
        rounds=40,
    ),
    Row(
        "audit, 100,000 instructions against 10,000, 1 native call in 100",
        "auditing",
        "entangle",
        12,
        {"instructions": 100_000},
        {"instructions": 10_000},
        seconds=0.1,
        rounds=10,
        restarts=2,
        short=False,
        whole=("audit of 100,000 instructions, 1,000 of them native calls", 1),
        why=AUDIT_WHY,
    ),
    Row(
        "the same, 1 native call in 7",
        "auditing",
        "entangle",
        12,
        {"instructions": 100_000, "apart": 20},
        {"instructions": 10_000, "apart": 20},
        seconds=0.1,
        rounds=5,
        restarts=1,
        short=False,
        whole=("audit of 100,000 instructions, 15,000 of them native calls", 1),
        why=AUDIT_WHY,
    ),
]


@dataclass(frozen=True)
class Plot:
    """The cost against one size."""

    name: str
    title: str
    label: str
    program: str
    size: str
    values: tuple[int, ...]
    methods: tuple[str, ...] = METHODS
    sizes: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.005
    rounds: int = 9
    devices: int = 1

    def sizes_at(self, value: int) -> dict[str, int]:
        """The sizes of the program at one point."""
        sizes = {**self.sizes, self.size: value}
        if self.program == "loop":
            sizes |= {"witnesses": value, "calls": max(100, 10_000 // value)}
        if self.program == "compilation":
            sizes["chains"] = value // 100
        return sizes


PLOTS = [
    Plot(
        "leaves",
        "One call, by leaves (as many witnesses)",
        "leaves",
        "loop",
        "leaves",
        (1, 3, 10, 30, 100),
        ("entangle", "published", "floor"),
    ),
    Plot(
        "calls",
        "One call of a chain, by its length",
        "calls in the chain",
        "chain",
        "calls",
        (1, 10, 100, 1_000),
        ("entangle", "published", "floor"),
    ),
    Plot(
        "tracing",
        "Trace and lower one call, by length of the chain",
        "calls in the chain",
        "trace_and_lower",
        "calls",
        (10, 100, 1_000, 10_000),
        ("entangle", "published", "barrier"),
        rounds=3,
    ),
    Plot(
        "compiling",
        "Compile one call, by number of calls (chains of 100)",
        "calls",
        "compilation",
        "calls",
        (100, 300, 1_000, 3_000),
        ("entangle", "published", "floor", "barrier"),
        rounds=3,
    ),
    Plot(
        "payload",
        "Donated payload and one operation on it, by size",
        "payload in KB",
        "donated",
        "kilobytes",
        (1, 16, 256, 4_096, 65_536),
        ("entangle", "published", "barrier", "nothing"),
    ),
    Plot(
        "batch",
        "vmap in a jitted loop, by batch size",
        "batch size",
        "batched",
        "batch",
        (1, 10, 100, 1_000),
        ("entangle", "published", "barrier", "nothing"),
    ),
    Plot(
        "devices",
        "Donated payload of 64 MB, by devices",
        "devices",
        "donated",
        "devices",
        (1, 2, 4),
        ("entangle", "published", "barrier", "nothing"),
        devices=4,
        seconds=0.05,
    ),
]
