//! The HIP runtime, opened when first needed: nothing links it, so one build serves machines with and without it.
//!
//! `hip-sys`, the binding that exists, needs HIP's headers to build and links the library of one HIP version.
//! The few functions that are used are therefore declared here, by their C types, and the feature `hip` compares them
//! with that binding. (`cubecl-hip-sys` opens HIP at run time too, but a function that is missing then ends
//! the process, and it does not build where a version of HIP is installed that it does not know.)

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::NonNull;
use std::sync::OnceLock;

use entangle_core::OfCall;
use entangle_slots::Pool;
use libloading::Library;
use xla_ffi::{Call, Error};

/// A HIP stream, for as long as it lives.
pub struct Stream(NonNull<c_void>);

impl OfCall for Stream {
    fn of(call: &Call<'_>) -> Result<Self, Error> {
        call.stream().map(Self)
    }
}

/// Declares functions of HIP by their C types, and a struct that holds them.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty,)*) => {
        /// The functions of HIP that are used here.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, reason = "these are HIP's own names")]
        pub(crate) struct Hip {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Hip {
            fn find(library: &Library, file: &str) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: the types are those of HIP's header, which the feature `hip` checks.
                    $($name: *unsafe { library.get(stringify!($name)) }.map_err(|_| lacks(file, stringify!($name)))?,)*
                })
            }
        }
    };
}

functions! {
    hipHostMalloc: fn(*mut *mut c_void, usize, c_uint) -> c_int,
    hipMemcpyDtoHAsync: fn(*mut c_void, *mut c_void, usize, *mut c_void) -> c_int,
    hipMemcpyHtoDAsync: fn(*mut c_void, *mut c_void, usize, *mut c_void) -> c_int,
    hipLaunchHostFunc: fn(*mut c_void, Option<unsafe extern "C" fn(*mut c_void)>, *mut c_void) -> c_int,
    hipStreamIsCapturing: fn(*mut c_void, *mut c_int) -> c_int,
    hipThreadExchangeStreamCaptureMode: fn(*mut c_int) -> c_int,
    hipGetErrorString: fn(c_int) -> *const c_char,
}

/// `hipHostMallocPortable`: every device may copy to it and from it.
const HOST_MALLOC_PORTABLE: c_uint = 1;
/// `hipStreamCaptureModeRelaxed`.
const CAPTURE_MODE_RELAXED: c_int = 2;
/// `hipStreamCaptureStatusNone`.
const CAPTURE_STATUS_NONE: c_int = 0;

/// Names of HIP's library, the one first that jax's plugin has loaded already.
const LIBRARIES: [&str; 3] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];

/// An error unless HIP is there.
///
/// # Errors
/// There is no HIP, which names were tried; or it is too old.
pub fn open() -> Result<(), String> {
    hip().map(drop)
}

fn hip() -> Result<&'static Hip, String> {
    static OPENED: OnceLock<Result<Hip, String>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| {
        let (library, file) = library()?;
        let hip = Hip::find(&library, file)?;
        // The functions stay for good, so the library must.
        core::mem::forget(library);
        Ok(hip)
    });
    opened.as_ref().map_err(Clone::clone)
}

fn library() -> Result<(Library, &'static str), String> {
    // SAFETY: opening a library runs its initializers; HIP's may be run at any time.
    let found = LIBRARIES.iter().find_map(|name| Some((unsafe { Library::new(*name) }.ok()?, *name)));
    found.ok_or_else(|| {
        format!("HIP could not be opened (tried {}): is ROCm installed and on the library path?", LIBRARIES.join(", "))
    })
}

fn lacks(file: &str, function: &str) -> String {
    format!("{file} has no {function}: it is older than ROCm 5.3; install a newer ROCm")
}

impl Hip {
    fn check(&self, function: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: HIP's own function.
        Err(unsafe { failed(self.hipGetErrorString, function, status) })
    }
}

