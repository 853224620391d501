//! The native side of `entangle`, once for all platforms.
//!
//! [`entangle`] is the handler that XLA calls. It is generic over the stream of a platform, which it gets [of the call](OfCall); `entangle-cpu`, `entangle-cuda` and
//! `entangle-rocm` say what that is and list the [`Target`]s to register.

mod pass_through;

pub use pass_through::pass_through;

use xla_ffi::{Call, Error, Traits, ffi, handle, is_in_place};

/// The stream of a platform, as a call has it: where calls run one after the other, a stream of a GPU's driver or the host itself.
pub trait OfCall: Sized {
    /// Whether each call has one, so that nothing has to be asked of the runtime.
    const IN_EVERY_CALL: bool = false;

    /// The stream on which this call runs. What is made here is dropped before the handler returns.
    ///
    /// # Errors
    /// There is none: the handler was registered for another platform.
    fn of(call: &Call<'_>) -> Result<Self, Error>;
}

/// A handler as `jax.ffi.register_ffi_target` takes it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The platform by jax's name.
    pub platform: &'static str,
    /// The name by which programs call it.
    pub name: &'static str,
    /// The handler.
    pub handler: ffi::Handler,
    /// The same for runtimes that record it into CUDA or HIP graphs; `None` where there are no graphs.
    pub in_graph: Option<ffi::Handler>,
}

/// What a handler promises that may be recorded into graphs, or may not.
#[must_use]
pub const fn traits(in_graph: bool) -> Traits {
    if in_graph { Traits::COMMAND_BUFFER_COMPATIBLE } else { Traits::NONE }
}

/// The handler of `entangle`: [`pass_through`], on a platform whose streams are `S`.
///
/// It enqueues nothing. All the work that the payload and the witnesses depend on is on the stream of the call already, so
/// nothing needs to be added; the stream is asked for because a call without one is not where it should be. A runtime that
/// records calls into graphs (`IN_GRAPH`) must therefore accept an empty capture.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn entangle<S: OfCall, const IN_GRAPH: bool>(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // Most calls on the host run nothing but this comparison.
    // SAFETY: the same contract.
    if S::IN_EVERY_CALL && unsafe { is_in_place(frame) } {
        return core::ptr::null_mut();
    }
    // SAFETY: the same contract.
    unsafe { look_closer::<S, IN_GRAPH>(frame) }
}

/// Out of line, and from C to C, so that [`entangle`] keeps nothing at hand for it.
///
/// # Safety
/// As for [`handle`].
#[inline(never)]
unsafe extern "C" fn look_closer<S: OfCall, const IN_GRAPH: bool>(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    let body = |call: &Call<'_>| {
        pass_through(call)?;
        S::of(call).map(drop)
    };
    // SAFETY: the same contract.
    unsafe { handle(frame, traits(IN_GRAPH), body) }
}
