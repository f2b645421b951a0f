//! A client of one session, without sockets: frames in, decoded answers out, and a clock to turn.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::sync::Arc;

use kv::session::{Batch, Output, Peer, Port, Session};
use kv::users::Users;
use kv::{BucketSettings, Cx, Limits, Node, NodeSettings, Now};

const START_S: u32 = 1_700_000_000;

/// A request frame under construction.
#[derive(Clone, Debug)]
pub struct Frame {
    magic: u8,
    opcode: u8,
    framing: Vec<u8>,
    extras: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    datatype: u8,
    vbucket: u16,
    opaque: u32,
    cas: u64,
}

/// A classic request.
pub fn frame(opcode: u8) -> Frame {
    Frame {
        magic: 0x80,
        opcode,
        framing: vec![],
        extras: vec![],
        key: vec![],
        value: vec![],
        datatype: 0,
        vbucket: 0,
        opaque: 0,
        cas: 0,
    }
}

/// Flags and expiry.
pub fn store_extras(flags: u32, exptime: u32) -> Vec<u8> {
    [flags.to_be_bytes(), exptime.to_be_bytes()].concat()
}

impl Frame {
    pub fn framing(mut self, framing: &[u8]) -> Self {
        self.magic = 0x08;
        self.framing = framing.to_vec();
        self
    }
    pub fn extras(mut self, extras: &[u8]) -> Self {
        self.extras = extras.to_vec();
        self
    }
    pub fn key(mut self, key: &[u8]) -> Self {
        self.key = key.to_vec();
        self
    }
    pub fn value(mut self, value: &[u8]) -> Self {
        self.value = value.to_vec();
        self
    }
    pub fn datatype(mut self, datatype: u8) -> Self {
        self.datatype = datatype;
        self
    }
    pub fn vbucket(mut self, vbucket: u16) -> Self {
        self.vbucket = vbucket;
        self
    }
    pub fn opaque(mut self, opaque: u32) -> Self {
        self.opaque = opaque;
        self
    }
    pub fn cas(mut self, cas: u64) -> Self {
        self.cas = cas;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.magic, self.opcode];
        if self.magic == 0x08 {
            bytes.extend([self.framing.len() as u8, self.key.len() as u8]);
        } else {
            bytes.extend((self.key.len() as u16).to_be_bytes());
        }
        bytes.extend([self.extras.len() as u8, self.datatype]);
        bytes.extend(self.vbucket.to_be_bytes());
        let body_len = self.framing.len() + self.extras.len() + self.key.len() + self.value.len();
        bytes.extend((body_len as u32).to_be_bytes());
        bytes.extend(self.opaque.to_be_bytes());
        bytes.extend(self.cas.to_be_bytes());
        for part in [&self.framing, &self.extras, &self.key, &self.value] {
            bytes.extend(part);
        }
        bytes
    }
}

/// A decoded answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    pub opcode: u8,
    pub status: u16,
    pub datatype: u8,
    pub opaque: u32,
    pub cas: u64,
    pub framing: Vec<u8>,
    pub extras: Vec<u8>,
    pub key: Vec<u8>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn take(bytes: &mut &[u8]) -> Self {
        let (header, mut rest) = bytes.split_at(24);
        let number =
            |at: usize, len: usize| header[at..at + len].iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let (framing_len, key_len) = match header[0] {
            0x81 => (0, number(2, 2)),
            0x18 => (number(2, 1), number(3, 1)),
            magic => panic!("magic {magic:#x}"),
        };
        let body_len = number(8, 4);
        let mut part = |len: u64| {
            let (part, tail) = rest.split_at(len as usize);
            rest = tail;
            part.to_vec()
        };
        let (framing, extras, key) = (part(framing_len), part(number(4, 1)), part(key_len));
        let body = part(body_len - framing_len - number(4, 1) - key_len);
        *bytes = rest;
        Self {
            opcode: header[1],
            status: number(6, 2) as u16,
            datatype: header[5],
            opaque: number(12, 4) as u32,
            cas: number(16, 8),
            framing,
            extras,
            key,
            body,
        }
    }
}

