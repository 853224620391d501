"""Two processes with two devices each, connected by gloo: every process holds its part, and none of it travels.

What one process has and the other lacks, the result of a callback, is what the other waits for.
"""

import socket

import fresh

PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
number, address = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, num_processes=2, process_id=number)
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from entangle_jax import entangle
sys.path.insert(0, sys.argv[3])
import compiled

assert (jax.device_count(), jax.local_device_count(), jax.process_count()) == (4, 2, 2)
mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))

def spread(x, spec):
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])

def check(result, wanted):
    assert result.shape == wanted.shape
    for shard in result.addressable_shards:
        np.testing.assert_array_equal(shard.data, wanted[shard.index])

values = np.arange(32.0, dtype=np.float32).reshape(8, 4)
x, w, token = spread(values, P("i")), spread(np.ones((4, 8), np.float32), P(None, "i")), spread(np.int32(3), P())

# In a program.
program = jax.jit(lambda x, w, token: (entangle(x * 2, w + 1), entangle(token, w, x)))
hlo = compiled.text(program, x, w, token)
assert compiled.collectives(hlo) == [], compiled.collectives(hlo)
assert len(compiled.native_calls(hlo)) == 2
result, same = program(x, w, token)
check(result, 2 * values)
check(same, np.int32(3))
assert result.sharding.is_equivalent_to(x.sharding, 2)

# Eagerly: every process makes the same call.
check(entangle(x, w), values)

# Derivatives, batches and shard_map.
check(jax.jit(jax.grad(lambda x, w: entangle(x * x, w).sum()))(x, w), 2 * values)
check(jax.jit(jax.vmap(lambda x, w: entangle(x, w), in_axes=(0, None)))(x, w), values)
split = jax.shard_map(entangle, mesh=mesh, in_specs=(P("i"), P(None, "i")), out_specs=P("i"))
check(jax.jit(split)(x, w), values)

# Two collectives in order are two collectives, on all processes.
def both(x, y):
    first = jax.lax.psum(x, "i")
    return first + jax.lax.psum(entangle(y, first), "i")

summed = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P("i"), out_specs=P()))
ops = compiled.collectives(compiled.text(summed, x, x))
assert len([op for op in ops if not op.endswith("-done")]) == 2, ops
check(summed(x, x), 2 * values.reshape(4, 2, 4).sum(0))

# A callback runs on one device of one process. The writes on all devices of both wait for it.
import pathlib, threading, time
from jax.experimental import io_callback, multihost_utils
import one_device_checks
from entangle_jax import testing
tokens = spread(np.arange(4, dtype=np.int32), P("i"))
seen = []
noticed = pathlib.Path(sys.argv[4])  # the process without the callback says here that it has written
def on_host(_):
    time.sleep(0.03)
    seen.append("a write" if testing.log() or noticed.exists() else "none")
    return np.int32(0)
stop = threading.Event()
def watch():
    while number == 1 and not stop.wait(0.001):
        if testing.log():
            noticed.touch()
def write(token):
    return testing.write(token[0], 1.0)[None]
def ordered(tokens):
    status = io_callback(on_host, jax.ShapeDtypeStruct((), jnp.int32), tokens.sum())
    return jax.shard_map(write, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(entangle(tokens, status))
executable = jax.jit(ordered).lower(tokens).compile()
assert compiled.collectives(executable.as_text()) == ["all-reduce"] * 2, executable.as_text()
one_device_checks.assert_witnesses_are_broadcast(executable.as_text())
for run in range(20):
    testing.reset()
    noticed.unlink(missing_ok=True)
    multihost_utils.sync_global_devices(f"reset {run}")
    stop.clear()
    watching = threading.Thread(target=watch)
    watching.start()
    jax.block_until_ready(executable(tokens))
    stop.set()
    watching.join()
    assert len(testing.log()) == 2
assert set(seen) == ({"none"} if number == 0 else set()), seen
print("right", flush=True)
jax.distributed.shutdown()
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_a_global_array_is_entangled_without_communication_and_waits_for_a_callback_of_another_process(tmp_path):
    address, folder = f"127.0.0.1:{free_port()}", __file__.rsplit("/", 1)[0]
    processes = [fresh.start(PROGRAM, number, address, folder, tmp_path / "written") for number in range(2)]
    ends = [fresh.finish(process) for process in processes]
    for status, out, errors in ends:
        assert (status, out.split()[-1:]) == (0, ["right"]), errors  # gloo prints too
