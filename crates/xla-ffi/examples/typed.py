"""Calls the handlers of typed.rs from JAX, right and wrong: `python typed.py [LIBRARY]`.

| kind | right | wrong |
| --- | --- | --- |
| operand, result: 23 element types, without elements, of any rank | `same_*` | another type |
| of a rank; results of different rank | `normalize` | another type and rank, too few, too many |
| left out, many; of any type | `total`, `ranks`, `left` | another type; none where one is wanted |
| element types that no Rust type has | `ranks` | another is wanted |
| in place, also many | `double`, `left` | not aliased; aliased where it is not wanted |
| XLA token | `token` | an array |
| attribute: scalar and array of each type that jaxlib has | `numbers_*` | another type, missing |
| bool, string, dictionary into a struct, nested, any, left out | `attributes`, `names` | another, missing, not UTF-8 |
| types of attributes that jaxlib refuses | | `UNSUPPORTED` |
| device, run, threads of the host | `context`, `roots`, `threads` | a part panics; before there is a run |
| stream, scratch memory, stages prepare and initialize | tests/from_empty/cuda_context.sh | here, on the host |
| all of it on GPUs, by addresses | tests/from_empty/cuda_kinds.sh | there |
| state of instantiate | `counter` | missing; of another type; the handler of another stage; made by the call |
| result that comes later | `square_*`, `wait` | fails, panics, is dropped, when started or later; another stage |
| error, panic | | all codes |
"""

import concurrent.futures
import ctypes
import os
import sys
import time
from pathlib import Path

import jax
import jax.extend
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxlib import xla_client

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"  # read when the first array is made
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

register("counter_otherwise", instantiate="counter_instantiate", execute="counter_otherwise")
otherwise = jax.ffi.ffi_call("counter_otherwise", [], has_side_effect=True)
fails("the state `counter` (u64) is missing", "FAILED_PRECONDITION", otherwise, step=np.float64(1))
register("too_late", execute="new_too_late")
too_late = jax.ffi.ffi_call("too_late", [], has_side_effect=True)
fails('only in the stages before "execute" may a handler return a state', "UNIMPLEMENTED", too_late)

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
for results, text in [
    ([shape((6,), x.dtype)], "result 0 (`y`) is c128[6], wanted c128[_,_]"),
    ([shape(x.shape, jnp.complex64)], "result 0 (`y`) is c64[2,3], wanted c128[_,_]"),
    ([shape(x.shape, x.dtype)], "result 1 (`norm`) is missing: the call has 1"),
    ([shape(x.shape, x.dtype)] + 2 * [shape((), jnp.float64)], "the call has 3 results, wanted 2"),
]:
    fails(text, "INVALID_ARGUMENT", jax.ffi.ffi_call("normalize", results), x)

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
for name, shown in [("int2", "i2"), ("uint4", "u4"), ("float4_e2m1fn", "f4_e2m1fn")]:
    small = jnp.zeros(3, name)
    assert jax.jit(jax.ffi.ffi_call("ranks", shape((1,), jnp.uint32)))(small).tolist() == [1]
    total = jax.ffi.ffi_call("total", shape((), jnp.float32))
    fails(f"operand 0 (`first`) is {shown}[3], wanted f32[_]", "INVALID_ARGUMENT", total, small)
register("left", execute="left_over")
i = np.arange(3, dtype=np.int16)
results = [shape(i.shape, i.dtype), shape(i.shape, i.dtype), shape((), jnp.float64), shape((), jnp.float64)]
left = jax.ffi.ffi_call("left", results, input_output_aliases={1: 0, 2: 1})
y = jax.tree.map(np.ndarray.tolist, jax.tree.map(np.asarray, jax.jit(left)(3.0, i, i + 1)))
assert y == [[0, -1, -2], [-1, -2, -3], 3, 3], y
for operands in [(), (3.0,)]:
    assert jax.jit(jax.ffi.ffi_call("left", [], has_side_effect=True))(*operands) == []
fails("operand 0 (`factor`) is i16[3], wanted f64[]", "INVALID_ARGUMENT", left, i, i, i)
one = jax.ffi.ffi_call("left", [shape((), jnp.float32)])
fails("result 0 (`factors`) is f32[], wanted f64[]", "INVALID_ARGUMENT", one, 3.0)
fails("wanted the same memory", "INVALID_ARGUMENT", jax.ffi.ffi_call("left", results[:1]), 3.0, i)
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
EMPTY = {**LEAST, "text": "", "shape": np.array([], np.int64), "weights": np.zeros((0, 2))}
assert attributes(**EMPTY).tolist() == [1, 200, 0.5, 0, 1, 0, 1e-3, -1, 0, -1]
assert attributes(**{**LEAST, "text": b"k\xc3\xa4se", "shape": np.array([[2, 3], [4, 5]])}).tolist()[3:5] == [4, 120]
for wrong, text in [
    ({"text": b"k\xe4se"}, 'attribute `text` is the string "k\ufffdse", which is not UTF-8'),
    (
        {"single": np.array(0.5, np.float32)},
        "attribute `single` is an array of type f32[1], wanted a scalar of type f32",
    ),
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

# What jaxlib refuses before a handler is asked, also where the handler would take it.
register("flags", execute="flags_of")
flags = jax.ffi.ffi_call("flags", shape((2,), jnp.bool_))
fails("Unsupported array element type", "INVALID_ARGUMENT", flags, all=np.array([True, False]))
UNSUPPORTED = [np.float16(1), np.complex64(1), np.zeros(2, np.complex64), np.zeros(2, ml_dtypes.float8_e5m2), (1, 2)]
for value in UNSUPPORTED:
    fails("Unsupported ", "", names, all={}, other=value)

# What the runtime has.
register("context", execute="context_of")
device, run = jax.jit(jax.ffi.ffi_call("context", shape((2,), jnp.int64), has_side_effect=True))().tolist()
assert device == 0
assert run != 0
with jax.default_device(jax.devices()[1]):
    device, other_run = jax.jit(jax.ffi.ffi_call("context", shape((2,), jnp.int64), has_side_effect=True))().tolist()
assert device == 1
assert other_run not in (run, 0)
register("threads", execute="threads_of")
assert jax.jit(jax.ffi.ffi_call("threads", shape((), jnp.uint64)))() >= 1
register("fail_at", execute="fail_at_part")
fail_at = jax.ffi.ffi_call("fail_at", [], has_side_effect=True)
assert jax.jit(lambda: fail_at(part=np.uint64(100)))() == []
fails("part 7 fails", "INTERNAL", fail_at, part=np.uint64(7))
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
fails("XLA FFI GPU context is not available", "", jax.ffi.ffi_call("scratch", shape((), jnp.int32)))
register("stream", execute="on_stream")
on_stream = jax.ffi.ffi_call("stream", [], has_side_effect=True)
fails("it was registered for the wrong platform", "FAILED_PRECONDITION", on_stream)

# What there is before there is a run: the numbers, which have no meaning yet, and an error for all else.
for early, text in [
    ("device", None),
    ("run", None),
    ("elements", None),  # there are no operands either
    ("pool", "XLA FFI CPU context is not available"),
    ("scratch", "XLA FFI GPU context is not available"),
    ("stream", "it was registered for the wrong platform"),
    ("state", "the state `state` (u8) is missing: State is not set"),
    ("future", 'only in the stage "execute" may a handler return a future'),
]:
    register(f"early_{early}", instantiate=f"early_{early}", execute="nothing")
    call = jax.ffi.ffi_call(f"early_{early}", [], has_side_effect=True)
    if text is None:
        assert jax.jit(call)() == []
    else:
        fails(text, "", call)

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
