"""Programs on mpi4jax, run by every process of `mpirun`. The first process prints how many of the runs were wrong.

    mpirun -n 2 python mpi_programs.py rounds untied 5       # or: ordered
    mpirun -n 2 python mpi_programs.py rounds audit          # prints the races that the audit finds untied and ordered
    mpirun -n 2 python mpi_programs.py limits                # prints what mpi4jax does where jax's ordered effects end

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

from entangle_jax import audit, ordered, testing

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


# In the condition of a loop, which all processes leave together.


def condition(token, x):
    def goes_on(count):
        del count
        return mpi4jax.allreduce(testing.read(token) + x, op=MPI.SUM, comm=COMM) < 4 * SIZE + RANKS

    def body(count):
        testing.write(token, testing.read(token) + 1)
        return count + 1

    count = jax.lax.while_loop(goes_on, body, jnp.float32(0))
    return jnp.stack([count, testing.read(token)])


def condition_expected():
    return [4, 4]


# A batch: each element has a slot of its own, and mpi4jax makes one call of them all.


def batched(token, x):
    each = jnp.arange(3)
    return jax.vmap(rounds)(token + each, x + 10 * each).ravel()


def batched_expected():
    results = []
    for element in range(3):
        value = 0.0
        for _ in range(3):
            value = SIZE * value + RANKS + 10 * element * SIZE
            results.append(value)
    return results


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


MIXED = {"writes": {"mpi": ["allreduce_mpi", reduce_on_host]}}

# Per program: the function, its results, what `ordered` is told, and what the audit is told.
PROGRAMS = {
    "rounds": (rounds, rounds_expected, SLOTS, SLOTS),
    "looped": (looped, looped_expected, SLOTS, SLOTS),
    "condition": (condition, condition_expected, SLOTS, SLOTS),
    "batched": (batched, batched_expected, SLOTS, SLOTS),
    "ring": (ring, ring_expected, SLOTS, SLOTS),
    "mixed": (
        mixed,
        mixed_expected,
        MIXED,
        {"writes": {"mpi": ["mpi_allreduce_ffi", "xla_ffi_python_cpu_callback"]}},
    ),
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


def races(program, accesses, targets):
    arguments = testing.slot(0), jnp.float32(RANK)
    return [len(audit(one, *arguments, **targets).races) for one in (program, ordered(program, **accesses))]


# Where jax's ordered effects end, and so mpi4jax: each as it is and under `ordered`.


def total(x):
    return mpi4jax.allreduce(x, op=MPI.SUM, comm=COMM)


def of_first(x):
    return mpi4jax.bcast(x, 0, comm=COMM)


def either(x):
    return jax.lax.cond(x < RANK + 1.5, total, lambda x: total(10 * x), x)


def squared(x):
    return (total(x) ** 2).sum()


def what_happens(function, x):
    """The results, and how many collectives the program has; or the error."""
    try:
        compiled = jax.jit(function).lower(x).compile()
    except (NotImplementedError, TypeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    calls = compiled.as_text().count('custom_call_target="mpi_')
    return [np.asarray(compiled(x)).tolist(), calls]


def limits():
    x = jnp.arange(3.0) + RANK

    def in_order(function):
        return ordered(function, writes=["bcast_mpi" if function is of_first else "allreduce_mpi"])

    cases = {
        "a batch of sums": (jax.vmap(total), jax.vmap(in_order(total))),
        "a batch of broadcasts": (jax.vmap(of_first), jax.vmap(in_order(of_first))),
        "a batched branch": (jax.vmap(either), jax.vmap(in_order(either))),
        "a checkpoint": (jax.grad(jax.checkpoint(squared)), jax.grad(jax.checkpoint(in_order(squared)))),
        "a derivative": (jax.grad(squared), in_order(jax.grad(squared))),
    }
    return {name: [what_happens(function, x) for function in functions] for name, functions in cases.items()}


def main():
    name, how = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    if name == "limits":
        found = limits()
    elif how == "audit":
        program, _, accesses, targets = PROGRAMS[name]
        found = races(program, accesses, targets)
    else:
        program, expected, accesses, _ = PROGRAMS[name]
        found = {
            "wrong": wrong(ordered(program, **accesses) if how == "ordered" else program, expected, int(sys.argv[3]))
        }
    if RANK == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
