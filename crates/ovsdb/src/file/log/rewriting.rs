//! Compaction and conversion: another file replaces the log.

use super::super::compaction::{Compaction, CompactionFigures, Step};
use super::super::ephemeral::{self, Ephemeral, has_ephemeral};
use super::super::transaction_id;
use super::{Log, schema_record};
use crate::database::Database;
use crate::error::Error;
use journal::Disk;

/// The stock server compacts on its own above this size and growth, but not before the first of these times has passed
/// since the last compaction; once the second has passed, any growth is enough.
const COMPACT_ABOVE_BYTES: u64 = 10 << 20;
const COMPACT_GROWTH: u64 = 2;
const COMPACT_MIN_MS: u64 = 10 * 60 * 1000;
const COMPACT_MAX_MS: u64 = 24 * 60 * 60 * 1000;

impl<D: Disk> Log<D> {
    /// Returns true if the stock server would compact it on its own now. `now_ms` is from a monotonic clock.
    pub fn should_compact(&mut self, now_ms: u64) -> bool {
        let last = *self.compacted_ms.get_or_insert(now_ms);
        let passed = now_ms.saturating_sub(last);
        let grew = self.end > COMPACT_ABOVE_BYTES && self.end / COMPACT_GROWTH > self.base;
        let idle = self.compaction.is_none() && self.poisoned.is_none();
        idle && passed >= COMPACT_MIN_MS && (grew || passed >= COMPACT_MAX_MS && self.end > self.base)
    }

    /// Returns true if a compaction is in progress.
    pub fn compacting(&self) -> bool {
        self.compaction.is_some()
    }

    /// Starts a compaction; [`Self::step`] runs it. Nothing may be pending.
    pub fn start_compaction(
        &mut self,
        database: &Database,
        now_ms: u64,
        now_monotonic_ms: u64,
    ) -> Result<(), Error> {
        if let Some(error) = self.poisoned.as_ref().or(database.damage()) {
            return Err(error.clone());
        }
        if self.has_pending() || self.compacting() {
            return Err(Error::internal("compaction starts between groups, once at a time"));
        }
        let comment = transaction_id::comment("compacting database online", self.id);
        self.compaction = Some(Compaction::start(self, database, now_ms, &comment)?);
        if let Some(ephemeral) = &mut self.ephemeral {
            ephemeral.mark(self.id);
        }
        self.compacted_ms = Some(now_monotonic_ms);
        Ok(())
    }

    /// Runs the next slice of a compaction. After an error there is no compaction any more, and the log continues
    /// (unless it is poisoned).
    pub fn step(&mut self, database: &Database) -> Result<Step, Error> {
        let Some(mut compaction) = self.compaction.take() else { return Ok(Step::Idle) };
        if let Some(error) = database.damage().filter(|_| !compaction.is_renamed()) {
            return Err(error.clone());
        }
        match compaction.step(self, database) {
            Ok(Step::Finished(figures)) => {
                self.adopt(compaction);
                Ok(Step::Finished(figures))
            }
            Ok(step) => {
                self.compaction = Some(compaction);
                Ok(step)
            }
            Err(error) if compaction.is_renamed() => {
                // It is unknown which of the two files has the name after a crash.
                self.compaction = None;
                let number = error.io_error().unwrap_or_default();
                Err(self.poison("cannot make renaming durable", number))
            }
            Err(error) => Err(error),
        }
    }

    fn adopt(&mut self, compaction: Compaction<D>) {
        if let Some((file, end, base, must_cut)) = compaction.into_parts() {
            let old = std::mem::replace(&mut self.file, file);
            self.disk.discard_in_background(old);
            (self.end, self.base) = (end, base);
            self.must_cut = must_cut;
        }
    }

    /// Replaces schema and rows with those of a converted database, durably. Nothing may be pending.
    pub fn replace(&mut self, database: &mut Database, now_ms: u64) -> Result<CompactionFigures, Error> {
        if let Some(error) = &self.poisoned {
            return Err(error.clone());
        }
        if self.has_pending() {
            return Err(Error::internal("a conversion is a group of its own"));
        }
        self.compaction = None;
        let (_, checksum) = schema_record(database.schema());
        let mut id = transaction_id::logged(transaction_id::successor(self.id, &checksum));
        if has_ephemeral(database.schema()) {
            id = transaction_id::tagged(id, b"converted", now_ms);
        }
        let comment = transaction_id::comment("converted by ovsdb-server", id);
        let mut compaction = Compaction::start(self, database, now_ms, &comment)?;
        match compaction.run(self, database) {
            Ok(figures) => {
                self.adopt(compaction);
                self.id = id;
                let commit = database.commit_number();
                database.set_transaction_id(commit, id);
                self.restart_ephemeral(database);
                Ok(figures)
            }
            Err(error) if compaction.is_renamed() => {
                let number = error.io_error().unwrap_or_default();
                Err(self.poison("cannot make renaming durable", number))
            }
            Err(error) => Err(error),
        }
    }

    /// Starts the ephemeral file again: the new schema has other ephemeral columns, or none.
    fn restart_ephemeral(&mut self, database: &Database) {
        let path = ephemeral::path(&self.path);
        let had_some = self.ephemeral.is_some();
        self.ephemeral = Ephemeral::start(&self.disk, path.clone(), database);
        if had_some && self.ephemeral.is_none() {
            // Its contents stay true, but nobody will ever need them.
            let _ = self.disk.remove(&path);
        }
    }
}
