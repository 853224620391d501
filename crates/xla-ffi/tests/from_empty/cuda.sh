#!/usr/bin/env bash
# From an empty folder to a right answer: a CUDA handler that enqueues its work on the stream of the call.
#   cuda.sh XLA-FFI PYTHON...       the folder of the crate; what runs Python with jax and a GPU
set -euo pipefail
crate=$1
shift

cat >Cargo.toml <<TOML
[package]
name = "twice"
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
use cudarc::driver::result::memcpy_dtod_async;
use cudarc::driver::sys::CUstream;
use xla_ffi::{Code, Device, Error, Operand, Output, Stream, Traits, export, handler};

/// `y = [x, x]`: two copies within the device.
fn twice(stream: Stream<'_>, x: Operand<'_, f32, 1, Device>, mut y: Output<'_, f32, 2, Device>) -> Result<(), Error> {
    if y.shape() != [2, x.len()] {
        return Err(Error::new(Code::InvalidArgument, format!("the result is {y:?}, wanted 2 rows like {x:?}")));
    }
    let stream: CUstream = stream.as_ptr().cast();
    let (from, to, bytes) = (x.as_ptr().addr() as u64, y.as_mut_ptr().addr() as u64, 4 * x.len());
    for row in 0..2 {
        // SAFETY: XLA keeps both buffers until the work on this stream is done, and the shapes say that they are that large.
        unsafe { memcpy_dtod_async(to + row * bytes as u64, from, bytes, stream) }
            .map_err(|error| Error::new(Code::Internal, format!("copying a row: {error:?}")))?;
    }
    Ok(())
}

handler!(Twice = twice(stream, x, y), traits = Traits::COMMAND_BUFFER_COMPATIBLE);
export!(Twice as twice);
RUST

cat >use.py <<'PYTHON'
import ctypes
import os

import jax
import numpy as np

library = ctypes.CDLL(os.environ["LIBRARY"])
for platform in ("CUDA", "cpu"):  # a handler for GPUs is wrong on the CPU, which is tried below
    jax.ffi.register_ffi_target("twice", jax.ffi.pycapsule(library.twice), platform=platform)


@jax.jit
def twice(x):
    return 10 * jax.ffi.ffi_call("twice", jax.ShapeDtypeStruct((2, x.size), x.dtype))(x + 1)


x = np.arange(5, dtype=np.float32)
y = twice(x)
assert y.device.platform == "gpu", y.device
assert np.array_equal(y, 10 * np.array([x + 1, x + 1])), y
try:
    jax.block_until_ready(twice(jax.device_put(x, jax.devices("cpu")[0])))
except Exception as error:
    assert "this handler needs a GPU stream and there is none" in str(error), error
else:
    raise AssertionError("without a stream it is an error")
print("cuda: right on jax", jax.__version__, "and", y.device)
PYTHON

cargo build --quiet
LIBRARY=${CARGO_TARGET_DIR:-$PWD/target}/debug/libtwice.so "$@" "$PWD/use.py"
