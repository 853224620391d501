#!/usr/bin/env bash
# From an empty folder to a right answer: what a CUDA handler can be given. Arrays of every element type, some that are left out and as many as
# there are, changes in place, dictionaries of attributes; and what is wrong about each.
#   cuda_kinds.sh XLA-FFI PYTHON...       the folder of the crate; what runs Python with jax and a GPU
set -euo pipefail
crate=$1
shift

cat >Cargo.toml <<TOML
[package]
name = "kinds"
version = "0.1.0"
edition = "2024"

[lib]
crate-type = ["cdylib"]

[dependencies]
cudarc = { version = "0.19", default-features = false, features = ["std", "driver", "dynamic-loading", "cuda-12000"] }
xla-ffi = { path = "$crate" }

[workspace]
TOML

mkdir src
cat >src/lib.rs <<'RUST'
use cudarc::driver::{result, sys};
use xla_ffi::{
    ANY, BF16, Code, Complex, Device, Element, Error, F8E3M4, F8E4M3, F8E4M3B11FNUZ, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU,
    F16, InPlace, Operand, Output, Scratch, Stream, attributes, export, handler,
};

/// Enqueues a copy of elements on the device.
///
/// # Safety
/// Both have as many, until the stream has passed.
unsafe fn copy<T>(stream: Stream<'_>, to: *mut T, from: *const T, elements: usize) -> Result<(), Error> {
    let (to, from) = (to.addr() as sys::CUdeviceptr, from.addr() as sys::CUdeviceptr);
    let stream: sys::CUstream = stream.as_ptr().cast();
    // SAFETY: the caller's contract.
    unsafe { result::memcpy_dtod_async(to, from, elements * size_of::<T>(), stream) }
        .map_err(|error| Error::new(Code::Internal, format!("copy: {error:?}")))
}

// Every element type.

fn same<T: Element>(stream: Stream<'_>, x: Operand<'_, T, ANY, Device>, mut y: Output<'_, T, ANY, Device>) -> Result<(), Error> {
    if x.dims() != y.dims() {
        return Err(Error::new(Code::InvalidArgument, format!("the operand is {x:?} and the result {y:?}")));
    }
    if x.is_empty() {
        return Ok(());
    }
    // SAFETY: XLA keeps both until the stream has passed this call.
    unsafe { copy(stream, y.as_mut_ptr(), x.as_ptr(), x.len()) }
}

macro_rules! identities {
    ($($name:ident $handler:ident $type:ty;)*) => {
        $(fn $name(
            stream: Stream<'_>,
            x: Operand<'_, $type, ANY, Device>,
            y: Output<'_, $type, ANY, Device>,
        ) -> Result<(), Error> {
            same(stream, x, y)
        }
        handler!($handler = $name(stream, x, y));)*
        export! { $($handler as $name,)* }
    };
}

identities! {
    same_bool SameBool bool;
    same_int8 SameI8 i8;
    same_int16 SameI16 i16;
    same_int32 SameI32 i32;
    same_int64 SameI64 i64;
    same_uint8 SameU8 u8;
    same_uint16 SameU16 u16;
    same_uint32 SameU32 u32;
    same_uint64 SameU64 u64;
    same_float16 SameF16 F16;
    same_bfloat16 SameBF16 BF16;
    same_float32 SameF32 f32;
    same_float64 SameF64 f64;
    same_complex64 SameC64 Complex<f32>;
    same_complex128 SameC128 Complex<f64>;
    same_float8_e5m2 SameF8E5M2 F8E5M2;
    same_float8_e3m4 SameF8E3M4 F8E3M4;
    same_float8_e4m3 SameF8E4M3 F8E4M3;
    same_float8_e4m3fn SameF8E4M3FN F8E4M3FN;
    same_float8_e4m3b11fnuz SameF8E4M3B11FNUZ F8E4M3B11FNUZ;
    same_float8_e5m2fnuz SameF8E5M2FNUZ F8E5M2FNUZ;
    same_float8_e4m3fnuz SameF8E4M3FNUZ F8E4M3FNUZ;
    same_float8_e8m0fnu SameF8E8M0FNU F8E8M0FNU;
}

// Rotations of a vector, as many as there are results: each begins `step` elements later than the one before.

attributes! {
    /// How to rotate.
    struct Rotation {
        step: i64,
        /// Before the first one, 0 if it is left out.
        start: Option<i64>,
    }
}

