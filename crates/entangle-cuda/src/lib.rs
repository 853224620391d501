//! CUDA: its driver, and what is registered for it.

mod driver;

pub use driver::{Stream, open};
use entangle_core::Target;

/// The handlers for NVIDIA GPUs.
pub const TARGETS: [Target; 3] = entangle_slots::targets::<Stream>("CUDA", true);
