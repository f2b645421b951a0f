//! Memory of the tenants: an arena each, exact accounts, item heaps, large values that never move.
//!
//! ```text
//!   Tenant ── Arena ── with jemalloc extents of our own (2 MiB-aligned chunks, huge pages once it is larger than a few MiB)
//!     │          └── allocate / free through the calling thread's TenantCache
//!     ├── Shards: allocations by purpose, one shard per thread, no shared cache line on the hot path
//!     ├── used / waste / budget: what the watermarks compare
//!     ├── Lines: the index's blocks, all sizes in the same slabs; a second set for the notes on slabs of items
//!     ├── Records: byte records with one owner, each one allocation
//!     └── Heap: items as relocatable blocks or slots of slabs, named by a 45-bit Location
//! ```
//!
//! Which allocator serves the arenas is a feature of this crate, see [`backend`].
//!
//! `unsafe` lives in the modules `array`, `backend`, `growing`, `heap`, `large`, `lines`, `prefetch`, `record` and
//! `slab`; each use says why it is sound.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod array;
#[allow(unsafe_code)]
pub mod backend;
#[allow(unsafe_code)]
mod growing;
#[allow(unsafe_code)]
pub mod heap;
#[allow(unsafe_code)]
pub mod large;
#[allow(unsafe_code)]
pub mod lines;
#[allow(unsafe_code)]
mod prefetch;
pub mod quiescence;
#[allow(unsafe_code)]
pub mod record;
pub mod shards;
#[allow(unsafe_code)]
pub mod slab;
pub mod survey;
pub mod tenant;

pub use array::TenantVec;
pub use backend::{Occupancy, footprint, size_class};
pub use growing::GrowingBytes;
pub use heap::{BlockHeap, Heap, HeapChoice, ItemHeap, Location, SlabHeap};
pub use large::{LargeBlock, Pin, Reservation, item_footprint};
pub use lines::line_footprint;
pub use prefetch::prefetch;
pub use quiescence::Quiescence;
pub use record::{Record, Records};
pub use shards::Shards;
pub use slab::{SizeClass, SlabFigures, SlabWalk, Victim};
pub use survey::Survey;
pub use tenant::{Gauge, Tenant, TenantCache};
