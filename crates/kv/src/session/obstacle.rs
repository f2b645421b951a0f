//! What stands in the way of a request: a value that is on disk only, a vBucket that is not read in yet, and on memcached
//! ports one that is not active. (A Couchbase port tells of that with NOT_MY_VBUCKET.)
//!
//! Asked before the request is executed, and only while its bucket says that there is anything of the kind. A value that is
//! wanted is fetched while the request is parked ([`super::waits`]); everything else is an answer.

use std::sync::Arc;

use wire::{binary as wire_binary, text as wire_text};

use super::behind::own;
use super::{Head, Queued, Session, Work, binary, text};
use crate::session::Output;
use crate::{Bucket, Cx, Key, KvError, Outcome, Place, VbId};

/// The document a request is about: its key, its place, whether its value is wanted.
struct Wanted {
    key: Box<[u8]>,
    place: Place,
    value: bool,
}

impl Session {
    /// Whether something may be in the way of a request: then ask [`Session::meet_obstacle`].
    #[inline]
    pub(super) fn may_meet_obstacle(&self) -> bool {
        let peer = &self.peer;
        peer.bucket.as_ref().is_some_and(|bucket| {
            bucket.has_obstacles() || peer.port == super::Port::Memcached && !bucket.serves_all()
        })
    }

    /// Whether something is in the way of the request, which is then parked or answered.
    #[cold]
    pub(super) fn meet_obstacle(&mut self, queued: &mut Queued<'_>, cx: &mut Cx, out: &mut Output) -> bool {
        let peer = &self.peer;
        if peer.close || peer.must_log_in() {
            return false;
        }
        let Some(bucket) = peer.bucket.clone().filter(|bucket| !bucket.is_gone()) else { return false };
        let Some(wanted) = self.wanted(&queued.work, &bucket) else { return false };
        let key = Key::plain(&wanted.key);
        if !bucket.serves(wanted.place.vb.0) {
            self.fail(queued, KvError::NotActive, cx, out);
            return true;
        }
        match bucket.obstacle(cx, key, wanted.place, wanted.value) {
            None => false,
            Some(KvError::NotResident) => self.park(queued, &bucket, key, wanted.place, cx),
            Some(error) => {
                self.fail(queued, error, cx, out);
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
        cx: &mut Cx,
    ) -> bool {
        let (cookie, touch) = (self.peer.cookie(cx), self.touch(queued));
        let node = Arc::clone(&cx.node);
        let done = Box::new(move |result| node.post(cookie, Outcome::Fetched(result)));
        let Some(value_bytes) = bucket.fetch(cx, key, place, done) else { return false };
        // The letter may be on its way already; this thread looks at it later.
        let Some(request) = own(&mut queued.work) else { return false };
        self.peer.waits.get_or_insert_default().park(cookie.ticket, touch, request, value_bytes);
        true
    }

    /// Answers a request that could not be executed.
    pub(super) fn fail(&mut self, queued: &mut Queued<'_>, error: KvError, cx: &mut Cx, out: &mut Output) {
        match &mut queued.work {
            Work::Binary(request, _) => binary::fail(&self.peer, request, error, cx, out),
            Work::Text(command, ..) => text::fail(&mut self.peer, command, error, out),
            Work::Filled(filling) => {
                let Some(filling) = filling.take() else { return };
                match self.parse_filled(&filling.head) {
                    Some(Head::Binary(request)) => binary::fail(&self.peer, &request, error, cx, out),
                    Some(Head::Text(command)) => text::fail(&mut self.peer, &command, error, out),
                    None => {}
                }
            }
            Work::BinaryRefused(..) | Work::BinaryError(_) | Work::TextRefused(..) | Work::TextError(_) => {}
        }
    }

    fn wanted(&self, work: &Work<'_>, bucket: &Bucket) -> Option<Wanted> {
        let of_binary = |request: &wire_binary::Request<'_>| {
            let key = binary::key(&self.peer, request)?;
            let vb = VbId(request.header.vbucket);
            let place = match self.peer.port {
                super::Port::Couchbase if !bucket.serves(vb.0) => return None,
                super::Port::Couchbase => bucket.locate_in(key, vb),
                super::Port::Memcached => bucket.locate(key),
            };
            Some(Wanted { key: key.bytes.into(), place, value: binary::wants_value(request.header.opcode) })
        };
        let of_text = |command: &wire_text::Command<'_>| {
            let mut buffer = [0; wire_text::KEY_MAX];
            let key = text::document(command, &mut buffer)?;
            Some(Wanted {
                key: key.bytes.into(),
                place: bucket.locate(key),
                value: text::wants_value(command),
            })
        };
        match work {
            Work::Binary(request, _) => of_binary(request),
            Work::Text(command, ..) => of_text(command),
            Work::Filled(Some(filling)) if filling.is_refused() => None,
            Work::Filled(Some(filling)) => match self.parse_filled(&filling.head)? {
                Head::Binary(request) => of_binary(&request),
                Head::Text(command) => of_text(&command),
            },
            // What is refused removes the old value at most, and that without looking at it.
            Work::Filled(None) | Work::BinaryRefused(..) | Work::TextRefused(..) => None,
            Work::BinaryError(_) | Work::TextError(_) => None,
        }
    }
}
