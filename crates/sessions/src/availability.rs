//! Documents that are unavailable: the value is on disk only, the vBucket is not read in yet, or, on memcached ports,
//! not active. (A Couchbase port answers NOT_MY_VBUCKET then.)
//!
//! Checked before a request is executed, and only while its bucket says that there is anything of the kind. A value
//! that is wanted is fetched while the request is parked ([`super::waits`]); everything else is an answer.

use std::sync::Arc;

use kv::{Bucket, Key, KvError, NodeContext, Outcome, Place, Unavailable};
use wire::text::KEY_MAX;

use super::behind::own;
use super::request::Request;
use super::{Port, Queued, Session, Work};
use crate::Output;

/// The document a request is about: its key, its place, whether its value is wanted.
struct Wanted {
    key: Box<[u8]>,
    place: Place,
    value: bool,
}

impl Session {
    /// Whether a request's document may be unavailable: then ask [`Session::park_or_fail`].
    #[inline]
    pub(super) fn may_be_unavailable(&self) -> bool {
        let peer = &self.peer;
        peer.bucket.as_ref().is_some_and(|bucket| {
            bucket.may_be_unavailable() || peer.port == Port::Memcached && !bucket.serves_all()
        })
    }

    /// Parks a request whose value is to be fetched, or answers one whose document is unavailable otherwise. Returns
    /// whether it did.
    #[cold]
    pub(super) fn park_or_fail(
        &mut self,
        queued: &mut Queued<'_>,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> bool {
        let peer = &self.peer;
        if peer.close || peer.must_log_in() {
            return false;
        }
        cx.connection = peer.client.as_ref().map_or(0, |client| client.number());
        let Some(bucket) = peer.bucket.clone().filter(|bucket| !bucket.is_gone()) else { return false };
        let Some(wanted) = self.wanted(&queued.work, &bucket) else { return false };
        let key = Key::plain(&wanted.key);
        if !bucket.serves(wanted.place.vb.0) {
            self.fail(queued, KvError::NotActive, cx, out);
            return true;
        }
        match bucket.check_available(cx, key, wanted.place, wanted.value) {
            Ok(()) => false,
            Err(Unavailable::NotResident) => self.park(queued, &bucket, key, wanted.place, cx),
            Err(why) => {
                self.fail(queued, why.into(), cx, out);
                true
            }
        }
    }

    /// Keeps a copy of the request until its value is back. `false`: it is back already.
    fn park(
        &mut self,
        queued: &mut Queued<'_>,
        bucket: &Arc<Bucket>,
        key: Key<'_>,
        place: Place,
        cx: &mut NodeContext,
    ) -> bool {
        let (cookie, touch) = (self.peer.cookie(cx), self.touch(queued));
        let node = Arc::clone(&cx.node);
        let done = Box::new(move |result| node.post(cookie, Outcome::Fetched(result)));
        let Some(value_bytes) = kv::persistence::fetch(bucket, cx, key, place, done) else { return false };
        // The letter may be on its way already; this thread looks at it later.
        let Some(request) = own(&mut queued.work) else { return false };
        self.peer.waits.get_or_insert_default().park(cookie.ticket, touch, request, value_bytes);
        true
    }

    /// Answers a request that could not be executed.
    pub(super) fn fail(
        &mut self,
        queued: &mut Queued<'_>,
        error: KvError,
        cx: &mut NodeContext,
        out: &mut Output,
    ) {
        let peer = &mut self.peer;
        match &mut queued.work {
            Work::Request(request, ..) => request.fail(peer, error, cx, out),
            Work::Filled(filling) => {
                let Some(filling) = filling.take() else { return };
                if let Some((request, _)) = self.parse_again(&filling.head) {
                    request.fail(&mut self.peer, error, cx, out);
                }
            }
            Work::Refused(..) | Work::Malformed(_) | Work::Dump(_) | Work::Watch => {}
        }
    }

