//! Where the commits of a database are kept.

use crate::database::Database;
use crate::error::Error;
use crate::file;
use crate::history::CommitId;
use journal::Disk;

/// The log of a database.
pub trait Log {
    /// Appends a commit, right after it was made, and assigns its transaction id.
    fn append(&mut self, database: &mut Database, commit: CommitId, now_ms: u64);

    /// Writes what was appended; with `durable` it survives a power failure. After an error nothing of it is kept.
    fn write(&mut self, durable: bool) -> Result<(), Error>;

    /// Starts over with all rows of a database whose schema has changed.
    fn replace(&mut self, database: &mut Database, now_ms: u64) -> Result<(), Error>;
}

impl<D: Disk> Log for file::Log<D> {
    fn append(&mut self, database: &mut Database, commit: CommitId, now_ms: u64) {
        file::Log::append(self, database, commit, now_ms);
    }

    fn write(&mut self, durable: bool) -> Result<(), Error> {
        file::Log::write(self, durable)
    }

    fn replace(&mut self, database: &mut Database, now_ms: u64) -> Result<(), Error> {
        file::Log::replace(self, database, now_ms).map(|_| ())
    }
}