/// A client, its session and the node behind it.
pub struct Client {
    pub session: Session,
    pub cx: Cx,
    pub node: Arc<Node>,
    unread: Vec<u8>,
}

impl Client {
    /// On a memcached port without a login.
    pub fn memcached() -> Self {
        Self::new(Port::Memcached, false)
    }

    /// On a memcached port that demands a login.
    pub fn memcached_with_login() -> Self {
        Self::new(Port::Memcached, true)
    }

    /// On a Couchbase port, just connected. The development user may log in.
    pub fn couchbase() -> Self {
        Self::new(Port::Couchbase, true)
    }

    /// On a port of this kind, without a login on a memcached one, before a bucket of these settings.
    pub fn before(port: Port, settings: BucketSettings) -> Self {
        Self::with_bucket(port, port == Port::Couchbase, settings)
    }

    fn new(port: Port, login_required: bool) -> Self {
        Self::with_bucket(
            port,
            login_required,
            BucketSettings { memory_bytes: 256 << 20, ..Default::default() },
        )
    }

    fn with_bucket(port: Port, login_required: bool, bucket: BucketSettings) -> Self {
        let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed: 7 };
        let limits = Limits::default();
        let node = Node::new(settings, limits.clone());
        let users = Users::new([1; 32]);
        if login_required {
            users.add_development_user();
        }
        node.set_users(users);
        let bucket = node.create_bucket("default", bucket).unwrap();
        let is_memcached = port == Port::Memcached;
        let peer = Peer {
            port,
            login_required,
            user: None,
            loopback: true,
            bucket: is_memcached.then_some(bucket),
            value_limit: if is_memcached { limits.memcached_item_bytes } else { limits.kv_value_bytes },
            close: false,
            couchbase: Default::default(),
        };
        let mut cx = Cx::new(Arc::clone(&node), 0);
        cx.now = Now { unix_s: START_S, unix_ns: u64::from(START_S) * 1_000_000_000, mono_ms: 0 };
        Self { session: Session::new(peer, &limits), cx, node, unread: Vec::new() }
    }

    /// Lets time pass.
    pub fn pass_s(&mut self, seconds: u32) {
        let now = &mut self.cx.now;
        now.unix_s += seconds;
        now.unix_ns += u64::from(seconds) * 1_000_000_000;
        now.mono_ms += u64::from(seconds) * 1000;
    }

    pub fn is_closed(&self) -> bool {
        self.session.peer.close
    }

    /// Sends one request and gives its one answer.
    pub fn ask(&mut self, frame: Frame) -> Answer {
        let mut answers = self.send(&frame.bytes());
        assert_eq!(answers.len(), 1, "answers to opcode {:#x}", frame.opcode);
        answers.remove(0)
    }

    /// Sends requests in one piece.
    pub fn ask_all(&mut self, frames: &[Frame]) -> Vec<Answer> {
        self.send(&frames.iter().flat_map(Frame::bytes).collect::<Vec<_>>())
    }

    /// Sends bytes and gives what is answered.
    pub fn send(&mut self, bytes: &[u8]) -> Vec<Answer> {
        self.unread.extend(bytes);
        let input = std::mem::take(&mut self.unread);
        let (mut at, mut output) = (0, Vec::new());
        loop {
            let mut batch = Batch::new();
            let progress = self.session.parse(&input[at..], 0, usize::MAX, &mut self.cx, &mut batch);
            let mut out = Output::default();
            for index in 0..batch.len() {
                self.session.execute(batch.get(index).unwrap(), &mut self.cx, &mut out);
            }
            let (plain, pinned) = out.take();
            let mut from = 0;
            for (position, value) in pinned {
                output.extend(&plain[from..position]);
                output.extend(&value[..]);
                from = position;
            }
            output.extend(&plain[from..]);
            at += progress.consumed;
            if progress.need.is_some() || self.is_closed() {
                break;
            }
        }
        self.unread = input[at..].to_vec();
        self.cx.end_batch();
        let mut rest = output.as_slice();
        let mut answers = Vec::new();
        while !rest.is_empty() {
            answers.push(Answer::take(&mut rest));
        }
        answers
    }
}
