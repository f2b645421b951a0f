//! The changes of the last commits: their old records, moved here when they were replaced.
//!
//! ```text
//!   commits   | 41 | 42 | 43 |                     each: how many entries, comment, transaction id
//!   entries   | a b | c | d e f |                  each: table, row id, inserted / changed / deleted, old record
//! ```
//! A commit's entries are sorted by table and row id. The change of a row from commit k to now is from its oldest old
//! record after k to its current one: new records are not kept. History serves reconnecting clients, slow monitors, the
//! text of the log and undoing a group of commits whose write failed.
//!
//! History keeps the last [`COMMITS_MAX`] commits as long as their old records take no more than a fraction of the
//! rows, or a mebibyte ([`recent_bytes_most`]), at least one until the wake-up ends; and what [`History::retain_from`]
//! and [`History::hold_from`] ask for. One commit may be exempt from the count of bytes: see [`History::excuse_last`].
//! When memory is short, only what is held stays.

use memory::{Record, Records};
use std::collections::VecDeque;

use crate::row::{self, ColumnSet, Row, RowId};
use crate::schema::TableId;
use crate::uuid::Uuid;

/// Commits kept when no more are needed.
pub const COMMITS_MAX: usize = 100;
/// Old records kept for slow monitors, in bytes.
pub const RETAINED_BYTES_MAX: usize = 12 << 20;
/// History may always take this many bytes, however few rows there are.
const RECENT_BYTES_MIN: usize = 1 << 20;
/// And this fraction of the bytes of the rows: more would keep the memory of a mass deletion.
const RECENT_FRACTION: usize = 4;

/// Most bytes of history that was not asked for, given the bytes of the rows.
pub(crate) fn recent_bytes_most(live_bytes: usize) -> usize {
    (live_bytes / RECENT_FRACTION).max(RECENT_BYTES_MIN)
}

/// The number of a commit; 0 is the empty database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitId(pub u64);

/// What happened to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Inserted,
    Changed,
    Deleted,
}

impl Fate {
    pub fn of(existed: bool, exists: bool) -> Self {
        match (existed, exists) {
            (false, _) => Self::Inserted,
            (true, true) => Self::Changed,
            (true, false) => Self::Deleted,
        }
    }
}

/// A row that a transaction has changed, with its old record.
#[derive(Debug)]
pub(crate) struct Entry {
    pub old: Option<Record>,
    pub row: RowId,
    pub table: TableId,
    pub fate: Fate,
}

const _: () = assert!(size_of::<Entry>() == 16);

struct Commit {
    /// Number of its first entry, counted from the first one ever.
    start: u64,
    entries: usize,
    bytes: usize,
    /// The bytes of old records among these.
    record_bytes: usize,
    comment: Option<Box<str>>,
    transaction_id: Uuid,
}

/// The last commits.
#[derive(Default)]
pub(crate) struct History {
    commits: VecDeque<Commit>,
    entries: VecDeque<Entry>,
    /// Number of the newest commit.
    last: u64,
    /// Number of the first entry that is still there.
    dropped: u64,
    bytes: usize,
    record_bytes: usize,
    retained: Option<u64>,
    held: Option<u64>,
    /// The newest commit when it was exempted, and its bytes.
    excused: Option<(u64, usize)>,
    /// The transaction id of the commit before the oldest one kept.
    transaction_id_before: Uuid,
}

/// What changed in a row.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// Its table.
    pub table: TableId,
    /// Its id there.
    pub row: RowId,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its old state; `None` if it was inserted.
    pub old: Option<Row<'a>>,
    /// Its new state; `None` if it was deleted.
    pub new: Option<Row<'a>>,
}

impl<'a> Change<'a> {
    pub(crate) fn new(
        table: TableId,
        row: RowId,
        old: Option<Row<'a>>,
        new: Option<Row<'a>>,
    ) -> Option<Self> {
        let uuid = old.or(new)?.uuid();
        Some(Self { table, row, uuid, old, new })
    }

