//! Executes requests behind answers that wait.
//!
//! See [`super::waits`] for the rules. A session without waiting answers only uses the queries of this module.

use kv::{NodeContext, Outcome};

use super::waits::{Awaited, Owned, Touch};
use super::{Output, Queued, Session, Work};

impl Session {
    /// Returns true if answers wait.
    #[inline]
    pub fn has_waits(&self) -> bool {
        self.peer.waits.is_some()
    }

    /// Returns true if nothing more can be parsed, so nothing should be read, until some of the waiting answers have
    /// arrived.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.peer.waits.is_some() && self.holds_enough()
    }

    #[cold]
    fn holds_enough(&self) -> bool {
        self.peer.waits.as_ref().is_some_and(|waits| waits.is_fenced() || waits.bytes() > self.held_bytes_max)
    }

    /// Bytes of held answers and copied requests, and of a watcher's buffer.
    pub fn held_bytes(&self) -> usize {
        let (producer, link) = (self.peer.couchbase.producer.as_ref(), self.peer.couchbase.link.as_ref());
        self.peer.waits.as_ref().map_or(0, |waits| waits.bytes())
            + self.watch_bytes()
            + producer.map_or(0, |producer| producer.held_bytes())
            + link.map_or(0, |link| link.held_bytes())
    }

    /// Executes a request while earlier answers wait: its answer is held back, or the request is deferred.
    #[cold]
    pub(super) fn execute_or_defer(
        &mut self,
        queued: &mut Queued<'_>,
        cx: &mut NodeContext,
        out: &mut Output,
    ) {
        let touch = self.touch(queued);
        let is_unordered = self.peer.is_unordered();
        let Some(waits) = &mut self.peer.waits else { return };
        if waits.defers(touch)
            && let Some(request) = own(&mut queued.work)
        {
            return waits.defer(cx.ticket(), touch, request);
        }
        if is_unordered {
            return self.execute_or_park(queued, cx, out);
        }
        let (ticket, mut held) = waits.tail(cx.ticket());
        self.execute_or_park(queued, cx, &mut held);
        if let Some(waits) = &mut self.peer.waits {
            waits.hold(ticket, held);
        }
    }

    /// Handles the letter for a ticket: answers its request and those that waited for it. Returns true if the ticket is
    /// this session's.
    pub fn complete(
        &mut self,
        ticket: u64,
        outcome: Outcome,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> bool {
        let is_ours = self.finish(ticket, outcome, cx, out);
        if is_ours {
            self.go_on(cx, out);
        }
        is_ours
    }

    /// Answers the request of a ticket, or executes it if it was parked. Returns false if it is not this session's.
    pub(super) fn finish(
        &mut self,
        ticket: u64,
        outcome: Outcome,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> bool {
        self.peer.update_access(cx);
        let is_unordered = self.peer.is_unordered();
        let Some(waits) = &mut self.peer.waits else { return false };
        let Some(awaited) = waits.awaited(ticket) else { return false };
        let mut held = Output::default();
        match (awaited, outcome) {
            (Awaited::Answer(answer), outcome) => {
                if is_unordered {
                    answer.complete(outcome, cx, out);
                } else {
                    answer.complete(outcome, cx, &mut held);
                    waits.hold(ticket, held);
                }
            }
            (Awaited::Request(request), Outcome::Fetched(Err(error))) => {
                self.run_owned(request, is_unordered, out, |session, queued, held| {
                    session.fail(queued, error, cx, held);
                });
            }
            (Awaited::Request(request), _) => {
                self.run_owned(request, is_unordered, out, |session, queued, held| {
                    session.execute_or_park(queued, cx, held);
                });
            }
        }
        true
    }

    /// Executes the deferred requests that nothing blocks any more, up to one that takes long, and releases the answers
    /// that were held back.
    pub(super) fn go_on(&mut self, cx: &mut NodeContext, out: &mut Output) {
        let is_unordered = self.peer.is_unordered();
        while !self.wants_aside()
            && let Some(request) = self.peer.waits.as_mut().and_then(|waits| waits.next_ready())
        {
            self.run_owned(request, is_unordered, out, |session, queued, held| {
                session.execute_or_park(queued, cx, held);
            });
        }
        if let Some(waits) = &mut self.peer.waits {
            while let Some(held) = waits.release() {
                out.append(held);
            }
            if waits.is_over() {
                self.peer.waits = None;
            }
        }
    }

    /// Executes a request that was deferred or parked. A request that closes the connection is the last one answered.
    fn run_owned(
        &mut self,
        request: Owned,
        is_unordered: bool,
        out: &mut Output,
        f: impl FnOnce(&mut Self, &mut Queued<'_>, &mut Output),
    ) {
        let ticket = self.peer.waits.as_ref().and_then(|waits| waits.current());
        // A later request may already have asked to close the connection; this one is still answered.
        let closes = std::mem::take(&mut self.peer.close);
        let mut held = Output::default();
        self.with_owned(request, |session, queued| f(session, queued, &mut held));
        self.executed(held, is_unordered, out);
        if self.peer.close
            && let (Some(ticket), Some(waits)) = (ticket, &mut self.peer.waits)
        {
            waits.drop_after(ticket);
        }
        self.peer.close |= closes;
    }

    /// Finishes a deferred or parked request that has been executed.
    fn executed(&mut self, mut held: Output, is_unordered: bool, out: &mut Output) {
        if is_unordered {
            out.append(std::mem::take(&mut held));
        }
        if let Some(waits) = &mut self.peer.waits {
            waits.executed(held);
        }
    }

    /// What a request touches.
    pub(super) fn touch(&self, queued: &Queued<'_>) -> Touch {
        let peer = &self.peer;
        match &queued.work {
            Work::Request(request, ..) | Work::Refused(request, ..) => {
                request.touch(peer, queued.placed.as_ref())
            }
            Work::Filled(Some(filling)) => match self.parse_again(&filling.head) {
                Some((request, _)) => request.touch(peer, None),
                None => Touch::Nothing,
            },
            Work::Filled(None) | Work::Dump(_) | Work::Watch | Work::Malformed(_) => Touch::Nothing,
        }
    }

    /// Calls `f` with a kept request as originally received.
    fn with_owned(&mut self, owned: Owned, f: impl FnOnce(&mut Self, &mut Queued<'_>)) {
        let bytes;
        let work = match owned {
            Owned::Filled(filling) => Work::Filled(Some(filling)),
            Owned::Request(request) => {
                bytes = request;
                let Some((request, value)) = self.parse_owned(&bytes) else { return };
                Work::Request(request, value, bytes.bytes())
            }
            Owned::Refused(request, refusal) => {
                bytes = request;
                let Some((request, _)) = self.parse_owned(&bytes) else { return };
                Work::Refused(request, refusal, bytes.bytes())
            }
        };
        f(self, &mut Queued { connection: self.peer.connection, prefetch_bytes: 0, placed: None, work });
    }
}

/// Takes ownership of a request; `None` for work that only answers.
pub(super) fn own(work: &mut Work<'_>) -> Option<Owned> {
    match work {
        Work::Request(request, _, bytes) => Some(Owned::Request(request.to_owned(bytes))),
        Work::Refused(request, refusal, bytes) => Some(Owned::Refused(request.to_owned(bytes), *refusal)),
        Work::Filled(filling) => filling.take().map(Owned::Filled),
        Work::Dump(_) | Work::Watch | Work::Malformed(_) => None,
    }
}
