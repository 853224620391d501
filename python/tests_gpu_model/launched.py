"""Programs that are compiled, launched often, and judged by the native log."""

import functools
from collections import Counter

import jax
import model
import programs

from entangle_jax import testing

NO_GRAPHS = {"xla_gpu_graph_min_graph_size": 1_000_000}


def compile_in(mode, function, *arguments, **options):
    """Compile to be recorded in that way; None: not at all. A new executable each time: jax keeps those of one function."""

    @functools.wraps(function)
    def fresh(*arguments):
        return function(*arguments)

    return jax.jit(fresh, **options).lower(*arguments).compile(programs.recorded(mode) if mode else NO_GRAPHS)


def accesses():
    """The log, an access a word: "r0" read 0, "w1" wrote 1."""
    return " ".join(f"{access.op[0]}{access.value:g}" for access in testing.log())


def logs(compiled, *arguments, launches):
    """How often which log came out."""
    seen = Counter()
    arguments = jax.block_until_ready(arguments)
    for _ in range(launches):
        testing.reset()
        jax.block_until_ready(compiled(*arguments))
        jax.effects_barrier()
        seen[accesses()] += 1
    return seen


def is_ever_wrong(compiled, *arguments, right, launches):
    """Whether a launch gives another log than the right one. Ten times as many launches, since one in ten may be all."""
    return any(right not in logs(compiled, *arguments, launches=1) for _ in range(10 * launches))


def graphs_of(compiled, *arguments):
    """How many graphs one run launches. The first run of what may be a graph is done without it."""
    for _ in range(2):
        jax.block_until_ready(compiled(*arguments))
    before = model.report()
    jax.block_until_ready(compiled(*arguments))
    return (model.report() - before).work("graph")