/// # Safety
/// `text_of` is HIP's: it gives null, or a string that is never freed.
unsafe fn failed(text_of: unsafe extern "C" fn(c_int) -> *const c_char, function: &str, status: c_int) -> String {
    // SAFETY: any status may be asked about.
    let text = unsafe { text_of(status) };
    if text.is_null() {
        return format!("{function} failed with status {status}");
    }
    // SAFETY: not null, and never freed.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    format!("{function} failed: {text} (status {status})")
}

// Unlike CUDA's driver, HIP has no context to choose first: a stream knows its device, what is enqueued on it goes there
// whichever device is the thread's current one, and portable memory is every device's. (`hipStreamGetDevice`, which would
// be needed to choose, is younger than the ROCm 5.3 that is enough here.)
//
// SAFETY: HIP's streams run in order, and so do the launches of a graph; memory allocated here is never freed.
unsafe impl entangle_slots::Stream for Stream {
    fn pool() -> &'static Pool {
        static POOL: Pool = Pool::new();
        &POOL
    }

    fn allocate(&self, bytes: usize) -> Result<NonNull<c_void>, String> {
        let hip = hip()?;
        // Allocation is refused while a stream of this thread is captured, unless the thread says that it means it.
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the pointer is to a mode, which is exchanged for the thread's own.
        let exchange = |mode: &mut _| unsafe { (hip.hipThreadExchangeStreamCaptureMode)(mode) };
        hip.check("hipThreadExchangeStreamCaptureMode", exchange(&mut mode))?;
        let mut memory = core::ptr::null_mut();
        // SAFETY: the memory is never freed.
        let status = unsafe { (hip.hipHostMalloc)(&raw mut memory, bytes, HOST_MALLOC_PORTABLE) };
        hip.check("hipThreadExchangeStreamCaptureMode", exchange(&mut mode))?;
        hip.check("hipHostMalloc", status)?;
        NonNull::new(memory).ok_or_else(|| "hipHostMalloc gave a null pointer".into())
    }

    unsafe fn copy_to_host(&self, to: NonNull<c_void>, from: *const c_void, bytes: usize) -> Result<(), String> {
        let hip = hip()?;
        // SAFETY: the caller's contract.
        let status = unsafe { (hip.hipMemcpyDtoHAsync)(to.as_ptr(), from.cast_mut(), bytes, self.0.as_ptr()) };
        hip.check("hipMemcpyDtoHAsync", status)
    }

    unsafe fn copy_to_device(&self, to: *mut c_void, from: NonNull<c_void>, bytes: usize) -> Result<(), String> {
        let hip = hip()?;
        // SAFETY: the caller's contract.
        let status = unsafe { (hip.hipMemcpyHtoDAsync)(to, from.as_ptr(), bytes, self.0.as_ptr()) };
        hip.check("hipMemcpyHtoDAsync", status)
    }

    unsafe fn call(&self, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Result<(), String> {
        let hip = hip()?;
        // SAFETY: the caller's contract.
        let status = unsafe { (hip.hipLaunchHostFunc)(self.0.as_ptr(), Some(function), data) };
        hip.check("hipLaunchHostFunc", status)
    }

    fn is_captured(&self) -> Result<bool, String> {
        let hip = hip()?;
        let mut status = CAPTURE_STATUS_NONE;
        // SAFETY: the stream lives (XLA gave it for this call).
        let answer = unsafe { (hip.hipStreamIsCapturing)(self.0.as_ptr(), &raw mut status) };
        hip.check("hipStreamIsCapturing", answer)?;
        Ok(status != CAPTURE_STATUS_NONE)
    }
}

/// What is declared above, against HIP's own headers.
#[cfg(feature = "hip")]
mod against_hip_sys {
    use hip_sys::hiprt as hip;

    use super::{CAPTURE_MODE_RELAXED, CAPTURE_STATUS_NONE, Stream, c_char, c_int, c_uint, c_void};

