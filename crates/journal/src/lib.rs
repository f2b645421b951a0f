//! A log of KV items, [`log`], and the basis of any journal: a disk that is either the real one, or one that fails and
//! forgets on purpose.
//!
//! All writes of data that must survive a crash go through [`Disk`] and [`File`]. [`RealDisk`] is the file system.
//! [`SimulatedDisk`] is in memory. It keeps synced data apart from data that was only written, counts every operation
//! that changes something, and can fail, tear or stop at any of them. So a crash can be simulated at each write
//! boundary of a history.
#![forbid(unsafe_code)]

mod any;
mod disk;
mod lock;
pub mod log;
mod metered;
mod real;
pub mod sealed;
mod simulated;

pub use any::{AnyDisk, AnyFile, AnyLock};
pub use disk::{Disk, File, LockError, Open, Pending, replace_file, write_all_at};
pub use lock::FileLock;
pub use metered::{Metered, MeteredFile, SyncMeter};
pub use real::{RealDisk, RealFile, Wake};
pub use simulated::{Fault, SimulatedDisk, SimulatedFile, SimulatedLock, Survival};
