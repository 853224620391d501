"""Exported, cached and serialized programs stay valid elsewhere; a platform without a handler gets a barrier."""

import warnings

import compiled
import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from entangle_jax import Handle, OrderingWarning, entangle, export_checks
from entangle_jax.testing import READ_TARGET, WRITE_TARGET, read, slot, write

SLOTS = [export.DisabledSafetyCheck.custom_call(target) for target in (READ_TARGET, WRITE_TARGET)]


def round_trip(function, *arguments, vjp_order=0, **options):
    function = function if hasattr(function, "lower") else jax.jit(function)
    exported = export.export(function, disabled_checks=[*export_checks(), *SLOTS], **options)(*arguments)
    return export.deserialize(exported.serialize(vjp_order=vjp_order))


def test_without_the_checks_the_export_is_refused_and_says_what_to_pass():
    with pytest.raises(ValueError, match=r"custom.call.*entangle"):
        export.export(jax.jit(lambda x, w: entangle(x, w)))(1.0, 2.0)


def test_values_and_order_survive_a_round_trip(slots):
    def program(token):
        before = read(token, label="a")
        token = write(entangle(token, before), 3.0, label="w")
        return before, read(token, label="b")

    loaded = round_trip(program, slot(0))
    assert [float(x) for x in loaded.call(slot(0))] == [0, 3]
    assert "a" in compiled.paths(compiled.text(loaded.call, slot(0)))["w"]


def test_derivatives_of_an_exported_function():
    loaded = round_trip(lambda x, w: entangle(jnp.sin(x), w), 1.0, 2.0, vjp_order=2)
    assert jax.grad(loaded.call, argnums=(0, 1))(1.0, 2.0) == (jnp.cos(1.0), 0)
    assert jax.grad(jax.grad(loaded.call))(1.0, 2.0) == -jnp.sin(1.0)


def test_symbolic_sizes():
    batch, length = export.symbolic_shape("b, n")
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((batch, 3), (2 * batch, length), ())]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a size that may be zero is no reason to warn
        loaded = round_trip(lambda x, w, s: (entangle((x * 2, s), w), entangle(s, w + 1)), *shapes)
    for b, n in ((1, 1), (4, 7)):
        x = jnp.arange(3.0 * b).reshape(b, 3)
        (got, _), s = loaded.call(x, jnp.ones((2 * b, n)), jnp.float32(5))
        np.testing.assert_array_equal(got, 2 * x)
        assert s == 5
    assert len(compiled.native_calls(compiled.text(loaded.call, x, jnp.ones((2 * b, n)), jnp.float32(5)))) == 2
    vmapped = round_trip(jax.vmap(lambda x, w: entangle(x, w)), *(jax.ShapeDtypeStruct((batch, 2), jnp.int8),) * 2)
    np.testing.assert_array_equal(vmapped.call(jnp.ones((5, 2), jnp.int8), jnp.ones((5, 2), jnp.int8)), np.ones((5, 2)))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_sharded_programs_stay_local(kind):
    """With Shardy; under GSPMD jax cannot call a sharded export, whatever is in it."""
    mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(64.0).reshape(8, 8), NamedSharding(mesh, P("i", "j")))
        w = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P(None, ("i", "j"))))
        loaded = round_trip(lambda x, w: entangle(x * 2, w + 1), x, w)
        hlo = compiled.text(loaded.call, x, w)
        assert compiled.collectives(hlo) == []
        assert compiled.native_calls(hlo)[0].shape.startswith("f32[4,4]")
        np.testing.assert_array_equal(loaded.call(x, w), 2 * x)


def test_symbolic_sizes_of_a_sharded_program_stay_local():
    """Only with Shardy and automatic axes: jax itself cannot call such an export under GSPMD or with explicit axes."""
    mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    shardings = (NamedSharding(mesh, P("i", "j")), NamedSharding(mesh, P(None, ("i", "j"))))
    (batch,) = export.symbolic_shape("b")
    shapes = (
        jax.ShapeDtypeStruct((4 * batch, 8), jnp.float32, sharding=shardings[0]),
        jax.ShapeDtypeStruct((8, 4 * batch), jnp.float32, sharding=shardings[1]),
    )
    loaded = round_trip(jax.jit(lambda x, w: entangle(x * 2, w + 1), in_shardings=shardings), *shapes)
    x, w = (jax.device_put(jnp.ones(shape), each) for shape, each in zip(((16, 8), (8, 16)), shardings, strict=True))
    hlo = compiled.text(loaded.call, x, w)
    assert compiled.collectives(hlo) == []
    assert compiled.native_calls(hlo)[0].shape.startswith("f32[8,4]")
    assert loaded.call(x, w).sharding.is_equivalent_to(x.sharding, 2)


