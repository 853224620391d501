"""`Handle`: order by construction, a pytree like any other, and a warning for a handle that is used twice."""

import copy
import functools
import pickle
import warnings

import handle_checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from handle_checks import HAZARDS, TARGETS, check_hazard, two_devices, write
from jax.ad_checkpoint import checkpoint_name

from entangle_jax import Handle, audit, testing


def name_of(check):
    return check.keywords["hazard"].__name__ if isinstance(check, functools.partial) else check.__name__


@pytest.mark.parametrize("check", handle_checks.CHECKS, ids=name_of)
def test_what_every_handle_must_do(check):
    check(Handle)


@pytest.mark.parametrize("hazard", HAZARDS, ids=lambda hazard: hazard.__name__)
def test_no_run_of_a_hazard_reads_a_wrong_value(hazard):
    check_hazard(Handle, hazard, runs=20)


@pytest.mark.parametrize("length", range(2, 7))
def test_no_read_of_a_chain_is_merged_with_another(slots, length):
    def program(token):
        handle, seen = Handle(token), []
        for i in range(length):
            _, handle = handle.write(testing.write, i + 1.0)
            now, handle = handle.read(testing.read)  # without a label: to XLA all of them are equal
            seen.append(now)
        return jnp.stack(seen)

    compiled = jax.jit(program).lower(slots.slot(0)).compile()
    assert audit(compiled, **TARGETS).races == ()
    for _ in range(20):
        slots.reset()
        np.testing.assert_array_equal(compiled(slots.slot(0)), np.arange(1, length + 1))


@pytest.mark.parametrize("hazard", HAZARDS, ids=lambda hazard: hazard.__name__)
def test_audit_finds_no_race_when_the_handle_is_an_argument(hazard):
    report = audit(hazard, Handle(testing.slot(0)), handle_checks.noise(), **TARGETS)
    assert report.races == ()
    assert {call.kind for call in report.calls} == {"read", "write", "entangle"}


def test_audit_finds_the_old_handle_that_no_warning_can_see():
    def program(handle):
        seen, _ = jax.jit(lambda handle: handle.read(testing.read))(handle)
        written, _ = handle.write(testing.write, 1.0)
        return seen, written

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = audit(program, Handle(testing.slot(0)), **TARGETS)
    (race,) = report.races
    assert {race.first.kind, race.second.kind} == {"read", "write"}


def test_outside_of_jit_accesses_run_in_order(slots):
    x = handle_checks.noise()
    seen, handle, _ = handle_checks.read_write_read(Handle(slots.slot(0)), x, 1.0)
    write(handle.wait(), "free", 0.0).block_until_ready()
    np.testing.assert_array_equal(seen, [0, 1])
    assert [access.label for access in slots.log()] == ["before", "write", "after", "free"]


# A pytree like any other.

TOKENS = {
    "int": lambda: testing.slot(0),
    "python int": lambda: 0,
    "numpy": lambda: np.int64(0),
    "float": lambda: jnp.float32(0),
    "array": lambda: jnp.zeros((2, 3), jnp.uint8),
    "key": lambda: jax.random.key(0),
    "tree": lambda: {"id": testing.slot(0), "rest": (jnp.zeros(2), None)},
}


def use(token, x):
    return x + sum(leaf.size for leaf in jax.tree.leaves(token))


def accesses(handle, x):
    for _ in range(2):
        y, handle = handle.read(use, x)
        y, handle = handle.write(use, y)
        y, handle = handle.read(use, y)
    return y, handle


def in_scan(handle, x):
    handle, x = jax.lax.scan(lambda handle, x: accesses(handle, x)[::-1], handle, jnp.stack([x, x]))
    return x, handle


def in_while_loop(handle, x):
    x, handle = jax.lax.fori_loop(0, 3, lambda _, carry: accesses(carry[1], carry[0]), (x, handle))
    return x, handle


def in_cond(handle, x):
    return jax.lax.cond(x > 0, accesses, lambda handle, x: (x, handle), handle, x)


def in_vmap(handle, x):
    return jax.vmap(accesses, in_axes=(None, 0), out_axes=(0, None))(handle, jnp.stack([x, x]))