    fn wanted(&self, work: &Work<'_>, bucket: &Bucket) -> Option<Wanted> {
        let peer = &self.peer;
        let of = |request: &Request<'_>| {
            let mut buffer = [0; KEY_MAX];
            let key = request.document_key(peer, &mut buffer)?;
            let place = request.place(peer, bucket, key)?;
            // A Couchbase port answers NOT_MY_VBUCKET then.
            let is_here = peer.port == Port::Memcached || bucket.serves(place.vb.0);
            is_here.then(|| Wanted { key: key.bytes.into(), place, value: request.needs_value() })
        };
        match work {
            Work::Request(request, ..) => of(request),
            Work::Filled(Some(filling)) if filling.is_refused() => None,
            Work::Filled(Some(filling)) => of(&self.parse_again(&filling.head)?.0),
            // What is refused removes the old value at most, and that without looking at it.
            Work::Filled(None) | Work::Refused(..) => None,
            Work::Dump(_) | Work::Watch | Work::Malformed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use journal::log::Buffer;
    use journal::{AnyDisk, SimulatedDisk};

    use super::super::{Batch, Peer};
    use super::*;
    use kv::persistence::{FETCHERS, FLUSHERS, Fetcher, Flusher, load_next};
    use kv::{BucketSettings, Limits, Node, NodeSettings, Now};

    const MEMORY_BYTES: u64 = 64 << 20;

    /// A session of a memcached port, before a persistent bucket whose threads have their turn when the test says so.
    struct World {
        session: Session,
        cx: NodeContext,
        others: NodeContext,
        bucket: Arc<Bucket>,
    }

    impl World {
        fn new() -> Self {
            let settings =
                NodeSettings { threads: 2, shutdown_command: false, version: "test".into(), seed: 7 };
            let node = Node::new(settings, Limits::default());
            let settings =
                BucketSettings { memory_bytes: MEMORY_BYTES, vbuckets: 1, ..BucketSettings::default() };
            let disk = AnyDisk::Simulated(SimulatedDisk::new());
            node.open_bucket("default", settings, disk, Path::new("/b")).unwrap();
            let bucket = node.bucket("default").unwrap();
            let peer = Peer {
                port: Port::Memcached,
                login_required: false,
                user: None,
                loopback: true,
                address: None,
                bucket: Some(Arc::clone(&bucket)),
                value_limit: 1 << 20,
                close: false,
                connection: 0,
                waits: None,
                rules: Default::default(),
                client: None,
                couchbase: Default::default(),
            };
            let session = Session::new(peer, &node.limits());
            let (mut cx, mut others) = (NodeContext::new(Arc::clone(&node), 0), NodeContext::new(node, 1));
            let now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_us: 0 };
            (cx.now, others.now) = (now, now);
            while load_next(&mut others, &mut Buffer::new(1 << 20)) {}
            Self { session, cx, others, bucket }
        }

        fn send(&mut self, input: &str) -> String {
            let mut batch = Batch::new();
            let progress = self.session.parse(input.as_bytes(), 0, usize::MAX, &mut self.cx, &mut batch);
            assert_eq!(progress.consumed, input.len());
            let mut out = Output::default();
            for index in 0..batch.len() {
                self.session.execute(batch.get(index).unwrap(), &mut self.cx, &mut out);
            }
            self.cx.end_batch();
            String::from_utf8(out.take().0).unwrap()
        }

        /// Every value goes to disk and leaves memory; and nobody is told to look for that.
        fn eject_unnoticed(&mut self) {
            for index in 0..FLUSHERS {
                let now = self.others.now;
                Flusher::new(index, 1 << 20).turn(&mut self.others, &mut || now);
            }
            self.bucket.set_budget(1);
            for _ in 0..4 {
                kv::pager::turn(&mut self.others);
            }
            self.bucket.set_budget(MEMORY_BYTES);
            assert!(self.bucket.persistence_figures(&mut self.cx).unwrap().ejected_items > 0);
            self.bucket.overlook_ejected();
            // The next time there is something to be found again.
            for now in [&mut self.cx.now, &mut self.others.now] {
                now.unix_s += 1;
                now.unix_ns += 1_000_000_000;
                now.mono_us += 1_000_000;
            }
        }

        /// What is answered once the values are back.
        fn fetched(&mut self) -> String {
            for index in 0..FETCHERS {
                let now = self.others.now;
                Fetcher::new(index).turn(&mut self.others, &mut || now);
            }
            let (mut letters, mut answers) = (Vec::new(), Vec::new());
            self.cx.take_letters(true, &mut letters);
            while !letters.is_empty() {
                let mut out = Output::default();
                for (cookie, outcome) in letters.drain(..) {
                    self.session.complete(cookie.ticket, outcome, &mut self.cx, &mut out);
                }
                answers.extend(out.take().0);
                self.cx.take_letters(true, &mut letters);
            }
            String::from_utf8(answers).unwrap()
        }
    }

    /// Between the check and the execution a value may leave memory, and whoever takes the word back that requests have
    /// to check may be late: no client can tell.
    #[test]
    fn a_value_that_left_memory_behind_the_check_is_waited_for() {
        let mut world = World::new();
        // Long enough that it is worth while to eject it, and a number all the same.
        let number = format!("{:<64}", 100);
        let set = format!("set k 0 0 64\r\n{number}\r\n");
        for (request, answer) in [
            ("get k\r\n", "VALUE k 0 64\r\n{}\r\nEND\r\n"),
            ("get other k other\r\n", "VALUE k 0 64\r\n{}\r\nEND\r\n"),
            ("gat 100 k\r\n", "VALUE k 0 64\r\n{}\r\nEND\r\n"),
            ("touch k 100\r\n", "TOUCHED\r\n"),
            ("append k 0 0 1\r\n0\r\nget k\r\n", "STORED\r\nVALUE k 0 65\r\n{}0\r\nEND\r\n"),
            ("prepend k 0 0 1\r\n1\r\nget k\r\n", "STORED\r\nVALUE k 0 65\r\n1{}\r\nEND\r\n"),
            ("incr k 1\r\n", "101\r\n"),
            ("mg k v\r\n", "VA 64\r\n{}\r\n"),
            ("mg k s\r\n", "HD s64\r\n"),
            ("mg k R4000000 s\r\n", "HD s64\r\n"),
            ("mg k T100 v\r\n", "VA 64\r\n{}\r\n"),
            ("ma k v\r\n", "VA 3\r\n101\r\n"),
            ("ms k 1 MA\r\n0\r\n", "HD\r\n"),
            ("md k I\r\nmg k\r\n", "HD\r\nHD X W\r\n"),
        ] {
            assert_eq!(world.send(&set), "STORED\r\n");
            world.eject_unnoticed();
            let at_once = world.send(request);
            assert_eq!(at_once, "", "{request:?}");
            assert_eq!(world.fetched(), answer.replace("{}", &number), "{request:?}");
            assert!(!world.session.peer.close, "{request:?}");
        }
    }

    /// A set needs no value: it does not wait for the one it replaces.
    #[test]
    fn what_wants_no_value_is_executed_at_once() {
        let mut world = World::new();
        for (request, answer) in [
            ("set k 0 0 1\r\nx\r\n", "STORED\r\n"),
            ("add k 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
            ("delete k\r\n", "DELETED\r\n"),
        ] {
            assert_eq!(world.send(&format!("set k 0 0 64\r\n{:<64}\r\n", 100)), "STORED\r\n");
            world.eject_unnoticed();
            assert_eq!(world.send(request), answer);
        }
    }
}
