"""Calls the handlers of typed.rs from JAX, right and wrong: `python typed.py [LIBRARY]`.

| kind | right | wrong |
| --- | --- | --- |
| operand, result: 23 element types, without elements, of any rank | `same_*` | another type |
| of a rank; results of different rank | `normalize` | another type and rank, too few, too many |
| left out, many; of any type | `total`, `ranks` | another type; none where one is wanted |
| in place | `double` | not aliased; aliased where it is not wanted |
| XLA token | `token` | an array |
| attribute: scalar and array of each type that jax has | `numbers_*` | another type, missing |
| bool, string, dictionary into a struct, nested, any, left out | `attributes`, `names` | another, missing, unknown |
| device, run, threads of the host | `context`, `roots` | |
| stream, scratch memory, stages prepare and initialize | tests/from_empty/cuda_context.sh | here, on the host |
| state of instantiate | `counter` | missing; the handler of another stage |
| result that comes later | `square_*`, `wait` | fails, panics, is dropped, before and after it started |
| error, panic | | all codes |
"""

import concurrent.futures
import ctypes
import sys
import time
from pathlib import Path

import jax
import jax.extend
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxlib import xla_client

jax.config.update("jax_enable_x64", True)

HERE = Path(__file__).parent
NAME = {"darwin": "libtyped.dylib", "win32": "typed.dll"}.get(sys.platform, "libtyped.so")
library = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else str(HERE / "../../../target/debug/examples" / NAME))


def register(name, **stages):
    """Register the symbols of a target, one for each stage."""
    capsules = {stage: jax.ffi.pycapsule(getattr(library, symbol)) for stage, symbol in stages.items()}
    jax.ffi.register_ffi_target(name, capsules, platform="cpu")


def shape(dims, dtype):
    return jax.ShapeDtypeStruct(dims, dtype)


def fails(text, code, function, /, *operands, **attributes):
    """Check that a call ends with an error of that code and text."""
    try:
        jax.block_until_ready(jax.jit(lambda *operands: function(*operands, **attributes))(*operands))
    except Exception as error:
        assert text in str(error), error
        assert code in str(error), error
    else:
        raise AssertionError(f"no error, wanted {text!r}")


# State: each call site counts on its own, as often as the program runs.
register("counter", instantiate="counter_instantiate", execute="counter_execute")
counter = jax.ffi.ffi_call("counter", [shape((), jnp.float64), shape((1,), jnp.uint32)], has_side_effect=True)
twice = jax.jit(lambda: (counter(step=np.float64(0.5)), counter(step=np.float64(10.0))))
seen = [jax.tree.map(lambda x: x.item(), twice()) for _ in range(3)]
assert [one for one, _ in seen] == [[0.5, 0], [1.0, 1], [1.5, 2]], seen
assert [other for _, other in seen] == [[10.0, 0], [20.0, 1], [30.0, 2]], seen
fails("a counter with a step of 0 does not count", "INVALID_ARGUMENT", counter, step=np.float64(0))
fails("attribute `step` is a scalar of type i64, wanted a scalar of type f64", "INVALID_ARGUMENT", counter, step=1)
register("counter_alone", execute="counter_execute")
alone = jax.ffi.ffi_call("counter_alone", [shape((), jnp.float64), shape((1,), jnp.uint32)])
fails("the state `counter` (typed::Counter) is missing", "FAILED_PRECONDITION", alone, step=np.float64(1))
register("counter_swapped", execute="counter_instantiate")
swapped = jax.ffi.ffi_call("counter_swapped", [], has_side_effect=True)
fails('register it as the "instantiate" handler', "UNIMPLEMENTED", swapped, step=np.float64(1))

# The stages between: XLA runs them on GPUs alone, and on the host that is an error.
register("stages", **{stage: f"stages_{stage}" for stage in ("instantiate", "prepare", "initialize", "execute")})
stages = jax.ffi.ffi_call("stages", shape((6,), jnp.int32))
missing = "the state `prepared` ([i32; 2]) is missing: on the host there are no handlers for that stage"
fails(missing, "FAILED_PRECONDITION", stages, base=np.int32(7))

