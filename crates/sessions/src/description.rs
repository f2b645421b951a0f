//! What a request is, for the record of slow and large requests and of latencies ([`kv::requests`]).
//!
//! A worker that records describes a request before it is executed, which takes its large value. Afterwards it asks
//! whether the request waits: its ticket is then newer than all before.

use kv::NodeContext;
use kv::requests::{Class, Noted};
use wire::text::KEY_MAX;

use super::request::Request;
use super::waits::LastSlot;
use super::{Output, Peer, Port, Queued, Session, Work, binary, couchbase, text};

impl Session {
    /// Describes a request: what it does, on which document, and its size. Returns false if no client has sent it: it
    /// is the next slice of a list, or lines about events.
    pub fn describe(&self, queued: &Queued<'_>, into: &mut Noted) -> bool {
        into.key.clear();
        (into.collection, into.class, into.operation) = (0, Class::Other, "unknown");
        into.bucket = self.peer.bucket.as_ref().map(|bucket| bucket.slot());
        match &queued.work {
            Work::Request(request, _, bytes) | Work::Refused(request, _, bytes) => {
                self.describe_request(request, into);
                into.request_bytes = bytes.len().max(into.key.len()) as u64;
            }
            Work::Filled(Some(filling)) => {
                if let Some((request, _)) = self.parse_again(&filling.head) {
                    self.describe_request(&request, into);
                }
                into.request_bytes = filling.bytes() as u64;
            }
            Work::Malformed(_) => {
                (into.class, into.operation, into.request_bytes) = (Class::Other, "malformed", 0);
            }
            Work::Filled(None) | Work::Dump(_) | Work::Watch => return false,
        }
        true
    }

    fn describe_request(&self, request: &Request<'_>, into: &mut Noted) {
        (into.class, into.operation) = request.class_and_operation(&self.peer);
        if let Some(key) = request.document_key(&self.peer, &mut [0; KEY_MAX]) {
            into.collection = key.collection;
            let most = key.bytes.len().min(into.key.capacity());
            into.key.extend(key.bytes[..most].iter().copied());
        }
    }

    /// As [`Session::execute`]. A function of its own, so that the other stays inlined where nothing is recorded.
    #[inline(never)]
    pub fn execute_described(&mut self, queued: &mut Queued<'_>, cx: &mut NodeContext, out: &mut Output) {
        self.execute(queued, cx, out);
    }

    /// Notes whose request it is.
    pub fn sign(&self, noted: &mut Noted) {
        noted.client = self.peer.client.as_ref().and_then(|client| client.address());
        noted.user = self.peer.user.clone();
    }

    /// What waits last: for its outcome, its value, another request, or to be sent in order.
    pub fn last_waiting(&self) -> Option<LastSlot> {
        self.peer.waits.as_ref()?.last()
    }

    /// Returns true if a request that was executed when `before` was the last that waited waits now, at the end.
    pub fn waits_since(&self, before: Option<LastSlot>, now: LastSlot) -> bool {
        // In order nothing is sent before what waits.
        !self.peer.is_unordered() || before.is_none_or(|before| before.ticket < now.ticket)
    }

    /// Returns true if what has this ticket still waits.
    pub fn has_waiting(&self, ticket: u64) -> bool {
        self.peer.waits.as_ref().is_some_and(|waits| waits.has(ticket))
    }
}

