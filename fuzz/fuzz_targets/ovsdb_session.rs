//! The OVSDB server behind its sessions: whatever they send, nothing panics, and they receive complete JSON-RPC
//! messages. Each line of the input is sent by one session: its first byte chooses the session and whether the wake-up
//! ends after it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ovsdb::database::{Database, Options};
use ovsdb::error::Error;
use ovsdb::history::CommitId;
use ovsdb::schema::DatabaseSchema;
use ovsdb::server::{Limits, Log, Now, Server, SessionId, SessionOptions};
use ovsdb::uuid::Uuid;
use wire::jsonrpc::{self, Framer, Message};

const SCHEMA: &str = include_str!("../../crates/ovsdb/testdata/sessions/T.ovsschema");
const SESSIONS: usize = 4;

/// A log that fails if the last message said so.
struct Unreliable {
    commits: u64,
}

impl Log for Unreliable {
    fn append(&mut self, database: &mut Database, commit: CommitId, _: u64) {
        self.commits += 1;
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.commits.to_be_bytes());
        database.set_transaction_id(commit, Uuid(id));
    }

    fn write(&mut self, durable: bool) -> Result<(), Error> {
        if durable && self.commits % 3 == 0 { Err(Error::io(5, "write failed")) } else { Ok(()) }
    }

    fn replace(&mut self, _: &mut Database, _: u64) -> Result<(), Error> {
        Ok(())
    }
}

fuzz_target!(|input: &[u8]| {
    let mut next = 0_u64;
    let random = Box::new(move || {
        next += 1;
        Uuid::from_random(
            (u128::from(next).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)).to_be_bytes(),
        )
    });
    let limits = Limits { backlog_bytes: 512, notified_at_once: 2, ..Limits::default() };
    let mut server = Server::new(limits, random).expect("the server starts");
    let schema = wire::json::validate(SCHEMA.as_bytes()).expect("the schema is JSON");
    let schema = DatabaseSchema::parse(schema).expect("the schema is one");
    let database = Database::new(schema, Options { budget_bytes: 1 << 24, seed: 7 }).expect("a database");
    let mut now = Now::default();
    server.add_database(database, Some(Unreliable { commits: 0 }), now).expect("a first database");
    let mut sessions: Vec<Option<SessionId>> = vec![None; SESSIONS];
    for line in input.split(|byte| *byte == b'\n').take(64) {
        let Some((choice, text)) = line.split_first() else { continue };
        let Some(entry) = sessions.get_mut(usize::from(choice & 3)) else { continue };
        let session = *entry.get_or_insert_with(|| {
            server.connect(SessionOptions::default()).expect("there are few sessions")
        });
        if !send(&mut server, session, text, now) {
            server.disconnect(session);
            *entry = None;
        }
        now.monotonic_ms += u64::from(choice >> 4) * 100;
        if choice & 4 == 0 {
            let mut retries = choice >> 4;
            server.run_waits(now, &mut || {
                retries = retries.saturating_sub(1);
                retries > 0
            });
            server.flush();
            server.notify_late(&mut || retries > 0);
        }
        for entry in &mut sessions {
            if choice & 8 == 0
                && let Some(session) = *entry
            {
                receive(&mut server, session);
            }
        }
        let mut closed = Vec::new();
        server.take_closed(&mut closed);
        for (session, _) in closed {
            server.disconnect(session);
            sessions.iter_mut().filter(|entry| **entry == Some(session)).for_each(|entry| *entry = None);
        }
    }
    server.run_waits(now, &mut || true);
    server.flush();
    for session in sessions.into_iter().flatten() {
        receive(&mut server, session);
        server.disconnect(session);
    }
    let figures = server.figures();
    assert_eq!(
        (figures.monitors, figures.triggers, figures.locks),
        (0, 0, 0),
        "nothing outlives its session"
    );
});

/// Returns false if the session has to be closed.
fn send(server: &mut Server<Unreliable>, session: SessionId, text: &[u8], now: Now) -> bool {
    let mut framer = Framer::new(jsonrpc::Limits::default());
    let mut rest = text;
    while !rest.is_empty() {
        match framer.advance(rest) {
            Err(_) => return false,
            Ok(None) => return true,
            Ok(Some(length)) => {
                let (message, after) = rest.split_at(length);
                rest = after;
                if server.receive(session, message, now).is_err() {
                    return false;
                }
            }
        }
    }
    true
}

fn receive(server: &mut Server<Unreliable>, session: SessionId) {
    let mut bytes = Vec::new();
    while let Some(output) = server.output(session) {
        let before = bytes.len();
        output.slices().take(3).for_each(|slice| bytes.extend_from_slice(&slice));
        let sent = bytes.len() - before;
        if sent == 0 {
            break;
        }
        server.sent(session, sent);
    }
    let mut framer = Framer::new(jsonrpc::Limits::default());
    let mut rest = bytes.as_slice();
    while let Some(length) = framer.advance(rest).expect("we send JSON") {
        let (message, after) = rest.split_at(length);
        Message::parse(message).expect("we send JSON-RPC");
        rest = after;
    }
    assert!(rest.is_empty(), "we send whole messages");
}
