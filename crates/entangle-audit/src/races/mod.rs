//! Which native calls come after which, which of them race, and which are gone.

mod after;
mod find;
mod horizon;
mod lost;
mod order;

pub(crate) use after::After;
pub use find::{MAX_RACES, Race, Races};
pub use lost::{Lost, Moved, counterparts, lost, moved};
pub use order::{Order, Unproven};
