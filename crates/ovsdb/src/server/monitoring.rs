//! Monitors of sessions: created, changed, cancelled, notified.

use super::databases::Hosted;
use super::session::SessionMonitor;
use super::{DatabaseId, Log, SCRATCH_BYTES_MAX, Server, SessionId};
use crate::database::Database;
use crate::error::Error;
use crate::file::transaction_id;
use crate::history::{Change, CommitId};
use crate::monitor::{
    self, GroupId, Member, MemberId, Notification, Select, Spec, TablePlan, Version, parse_condition_change,
    parse_requests,
};
use crate::schema::TableSchema;
use crate::server::output::{SHARED_BYTES_MIN, append_shared};
use crate::uuid::Uuid;
use std::sync::Arc;
use wire::json::{Kind, Value, write};

/// Why a session is closed that reads too few of its notifications.
const TOO_SLOW: &str = "it is too far behind the changes it monitors";

impl<L: Log> Server<L> {
    /// `monitor`, `monitor_cond` and `monitor_cond_since`; sends the reply.
    pub(super) fn monitor(
        &mut self,
        session: SessionId,
        params: Value<'_>,
        version: Version,
        id: Value<'_>,
    ) -> Result<(), Error> {
        let method = match version {
            Version::One => "monitor",
            Version::Two => "monitor_cond",
            Version::Three => "monitor_cond_since",
        };
        let database = self.find_database(params, method)?;
        let elements: Vec<Value<'_>> = params.elements().collect();
        let wanted = if version == Version::Three { 4 } else { 3 };
        let (Some(monitor_id), Some(requests)) = (elements.get(1), elements.get(2)) else {
            return Err(Error::syntax_error(params, "invalid parameters"));
        };
        if version != Version::One && elements.len() != wanted {
            return Err(Error::syntax_error(params, "invalid parameters"));
        }
        if requests.kind() != Kind::Object {
            return Err(Error::syntax_error(*requests, "monitor-requests must be object"));
        }
        let mut text = Vec::new();
        write::sorted(&mut text, *monitor_id);
        let (hosted, entry) = match (self.databases.get(database), self.sessions.get(session)) {
            (Some(hosted), Some(entry)) => (hosted, entry),
            _ => return Ok(()),
        };
        if entry.monitor(&text).is_some() {
            return Err(Error::syntax_error(*monitor_id, "duplicate monitor ID"));
        }
        if entry.monitors.len() >= self.limits.monitors_per_session {
            return Err(Error::resources_exhausted("too many monitors"));
        }
        let spec = parse_requests(database, hosted.database.schema(), version, *requests)?;
        let since = match elements.get(3).filter(|_| version == Version::Three) {
            Some(last) => Some(parse_transaction_id(*last)?),
            None => None,
        };
        let known = since.and_then(|last| known_commit(hosted, &spec, last));
        let id_text: Box<[u8]> = text.into();
        let member = Member { session, id: id_text.clone(), behind: None };
        let (group, member) = self.groups.join(spec, member);
        if let Some(entry) = self.sessions.get_mut(session) {
            let bytes = params.text().len();
            entry.kept_bytes += bytes;
            entry.monitors.push(SessionMonitor { id: id_text, database, group, member, bytes });
        }
        self.reply_initial(session, database, group, version, known, id);
        Ok(())
    }

    /// Answers with the existing rows, or with what happened since a commit that the client knows.
    fn reply_initial(
        &mut self,
        session: SessionId,
        database: DatabaseId,
        group: GroupId,
        version: Version,
        known: Option<CommitId>,
        id: Value<'_>,
    ) {
        let Some(hosted) = self.databases.get(database) else { return };
        let Some(group) = self.groups.get_mut(group) else { return };
        let Some(output) = self.sessions.output(session) else { return };
        let database = &hosted.database;
        let rows = match known {
            None => group.initial(database.commit_number(), |spec| {
                let mut rows = Vec::new();
                monitor::write_initial(spec, database, &mut rows);
                rows
            }),
            Some(commit) => {
                let mut rows = Vec::new();
                write_changes(&group.spec, database, database.changes_since(commit), &mut rows);
                Arc::new(rows)
            }
        };
        output.write(|out| {
            out.extend_from_slice(b"{\"id\":");
            write::sorted(out, id);
            out.extend_from_slice(b",\"result\":");
            if version == Version::Three {
                out.push(b'[');
                write::boolean(out, known.is_some());
                out.extend_from_slice(b",\"");
                database.transaction_id().write(out);
                out.extend_from_slice(b"\",");
            }
        });
        append_shared(output, rows);
        output.append(if version == Version::Three { b"],\"error\":null}" } else { b",\"error\":null}" });
    }