def in_grad(handle, x):
    def loss(x):
        y, after = accesses(handle, x)
        return y, after

    return jax.grad(loss, has_aux=True)(x)


def in_shard_map(handle, x):
    """Every device has its own result, and the handle stays one for all of them."""
    specs = {"in_specs": (jax.P(), jax.P("d")), "out_specs": (jax.P("d"), jax.P())}
    program = jax.shard_map(in_scan_over_devices, mesh=two_devices(), **specs)
    return program(handle, jnp.stack([x, x]))


def in_scan_over_devices(handle, x):
    x, handle = in_scan(handle, x[0])
    return x[None], handle


TRANSFORMS = [
    accesses,
    jax.jit(accesses),
    in_scan,
    in_while_loop,
    in_cond,
    in_vmap,
    in_grad,
    jax.checkpoint(accesses),
    in_shard_map,
]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize(
    "transform", TRANSFORMS, ids=["none", "jit", "scan", "while", "cond", "vmap", "grad", "checkpoint", "shard_map"]
)
def test_structure_shapes_and_dtypes_do_not_change_with_accesses(transform, token):
    handle = Handle(TOKENS[token]())
    _, after = jax.jit(transform)(handle, jnp.float32(1))
    assert jax.tree.structure(after) == jax.tree.structure(handle)
    for leaf, leaf_after in zip(jax.tree.leaves(handle), jax.tree.leaves(after), strict=True):
        types = jax.typeof(leaf), jax.typeof(leaf_after)
        assert len({(type_.shape, type_.dtype, type_.weak_type) for type_ in types}) == 1
        if leaf.dtype == jax.random.key(0).dtype:
            leaf, leaf_after = jax.random.key_data(leaf), jax.random.key_data(leaf_after)
        np.testing.assert_array_equal(leaf, leaf_after)


def test_a_number_as_token_is_of_the_type_that_a_native_call_returns():
    def body(handle, _):
        written, handle = handle.write(testing.write, 1.0, token=lambda written: written)
        return handle, written

    handle, _ = jax.lax.scan(body, Handle(0), None, length=2)
    assert handle.token.dtype == jnp.int32


def test_the_leaves_are_named():
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(Handle(0))]
    assert paths == [".token", ".fence"]


@pytest.mark.parametrize("in_axes", [0, Handle(0, 0)])
def test_a_batch_of_handles_is_batched_like_a_token(slots, in_axes):
    def program(handle, value):
        before, handle = handle.read(testing.read)
        _, handle = handle.write(testing.write, value)
        after, handle = handle.read(testing.read)
        return (before, after), handle

    values = jnp.arange(1.0, 4.0)
    (before, after), handle = jax.jit(jax.vmap(program, (in_axes, 0)))(Handle(jnp.arange(3)), values)
    np.testing.assert_array_equal(before, np.zeros(3))
    np.testing.assert_array_equal(after, values)
    np.testing.assert_array_equal(handle.token, np.arange(3))
    np.testing.assert_array_equal(handle.fence, np.arange(3))


def test_handles_of_several_devices_go_through_shard_map(slots):
    def program(handle):
        handle = jax.tree.map(lambda leaf: leaf[0], handle)
        before, handle = handle.read(testing.read)
        _, handle = handle.write(testing.write, handle.token.astype(float) + 1)
        after, handle = handle.read(testing.read)
        return jnp.stack([before, after])[None], jax.tree.map(lambda leaf: leaf[None], handle)

    spec = jax.P("d")
    program = jax.jit(jax.shard_map(program, mesh=two_devices(), in_specs=spec, out_specs=spec))
    seen, _ = program(Handle(jnp.arange(2)))
    np.testing.assert_array_equal(seen, [[0, 1], [0, 2]])


def test_batched_reads_leave_the_write_after_them_one_write(slots):
    jax.block_until_ready(jax.jit(handle_checks.in_vmap)(Handle(slots.slot(0)), handle_checks.noise()))
    assert [access.op for access in slots.log()] == ["read", "read", "write", "read", "read"]


# Derivatives.


