//! Memory of the tenants: one jemalloc arena each, exact accounts, item heaps, large values that stay where they are.
//!
//! ```text
//!   Tenant ── Arena ── extents (2 MiB-aligned chunks, huge pages once the tenant is larger than a few MiB)
//!     │          └── allocate / free through the calling thread's TenantCache (an explicit tcache)
//!     ├── Shards: what was allocated for what, one shard per thread, no shared cache line on the hot path
//!     ├── used / waste / budget: what the watermarks look at
//!     ├── Records: byte records with one owner, each one allocation
//!     └── BlockHeap: items as relocatable blocks, named by a 45-bit Location
//! ```
//!
//! `unsafe` lives in the modules `arena`, `array`, `extents`, `jemalloc`, `heap`, `large` and `record`; each use says why it holds.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod arena;
#[allow(unsafe_code)]
mod array;
#[allow(unsafe_code)]
mod extents;
#[allow(unsafe_code)]
pub mod heap;
#[allow(unsafe_code)]
pub mod jemalloc;
#[allow(unsafe_code)]
pub mod large;
pub mod quiescence;
#[allow(unsafe_code)]
pub mod record;
pub mod shards;
pub mod size_class;
pub mod tenant;

pub use array::TenantVec;
pub use heap::{BlockHeap, ItemHeap, Location};
pub use large::{LargeBlock, Pin};
pub use quiescence::Quiescence;
pub use record::{Record, Records};
pub use shards::Shards;
pub use size_class::size_class;
pub use tenant::{Gauge, Tenant, TenantCache};
