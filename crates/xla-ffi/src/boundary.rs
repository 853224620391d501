//! Where C calls Rust: the metadata answer, errors, panics.

use core::any::Any;
use core::panic::AssertUnwindSafe;
use std::ffi::CString;
use std::panic::catch_unwind;

use crate::call::{Call, Stage, check, open};
use crate::error::{Code, Error};
use crate::ffi;

/// What a handler promises to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits(u32);

impl Traits {
    /// No promise.
    pub const NONE: Self = Self(0);
    /// Every call does the same device work, so the call may be recorded into a CUDA or HIP graph.
    pub const COMMAND_BUFFER_COMPATIBLE: Self = Self(ffi::TRAIT_COMMAND_BUFFER_COMPATIBLE);

    /// The traits with these bits of `XLA_FFI_Handler_TraitsBits`.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Their bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// These traits and others, as `|` gives them, for constants: `handler!(…, traits = Traits::A.and(Traits::B))`.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether all those are among these.
    #[must_use]
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

impl core::ops::BitOr for Traits {
    type Output = Self;

    fn bitor(self, others: Self) -> Self {
        self.and(others)
    }
}

/// Runs `body` on a call in the EXECUTE stage, or answers the runtime's metadata query: the whole of a handler.
///
/// A call in another stage is an error: a handler that is made for other stages says so with [`handle_stages`].
///
/// An error of `body` becomes an `XLA_FFI_Error`; a panic becomes one too and never crosses into C.
/// A frame so broken that not even an error can be returned ends the process with a message, since to
/// return at all would claim success and hand out results that were never written.
///
/// # Safety
/// `frame` comes from an XLA runtime, or is made as one would make it: it and all it points to are
/// as `xla/ffi/api/c_api.h` says, each struct at least as long as its `struct_size`, until this returns.
/// If `body` uses [`Buffer::read`](crate::Buffer::read) or [`Buffer::write`](crate::Buffer::write), the handler is
/// registered for the host, whose operands and results are in memory of the process.
pub unsafe fn handle<F>(frame: *mut ffi::CallFrame, traits: Traits, body: F) -> *mut ffi::Error
where
    F: FnOnce(&Call<'_>) -> Result<(), Error>,
{
    // SAFETY: the same contract.
    unsafe { handle_stages(frame, traits, &[Stage::Execute], body) }
}

/// [`handle`] for a handler that is registered for these stages; [`Call::stage`] says in which of them a call is.
///
/// ```
/// use xla_ffi::{Call, Error, Stage, Traits, ffi, handle_stages};
///
/// /// Registered as the "prepare" handler of a target, beside another one that executes it.
/// unsafe extern "C" fn prepare(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
///     // SAFETY: XLA calls handlers with frames of its own making.
///     unsafe { handle_stages(frame, Traits::NONE, &[Stage::Prepare], |call: &Call<'_>| -> Result<(), Error> { Ok(()) }) }
/// }
/// ```
///
/// # Safety
/// As for [`handle`]. In the stages before EXECUTE the elements of buffers are not there: then `body` does not use
/// [`Buffer::read`](crate::Buffer::read) and [`Buffer::write`](crate::Buffer::write).
#[inline]
pub unsafe fn handle_stages<F>(frame: *mut ffi::CallFrame, traits: Traits, stages: &[Stage], body: F) -> *mut ffi::Error
where
    F: FnOnce(&Call<'_>) -> Result<(), Error>,
{
    // SAFETY: the same contract.
    match unsafe { answer(frame, traits, stages, body) } {
        Ok(error) => error,
        Err(why) => stop(&why),
    }
}

#[cold]
#[inline(never)]
fn stop(Unreportable(why): &Unreportable) -> ! {
    eprintln!("XLA FFI handler: {why}, and the call frame has no way to report it; stopping");
    std::process::abort();
}

/// An error that cannot be given to the runtime.
#[derive(Debug)]
struct Unreportable(Error);

/// # Safety
/// As for [`handle`].
unsafe fn answer<F>(
    frame: *mut ffi::CallFrame,
    traits: Traits,
    stages: &[Stage],
    body: F,
) -> Result<*mut ffi::Error, Unreportable>
where
    F: FnOnce(&Call<'_>) -> Result<(), Error>,
{
    // SAFETY: the caller's contract.
    let outcome = match unsafe { Call::open(frame) } {
        Err(error) => Err(error),
        Ok(call) => {
            // SAFETY: `Call::open` found the frame long enough to have its extensions and its context.
            let extension = unsafe { (*frame).extension_start };
            if !extension.is_null()
                // SAFETY: the list of extensions of this frame.
                && let Some(metadata) = unsafe { metadata_query(extension) }
            {
                // SAFETY: a metadata query holds a struct for the handler to write.
                return unsafe { write_metadata(metadata, traits) }
                    .map(|()| core::ptr::null_mut())
                    .map_err(Unreportable);
            }
            match call.check_stage(stages) {
                Ok(()) => {
                    catch_unwind(AssertUnwindSafe(|| body(&call))).unwrap_or_else(|panic| Err(panic_error(panic)))
                }
                Err(error) => Err(error),
            }
        }
    };
    match outcome {
        Ok(()) => Ok(core::ptr::null_mut()),
        // SAFETY: the caller's contract.
        Err(error) => unsafe { report(frame, error) },
    }
}

/// The metadata query among the extensions of a frame.
///
/// # Safety
/// `extension` starts a null-terminated list of extensions.
#[cold]
#[inline(never)]
unsafe fn metadata_query(mut extension: *mut ffi::Extension) -> Option<*mut ffi::Metadata> {
    while !extension.is_null() {
        // SAFETY: the caller's contract. A malformed list ends the search: it is no query.
        let base = unsafe { open(extension.cast_const()) }.ok()?;
        if base.kind == ffi::EXTENSION_METADATA {
            // SAFETY: an extension of this type is the start of a `MetadataExtension`.
            let query = unsafe { open::<ffi::MetadataExtension>(extension.cast_const().cast()) }.ok()?;
            return Some(query.metadata);
        }
        extension = base.next;
    }
    None
}

/// # Safety
/// `metadata` is null or points to a writable struct as long as its `struct_size`. Its other fields may be unset.
unsafe fn write_metadata(metadata: *mut ffi::Metadata, traits: Traits) -> Result<(), Error> {
    // SAFETY: the caller's contract.
    unsafe { check(metadata.cast_const()) }?;
    let (major, minor) = ffi::API_VERSION;
    // SAFETY: not null, aligned and long enough (just checked); writable by the caller's contract. The runtime may have
    // left the fields unset, so they are written in place and no reference is made.
    unsafe {
        (*metadata).api_version.major_version = major;
        (*metadata).api_version.minor_version = minor;
        (*metadata).traits = traits.0;
    }
    Ok(())
}

/// Makes the runtime's error out of ours.
///
/// # Safety
/// As for [`handle`].
unsafe fn report(frame: *const ffi::CallFrame, error: Error) -> Result<*mut ffi::Error, Unreportable> {
    // SAFETY: the caller's contract. The frame may be too short for `Call::open` and yet hold its api.
    let Some(create) = (unsafe { error_create(frame) }) else {
        return Err(Unreportable(error));
    };
    // SAFETY: the runtime's own function.
    let created = unsafe { create_error(create, &error) };
    if created.is_null() { Err(Unreportable(error)) } else { Ok(created) }
}

/// The runtime's function that makes errors.
pub(crate) type ErrorCreate = unsafe extern "C" fn(*mut ffi::ErrorCreateArgs) -> *mut ffi::Error;

/// The runtime's error with this code and text.
///
/// # Safety
/// The function is the runtime's.
pub(crate) unsafe fn create_error(create: ErrorCreate, error: &Error) -> *mut ffi::Error {
    let message = CString::new(error.message().replace('\0', "\u{fffd}")).unwrap_or_default();
    let mut args = ffi::ErrorCreateArgs::new();
    args.message = message.as_ptr();
    args.code = error.code().as_c();
    // SAFETY: the caller's contract; it copies the message.
    unsafe { create(&raw mut args) }
}

/// # Safety
/// As for [`handle`].
unsafe fn error_create(frame: *const ffi::CallFrame) -> Option<ErrorCreate> {
    /// Where a field ends in a struct.
    macro_rules! end_of {
        ($type:ty, $field:ident) => {
            core::mem::offset_of!($type, $field) + size_of::<usize>()
        };
    }
    if frame.is_null() || !frame.is_aligned() {
        return None;
    }
    // SAFETY: a frame starts with its size.
    if unsafe { (&raw const (*frame).struct_size).read() } < end_of!(ffi::CallFrame, api) {
        return None;
    }
    // SAFETY: the frame is long enough to have it.
    let api = unsafe { (&raw const (*frame).api).read() };
    if api.is_null() || !api.is_aligned() {
        return None;
    }
    // SAFETY: an api table starts with its size.
    if unsafe { (&raw const (*api).struct_size).read() } < end_of!(ffi::Api, error_create) {
        return None;
    }
    // SAFETY: the table is long enough to have it.
    unsafe { (&raw const (*api).error_create).read() }
}

pub(crate) fn panic_error(panic: Box<dyn Any + Send>) -> Error {
    Error::new(Code::Internal, format!("the handler panicked: {}", panic_text(panic)))
}

pub(crate) fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let panic = match panic.downcast::<&str>() {
        Ok(text) => return (*text).to_owned(),
        Err(panic) => panic,
    };
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => {
            // Dropping what else was thrown may panic again, this time across the boundary.
            core::mem::forget(panic);
            "no message".to_owned()
        }
    }
}

#[cfg(test)]
mod tests;
