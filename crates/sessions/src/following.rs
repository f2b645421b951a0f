//! A session that follows: it is sent messages about what changes in its bucket, besides its answers. And one of a
//! connection that this node has made, which is sent requests, and sends messages.

use kv::NodeContext;
use wire::dcp::Filter;

use super::couchbase::{Link, may_follow, tell_of_map};
use super::{Output, Peer, Progress, Session};

impl Session {
    /// The session of a connection to another node, from which it copies.
    pub fn of_link(mut peer: Peer, limits: &kv::Limits, link: Link) -> Self {
        peer.couchbase.link = Some(Box::new(link));
        Self::new(peer, limits)
    }

    /// Returns true if it is open for streams, copies, or is told of new cluster maps.
    #[inline]
    pub fn follows(&self) -> bool {
        let couchbase = &self.peer.couchbase;
        couchbase.producer.is_some() || couchbase.link.is_some() || couchbase.map_news.is_some()
    }

    /// Returns true if it is open for streams.
    pub fn is_producer(&self) -> bool {
        self.peer.couchbase.producer.is_some()
    }

    /// Takes what another node has sent.
    #[cold]
    pub(super) fn parse_link(&mut self, input: &[u8], cx: &mut NodeContext) -> Progress {
        if let Some(mut link) = self.peer.couchbase.link.take() {
            link.take(input, cx);
            self.peer.close |= link.failure().is_some();
            self.peer.couchbase.link = Some(link);
        }
        Progress { consumed: input.len(), need: Some(0) }
    }

    /// Notes why the connection has ended, if it is one to another node and was of no use.
    pub fn note_end(&mut self, why: impl FnOnce() -> String) {
        if let Some(link) = &mut self.peer.couchbase.link {
            link.note_end(&why());
        }
    }

    /// Leaves nothing half done, if it is one to another node. The connection ends.
    pub fn close_link(&mut self, cx: &mut NodeContext) {
        if let Some(link) = &mut self.peer.couchbase.link {
            link.close(cx);
        }
    }

    /// Returns the name of the node that it copies from, and why that cannot go on, if it cannot.
    pub fn link_failure(&self) -> Option<(&str, &str)> {
        self.peer.couchbase.link.as_ref()?.failure()
    }

    /// Returns the name of the node that it copies from, and what is to be told to an operator, if there is
    /// something new.
    pub fn take_complaint(&mut self) -> Option<(&str, String)> {
        self.peer.couchbase.link.as_mut()?.take_complaint()
    }

    /// Takes note of news, if this is the ticket of the letters about them. Returns true if it was.
    pub fn note_news(&mut self, ticket: u64) -> bool {
        if let Some(link) = self.peer.couchbase.link.as_mut().filter(|link| link.ticket() == ticket) {
            link.note_news();
            return true;
        }
        if let Some(news) = self.peer.couchbase.map_news.as_mut().filter(|news| news.ticket() == ticket) {
            news.note();
            return true;
        }
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
        let couchbase = &self.peer.couchbase;
        // The answer to a request for a stream comes before the stream.
        let has_messages = || {
            self.peer.waits.is_none()
                && (couchbase.producer.as_ref().is_some_and(|producer| producer.has_to_send())
                    || couchbase.link.as_ref().is_some_and(|link| link.has_to_send()))
        };
        !self.peer.close && (couchbase.map_news.as_ref().is_some_and(|news| news.is_due()) || has_messages())
    }

    /// Appends messages, up to about `most` bytes.
    #[cold]
    pub fn produce(&mut self, most: usize, cx: &mut NodeContext, out: &mut Output) {
        if let Some(link) = self.peer.couchbase.link.as_mut().filter(|_| !self.peer.close) {
            out.bytes(&link.produce(cx));
            self.peer.close |= link.is_over();
        }
        tell_of_map(&mut self.peer, cx, out);
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

    /// When it is to be sent a NOOP, or has failed to answer one, by the monotonic clock; of one that copies: when it
    /// has something to do.
    pub fn noop_due_ms(&self) -> Option<u64> {
        if let Some(link) = &self.peer.couchbase.link {
            return Some(link.due_ms());
        }
        self.peer.couchbase.producer.as_ref()?.noop_due_ms()
    }

    /// Appends the NOOP that is due, or does what else is. Returns false if the peer is silent.
    pub fn send_noop(&mut self, cx: &mut NodeContext, out: &mut Output) -> bool {
        if let Some(mut link) = self.peer.couchbase.link.take() {
            let goes_on = link.turn(cx);
            if goes_on {
                out.bytes(&link.produce(cx));
            }
            self.peer.couchbase.link = Some(link);
            return goes_on;
        }
        let now_ms = cx.now.mono_ms();
        self.peer.couchbase.producer.as_mut().is_some_and(|producer| producer.send_noop(now_ms, out))
    }

    pub(super) fn note_state_answer(&mut self, opaque: u32, cx: &mut NodeContext) {
        if let Some(producer) = &mut self.peer.couchbase.producer {
            producer.state_answered(opaque, cx);
        }
    }

    pub(super) fn note_noop_answer(&mut self, now_ms: u64) {
        if let Some(producer) = &mut self.peer.couchbase.producer {
            producer.noop_answered(now_ms);
        }
    }
}
