//! XLA FFI handlers in Rust.
//!
//! XLA, and so JAX, runs native code through its *foreign function interface*: it calls a C function, the handler, with
//! a *call frame* that holds the operands, the results, the attributes, and a table of functions of the runtime. With this
//! crate a handler is a plain Rust function, bound by one macro:
//!
//! ```
//! use xla_ffi::{Operand, Output, export, handler};
//!
//! /// `y = factor * x`
//! fn scale(x: Operand<'_, f64, 1>, mut y: Output<'_, f64, 1>, factor: f64) {
//!     y.fill_with(|index| factor * x[index]);
//! }
//!
//! handler!(pub Scale = scale(x, y; factor));
//! export!(Scale as scale); // the symbol, for `ctypes`
//! ```
//!
//! Built as a shared library (`crate-type = ["cdylib"]`), it is called from JAX:
//!
//! ```python
//! import ctypes
//!
//! import jax
//! import numpy as np
//!
//! jax.config.update("jax_enable_x64", True)
//! x = np.arange(3.0)
//! library = ctypes.CDLL("target/release/libscale.so")
//! jax.ffi.register_ffi_target("scale", jax.ffi.pycapsule(library.scale), platform="cpu")
//! y = jax.ffi.ffi_call("scale", jax.ShapeDtypeStruct(x.shape, x.dtype))(x, factor=np.float64(2))
//! ```
//!
//! A call that does not fit is an error that says what there was and what was wanted:
//! ``operand 0 (`x`) is f32[3,4], wanted f64[_]``.
//!
//! [`guide`] has a page for each of the following, with an example.
//!
//! # What a function can have
//!
//! - **Operands and results**: [`Operand`], [`Output`] and [`InPlace`] of any [`Element`] type and rank, as slices on the host and addresses on a
//!   [`Device`]; [`Token`]s; `Option`s of what may be left out, a `Vec` of all that are left.
//! - **Attributes** of every kind: scalars, strings, arrays, and dictionaries, which [`attributes!`] reads into structs. See [`Attribute`].
//! - **What the runtime has**: [`Stream`], [`DeviceOrdinal`], [`RunId`], [`Scratch`] memory, the host's [`ThreadPool`].
//! - **State** that is made once for each call site, and the stages before the call: [`NewState`], [`State`], [`Stage`].
//! - **Results that come later**: a [`Future`], which another thread completes.
//! - **Errors**: a [`Code`] and a message, which the user reads in Python. A panic is an error too, unless the library is built with
//!   `panic = "abort"`: then it ends the process.
//!
//! # Below that
//!
//! [`handle`] runs any closure on a [`Call`], whose buffers are read and written by copying; [`ffi`] mirrors the C interface. Only the
//! prefix of each struct is used that has stayed where it is from FFI API 0.1 (jaxlib 0.4.38) to 0.5 (jaxlib 0.12), so one binary serves
//! all of them; what came later (state, futures, scratch memory, threads, numbers of devices and runs) is asked for in the runtime's own table.
//!
//! The feature `mock` has a module of that name, to test handlers without a runtime.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs)]

// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod attribute;
mod boundary;
mod call;
mod context;
mod element;
mod error;
pub mod ffi;
mod future;
pub mod guide;
mod handler;
#[cfg(feature = "mock")]
pub mod mock;
mod state;
mod view;

pub use attribute::{Array, Attribute, Attributes, Value};
pub use boundary::{Traits, handle, handle_stages};
pub use call::{Arg, Buffer, Buffers, Call, Ret, Role, Stage, is_in_place};
pub use context::{DeviceOrdinal, RunId, Scratch, Stream, ThreadPool};
pub use element::{
    BF16, Complex, DType, Element, F8E3M4, F8E4M3, F8E4M3B11FNUZ, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU,
    F16,
};
pub use error::{Code, Error};
pub use future::{Future, Keep, Kept, Lend, Promise};
pub use handler::{Finished, Handler, Listed, Outcome, Parameter, Parameters, entry};
pub use state::{Initialized, NewState, Prepared, State};
pub use view::{ANY, Device, Host, InPlace, Memory, Operand, Output, Token};

/// For the macros of this crate.
#[doc(hidden)]
pub mod __private {
    pub use crate::attribute::{Fields, wanted_dictionary};
}