# Two results of different rank.
register("normalize", execute="normalize_c128")
x = np.array([[3 + 4j, 1j, 0], [2, -1, 5 - 12j]])
normalize = jax.ffi.ffi_call("normalize", [shape(x.shape, x.dtype), shape((), jnp.float64)])
y, norm = jax.jit(normalize)(x)
assert np.allclose(norm, np.linalg.norm(x), rtol=1e-15)
assert np.allclose(y, x / np.linalg.norm(x), rtol=1e-15)
fails("operand 0 (`x`) is f32[3,4], wanted c128[_,_]", "INVALID_ARGUMENT", normalize, np.zeros((3, 4), np.float32))
fails("the call has 2 operands, wanted 1", "INVALID_ARGUMENT", normalize, x, x)
fails("operand 0 (`x`) is missing: the call has 0", "INVALID_ARGUMENT", normalize)

# Every element type.
NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
FLOAT8 = ["e5m2", "e3m4", "e4m3", "e4m3fn", "e4m3b11fnuz", "e5m2fnuz", "e4m3fnuz", "e8m0fnu"]
TYPES = [*NUMBERS, "bool", "float16", "bfloat16", "complex64", "complex128", *(f"float8_{kind}" for kind in FLOAT8)]
for name in TYPES:
    register(f"same_{name}", execute=f"same_{name}")
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    for values in (np.arange(6).reshape(2, 3) % 2, np.zeros((0, 3)), np.array(1)):
        x = values.astype(dtype)
        y = jax.jit(jax.ffi.ffi_call(f"same_{name}", shape(x.shape, dtype)))(x)
        assert y.dtype == dtype, (name, y)
        assert np.asarray(y).tobytes() == x.tobytes(), (name, y)  # float8_e8m0fnu has no zero
    other = np.zeros(2, np.float32 if name == "int32" else np.int32)
    same = jax.ffi.ffi_call(f"same_{name}", shape((2,), dtype))
    fails("wanted ", "INVALID_ARGUMENT", same, other)

# Operands that are left out or many, changes in place.
register("total", execute="total_of")
x = np.arange(3, dtype=np.float32)
assert jax.jit(jax.ffi.ffi_call("total", shape((), jnp.float32)))(x) == 3
y, count = jax.jit(jax.ffi.ffi_call("total", [shape((), jnp.float32), shape((), jnp.int32)]))(x, x, 2 * x)
assert (y, count) == (12, 3)
fails(
    "operand 1 (`rest`) is i32[1], wanted f32[_]",
    "INVALID_ARGUMENT",
    jax.ffi.ffi_call("total", shape((), jnp.float32)),
    x,
    np.zeros(1, np.int32),
)
register("ranks", execute="ranks_of")
ranks = jax.ffi.ffi_call("ranks", shape((3,), jnp.uint32))
assert jax.jit(ranks)(x, np.zeros((1, 2), np.complex64), np.array(True)).tolist() == [1, 2, 0]
fails("the handler has 1 values for a result of u32[3]", "INVALID_ARGUMENT", ranks, x)
register("double", execute="double_in_place")
double = jax.ffi.ffi_call("double", shape((3,), jnp.float32), input_output_aliases={0: 0})
assert jax.jit(double)(x).tolist() == [0, 2, 4]
assert x.tolist() == [0, 1, 2]
apart = jax.ffi.ffi_call("double", shape((3,), jnp.float32))
fails("`input_output_aliases={0: 0}` of jax.ffi.ffi_call", "INVALID_ARGUMENT", apart, x)
in_place = jax.ffi.ffi_call("same_float32", shape((3,), jnp.float32), input_output_aliases={0: 0})
fails("operand 0 (`x`) and result 0 (`y`) share memory", "INVALID_ARGUMENT", in_place, x)


# Attributes. jax takes a dictionary as an attribute; one in another has to be hashable.
class Hashable(dict):
    """A dictionary that can be hashed."""

    def __hash__(self):
        return hash(tuple(sorted(self.items())))


