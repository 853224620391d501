#!/usr/bin/env bash
# From an empty folder to a right answer: a counter with an `f64` attribute, whose state is made once for each call site.
#   counter.sh XLA-FFI PYTHON...       the folder of the crate; what runs Python with jax
set -euo pipefail
crate=$1
shift

cat >Cargo.toml <<TOML
[package]
name = "counter"
version = "0.1.0"
edition = "2024"

[lib]
crate-type = ["cdylib"]

[dependencies]
xla-ffi = { path = "$crate" }

[workspace]
TOML

mkdir src
cat >src/lib.rs <<'RUST'
use std::sync::Mutex;

use xla_ffi::{Code, Error, NewState, Output, State, export, handler};

struct Counter {
    step: f64,
    total: Mutex<f64>,
}

fn start(step: f64) -> Result<NewState<Counter>, Error> {
    if step <= 0.0 {
        return Err(Error::new(Code::InvalidArgument, format!("the step is {step}, wanted more than 0")));
    }
    Ok(NewState(Counter { step, total: Mutex::new(0.0) }))
}

fn count(counter: State<'_, Counter>, mut y: Output<'_, f64, 0>) -> Result<(), Error> {
    let mut total = counter.total.lock().map_err(|_| Error::new(Code::Internal, "a call has panicked"))?;
    *total += counter.step;
    y.write(&[*total])
}

handler!(Start = start(; step), stage = Instantiate);
handler!(Count = count(counter, y; ..));
export!(Start as counter_start, Count as counter_count);
RUST

cat >use.py <<'PYTHON'
import ctypes
import os

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)
library = ctypes.CDLL(os.environ["LIBRARY"])
stages = {"instantiate": library.counter_start, "execute": library.counter_count}
jax.ffi.register_ffi_target("counter", {stage: jax.ffi.pycapsule(symbol) for stage, symbol in stages.items()})
count = jax.ffi.ffi_call("counter", jax.ShapeDtypeStruct((), np.float64), has_side_effect=True)


@jax.jit
def two_counters():
    return count(step=np.float64(0.25)), count(step=np.float64(10))


seen = [[float(total) for total in two_counters()] for _ in range(3)]
assert seen == [[0.25, 10], [0.5, 20], [0.75, 30]], seen
try:
    jax.jit(lambda: count(step=np.float64(-1)))()
except Exception as error:
    assert "the step is -1, wanted more than 0" in str(error), error
else:
    raise AssertionError("a step of -1 is an error")
print("counter: right on jax", jax.__version__)
PYTHON

cargo build --quiet
LIBRARY=${CARGO_TARGET_DIR:-$PWD/target}/debug/libcounter.so "$@" "$PWD/use.py"
