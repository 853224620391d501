//! Reads compiled XLA programs and says whether native calls are ordered by data, and what that cost.
//!
//! ```
//! use entangle_audit::{Access, Audit, Error, Known, Module, Object};
//!
//! fn races(bytes: &[u8]) -> Result<usize, Error> {
//!     let write = Access::write("my_write").on(Object::Operands(vec![1]));
//!     let known = Known::accesses(vec![Access::read("my_read"), write]);
//!     let audit = Audit::new(Module::parse(bytes)?, &known)?;
//!     Ok(audit.races().list.len())
//! }
//! assert!(races(b"").is_err());
//! ```
//!
//! A runtime may run a program's instructions in any order that its data allows; the order in which a compiled program lists them proves
//! nothing. So this crate follows values, array by array, through tuples, fusions, calls, loops and conditionals, and calls two native calls
//! ordered if in *every* run the second one needs a value that the first one had a part in: whichever branch is taken, however often a
//! loop runs.
//!
//! What is not proven: that a handle which is computed at run time is a different object than another one (`handles[i]` and `handles[j]` are
//! taken for the same, and so are elements of an array that was sorted or otherwise moved), that two arguments are not the same object (they are taken for different ones, but for the token and the fence of
//! an `entangle_jax.Handle`), and anything about native calls whose targets were not given.
#![forbid(unsafe_code)]

mod audit;
mod cost;
mod draw;
mod error;
mod graph;
mod hlo;
mod objects;
mod races;
#[cfg(test)]
mod tests;

pub use audit::{Audit, Call, Kind, Known, TouchedObject};
pub use cost::{CopyReason, Cost, Fate, PayloadLeaf};
pub use draw::{Graph, MAX_DRAWN};
pub use error::Error;
pub use hlo::{HOST_CALLBACK, Module, Source};
pub use objects::{Access, Calls, Object};
pub use races::{Lost, MAX_RACES, Moved, Order, Race, Races, Unproven, counterparts, lost, moved};
