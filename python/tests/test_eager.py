"""Outside of `jit`: one cached jitted path, and the same promises."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

from entangle_jax import entangle
from entangle_jax._entangle import _eager
from entangle_jax.testing import read, slot, write

W = jnp.float32(1.0)


def test_a_signature_is_traced_once():
    """So a call costs a dispatch, as `a + b` does; that is measured by the benchmarks, not here."""
    payload, before = {"a": jnp.ones(17), "b": 3}, _eager._cache_size()
    for _ in range(3):
        entangle(payload, W, (W, None))
    assert _eager._cache_size() - before == 1
    entangle(payload | {"a": jnp.ones(18)}, W, (W, None))
    assert _eager._cache_size() - before == 2


def test_a_witness_of_the_host_is_no_operand():
    """It is there already: to compile for its shape, or to move it to a device, would be for nothing."""
    before = _eager._cache_size()
    for witness in (1, 2.0, True, 1j, np.float32(3), np.zeros(1_000), np.zeros((7, 3), np.int8)):
        assert entangle(W, witness) == 1
    assert _eager._cache_size() == before
    x = jnp.ones(21)
    entangle(x, W, np.zeros(5))
    entangle(x, W, np.zeros(6), 7)
    assert _eager._cache_size() == before + 1
    assert type(entangle(3, 4)) is type(W)


def test_under_vmap_and_grad_a_signature_is_compiled_once():
    compilations = []
    monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compilations.append(name) if name.endswith("backend_compile_duration") else None
    )
    f = jax.vmap(jax.grad(lambda p, w: entangle(p * p, w)), in_axes=(0, 0))
    x = jnp.ones(19)
    f(x, x)
    assert compilations, "compilations are not seen"
    compilations.clear()
    for _ in range(3):
        f(x, x)
    assert compilations == []


def test_calls_from_many_threads_do_not_disturb_each_other():
    """Each in its own thread: eager calls, eager batches and jit turned off, all at once."""
    failures = []

    def work(number):
        try:
            for i in range(20):
                x = jnp.full(3, float(number * 100 + i))
                if number % 3 == 0:
                    result = entangle(x, W)
                elif number % 3 == 1:
                    result = jax.vmap(lambda x: entangle(x, W))(x)
                else:
                    with jax.disable_jit():
                        result = entangle(x, W)
                        assert jax.config.jax_disable_jit
                np.testing.assert_array_equal(result, x)
                assert jax.config.jax_disable_jit is False
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_disable_jit(slots):
    with jax.disable_jit():
        x, w = jnp.arange(3.0), jnp.ones(2)
        np.testing.assert_array_equal(entangle(x, w), x)
        np.testing.assert_array_equal(jax.jit(lambda x: entangle(x, w))(x), x)
        np.testing.assert_array_equal(jax.vmap(lambda x: entangle(x, w))(x), x)
        assert jax.grad(lambda x: entangle(x, x) * 2)(1.0) == 2
        carry, _ = jax.lax.scan(lambda c, _: (entangle(c + 1, c), c), 0.0, None, length=3)
        assert carry == 3
        token = slot(0)
        before = read(token)
        token = write(entangle(token, before), 4.0)
        assert (float(before), float(read(token))) == (0, 4)


def test_debug_nans_does_not_look_at_witnesses():
    nan = jnp.float32(np.nan)
    with jax.debug_nans(True):
        assert entangle(W, nan) == 1
        assert jax.jit(lambda x: entangle(x, nan))(W) == 1
        with pytest.raises(FloatingPointError):
            entangle(nan, W)  # as for every operation that returns one


def test_debug_infs_and_checking_leaks():
    inf = jnp.float32(np.inf)
    with jax.debug_infs(True), jax.checking_leaks():
        assert entangle(W, inf) == 1
        assert jax.jit(lambda x: jax.vmap(lambda y: entangle(y, x))(jnp.ones(2)))(W).shape == (2,)


@pytest.mark.parametrize("x64", [True, False])
def test_enable_x64(x64):
    with jax.enable_x64(x64):
        wide = jnp.float64 if x64 else jnp.float32
        assert entangle(np.float64(0.1), W).dtype == wide
        assert entangle(1.5, W).dtype == wide
        assert jax.typeof(entangle(1.5, W)).weak_type
        assert entangle(np.arange(3), W).dtype == (jnp.int64 if x64 else jnp.int32)
        assert entangle(jnp.arange(3, dtype=jnp.int8), np.float64(3)).dtype == jnp.int8


def test_numpy_dtype_promotion_strict():
    with jax.numpy_dtype_promotion("strict"):
        assert entangle(jnp.int8(1), W, jnp.uint32(3)) == 1
        assert jax.jvp(lambda x: entangle(x, jnp.int8(1)), (W,), (W,))[1] == 1


def test_an_eager_result_is_committed_as_its_payload_is():
    device = jax.devices()[1]
    committed, free = jax.device_put(W, device), jnp.float32(1)
    assert entangle(committed, free).devices() == {device}
    assert entangle(committed, free).committed
    assert not entangle(free, free).committed


def test_calls_on_every_device():
    for device in jax.devices():
        assert entangle(jax.device_put(W, device), jax.device_put(W, device)).devices() == {device}


KINDS = ["device", "pinned_host", *(["unpinned_host"] if jax.default_backend() == "cpu" else [])]


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_kind_stays_as_it_does_through_the_identity(kind):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=kind)
    x = jax.device_put(jnp.ones(4), sharding)
    identity = jax.jit(lambda x: x)(x)
    for function in (entangle, jax.jit(entangle)):
        result = function(x, W)
        assert result.sharding.memory_kind == identity.sharding.memory_kind
        np.testing.assert_array_equal(result, x)
        assert function(W, x).sharding.memory_kind == "device"
        assert function((W, x), W)[0].sharding.memory_kind == "device"
    if jax.__version_info__ >= (0, 10, 2) and kind == "pinned_host":
        assert identity.sharding.memory_kind == kind  # before, a program on the host knew one kind of memory alone
    assert jax.typeof(jax.eval_shape(entangle, x, W)) == jax.typeof(jax.eval_shape(lambda x: x, x))


def test_a_memory_space_inside_a_program_stays():
    def program(x):
        host = entangle(jax.device_put(x, jax.memory.Space.Host), x + 1)
        assert jax.typeof(host).memory_space == jax.memory.Space.Host
        device = entangle(x, host)
        assert jax.typeof(device).memory_space == jax.memory.Space.Device
        return jax.device_put(host, jax.memory.Space.Device) + device

    np.testing.assert_array_equal(jax.jit(program)(jnp.ones(3)), 2 * np.ones(3))
