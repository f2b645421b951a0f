//! Transactions that wait until their `wait` operations are satisfied.

use super::{DatabaseId, Log, Now, Server, SessionId};
use crate::history::CommitId;
use wire::json::{Value, write};

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
    pub deadline_ms: Option<u64>,
    /// The newest commit when it was last tried.
    pub tried: CommitId,
}

impl Wait {
    /// The bytes that it holds of its request.
    pub fn bytes(&self) -> usize {
        self.id.len() + self.params.len()
    }
}

/// All of them, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Waits {
    waits: Vec<Wait>,
}

impl Waits {
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    pub fn push(&mut self, wait: Wait) {
        self.waits.push(wait);
    }

    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.waits.iter().filter_map(|wait| wait.deadline_ms).min()
    }

    pub fn contains(&self, session: SessionId, id: &[u8]) -> bool {
        self.waits.iter().any(|wait| wait.session == session && *wait.id == *id)
    }

    pub fn remove(&mut self, session: SessionId, id: &[u8]) -> Option<Wait> {
        let place = self.waits.iter().position(|wait| wait.session == session && *wait.id == *id)?;
        Some(self.waits.remove(place))
    }

    pub fn remove_session(&mut self, session: SessionId) {
        self.waits.retain(|wait| wait.session != session);
    }
}

impl<L: Log> Server<L> {
    /// `cancel`: drops a waiting transaction. COMPAT: it is answered if the session has stated that it is aware of
    /// database changes; other sessions never hear of it again.
    pub(super) fn cancel(&mut self, session: SessionId, params: Value<'_>) {
        let mut elements = params.elements();
        let (Some(id), None) = (elements.next(), elements.next()) else { return };
        let mut text = Vec::new();
        write::sorted(&mut text, id);
        if let Some(wait) = self.waits.remove(session, &text)
            && let Some(entry) = self.sessions.get_mut(session)
        {
            entry.forget(&wait);
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
        let waits = std::mem::take(&mut self.waits.waits);
        for wait in waits {
            let session = self.sessions.get_mut(wait.session).filter(|session| session.database_change_aware);
            match session {
                Some(session) if wait.database == database => {
                    session.forget(&wait);
                    self.reply_error_text(wait.session, &wait.id, b"\"canceled\"");
                }
                _ => self.waits.waits.push(wait),
            }
        }
    }

    /// Retries those whose database has changed or whose deadline has passed, until nothing changes any more.
    pub(super) fn run_waits(&mut self, now: Now) {
        let mut progress = true;
        while !self.waits.waits.is_empty() && std::mem::take(&mut progress) {
            let mut databases: Vec<DatabaseId> = self.waits.waits.iter().map(|wait| wait.database).collect();
            databases.sort_unstable();
            databases.dedup();
            for database in databases {
                progress |= self.run_waits_of(database, now);
            }
        }
    }

    /// Retries each of a database once. What all of them changed is reported as one change; then come the replies.
    /// Returns false if none is done.
    fn run_waits_of(&mut self, database: DatabaseId, now: Now) -> bool {
        let commit = |this: &Self| this.databases.get(database).map(|hosted| hosted.database.commit_number());
        let known = commit(self);
        self.hold_unlogged(database, known);
        let mut done: Vec<(Wait, Vec<u8>)> = Vec::new();
        let mut place = 0;
        while let Some(wait) = self.waits.waits.get(place) {
            let expired = wait.deadline_ms.is_some_and(|deadline| deadline <= now.monotonic_ms);
            if wait.database != database || (commit(self) == Some(wait.tried) && !expired) {
                place += 1;
                continue;
            }
            let wait = self.waits.waits.remove(place);
            match self.retry(wait, now) {
                Ok(wait) => done.push((wait, std::mem::take(&mut self.scratch.reply))),
                Err(wait) => {
                    self.waits.waits.insert(place, wait);
                    place += 1;
                }
            }
        }
        let any = !done.is_empty();
        if any {
            self.notify_since(database, known);
            self.finish_waits(&mut done);
        }
        self.hold_unlogged(database, None);
        any
    }

    /// Retains the history of a database after a commit, or stops that. For a database with a log, unwritten commits
    /// are retained anyway.
    fn hold_unlogged(&mut self, database: DatabaseId, commit: Option<CommitId>) {
        if let Some(hosted) = self.databases.get_mut(database).filter(|hosted| hosted.log.is_none()) {
            hosted.database.hold_from(commit);
        }
    }

    fn finish_waits(&mut self, done: &mut Vec<(Wait, Vec<u8>)>) {
        for (wait, result) in done.drain(..) {
            if let Some(session) = self.sessions.get_mut(wait.session) {
                session.forget(&wait);
            }
            self.scratch.reply = result;
            self.finish_transaction(wait.session, |out| out.extend_from_slice(&wait.id));
        }
    }
}
