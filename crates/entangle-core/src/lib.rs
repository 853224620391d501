//! The part of an XLA FFI handler that is the same on every platform.
//!
//! XLA calls a handler through a C function that receives a *call frame*: the operands, the results,
//! the attributes and a table of functions. This crate mirrors that C interface ([`ffi`]), reads a
//! frame safely ([`Call`]), turns errors and panics into what XLA understands ([`handle`]) and holds
//! the body of `entangle` itself ([`pass_through`]).
//!
//! Only the prefix of each C struct that has stayed where it is from FFI API 0.1 (jaxlib 0.4.38) to
//! 0.5 (jaxlib 0.12) is mirrored, so one binary serves all of them.
//!
//! ```
//! use entangle_core::{Call, Error, Traits, ffi, handle};
//!
//! /// Writes the number of its operands into its one result, an `int32` scalar.
//! unsafe extern "C" fn count(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
//!     // SAFETY: XLA calls handlers with frames of its own making.
//!     unsafe {
//!         handle(frame, Traits::NONE, |call: &Call<'_>| -> Result<(), Error> {
//!             let operands = i32::try_from(call.args()?.len()).unwrap_or(i32::MAX);
//!             call.rets()?.get(0)?.write(&[operands])
//!         })
//!     }
//! }
//! ```

mod boundary;
mod call;
mod error;
pub mod ffi;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
mod pass_through;

pub use boundary::{Traits, handle};
pub use call::{Arg, Buffer, Buffers, Call, Element, Ret, Role};
pub use error::{Code, Error};
pub use pass_through::pass_through;