for name in NUMBERS:
    register(f"numbers_{name}", execute=f"numbers_{name}")
    dtype = np.dtype(name)
    numbers = jax.ffi.ffi_call(f"numbers_{name}", shape((3,), dtype))
    more = np.array([0, np.iinfo(dtype).max if dtype.kind in "iu" else np.finfo(dtype).max], dtype)
    assert np.array_equal(numbers(one=dtype.type(7), more=more), np.concatenate([[dtype.type(7)], more]))
    other = np.float32(1) if name == "int32" else np.int32(1)
    wanted = f"{dtype.kind}{8 * dtype.itemsize}"
    fails(
        f"attribute `one` is a scalar of type {'f' if name == 'int32' else 'i'}32",
        "INVALID_ARGUMENT",
        numbers,
        one=other,
        more=more,
    )
    fails(f"wanted an array of type {wanted}", "INVALID_ARGUMENT", numbers, one=dtype.type(7), more=other.reshape(1))
    fails(
        f"attribute `more` is missing, wanted an array of type {wanted}", "INVALID_ARGUMENT", numbers, one=dtype.type(7)
    )
register("names", execute="names_of")
names = jax.ffi.ffi_call("names", shape((), jnp.uint32))
assert names(all={"a": 1, "bcd": "text"}, other=1.0) == 4
fails("attribute `all` is a scalar of type i64, wanted a dictionary", "INVALID_ARGUMENT", names, all=1)
register("attributes", execute="all_attributes")
attributes = jax.ffi.ffi_call("attributes", shape((10,), jnp.float64))
ATTRIBUTES = {
    "flag": True,
    "byte": np.uint8(200),
    "single": np.float32(0.5),
    "text": "käse",
    "shape": np.array([2, 3, 4]),
    "weights": np.array([0.5, 0.25]),
    "options": {"tolerance": np.float64(1e-3), "steps": np.int64(7), "inner": Hashable(name="abc")},
    "maybe": np.int32(6),
}
assert attributes(**ATTRIBUTES).tolist() == [1, 200, 0.5, 4, 24, 0.75, 1e-3, 7, 3, 6]
LEAST = {**ATTRIBUTES, "options": {"tolerance": np.float64(1e-3)}}
del LEAST["maybe"]
assert attributes(**LEAST).tolist() == [1, 200, 0.5, 4, 24, 0.75, 1e-3, -1, 0, -1]
for wrong, text in [
    ({"flag": np.int64(1)}, "attribute `flag` is a scalar of type i64, wanted a scalar of type bool"),
    ({"single": np.float64(1)}, "attribute `single` is a scalar of type f64, wanted a scalar of type f32"),
    ({"text": np.float64(1)}, "attribute `text` is a scalar of type f64, wanted a string"),
    ({"shape": "abc"}, 'attribute `shape` is the string "abc", wanted an array of type i64'),
    ({"weights": np.array([1])}, "attribute `weights` is an array of type i64[1], wanted an array of type f64"),
    ({"more": np.int64(1)}, "attribute `more` is unknown; the handler takes `flag`, `byte`"),
    ({"options": {}}, "attribute `options.tolerance` is missing, wanted a scalar of type f64"),
    ({"options": {"tolerance": np.float64(1), "step": 1}}, "attribute `options.step` is unknown"),
]:
    fails(text, "INVALID_ARGUMENT", attributes, **{**ATTRIBUTES, **wrong})

# What the runtime has.
register("context", execute="context_of")
device, run = jax.jit(jax.ffi.ffi_call("context", shape((2,), jnp.int64), has_side_effect=True))().tolist()
assert device == 0
assert run != 0
register("roots", execute="roots_of")
x = np.arange(12_345, dtype=np.float64)
assert np.array_equal(jax.jit(jax.ffi.ffi_call("roots", shape(x.shape, x.dtype)))(x), np.sqrt(x))

