//! Transactions, collected into groups that are written to the log together.
//!
//! A transaction is executed when it arrives: later ones see its changes. Its reply and the monitors' notifications are
//! put into the outputs, but held there until the group is written. If that fails the database is restored to its state
//! before the group, held output is taken back, and every transaction of the group gets the error.

use super::output::Output;
use super::waits::Wait;
use super::{DatabaseId, Log, Now, SCRATCH_BYTES_MAX, Server, SessionId, table_log};
use crate::error::Error;
use crate::history::CommitId;
use crate::transaction::{self, Context, Outcome};
use std::sync::Arc;
use wire::json::{Value, write};
use wire::jsonrpc::Params;

/// The transactions since the last write.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// The one database they belong to.
    database: Option<DatabaseId>,
    durable: bool,
    replies: Vec<Reply>,
    /// Sessions that were sent everything in one piece although the group may be undone.
    pub caught_up: Vec<SessionId>,
}

/// A reply among the held bytes of a session's output.
#[derive(Debug)]
struct Reply {
    session: SessionId,
    start: usize,
    end: usize,
    /// Whether it contains the result of a transaction, rather than something that stays true if the group fails.
    transaction: bool,
}

/// What surrounds a transaction's result in its reply.
const RESULT_BEGIN: &[u8] = b",\"result\":";
const REPLY_END: &[u8] = b",\"error\":null}";

/// What follows the last operation's result of a transaction in its reply.
const RESULT_END: &[u8] = b"],\"error\":null}";

/// An attempt to execute a transaction.
#[derive(Debug, Clone, Copy)]
struct Attempt<'a> {
    session: SessionId,
    database: DatabaseId,
    operations: &'a [Value<'a>],
    elapsed_ms: u64,
}

impl<L: Log> Server<L> {
    /// `transact`
    pub(super) fn transact(&mut self, session: SessionId, params: Params<'_>, id: Value<'_>, now: Now) {
        let array = params.array();
        let database = match self.find_database(array, "transact") {
            Ok(database) => database,
            Err(error) => return self.group_error(session, id, &error),
        };
        if self.sessions.get(session).is_some_and(|session| !session.waits.is_empty()) {
            let mut text = Vec::new();
            write::sorted(&mut text, id);
            if self.find_wait(session, &text).is_some() {
                let error = Error::syntax_error(array, "transact: duplicate request ID");
                return self.group_error(session, id, &error);
            }
        }
        let known = self.databases.get(database).map(|hosted| hosted.database.commit_number());
        let elements = params.into_elements();
        let operations = elements.get(1..).unwrap_or_default();
        match self.attempt(Attempt { session, database, operations, elapsed_ms: 0 }, now) {
            None => {
                self.notify_since(database, known);
                self.finish_transaction(session, |out| write_id(out, id));
            }
            Some(_) if !self.may_wait(session) => {
                let error = Error::resources_exhausted("too many waiting transactions");
                self.group_error(session, id, &error);
            }
            Some(wait) => {
                let mut text = Vec::new();
                write::sorted(&mut text, id);
                let id = self.waits.new_id();
                self.wait(id, Wait { id: text.into(), params: array.text().into(), ..wait });
            }
        }
    }

    /// Notifies monitors of commits after `known`, if there are any.
    pub(super) fn notify_since(&mut self, database: DatabaseId, known: Option<CommitId>) {
        let newest = self.databases.get(database).map(|hosted| hosted.database.commit_number());
        if let (Some(known), Some(newest)) = (known, newest)
            && known < newest
        {
            self.notify(database, known);
        }
    }

    /// Retries a transaction. Returns it if it must go on waiting; otherwise its result is in the scratch buffer.
    pub(super) fn retry(&mut self, wait: Wait, now: Now) -> Result<Wait, Wait> {
        let operations: Vec<Value<'_>> = Value::of_checked(&wait.params).elements().skip(1).collect();
        let attempt = Attempt {
            session: wait.session,
            database: wait.database,
            operations: &operations,
            elapsed_ms: now.monotonic_ms.saturating_sub(wait.started_ms),
        };
        match self.attempt(attempt, now) {
            Some(Wait { tables, deadline_ms, .. }) => {
                let deadline_ms = deadline_ms.map(|ms| ms.saturating_sub(now.monotonic_ms) + wait.started_ms);
                // One that has passed belongs to an operation that is satisfied by now.
                let deadline_ms = deadline_ms.filter(|ms| *ms > now.monotonic_ms);
                Err(Wait { tables, deadline_ms, ..wait })
            }
            None => Ok(wait),
        }
    }

