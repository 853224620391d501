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

use xla_ffi::{Call, Code, Error, Traits, ffi, handle};

/// The native objects. XLA calls handlers from many threads at once.
static TOTALS: Mutex<Option<HashMap<i32, f64>>> = Mutex::new(None);

/// `add(token: int32[], values: float32[...]) -> int32[]`: adds all values to the total; the result is the token.
///
/// # Safety
/// XLA calls it, with a frame of its own making.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accumulator_add(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe { handle(frame, Traits::NONE, add) }
}

/// `total(token: int32[]) -> float32[]`.
///
/// # Safety
/// XLA calls it, with a frame of its own making.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accumulator_total(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe { handle(frame, Traits::NONE, total) }
}

fn add(call: &Call<'_>) -> Result<(), Error> {
    let token = token(call)?;
    let sum: f64 = call.args()?.get(1)?.read::<f32>()?.into_iter().map(f64::from).sum();
    with_total(token, |total| *total += sum);
    call.rets()?.get(0)?.write(&[token])
}

fn total(call: &Call<'_>) -> Result<(), Error> {
    let token = token(call)?;
    let total = with_total(token, |total| *total);
    #[expect(clippy::cast_possible_truncation, reason = "the result is declared as float32")]
    call.rets()?.get(0)?.write(&[total as f32])
}

/// Operand 0. An error of a handler is an exception in Python, with this text.
fn token(call: &Call<'_>) -> Result<i32, Error> {
    let operand = call.args()?.get(0)?;
    match operand.read::<i32>()?[..] {
        [token] if token >= 0 => Ok(token),
        _ => Err(Error::new(
            Code::InvalidArgument,
            format!("accumulator: operand 0 is {operand}, wanted an int32 scalar of 0 or more"),
        )),
    }
}

fn with_total<R>(token: i32, use_total: impl FnOnce(&mut f64) -> R) -> R {
    let mut totals = TOTALS.lock().unwrap_or_else(PoisonError::into_inner);
    use_total(totals.get_or_insert_default().entry(token).or_default())
}
