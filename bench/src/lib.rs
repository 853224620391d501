//! The floor: the least that any FFI handler costs, to compare the handler of `entangle` with.

use xla_ffi::mock::Frame;
use xla_ffi::{Traits, ffi, handle};

/// A handler that returns at once. Called with the operands and aliases of `entangle`, it takes what XLA itself takes.
///
/// # Safety
/// As for [`handle`]: XLA calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn entangle_bench_floor(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: a frame is there and has its first fields.
    if unsafe { (*frame).extension_start }.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the same contract.
    unsafe { registration(frame) }
}

/// The metadata query, out of line so that the calls that count need no stack frame.
///
/// # Safety
/// As for [`handle`].
#[cold]
#[inline(never)]
unsafe fn registration(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe { handle(frame, Traits::NONE, |_| Ok(())) }
}

/// The handlers by name.
pub const HANDLERS: [(&str, ffi::Handler); 2] =
    [("floor", entangle_bench_floor), ("entangle", entangle_cpu::TARGETS[0].handler)];

/// A call frame with that many payload leaves and as many witnesses, each result in the memory of its operand.
#[must_use]
pub fn frame(leaves: usize) -> Frame {
    const F32: i32 = 11;
    // Handlers look at addresses alone, so any that are not null will do.
    let at = |leaf: usize| core::ptr::without_provenance_mut(64 * (leaf + 1));
    let frame = (0..2 * leaves).fold(Frame::new(), |frame, leaf| frame.arg(F32, &[8], at(leaf)));
    (0..leaves).fold(frame, |frame, leaf| frame.ret(F32, &[8], at(leaf)))
}
