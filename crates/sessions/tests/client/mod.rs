//! A client of one session, without sockets: frames in, decoded answers out, and a clock that tests advance.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod pair;
pub mod persistent;

use std::sync::Arc;

use kv::copier::Copier;
use kv::users::Users;
use kv::{BucketSettings, Cookie, Limits, Node, NodeContext, NodeSettings, Now};
use sessions::couchbase::Link;
use sessions::{Batch, Output, Peer, Port, Session};

/// Executing threads: up to half of them for clients, the others for what takes long.
const THREADS: usize = 16;
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
    pub cx: NodeContext,
    pub node: Arc<Node>,
    unread: Vec<u8>,
    /// The thread for requests that take long.
    aside: NodeContext,
    /// Requests that were executed there.
    pub aside_requests: usize,
}

impl Client {
    /// A client on a memcached port without a login.
    pub fn memcached() -> Self {
        Self::new(Port::Memcached, false)
    }

    /// A client on a memcached port that requires a login.
    pub fn memcached_with_login() -> Self {
        Self::new(Port::Memcached, true)
    }

    /// A client on a Couchbase port, just connected. The development user may log in.
    pub fn couchbase() -> Self {
        Self::new(Port::Couchbase, true)
    }

    /// A client on a port of this kind, with a bucket of these settings. A memcached port requires no login.
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
        let settings =
            NodeSettings { threads: THREADS, shutdown_command: false, version: "test".into(), seed: 7 };
        let limits = Limits::default();
        let node = Node::new(settings, limits.clone());
        let users = Users::new([1; 32]);
        if login_required {
            users.add_development_user();
        }
        node.set_users(users);
        node.create_bucket("default", bucket).unwrap();
        Self::at(port, login_required, node, 0)
    }

    /// Another client of the same node, on another thread, 1 to 7.
    pub fn beside(&self, thread: usize) -> Self {
        let peer = &self.session.peer;
        let mut beside = Self::at(peer.port, peer.login_required, Arc::clone(&self.node), thread);
        beside.cx.now = self.cx.now;
        beside
    }

    /// A client of a node that has a bucket `default`.
    pub fn of(node: Arc<Node>, port: Port) -> Self {
        node.users().add_development_user();
        Self::at(port, port == Port::Couchbase, node, 0)
    }

    /// A connection from this node to another, of this name, from which it copies.
    pub fn link(node: &Arc<Node>, peer: &str, now: Now) -> Self {
        let bucket = node.bucket("default").unwrap();
        let mut link = Self::at(Port::Couchbase, false, Arc::clone(node), 1);
        link.cx.now = now;
        let cookie = Cookie { thread: 1, connection: 0, ticket: link.cx.ticket() };
        let copier = Copier::begin(&bucket, &peer.into(), cookie, &link.cx).unwrap();
        let peer = Peer::local(Port::Couchbase, Some(bucket), usize::MAX);
        link.session = Session::of_link(peer, &node.limits(), Link::new(copier, None, &link.cx));
        link
    }

    fn at(port: Port, login_required: bool, node: Arc<Node>, thread: usize) -> Self {
        let (bucket, limits) = (node.bucket("default").unwrap(), node.limits());
        let is_memcached = port == Port::Memcached;
        let value_limit = if is_memcached { limits.memcached_item_bytes } else { limits.kv_value_bytes };
        let peer = Peer { login_required, ..Peer::local(port, is_memcached.then_some(bucket), value_limit) };
        let mut cx = NodeContext::new(Arc::clone(&node), thread);
        cx.keeps_alarms = true;
        cx.now = Now { unix_s: START_S, unix_ns: u64::from(START_S) * 1_000_000_000, mono_us: 0 };
        let mut aside = NodeContext::new(Arc::clone(&node), node.settings().threads - 1 - thread);
        (cx.may_take_long, aside.keeps_alarms, aside.home) = (false, true, thread);
        let session = Session::new(peer, &limits);
        Self { session, cx, node, unread: Vec::new(), aside, aside_requests: 0 }
    }

    /// HELLO with these features, login as the development user, SELECT_BUCKET of `default`.
    pub fn open_bucket(&mut self, features: &[u16]) {
        let features: Vec<u8> = features.iter().flat_map(|feature| feature.to_be_bytes()).collect();
        assert_eq!(self.ask(frame(0x1f).value(&features)).status, 0);
        assert_eq!(self.ask(frame(0x21).key(b"PLAIN").value(b"\0Administrator\0password")).status, 0);
        assert_eq!(self.ask(frame(0x89).key(b"default")).status, 0);
    }

    /// Lets time pass.
    pub fn pass_s(&mut self, seconds: u32) {
        let now = &mut self.cx.now;
        now.unix_s += seconds;
        now.unix_ns += u64::from(seconds) * 1_000_000_000;
        now.mono_us += u64::from(seconds) * 1_000_000;
    }

    /// Lets time pass and returns the resulting answers.
    pub fn pass_ms(&mut self, ms: u64) -> Vec<Answer> {
        let now = &mut self.cx.now;
        now.mono_us += ms * 1000;
        now.unix_ns += ms * 1_000_000;
        now.unix_s = u32::try_from(now.unix_ns / 1_000_000_000).unwrap();
        self.cx.ring_alarms();
        self.letters()
    }

    /// Reads the letters that have arrived and returns the resulting answers.
    pub fn letters(&mut self) -> Vec<Answer> {
        decoded(&self.letters_raw())
    }

    /// As above, for any protocol.
    pub fn letters_raw(&mut self) -> Vec<u8> {
        let (mut letters, mut answers) = (Vec::new(), Vec::new());
        loop {
            self.cx.take_letters(true, &mut letters);
            if letters.is_empty() {
                return answers;
            }
            let mut out = Output::default();
            for (cookie, outcome) in letters.drain(..) {
                if self.session.note_news(cookie.ticket) {
                    continue;
                }
                self.session.complete(cookie.ticket, outcome, &mut self.cx, &mut out);
            }
            self.run_aside(&mut out);
            answers.extend(bytes_of(out));
            answers.extend(self.send_raw(&[]));
        }
    }

    /// Returns what the session sends unasked: messages of streams, or what a connection to another node asks for.
    pub fn messages(&mut self) -> Vec<u8> {
        let mut messages = self.letters_raw();
        while self.session.has_to_send() {
            let mut out = Output::default();
            self.session.produce(usize::MAX, &mut self.cx, &mut out);
            messages.extend(bytes_of(out));
            self.session.take_complaint();
        }
        self.cx.end_batch();
        messages
    }

    /// Executes the requests that take long on the thread for them, as a server does.
    pub fn run_aside(&mut self, out: &mut Output) {
        while self.session.wants_aside() {
            let mut session = self.session.leave();
            assert!(self.session.is_stalled() && self.session.has_waits());
            self.aside.now = self.cx.now;
            self.aside.skip_tickets(self.cx.last_ticket());
            let mut answers = Output::default();
            session.execute_aside(&mut self.aside, &mut answers);
            self.aside.end_batch();
            self.cx.skip_tickets(self.aside.last_ticket());
            self.cx.add_alarms(self.aside.take_alarms());
            out.append(answers);
            self.session.come_back(session, &mut self.cx, out);
            self.aside_requests += 1;
        }
    }

    /// Splits bytes into requests, which are not executed.
    pub fn parse<'a>(&mut self, bytes: &'a [u8], batch: &mut Batch<'a>) {
        self.session.parse(bytes, 0, usize::MAX, &mut self.cx, batch);
    }

    pub fn is_closed(&self) -> bool {
        self.session.peer.close
    }

    /// Sends one request and returns its one answer.
    pub fn ask(&mut self, frame: Frame) -> Answer {
        let mut answers = self.send(&frame.bytes());
        assert_eq!(answers.len(), 1, "answers to opcode {:#x}", frame.opcode);
        answers.remove(0)
    }

    /// Sends requests in one piece and returns the answers.
    pub fn ask_all(&mut self, frames: &[Frame]) -> Vec<Answer> {
        self.send(&frames.iter().flat_map(Frame::bytes).collect::<Vec<_>>())
    }

    /// Sends bytes and returns the answers.
    pub fn send(&mut self, bytes: &[u8]) -> Vec<Answer> {
        decoded(&self.send_raw(bytes))
    }

    /// As above, for any protocol.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.unread.extend(bytes);
        let input = std::mem::take(&mut self.unread);
        let (mut at, mut answers) = (0, Vec::new());
        loop {
            let mut batch = Batch::new();
            let progress = self.session.parse(&input[at..], 0, usize::MAX, &mut self.cx, &mut batch);
            let mut out = Output::default();
            for index in 0..batch.len() {
                if self.is_closed() {
                    break;
                }
                self.session.execute(batch.get(index).unwrap(), &mut self.cx, &mut out);
            }
            self.run_aside(&mut out);
            answers.extend(bytes_of(out));
            at += progress.consumed;
            if progress.need.is_some() || self.is_closed() {
                break;
            }
        }
        self.unread = input[at..].to_vec();
        self.cx.end_batch();
        answers
    }
}

/// The output as bytes.
pub fn bytes_of(mut out: Output) -> Vec<u8> {
    let (plain, pinned) = out.take();
    let (mut bytes, mut from) = (Vec::new(), 0);
    for (position, value) in pinned {
        bytes.extend(&plain[from..position]);
        bytes.extend(&value[..]);
        from = position;
    }
    bytes.extend(&plain[from..]);
    bytes
}

fn decoded(mut bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        answers.push(Answer::take(&mut bytes));
    }
    answers
}
