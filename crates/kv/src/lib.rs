//! The KV engine: buckets of vBuckets, their index, items, expiry and eviction.
//!
//! The engine knows no protocol, socket, thread or clock: time comes in through [`ThreadContext`], and the crate
//! `sessions` turns bytes into calls. Reading order: [`bucket`] (what a client of the engine calls), [`entry`] (one key
//! under its vBucket's lock), [`index`] (where items are), [`persistence`] (what outlives the process).
#![deny(unsafe_code)]

pub mod bucket;
pub mod client_memory;
pub mod clients;
pub mod cluster_config;
pub mod compressor;
pub mod defragmenter;
pub mod document;
pub mod durability_monitor;
pub mod entry;
pub mod error;
mod eviction;
#[allow(unsafe_code)]
mod index;
pub mod key;
pub mod mailbox;
pub mod meters;
pub mod mutation;
pub mod node;
pub mod pager;
pub mod persistence;
pub mod prefixes;
pub mod settings;
pub mod sizes;
pub mod sync_writes;
pub mod thread_context;
pub mod topology;
pub mod users;
pub mod watch;

pub use bucket::Ahead;
pub use bucket::{Audited, Auditing, Bucket};
pub use defragmenter::DefragmenterFigures;
pub use document::{Document, PinnedValue};
pub use entry::Entry;
pub use error::KvError;
pub use index::{Audit, Hand};
pub use key::{Key, Place, VbId};
pub use mailbox::{Cookie, Outcome};
pub use meters::Meter;
pub use mutation::{Expiry, LARGE_VALUE, LargeItem, Mutated, Mutation, Store, StoreKind, Value};
pub use node::Node;
pub use persistence::Persistence;
pub use settings::{
    BucketKind, BucketSettings, Compression, Eviction, HeapChoice, Limits, NodeSettings, PersistenceSettings,
};
pub use sync_writes::{Durability, TimeoutMode, Written};
pub use thread_context::{Now, ThreadContext};
pub use topology::{Topology, VbState};
