"""`python -m entangle_jax demo`: what keeps native calls in order on this machine, and what does not.

Each scenario reads and writes a native slot. In the order of its source it gives the expected values; XLA sees only
what is passed from call to call, and each method is a way of telling it that order.
"""

import argparse
import contextlib
import importlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from entangle_jax import entangle, testing
from entangle_jax._audit import Call, audit
from entangle_jax._info import versions
from entangle_jax._ordered import ordered
from entangle_jax._primitive import TARGET

ORDERED = "ordered"

Tie = Callable[..., Any]
"""`tie(payload, *witnesses)` returns the payload, to be used after the witnesses."""

Scope = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Wraps a function of arrays whose operations are to keep their order."""


def _as_is(payload: Any, *witnesses: Any) -> Any:
    del witnesses
    return payload


@dataclass(frozen=True)
class Method:
    """A way of ordering native calls."""

    name: str
    tie: Tie = _as_is
    scope: Scope = _as_is


@dataclass(frozen=True)
class Pair:
    """Two accesses, by their `jax.named_scope`, the second of which must need the first by data."""

    first: str
    then: str
    next_iteration: bool = False
    """Both are in a loop, and `then` is the one of the next iteration."""


@dataclass(frozen=True)
class Scenario:
    """A program in which the order of native calls decides the answer."""

    name: str
    about: str
    build: Callable[[Tie, Scope], Callable[..., Any]]
    """`build(tie, scope)` is a function of `arguments()` that returns what was read, and what else it computed."""
    expected: tuple[float, ...]
    """What was read, if the calls ran in the order of the source. Slot 0 holds 0 at the start."""
    pairs: tuple[Pair, ...]
    arguments: Callable[[], tuple[jax.Array, ...]] = lambda: (testing.slot(0),)

    def compile(self, method: Method) -> jax.stages.Compiled:
        """Compile the program, for the default device."""
        return jax.jit(method.scope(self.build(method.tie, method.scope))).lower(*self.arguments()).compile()


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    scenario: str
    method: str
    right: int
    runs: int
    data_path: bool

    @property
    def proven(self) -> bool:
        """Right whenever it ran, and bound to be."""
        return self.right == self.runs and self.data_path


def _read(scope: str, token: jax.Array, *operands: jax.Array) -> jax.Array:
    with jax.named_scope(scope):  # a label would be an attribute: two reads with different ones are never merged
        return testing.read(token, *operands)


def _write(scope: str, token: jax.Array, value: Any) -> jax.Array:
    with jax.named_scope(scope):
        return testing.write(token, value)


# As with most handles, a write changes the object and the handle stays what it was: nothing that a write returns
# is passed to the next read but through `tie`.
def _read_write_read(tie: Tie, scope: Scope) -> Callable[..., Any]:
    del scope

    def program(token: jax.Array) -> Any:
        before = _read("before", token)
        token = tie(token, before)
        written = _write("write", token, 1.0)
        token = tie(token, written)
        return (before, _read("after", token)), ()

    return program


def _chain(length: int) -> Scenario:
    def build(tie: Tie, scope: Scope) -> Callable[..., Any]:
        del scope

        def program(token: jax.Array) -> Any:
            values: list[jax.Array] = []
            for i in range(1, length + 1):
                if values:
                    token = tie(token, values[-1])
                token = tie(token, _write(f"write{i}", token, i))
                values.append(_read(f"read{i}", token))
            return tuple(values), ()

        return program

    steps = [step for i in range(1, length + 1) for step in (f"write{i}", f"read{i}")]
    return Scenario(
        name=f"chain-{length}",
        about=f"{length} times: write, read",
        build=build,
        expected=tuple(float(i) for i in range(1, length + 1)),
        pairs=tuple(Pair(first, then) for first, then in itertools.pairwise(steps)),
    )


# The write has nothing to wait for and the first read does, so only a data path keeps the write from running first.
def _read_write_read_among_sorts(tie: Tie, token: jax.Array, x: jax.Array, step: Any) -> Any:
    before = _read("before", token, *(jnp.sort(x ^ (10 * step + i)) for i in range(3)))
    token = tie(token, before)
    written = _write("write", token, step + 1)
    token = tie(token, written)
    after = _read("after", token)
    y = x + after.astype(x.dtype)
    for i in range(3, 7):
        y = jnp.sort(y ^ (10 * step + i))
    return token, jnp.stack([before, after]), y


def _sorts(tie: Tie, scope: Scope) -> Callable[..., Any]:
    del scope

    def program(token: jax.Array, x: jax.Array) -> Any:
        _, values, y = _read_write_read_among_sorts(tie, token, x, 0)
        return values, y

    return program


def _loop(tie: Tie, scope: Scope) -> Callable[..., Any]:
    def program(token: jax.Array, x: jax.Array) -> Any:
        def body(step: jax.Array, carry: Any) -> Any:
            token, values, _ = carry
            token, pair, y = _read_write_read_among_sorts(tie, token, x, step)
            return tie(token, pair), values.at[step].set(pair), y

        _, values, y = jax.lax.fori_loop(0, 2, scope(body), (token, jnp.zeros((2, 2)), x))
        return values, y

    return program


def _slot_and_array() -> tuple[jax.Array, ...]:
    return testing.slot(0), jnp.asarray(np.random.default_rng(0).integers(2**31, size=100_000, dtype=np.int32))


_AROUND_THE_WRITE = (Pair("before", "write"), Pair("write", "after"))

SCENARIOS = (
    Scenario("read-write-read", "read, write, read", _read_write_read, (0.0, 1.0), _AROUND_THE_WRITE),
    *(_chain(length) for length in range(2, 7)),
    Scenario(
        "sorts",
        "3 sorts of 100,000 numbers, read, write, read, 4 sorts",
        _sorts,
        (0.0, 1.0),
        _AROUND_THE_WRITE,
        _slot_and_array,
    ),
    Scenario(
        "loop",
        "the same in a `fori_loop`, twice",
        _loop,
        (0.0, 1.0, 1.0, 2.0),
        (*_AROUND_THE_WRITE, Pair("after", "before", next_iteration=True)),
        _slot_and_array,
    ),
)
"""What can go wrong, from small to large."""


def _barrier(payload: Any, *witnesses: Any) -> Any:
    return jax.lax.optimization_barrier((payload, *witnesses))[0]


def _methods() -> Iterator[Method]:
    yield Method("nothing")
    yield Method("optimization_barrier", tie=_barrier)
    with contextlib.suppress(ImportError):  # jax 0.10 does not have it
        overlap = importlib.import_module("jax.experimental.overlap")
        yield Method("program_order", scope=overlap.program_order(enforce=True))
    yield Method(ORDERED, scope=ordered(reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET]))
    yield Method(TARGET, tie=entangle)


METHODS = tuple(_methods())
"""The ways to order native calls that this jax has; the last two are ours."""


def measure(scenario: Scenario, method: Method, runs: int) -> Result:
    """Run the compiled program that often, from a slot that holds 0, and look for the data path in it."""
    compiled = scenario.compile(method)
    arguments = jax.block_until_ready(scenario.arguments())
    right = 0
    for _ in range(runs):
        testing.reset()
        values, _ = jax.block_until_ready(compiled(*arguments))
        read = np.concatenate([np.ravel(value) for value in jax.tree.leaves(values)])
        right += np.array_equal(read, scenario.expected)
    return Result(scenario.name, method.name, right, runs, all(data_paths(compiled, needed(scenario.pairs, method))))


def needed(pairs: Sequence[Pair], method: Method) -> Sequence[Pair]:
    """The pairs that a method puts in order: `ordered` leaves two reads free of each other."""
    return [pair for pair in pairs if method.name != ORDERED or "write" in pair.first + pair.then]


def data_paths(compiled: jax.stages.Compiled, pairs: Sequence[Pair]) -> list[bool]:
    """For each pair, whether its second access needs its first by data, wherever the compiled program has them."""
    report = audit(compiled, reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET])

    def named(scope: str) -> list[Call]:
        return [call for call in report.calls if scope in call.op_name.split("/")]

    def is_there(pair: Pair) -> bool:
        accesses = [(first, then) for first in named(pair.first) for then in named(pair.then)]
        try:
            # An access that XLA merged with another is not there to come after anything.
            return bool(accesses) and all(report.ordered(*a, later_iteration=pair.next_iteration) for a in accesses)
        except ValueError:
            return False  # XLA took it out of the loop

    return [is_there(pair) for pair in pairs]


def verdict(results: Iterable[Result]) -> tuple[bool, str]:
    """Whether `entangle` and `ordered` were right in every run, with every data path, and a line that says so."""
    results = list(results)
    if unproven := [result.scenario for result in results if result.method == ORDERED and not result.proven]:
        return False, f"{ORDERED} FAILED in: {', '.join(unproven)}"
    ours = [result for result in results if result.method == TARGET]
    failed = [result.scenario for result in ours if not result.proven]
    if failed or not ours:
        return False, f"entangle FAILED in: {', '.join(failed) or 'nothing was run'}"
    others = {result.method: 0 for result in results if result.method != TARGET}
    for result in results:
        others[result.method] = others.get(result.method, 0) + (result.right < result.runs)
    wrong = ", ".join(f"{name} in {count}" for name, count in others.items() if count)
    text = f"entangle: right in all {sum(r.runs for r in ours)} runs, with the data path in all {len(ours)} programs."
    return True, text + (f" Wrong answers of {len(ours)} programs: {wrong}." if wrong else "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "--runs", type=_positive, default=20, metavar="N", help="how often to run each program (default: 20)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    scenarios = "\n".join(f"  {scenario.name:<16}  {scenario.about}" for scenario in SCENARIOS)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        f"scenarios:\n{scenarios}\n\n"
        "Exit status 0: entangle and ordered were right in every run, and each program has the data path; otherwise 1."
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} runs, wanted at least 1")
    return number


def run(
    arguments: argparse.Namespace, scenarios: Sequence[Scenario] = SCENARIOS, methods: Sequence[Method] = METHODS
) -> int:
    """Run every scenario with every method and print what came out. Returns the exit status."""
    head = {
        **versions(),
        "platform": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
    }
    say = _silent if arguments.json else print
    say(", ".join(f"{key} {value}" for key, value in head.items()))
    say("right: runs in which every read gave what the source says. data path: without it, right is luck.\n")
    say(_ROW.format("scenario", "method", "right", "data path"))
    results = []
    for scenario in scenarios:
        for method in methods:
            result = measure(scenario, method, arguments.runs)
            results.append(result)
            path = "yes" if result.data_path else "no"
            say(_ROW.format(scenario.name, method.name, f"{result.right}/{result.runs}", path), flush=True)
    good, text = verdict(results)
    say(f"\n{text}")
    if arguments.json:
        rows = [asdict(result) for result in results]
        print(json.dumps({**head, "results": rows, "ok": good, "verdict": text}, indent=2))
    return 0 if good else 1


_ROW = "{:<16}  {:<20}  {:>7}  {}"


def _silent(*_: Any, **__: Any) -> None:
    pass
