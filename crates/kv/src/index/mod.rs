//! Where items are: the hash table, the seqno order and the expiry windows of each vBucket, behind its lock.
//!
//! [`vbucket`] is what the rest of the crate uses; it is safe. [`item`] and [`table`] hold the unsafe code: they read and
//! write item memory by raw pointer, which [`vbucket`] only lets them do while it holds the vBucket's lock.

mod item;
mod lock;
mod order;
mod table;
pub(crate) mod vbucket;
mod wheel;

pub(crate) use item::{Header, VALUE_MAX, large_value_offset, mark, stored_key_len};
pub(crate) use table::{Ground, Hand, HashPart, Memory, Retired};
pub(crate) use vbucket::{Dead, Locked, NewValue, Present, VBucket, hash};
