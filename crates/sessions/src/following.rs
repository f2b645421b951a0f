//! A session that follows: it is sent messages about what changes in its bucket, besides its answers.

use kv::NodeContext;
use wire::dcp::Filter;

use super::couchbase::may_follow;
use super::{Output, Session};

impl Session {
    /// Returns true if it is open for streams.
    #[inline]
    pub fn follows(&self) -> bool {
        self.peer.couchbase.producer.is_some()
    }

    /// Takes note of news, if this is the ticket of the letters about them. Returns true if it was.
    pub fn note_news(&mut self, ticket: u64) -> bool {
        let producer = self.peer.couchbase.producer.as_mut().filter(|producer| producer.ticket() == ticket);
        let Some(producer) = producer else { return false };
        producer.look_for_news();
        self.peer.close |= producer.is_replaced();
        true
    }

    /// Returns true if there are messages for it, and it has room for them.
    #[inline]
    pub fn has_to_send(&self) -> bool {
        self.follows() && self.has_messages()
    }

    #[cold]
    fn has_messages(&self) -> bool {
        // The answer to a request for a stream comes before the stream.
        !self.peer.close
            && self.peer.waits.is_none()
            && self.peer.couchbase.producer.as_ref().is_some_and(|producer| producer.has_to_send())
    }

    /// Appends messages, up to about `most` bytes.
    #[cold]
    pub fn produce(&mut self, most: usize, cx: &mut NodeContext, out: &mut Output) {
        let Some(mut producer) = self.peer.couchbase.producer.take() else { return };
        if !self.peer.close {
            self.peer.update_access(cx);
            if let Some(bucket) = &self.peer.bucket {
                let may_follow = |filter: &Filter| may_follow(&self.peer, bucket, filter);
                producer.end_denied(cx.node.users().generation(), may_follow);
            }
            producer.produce(most, cx, out);
        }
        self.peer.couchbase.producer = Some(producer);
    }

    /// When it is to be sent a NOOP, or has failed to answer one, by the monotonic clock.
    pub fn noop_due_ms(&self) -> Option<u64> {
        self.peer.couchbase.producer.as_ref()?.noop_due_ms()
    }

    /// Appends the NOOP that is due. Returns false if the last one was not answered.
    pub fn send_noop(&mut self, now_ms: u64, out: &mut Output) -> bool {
        self.peer.couchbase.producer.as_mut().is_some_and(|producer| producer.send_noop(now_ms, out))
    }

    pub(super) fn note_noop_answer(&mut self, now_ms: u64) {
        if let Some(producer) = &mut self.peer.couchbase.producer {
            producer.noop_answered(now_ms);
        }
    }
}
