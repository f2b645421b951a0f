//! Where items are: the hash table, the seqno order and the expiry windows of each vBucket, behind its lock.
//!
//! [`vbucket`] is what the rest of the crate uses; it is safe. [`item`] and [`table`] hold the unsafe code: they read
//! and write item memory by raw pointer, which [`vbucket`] only lets them do while it holds the vBucket's lock.

mod audit;
mod background;
mod cas;
mod compressing;
mod copying;
mod deletions;
mod dirty;
mod document;
mod document_locks;
mod durable;
mod events;
mod evicted;
mod flush_all;
mod followers;
mod foreign;
mod hashing;
mod item;
mod lock;
mod order;
mod prepares;
mod rank;
mod relocate;
mod replay;
mod table;
pub(crate) mod vbucket;
mod walk;
mod wheel;

pub use audit::Audit;
pub(crate) use background::Swept;
pub(crate) use cas::CAS_MOST;
pub use cas::is_ahead as cas_is_ahead;
pub(crate) use compressing::{Block, Candidates, Passage};
pub use deletions::Deletion;
pub(crate) use dirty::DirtySet;
pub use document::{Document, PinnedValue};
pub(crate) use durable::{Dirty, OnDisk, PutBack, SHADOW_AGE_S, Taken, Walked};
#[cfg(test)]
pub(crate) use events::Events;
pub(crate) use events::Told;
pub(crate) use evicted::Evicted;
pub use followers::StreamFigures;
pub(crate) use followers::{Followed, Forgotten};
pub(crate) use hashing::{hash, hash_stored};
pub use item::REV_MOST;
pub(crate) use item::{
    Header, Kind, STORED_KEY_MAX, VALUE_MAX, large_value_offset, least_item_size, mark, stored_key_len,
};
pub(crate) use prepares::PERSIST_TO_MAJORITY;
pub(crate) use rank::Census;
pub use rank::Use;
pub(crate) use relocate::{Moved, WalkPosition};
pub(crate) use replay::{StateRecord, Stored};
pub use table::Hand;
pub(crate) use table::{HashPart, Memory, Resources, Retired};
pub(crate) use vbucket::{Dead, Locked, NewValue, Present, VBucket};
pub(crate) use walk::Walk;
