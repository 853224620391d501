//! The one error type of this crate.

use std::fmt;

/// Why a module could not be read or audited.
///
/// Each message says where, what was found, what was wanted, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There was nothing to read.
    Empty,
    /// The bytes are the text form of a module, which this crate does not read.
    Text,
    /// The bytes are no `HloModuleProto` and no `HloProto`.
    NotAModule {
        /// What each of the two ways to read them ran into.
        reason: String,
    },
    /// The bytes are a module whose parts do not fit together.
    Malformed {
        /// The computation and instruction at fault, or `the module`.
        place: String,
        /// What was found there, and what was wanted.
        problem: String,
    },
    /// The module is well formed and more than this crate follows.
    TooLarge {
        /// The number of values and instructions after each nested computation is written out at each of its callers.
        limit: usize,
    },
    /// A native call sits where its order cannot be told.
    Unsupported {
        /// The instruction that calls a computation in a way that is not followed.
        place: String,
        /// What was found there.
        problem: String,
    },
    /// A text does not name a target.
    NoSuchTarget {
        /// The text.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A read or write names an attribute that a call of that target does not have.
    NoSuchAttribute {
        /// The call's target.
        target: String,
        /// The call's name in the module.
        call: String,
        /// The attribute asked for.
        attribute: String,
    },
    /// A read or write names an operand that a call of that target does not have.
    NoSuchOperand {
        /// The call's target.
        target: String,
        /// The call's name in the module.
        call: String,
        /// The operand asked for, counted from 0.
        operand: usize,
        /// How many operands the call has.
        operands: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str(
                "no bytes to read: wanted a serialized HloModuleProto or HloProto. Check that the dump file is complete",
            ),
            Self::Text => f.write_str(
                "this is a module in text form: wanted a serialized HloModuleProto or HloProto. \
                 Dump it with XLA_FLAGS=\"--xla_dump_to=DIR --xla_dump_hlo_as_proto\" and pass the .hlo.pb file",
            ),
            Self::NotAModule { reason } => write!(
                f,
                "these bytes are neither an HloModuleProto nor an HloProto ({reason}). \
                 Pass a .hlo.pb file from --xla_dump_hlo_as_proto, or what as_serialized_hlo_module_proto() returns, whole and unchanged",
            ),
            Self::Malformed { place, problem } => write!(
                f,
                "malformed module, at {place}: {problem}. The bytes are damaged or cut short: write the module again",
            ),
            Self::TooLarge { limit } => write!(
                f,
                "the module is too large to audit: with nested computations written out at each of their callers it has more than \
                 {limit} values. Audit a smaller part of the program, or the optimized program",
            ),
            Self::Unsupported { place, problem } => write!(
                f,
                "cannot tell the order of native calls at {place}: {problem}. Move the native call out of it",
            ),
            Self::NoSuchOperand { target, call, operand, operands } => write!(
                f,
                "operand {operand} of target {target:?} is named as a handle, but the call {call} has {operands} operand(s), \
                 counted from 0. Name the operand that holds the handle, or name the resource that all of its calls touch",
            ),
            Self::NoSuchAttribute { target, call, attribute } => write!(
                f,
                "attribute {attribute:?} of target {target:?} is said to name the object, but the call {call} has no such attribute. \
                 Name the attribute that does, or the resource that all of its calls touch",
            ),
            Self::NoSuchTarget { text, problem } => write!(
                f,
                "{text:?} is no native target: {problem}. Wanted [RESOURCE=]TARGET, or [RESOURCE=]TARGET:OBJECT where OBJECT is \
                 operands such as 0 or 0,2, an attribute as @NAME, or * for all that its calls touch",
            ),
        }
    }
}

impl std::error::Error for Error {}