    /// Executes a transaction. `None`: it is done, its result is in the scratch buffer, and monitors must still be
    /// notified. Otherwise it must wait; its id and text are left empty.
    fn attempt(&mut self, attempt: Attempt<'_>, now: Now) -> Option<Wait> {
        let Attempt { session, database, operations, elapsed_ms } = attempt;
        // What the group replaced is held until the group is written; a database that is nearly full needs the memory.
        let is_full = self.databases.get(database).is_some_and(|hosted| hosted.database.is_nearly_full());
        if self.group.database.is_some_and(|other| other != database || is_full) {
            self.flush_group();
        }
        self.scratch.reply.clear();
        let hosted = self.databases.get_mut(database)?;
        let (locks, options) = (&self.locks, self.sessions.get(session).map(|session| &session.options));
        let context = Context {
            owns_lock: &|name| locks.owns(name, session),
            elapsed_ms,
            read_only: options.is_some_and(|options| options.read_only),
            internal: false,
            can_wait: true,
            role: options.map_or("", |options| &options.role),
            client: options.and_then(|options| options.client.as_deref()),
            reply_bytes_max: self.limits.reply_bytes,
            reply_grows: &*self.reply_grows,
        };
        let outcome = transaction::execute(
            &mut hosted.database,
            operations,
            &context,
            &mut *self.random,
            &mut self.scratch.reply,
        );
        match outcome {
            Outcome::Finished { committed, durable } => {
                self.group.durable |= durable;
                if durable {
                    self.group.database = Some(database);
                }
                if let Some(commit) = committed {
                    self.logged(database, commit, now);
                }
                None
            }
            Outcome::Waiting { timeout_ms, tried } => Some(Wait {
                session,
                database,
                id: Box::default(),
                params: Box::default(),
                started_ms: now.monotonic_ms,
                deadline_ms: timeout_ms.map(|timeout| now.monotonic_ms.saturating_add(timeout)),
                tables: transaction::tables_of(hosted.database.schema(), operations, tried),
            }),
        }
    }

    /// Handles a new commit of a database: the log takes it, monitors are notified.
    pub(super) fn committed(&mut self, id: DatabaseId, commit: CommitId, now: Now) {
        self.logged(id, commit, now);
        self.notify(id, CommitId(commit.0 - 1));
    }

    /// Hands a new commit of a database to the log. Monitors must still be notified.
    fn logged(&mut self, id: DatabaseId, commit: CommitId, now: Now) {
        let Some(hosted) = self.databases.get_mut(id) else { return };
        if self.waits.is_watching() {
            let mut last = None;
            for table in hosted.database.tables_of(commit) {
                if last.replace(table) != Some(table) {
                    self.waits.table_changed(id, table);
                }
            }
        }
        match &mut hosted.log {
            Some(log) => {
                if hosted.written.0 + 1 == commit.0 {
                    hosted.database.hold_from(Some(hosted.written));
                }
                log.append(&mut hosted.database, commit, now.wall_ms);
                self.group.database = Some(id);
            }
            None => {
                table_log::write(hosted, hosted.written, &mut self.table_log);
                hosted.written = commit;
            }
        }
    }

    /// Appends the result of a transaction, which is in the scratch buffer, after what its session must receive first.
    pub(super) fn finish_transaction(&mut self, session: SessionId, write_id: impl FnOnce(&mut Vec<u8>)) {
        if self.sessions.get(session).is_some_and(|session| session.behind > 0) {
            self.catch_up(session);
            self.group.caught_up.push(session);
        }
        let mut result = std::mem::take(&mut self.scratch.reply);
        let is_long = result.len() > SCRATCH_BYTES_MAX;
        self.group_reply(session, true, |output| {
            output.write(|out| {
                out.extend_from_slice(b"{\"id\":");
                write_id(out);
                out.extend_from_slice(RESULT_BEGIN);
                if !is_long {
                    out.extend_from_slice(&result);
                    out.extend_from_slice(REPLY_END);
                }
            });
            if is_long {
                // Sent from where it was built: a copy would need its length again.
                result.shrink_to_fit();
                output.push_shared(Arc::new(std::mem::take(&mut result)));
                output.append(REPLY_END);
            }
        });
        if result.capacity() <= SCRATCH_BYTES_MAX {
            self.scratch.reply = result;
        }
    }

    /// Appends an answer within the group that does not depend on it.
    pub(super) fn group_answer(&mut self, session: SessionId, write: impl FnOnce(&mut Vec<u8>)) {
        self.group_reply(session, false, |output| output.write(write));
    }

    fn group_error(&mut self, session: SessionId, id: Value<'_>, error: &Error) {
        self.group_answer(session, |out| write_error(out, id, error));
    }

