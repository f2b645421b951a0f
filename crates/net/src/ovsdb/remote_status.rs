//! Status reports to the rows that name remotes: the columns `is_connected` and `status`, where their table has them.
//!
//! ```text
//!   a session comes or goes, a state or lock changes, remotes change ─> due, at least INTERVAL_MS after the last time
//!   due ─> each row compared with the current status ─> one transaction per database, if anything differs
//! ```
//! COMPAT: the stock server writes them every 2.5 s as long as it runs, because the numbers of seconds grow. Here there
//! is no periodic write: those are as old as the last event, and a row is written when something else in it has
//! changed.

use std::collections::{BTreeMap, BTreeSet};

use ovsdb::atom::{Atom, AtomType};
use ovsdb::cell;
use ovsdb::column_type::{ColumnType, UNLIMITED};
use ovsdb::database::Database;
use ovsdb::row::Row;
use ovsdb::schema::ColumnRef;
use ovsdb::uuid::Uuid;
use wire::json::{self, write};

use super::database_remote::{self, Place};
use super::event_loop::{EventLoop, Slot};
use super::logger::Level;
use super::outgoing::Outgoing;
use super::reconnect::State;
use super::remotes::InForce;

/// Shortest interval between writes of rows.
const INTERVAL_MS: u64 = 2_500;
const SINCE_CONNECT: &str = "sec_since_connect";
const SINCE_DISCONNECT: &str = "sec_since_disconnect";

/// When a connection was last established, and when one was last lost.
type Times = (Option<u64>, Option<u64>);

/// When to report, and what was reported.
#[derive(Debug, Default)]
pub(super) struct Reporting {
    due_ms: Option<u64>,
    /// Earliest time of the next report.
    next_ms: u64,
    lock_changes: u64,
    /// The times behind the numbers of seconds in rows, by target.
    published: BTreeMap<Box<str>, Times>,
}

impl Reporting {
    pub fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }
}

/// The status of a remote.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    is_connected: bool,
    pairs: BTreeMap<&'static str, String>,
    times: Times,
}

impl EventLoop {
    /// Schedules a report: something in the rows has changed.
    pub(super) fn report_soon(&mut self) {
        self.report_at(self.now.monotonic_ms);
    }

    /// Schedules a later report: something has changed that may soon change again.
    pub(super) fn report_later(&mut self) {
        self.report_at(self.now.monotonic_ms + INTERVAL_MS);
    }

    fn report_at(&mut self, wanted_ms: u64) {
        if self.remotes.reported().next().is_some() {
            let wanted_ms = wanted_ms.max(self.reporting.next_ms);
            let due_ms = self.reporting.due_ms.map_or(wanted_ms, |due_ms| due_ms.min(wanted_ms));
            self.reporting.due_ms = Some(due_ms);
        }
    }

    /// Writes what differs, when it is due.
    pub(super) fn report(&mut self) {
        let lock_changes = self.server.lock_changes();
        if std::mem::replace(&mut self.reporting.lock_changes, lock_changes) != lock_changes {
            self.report_soon();
        }
        if self.reporting.due_ms.is_none_or(|due_ms| due_ms > self.now.monotonic_ms) {
            return;
        }
        self.reporting.due_ms = None;
        self.reporting.next_ms = self.now.monotonic_ms + INTERVAL_MS;
        let in_force = &self.remotes.in_force;
        self.reporting.published.retain(|target, _| in_force.contains_key(target));
        let mut places: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        for (database, place) in self.remotes.reported() {
            places.entry(database.to_owned()).or_default().push(place);
        }
        for (name, places) in places {
            let mut published = Vec::new();
            let Some(operations) = self
                .server
                .database(&name)
                .and_then(|database| self.operations(database, &places, &mut published))
            else {
                continue;
            };
            let failure = match self.server.execute(&name, &operations, self.now) {
                Ok(results) => first_error(&results),
                Err(error) => Some(error.to_string()),
            };
            match failure {
                None => self.reporting.published.extend(published),
                Some(error) => {
                    let text = format!("Failed to update remote status: {error}");
                    self.log("ovsdb_server", Level::Error, &text);
                }
            }
            self.server.flush();
        }
    }

    /// The text of a transaction that updates the rows; `None` if they are up to date.
    fn operations(
        &self,
        database: &Database,
        places: &[Place],
        published: &mut Vec<(Box<str>, Times)>,
    ) -> Option<Vec<u8>> {
        let mut seen: BTreeSet<Uuid> = BTreeSet::new();
        let mut text = vec![b'['];
        for place in places {
            let Some(targets) = place.targets else { continue };
            for row in database_remote::rows(database, *place).filter(|row| seen.insert(row.uuid())) {
                let Some(target) = database_remote::target(row) else { continue };
                let status = self.status_of(target);
                let is_known =
                    self.reporting.published.get(target).copied().unwrap_or_default() == status.times;
                let Some(columns) = difference(row, &status, is_known) else { continue };
                let table = database.schema().table(targets).name.as_str();
                if text.len() > 1 {
                    text.push(b',');
                }
                text.extend_from_slice(b"{\"op\":\"update\",\"table\":");
                write::string(&mut text, table);
                text.extend_from_slice(b",\"where\":[[\"_uuid\",\"==\",");
                row.uuid().write_json(&mut text);
                text.extend_from_slice(b"]],\"row\":{");
                text.extend_from_slice(&columns);
                text.extend_from_slice(b"}}");
                published.push((target.into(), status.times));
            }
        }
        text.push(b']');
        (text.len() > 2).then_some(text)
    }

