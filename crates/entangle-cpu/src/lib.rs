//! The host: how it runs calls, and what is registered for it.

mod driver;
#[cfg(test)]
mod tests;

pub use driver::Stream;
use entangle_core::Target;

/// The handlers for the host, which has no graphs.
pub const TARGETS: [Target; 3] = entangle_slots::targets::<Stream>("cpu", false);
