//! XLA's programs as they are read from bytes: every reference resolved, nothing cyclic.

mod attribute;
mod check;
pub(crate) mod literal;
mod module;
mod opcode;
pub(crate) mod proto;
mod shape;
mod tpu;

pub(crate) use attribute::{Attribute, attribute};
pub(crate) use module::{Comparison, Computation, Instruction, Steps};
pub use module::{Module, Source};
pub(crate) use opcode::{Opcode, hands_on};
pub(crate) use shape::Shape;
pub use tpu::HOST_CALLBACK;