fn rotations(
    stream: Stream<'_>,
    mut memory: Scratch<'_>,
    x: Operand<'_, BF16, 1, Device>,
    more: Option<Operand<'_, BF16, 1, Device>>,
    all: Vec<Output<'_, BF16, 1, Device>>,
    by: Rotation,
) -> Result<(), Error> {
    let parts = [Some(x), more];
    let len: usize = parts.iter().flatten().map(|part| part.len()).sum();
    if len == 0 || all.iter().any(|y| y.len() != len) {
        return Err(Error::new(Code::InvalidArgument, format!("the results are {all:?}, wanted {len} elements in each, and not 0")));
    }
    // Twice in a row, so that every rotation is one piece.
    let twice: *mut BF16 = memory.allocate(2 * len * size_of::<BF16>(), 16)?.cast();
    let mut end = 0;
    for part in parts.iter().chain(&parts).flatten() {
        // SAFETY: there is room for all parts, twice; scratch memory is there until the stream has passed.
        unsafe { copy(stream, twice.wrapping_add(end), part.as_ptr(), part.len()) }?;
        end += part.len();
    }
    let mut start = by.start.unwrap_or(0);
    for mut y in all {
        let first = start.rem_euclid(len as i64) as usize;
        // SAFETY: from any place in the first half there are `len` elements.
        unsafe { copy(stream, y.as_mut_ptr(), twice.wrapping_add(first).cast_const(), len) }?;
        start += by.step;
    }
    Ok(())
}

handler!(Rotations = rotations(stream, memory, x, more, all; by));

// The first half of what is changed in place becomes its second half.

fn repeat(stream: Stream<'_>, all: Vec<InPlace<'_, f64, 1, Device>>) -> Result<(), Error> {
    for mut x in all {
        let half = x.len() / 2;
        // SAFETY: the halves are apart, and XLA keeps them until the stream has passed this call.
        unsafe { copy(stream, x.as_mut_ptr().wrapping_add(half), x.as_ptr(), half) }?;
    }
    Ok(())
}

handler!(Repeat = repeat(stream, all));
export!(Rotations as rotations, Repeat as repeat);
RUST

cat >use.py <<'PYTHON'
import ctypes
import os

import jax
import ml_dtypes
import numpy as np

jax.config.update("jax_enable_x64", True)
library = ctypes.CDLL(os.environ["LIBRARY"])


def call(name, results, **options):
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="CUDA")
    return jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(*result) for result in results], **options)


def fails(text, function, *operands):
    try:
        jax.block_until_ready(jax.jit(function)(*operands))
    except Exception as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error, wanted {text!r}")


NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
FLOAT8 = ["e5m2", "e3m4", "e4m3", "e4m3fn", "e4m3b11fnuz", "e5m2fnuz", "e4m3fnuz", "e8m0fnu"]
for name in [*NUMBERS, "bool", "float16", "bfloat16", "complex64", "complex128", *(f"float8_{kind}" for kind in FLOAT8)]:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    for values in (np.arange(6).reshape(2, 3) % 2, np.zeros((0, 3)), np.array(1)):
        x = values.astype(dtype)
        (y,) = jax.jit(call(f"same_{name}", [(x.shape, dtype)]))(x)
        assert y.dtype == dtype, (name, y)
        assert np.asarray(y).tobytes() == x.tobytes(), (name, y)
    other = np.zeros(2, np.float32 if name == "int32" else np.int32)
    fails("operand 0 (`x`) is ", call(f"same_{name}", [((2,), dtype)]), other)
fails("result 0 (`y`) is f64[3], wanted f32[...]", call("same_float32", [((3,), np.float64)]), np.zeros(3, np.float32))
fails("the operand is f32[3] at ", call("same_float32", [((4,), np.float32)]), np.zeros(3, np.float32))

x = np.arange(5).astype(ml_dtypes.bfloat16)
rotations = call("rotations", 3 * [(x.shape, x.dtype)])
by = {"step": np.int64(2), "start": np.int64(-1)}
for operands in [(x,), (x[:2], x[2:])]:
    seen = jax.jit(lambda *operands: rotations(*operands, by=by))(*operands)
    assert [y.tolist() for y in seen] == [np.roll(x, -shift).tolist() for shift in (-1, 1, 3)], seen
fails("operand 1 (`more`) is f32[1], wanted bf16[_]", lambda x: rotations(x, np.zeros(1, np.float32), by=by), x)
fails("the results are [bf16[5] at ", lambda x: rotations(x, by=by), x[1:])
fails("attribute `by.step` is missing, wanted a scalar of type i64; there are none", lambda x: rotations(x, by={}), x)
fails("the call has 3 operands, wanted 2", lambda x: rotations(x, x, x, by=by), x)

x = np.arange(4.0)
repeat = call("repeat", 2 * [(x.shape, x.dtype)], input_output_aliases={0: 0, 1: 1})
seen = jax.jit(lambda x: repeat(x, x + 1))(x)
assert [y.tolist() for y in seen] == [[0, 1, 0, 1], [1, 2, 1, 2]], seen
fails("wanted the same memory", call("repeat", [(x.shape, x.dtype)]), x)
print("cuda kinds: right on jax", jax.__version__)
PYTHON

cargo build --quiet
LIBRARY=${CARGO_TARGET_DIR:-$PWD/target}/debug/libkinds.so "$@" "$PWD/use.py"
