"""One process that times programs on request: a line of JSON in, a line of JSON out.

    python worker.py LIBRARY

The environment decides which `entangle_jax` this is: the project, or the published package of the same name.
LIBRARY holds the floor, a handler that returns at once.
"""

import ctypes
import functools
import gc
import json
import operator
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from entangle_jax import entangle

FLOOR = "entangle_bench_floor"


# What can stand between a payload and its witnesses.
def floor(payload, *witnesses):
    """The same operands and aliases as `entangle`, and a handler that returns at once."""
    leaves, treedef = jax.tree.flatten(payload)
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    call = jax.ffi.ffi_call(FLOOR, results, input_output_aliases={i: i for i in range(len(leaves))})
    return treedef.unflatten(call(*leaves, *jax.tree.leaves(witnesses)))


def barrier(payload, *witnesses):
    return jax.lax.optimization_barrier((payload, witnesses))[0]


def nothing(payload, *witnesses):
    del witnesses
    return payload


def copy(payload, *witnesses):
    del witnesses
    return payload.copy()


ORDERS = {
    "entangle": entangle,
    "floor": floor,
    "barrier": barrier,
    "nothing": nothing,
    "a + b": operator.add,
    "x.copy()": copy,
}


# The programs. Each takes what orders it and its sizes, and returns a function to time and how many calls are in it.
def loop(order, leaves=1, witnesses=1, calls=10_000):
    """A jitted loop with one call an iteration."""

    def body(_, carry):
        payload, those = carry
        return order(payload, *those), those

    return _compiled(
        lambda x, w: jax.lax.fori_loop(0, calls, body, (x, w)), _vectors(leaves), _vectors(witnesses)
    ), calls


def chain(order, calls=1_000):
    """A jitted program with that many calls one after the other."""
    return _compiled(_chain(order, calls), _vectors(1)[0], _vectors(1)[0]), calls


def eager(order, calls=200):
    """Calls on scalars outside of `jit`."""
    x, w = jnp.float32(1) + 0, jnp.float32(2) + 0

    def run():
        for _ in range(calls):
            result = order(x, w)
        result.block_until_ready()

    run()
    return run, calls


def eager_large(order, megabytes=64):
    """A call on a large payload outside of `jit`, where nothing is donated."""
    x, w = jnp.ones(megabytes * 2**18), jnp.float32(2) + 0

    def run():
        order(x, w).block_until_ready()

    run()
    return run, 1


def batched(order, batch=1_000, calls=100):
    """`vmap` over payload and witness, in a jitted loop: one call outside of it is mostly JAX's own dispatch."""

    def body(_, carry):
        payload, witness = carry
        return jax.vmap(order)(payload, witness), witness

    x = jnp.ones((batch, 8))
    return _compiled(lambda x, w: jax.lax.fori_loop(0, calls, body, (x, w)), x, x + 1), calls


def handle(order, writes=False, calls=1_000):
    """Native reads, or writes, of a slot in a jitted loop: through a `Handle`, or called directly."""
    from entangle_jax import Handle, testing  # noqa: PLC0415 (the published package has neither)

    def access(handle, value):
        if order is nothing:
            return (testing.write(handle, value) if writes else testing.read(handle, value)), handle
        return handle.write(testing.write, value) if writes else handle.read(testing.read, value)

    def body(_, carry):
        handle, value = carry
        result, handle = access(handle, value)
        return handle, value + result

    token = testing.slot(0)
    run = _compiled(
        lambda handle: jax.lax.fori_loop(0, calls, body, (handle, jnp.float32(0))),
        token if order is nothing else Handle(token),
    )

    def run_with_an_empty_log():
        testing.reset()
        run()

    return run_with_an_empty_log, calls


def donated(order, kilobytes=64 * 2**10, devices=1):
    """A donated payload in one jitted program, split over the devices, and an operation on all of it."""
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((devices,), ("device",), axis_types=auto, devices=jax.devices()[:devices])
    sharding = NamedSharding(mesh, PartitionSpec("device"))
    w = jax.device_put(jnp.float32(2), NamedSharding(mesh, PartitionSpec()))
    shape = jax.ShapeDtypeStruct((kilobytes * 2**8,), jnp.float32, sharding=sharding)
    program = jax.jit(lambda x, w: order(x, w) * 1.0001, donate_argnums=0).lower(shape, w).compile()

    def run():
        # A new payload each time, untimed: where the system puts one makes more of a difference than the call.
        x = jax.block_until_ready(jnp.ones(shape.shape, device=sharding))
        start = time.perf_counter()
        program(x, w).block_until_ready()
        return time.perf_counter() - start

    run()
    return run, 1


