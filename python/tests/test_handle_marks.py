"""The audit knows the accesses through a `Handle` without being told, and `ordered` leaves their order to it."""

import compiled
import jax
import jax.numpy as jnp

from entangle_jax import Handle, audit, ordered, testing


def program(handle, x):
    before, handle = handle.read(testing.read, x)
    _, handle = handle.write(testing.write, 1.0)
    after, handle = handle.read(testing.read)
    return before, after, handle


def test_accesses_through_a_handle_are_known_and_in_order():
    report = audit(program, Handle(testing.slot(0)), jnp.ones(3))
    assert [call.kind for call in report.calls if call.program == "compiled" and call.kind != "entangle"] == [
        "read",
        "write",
        "read",
    ]
    report.raise_if_races()


def test_an_access_past_the_handle_is_a_race():
    def fn(handle, x):
        before, handle = handle.read(testing.read, x)
        return before, handle, Handle(handle.token).write(testing.write, 1.0)

    assert audit(fn, Handle(testing.slot(0)), jnp.ones(3)).races


def test_two_handles_are_two_objects():
    def fn(a, b):
        return a.read(testing.read), b.write(testing.write, 1.0)

    assert not audit(fn, Handle(testing.slot(0)), Handle(testing.slot(1))).races


def test_through_loops_and_transformations():
    def fn(handle, x):
        def body(handle, k):
            _, handle = handle.write(testing.write, k)
            seen, handle = handle.read(testing.read, x)
            return handle, seen

        return jax.lax.scan(body, handle, jnp.arange(3.0))

    audit(fn, Handle(testing.slot(0)), jnp.ones(3)).raise_if_races()


def test_ordered_adds_nothing_to_accesses_through_a_handle():
    args = Handle(testing.slot(0)), jnp.ones(3)
    texts = [compiled.text(fn, *args) for fn in (program, ordered(program))]
    assert len(compiled.native_calls(texts[0])) == len(compiled.native_calls(texts[1])) == 3