    /// `monitor_cond_change`
    pub(super) fn change_conditions(
        &mut self,
        session: SessionId,
        params: Value<'_>,
    ) -> Result<Vec<u8>, Error> {
        let elements: Vec<Value<'_>> = params.elements().collect();
        let [old_id, new_id, requests] = elements.as_slice() else {
            return Err(Error::syntax_error(params, "invalid parameters"));
        };
        let (mut old_text, mut new_text) = (Vec::new(), Vec::new());
        write::sorted(&mut old_text, *old_id);
        write::sorted(&mut new_text, *new_id);
        let entry = self.sessions.get(session);
        let monitor = entry.and_then(|entry| entry.monitors.get(entry.monitor(&old_text)?));
        let (Some(entry), Some(monitor)) = (entry, monitor) else {
            return Err(Error::syntax_error(*old_id, "unknown monitor session"));
        };
        if old_text != new_text && entry.monitor(&new_text).is_some() {
            return Err(Error::syntax_error(*new_id, "duplicate monitor ID"));
        }
        let (group_id, member, database) = (monitor.group, monitor.member, monitor.database);
        let (Some(hosted), Some(group)) = (self.databases.get(database), self.groups.get(group_id)) else {
            return Err(Error::syntax_error(*old_id, "unknown monitor session"));
        };
        let spec = parse_condition_change(&group.spec, hosted.database.schema(), *requests)?;
        if entry.behind > 0 {
            self.catch_up(session);
            if self.sessions.get(session).is_none() {
                return Ok(Vec::new());
            }
        }
        let new_text: Box<[u8]> = new_text.into();
        self.refilter(session, (group_id, member), spec, &old_text, new_text.clone());
        if let Some(entry) = self.sessions.get_mut(session)
            && let Some(monitor) = entry.monitor(&new_text).and_then(|place| entry.monitors.get_mut(place))
        {
            // For tables that this request does not name, the earlier conditions remain.
            let more = params.text().len().saturating_sub(monitor.bytes);
            monitor.bytes += more;
            entry.kept_bytes += more;
        }
        Ok(b"{}".to_vec())
    }

    /// Moves a monitor to the group of its new filters, and sends it the rows that become visible and those that no
    /// longer are.
    fn refilter(
        &mut self,
        session: SessionId,
        (group, member): (GroupId, MemberId),
        spec: Spec,
        old_id: &[u8],
        new_id: Box<[u8]>,
    ) {
        let Some(hosted) = self.databases.get(spec.database) else { return };
        let Some(old) = self.groups.get(group) else { return };
        let mut text = Vec::new();
        begin_body(&spec, &hosted.database, hosted.database.commit_number(), &mut text);
        let changed = spec.version != Version::One
            && monitor::write_refiltered(&old.spec, &spec, &hosted.database, &mut text);
        let head = old.head.clone();
        self.groups.leave(group, member);
        let member = Member { session, id: new_id.clone(), behind: None };
        let (group, member) = self.groups.join(spec, member);
        if let Some(entry) = self.sessions.get_mut(session)
            && let Some(monitor) = entry.monitor(old_id).and_then(|place| entry.monitors.get_mut(place))
        {
            monitor.group = group;
            monitor.member = member;
            monitor.id = new_id.clone();
        }
        if changed && let Some(output) = self.sessions.output(session) {
            output.append(&head);
            output.append(&new_id);
            output.append(b",");
            append_shared(output, Arc::new(text));
            output.append(b"]}");
        }
    }

