//! A connection that copies, and the session at its other end, without sockets.

use kv::replication::Replication;
use kv::{BucketSettings, Node, RoleChange, VbId, VbState};
use sessions::{Output, Port};

use super::{Client, frame};

pub const VBUCKETS: u16 = 2;
pub const HEADER_LEN: usize = 24;
const SET_VBUCKET: u8 = 0x3d;
/// XATTR, XERROR, SelectBucket, JSON, UnorderedExecution.
const FEATURES: [u16; 5] = [0x06, 0x07, 0x08, 0x0b, 0x0e];

pub fn settings() -> BucketSettings {
    BucketSettings { memory_bytes: 256 << 20, vbuckets: VBUCKETS, ..Default::default() }
}

fn named(node: &Node, name: &str) {
    node.set_replication(Replication {
        node: Some(name.into()),
        user: "Administrator".into(),
        password: "password".into(),
        uses_tls: false,
        peers: Vec::new(),
    });
}

/// What happens to what is said.
pub type Between<'a> = &'a mut dyn FnMut(To, Vec<u8>) -> Vec<u8>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    Source,
    Copy,
}

/// Node `a` with active vBuckets, and node `b` with their replicas.
pub struct Pair {
    pub writer: Client,
    pub copy: Client,
    /// The session of the connection at node `a`, and the one at node `b`.
    pub ends: Option<(Client, Client)>,
}

/// Node `a`, whose vBuckets are active, and a session at it.
pub fn source() -> Client {
    let mut writer = Client::before(Port::Couchbase, settings());
    named(&writer.node, "a");
    writer.open_bucket(&FEATURES);
    for vb in 0..VBUCKETS {
        let role = br#"{"topology":[["a","b"]],"term":1}"#;
        let answer = writer.ask(frame(SET_VBUCKET).vbucket(vb).extras(&[1]).value(role));
        assert_eq!(answer.status, 0);
    }
    writer
}

impl Pair {
    pub fn new() -> Self {
        let mut copy = Client::before(Port::Couchbase, settings());
        copy.open_bucket(&FEATURES);
        Self::of(source(), copy)
    }

    /// Makes the other node a copy.
    pub fn of(writer: Client, mut copy: Client) -> Self {
        named(&copy.node, "b");
        let bucket = copy.node.bucket("default").unwrap();
        for vb in 0..VBUCKETS {
            let change = RoleChange {
                state: Some(VbState::Replica),
                term: Some(1),
                source: Some(Some("a".into())),
                ..RoleChange::default()
            };
            bucket.set_role(&mut copy.cx, VbId(vb), change).unwrap();
        }
        Self { writer, copy, ends: None }
    }

    pub fn connect(&mut self) {
        self.ends = None;
        let source = self.writer.beside(1);
        let link = Client::link(&self.copy.node, "a", self.writer.cx.now);
        self.ends = Some((source, link));
    }

    /// Has both ends talk until neither has anything to say. Returns false if one of them has closed, or there
    /// is no end to it.
    pub fn talk(&mut self, between: Between<'_>) -> bool {
        for _ in 0..2000 {
            let Some((source, link)) = &mut self.ends else { return false };
            self.writer.cx.end_batch();
            let mut to_copy = source.messages();
            let asked = between(To::Source, link.messages());
            if !asked.is_empty() {
                to_copy.extend(source.send_raw(&asked));
            }
            let told = between(To::Copy, to_copy);
            if !told.is_empty() {
                link.send_raw(&told);
            }
            if source.is_closed() || link.is_closed() {
                return false;
            }
            if asked.is_empty() && told.is_empty() {
                // What was refused is asked for again soon.
                let soon_ms = link.cx.now.mono_ms() + 6_000;
                if link.session.noop_due_ms().is_none_or(|due_ms| due_ms > soon_ms) {
                    return true;
                }
                for client in [&mut *link, &mut *source, &mut self.writer, &mut self.copy] {
                    client.cx.now.mono_us += 100_000;
                    client.cx.now.unix_ns += 100_000_000;
                }
                let mut out = Output::default();
                link.session.send_noop(&mut link.cx, &mut out);
                let answers = source.send_raw(&super::bytes_of(out));
                link.send_raw(&answers);
            }
        }
        // What is refused again and again is asked for again and again.
        false
    }
}

/// The frames that bytes consist of; the last one may be a part.
pub fn frames_of(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some(length) = bytes.get(8..12) {
        let length = HEADER_LEN + u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let (frame, rest) = bytes.split_at(length.min(bytes.len()));
        frames.push(frame.to_vec());
        bytes = rest;
    }
    frames
}
