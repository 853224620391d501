//! The handlers for NVIDIA GPUs: `entangle` itself, and slots to test order with.
//!
//! `entangle-rocm` has the same files with the same names in them: the difference between the two crates is
//! the difference between the two platforms.

pub mod driver;
pub mod slots;
#[cfg(test)]
mod tests;

use entangle_core::{Call, Error, Traits, ffi, handle, pass_through};

/// The `entangle` handler for buffers in the memory of a GPU. See [`pass_through`].
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn entangle(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe { handle(frame, Traits::NONE, enqueue_nothing) }
}

/// The same for runtimes that record it into a graph: it enqueues nothing, so they must accept an empty capture.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn entangle_in_graph(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe { handle(frame, Traits::COMMAND_BUFFER_COMPATIBLE, enqueue_nothing) }
}

fn enqueue_nothing(call: &Call<'_>) -> Result<(), Error> {
    pass_through(call)?;
    // All the work that the payload and the witnesses depend on is on this stream, so nothing needs to be added. A call
    // without a stream is not where it should be.
    stream(call).map(drop)
}

/// The stream on which the call runs.
fn stream(call: &Call<'_>) -> Result<driver::Stream, Error> {
    let stream = call.stream()?;
    // SAFETY: XLA gave it for this call. What holds it is dropped before the handler returns.
    Ok(unsafe { driver::Stream::new(stream) })
}
