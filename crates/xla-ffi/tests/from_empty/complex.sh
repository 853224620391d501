#!/usr/bin/env bash
# From an empty folder to a right answer: a kernel of complex128 with two results of different rank.
#   complex.sh XLA-FFI PYTHON...       the folder of the crate; what runs Python with jax
set -euo pipefail
crate=$1
shift

cat >Cargo.toml <<TOML
[package]
name = "spectrum"
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
use xla_ffi::{Code, Complex, Error, Operand, Output, export, handler};

/// The products of all pairs of elements, and the sum of all elements.
fn outer(
    x: Operand<'_, Complex<f64>, 1>,
    mut products: Output<'_, Complex<f64>, 2>,
    mut sum: Output<'_, Complex<f64>, 0>,
) -> Result<(), Error> {
    let n = x.len();
    if products.shape() != [n, n] {
        return Err(Error::new(Code::InvalidArgument, format!("the products are {products:?}, wanted {n} by {n}")));
    }
    products.fill_with(|index| {
        let (a, b) = (x[index / n], x[index % n]);
        Complex::new(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)
    });
    sum.write(&[x.iter().fold(Complex::new(0.0, 0.0), |sum, x| Complex::new(sum.re + x.re, sum.im + x.im))])
}

handler!(Outer = outer(x, products, sum));
export!(Outer as outer);
RUST

cat >use.py <<'PYTHON'
import ctypes
import os

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)
library = ctypes.CDLL(os.environ["LIBRARY"])
jax.ffi.register_ffi_target("outer", jax.ffi.pycapsule(library.outer))


@jax.jit
def outer(x):
    n = x.size
    results = [jax.ShapeDtypeStruct((n, n), x.dtype), jax.ShapeDtypeStruct((), x.dtype)]
    return jax.ffi.ffi_call("outer", results)(x)


x = np.array([3 + 4j, 1j, -2])
products, total = outer(x)
assert products.dtype == total.dtype == np.complex128, (products, total)
assert np.array_equal(products, np.outer(x, x)), products
assert total == 1 + 5j, total
try:
    jax.block_until_ready(outer(x.astype(np.complex64)))
except Exception as error:
    assert "operand 0 (`x`) is c64[3], wanted c128[_]" in str(error), error
else:
    raise AssertionError("an operand of complex64 is an error")
print("complex: right on jax", jax.__version__)
PYTHON

cargo build --quiet
LIBRARY=${CARGO_TARGET_DIR:-$PWD/target}/debug/libspectrum.so "$@" "$PWD/use.py"