    /// `monitor_cancel`; errors are the text of a JSON string.
    pub(super) fn cancel_monitor(
        &mut self,
        session: SessionId,
        params: Value<'_>,
    ) -> Result<(), &'static [u8]> {
        let mut elements = params.elements();
        let (Some(id), None) = (elements.next(), elements.next()) else {
            return Err(b"\"invalid parameters\"");
        };
        let mut text = Vec::new();
        write::sorted(&mut text, id);
        let entry = self.sessions.get_mut(session);
        let Some((entry, place)) = entry.and_then(|entry| entry.monitor(&text).map(|place| (entry, place)))
        else {
            return Err(b"\"unknown monitor\"");
        };
        let monitor = entry.monitors.remove(place);
        entry.kept_bytes = entry.kept_bytes.saturating_sub(monitor.bytes);
        self.leave_group(&monitor, session);
        Ok(())
    }

    /// Ends a monitor.
    pub(super) fn leave_group(&mut self, monitor: &SessionMonitor, session: SessionId) {
        let member = self.groups.leave(monitor.group, monitor.member);
        if let Some(behind) = member.and_then(|member| member.behind) {
            if let Some(session) = self.sessions.get_mut(session) {
                session.behind = session.behind.saturating_sub(1);
            }
            self.caught_up(monitor.database, behind);
        }
    }

    /// Notifies the monitors of a database of its commits after `known`.
    pub(super) fn notify(&mut self, id: DatabaseId, known: CommitId) {
        if self.groups.is_unwatched(id) {
            return;
        }
        let Some(hosted) = self.databases.get(id) else { return };
        let database = &hosted.database;
        let commit = database.commit_number();
        let one = commit.0 == known.0 + 1;
        let mut groups = std::mem::take(&mut self.scratch.groups);
        if one {
            let tables = database.changes_of(commit).map(|change| change.table);
            self.groups.find_interested(id, tables, &mut groups);
        } else {
            let tables = database.changes_since(known).map(|change| change.table);
            self.groups.find_interested(id, tables, &mut groups);
        }
        let mut left_behind = 0_usize;
        let mut at_once = self.limits.notified_at_once;
        for id in groups.drain(..) {
            let Some(group) = self.groups.get_mut(id) else { continue };
            if at_once == 0 {
                for member in group.members.values_mut().filter(|member| member.behind.is_none()) {
                    left_behind += usize::from(self.sessions.leave_behind(member, known, true));
                }
                continue;
            }
            at_once -= 1;
            let text = &mut self.scratch.notification;
            text.clear();
            begin_body(&group.spec, database, commit, text);
            let happened = if one {
                write_changes(&group.spec, database, database.changes_of(commit), text)
            } else {
                write_changes(&group.spec, database, database.changes_since(known), text)
            };
            if !happened {
                continue;
            }
            let shared = (text.len() >= SHARED_BYTES_MIN).then(|| Arc::new(std::mem::take(text)));
            for member in group.members.values_mut() {
                if member.behind.is_some() {
                    continue;
                }
                let session = self.sessions.get(member.session);
                let backlog_bytes = session.map_or(0, |session| session.output.backlog_bytes());
                if at_once == 0 || backlog_bytes > self.limits.backlog_bytes {
                    left_behind += usize::from(self.sessions.leave_behind(member, known, at_once == 0));
                    continue;
                }
                at_once -= 1;
                let Some(output) = self.sessions.output(member.session) else { continue };
                match &shared {
                    None => output.write(|out| {
                        out.reserve(group.head.len() + member.id.len() + text.len() + 3);
                        out.extend_from_slice(&group.head);
                        out.extend_from_slice(&member.id);
                        out.push(b',');
                        out.extend_from_slice(text);
                        out.extend_from_slice(b"]}");
                    }),
                    Some(text) => {
                        output.append(&group.head);
                        output.append(&member.id);
                        output.append(b",");
                        append_shared(output, text.clone());
                        output.append(b"]}");
                    }
                }
            }
        }
        self.scratch.groups = groups;
        if self.scratch.notification.capacity() > SCRATCH_BYTES_MAX {
            self.scratch.notification = Vec::new();
        }
        if left_behind > 0
            && let Some(hosted) = self.databases.get_mut(id)
        {
            hosted.laggards.add(known, left_behind);
            hosted.database.retain_from(hosted.laggards.slowest());
        }
    }

    /// Notifies the sessions whose monitors are behind because a change had too many, until none is left or `goes_on`
    /// returns false, which it is asked after each. To be called after [`Self::flush`].
    pub fn notify_late(&mut self, goes_on: &mut dyn FnMut() -> bool) {
        while let Some(id) = self.sessions.late.pop_front() {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            session.late = false;
            // One that reads too little catches up when it has read.
            if session.behind == 0 || session.output.backlog_bytes() > self.limits.backlog_bytes {
                continue;
            }
            self.catch_up(id);
            if !goes_on() {
                break;
            }
        }
        self.sessions.publish();
    }

    /// Sends a session what its monitors have missed, in one piece.
    pub(super) fn catch_up(&mut self, session: SessionId) {
        let Some(entry) = self.sessions.get_mut(session) else { return };
        entry.behind = 0;
        let mut lost = false;
        let mut commits = Vec::new();
        for place in 0.. {
            let monitor = self.sessions.get(session).and_then(|entry| entry.monitors.get(place));
            let Some(SessionMonitor { id, database, group, member, .. }) = monitor else { break };
            let Some(group) = self.groups.get_mut(*group) else { continue };
            let Some(hosted) = self.databases.get(*database) else { continue };
            let behind = group.members.get_mut(member).and_then(|member| member.behind.take());
            let Some(behind) = behind else { continue };
            commits.push((*database, behind));
            if behind < hosted.database.oldest_kept() {
                lost = true;
                continue;
            }
            let database = &hosted.database;
            let commit = database.commit_number();
            let text = group.missed(behind, commit, |spec| {
                let mut text = Vec::new();
                begin_body(spec, database, commit, &mut text);
                let happened = write_changes(spec, database, database.changes_since(behind), &mut text);
                if happened { text } else { Vec::new() }
            });
            if text.is_empty() {
                continue;
            }
            let (head, id) = (group.head.clone(), id.clone());
            let Some(output) = self.sessions.output(session) else { continue };
            output.append(&head);
            output.append(&id);
            output.append(b",");
            append_shared(output, text);
            output.append(b"]}");
        }
        for (database, behind) in commits {
            self.caught_up(database, behind);
        }
        if lost {
            self.close_session(session, TOO_SLOW);
        }
    }

    /// Closes the sessions that are further behind than history reaches.
    pub(super) fn close_too_slow(&mut self) {
        let oldest_kept = |hosted: &Hosted<L>| {
            let oldest = hosted.database.oldest_kept();
            hosted.laggards.slowest().is_some_and(|slowest| slowest < oldest).then_some(oldest)
        };
        let databases = self.databases.iter();
        let short: Vec<_> = databases.filter_map(|(id, hosted)| Some((id, oldest_kept(hosted)?))).collect();
        for (id, oldest) in short {
            let groups = self.groups.iter_mut().filter(|group| group.spec.database == id);
            let lost: Vec<SessionId> = groups
                .flat_map(|group| group.members.values())
                .filter(|member| member.behind.is_some_and(|behind| behind < oldest))
                .map(|member| member.session)
                .collect();
            for session in lost {
                self.close_session(session, TOO_SLOW);
            }
        }
        self.sessions.publish();
    }

    /// A monitor has caught up: less history may be needed.
    fn caught_up(&mut self, database: DatabaseId, behind: CommitId) {
        if let Some(hosted) = self.databases.get_mut(database) {
            hosted.laggards.remove(behind);
            hosted.database.retain_from(hosted.laggards.slowest());
        }
    }
}

