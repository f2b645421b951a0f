//! Transactions that wait until their `wait` operations are satisfied.
//!
//! ```text
//!   waiting ─ a commit changes one of its tables, or its timeout ends ─> due ─ retried ─> finished, or waiting again
//! ```
//! Due transactions are retried in order of arrival. Where the caller has no more time, the next call continues, and
//! begins again with the first when it has reached the last: none is passed over for ever.

use std::collections::{BTreeMap, BTreeSet};

use super::{DatabaseId, Log, Now, Server, SessionId};
use crate::history::CommitId;
use crate::schema::TableId;
use wire::json::{Value, write};

const FIRST_TABLE: TableId = TableId(0);

/// Identifies a waiting transaction; increases in order of arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitId(u64);

/// A transaction that waits.
#[derive(Debug)]
pub(super) struct Wait {
    pub session: SessionId,
    pub database: DatabaseId,
    /// The request's id, as canonical JSON.
    pub id: Box<[u8]>,
    /// The request's `params`.
    pub params: Box<[u8]>,
    /// When it arrived, in monotonic time.
    pub started_ms: u64,
    /// When to retry it even if nothing changes.
    pub deadline_ms: Option<u64>,
    /// The tables that decide whether it goes on waiting.
    pub tables: Box<[TableId]>,
}

impl Wait {
    /// The bytes that it holds of its request.
    pub fn bytes(&self) -> usize {
        self.id.len() + self.params.len()
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Waits {
    waits: BTreeMap<WaitId, Wait>,
    /// By table, those that a change of it makes due.
    watches: BTreeSet<(DatabaseId, TableId, WaitId)>,
    /// Tables that have changed and are watched.
    changed: BTreeSet<(DatabaseId, TableId)>,
    due: BTreeSet<(DatabaseId, WaitId)>,
    /// Where retrying continues among those that are due.
    place: (DatabaseId, WaitId),
    deadlines: BTreeSet<(u64, WaitId)>,
    arrivals: u64,
}

impl Waits {
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    pub fn new_id(&mut self) -> WaitId {
        self.arrivals += 1;
        WaitId(self.arrivals)
    }

    pub fn get(&self, id: WaitId) -> Option<&Wait> {
        self.waits.get(&id)
    }

    pub fn insert(&mut self, id: WaitId, wait: Wait) {
        self.watches.extend(wait.tables.iter().map(|table| (wait.database, *table, id)));
        self.deadlines.extend(wait.deadline_ms.map(|deadline_ms| (deadline_ms, id)));
        self.waits.insert(id, wait);
    }

    pub fn remove(&mut self, id: WaitId) -> Option<Wait> {
        let wait = self.waits.remove(&id)?;
        for table in &wait.tables {
            self.watches.remove(&(wait.database, *table, id));
        }
        if let Some(deadline_ms) = wait.deadline_ms {
            self.deadlines.remove(&(deadline_ms, id));
        }
        self.due.remove(&(wait.database, id));
        Some(wait)
    }

    /// When something is due.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let is_due = !self.due.is_empty() || !self.changed.is_empty();
        if is_due { Some(0) } else { self.deadlines.first().map(|(deadline_ms, _)| *deadline_ms) }
    }

    /// Returns true if a change of a table may make any due.
    #[inline]
    pub fn is_watching(&self) -> bool {
        !self.watches.is_empty()
    }

    /// A database's first, from this table on.
    fn watch(&self, database: DatabaseId, table: TableId) -> Option<(DatabaseId, TableId, WaitId)> {
        let from = (database, table, WaitId::default());
        self.watches.range(from..).next().copied().filter(|watch| watch.0 == database)
    }

    /// A table has changed.
    pub fn table_changed(&mut self, database: DatabaseId, table: TableId) {
        if self.watch(database, table).is_some_and(|watch| watch.1 == table) {
            self.changed.insert((database, table));
        }
    }

    /// Any table of a database may have changed.
    pub fn database_changed(&mut self, database: DatabaseId) {
        let mut next = Some(FIRST_TABLE);
        while let Some((_, table, _)) = next.and_then(|table| self.watch(database, table)) {
            self.changed.insert((database, table));
            next = table.0.checked_add(1).map(TableId);
        }
    }

    /// Makes those due that watch a table that has changed.
    fn spread_changes(&mut self) {
        while let Some((database, table)) = self.changed.pop_first() {
            while let Some(watch) = self.watch(database, table).filter(|watch| watch.1 == table) {
                self.watches.remove(&watch);
                self.due.insert((database, watch.2));
            }
        }
    }

    fn expire(&mut self, now_ms: u64) {
        while let Some((_, id)) = self.deadlines.first().copied().filter(|deadline| deadline.0 <= now_ms) {
            self.deadlines.pop_first();
            let database = self.waits.get_mut(&id).map(|wait| {
                wait.deadline_ms = None;
                wait.database
            });
            self.due.extend(database.map(|database| (database, id)));
        }
    }

    /// The database of the next one to be retried.
    fn next_database(&mut self) -> Option<DatabaseId> {
        self.spread_changes();
        let next = self.due.range(self.place..).next().copied();
        let next = next.or_else(|| {
            self.place = Default::default();
            self.due.first().copied()
        });
        next.map(|(database, _)| database)
    }

    /// Takes the next one of a database. `None`: none, or the next is before the last one taken.
    fn take_due(&mut self, database: DatabaseId) -> Option<(WaitId, Wait)> {
        self.spread_changes();
        let (_, id) = self.due.range(self.place..).next().copied().filter(|due| due.0 == database)?;
        self.place = (database, WaitId(id.0 + 1));
        self.remove(id).map(|wait| (id, wait))
    }
}

impl<L: Log> Server<L> {
    /// Lets a transaction wait. Nothing is kept for a session that has ended.
    pub(super) fn wait(&mut self, id: WaitId, wait: Wait) {
        let session = self.sessions.get_mut(wait.session).filter(|session| !session.ended);
        if let Some(session) = session {
            session.waits.push(id);
            session.kept_bytes += wait.bytes();
            self.waits.insert(id, wait);
        }
    }