# Results that come later: on a thread of the handler's, on one of XLA's, and many at once.
register("square_later", execute="square_later")
register("square_on_pool", execute="square_on_pool")
x = np.arange(1000, dtype=np.float64)
square_later = jax.ffi.ffi_call("square_later", shape(x.shape, x.dtype))
square_on_pool = jax.ffi.ffi_call("square_on_pool", shape(x.shape, x.dtype))
for milliseconds in (0, 20):
    later = jax.jit(
        lambda x, ms=milliseconds: (
            1 + square_later(1 + square_later(x, milliseconds=np.uint64(ms)), milliseconds=np.uint64(ms))
        )
    )
    assert np.array_equal(later(x), 1 + (1 + x**2) ** 2)
many = jax.jit(lambda x: sum(square_on_pool(square_later(x + i, milliseconds=np.uint64(i))) for i in range(20)))
for _ in range(5):
    assert np.array_equal(many(x), sum((x + i) ** 4 for i in range(20)))
fails("operand 0 (`x`) is f32[2], wanted f64[_]", "INVALID_ARGUMENT", square_on_pool, np.zeros(2, np.float32))

# A result that another call brings, from another thread of Python.
register("wait", execute="wait_for_release")
register("release", execute="release")
waits = jax.jit(lambda: 1 + jax.ffi.ffi_call("wait", shape((), jnp.float64), has_side_effect=True)())
release = jax.jit(lambda: jax.ffi.ffi_call("release", shape((), jnp.bool_), has_side_effect=True)(value=np.float64(41)))
with concurrent.futures.ThreadPoolExecutor(1) as thread:
    waiting = thread.submit(lambda: waits().item())
    while not release():
        assert not waiting.done()
        time.sleep(0.01)
    assert waiting.result() == 42

# Promises that are not kept. None of them hangs.
register("fail_later", execute="fail_later")
fail_later = jax.ffi.ffi_call("fail_later", shape((), jnp.float64), has_side_effect=True)
never = "the results of the call never came: the handler's promise was dropped"
fails("the work failed", "DATA_LOSS", fail_later, how="error")
fails("the handler panicked: the work panicked", "INTERNAL", fail_later, how="panic")
fails(f"{never} before", "ABORTED", fail_later, how="drop")
fails(f"{never} by a panic before", "ABORTED", fail_later, how="panic at once")
fails("the handler did not even start", "UNAVAILABLE", fail_later, how="at once")

# All error codes; a panic.
register("fail", execute="fail_with")
fail = jax.ffi.ffi_call("fail", shape((), jnp.int32))
CODES = [
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
]
for number, code in enumerate(CODES, start=1):
    fails(f"this is {code.title().replace('_', '')}", code, fail, code=number)
fails("the handler panicked: there is no code 99", "INTERNAL", fail, code=99)

# What GPUs alone have.
register("scratch", execute="use_scratch")
fails("", "", jax.ffi.ffi_call("scratch", shape((), jnp.int32)))

# XLA tokens, for which jax has no public name: a program is written by hand.
PROGRAM = """
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %before = stablehlo.create_token : !stablehlo.token
  %after = stablehlo.custom_call @token(OPERAND) {
    api_version = 4 : i32, backend_config = {}, has_side_effect = true
  } : (TYPE) -> !stablehlo.token
  return %x : tensor<2xf32>
}"""


def with_token(operand, dtype):
    """Run the program with that operand of the call."""
    client = jax.extend.backend.get_backend("cpu")
    devices = xla_client.DeviceList(tuple(client.local_devices()[:1]))
    text = PROGRAM.replace("OPERAND", operand).replace("TYPE", dtype)
    program = client.compile_and_load(text, devices, xla_client.CompileOptions())
    results = program.execute_sharded([jax.device_put(np.ones(2, np.float32), client.local_devices()[0])])
    return jax.block_until_ready(results.disassemble_into_single_device_arrays()[0][0])


register("token", execute="pass_token")
assert with_token("%before", "!stablehlo.token").tolist() == [1, 1]
try:
    with_token("%x", "tensor<2xf32>")
except Exception as error:
    assert "operand 0 (`before`) is f32[2], wanted an XLA token" in str(error), error
else:
    raise AssertionError("an array is no token")
print(f"typed: right on jax {jax.__version__}")
