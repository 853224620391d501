//! The host as a stream: what is enqueued is done at once, before the call that enqueues it returns.

use core::alloc::Layout;
use core::ffi::c_void;
use core::ptr::NonNull;
use std::alloc::alloc;

use entangle_core::OfCall;
use entangle_slots::Pool;
use xla_ffi::{Call, Error};

/// The host, which has nothing to choose from.
pub struct Stream;

impl OfCall for Stream {
    const IN_EVERY_CALL: bool = true;

    fn of(_: &Call<'_>) -> Result<Self, Error> {
        Ok(Self)
    }
}

// SAFETY: all is done in the order of the calls, since each is done before it returns; memory allocated here is never freed.
unsafe impl entangle_slots::Stream for Stream {
    fn pool() -> &'static Pool {
        static POOL: Pool = Pool::new();
        &POOL
    }

    fn allocate(&self, bytes: usize) -> Result<NonNull<c_void>, String> {
        let layout = Layout::from_size_align(bytes.max(1), align_of::<u64>()).map_err(|error| error.to_string())?;
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc(layout) };
        NonNull::new(memory.cast()).ok_or_else(|| format!("the host has no {bytes} bytes left"))
    }

    unsafe fn copy_to_host(&self, to: NonNull<c_void>, from: *const c_void, bytes: usize) -> Result<(), String> {
        // SAFETY: the caller's contract; memory of `allocate` overlaps with nothing of XLA's.
        unsafe { core::ptr::copy_nonoverlapping(from.cast::<u8>(), to.as_ptr().cast(), bytes) };
        Ok(())
    }

    unsafe fn copy_to_device(&self, to: *mut c_void, from: NonNull<c_void>, bytes: usize) -> Result<(), String> {
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr().cast::<u8>(), to.cast(), bytes) };
        Ok(())
    }

    unsafe fn call(&self, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Result<(), String> {
        // SAFETY: the caller's contract.
        unsafe { function(data) };
        Ok(())
    }

    fn is_captured(&self) -> Result<bool, String> {
        Ok(false)
    }
}