    const _: () = {
        assert!(size_of::<Stream>() == size_of::<hip::hipStream_t>());
        assert!(size_of::<c_int>() == size_of::<hip::hipError_t>());
        assert!(size_of::<c_int>() == size_of::<hip::hipStreamCaptureMode>());
        assert!(size_of::<c_int>() == size_of::<hip::hipStreamCaptureStatus>());
        assert!(CAPTURE_MODE_RELAXED == hip::hipStreamCaptureMode::hipStreamCaptureModeRelaxed as c_int);
        assert!(CAPTURE_STATUS_NONE == hip::hipStreamCaptureStatus::hipStreamCaptureStatusNone as c_int);
    };

    // A constant of a function's type compiles if the types agree, and needs no such function at link time.
    type Status = hip::hipError_t;
    type HipStream = hip::hipStream_t;
    const _: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> Status = hip::hipHostMalloc;
    const _: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, HipStream) -> Status = hip::hipMemcpyDtoHAsync;
    const _: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, HipStream) -> Status = hip::hipMemcpyHtoDAsync;
    const _: unsafe extern "C" fn(HipStream, hip::hipHostFn_t, *mut c_void) -> Status = hip::hipLaunchHostFunc;
    const _: hip::hipHostFn_t = None::<unsafe extern "C" fn(*mut c_void)>;
    const _: unsafe extern "C" fn(HipStream, *mut hip::hipStreamCaptureStatus) -> Status = hip::hipStreamIsCapturing;
    const _: unsafe extern "C" fn(*mut hip::hipStreamCaptureMode) -> Status = hip::hipThreadExchangeStreamCaptureMode;
    const _: unsafe extern "C" fn(Status) -> *const c_char = hip::hipGetErrorString;
}

#[cfg(all(test, feature = "hip"))]
mod tests {
    use hip_sys::hiprt;

    use super::{failed, hip, lacks, library};

    /// The library that is opened at run time is the one whose headers were checked.
    #[test]
    fn the_library_opened_at_run_time_is_the_one_that_is_linked() {
        let (library, _) = library().unwrap();
        let opened = |name: &str| {
            // SAFETY: only its address is taken.
            *unsafe { library.get::<*const ()>(name) }.unwrap()
        };
        assert_eq!(opened("hipHostMalloc"), hiprt::hipHostMalloc as *const ());
        assert_eq!(opened("hipMemcpyDtoHAsync"), hiprt::hipMemcpyDtoHAsync as *const ());
        assert_eq!(opened("hipMemcpyHtoDAsync"), hiprt::hipMemcpyHtoDAsync as *const ());
        assert_eq!(opened("hipStreamIsCapturing"), hiprt::hipStreamIsCapturing as *const ());
        let exchange = hiprt::hipThreadExchangeStreamCaptureMode as *const ();
        assert_eq!(opened("hipThreadExchangeStreamCaptureMode"), exchange);
        assert_eq!(opened("hipGetErrorString"), hiprt::hipGetErrorString as *const ());
    }

    /// Debian 12 has HIP 5.2, which lacks one function; anything newer has all of them.
    #[test]
    fn all_functions_are_there_or_the_error_names_the_one_that_is_not() {
        let (library, file) = library().unwrap();
        // SAFETY: only asked whether it is there.
        let is_new = unsafe { library.get::<*const ()>("hipLaunchHostFunc") }.is_ok();
        let expected = if is_new { Ok(()) } else { Err(lacks(file, "hipLaunchHostFunc")) };
        assert_eq!(hip().map(drop), expected);
    }

    /// What HIP says about a machine without a device is what the user reads.
    #[test]
    fn an_error_of_hip_is_its_own_text() {
        let (library, _) = library().unwrap();
        // SAFETY: the type is that of HIP's header.
        let text_of = *unsafe { library.get("hipGetErrorString") }.unwrap();
        let no_device = hiprt::hipError_t::hipErrorNoDevice as i32;
        // SAFETY: HIP's own function.
        let text = unsafe { failed(text_of, "hipHostMalloc", no_device) };
        assert!(text.starts_with("hipHostMalloc failed: ") && text.ends_with(" (status 100)"), "{text}");
        assert!(text.to_lowercase().replace('_', "").contains("device"), "{text}");
    }
}
