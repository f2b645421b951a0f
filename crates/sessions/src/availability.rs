//! Documents that are unavailable: the value is only on disk, the vBucket is not loaded yet, or, on memcached ports,
//! not active. (A Couchbase port answers NOT_MY_VBUCKET in that case.)
//!
//! Checked before a request is executed, and only while its bucket reports that it has such documents. If the value is
//! needed, it is fetched while the request is parked ([`super::waits`]); in all other cases the request is answered.

use std::sync::Arc;

use kv::{Bucket, Key, KvError, NodeContext, Outcome, Place, Unavailable};
use wire::text::KEY_MAX;

use super::deferral::own;
use super::request::Request;
use super::{Port, Queued, Session, Work};
use crate::Output;

/// The document of a request: its key, its place, and whether its value is needed.
struct Wanted {
    key: Box<[u8]>,
    collection: u32,
    place: Place,
    value: bool,
    /// It is a replica's.
    of_copy: bool,
}

impl Session {
    /// Returns true if a request's document may be unavailable; then call [`Session::park_or_fail`].
    #[inline]
    pub(super) fn may_be_unavailable(&self) -> bool {
        let peer = &self.peer;
        peer.bucket.as_ref().is_some_and(|bucket| {
            bucket.may_be_unavailable() || peer.port == Port::Memcached && !bucket.serves_all()
        })
    }

    /// Parks a request whose value must be fetched, or answers one whose document is otherwise unavailable. Returns
    /// true if it did either.
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
        let key = Key { collection: wanted.collection, bytes: &wanted.key };
        if !wanted.of_copy && !bucket.serves(wanted.place.vb.0) {
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

    /// Keeps a copy of the request until its value is in memory. Returns false if it already is.
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
        // The letter may already be on its way; this thread reads it later.
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
            if let Some((collection, key, vb)) = request.scanned_key(peer) {
                let place = bucket.locate_in(Key { collection, bytes: &key }, vb);
                return Some(Wanted { key, collection, place, value: true, of_copy: false });
            }
            let mut buffer = [0; KEY_MAX];
            let key = request.document_key(peer, &mut buffer)?;
            let place = request.place(peer, bucket, key)?;
            // Otherwise a Couchbase port answers NOT_MY_VBUCKET.
            let of_copy = request.reads_replica(peer);
            let is_here = match of_copy {
                true => bucket.serves_copy(place.vb.0),
                false => peer.port == Port::Memcached || bucket.serves(place.vb.0),
            };
            let (Key { collection, bytes }, value) = (key, request.needs_value());
            is_here.then(|| Wanted { key: bytes.into(), collection, place, value, of_copy })
        };
        match work {
            Work::Request(request, ..) => of(request),
            Work::Filled(Some(filling)) if filling.is_refused() => None,
            Work::Filled(Some(filling)) => of(&self.parse_again(&filling.head)?.0),
            // A refused request at most removes the old value, and does not need to read it.
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

    /// A session on a memcached port with a persistent bucket whose threads run when the test says so.
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
            let peer = Peer::local(Port::Memcached, Some(Arc::clone(&bucket)), 1 << 20);
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

        /// Flushes and ejects every value, without notifying requests that they must check for ejected values.
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
            // At the next tick there are ejected values to find again.
            for now in [&mut self.cx.now, &mut self.others.now] {
                now.unix_s += 1;
                now.unix_ns += 1_000_000_000;
                now.mono_us += 1_000_000;
            }
        }

        /// The answers once the values are in memory again.
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

    /// A value may leave memory between the check and the execution, and the flag that makes requests check may be
    /// late. No client notices.
    #[test]
    fn a_value_that_left_memory_behind_the_check_is_waited_for() {
        let mut world = World::new();
        // Long enough to be worth ejecting, yet still a number.
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
