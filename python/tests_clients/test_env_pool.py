"""A pool of environments in C++, driven from a `scan`: what the policy sees has to be what its actions led to.

`send` and `recv` share a handle and no data. Untied, XLA sees that `recv` is given the same handle in each step, and takes
it out of the loop. The pool is marked, and nothing else is changed.
"""

import ctypes
import os
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from entangle_jax import audit, ordered, reads, writes

SIZE, STEPS, RUNS = 4, 6, 10


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    build = tmp_path_factory.mktemp("env_pool")
    source = os.path.join(os.path.dirname(__file__), "env_pool")
    configure = ["cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DXLA_FFI_INCLUDE={jax.ffi.include_dir()}"]
    for command in ([*configure, "-DCMAKE_BUILD_TYPE=Release"], ["cmake", "--build", build]):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    library = ctypes.CDLL(str(build / "env_pool.so"))
    library.pool_new.restype = ctypes.c_void_p
    library.pool_delete.argtypes = [ctypes.c_void_p]
    for target in ("pool_send", "pool_recv"):
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    return library


@pytest.fixture
def pools(library):
    """Makes the handle of new pools: `uint8[8]`, or one for each of several first states."""
    made = []

    def new(*first):
        made.extend(pools := [library.pool_new(SIZE, one) for one in first])
        return jnp.asarray(np.array(pools, np.uint64).view(np.uint8).reshape(len(first), 8))

    yield new
    jax.effects_barrier()
    for pool in made:
        library.pool_delete(pool)


def send(handle, actions):
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.ffi.ffi_call("pool_send", count, has_side_effect=True, vmap_method="sequential")(handle, actions)


def recv(handle):
    results = (
        jax.ShapeDtypeStruct((SIZE, 2), jnp.float32),
        jax.ShapeDtypeStruct((SIZE,), jnp.float32),
        jax.ShapeDtypeStruct((SIZE,), jnp.bool),
        jax.ShapeDtypeStruct((SIZE,), jnp.int32),
    )
    return jax.ffi.ffi_call("pool_recv", results, vmap_method="sequential")(handle)


def rollout_of(send, recv):
    """A rollout of a policy that adds an environment's number plus one, for each that is not done."""

    def rollout(handle):
        def step(total, _):
            observations, _, done, ids = recv(handle)
            send(handle, jnp.where(done, 0, ids + 1))
            after, rewards, _, _ = recv(handle)
            return total + rewards, (observations[:, 0], after[:, 0])

        return jax.lax.scan(step, jnp.zeros(SIZE), length=STEPS)

    return rollout


def expected(first):
    states, total, seen = first + np.arange(SIZE), np.zeros(SIZE), []
    for _ in range(STEPS):
        before = states
        states = states + np.where(states >= 10, 0, np.arange(SIZE) + 1)
        total = total + states % 3
        seen.append((before, states))
    return total, *map(np.array, zip(*seen, strict=True))


untied = rollout_of(send, recv)
marked = rollout_of(writes("pool", handle="handle")(send), reads("pool", handle="handle")(recv))


def wrong(program, pools):
    """In how many runs the rollout of one pool is wrong."""
    program, count = jax.jit(program), 0
    for _ in range(RUNS):
        got = jax.block_until_ready(program(pools(1)[0]))
        jax.effects_barrier()
        count += not all(map(np.array_equal, jax.tree.leaves(got), expected(1)))
    return count


def test_untied_the_policy_sees_states_of_other_steps(pools, tally):
    assert tally("environment pool", "untied", wrong(untied, pools), RUNS) == RUNS


def test_a_mark_alone_changes_nothing(pools, tally):
    assert tally("environment pool", "marked alone", wrong(marked, pools), RUNS) == RUNS


def test_ordered_it_sees_what_its_actions_led_to(pools, tally):
    assert tally("environment pool", "ordered, marked", wrong(ordered(marked), pools), RUNS) == 0


def test_many_pools_at_once_under_vmap(pools):
    firsts = (0, 3, 8)
    batched = jax.jit(jax.vmap(ordered(marked)))
    for _ in range(RUNS):
        got = batched(pools(*firsts))
        for first, *mine in zip(firsts, *jax.tree.leaves(got), strict=True):
            for leaf, want in zip(mine, expected(first), strict=True):
                np.testing.assert_array_equal(leaf, want)


def test_the_audit_finds_the_race_and_its_end(pools):
    handle = pools(1)[0]
    given = {"reads": ["pool_recv"], "writes": ["pool_send"]}
    assert audit(untied, handle, **given).races
    audit(ordered(marked), handle, **given).raise_if_races()
