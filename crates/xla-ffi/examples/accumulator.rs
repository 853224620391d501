//! A complete native object for JAX in Rust: running totals behind a handle.
//!
//! Two XLA FFI handlers share the totals: `add` changes one, `total` reads it. Operand 0 of both is the token, an `int32` scalar
//! that says which. Nothing in a JAX program shows that the two belong together, which is what `entangle` is for.
//!
//! ```text
//! cargo build -p xla-ffi --example accumulator      # a shared library for Python to open
//! python crates/xla-ffi/examples/accumulator.py     # registers the handlers, calls them from jit, checks the sums
//! ```

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use xla_ffi::{Code, Error, Operand, Output, export, handler};

/// The native objects. XLA calls handlers from many threads at once.
static TOTALS: Mutex<Option<HashMap<i32, f64>>> = Mutex::new(None);

/// `add(token: int32[], values: float32[...]) -> int32[]`: adds all values to the total; the result is the token.
fn add(token: Operand<'_, i32, 0>, values: Operand<'_, f32>, mut result: Output<'_, i32, 0>) -> Result<(), Error> {
    let sum: f64 = values.iter().copied().map(f64::from).sum();
    with_total(token[0], |total| *total += sum)?;
    result.write(&token)
}

/// `total(token: int32[]) -> float32[]`.
fn total(token: Operand<'_, i32, 0>, mut result: Output<'_, f32, 0>) -> Result<(), Error> {
    let total = with_total(token[0], |total| *total)?;
    #[expect(clippy::cast_possible_truncation, reason = "the result is declared as float32")]
    result.write(&[total as f32])
}

/// An error of a handler is an exception in Python, with this text.
fn with_total<R>(token: i32, use_total: impl FnOnce(&mut f64) -> R) -> Result<R, Error> {
    if token < 0 {
        return Err(Error::new(Code::InvalidArgument, format!("accumulator: the token is {token}, wanted 0 or more")));
    }
    let mut totals = TOTALS.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(use_total(totals.get_or_insert_default().entry(token).or_default()))
}

handler!(Add = add(token, values, result));
handler!(Total = total(token, result));
export!(Add as accumulator_add, Total as accumulator_total);