def trace_and_lower(order, calls=1_000):
    """From Python to StableHLO."""
    shapes = [jax.ShapeDtypeStruct((8,), jnp.float32)] * 2

    def run():
        jax.jit(_chain(order, calls)).lower(*shapes)

    return run, calls


def trace_and_lower_in_order(order, by_hand, named, calls=1_000):
    """From Python to StableHLO: native writes and reads in turns, put in order by hand or by `ordered`."""
    from entangle_jax import ordered, reads, testing, writes  # noqa: PLC0415 (the published package has none of these)

    read, write = testing.read, testing.write
    if not by_hand and not named:
        read, write = reads("bench.slot")(read), writes("bench.slot")(write)
    tie = order if by_hand else nothing

    def program(token):
        results = []
        for i in range(calls // 2):
            token = tie(token, write(token, i))
            results.append(read(token))
            token = tie(token, results[-1])
        return results

    names = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]} if named else {}
    token = testing.slot(0)

    def run():
        fn = functools.partial(program)  # a new one each time, or JAX would have the trace at hand
        jax.jit(fn if by_hand else ordered(fn, **names)).lower(token)

    return run, calls


def mark(order, how, traced, operations=0, calls=200):
    """Native reads, with that many operations on what they give: by a marked function, or by one that `how` says."""
    from entangle_jax import reads, testing  # noqa: PLC0415 (the published package has neither)

    del order

    def plain(token):
        value = testing.read(token)
        for _ in range(operations):
            value = jnp.sin(value)
        return value

    def in_a_new_jit(token):
        return jax.jit(functools.partial(plain), inline=False)(token)

    token = testing.slot(0)
    marked = reads("bench.slot")
    read = {
        "plain": lambda: plain,
        "marked": lambda: marked(plain),
        "traced": lambda: _traced_anew(plain, token),
        "new jit": lambda: in_a_new_jit,
        "jit": lambda: jax.jit(plain, inline=False),
        "marked jit": lambda: marked(jax.jit(plain)),
    }[how]()

    def program(token):
        return [read(token) for _ in range(calls)]

    def run():
        testing.reset()
        if traced:
            jax.jit(functools.partial(program)).lower(token)
        else:
            jax.block_until_ready(program(token))

    run()
    return run, calls


def _traced_anew(fn, token):
    """A jitted function traced at each call, by JAX alone: its trace, and its equation for a jaxpr made once."""
    from entangle_jax import _private  # noqa: PLC0415 (as above)
    from entangle_jax._ordering import jaxprs  # noqa: PLC0415

    def trace():
        return _private.trace_to_jaxpr("read", lambda token: [fn(token)], [jax.typeof(token)])[0]

    jaxpr = jaxprs.closed(jaxprs.opened(trace()).jaxpr)

    def call(token):
        trace()
        return jaxprs.bind_new_jit("read", jaxpr, [token])[0]

    return call


def second_call(order, ordered):
    """A call outside of `jit` of a function that was called before: in order, or as `jax.jit` calls it."""
    import entangle_jax  # noqa: PLC0415 (the published package has no `ordered`)
    from entangle_jax import testing  # noqa: PLC0415

    del order

    def program(token, x, scale=2):
        return testing.read(token) + scale * x

    program = entangle_jax.ordered(program, reads=[testing.READ_TARGET]) if ordered else jax.jit(program)
    token, x = testing.slot(0), jnp.ones(8)

    def run():
        for _ in range(100):
            y = program(token, x)
        jax.block_until_ready(y)
        testing.reset()

    run()
    return run, 100


