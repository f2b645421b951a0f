//! A log of KV items, [`log`], and what any journal stands on: a disk that can be the real one, or one that fails and
//! forgets on purpose.
//!
//! Whatever writes data that must outlive a crash goes through [`Disk`] and [`File`]. [`RealDisk`] is the file system.
//! [`SimulatedDisk`] is in memory; it keeps what was synced apart from what was only written, counts every operation
//! that changes something, and can fail, tear or stop at any of them. So each write boundary of a history can be a
//! crash.
#![forbid(unsafe_code)]

mod any;
mod disk;
mod lock;
pub mod log;
mod metered;
mod real;
mod simulated;

pub use any::{AnyDisk, AnyFile, AnyLock};
pub use disk::{Disk, File, LockError, Open, Pending, replace_file, write_all_at};
pub use lock::FileLock;
pub use metered::{Metered, MeteredFile, SyncMeter};
pub use real::{RealDisk, RealFile, Wake};
pub use simulated::{Fault, SimulatedDisk, SimulatedFile, SimulatedLock, Survival};
