"""Many threads call one program on many devices: each keeps its own order, and nobody sees another's values."""

import itertools
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from entangle_jax import OrderingWarning, entangle, testing

THREADS = 8
DEVICES = 4


def read_around_a_write(order):
    """One executable for all threads: on each device it reads a slot, changes it, and reads it again."""
    mesh = Mesh(np.array(jax.devices("cpu")[:DEVICES]), ("device",))
    split = NamedSharding(mesh, P("device"))

    def on_one_device(tokens, values):
        token, value = tokens[0], values[0]
        before = testing.read(token)
        written = testing.write(order(token, before), value)
        after = testing.read(order(token, written))  # the same call as the first one, but for what it waits for
        return jnp.stack([before, after])[None]

    program = jax.shard_map(on_one_device, mesh=mesh, in_specs=P("device"), out_specs=P("device"))
    shapes = [jax.ShapeDtypeStruct((DEVICES,), dtype, sharding=split) for dtype in (jnp.int32, jnp.float32)]
    return jax.jit(program).lower(*shapes).compile(), split


def call_in_threads(compiled, split, calls):
    """Every thread on slots of its own: returns, for each call, what each device read before and after."""
    start = threading.Barrier(THREADS)

    def one_thread(thread):
        tokens = jax.device_put(np.arange(DEVICES, dtype=np.int32) + thread * DEVICES, split)
        start.wait()
        results = []
        for call in range(calls):
            values = jax.device_put(np.full(DEVICES, thread * calls + call + 1, np.float32), split)
            results.append(compiled(tokens, values))
        return np.stack([np.asarray(result) for result in results])

    with ThreadPoolExecutor(THREADS) as pool:
        return np.stack(list(pool.map(one_thread, range(THREADS))))


def test_threads_and_devices_through_one_executable_keep_their_order(slots):
    """10,000 calls, of which no two threads or devices share a slot."""
    calls = 10_000 // THREADS
    seen = call_in_threads(*read_around_a_write(entangle), calls)
    assert seen.shape == (THREADS, calls, DEVICES, 2)

    written = (np.arange(THREADS * calls, dtype=np.float32) + 1).reshape(THREADS, calls, 1)
    np.testing.assert_array_equal(seen[..., 1], np.broadcast_to(written, seen.shape[:3]), "read after the write")
    previous = np.concatenate([np.zeros((THREADS, 1, 1), np.float32), written[:, :-1]], axis=1)
    np.testing.assert_array_equal(seen[..., 0], np.broadcast_to(previous, seen.shape[:3]), "read before the write")

    # What really ran, slot by slot: nothing was lost, made twice or swapped.
    logs = {}
    for access in slots.log():
        logs.setdefault(access.slot, []).append((access.op, access.value))
    assert sorted(logs) == list(range(THREADS * DEVICES))
    for slot, log in logs.items():
        old, new = previous[slot // DEVICES, :, 0], written[slot // DEVICES, :, 0]
        each = ([("read", before), ("write", after), ("read", after)] for before, after in zip(old, new, strict=True))
        assert log == list(itertools.chain.from_iterable(each)), f"slot {slot}"


def test_without_entangle_the_same_threads_see_wrong_values(slots):
    """Control: the two reads are the same call on the same operand, so XLA makes one of them."""
    seen = call_in_threads(*read_around_a_write(lambda token, *_: token), 5)
    written = (np.arange(THREADS * 5, dtype=np.float32) + 1).reshape(THREADS, 5, 1)
    assert not np.array_equal(seen[..., 1], np.broadcast_to(written, seen.shape[:3]))


def test_threads_that_trace_at_once_get_their_own_results(slots):
    """Tracing, eager calls and warnings keep their state for each thread."""
    start = threading.Barrier(THREADS)

    def one_thread(thread):
        start.wait()
        results = []
        for size in range(1, 5):  # a new signature each time: all threads trace the same ones, at once
            payload = {"x": jnp.full((size, thread + 1), thread, jnp.int32), "y": jnp.float32(size)}
            eager = entangle(payload, jnp.ones(size))
            traced = jax.jit(jax.vmap(entangle, (0, None)))({"x": payload["x"]}, jnp.ones(size))
            gradient = jax.grad(lambda y: entangle(y, jnp.log(y)) * thread)(payload["y"])
            results.append((eager, traced, gradient))
        return results

    with ThreadPoolExecutor(THREADS) as pool:
        for thread, results in enumerate(pool.map(one_thread, range(THREADS))):
            for size, (eager, traced, gradient) in enumerate(results, start=1):
                assert eager["x"].shape == traced["x"].shape == (size, thread + 1)
                assert (eager["x"] == thread).all()
                assert (traced["x"] == thread).all()
                assert eager["y"] == size
                assert gradient == thread


def test_every_thread_is_warned_at_its_own_line(recwarn):
    """The state by which an eager call knows that it was traced belongs to the thread that traced."""
    warnings.simplefilter("always")
    start = threading.Barrier(THREADS)

    def one_thread(thread):
        start.wait()
        return entangle(jnp.full((thread + 2,), 1.0), jnp.zeros((0, thread + 1)))

    with ThreadPoolExecutor(THREADS) as pool:
        for thread, result in enumerate(pool.map(one_thread, range(THREADS))):
            assert result.shape == (thread + 2,)
    found = [warning for warning in recwarn.list if warning.category is OrderingWarning]
    assert {str(warning.message).split("shape ")[1].split(")")[0] for warning in found} == {
        f"(0, {n}" for n in range(1, 9)
    }
    assert {warning.filename for warning in found} == {__file__}
