"""Programs on mpi4jax, run by every process of `mpirun`. The first process prints how many of the runs were wrong.

    mpirun -n 2 python mpi_programs.py rounds untied 5       # or: ordered

mpi4jax orders its own calls by jax's ordered effects. It cannot order them with what it does not know: native state
beside the collectives, and a native solver or a callback that communicates on the same communicator. Each of these
is run as it is and under `ordered`, with nothing else changed.
"""

import json
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from mpi4py import MPI

from entangle_jax import ordered, testing

warnings.simplefilter("ignore", UserWarning)  # mpi4jax does not know the newest jax
import mpi4jax  # noqa: E402

COMM = MPI.COMM_WORLD.Clone()
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
RANKS = SIZE * (SIZE - 1) / 2
"""The sum of all ranks."""

SLOTS = {"reads": {"slots": [testing.READ_TARGET]}, "writes": {"slots": [testing.WRITE_TARGET]}}


NUMBERS = jnp.asarray(np.random.default_rng(0).integers(2**31, size=100_000, dtype=np.int32))


def sorts(numbers, count):
    """Takes a while."""
    for i in range(count):
        numbers = jnp.sort(numbers ^ i)
    return numbers


# Native state beside collectives: what the second round reads is what the first one has written.


def rounds(token, x):
    results = []
    for _ in range(3):
        total = mpi4jax.allreduce(testing.read(token) + x, op=MPI.SUM, comm=COMM)
        testing.write(token, total)
        results.append(total)
    return jnp.stack(results)


def rounds_expected():
    value, results = 0.0, []
    for _ in range(3):
        value = SIZE * value + RANKS
        results.append(value)
    return results


# The same in a scan and in a branch.


def looped(token, x):
    def body(total, i):
        def add():
            got = mpi4jax.allreduce(testing.read(token) + x, op=MPI.SUM, comm=COMM)
            testing.write(token, got)
            return testing.read(token)

        total = jax.lax.cond(i < 2, add, lambda: testing.read(token))
        return total, total

    return jax.lax.scan(body, jnp.float32(0), jnp.arange(3))[1]


def looped_expected():
    first = RANKS
    second = SIZE * first + RANKS
    return [first, second, second]


# Point to point: a process passes on what it has received, by way of its native state.


def ring(token, x):
    testing.write(token, x)
    for _ in range(SIZE):
        got = mpi4jax.sendrecv(
            testing.read(token), jnp.float32(0), source=(RANK - 1) % SIZE, dest=(RANK + 1) % SIZE, comm=COMM
        )
        testing.write(token, got)
    return testing.read(token)[None]


def ring_expected():
    return [RANK]  # once around


# Native code that communicates on the same communicator, in place of which stands a callback. In each process another
# one of the two is late, so that without order the processes meet in different calls.


def reduce_on_host(x):
    return COMM.allreduce(np.asarray(x), op=MPI.SUM)


def mixed(token, x):
    del token
    first, second = (6, 1) if RANK == 0 else (1, 6)
    late = [x + (sorts(NUMBERS + x.astype(int), count)[0] < 0) for count in (first, second)]
    inside = io_callback(reduce_on_host, jax.ShapeDtypeStruct((), jnp.float32), late[0])
    outside = mpi4jax.allreduce(10 * late[1], op=MPI.SUM, comm=COMM)
    return jnp.stack([inside, outside, sorts(NUMBERS + outside.astype(int), 4)[0] >= 0])


def mixed_expected():
    return [RANKS, 10 * RANKS, 1]


PROGRAMS = {
    "rounds": (rounds, rounds_expected, SLOTS),
    "looped": (looped, looped_expected, SLOTS),
    "ring": (ring, ring_expected, SLOTS),
    "mixed": (mixed, mixed_expected, {"writes": {"mpi": ["allreduce_mpi", reduce_on_host]}}),
}


def wrong(program, expected, runs):
    """In how many of the runs some process gets a wrong answer."""
    compiled = jax.jit(program).lower(testing.slot(0), jnp.float32(RANK)).compile()
    COMM.Barrier()
    if RANK == 0:
        print("running", flush=True)
    count = 0
    for _ in range(runs):
        testing.reset()
        COMM.Barrier()
        result = np.asarray(compiled(testing.slot(0), jnp.float32(RANK)))
        count += COMM.allreduce(not np.array_equal(result, np.float32(expected())), op=MPI.MAX)
    return count


def main():
    name, how, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    program, expected, accesses = PROGRAMS[name]
    count = wrong(ordered(program, **accesses) if how == "ordered" else program, expected, runs)
    if RANK == 0:
        print(json.dumps({"wrong": count}))


if __name__ == "__main__":
    main()
