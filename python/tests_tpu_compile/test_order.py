"""Calls of the host, which share no data, are ordered by what entangle puts between them."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absent import STATUS, array, compile_for_tpu, kernels, paths, read, write
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from entangle_jax import Handle, RaceError, _native, audit, entangle, ordered, reads, writes

TOKEN = array(dtype="int32")


def nothing(payload, *witnesses):
    del witnesses
    return payload


def barrier(payload, *witnesses):
    return jax.lax.optimization_barrier((payload, *witnesses))[0]


def read_write_read(tie):
    def program(token, value):
        before = read(token, "before")
        done = write(tie(token, before), value, "write")
        return before, read(tie(token, done), "after")

    return program


def test_a_read_a_write_and_a_read_keep_their_order():
    found = paths(compile_for_tpu(read_write_read(entangle), TOKEN, TOKEN))
    assert "call_before" in found["call_write"]
    assert "call_write" in found["call_after"]


@pytest.mark.parametrize("tie", [nothing, barrier])
def test_without_entangle_no_path_is_left(tie):
    # What the test above would see.
    found = paths(compile_for_tpu(read_write_read(tie), TOKEN, TOKEN))
    assert "call_before" not in found["call_write"]
    assert "call_write" not in found.get("call_after", ())


def test_the_order_of_a_handle_is_kept():
    def program(handle, value):
        before, handle = handle.read(read, "before")
        _, handle = handle.write(write, value, "write")
        return before, handle.read(read, "after")[0]

    found = paths(compile_for_tpu(program, Handle(TOKEN, TOKEN), TOKEN))
    assert "call_before" in found["call_write"]
    assert "call_write" in found["call_after"]


@pytest.mark.parametrize("order", [ordered, lambda fn: fn], ids=["ordered", "marked alone"])
def test_marked_callbacks_are_in_order_under_ordered_alone(order):
    look, change = reads("tpu.object", handle=0)(read), writes("tpu.object", handle=0)(write)

    def program(token, value):
        before = look(token, "before")
        change(token, value, "write")
        return before, look(token, "after")

    found = paths(compile_for_tpu(order(program), TOKEN, TOKEN))
    assert ("call_before" in found["call_write"]) == (order is ordered)
    assert ("call_write" in found.get("call_after", ())) == (order is ordered)


@pytest.mark.parametrize("tie", [entangle, nothing])
def test_in_a_loop_every_iteration_waits_for_the_one_before(tie):
    def program(token, values):
        def body(token, value):
            before = read(token, "read")
            done = write(tie(token, before), value, "write")
            return tie(token, done), before

        return jax.lax.scan(body, token, values)

    found = paths(compile_for_tpu(program, TOKEN, array(5, dtype="int32")))
    assert ("call_read@0" in found["call_write@0"]) == (tie is entangle)
    assert ("call_write@0" in found.get("call_read@1", ())) == (tie is entangle)


@pytest.mark.parametrize("tie", [entangle, nothing])
def test_in_a_branch(tie):
    def program(token, value, choice):
        before = read(token, "before")
        token = tie(token, before)
        done = jax.lax.cond(
            choice > 0, lambda: write(token, value, "write"), lambda: tie(token + 1, read(token + 1, "other"))
        )
        return before, read(tie(token, done), "after")

    found = paths(compile_for_tpu(program, TOKEN, TOKEN, TOKEN))
    assert ("call_before" in found["call_write"]) == (tie is entangle)
    assert ("call_write" in found.get("call_after", ())) == (tie is entangle)
    assert ("call_other" in found.get("call_after", ())) == (tie is entangle)


def tangent(function):
    return lambda x: jax.jvp(function, (x,), (x,))[1]


@pytest.mark.parametrize("transform", [jax.vmap, jax.grad, jax.checkpoint, jax.jit, tangent])
def test_under_a_transformation_the_order_stays(transform):
    """`read` and `write` here are of a whole batch."""

    def program(token, x):
        before = read(token, "before").astype(jnp.float32)

        def inner(x):
            return jnp.sin(entangle(jnp.sin(x), before))

        x = transform(inner)(x)
        with jax.named_scope("call_after"):
            return io_callback(lambda x: np.int32(0), STATUS, x)

    found = paths(compile_for_tpu(program, TOKEN, array(*(() if transform is jax.grad else (8,)))))
    # A derivative in reverse mode is not ordered, but its value is computed of what is.
    assert "call_before" in found["call_after"]


def test_all_leaves_move_together():
    def program(a, b, c, w):
        with jax.named_scope("call_made"):
            made = io_callback(lambda x: x, jax.ShapeDtypeStruct(a.shape, a.dtype), a)
        tied = entangle({"made": made, "b": b, "c": c}, w)
        for name in "bc":
            with jax.named_scope(f"call_{name}"):
                io_callback(lambda x: None, None, tied[name])
        return tied["made"]

    arguments = array(8), array(3, 5, dtype="float16"), array(dtype="bool"), array(16)
    hlo = compile_for_tpu(program, *arguments)
    assert len(kernels(hlo)) == 1
    found = paths(hlo)
    assert "call_made" in found["call_b"]
    assert "call_made" in found["call_c"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "complex64", "int8"])
def test_a_witness_of_several_sources_waits_for_each(dtype):
    """XLA drops what nothing needs: were a witness cut down to an element, one of the sources would go."""

    def source(label, token):
        with jax.named_scope(f"call_{label}"):
            return jax.pure_callback(
                lambda t: np.zeros(128, np.float32), jax.ShapeDtypeStruct((128,), jnp.float32), token
            )

    def program(token):
        if dtype == "complex64":
            witness = jax.lax.complex(source("left", token), source("right", token + 1))
        else:
            witness = jnp.concatenate([source("left", token), source("right", token + 1)]).astype(dtype)
        return read(entangle(token, witness), "after")

    found = paths(compile_for_tpu(program, TOKEN))
    assert {"call_left", "call_right"} <= found["call_after"]


ACCESSES = {
    "reads": [_native.Access(writes=False, op_name=f"call_{name}") for name in ("before", "after")],
    "writes": [_native.Access(writes=True, op_name="call_write")],
}


def test_the_audit_finds_the_race_and_proves_the_order():
    report = audit(jax.jit(read_write_read(entangle)).lower(TOKEN, TOKEN), **ACCESSES)
    assert report.programs == ("as written", "compiled")
    assert report.races == ()
    assert len(report.entangles) == 2
    without = audit(jax.jit(read_write_read(nothing)).lower(TOKEN, TOKEN), **ACCESSES)
    assert {(race.first.kind, race.second.kind) for race in without.races} >= {("read", "write")}
    with pytest.raises(RaceError, match="test_order"):
        without.raise_if_races()


def test_the_audit_says_what_a_payload_cost():
    (cost,) = audit(jax.jit(entangle).lower(array(1024, 1024), array())).entangles
    assert cost.payload_bytes == 1024 * 1024 * 4
    assert [copy.why for copy in cost.copies] == ["argument not donated"]
    (cost,) = audit(jax.jit(entangle, donate_argnums=0).lower(array(1024, 1024), array())).entangles
    assert cost.copies == ()


def test_a_kernel_with_side_effects_is_an_access():
    def kernel(name, token):
        out = jax.ShapeDtypeStruct((1,), jnp.int32)
        call = pl.pallas_call(
            lambda i, o: None,
            out_shape=out,
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            compiler_params=pltpu.CompilerParams(has_side_effects=True),
            name=name,
        )
        with jax.named_scope(f"call_{name}"):
            return call(token)

    def program(tie):
        def run(token):
            done = kernel("write", token)
            return done, kernel("after", tie(token, done))

        return run

    token = array(1, dtype="int32")
    with jax.sharding.use_abstract_mesh(token.sharding.mesh.abstract_mesh):
        assert audit(jax.jit(program(entangle)).lower(token), **ACCESSES).races == ()
        assert audit(jax.jit(program(nothing)).lower(token), **ACCESSES).races


def test_a_call_without_operands_in_a_branch_of_an_entangled_true_waits():
    def program(tie):
        def run(token, value):
            done = write(token, value, "write")

            def bare():
                with jax.named_scope("call_after"):
                    return io_callback(lambda: np.int32(0), STATUS)

            return jax.lax.cond(tie(jnp.bool_(True), done), bare, lambda: jnp.int32(0))

        return run

    lowered = jax.jit(program(entangle)).lower(TOKEN, TOKEN)
    assert len(compiled.instructions(lowered.compile().as_text(), "conditional")) == 1
    assert audit(lowered, **ACCESSES).races == ()
    assert audit(jax.jit(program(nothing)).lower(TOKEN, TOKEN), **ACCESSES).races