    /// A session's waiting transaction with this id of a request.
    pub(super) fn find_wait(&self, session: SessionId, request: &[u8]) -> Option<WaitId> {
        let waits = &self.sessions.get(session)?.waits;
        let is_it = |id: &&WaitId| self.waits.get(**id).is_some_and(|wait| *wait.id == *request);
        waits.iter().find(is_it).copied()
    }

    /// Returns true if a session may have one more waiting transaction. One may have its first however many there are.
    pub(super) fn may_wait(&self, session: SessionId) -> bool {
        let own = self.sessions.get(session).map_or(0, |session| session.waits.len());
        own == 0 || own < self.limits.waits_per_session && self.waits.len() < self.limits.waits
    }

    /// `cancel`: drops a waiting transaction. COMPAT: it is answered if the session has stated that it is aware of
    /// database changes; other sessions never hear of it again.
    pub(super) fn cancel(&mut self, session: SessionId, params: Value<'_>) {
        let mut elements = params.elements();
        let (Some(id), None) = (elements.next(), elements.next()) else { return };
        let mut text = Vec::new();
        write::sorted(&mut text, id);
        if let Some(id) = self.find_wait(session, &text)
            && let Some(wait) = self.waits.remove(id)
            && let Some(entry) = self.sessions.get_mut(session)
        {
            entry.forget(id, &wait);
            if entry.database_change_aware {
                self.group_answer(session, |out| {
                    out.extend_from_slice(b"{\"id\":");
                    out.extend_from_slice(&text);
                    out.extend_from_slice(b",\"error\":\"canceled\"}");
                });
            }
        }
    }

    /// Answers "canceled" to the transactions that wait for a database that is removed or converted. Sessions that are
    /// not aware of database changes are about to be closed, and are not answered.
    pub(super) fn cancel_waits(&mut self, database: DatabaseId) {
        let waits = self.waits.waits.iter().filter(|(_, wait)| wait.database == database);
        let waits: Vec<(WaitId, SessionId)> = waits.map(|(id, wait)| (*id, wait.session)).collect();
        for (id, session) in waits {
            let entry = self.sessions.get_mut(session).filter(|session| session.database_change_aware);
            if let Some(entry) = entry
                && let Some(wait) = self.waits.remove(id)
            {
                entry.forget(id, &wait);
                self.reply_error_text(session, &wait.id, b"\"canceled\"");
            }
        }
    }

    /// Retries the transactions whose tables have changed or whose deadline has passed, until nothing changes any more
    /// or `goes_on` returns false, which it is asked after each.
    pub fn run_waits(&mut self, now: Now, goes_on: &mut dyn FnMut() -> bool) {
        self.waits.expire(now.monotonic_ms);
        while let Some(database) = self.waits.next_database() {
            if !self.run_waits_of(database, now, goes_on) {
                return;
            }
        }
    }

    /// Retries each of a database once. What all of them changed is reported as one change; then come the replies.
    /// Returns false if there is no more time.
    fn run_waits_of(&mut self, database: DatabaseId, now: Now, goes_on: &mut dyn FnMut() -> bool) -> bool {
        let known = self.databases.get(database).map(|hosted| hosted.database.commit_number());
        self.hold_unlogged(database, known);
        let mut done: Vec<(Wait, Vec<u8>)> = Vec::new();
        let mut has_time = true;
        while has_time && let Some((id, wait)) = self.waits.take_due(database) {
            if let Some(session) = self.sessions.get_mut(wait.session) {
                session.forget(id, &wait);
            }
            match self.retry(wait, now) {
                Ok(wait) => done.push((wait, std::mem::take(&mut self.scratch.reply))),
                Err(wait) => self.wait(id, wait),
            }
            self.retried += 1;
            has_time = goes_on();
        }
        if !done.is_empty() {
            self.notify_since(database, known);
            for (wait, result) in done {
                self.scratch.reply = result;
                self.finish_transaction(wait.session, |out| out.extend_from_slice(&wait.id));
            }
        }
        self.hold_unlogged(database, None);
        has_time
    }

    /// Retains the history of a database after a commit, or stops that. For a database with a log, unwritten commits
    /// are retained anyway.
    fn hold_unlogged(&mut self, database: DatabaseId, commit: Option<CommitId>) {
        if let Some(hosted) = self.databases.get_mut(database).filter(|hosted| hosted.log.is_none()) {
            hosted.database.hold_from(commit);
        }
    }
}