ALL = ("cpu", "cuda", "rocm", "tpu")


def test_several_platforms_at_once():
    function = jax.jit(lambda x, w: entangle(entangle(x, w), w + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = round_trip(function, jnp.float32(1), jnp.float32(2), platforms=ALL)
    text = loaded.mlir_module()
    assert "@entangle" in text
    assert "@tpu_custom_call" in text
    assert loaded.call(jnp.float32(1), jnp.float32(2)) == 1
    assert len(compiled.native_calls(compiled.text(loaded.call, jnp.float32(1), jnp.float32(2)))) == 2


@pytest.mark.parametrize("platform", ALL)
def test_one_platform(platform):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = round_trip(lambda x, w: entangle(x, w), 1.0, 2.0, platforms=(platform,)).mlir_module()
    assert ("@entangle(" in text, "@tpu_custom_call(" in text) == (platform != "tpu", platform == "tpu")


WITHOUT_HANDLER = "metal"


def test_the_barrier_that_stands_in_keeps_values_and_structure():
    with pytest.warns(OrderingWarning, match="no native handler for metal, so .*optimization_barrier"):
        lowered = jax.jit(lambda p, w: entangle(p, w, p["a"])).trace({"a": 1.0, "b": jnp.ones(3)}, 2.0)
        text = lowered.lower(lowering_platforms=(WITHOUT_HANDLER,)).as_text()
    assert text.count("optimization_barrier") == 1


def test_xla_tokens_have_no_place_in_the_barrier_that_stands_in():
    def program(x):
        token, y = entangle((jax.lax.create_token(0.0), x), x + 1)
        return entangle(y, token, x)

    with pytest.warns(OrderingWarning):
        text = jax.jit(program).trace(1.0).lower(lowering_platforms=(WITHOUT_HANDLER,)).as_text()
    assert text.count("optimization_barrier") == 2


def test_a_handle_is_an_argument_and_a_result_of_an_exported_program(slots):
    def program(handle):
        value, handle = handle.read(read)
        _, handle = handle.write(write, value + 1)
        return value, handle

    loaded = round_trip(program, Handle(slot(0)))
    handle = Handle(slot(0))
    for expected in (0, 1, 2):
        value, handle = loaded.call(handle)
        assert value == expected
    assert isinstance(handle, Handle)


def test_nothing_of_this_process_is_in_an_exported_program():
    """A reference to a Python object of this process would make the program void elsewhere."""
    texts = [round_trip(lambda x, w: entangle(x, w), jnp.ones(4), jnp.ones(3)).mlir_module_serialized for _ in range(2)]
    assert texts[0] == texts[1]


PROGRAM = """
import sys
import jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 4)
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from entangle_jax import entangle
mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("i")))
w = jax.device_put(jnp.ones(4), NamedSharding(mesh, P("i")))
program = jax.jit(lambda x, w: entangle(x * 2, w + 1))
"""


CACHE = """
from jax import monitoring
seen = []
monitoring.register_event_listener(lambda name, **_: seen.append(name.rsplit("/", 1)[1]))
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
seen.clear()
assert (program(x, w) == 2 * jnp.arange(8.0)).all()
print(next(name for name in seen if name.startswith("cache_")))
"""

SAVE = """
import pickle
from jax.experimental import serialize_executable
with open(sys.argv[1], "wb") as file:
    pickle.dump(serialize_executable.serialize(program.lower(x, w).compile()), file)
"""

LOAD = """
import pickle
from jax.experimental import serialize_executable
with open(sys.argv[1], "rb") as file:
    loaded = serialize_executable.deserialize_and_load(*pickle.load(file))
assert (loaded(x, w) == 2 * jnp.arange(8.0)).all()
print(loaded.as_text().count('custom_call_target="entangle"'))
"""


def test_the_compilation_cache_hits_in_a_second_process(tmp_path):
    assert fresh.run(PROGRAM + CACHE, tmp_path).split() == ["cache_misses"]
    assert fresh.run(PROGRAM + CACHE, tmp_path).split() == ["cache_hits"]


def test_a_serialized_executable_loads_in_another_process(tmp_path):
    fresh.run(PROGRAM + SAVE, tmp_path / "executable")
    assert fresh.run(PROGRAM + LOAD, tmp_path / "executable").split() == ["1"]