    fn group_reply(&mut self, session: SessionId, transaction: bool, append: impl FnOnce(&mut Output)) {
        let Some(output) = self.sessions.output(session) else { return };
        let start = output.held_bytes();
        append(output);
        let end = output.held_bytes();
        self.group.replies.push(Reply { session, start, end, transaction });
    }

    /// Writes the group to the log and makes held output visible, or takes it back.
    pub(super) fn flush_group(&mut self) {
        let durable = std::mem::take(&mut self.group.durable);
        if let Some(id) = self.group.database.take()
            && let Some(hosted) = self.databases.get_mut(id)
            && let Some(log) = &mut hosted.log
        {
            match log.write(durable) {
                Ok(()) => {
                    table_log::write(hosted, hosted.written, &mut self.table_log);
                    hosted.written = hosted.database.commit_number();
                    hosted.database.hold_from(None);
                }
                Err(error) => self.take_back(id, &error),
            }
        }
        self.group.replies.clear();
        self.group.caught_up.clear();
        self.sessions.publish();
    }

    /// Undoes the group, which could not be written.
    #[cold]
    fn take_back(&mut self, id: DatabaseId, error: &Error) {
        let Some(hosted) = self.databases.get_mut(id) else { return };
        let written = hosted.written;
        hosted.database.undo_since(written);
        hosted.database.hold_from(None);
        hosted.laggards.take_back(written);
        self.waits.database_changed(id);
        for group in self.groups.iter_mut().filter(|group| group.spec.database == id) {
            group.initial = None;
            group.missed = None;
            for member in group.members.values_mut() {
                member.behind = member.behind.map(|behind| behind.min(written));
            }
        }
        for session in std::mem::take(&mut self.group.caught_up) {
            self.close_session(session, "failed to write changes that it was notified of");
        }
        let mut touched = self.sessions.touched.clone();
        touched.sort_unstable();
        touched.dedup();
        let held: Vec<(SessionId, Vec<u8>)> = touched
            .into_iter()
            .filter_map(|id| Some((id, self.sessions.get_mut(id)?.output.take_held())))
            .collect();
        for reply in std::mem::take(&mut self.group.replies) {
            let Ok(place) = held.binary_search_by_key(&reply.session, |(id, _)| *id) else { continue };
            let bytes = held.get(place).and_then(|(_, bytes)| bytes.get(reply.start..reply.end));
            let Some(bytes) = bytes else { continue };
            let Some(output) = self.sessions.output(reply.session) else { continue };
            match bytes.strip_suffix(RESULT_END).filter(|_| reply.transaction) {
                None => output.append(bytes),
                Some(before) => output.write(|out| {
                    out.extend_from_slice(before);
                    if before.last() != Some(&b'[') {
                        out.push(b',');
                    }
                    error.write_json(out);
                    out.extend_from_slice(RESULT_END);
                }),
            }
        }
    }

    /// Executes a transaction of the process itself. `operations` is the text of an array. Returns the text of the
    /// array of results.
    pub fn execute(&mut self, database: &str, operations: &[u8], now: Now) -> Result<Vec<u8>, Error> {
        self.flush_group();
        let operations: Vec<Value<'_>> = wire::json::validate(operations)
            .map_err(|error| Error::internal(error.to_string()))?
            .elements()
            .collect();
        let id = self.databases.find(database);
        let Some((id, hosted)) = id.and_then(|id| self.databases.get_mut(id).map(|hosted| (id, hosted)))
        else {
            return Err(Error::new("unknown database", format!("there is no database {database}")));
        };
        let context = Context::own();
        let mut reply = Vec::new();
        let outcome =
            transaction::execute(&mut hosted.database, &operations, &context, &mut *self.random, &mut reply);
        if let Outcome::Finished { committed, durable } = outcome {
            self.group.durable |= durable;
            if let Some(commit) = committed {
                self.committed(id, commit, now);
            }
        }
        let before = self.databases.get(id).map(|hosted| hosted.database.commit_number());
        self.flush_group();
        let after = self.databases.get(id).map(|hosted| hosted.database.commit_number());
        if before == after { Ok(reply) } else { Err(Error::new("I/O error", "the log could not be written")) }
    }
}

/// The id of a request in its reply.
pub(super) fn write_id(out: &mut Vec<u8>, id: Value<'_>) {
    write::sorted(out, id);
}

/// The reply to a request that failed.
pub(super) fn write_error(out: &mut Vec<u8>, id: Value<'_>, error: &Error) {
    out.extend_from_slice(b"{\"id\":");
    write_id(out, id);
    out.extend_from_slice(b",\"error\":");
    error.write_json(out);
    out.push(b'}');
}
