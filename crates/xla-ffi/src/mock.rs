//! A hand-made API table and call frames, to call handlers without a runtime.
//!
//! ```
//! use xla_ffi::{Call, Error, Traits, ffi, handle, mock::Frame};
//!
//! fn negate(call: &Call<'_>) -> Result<(), Error> {
//!     let values: Vec<f32> = call.args()?.get(0)?.read()?;
//!     call.rets()?.get(0)?.write(&values.iter().map(|value| -value).collect::<Vec<f32>>())
//! }
//!
//! unsafe extern "C" fn handler(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
//!     // SAFETY: the frame is made by `Frame`.
//!     unsafe { handle(frame, Traits::NONE, negate) }
//! }
//!
//! const F32: i32 = 11;
//! let (mut operand, mut result) = ([1.0_f32, 2.0], [0.0_f32; 2]);
//! let mut frame = Frame::new().arg(F32, &[2], operand.as_mut_ptr().cast()).ret(F32, &[2], result.as_mut_ptr().cast());
//! // SAFETY: both buffers are two numbers, and live.
//! assert_eq!(unsafe { frame.call(handler) }, Ok(()));
//! assert_eq!(result, [-1.0, -2.0]);
//! ```

mod attribute;
mod invocation;
mod runtime;

use core::ffi::c_void;
use core::ptr::{null, null_mut};

pub use attribute::Attribute;
use attribute::Built;
pub use invocation::{CallSite, Invocation, Results};
pub use runtime::api;
use runtime::{Context, Error, Stream, shared_api, wait_for};

use crate::{Traits, ffi};

/// What a handler's error held: its status code and its message.
pub type Failure = (i32, String);

struct Buffer {
    dtype: i32,
    dims: Vec<i64>,
    data: *mut c_void,
}

/// A frame as C has it: what its size counts, and the future behind.
#[repr(C)]
struct WithFuture {
    frame: ffi::CallFrame,
    future: *mut ffi::Future,
}

/// A change that is made to a frame just before it is used.
type Tweak = Box<dyn FnMut(&mut ffi::CallFrame)>;

/// A call frame under construction.
pub struct Frame {
    args: Vec<Buffer>,
    rets: Vec<Buffer>,
    attrs: Vec<(String, Attribute)>,
    context: Context,
    buffer_size: usize,
    tweaks: Vec<Tweak>,
}

impl Default for Frame {
    fn default() -> Self {
        Self::new()
    }
}

impl Frame {
    /// A frame of the EXECUTE stage without operands, results, attributes and stream.
    #[must_use]
    pub fn new() -> Self {
        Self {
            args: Vec::new(),
            rets: Vec::new(),
            attrs: Vec::new(),
            context: Context::new(),
            buffer_size: size_of::<ffi::Buffer>(),
            tweaks: Vec::new(),
        }
    }

    /// Adds an operand whose elements are at `data`: see [`call`](Self::call).
    #[must_use]
    pub fn arg(mut self, dtype: i32, dims: &[i64], data: *mut c_void) -> Self {
        self.args.push(Buffer { dtype, dims: dims.to_vec(), data });
        self
    }

    /// Adds a result whose elements go to `data`: see [`call`](Self::call).
    #[must_use]
    pub fn ret(mut self, dtype: i32, dims: &[i64], data: *mut c_void) -> Self {
        self.rets.push(Buffer { dtype, dims: dims.to_vec(), data });
        self
    }