impl Request<'_> {
    fn class_and_operation(&self, peer: &Peer) -> (Class, &'static str) {
        match self {
            Self::Text(command) => text::class_and_operation(command),
            Self::Binary(request) => {
                let is_durable = peer.port == Port::Couchbase && couchbase::is_durable(peer, request);
                let class = if is_durable { Class::Durable } else { binary::class(peer, request) };
                (class, request.header.opcode.name().unwrap_or("unknown"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kv::{BucketSettings, Limits, Node, NodeSettings};

    use super::super::Batch;
    use super::*;

    fn session(port: Port) -> (Session, NodeContext) {
        let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed: 7 };
        let node = Node::new(settings, Limits::default());
        let settings = BucketSettings { memory_bytes: 64 << 20, vbuckets: 1, ..BucketSettings::default() };
        let bucket = node.create_bucket("default", settings).unwrap();
        let peer = Peer { user: Some("eve".into()), ..Peer::local(port, Some(Arc::clone(&bucket)), 1 << 20) };
        (Session::new(peer, &node.limits()), NodeContext::new(node, 0))
    }

    /// The class, operation and key of each request of the input, and its bytes.
    fn described(port: Port, input: &[u8]) -> Vec<(Class, &'static str, String, u64)> {
        let (mut session, mut cx) = session(port);
        let (mut batch, mut all) = (Batch::new(), Vec::new());
        session.parse(input, 0, usize::MAX, &mut cx, &mut batch);
        // What was described before leaves no trace.
        let mut noted = Noted::default();
        for index in 0..batch.len() {
            let queued = batch.get(index).unwrap();
            assert!(session.describe(queued, &mut noted));
            session.execute(queued, &mut cx, &mut Output::default());
            let key = String::from_utf8(noted.key.to_vec()).unwrap();
            all.push((noted.class, noted.operation, key, noted.request_bytes));
        }
        session.sign(&mut noted);
        assert_eq!((noted.user.as_deref(), noted.bucket, noted.client), (Some("eve"), Some(0), None));
        all
    }

    #[test]
    fn text_commands_have_their_names() {
        let input = b"get a bc\r\nset k 0 0 2\r\nxy\r\ndelete k\r\ngats 5 k\r\nincr n 1\r\ntouch k 9\r\n\
                      mg YWJj b\r\nms k 1\r\nx\r\nmn\r\nversion\r\nnonsense\r\n";
        let of = |class, name, key: &str, bytes| (class, name, key.to_owned(), bytes);
        let expected = [
            of(Class::Read, "get", "a", 1),
            of(Class::Read, "get", "bc", 2),
            of(Class::Write, "set", "k", 17),
            of(Class::Delete, "delete", "k", 10),
            of(Class::Read, "gats", "k", 1),
            of(Class::Counter, "incr", "n", 10),
            of(Class::Write, "touch", "k", 11),
            of(Class::Read, "mg", "abc", 11),
            of(Class::Write, "ms", "k", 11),
            of(Class::Other, "mn", "", 4),
            of(Class::Other, "version", "", 9),
            of(Class::Other, "malformed", "", 0),
        ];
        assert_eq!(described(Port::Memcached, input), expected);
    }

    /// A frame with the flexible magic: framing extras, extras, key, value.
    fn frame(opcode: u8, framing: &[u8], extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
        let body = framing.len() + extras.len() + key.len() + value.len();
        let mut frame = vec![0x08, opcode, framing.len() as u8, key.len() as u8, extras.len() as u8, 0, 0, 0];
        frame.extend((body as u32).to_be_bytes());
        frame.extend([0; 12]);
        [&frame, framing, extras, key, value].concat()
    }

    #[test]
    fn binary_requests_have_their_opcodes_names() {
        let majority = [0x11, 0x01];
        let input = [
            frame(0x00, &[], &[], b"k", b""),
            frame(0x01, &[], &[0; 8], b"k", b"v"),
            frame(0x01, &majority, &[0; 8], b"k", b"v"),
            frame(0x04, &majority, &[], b"k", b""),
            frame(0x04, &[], &[], b"k", b""),
            frame(0x05, &[], &[0; 20], b"n", b""),
            frame(0xc5, &[], &[0, 1, 0], b"k", b"p"),
            frame(0x0a, &[], &[], b"", b""),
            frame(0xff, &[], &[], b"k", b""),
        ]
        .concat();
        let found = described(Port::Couchbase, &input);
        let expected = [
            (Class::Read, "GET", "k"),
            (Class::Write, "SET", "k"),
            (Class::Durable, "SET", "k"),
            (Class::Durable, "DELETE", "k"),
            (Class::Delete, "DELETE", "k"),
            (Class::Counter, "INCREMENT", "n"),
            (Class::Subdocument, "SUBDOC_GET", "k"),
            (Class::Other, "NOOP", ""),
            (Class::Other, "unknown", ""),
        ];
        let found: Vec<_> = found.iter().map(|(class, name, key, _)| (*class, *name, key.as_str())).collect();
        assert_eq!(found, expected);
    }
}
