//! XLA FFI handlers in Rust.
//!
//! XLA, and so JAX, runs native code through its *foreign function interface*: it calls a C function, the handler, with
//! a *call frame* that holds the operands, the results, the attributes, and a table of functions of the runtime. With this
//! crate the body of a handler is safe Rust:
//!
//! ```
//! use xla_ffi::{Call, Error, Traits, ffi, handle};
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
//!
//! - [`handle`] answers the runtime's query for metadata, refuses calls in the wrong [`Stage`], and turns errors and panics
//!   into the runtime's errors; with it a handler says its [`Traits`].
//! - [`Call`] is the call: its operands and results ([`Buffer`]), string attributes, and the stream on a GPU. Every size,
//!   count, rank and pointer is checked before it is used.
//! - [`Error`] is a [`Code`] and a message, which the user reads in Python.
//! - [`ffi`] mirrors the C interface: only the prefix of each struct that has stayed where it is from FFI API 0.1
//!   (jaxlib 0.4.38) to 0.5 (jaxlib 0.12), so one binary serves all of them.
//! - The feature `mock` has a module of that name, to test handlers without a runtime.
#![cfg_attr(docsrs, feature(doc_cfg))]

// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod boundary;
mod call;
mod error;
pub mod ffi;
#[cfg(feature = "mock")]
pub mod mock;

pub use boundary::{Traits, handle, handle_stages};
pub use call::{Arg, Buffer, Buffers, Call, Element, Ret, Role, Stage};
pub use error::{Code, Error};
