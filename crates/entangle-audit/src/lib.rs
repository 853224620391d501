//! Reads compiled XLA programs and says whether native calls are ordered by data, and what that cost.
//!
//! ```
//! use entangle_audit::{Audit, Error, Module, Target, Targets};
//!
//! fn races(bytes: &[u8]) -> Result<usize, Error> {
//!     let targets = Targets {
//!         reads: vec![Target::new("my_read")],
//!         writes: vec![Target::parse("my_write:1")],
//!         ..Targets::default()
//!     };
//!     let audit = Audit::new(Module::parse(bytes)?, &targets)?;
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
mod dependence;
mod draw;
mod error;
mod horizon;
mod literal;
mod lost;
mod module;
mod order;
mod proto;
mod reach;
mod roots;
#[cfg(test)]
mod tests;

pub use audit::{Audit, Call, Kind, Target, Targets};
pub use cost::{CopyReason, Cost, Fate, PayloadLeaf};
pub use draw::{Graph, MAX_DRAWN};
pub use error::Error;
pub use lost::{Lost, lost};
pub use module::{Module, Source};
pub use order::{MAX_RACES, Order, Race, Races, Unproven};
