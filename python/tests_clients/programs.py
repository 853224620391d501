"""Programs against what is public in entangle-jax 0.1.1, `from entangle_jax import entangle`, and what comes of them.

`python programs.py` runs all of them with whatever `entangle_jax` is installed and prints `{name: outcome}` as JSON.
`test_drop_in.py` does that for 0.1.1 and for this package and compares.
"""

import importlib.metadata
import json
import re
import warnings

import jax
import jax.export

jax.config.update("jax_num_cpu_devices", 2)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from entangle_jax import entangle  # noqa: E402

try:
    from entangle_jax.testing import read, reset, write
except ImportError:  # 0.1.1, where these are private
    from entangle_jax._testing import read, reset_slots, write

    def reset():
        reset_slots()
        for slot in range(4):
            write(slot, 0.0).block_until_ready()


PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


X = jnp.arange(6.0)
TOKEN = jnp.asarray(0, jnp.int32)


def hlo(function, *arguments, **options):
    return jax.jit(function, **options).lower(*arguments).compile().as_text()


def native_calls(function, *arguments):
    return len(re.findall(r'custom_call_target="entangle(?:_jax)?"', hlo(function, *arguments)))


# What every caller does.


@program
def value_outside_of_jit():
    return entangle(X, X + 1)


@program
def value_under_jit():
    return jax.jit(entangle)(X, X + 1)


@program
def bits_are_kept():
    bits = np.array([0x7FA00001, 0x80000000, 1, 0xFF800000], np.uint32)
    return np.asarray(jax.jit(entangle)(bits.view(np.float32), TOKEN)).view(np.uint32)


@program
def dtypes():
    names = ["bool", "int8", "uint16", "int32", "bfloat16", "float16", "float32", "complex64"]
    return [str(jax.jit(entangle)(jnp.ones(2, name), jnp.ones((), name)).dtype) for name in names]


@program
def a_pytree_with_none():
    return jax.jit(entangle)({"a": X, "b": (TOKEN, None)}, [X, {"w": TOKEN}])


@program
def no_witness():
    payload = {"a": X}
    return entangle(payload) is payload


@program
def several_witnesses():
    return jax.jit(entangle)(X, TOKEN, X * 2, (X, TOKEN))


@program
def a_payload_that_is_a_witness():
    return jax.jit(lambda x: entangle((x, x + 1), x))(X)


def ordered(token):
    before = read(token)
    token = write(entangle(token, before), 1.0)
    between = read(token)
    token = write(entangle(token, between), 2.0)
    return jnp.stack([before, between, read(token)])


@program
def native_calls_in_order():
    reset()
    return jax.jit(ordered)(TOKEN)


@program
def native_calls_in_order_in_a_scan():
    reset()

    def body(token, value):
        before = read(token)
        token = write(entangle(token, before), value)
        return token, before

    return jax.jit(lambda token: jax.lax.scan(body, token, jnp.arange(1.0, 5.0))[1])(TOKEN)


@program
def in_cond_and_while_loop():
    def body(carry):
        x, i = carry
        return jax.lax.cond(i % 2 == 0, lambda x: entangle(x + 1, x), lambda x: entangle(x * 2, i), x), i + 1

    return jax.jit(lambda x: jax.lax.while_loop(lambda carry: carry[1] < 4, body, (x, 0)))(X)


@program
def batched():
    return jax.vmap(entangle)(X, X + 1)


@program
def jvp_of_the_payload():
    return jax.jvp(lambda x: jnp.sin(entangle(x, TOKEN)), (X,), (X,))


@program
def gradient_by_the_payload():
    return jax.jit(jax.grad(lambda x: jnp.vdot(X, entangle(x, TOKEN) ** 2)))(X)


@program
def gradient_past_a_stopped_witness():
    return jax.grad(lambda x: jnp.sum(entangle(x, jax.lax.stop_gradient(x * 2)) ** 2))(X)


@program
def under_checkpoint():
    return jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(entangle(x, TOKEN)))))(X)


@program
def hessian():
    return jax.hessian(lambda x: jnp.sum(entangle(x, TOKEN) ** 3))(X)


@program
def a_donated_payload():
    x = jnp.ones(8)
    pointer = x.unsafe_buffer_pointer()
    return jax.jit(entangle, donate_argnums=0)(x, TOKEN).unsafe_buffer_pointer() == pointer


# Where the two part.


@program
def a_differentiated_witness():
    return jax.grad(lambda x: jnp.sum(entangle(x, x * 2) ** 2))(X)


@program
def a_witness_without_leaves():
    return entangle(X, None)


@program
def a_payload_without_leaves():
    return entangle(None, X)


@program
def a_witness_without_elements():
    return entangle(X, jnp.zeros(0))


@program
def a_number_as_payload():
    return entangle(2.5, X)


@program
def a_number_as_witness():
    return native_calls(lambda x: entangle(x, 3), X)


@program
def a_numpy_array_outside_of_jit():
    return type(entangle(np.ones(2), X)).__name__


@program
def a_string_as_payload():
    return entangle("token", X)


@program
def a_key_as_payload():
    return jax.random.key_data(jax.jit(entangle)(jax.random.key(7), X))


@program
def weak_type_outside_of_jit():
    return entangle(jnp.asarray(1.0), X).weak_type


@program
def native_calls_of_ten_leaves_and_ten_witnesses():
    leaves = [X + i for i in range(10)]
    return native_calls(lambda p, w: entangle([x * 2 for x in p], [x * 3 for x in w]), leaves, leaves)


@program
def copies_of_two_large_witnesses():
    text = hlo(entangle, X, jnp.ones((64, 64)), jnp.ones((64, 64)))
    return len(re.findall(r"= f32\[64,64\]\S* copy\(", text))


@program
def a_loop_in_a_batched_call():
    return "while(" in hlo(jax.vmap(lambda x: entangle(x, x + 1)), X)


@program
def a_payload_that_is_not_batched():
    return jax.vmap(lambda w: entangle(X, w), out_axes=None)(jnp.ones(3))


@program
def collectives_of_a_sharded_call():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "d")
    split = jax.sharding.NamedSharding(mesh, jax.P("d"))
    x = jax.device_put(jnp.ones(8), split)
    text = hlo(lambda x, w: entangle(x * 2, w + 1), x, x)
    return sorted(set(re.findall(r"\b(all-gather|all-reduce|all-to-all|collective-permute)\b", text)))


@program
def name_in_a_jaxpr():
    return jax.make_jaxpr(entangle)(X, X).eqns[-1].primitive.name


@program
def export_with_the_check_for_entangle_disabled():
    check = jax.export.DisabledSafetyCheck.custom_call("entangle")
    return jax.export.export(jax.jit(entangle), disabled_checks=[check])(X, X).call(X, X)


@program
def requirements():
    return [each for each in importlib.metadata.requires("entangle-jax") if "extra ==" not in each]


def plain(outcome):
    """As JSON has it, numbers rounded to what both compute alike."""
    leaves, treedef = jax.tree.flatten(outcome, is_leaf=lambda x: x is None)
    leaves = [np.asarray(x, np.float64).round(4).tolist() if hasattr(x, "dtype") else x for x in leaves]
    return jax.tree.unflatten(treedef, leaves)


def outcome_of(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            text = json.dumps(plain(function()))
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0].split('. ')[0].split(' (')[0]}"
    ours = [warning for warning in caught if warning.category.__name__ == "OrderingWarning"]
    return text + " and an OrderingWarning" * bool(ours)


if __name__ == "__main__":
    print(json.dumps({name: outcome_of(function) for name, function in PROGRAMS.items()}, indent=1))
