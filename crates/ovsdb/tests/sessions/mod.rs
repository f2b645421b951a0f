//! A server driven with JSON text, without sockets and clocks.
#![allow(dead_code, clippy::unwrap_used)]

use ovsdb::database::{Database, Options};
use ovsdb::error::Error;
use ovsdb::history::CommitId;
use ovsdb::schema::DatabaseSchema;
use ovsdb::server::{Limits, Log, Now, Server, SessionId, SessionOptions};
use ovsdb::uuid::Uuid;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use wire::jsonrpc::Framer;

/// The schema of the scripts.
pub const SCHEMA: &str = include_str!("../../testdata/sessions/T.ovsschema");

/// A log that keeps nothing and can be made to fail.
#[derive(Debug, Default)]
pub struct TestLog {
    pub fails: Arc<AtomicBool>,
    pub writes: Arc<AtomicU64>,
    pub durable_writes: Arc<AtomicU64>,
    commits: u64,
    pending: bool,
}

impl Log for TestLog {
    fn append(&mut self, database: &mut Database, commit: CommitId, _: u64) {
        self.commits += 1;
        self.pending = true;
        database.set_transaction_id(commit, transaction_id(self.commits));
    }

    fn write(&mut self, durable: bool) -> Result<(), Error> {
        assert!(self.pending || durable, "nothing to write");
        self.pending = false;
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::io(28, "T.db: write failed"));
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        if durable {
            self.durable_writes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn replace(&mut self, _: &mut Database, _: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// The id that the log gives its nth commit: different in the part for lasting columns.
pub fn transaction_id(commit: u64) -> Uuid {
    let mut id = [0xaa; 16];
    id[4..12].copy_from_slice(&commit.to_be_bytes());
    Uuid(id)
}

/// A server and the names by which the test calls its sessions.
pub struct Driver<L = TestLog> {
    pub server: Server<L>,
    pub now: Now,
    sessions: BTreeMap<String, SessionId>,
    /// Sessions that do not read what they are sent.
    stuck: Vec<SessionId>,
    uuids: BTreeMap<String, usize>,
}

impl Driver {
    /// Hosts `T`, without a log.
    pub fn new() -> Self {
        Self::with(None, Limits::default())
    }

    pub fn with(log: Option<TestLog>, limits: Limits) -> Self {
        Self::hosting(database(SCHEMA), log, limits)
    }
}

impl<L: Log> Driver<L> {
    pub fn hosting(database: Database, log: Option<L>, limits: Limits) -> Self {
        // A reopened database must not see the same UUIDs again.
        let mut next = database.commit_number().0 << 32;
        let random = Box::new(move || {
            next += 1;
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&next.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            bytes[8..].copy_from_slice(&next.to_be_bytes());
            Uuid::from_random(bytes)
        });
        let now = Now { wall_ms: 1_000_000, monotonic_ms: 1_000 };
        let mut server = Server::new(limits, random).unwrap();
        server.add_database(database, log, now).unwrap();
        Self { server, now, sessions: BTreeMap::new(), stuck: Vec::new(), uuids: BTreeMap::new() }
    }

    pub fn session(&mut self, name: &str) -> SessionId {
        if let Some(id) = self.sessions.get(name) {
            return *id;
        }
        let options = SessionOptions { name: name.to_owned(), ..SessionOptions::default() };
        self.connect(name, options)
    }

    pub fn connect(&mut self, name: &str, options: SessionOptions) -> SessionId {
        let id = self.server.connect(options).unwrap();
        self.sessions.insert(name.to_owned(), id);
        id
    }

    /// Makes the session stop reading, or read again.
    pub fn stick(&mut self, name: &str, stuck: bool) {
        let id = self.session(name);
        self.stuck.retain(|other| *other != id);
        if stuck {
            self.stuck.push(id);
        }
    }

    /// Sends some messages of one session at once. Returns what all sessions receive.
    pub fn send(&mut self, session: &str, text: &str) -> Vec<String> {
        let mut lines = self.receive(session, text);
        self.end_wake_up();
        lines.extend(self.collect());
        lines
    }

    /// As [`Self::send`] before the end of the wake-up.
    pub fn receive(&mut self, session: &str, text: &str) -> Vec<String> {
        let id = self.session(session);
        let mut rest = text.as_bytes();
        let mut framer = Framer::new(wire::jsonrpc::Limits::default());
        while !rest.is_empty() {
            let why = match framer.advance(rest) {
                Ok(None) => break,
                Err(error) => error.to_string(),
                Ok(Some(length)) => {
                    let (message, after) = rest.split_at(length);
                    rest = after;
                    match self.server.receive(id, message, self.now) {
                        Ok(()) => continue,
                        Err(error) => error.to_string(),
                    }
                }
            };
            self.server.disconnect(id);
            self.sessions.remove(session);
            return vec![format!("{session} <closed> {why}")];
        }
        Vec::new()
    }

    /// Lets time pass.
    pub fn sleep(&mut self, ms: u64) -> Vec<String> {
        self.now.monotonic_ms += ms;
        self.now.wall_ms += ms;
        if self.server.next_deadline_ms().is_some_and(|deadline| deadline <= self.now.monotonic_ms) {
            self.end_wake_up();
        }
        self.collect()
    }

    fn end_wake_up(&mut self) {
        self.server.run_waits(self.now, &mut || true);
        self.server.flush();
        self.server.notify_late(&mut || true);
    }

    /// What the sessions receive, one message a line, in the order of their names.
    pub fn collect(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let names = self.sessions.clone();
        let mut ready = Vec::new();
        self.server.take_ready(&mut ready);
        let mut again = true;
        while std::mem::take(&mut again) {
            for (name, id) in &names {
                if self.stuck.contains(id) {
                    continue;
                }
                let bytes = self.drain(*id);
                again |= !bytes.is_empty();
                for message in messages(&bytes) {
                    lines.push(self.renumber(&format!("{name} {message}")));
                }
            }
        }
        self.server.take_ready(&mut ready);
        let mut closed = Vec::new();
        self.server.take_closed(&mut closed);
        for (id, reason) in closed {
            self.server.disconnect(id);
            let name = names.iter().find(|(_, other)| **other == id).map(|(name, _)| name.clone());
            let name = name.unwrap_or_default();
            self.sessions.remove(&name);
            lines.push(format!("{name} <closed> {reason}"));
        }
        lines
    }

    fn drain(&mut self, id: SessionId) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(output) = self.server.output(id) {
            let before = bytes.len();
            output.slices().for_each(|slice| bytes.extend_from_slice(slice));
            let sent = bytes.len() - before;
            if sent == 0 {
                break;
            }
            self.server.sent(id, sent);
        }
        bytes
    }

    /// Numbers UUIDs in the order in which they are first seen.
    fn renumber(&mut self, text: &str) -> String {
        let mut result = String::new();
        let mut rest = text;
        while let Some(place) = rest.find(|c: char| c.is_ascii_hexdigit()) {
            let (before, after) = rest.split_at(place);
            result.push_str(before);
            match after.get(..36).filter(|word| Uuid::parse(word).is_some_and(|uuid| !uuid.is_zero())) {
                Some(word) => {
                    let next = self.uuids.len();
                    let number = self.uuids.entry(word.to_owned()).or_insert(next);
                    result.push_str(&format!("<{number}>"));
                    rest = &after[36..];
                }
                None => {
                    let (one, after) = after.split_at(1);
                    result.push_str(one);
                    rest = after;
                }
            }
        }
        result.push_str(rest);
        result
    }
}

/// A database without rows.
pub fn database(schema: &str) -> Database {
    let schema = DatabaseSchema::parse(wire::json::validate(schema.as_bytes()).unwrap()).unwrap();
    Database::new(schema, Options { budget_bytes: u64::MAX, seed: 1 }).unwrap()
}

/// Splits a stream into its messages.
pub fn messages(bytes: &[u8]) -> Vec<String> {
    let mut framer = Framer::new(wire::jsonrpc::Limits::default());
    let mut rest = bytes;
    let mut messages = Vec::new();
    while let Some(length) = framer.advance(rest).unwrap() {
        let (message, after) = rest.split_at(length);
        messages.push(String::from_utf8(message.to_vec()).unwrap());
        rest = after;
    }
    assert!(rest.is_empty(), "half a message: {}", String::from_utf8_lossy(rest));
    messages
}

/// The text without the numbers of UUIDs.
pub fn anonymous(text: &str) -> String {
    let mut parts = text.split('<');
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        result.push('<');
        result.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    result
}

/// Whether to rewrite the scripts instead of comparing.
pub static REWRITE: LazyLock<bool> = LazyLock::new(|| std::env::var_os("REWRITE").is_some());
