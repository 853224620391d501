//! The one error type of a handler.

use core::ffi::c_int;
use std::fmt;

/// What kind of error it is, as an absl status code; XLA prefixes the message with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// The operation was cancelled.
    Cancelled = 1,
    /// An error of no known kind.
    Unknown = 2,
    /// The caller passed something that the handler does not take.
    InvalidArgument = 3,
    /// It took too long.
    DeadlineExceeded = 4,
    /// What was asked for is not there.
    NotFound = 5,
    /// What was to be made is there already.
    AlreadyExists = 6,
    /// The caller may not do that.
    PermissionDenied = 7,
    /// There is no memory, or no other resource, left.
    ResourceExhausted = 8,
    /// The program or the system is not in the state that the handler needs.
    FailedPrecondition = 9,
    /// The operation was given up, for example because another one interfered.
    Aborted = 10,
    /// A number is beyond what is allowed.
    OutOfRange = 11,
    /// The handler does not do what it was asked to do.
    Unimplemented = 12,
    /// A contract between the runtime and the handler was broken.
    Internal = 13,
    /// Something that the handler needs is not there at the moment.
    Unavailable = 14,
    /// Data is lost or damaged.
    DataLoss = 15,
    /// The caller is not who it has to be.
    Unauthenticated = 16,
}

impl Code {
    /// All of them, in the order of their numbers, which begin at 1.
    pub const ALL: [Self; 16] = [
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    pub(crate) fn as_c(self) -> c_int {
        self as c_int
    }

    pub(crate) fn from_c(code: c_int) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_c() == code)
    }
}

/// An error with a code and a message. The runtime shows the message to the user.
///
/// It is one pointer, so that a result that may hold one is returned in registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<(Code, String)>);

impl Error {
    /// An error of the given kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new((code, message.into())))
    }

    /// A frame that does not hold what the C interface promises.
    #[cold]
    #[inline(never)]
    pub(crate) fn frame(what: impl fmt::Display) -> Self {
        Self::new(
            Code::Internal,
            format!(
                "malformed XLA FFI call frame: {what}; the jaxlib that made it is not one this handler was built for"
            ),
        )
    }

    /// Its kind.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.0
    }

    /// Its text.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.1
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {}