    fn status_of(&self, target: &str) -> Status {
        match (self.outgoing.get(target), self.remotes.in_force.get(target)) {
            (Some(outgoing), _) => self.status_of_outgoing(outgoing),
            (None, state) => self.status_of_listener(state),
        }
    }

    fn status_of_outgoing(&self, outgoing: &Outgoing) -> Status {
        let reconnect = &outgoing.reconnect;
        let mut status =
            Status { times: (reconnect.connected_ms, reconnect.disconnected_ms), ..Status::default() };
        status.is_connected = matches!(reconnect.state, State::Active(_));
        // COMPAT: the stock server reports IDLE while it waits for the answer to a probe.
        let state = match reconnect.state {
            State::Backoff(_) => "BACKOFF",
            State::Resolving | State::Connecting(_) => "CONNECTING",
            State::Active(_) => "ACTIVE",
        };
        status.pairs.insert("state", state.to_owned());
        for (key, since_ms) in [(SINCE_CONNECT, status.times.0), (SINCE_DISCONNECT, status.times.1)] {
            if let Some(since_ms) = since_ms {
                let seconds = self.now.monotonic_ms.saturating_sub(since_ms) / 1000;
                status.pairs.insert(key, seconds.to_string());
            }
        }
        if let Some(Slot::Connection(connection)) = outgoing.slot.and_then(|slot| self.slots.get(slot))
            && let super::connection::Role::Session { id, .. } = connection.role
        {
            let claims = self.server.claims(id);
            for (key, names) in
                [("locks_held", claims.held), ("locks_waiting", claims.waiting), ("locks_lost", claims.lost)]
            {
                if !names.is_empty() {
                    status.pairs.insert(key, names.join(" "));
                }
            }
        }
        status
    }

    /// COMPAT: both numbers of seconds are present, as zeros.
    fn status_of_listener(&self, state: Option<&InForce>) -> Status {
        let mut status = Status::default();
        status.pairs.insert(SINCE_CONNECT, "0".to_owned());
        status.pairs.insert(SINCE_DISCONNECT, "0".to_owned());
        let Some(state) = state else { return status };
        status.is_connected = state.sessions > 0;
        if state.sessions > 1 {
            status.pairs.insert("n_connections", state.sessions.to_string());
        }
        if let Some(Slot::Listener(listener, _)) = state.listener.and_then(|slot| self.slots.get(slot))
            && let Some(port) = listener.tcp_address().map(|address| address.port())
        {
            status.pairs.insert("bound_port", port.to_string());
        }
        status
    }
}

/// The members that bring a row up to date; `None` if it is.
fn difference(row: Row<'_>, status: &Status, is_known: bool) -> Option<Vec<u8>> {
    let is_boolean =
        |kind: &ColumnType| kind.key.kind == AtomType::Boolean && kind.value.is_none() && kind.n_max == 1;
    let is_map = |kind: &ColumnType| {
        let value = kind.value.as_ref().map(|value| value.kind);
        kind.key.kind == AtomType::String && value == Some(AtomType::String) && kind.n_max == UNLIMITED
    };
    let mut text = Vec::new();
    if let Some((kind, cell)) = column(row, "is_connected").filter(|(kind, _)| is_boolean(kind))
        && cell::first(kind, cell) != Some(Atom::Boolean(status.is_connected))
    {
        text.extend_from_slice(b"\"is_connected\":");
        text.extend_from_slice(if status.is_connected { b"true" } else { b"false" });
    }
    if let Some((kind, cell)) = column(row, "status").filter(|(kind, _)| is_map(kind))
        && !(is_known && says(kind, cell, status))
    {
        if !text.is_empty() {
            text.push(b',');
        }
        text.extend_from_slice(b"\"status\":[\"map\",[");
        for (place, (key, value)) in status.pairs.iter().enumerate() {
            text.extend_from_slice(if place == 0 { b"[" } else { b",[" });
            write::string(&mut text, key);
            text.push(b',');
            write::string(&mut text, value);
            text.push(b']');
        }
        text.extend_from_slice(b"]]");
    }
    (!text.is_empty()).then_some(text)
}

/// Returns true if a row's status is this one, apart from the time that has passed.
fn says(kind: &ColumnType, cell: &[u8], status: &Status) -> bool {
    cell::len(kind, cell) == status.pairs.len()
        && cell::atoms(kind, cell).all(|(key, value)| match (key, value) {
            (Atom::String(key), Some(Atom::String(value))) => status
                .pairs
                .get(key)
                .is_some_and(|wanted| wanted == value || [SINCE_CONNECT, SINCE_DISCONNECT].contains(&key)),
            _ => false,
        })
}

fn column<'a>(row: Row<'a>, name: &str) -> Option<(&'a ColumnType, &'a [u8])> {
    let ColumnRef::Column(id) = row.schema().find_column(name)? else { return None };
    Some((&row.schema().column(id).kind, row.cell(id)))
}

/// The first error among the results of a transaction.
fn first_error(results: &[u8]) -> Option<String> {
    let results = json::validate(results).ok()?;
    let failed = |result: &json::Value<'_>| result.member("error").is_some();
    let found = results.elements().find(failed)?;
    Some(String::from_utf8_lossy(found.text()).into_owned())
}
