"""The native slots, which other packages test with: what runs, how often, and what the log says of it."""

import doctest
import threading

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import entangle_jax.testing
from entangle_jax.testing import READ_TARGET, WRITE_TARGET, Access, log, read, reset, slot, write


def test_the_example_of_the_module_runs():
    assert doctest.testmod(entangle_jax.testing).failed == 0


def test_a_slot_holds_what_was_written_and_the_log_says_so(slots):
    token = slot(7)
    assert (token.shape, token.dtype, int(token)) == ((), jnp.int32, 7)
    assert read(token, label="first") == 0
    token = write(token, 2.5)
    assert int(token) == 7
    assert read(token) == 2.5
    assert read(slot(8)) == 0
    wanted = [("read", 7, 0.0, "first"), ("write", 7, 2.5, None), ("read", 7, 2.5, None), ("read", 8, 0.0, None)]
    assert log() == tuple(Access(*each) for each in wanted)


def test_reset_gives_every_slot_a_value_and_empties_the_log(slots):
    write(slot(1), 5.0).block_until_ready()
    reset(3.0)
    assert log() == ()
    assert read(slot(1)) == read(slot(2)) == 3


@pytest.mark.parametrize("index", [-1, 2**31])
def test_a_slot_that_cannot_be_is_an_error(index):
    with pytest.raises(ValueError, match=rf"the index is {index}, wanted 0 to 2147483647"):
        slot(index)


def test_the_index_of_a_slot_is_an_integer():
    assert [slot(index) for index in (3, np.uint8(3), jnp.int32(3), True)] == [3, 3, 3, 1]
    for index in ("a", None, 1.5, jnp.float32(1)):
        with pytest.raises(TypeError, match=r"the index is of type \w+, wanted an int"):
            slot(index)


def test_other_mistakes_are_told_where_they_are_made():
    with pytest.raises(TypeError, match=r"the value is float32\[3\], wanted a scalar"):
        write(slot(0), jnp.ones(3))
    with pytest.raises(TypeError, match="the label is of type int, wanted a str"):
        read(slot(0), label=3)
    with pytest.raises(TypeError, match="the token is a Handle; pass this function to its `read` or `write`"):
        read(entangle_jax.Handle(slot(0)))


@pytest.mark.parametrize("token", [jnp.float32(1), jnp.uint8(1), 1.0, jnp.arange(2)])
def test_a_token_of_the_wrong_type_is_an_error(token):
    for access in (read, lambda token: write(token, 1.0)):
        with pytest.raises(TypeError, match=r"the token is \S+\[\d?\], wanted an int32 scalar from `slot`"):
            access(token)


def test_operands_of_a_read_are_inputs_and_nothing_more(slots):
    operands = jnp.ones((3, 4)), jnp.bool_(True), jnp.zeros(0), jax.random.key(0), 3
    assert jax.jit(lambda token, operands: read(token, *operands))(slot(0), operands) == 0
    (call,) = compiled.native_calls(compiled.text(lambda t, x: read(t, x + 1), slot(0), jnp.ones(3)), READ_TARGET)
    assert len(call.operands) == 2


def test_a_write_stays_and_a_read_may_go(slots):
    @jax.jit
    def program(token):
        read(token, label="dropped")
        write(token, 1.0, label="kept")
        return token

    program(slot(0)).block_until_ready()
    assert [access.label for access in log()] == ["kept"]
    hlo = compiled.text(program, slot(0))
    (call,) = compiled.native_calls(hlo, WRITE_TARGET)
    assert "custom_call_has_side_effect=true" in call.text


@pytest.mark.parametrize(
    ("axes", "runs"),
    [((0, None), 3), ((None, 0), 3), ((0, 0), 3), ((None, None), 1)],
    ids=["token", "other", "both", "none"],
)
def test_in_a_batch_a_call_runs_once_an_element_if_an_input_is_batched(axes, runs, slots):
    tokens, values = slot(0) + jnp.arange(3, dtype=jnp.int32), jnp.arange(3.0) + 1

    def program(tokens, values):
        arguments = (tokens if axes[0] == 0 else tokens[0], values if axes[1] == 0 else values[0])
        ones = jnp.ones(3)
        access = jax.vmap(lambda token, value, _: (read(token, value), write(token, value)), in_axes=(*axes, 0))
        return access(*arguments, ones)

    jax.block_until_ready(jax.jit(program)(tokens, values))
    assert [access.op for access in log()].count("write") == runs
    assert [access.op for access in log()].count("read") == runs


def test_no_derivative_comes_from_a_slot(slots):
    assert jax.grad(lambda x: read(slot(0), x) * x + x)(2.0) == 1
    assert jax.jvp(lambda x: write(slot(0), x), (2.0,), (1.0,))[1].dtype == jax.dtypes.float0


def test_the_log_of_many_threads_is_whole(slots):
    f = jax.jit(lambda token, value: read(write(token, value)))

    def work(number):
        for i in range(50):
            f(slot(number), float(i)).block_until_ready()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        mine = [access for access in log() if access.slot == number]
        assert [(access.op, access.value) for access in mine] == [
            (op, float(i)) for i in range(50) for op in ("write", "read")
        ]


def test_labels_of_any_text(slots):
    for label in ("", "ä ☃", 'with "quotes" and \\', "x" * 1000):
        jax.jit(lambda token, label=label: read(token, label=label))(slot(0)).block_until_ready()
    assert [access.label for access in log()] == ["", "ä ☃", 'with "quotes" and \\', "x" * 1000]


def test_in_shard_map_a_result_varies_as_its_inputs_do(slots):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")

    def each(token, xs):
        assert not jax.typeof(read(token)).mat.varying
        assert jax.typeof(write(token, xs[0])).mat.varying == {"i"}
        return read(token, xs)[None]

    program = jax.shard_map(each, mesh=mesh, in_specs=(jax.sharding.PartitionSpec(), spec), out_specs=spec)
    result = jax.block_until_ready(jax.jit(program)(slot(50), jnp.arange(4.0)))  # or it runs into the next test
    assert result.shape == (4,)