    /// The columns that differ: all of an inserted or deleted row.
    pub fn changed(&self) -> ColumnSet {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => {
                row::changed_columns(new.schema(), old.packed_cells(), new.packed_cells())
            }
            (Some(row), None) | (None, Some(row)) => ColumnSet::first(row.schema().column_count()),
            (None, None) => ColumnSet::new(),
        }
    }
}

impl History {
    /// The newest commit.
    pub fn last(&self) -> CommitId {
        CommitId(self.last)
    }

    /// The commit before the oldest one kept: changes after it are known.
    pub fn oldest(&self) -> CommitId {
        CommitId(self.last - self.commits.len() as u64)
    }

    pub fn commit_count(&self) -> usize {
        self.commits.len()
    }

    /// Bytes of old records and entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of old records.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    fn place(&self, commit: CommitId) -> Option<usize> {
        commit
            .0
            .checked_sub(self.oldest().0 + 1)
            .map(|place| place as usize)
            .filter(|place| *place < self.commits.len())
    }

    fn commit(&self, commit: CommitId) -> Option<&Commit> {
        self.commits.get(self.place(commit)?)
    }

    /// The places of a commit's entries.
    fn range(&self, commit: &Commit) -> std::ops::Range<usize> {
        let start = (commit.start - self.dropped) as usize;
        start..start + commit.entries
    }

    /// The entries of a commit.
    pub fn entries(&self, commit: CommitId) -> impl Iterator<Item = &Entry> {
        let range = self.commit(commit).map_or(0..0, |commit| self.range(commit));
        self.entries.range(range)
    }

    /// The entries of all commits after this one, oldest first.
    pub fn entries_after(&self, commit: CommitId) -> impl Iterator<Item = &Entry> {
        let start = match self.commit(CommitId(commit.0 + 1)) {
            Some(commit) => self.range(commit).start,
            None => self.entries.len(),
        };
        self.entries.range(start..)
    }

    /// The entry of a row in a commit.
    pub fn find(&self, commit: CommitId, table: TableId, row: RowId) -> Option<&Entry> {
        let range = self.range(self.commit(commit)?);
        let (mut low, mut high) = (range.start, range.end);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entries.get(middle)?;
            match (entry.table, entry.row).cmp(&(table, row)) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(entry),
            }
        }
        None
    }

    /// Adds the next commit, with the transaction id of the one before. Takes its entries from `entries`, and sorts
    /// them.
    pub fn add(&mut self, entries: &mut Vec<Entry>, comment: Option<Box<str>>) -> CommitId {
        entries.sort_unstable_by_key(|entry| (entry.table, entry.row));
        let record_bytes: usize =
            entries.iter().filter_map(|entry| Some(entry.old.as_ref()?.allocated_bytes())).sum();
        let bytes = record_bytes + entries.len() * size_of::<Entry>() + size_of::<Commit>();
        let start = self.dropped + self.entries.len() as u64;
        let transaction_id = self.transaction_id();
        self.commits.push_back(Commit {
            start,
            entries: entries.len(),
            bytes,
            record_bytes,
            comment,
            transaction_id,
        });
        self.entries.extend(entries.drain(..));
        self.bytes += bytes;
        self.record_bytes += record_bytes;
        self.last += 1;
        self.last()
    }

    /// Removes the newest commit. Returns its entries, last first.
    pub fn take_last(&mut self) -> Option<Vec<Entry>> {
        let commit = self.commits.pop_back()?;
        self.bytes -= commit.bytes;
        self.record_bytes -= commit.record_bytes;
        self.last -= 1;
        let start = (commit.start - self.dropped) as usize;
        Some(self.entries.drain(start..).rev().collect())
    }

    /// Drops the oldest commits that are not needed. The newest stays, and others while all take no more than
    /// `most_bytes`. Calls `release` with each row that was deleted: its id is free now.
    pub fn trim(
        &mut self,
        records: &mut Records,
        most_bytes: usize,
        mut release: impl FnMut(TableId, RowId),
    ) {
        while self.commits.len() > 1 {
            let oldest = self.oldest().0 + 1;
            let is_retained = self.retained.is_some_and(|retained| retained < oldest);
            let most_bytes = most_bytes + self.excused_bytes();
            let is_recent = self.commits.len() <= COMMITS_MAX && self.bytes <= most_bytes;
            if self.is_oldest_held() || is_recent || is_retained && self.bytes <= RETAINED_BYTES_MAX {
                return;
            }
            self.drop_oldest(records, &mut release);
        }
    }

    /// Drops even the newest commit if it takes more than `most_bytes` and is not needed.
    pub fn trim_all(
        &mut self,
        records: &mut Records,
        most_bytes: usize,
        mut release: impl FnMut(TableId, RowId),
    ) {
        if self.commits.len() == 1
            && self.bytes > most_bytes + self.excused_bytes()
            && self.held.is_none()
            && self.retained.is_none()
        {
            self.drop_oldest(records, &mut release);
        }
    }

    fn is_oldest_held(&self) -> bool {
        self.held.is_some_and(|held| held <= self.oldest().0)
    }

    /// Drops everything that is not held.
    pub fn drop_unheld(&mut self, records: &mut Records, mut release: impl FnMut(TableId, RowId)) {
        while !self.commits.is_empty() && !self.is_oldest_held() {
            self.drop_oldest(records, &mut release);
        }
    }

    /// Exempts the newest commit from the limit on the bytes of kept commits, unless it is too large: it has replaced
    /// much of the rows at once (ephemeral columns were reset), and clients are about to ask for what came before.
    pub fn excuse_last(&mut self) {
        let bytes = self.commits.back().map_or(0, |commit| commit.bytes);
        self.excused = (bytes <= RETAINED_BYTES_MAX).then_some((self.last, bytes));
    }

    fn excused_bytes(&self) -> usize {
        self.excused.filter(|(commit, _)| *commit > self.oldest().0).map_or(0, |(_, bytes)| bytes)
    }

    /// Drops everything; later commits continue the numbering.
    pub fn clear(&mut self, records: &mut Records, mut release: impl FnMut(TableId, RowId)) {
        while !self.commits.is_empty() {
            self.drop_oldest(records, &mut release);
        }
    }

    fn drop_oldest(&mut self, records: &mut Records, release: &mut impl FnMut(TableId, RowId)) {
        let Some(commit) = self.commits.pop_front() else { return };
        self.bytes -= commit.bytes;
        self.record_bytes -= commit.record_bytes;
        self.dropped += commit.entries as u64;
        self.transaction_id_before = commit.transaction_id;
        for entry in self.entries.drain(..commit.entries) {
            if let Some(old) = entry.old {
                records.free(old);
            }
            if entry.fate == Fate::Deleted {
                release(entry.table, entry.row);
            }
        }
        if self.entries.capacity() > 1024 && self.entries.len() * 8 < self.entries.capacity() {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    pub fn retain_from(&mut self, commit: Option<CommitId>) {
        self.retained = commit.map(|commit| commit.0);
    }

    pub fn hold_from(&mut self, commit: Option<CommitId>) {
        self.held = commit.map(|commit| commit.0);
    }

    pub fn comment(&self, commit: CommitId) -> Option<&str> {
        self.commit(commit)?.comment.as_deref()
    }

    pub fn transaction_id(&self) -> Uuid {
        self.commits.back().map_or(self.transaction_id_before, |commit| commit.transaction_id)
    }

    pub fn transaction_id_of(&self, commit: CommitId) -> Option<Uuid> {
        if commit == self.oldest() {
            return Some(self.transaction_id_before);
        }
        self.commit(commit).map(|commit| commit.transaction_id)
    }

    pub fn set_transaction_id(&mut self, commit: CommitId, id: Uuid) {
        if commit == self.oldest() {
            self.transaction_id_before = id;
        } else if let Some(place) = self.place(commit)
            && let Some(commit) = self.commits.get_mut(place)
        {
            commit.transaction_id = id;
        }
    }

    /// The newest commit with a matching transaction id after which all changes are known.
    pub fn find_transaction(&self, is_it: impl Fn(Uuid) -> bool) -> Option<CommitId> {
        let oldest = self.oldest();
        let place = self.commits.iter().rposition(|commit| is_it(commit.transaction_id));
        let before = is_it(self.transaction_id_before).then_some(oldest);
        place.map(|place| CommitId(oldest.0 + 1 + place as u64)).or(before)
    }
}
