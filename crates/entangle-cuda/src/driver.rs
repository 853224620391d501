//! The CUDA driver, opened when first needed: nothing links it, so one build serves machines with and without it.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::OnceLock;

use cudarc::driver::{DriverError, result, sys};
use entangle_core::OfCall;
use entangle_slots::Pool;
use xla_ffi::{Call, Error};

/// A CUDA stream, for as long as it lives.
pub struct Stream(sys::CUstream);

impl OfCall for Stream {
    fn of(call: &Call<'_>) -> Result<Self, Error> {
        Ok(Self(call.stream()?.as_ptr().cast()))
    }
}

impl Stream {
    /// Calls the driver with the stream's own context on this thread, which may have none, or that of another device.
    /// None of the three calls around it is work of the stream, so all of it may happen while the stream is captured.
    fn in_context<R>(&self, call: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
        self.push_context()?;
        let outcome = call();
        let restored = pop_context();
        let value = outcome?;
        restored?;
        Ok(value)
    }

    #[inline(never)] // there once, not in each operation
    fn push_context(&self) -> Result<(), String> {
        open()?;
        let mut context = core::ptr::null_mut();
        // SAFETY: the stream lives (XLA gave it for this call).
        unsafe { sys::cuStreamGetCtx(self.0, &raw mut context) }
            .result()
            .map_err(|error| failed("cuStreamGetCtx", error))?;
        // SAFETY: the context of a living stream.
        unsafe { sys::cuCtxPushCurrent_v2(context) }.result().map_err(|error| failed("cuCtxPushCurrent", error))
    }
}

/// Takes off what `push_context` has put on; the thread's own context is current again.
#[inline(never)] // as above
fn pop_context() -> Result<(), String> {
    let mut popped = core::ptr::null_mut();
    // SAFETY: the pointer is to a context.
    unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) }.result().map_err(|error| failed("cuCtxPopCurrent", error))
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

// SAFETY: CUDA's streams run in order, and so do the launches of a graph; memory allocated here is never freed.
unsafe impl entangle_slots::Stream for Stream {
    fn pool() -> &'static Pool {
        static POOL: Pool = Pool::new();
        &POOL
    }

    fn allocate(&self, bytes: usize) -> Result<NonNull<c_void>, String> {
        self.in_context(|| {
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
        })
    }

    unsafe fn copy_to_host(&self, to: NonNull<c_void>, from: *const c_void, bytes: usize) -> Result<(), String> {
        self.in_context(|| {
            // SAFETY: the caller's contract.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_ptr(), from.addr() as sys::CUdeviceptr, bytes, self.0) }
                .result()
                .map_err(|error| failed("cuMemcpyDtoHAsync", error))
        })
    }

    unsafe fn copy_to_device(&self, to: *mut c_void, from: NonNull<c_void>, bytes: usize) -> Result<(), String> {
        self.in_context(|| {
            // SAFETY: the caller's contract.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to.addr() as sys::CUdeviceptr, from.as_ptr(), bytes, self.0) }
                .result()
                .map_err(|error| failed("cuMemcpyHtoDAsync", error))
        })
    }

    unsafe fn call(&self, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Result<(), String> {
        self.in_context(|| {
            // SAFETY: the caller's contract.
            unsafe { sys::cuLaunchHostFunc(self.0, Some(function), data) }
                .result()
                .map_err(|error| failed("cuLaunchHostFunc", error))
        })
    }

    fn is_captured(&self) -> Result<bool, String> {
        self.in_context(|| {
            // SAFETY: the stream lives (XLA gave it for this call).
            let status = unsafe { result::stream::is_capturing(self.0) }
                .map_err(|error| failed("cuStreamIsCapturing", error))?;
            Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
        })
    }
}