    /// Adds a string attribute.
    #[must_use]
    pub fn attr(self, name: &str, value: &str) -> Self {
        self.attribute(name, Attribute::string(value))
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attribute(mut self, name: &str, value: Attribute) -> Self {
        self.attrs.push((name.into(), value));
        self
    }

    /// The runtime has this stream.
    #[must_use]
    pub fn stream(mut self, stream: *mut c_void) -> Self {
        self.context.stream = Stream::Is(stream);
        self
    }

    /// The runtime answers a request for the stream with an error.
    #[must_use]
    pub fn stream_fails(mut self, message: &str) -> Self {
        self.context.stream = Stream::Fails(message.into());
        self
    }

    /// Every buffer says that it has this many bytes.
    #[must_use]
    pub fn buffer_size(mut self, bytes: usize) -> Self {
        self.buffer_size = bytes;
        self
    }

    /// Changes the finished frame just before the call: sizes, counts, pointers, the stage.
    #[must_use]
    pub fn tweak(mut self, change: impl FnMut(&mut ffi::CallFrame) + 'static) -> Self {
        self.tweaks.push(Box::new(change));
        self
    }

    /// How often the stream was asked for.
    #[must_use]
    pub fn stream_asked(&self) -> usize {
        self.context.asked
    }

    /// Calls a handler, and waits for its results if they come later.
    ///
    /// # Errors
    /// What the handler reported.
    ///
    /// # Safety
    /// - The handler can be called with any frame that an XLA runtime could make, as those that use
    ///   [`handle`](crate::handle) can, and returns null or an error that it made with the frame's own API.
    /// - What it reads or writes is there: the memory given to [`arg`](Self::arg) and [`ret`](Self::ret) is as large as element
    ///   type and dimensions say, aligned and initialized, and used by nothing else meanwhile; the stream is one of the
    ///   handler's platform. A handler that compares addresses, or passes them on, can be given any.
    /// - [`tweak`](Self::tweak) leaves each pointer null, misaligned, or pointing to what it says, and each count and size no larger
    ///   than what is there.
    ///
    /// Safe code cannot call it, since it could hand the handler any address:
    ///
    /// ```compile_fail,E0133
    /// #![forbid(unsafe_code)]
    /// use xla_ffi::{ffi, mock::Frame};
    ///
    /// fn call(handler: ffi::Handler) {
    ///     let nowhere = core::ptr::without_provenance_mut(8);
    ///     let _ = Frame::new().arg(11, &[1], nowhere).call(handler);
    /// }
    /// ```
    ///
    /// Building a frame is safe, and so is looking at it:
    ///
    /// ```
    /// #![forbid(unsafe_code)]
    /// use xla_ffi::{ffi, mock::Frame};
    ///
    /// let nowhere = core::ptr::without_provenance_mut(8);
    /// assert!(!Frame::new().arg(11, &[1], nowhere).with_frame(|frame| frame.is_null()));
    /// ```
    pub unsafe fn call(&mut self, handler: ffi::Handler) -> Result<(), Failure> {
        self.with_frame(|frame| {
            // SAFETY: the caller's contract; the frame is complete, and lives until the handler returns.
            let mut error = unsafe { handler(frame) };
            if error.is_null() {
                // SAFETY: behind the frame is its future, null or one of this runtime (`with_frame`).
                let future = unsafe { frame.byte_add(ffi::FUTURE_OFFSET).cast::<*mut ffi::Future>().read() };
                // SAFETY: as above, and this is the one wait for it.
                error = unsafe { wait_for(future) };
            }
            if error.is_null() {
                return Ok(());
            }
            // SAFETY: the only errors around are those of `error_create` below.
            let error = unsafe { Box::from_raw(error.cast::<Error>()) };
            Err((error.code, error.message.to_string_lossy().into_owned()))
        })
    }

    /// Builds the C structs, hands out a pointer to them, and keeps them alive meanwhile. Calling a handler with that pointer takes
    /// what [`call`](Self::call) takes.
    pub fn with_frame<R>(&mut self, use_frame: impl FnOnce(*mut ffi::CallFrame) -> R) -> R {
        let mut args: Vec<ffi::Buffer> = self.args.iter().map(|b| c_buffer(b, self.buffer_size)).collect();
        let mut rets: Vec<ffi::Buffer> = self.rets.iter().map(|b| c_buffer(b, self.buffer_size)).collect();
        let arg_items: Vec<*mut c_void> = args.iter_mut().map(|b| (&raw mut *b).cast()).collect();
        let ret_items: Vec<*mut c_void> = rets.iter_mut().map(|b| (&raw mut *b).cast()).collect();
        let buffer_types = vec![ffi::ARG_BUFFER; args.len().max(rets.len())];

        let attrs = Built::new(&mut self.attrs);

        let frame = ffi::CallFrame {
            struct_size: size_of::<ffi::CallFrame>(),
            extension_start: null_mut(),
            api: shared_api(),
            ctx: (&raw mut self.context).cast(),
            stage: ffi::STAGE_EXECUTE,
            args: ffi::Args {
                struct_size: size_of::<ffi::Args>(),
                extension_start: null_mut(),
                size: c_len(args.len()),
                types: buffer_types.as_ptr(),
                items: arg_items.as_ptr(),
            },
            rets: ffi::Rets {
                struct_size: size_of::<ffi::Rets>(),
                extension_start: null_mut(),
                size: c_len(rets.len()),
                types: buffer_types.as_ptr(),
                items: ret_items.as_ptr(),
            },
            attrs: attrs.attrs(),
        };
        let mut whole = WithFuture { frame, future: null_mut() };
        for tweak in &mut self.tweaks {
            tweak(&mut whole.frame);
        }
        use_frame((&raw mut whole).cast())
    }
}

/// Asks a handler for its metadata, as a runtime does at registration: its API version and traits.
///
/// # Panics
/// The handler answers with an error.
///
/// # Safety
/// The handler can be called with any frame that an XLA runtime could make. Safe code cannot call it:
///
/// ```compile_fail,E0133
/// #![forbid(unsafe_code)]
/// use xla_ffi::{ffi, mock::metadata};
///
/// fn ask(handler: ffi::Handler) {
///     metadata(handler);
/// }
/// ```
pub unsafe fn metadata(handler: ffi::Handler) -> ((i32, i32), Traits) {
    let mut metadata = ffi::Metadata {
        struct_size: ffi::Metadata::END,
        api_version: ffi::ApiVersion {
            struct_size: ffi::ApiVersion::END,
            extension_start: null_mut(),
            major_version: -1,
            minor_version: -1,
        },
        traits: u32::MAX,
    };
    let mut extension = ffi::MetadataExtension {
        base: ffi::Extension {
            struct_size: size_of::<ffi::MetadataExtension>(),
            kind: ffi::EXTENSION_METADATA,
            next: null_mut(),
        },
        metadata: &raw mut metadata,
    };
    let start = (&raw mut extension).cast();
    // A runtime has no API table and no context at hand at that point.
    let mut frame = Frame::new().tweak(move |frame| {
        frame.extension_start = start;
        frame.api = null();
        frame.ctx = null_mut();
    });
    // SAFETY: the caller's contract; the frame has no buffers, and its extension lives.
    let answer = unsafe { frame.call(handler) };
    assert_eq!(answer, Ok(()), "a metadata query is never an error");
    let version = (metadata.api_version.major_version, metadata.api_version.minor_version);
    (version, Traits::from_bits(metadata.traits))
}

fn c_buffer(buffer: &Buffer, struct_size: usize) -> ffi::Buffer {
    ffi::Buffer {
        struct_size,
        extension_start: null_mut(),
        dtype: buffer.dtype,
        data: buffer.data,
        rank: c_len(buffer.dims.len()),
        dims: buffer.dims.as_ptr(),
    }
}

fn c_len(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
