//! The CUDA driver, opened when first needed: nothing links it, so one build serves machines with and without it.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::OnceLock;

use cudarc::driver::{DriverError, result, sys};
use entangle_slots::device;

/// A CUDA stream.
pub struct Stream(sys::CUstream);

impl Stream {
    /// The stream at that address.
    #[must_use]
    pub fn new(stream: NonNull<c_void>) -> Self {
        Self(stream.as_ptr().cast())
    }

    /// The driver, with a context on this thread: without one it refuses copies.
    fn driver(&self) -> Result<(), String> {
        open()?;
        if result::ctx::get_current().map_err(|error| failed("cuCtxGetCurrent", error))?.is_none() {
            let mut context = core::ptr::null_mut();
            // SAFETY: XLA gave this stream, which outlives the call.
            unsafe { sys::cuStreamGetCtx(self.0, &raw mut context) }
                .result()
                .map_err(|error| failed("cuStreamGetCtx", error))?;
            // SAFETY: the context of a living stream.
            unsafe { result::ctx::set_current(context) }.map_err(|error| failed("cuCtxSetCurrent", error))?;
        }
        Ok(())
    }
}

/// An error unless the driver is there.
///
/// # Errors
/// There is no driver: which names were tried.
pub fn open() -> Result<(), String> {
    static OPENED: OnceLock<Result<(), String>> = OnceLock::new();
    OPENED
        .get_or_init(|| {
            // SAFETY: opening a library runs its initializers; NVIDIA's may be run at any time.
            if unsafe { sys::is_culib_present() } {
                return Ok(());
            }
            let tried = cudarc::get_lib_name_candidates("cuda").join(", ");
            Err(format!("the CUDA driver could not be opened (tried {tried}): is an NVIDIA driver installed and on the library path?"))
        })
        .clone()
}

fn failed(function: &str, error: DriverError) -> String {
    format!("{function} failed: {error}")
}

// SAFETY: CUDA's streams run in order; memory allocated here is never freed.
unsafe impl device::Stream for Stream {
    fn allocate(&self, bytes: usize) -> Result<NonNull<c_void>, String> {
        self.driver()?;
        // Allocation is refused while a stream of this thread is captured, unless the thread says that it means it.
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the pointer is to a mode, which is exchanged for the thread's own.
        let exchange = |mode: &mut _| unsafe { sys::cuThreadExchangeStreamCaptureMode(mode) }.result();
        exchange(&mut mode).map_err(|error| failed("cuThreadExchangeStreamCaptureMode", error))?;
        // SAFETY: the memory is never freed.
        let memory = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        exchange(&mut mode).map_err(|error| failed("cuThreadExchangeStreamCaptureMode", error))?;
        let memory = memory.map_err(|error| failed("cuMemHostAlloc", error))?;
        NonNull::new(memory).ok_or_else(|| "cuMemHostAlloc gave a null pointer".into())
    }

    unsafe fn copy_to_host(&self, to: NonNull<c_void>, from: *const c_void, bytes: usize) -> Result<(), String> {
        self.driver()?;
        // SAFETY: the caller's contract.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_ptr(), from.addr() as sys::CUdeviceptr, bytes, self.0) }
            .result()
            .map_err(|error| failed("cuMemcpyDtoHAsync", error))
    }

    unsafe fn copy_to_device(&self, to: *mut c_void, from: NonNull<c_void>, bytes: usize) -> Result<(), String> {
        self.driver()?;
        // SAFETY: the caller's contract.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to.addr() as sys::CUdeviceptr, from.as_ptr(), bytes, self.0) }
            .result()
            .map_err(|error| failed("cuMemcpyHtoDAsync", error))
    }

    unsafe fn call(&self, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Result<(), String> {
        self.driver()?;
        // SAFETY: the caller's contract.
        unsafe { sys::cuLaunchHostFunc(self.0, Some(function), data) }
            .result()
            .map_err(|error| failed("cuLaunchHostFunc", error))
    }

    fn is_captured(&self) -> Result<bool, String> {
        self.driver()?;
        // SAFETY: XLA gave this stream, which outlives the call.
        let status =
            unsafe { result::stream::is_capturing(self.0) }.map_err(|error| failed("cuStreamIsCapturing", error))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}
