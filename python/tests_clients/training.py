"""A training loop whose world is on the host: a log, checkpoints, and a learning rate that stands in a file.

    python training.py untied 5         # or: ordered
    python training.py ordered 5 ADDRESS NUMBER      # as one of two processes, with two devices each

Each step reads the rate, logs the loss from inside of the loss function, and every second step a checkpoint is saved, which
halves the rate in the file. A second jitted function then evaluates what was saved last: two calls are ordered by data, so
the training's `Handle` goes into it. Prints how many of the runs were wrong, and how many races the audit finds.
"""

import json
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

PROCESSES = 2 if len(sys.argv) > 3 else 1
if PROCESSES == 2:
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[3], num_processes=2, process_id=int(sys.argv[4]))

from jax.experimental import io_callback  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

from entangle_jax import Handle, audit, ordered, reads, writes  # noqa: E402

STEPS, EVERY = 6, 2
F32, I32 = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
FOLDER = Path(tempfile.mkdtemp())
RATE, SAVED = FOLDER / "rate.json", FOLDER / "saved.json"
LOGGED = []


def on_host_rate():
    return np.float32(json.loads(RATE.read_text()))


def on_host_log(loss):
    LOGGED.append(float(loss))
    return np.int32(len(LOGGED))  # a call that returns nothing is in order too, but no proof can show it


def on_host_save(params):
    SAVED.write_text(json.dumps(float(params)))
    RATE.write_text(json.dumps(float(on_host_rate()) / 2))
    return np.int32(0)


def on_host_load(token):
    del token
    return np.float32(json.loads(SAVED.read_text()))


@reads("training.files")
def rate():
    return jax.pure_callback(on_host_rate, F32)


@writes("training.log")
def log(loss):
    io_callback(on_host_log, I32, jax.lax.stop_gradient(loss))


@writes("training.files")
def save(params):
    return io_callback(on_host_save, I32, params)


def train(params, data):
    def loss_of(params):
        loss = ((params * data - 1.0) ** 2).mean()
        log(loss)
        return loss

    def step(params, number):
        params = params - rate() * jax.grad(loss_of)(params)
        return params, jax.lax.cond(number % EVERY == EVERY - 1, save, lambda params: jnp.int32(0), params)

    return jax.lax.scan(step, params, jnp.arange(STEPS))


def evaluate(handle):
    loaded, _ = handle.read(lambda token: jax.pure_callback(on_host_load, F32, token))
    return loaded


def expected(params, data):
    step_size, saved, logged = np.float32(0.25), None, []
    for number in range(STEPS):
        logged.append(np.mean((params * data - 1) ** 2))
        params = params - step_size * np.mean(2 * data * (params * data - 1))
        if number % EVERY == EVERY - 1:
            saved, step_size = params, step_size / 2
    return params, saved, logged


def main():
    how, runs = sys.argv[1], int(sys.argv[2])
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(AxisType.Auto,))
    values = np.linspace(0.5, 1.5, 8, dtype=np.float32)

    def spread(x, spec):
        return jax.make_array_from_callback(np.shape(x), NamedSharding(mesh, spec), lambda index: x[index])

    data, start = spread(values, PartitionSpec("i")), spread(np.float32(0), PartitionSpec())
    loop = ordered(train) if how == "ordered" else train
    trained = jax.jit(loop)
    evaluated = jax.jit(evaluate)
    # Callbacks run on one device, which is one of the first process: the files are there. What a callback returns is on that
    # device alone too, unless something is computed from it.
    is_first = jax.process_index() == 0
    wrong = 0
    for _ in range(runs):
        LOGGED.clear()
        RATE.write_text("0.25")
        SAVED.write_text("0")
        params, saves = trained(start, data)
        loaded = evaluated(Handle(saves))  # the second call waits for the first by what it is given
        jax.block_until_ready((params, loaded))
        jax.effects_barrier()
        want, saved, logged = expected(np.float32(0), values)
        right = np.allclose(params, want)
        if is_first:
            right = right and np.allclose(loaded, saved) and np.allclose(LOGGED, logged)
        wrong += not right
    races = [len(audit(loop, start, data).races), len(audit(evaluate, Handle(saves)).races)]
    print(json.dumps({"wrong": wrong, "races": races}), flush=True)
    if PROCESSES == 2:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main()