def klu(order, by_hand):
    """The example with klujax, which switches jax to 64 bits: put in order by hand or by `ordered`."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    import klu_refactor as example  # noqa: PLC0415 (for a process of its own)

    arguments, objects = example.arrays(*example.circuit())
    program = functools.partial(example.simulate, order) if by_hand else example.in_order
    compiled = jax.jit(program).lower(*arguments).compile()
    arguments = jax.device_put(arguments)

    def run():
        assert objects  # they own the factorisation
        jax.block_until_ready(compiled(*arguments))

    run()
    return run, 1


def compilation(order, calls=1_000, chains=1):
    """From StableHLO to machine code. Tracing and lowering are not timed."""
    shape = jax.ShapeDtypeStruct((8,), jnp.float32)

    def run():
        def program(payloads, w):  # a new one each time, or JAX would have the result at hand
            return [_chain(order, calls // chains)(x, w) for x in payloads]

        lowered = jax.jit(program).lower([shape] * chains, shape)
        start = time.perf_counter()
        lowered.compile()
        return time.perf_counter() - start

    return run, calls


def residual_bytes(order, steps=100, megabytes=1):
    """How many bytes `jax.vjp` of a scan holds, outside of `jit`; each step has a witness."""

    def step(x, _):
        witness = jax.lax.stop_gradient(jnp.full(megabytes * 2**18, x))
        return jnp.sin(order(x, witness)), None

    def run():
        gc.collect()
        before = {id(x) for x in jax.live_arrays()}
        out, pullback = jax.vjp(lambda x: jax.lax.scan(step, x, length=steps)[0], jnp.float32(1))
        held = sum(x.nbytes for x in jax.live_arrays() if id(x) not in before)
        del out, pullback
        return held

    return run, 1


def auditing(order, instructions=100_000, apart=300):
    """The audit of a program with 10 handles that are read, entangled and written in turns."""
    from entangle_jax import _audit, testing  # noqa: PLC0415 (the published package has neither)

    def program(tokens, x):
        for turn in range(instructions // apart):
            token = tokens[turn % len(tokens)]
            value = testing.read(token)
            tokens[turn % len(tokens)] = testing.write(order(token, value), value)
            x = x + value
            for _ in range(apart - 4):
                x = jax.lax.sin(x)
        return tokens, x

    lowered = jax.jit(program).lower([testing.slot(i) for i in range(10)], jnp.float32(1))
    module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()

    def run():
        report = _audit.audit_programs({_audit.WRITTEN: module}, [testing.READ_TARGET], [testing.WRITE_TARGET])
        assert not report.races

    return run, 1


PROGRAMS = {
    f.__name__: f
    for f in (
        loop,
        chain,
        eager,
        eager_large,
        batched,
        handle,
        donated,
        trace_and_lower,
        trace_and_lower_in_order,
        mark,
        second_call,
        klu,
        compilation,
        residual_bytes,
        auditing,
    )
}


def _chain(order, calls):
    def program(x, w):
        for _ in range(calls):
            x = order(x, w)
        return x

    return program


def _vectors(count):
    return [jnp.arange(8, dtype=jnp.float32) + i for i in range(count)]


def _compiled(program, *args):
    compiled = jax.jit(program).lower(*args).compile()

    def run():
        jax.block_until_ready(compiled(*args))

    run()
    return run


class Timer:
    """Times programs, each built once."""

    def __init__(self):
        self.built = {}

    def sample(self, program, order, sizes, seconds):
        """The time of one call, from as many runs as fit into `seconds`, or what the program measures itself."""
        key = json.dumps([program, order, sizes])
        if key not in self.built:
            self.built[key] = PROGRAMS[program](ORDERS[order], **sizes)
            gc.collect()
            gc.freeze()  # what is there by now is not to be looked at again and again
        run, calls = self.built[key]
        runs, measured = 0, 0.0
        start = time.perf_counter()
        while True:
            value = run()
            runs += 1
            elapsed = time.perf_counter() - start
            if value is not None:
                measured += value
            if elapsed >= seconds:
                return (measured or elapsed) / runs / calls


def main():
    library = ctypes.CDLL(sys.argv[1])
    jax.ffi.register_ffi_target(FLOOR, jax.ffi.pycapsule(library.entangle_bench_floor), platform="cpu")
    timer = Timer()
    print(json.dumps({"jax": jax.__version__, "jaxlib": jax.lib.__version__, "numpy": np.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(timer.sample(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