/// Appends what precedes the changes in the params of a notification.
fn begin_body(spec: &Spec, database: &Database, commit: CommitId, out: &mut Vec<u8>) {
    if spec.version == Version::Three {
        out.push(b'"');
        database.transaction_id_of(commit).unwrap_or_default().write(out);
        out.extend_from_slice(b"\",");
    }
}

/// Appends changes. Returns false if there are none that the monitor asks for.
fn write_changes<'a>(
    spec: &Spec,
    database: &Database,
    changes: impl Iterator<Item = Change<'a>>,
    out: &mut Vec<u8>,
) -> bool {
    let mut notification = Notification::new(out);
    for change in changes {
        notification.change(spec, database.schema().table(change.table), &change);
    }
    notification.finish()
}

fn parse_transaction_id(json: Value<'_>) -> Result<Uuid, Error> {
    let Some(text) = json.as_string() else {
        return Err(Error::syntax_error(json, "last-txn-id must be string"));
    };
    Uuid::parse(&text).ok_or_else(|| Error::syntax_error(json, "last-txn-id must be UUID format."))
}

/// The commit whose state a client knows, if everything that came after it is still known.
fn known_commit<L>(hosted: &Hosted<L>, spec: &Spec, last: Uuid) -> Option<CommitId> {
    if last.is_zero() {
        return None;
    }
    let database = &hosted.database;
    let exactly = database.find_transaction(last);
    if let Some(commit) = exactly.filter(|commit| *commit >= hosted.opened) {
        return Some(commit);
    }
    // `_version`s change when a database is reopened.
    if shows_rows(spec, database, |plan, _| plan.shows_versions()) {
        return None;
    }
    // Without a tag, no difference of ephemeral columns can be computed.
    let exactly = exactly.filter(|_| transaction_id::is_tagged(last));
    exactly.or_else(|| {
        let is_logged = !transaction_id::logged(last).is_zero();
        let commit = database.find_logged(last).filter(|_| is_logged)?;
        (!shows_rows(spec, database, TablePlan::shows_ephemeral)).then_some(commit)
    })
}

/// Returns true if the monitor shows rows of a table for which `asks` holds.
fn shows_rows(spec: &Spec, database: &Database, asks: impl Fn(&TablePlan, &TableSchema) -> bool) -> bool {
    spec.tables.iter().any(|plan| {
        plan.select != Select::default()
            && database.row_count(plan.table) > 0
            && asks(plan, database.schema().table(plan.table))
    })
}