def through_a_handle(theta, x):
    handle = Handle(theta)
    a, handle = handle.read(lambda theta, x: theta * x, x)
    b, handle = handle.write(lambda theta, a: theta * theta * a, a, token=lambda result: result)
    c, handle = handle.read(lambda theta: 3 * theta)
    d, handle = handle.write(lambda theta, c: theta * c, c)
    return a + b + c + d + handle.token * x + handle.wait()


def directly(theta, x):
    a = theta * x
    b = theta * theta * a
    c = 3 * b
    return a + b + c + b * c + b * x + b


def test_derivatives_by_a_float_token_are_as_without_a_handle():
    primals, tangents = (jnp.float32(1.5), jnp.float32(0.7)), (jnp.float32(0.3), jnp.float32(-2))
    for transform in (lambda f: f, jax.jit, jax.checkpoint):
        ours = transform(through_a_handle)
        for derive in (
            lambda f: jax.value_and_grad(f, (0, 1))(*primals),
            lambda f: jax.jvp(f, primals, tangents),
            lambda f: jax.linearize(f, *primals)[1](*tangents),
            lambda f: jax.hessian(f)(*primals),
        ):
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), derive(ours), derive(directly))


def test_the_derivative_by_a_handle_is_one_by_its_parts():
    def loss(handle):
        a, handle = handle.read(jnp.sin)
        b, handle = handle.write(jnp.cos)
        return a + b

    gradient = jax.grad(loss)(Handle(jnp.float32(0.5)))
    np.testing.assert_allclose(gradient.token, np.cos(0.5), rtol=1e-6)  # of the read
    np.testing.assert_allclose(gradient.fence, -np.sin(0.5), rtol=1e-6)  # of the write


@jax.custom_vjp
def scale(token, x):
    """A call that reads the object and whose derivative reads it too, as a solve does."""
    return testing.read(token, label="forward") * x


scale.defvjp(
    lambda token, x: (scale(token, x), token), lambda token, ct: (None, testing.read(token, ct, label="backward") * ct)
)


def test_gradients_through_native_reads_are_those_of_the_object_as_it_was_read(slots):
    def loss(x, handle):
        _, handle = handle.write(testing.write, 3.0)
        y, handle = handle.read(scale, x)
        return y * y, handle

    (value, handle), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.float32(2), Handle(slots.slot(0)))
    assert (value, gradient) == (36.0, 36.0)
    assert [access.label for access in slots.log()] == [None, "forward", "backward"]
    assert jax.tree.structure(handle) == jax.tree.structure(Handle(0))


def test_saved_results_are_not_read_again_under_checkpoint(slots):
    def loss(x, handle):
        @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("native"))
        def block(x, handle):
            y, handle = handle.read(lambda token, x: checkpoint_name(testing.read(token, x), "native"), x)
            return jnp.sin(x * y), handle

        y, handle = block(x, handle)
        _, handle = handle.write(testing.write, 7.0)  # what would be read again from here on is something else
        return y, handle

    testing.reset(0.5)
    gradient, _ = jax.jit(jax.grad(loss, has_aux=True))(jnp.float32(2), Handle(slots.slot(0)))
    np.testing.assert_allclose(gradient, 0.5 * np.cos(1.0), rtol=1e-6)
    assert [access.op for access in slots.log()] == ["read", "write"]


# Joined, pickled and copied.


def test_join_may_be_called_on_the_first_of_them():
    joined = Handle(testing.slot(0)).join(Handle(testing.slot(1)), Handle(testing.slot(2)))
    assert [int(token) for token in joined.token] == [0, 1, 2]


@pytest.mark.parametrize("again", [lambda h: pickle.loads(pickle.dumps(h)), copy.copy, copy.deepcopy])
def test_a_handle_that_was_used_can_be_pickled_and_copied(again, slots):
    _, handle = Handle(testing.slot(0)).write(testing.write, 1.0)
    handle = again(handle)
    value, handle = handle.read(testing.read)
    assert value == 1
    handle.write(testing.write, 2.0)


def test_what_was_joined_is_split_as_well_where_its_past_is_not_known():
    slots = testing.slot(0), testing.slot(1)
    one, other = Handle.join(*map(Handle, slots)), jax.jit(lambda handle: handle)(Handle.join(*map(Handle, slots)))
    for joined in (one, other, Handle(slots)):
        assert [int(handle.token) for handle in joined.split()] == [0, 1]
