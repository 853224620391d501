//! The handlers for the host: `entangle` itself, and slots to test order with.

pub mod slots;

use entangle_core::{Traits, ffi, handle, pass_through};

/// The `entangle` handler for buffers in host memory. See [`pass_through`].
///
/// # Safety
/// As for [`handle`]: XLA calls it.
pub unsafe extern "C" fn entangle(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    // SAFETY: the same contract.
    unsafe { handle(frame, Traits::NONE, pass_through) }
}

#[cfg(test)]
mod tests {
    use entangle_core::Traits;
    use entangle_core::mock::{Frame, metadata};

    #[test]
    fn values_stay_where_they_are_and_the_host_has_no_graphs() {
        let mut value = [1.0_f32, f32::from_bits(0x7fa0_0001), -0.0];
        let before = value.map(f32::to_bits);
        let memory = value.as_mut_ptr().cast();
        assert_eq!(Frame::new().arg(11, &[3], memory).ret(11, &[3], memory).call(super::entangle), Ok(()));
        assert_eq!(value.map(f32::to_bits), before);
        assert_eq!(metadata(super::entangle), ((0, 1), Traits::NONE));
    }
}
