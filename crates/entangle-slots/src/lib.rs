//! Slots: the smallest native objects whose order can be watched, and the handlers that use them.
//!
//! A slot holds one number. Reading and changing it are native calls that XLA knows nothing about, as
//! with a factorisation or a communicator behind a handle. A log keeps what really ran, in the order
//! in which it ran: an entry is made under the same lock as the access itself.
//!
//! The handlers are generic over the [`Stream`] of a platform; [`targets`] lists what a platform registers.

mod handlers;
mod slots;
mod stream;

pub use handlers::{read, targets, write};
pub use slots::{Access, Op, log, reset};
pub use stream::{Pool, Stream};

#[cfg(all(test, loom))]
mod interleavings;
