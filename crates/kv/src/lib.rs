//! The KV engine: buckets of vBuckets, their index, items, expiry and eviction.
//!
//! The engine knows no protocol, socket, thread or clock: time comes in through [`ThreadContext`], and the crate
//! `sessions` turns bytes into calls. Reading order: [`bucket`] (what a client of the engine calls), [`entry`] (one key
//! under its vBucket's lock), `index` (where items are), [`persistence`] (what outlives the process).
//! `ARCHITECTURE.md` has the order of the modules.
#![deny(unsafe_code)]

pub mod bucket;
mod bucket_schema;
pub mod class_counters;
pub mod client_memory;
pub mod clients;
pub mod cluster_config;
pub mod collected;
pub mod collections;
pub mod copier;
mod doorbell;
pub mod durability_monitor;
pub mod election;
pub mod entry;
pub mod error;
mod fetch_queue;
mod hub;
#[allow(unsafe_code)]
mod index;
pub mod key;
#[allow(unsafe_code)]
mod lock_order;
pub mod mailbox;
pub mod map_watch;
mod memory_policy;
pub mod meters;
pub mod mutation;
pub mod news;
pub mod node;
pub mod node_context;
mod now;
pub mod pager;
mod peers;
pub mod persistence;
mod piece_queue;
pub mod polling;
pub mod prefixes;
pub mod profile;
mod rendered_map;
pub mod replication;
pub mod requests;
pub mod role;
pub mod settings;
pub mod sizes;
pub mod statistics;
mod storage;
mod sync_writes;
pub mod terms;
pub mod thread_context;
pub mod topology;
pub mod turns;
pub mod users;

pub use bucket::collections::Adopted;
pub use bucket::{
    Ahead, Audited, Auditing, Bucket, DefragmenterFigures, WorkFigures, compressor, consumers, copying,
    defragmenter, follow, watch,
};
pub use bucket_schema::{BUCKET_SETTINGS, BucketSetting, NotAllowed, SettingKind, SettingValue};
pub use doorbell::Doorbell;
pub use entry::Entry;
pub use error::{KvError, Unavailable};
pub use index::{Audit, Deletion, Document, Hand, PinnedValue, REV_MOST, Use, cas_is_ahead};
pub use key::{Key, Place, VbId};
pub use mailbox::{Cookie, Outcome};
pub use memory::Reservation;
pub use meters::Meter;
pub use mutation::{
    Expiry, LARGE_VALUE, LargeItem, Made, MadeKind, Mutated, Mutation, Resolution, Store, StoreKind, Value,
};
pub use node::Node;
pub use node_context::NodeContext;
pub use now::Now;
pub use role::{Role, RoleChange, RoleError};
pub use settings::{
    BUCKET_NAME, BucketKind, BucketSettings, Compression, Eviction, HeapChoice, Labels, LeastDurability,
    Limits, NodeSettings, PersistenceSettings, is_bucket_name,
};
pub use storage::Persistence;
pub use sync_writes::{Durability, TimeoutMode, Written};
pub use thread_context::{Alarms, ThreadContext};
pub use topology::{Topology, VbState};
