#!/usr/bin/env bash
# From an empty folder to a right answer: all that a CUDA handler can have. State of three stages, the stream, the numbers of the device and of
# the run, scratch memory, and a result that comes later.
#   cuda_context.sh XLA-FFI PYTHON...       the folder of the crate; what runs Python with jax and a GPU
set -euo pipefail
crate=$1
shift

cat >Cargo.toml <<TOML
[package]
name = "context"
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
    Code, Device, DeviceOrdinal, Error, Future, Initialized, NewState, Operand, Output, Prepared, RunId, Scratch, State, Stream, export,
    handler,
};

fn failed(what: &str, error: result::DriverError) -> Error {
    Error::new(Code::Internal, format!("{what}: {error:?}"))
}

fn instantiate(base: i64) -> NewState<i64> {
    NewState(base)
}

fn prepare(base: State<'_, i64>) -> NewState<[i64; 2]> {
    NewState([*base, *base + 1])
}

fn initialize(prepared: Prepared<'_, [i64; 2]>) -> Result<NewState<Vec<i64>>, Error> {
    if prepared[0] < 0 {
        return Err(Error::new(Code::OutOfRange, "the base is negative"));
    }
    Ok(NewState(vec![prepared[0], prepared[1], prepared[1] + 1]))
}

/// `y`: the states and the numbers. `z`: `x`, by way of scratch memory.
fn execute(
    stream: Stream<'_>,
    base: State<'_, i64>,
    prepared: Prepared<'_, [i64; 2]>,
    initialized: Initialized<'_, Vec<i64>>,
    device: DeviceOrdinal,
    run: RunId,
    mut memory: Scratch<'_>,
    x: Operand<'_, f32, 1, Device>,
    mut y: Output<'_, i64, 1, Device>,
    mut z: Output<'_, f32, 1, Device>,
) -> Result<(), Error> {
    let stream: sys::CUstream = stream.as_ptr().cast();
    let numbers = [*base, prepared[1], initialized[2], device.0.into(), run.0];
    if y.shape() != [numbers.len()] || z.shape() != x.shape() {
        return Err(Error::new(Code::InvalidArgument, format!("the results are {y:?} and {z:?}")));
    }
    // SAFETY: the shape says that there is room, and the copy is done when this returns.
    unsafe { result::memcpy_htod_sync(y.as_mut_ptr().addr() as u64, &numbers) }.map_err(|error| failed("numbers", error))?;
    let bytes = size_of::<f32>() * x.len();
    let scratch = memory.allocate(bytes, 16)?.addr() as u64;
    for (to, from) in [(scratch, x.as_ptr().addr() as u64), (z.as_mut_ptr().addr() as u64, scratch)] {
        // SAFETY: all of them are that large, and there until the work on this stream is done.
        unsafe { result::memcpy_dtod_async(to, from, bytes, stream) }.map_err(|error| failed("copy", error))?;
    }
    Ok(())
}

fn too_much(mut memory: Scratch<'_>, _y: Output<'_, f32, 1, Device>) -> Result<(), Error> {
    memory.allocate(1 << 50, 16).map(drop)
}

/// `y = [value]`, from another thread.
fn later<'a>(y: Output<'a, f32, 1, Device>, value: f32) -> Result<Future<'a>, Error> {
    let context = result::ctx::get_current().map_err(|error| failed("context", error))?.map(|context| context.addr());
    Ok(Future::new(y, move |mut promise| {
        std::thread::spawn(move || {
            let to = promise.parameters().as_mut_ptr().addr() as u64;
            let context: sys::CUcontext = core::ptr::with_exposed_provenance_mut(context.unwrap_or(0));
            // SAFETY: XLA's context lives as long as the program, and the result until the promise is completed.
            let done = unsafe { result::ctx::set_current(context).and_then(|()| result::memcpy_htod_sync(to, &[value])) };
            promise.complete(match done {
                Ok(()) if value < 0.0 => Err(Error::new(Code::DataLoss, "the value is negative")),
                done => done.map_err(|error| failed("value", error)),
            });
        });
    }))
}

handler!(Instantiate = instantiate(; base), stage = Instantiate);
handler!(Prepare = prepare(base; ..), stage = Prepare);
handler!(Initialize = initialize(prepared; ..), stage = Initialize);
handler!(Execute = execute(stream, base, prepared, initialized, device, run, memory, x, y, z; ..));
handler!(TooMuch = too_much(memory, y));
handler!(Later = later(y; value));
export!(Instantiate as instantiate, Prepare as prepare, Initialize as initialize, Execute as execute, TooMuch as too_much, Later as later);
RUST

cat >use.py <<'PYTHON'
import ctypes
import os

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)
library = ctypes.CDLL(os.environ["LIBRARY"])


def call(results, target, **stages):
    capsules = {stage: jax.ffi.pycapsule(getattr(library, symbol)) for stage, symbol in stages.items()}
    jax.ffi.register_ffi_target(target, capsules, platform="CUDA")
    return jax.ffi.ffi_call(target, [jax.ShapeDtypeStruct(*result) for result in results], has_side_effect=True)


def fails(text, function):
    try:
        jax.block_until_ready(jax.jit(function)())
    except Exception as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error, wanted {text!r}")


x = np.arange(4, dtype=np.float32)
results = [((5,), np.int64), (x.shape, x.dtype)]
stages = {stage: stage for stage in ("instantiate", "prepare", "initialize", "execute")}
context = call(results, "context", **stages)
program = jax.jit(lambda x: (*context(x + 1, base=np.int64(7)), *context(x + 2, base=np.int64(70))))
runs = set()
for _ in range(3):
    y, z, other_y, other_z = program(x)
    *states, device, run = y.tolist()
    *other_states, other_device, other_run = other_y.tolist()
    assert (states, other_states) == ([7, 8, 9], [70, 71, 72]), (y, other_y)
    assert device == other_device == 0
    assert run == other_run
    runs.add(run)
    assert np.array_equal(z, x + 1)
    assert np.array_equal(other_z, x + 2)
assert len(runs) == 3, runs
fails("the base is negative", lambda: context(x, base=np.int64(-1)))
for missing in ("prepare", "initialize"):
    some = call(results, f"without_{missing}", **{stage: stage for stage in stages if stage != missing})
    fails("is missing", lambda some=some: some(x, base=np.int64(7)))
fails("", call([((1,), np.float32)], "too_much", execute="too_much"))
later = call([((1,), np.float32)], "later", execute="later")
assert [float(jax.jit(lambda value=value: 2 * later(value=np.float32(value))[0])()[0]) for value in (1, 2.5)] == [2, 5]
fails("the value is negative", lambda: later(value=np.float32(-1)))
print("cuda context: right on jax", jax.__version__)
PYTHON

cargo build --quiet
LIBRARY=${CARGO_TARGET_DIR:-$PWD/target}/debug/libcontext.so "$@" "$PWD/use.py"
