//! Executing requests behind answers that wait.
//!
//! See [`super::waits`] for the rules. Nothing here is reached by a session without waiting answers, except to ask.

use kv::{NodeContext, Outcome, VbId};
use wire::couchbase::FrameInfos;
use wire::{Parsed, binary as wire_binary, text as wire_text};

use super::waits::{Awaited, Owned, OwnedKey, Touch};
use super::{Head, Output, Placed, Port, Queued, Session, Work, binary, couchbase, opcodes, text};

impl Session {
    /// Whether answers wait.
    #[inline]
    pub fn has_waits(&self) -> bool {
        self.peer.waits.is_some()
    }

    /// Whether nothing more can be parsed, and should not be read, until some of the waiting answers have come.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.peer.waits.is_some() && self.holds_enough()
    }

    #[cold]
    fn holds_enough(&self) -> bool {
        self.peer.waits.as_ref().is_some_and(|waits| waits.is_fenced() || waits.bytes() > self.held_bytes_max)
    }

    /// Bytes of held answers and copied requests, and of what a watcher waits for.
    pub fn held_bytes(&self) -> usize {
        self.peer.waits.as_ref().map_or(0, |waits| waits.bytes()) + self.watch_bytes()
    }

    /// Executes a request while answers before it wait: its own is held back, or it is deferred.
    #[cold]
    pub(super) fn execute_behind(&mut self, queued: &mut Queued<'_>, cx: &mut NodeContext, out: &mut Output) {
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

    /// The letter for a ticket has come: answers what it is about and what waited for that. Returns whether the ticket
    /// was this session's.
    pub fn complete(
        &mut self,
        ticket: u64,
        outcome: Outcome,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> bool {
        let is_unordered = self.peer.is_unordered();
        let Some(waits) = &mut self.peer.waits else { return false };
        let Some(awaited) = waits.awaited(ticket) else { return false };
        let mut held = Output::default();
        match (awaited, outcome) {
            (Awaited::Answer(answer), outcome) => {
                let mutated = if let Outcome::Durable(mutated) = outcome { Some(mutated) } else { None };
                if is_unordered {
                    answer.complete(mutated, cx, out);
                } else {
                    answer.complete(mutated, cx, &mut held);
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
        while let Some(request) = self.peer.waits.as_mut().and_then(|waits| waits.next_ready()) {
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
        true
    }

    /// Executes a request that was deferred or parked. One that closes the connection is the last that is answered.
    fn run_owned(
        &mut self,
        request: Owned,
        is_unordered: bool,
        out: &mut Output,
        f: impl FnOnce(&mut Self, &mut Queued<'_>, &mut Output),
    ) {
        let ticket = self.peer.waits.as_ref().and_then(|waits| waits.current());
        // A later request may have asked for the end already: this one is answered all the same.
        let closes = std::mem::take(&mut self.peer.close);
        let mut held = Output::default();
        self.with_owned(request, |session, queued| f(session, queued, &mut held));
        self.executed(held, is_unordered, out);
        if self.peer.close
            && let (Some(ticket), Some(waits)) = (ticket, &mut self.peer.waits)
        {
            waits.close_behind(ticket);
        }
        self.peer.close |= closes;
    }

    /// A request that was deferred or parked has been executed.
    fn executed(&mut self, mut held: Output, is_unordered: bool, out: &mut Output) {
        if is_unordered {
            out.append(std::mem::take(&mut held));
        }
        if let Some(waits) = &mut self.peer.waits {
            waits.executed(held);
        }
    }

    /// What a request is about.
    pub(super) fn touch(&self, queued: &Queued<'_>) -> Touch {
        match &queued.work {
            Work::Binary(request, _) | Work::BinaryRefused(request, _) => {
                self.touch_of(request, queued.placed.as_ref())
            }
            Work::Filled(Some(filling)) => match self.parse_filled(&filling.head) {
                Some(Head::Binary(command)) => self.touch_of(&command, None),
                Some(Head::Text(command)) => self.touch_of_text(&command),
                None => Touch::Nothing,
            },
            Work::Text(command, ..) | Work::TextRefused(command, ..) => self.touch_of_text(command),
            Work::Filled(None) | Work::Dump(_) | Work::Watch | Work::BinaryError(_) | Work::TextError(_) => {
                Touch::Nothing
            }
        }
    }

    fn touch_of(&self, request: &wire_binary::Request<'_>, placed: Option<&Placed>) -> Touch {
        let peer = &self.peer;
        let has_barrier = peer.port == Port::Couchbase
            && FrameInfos::parse(request.framing).is_ok_and(|infos| infos.barrier);
        if has_barrier || opcodes::is_fence(request.header.opcode) {
            return Touch::Everything;
        }
        if peer.is_unordered()
            && let Some(touch) = couchbase::touch_unordered(peer, request.header.opcode)
        {
            return touch;
        }
        if let Some(placed) = placed.filter(|placed| peer.places_as(placed.bucket, placed.collections)) {
            return Touch::Key(placed.place.hash);
        }
        match (binary::key(peer, request), &peer.bucket) {
            (Some(key), Some(bucket)) => Touch::Key(bucket.locate_in(key, VbId(0)).hash),
            _ => Touch::Nothing,
        }
    }

    fn touch_of_text(&self, command: &wire_text::Command<'_>) -> Touch {
        if text::traits(command).is_fence {
            return Touch::Everything;
        }
        let mut buffer = [0; wire_text::KEY_MAX];
        match (text::document(command, &mut buffer), &self.peer.bucket) {
            (Some(key), Some(bucket)) => Touch::Key(bucket.locate(key).hash),
            _ => Touch::Nothing,
        }
    }

    /// Calls `f` with a copied request as it was when it came.
    fn with_owned(&mut self, request: Owned, f: impl FnOnce(&mut Self, &mut Queued<'_>)) {
        let binary = wire_binary::Limits { frame_bytes: self.frame_bytes };
        let lines = wire_text::Limits { line_bytes: self.line_bytes };
        let run = |work: Work<'_>| {
            f(self, &mut Queued { connection: self.peer.connection, prefetch_bytes: 0, placed: None, work });
        };
        match &request {
            Owned::Filled(_) => {}
            Owned::Frame(frame) => {
                if let Parsed::Request { head, command, .. } = wire_binary::parse(frame, &binary) {
                    return run(Work::Binary(command, frame.get(head..).unwrap_or_default()));
                }
            }
            Owned::Refused(frame, refusal) => {
                if let Parsed::Request { command, .. } = wire_binary::parse(frame, &binary) {
                    return run(Work::BinaryRefused(command, *refusal));
                }
            }
            Owned::Line(line) => {
                if let Parsed::Request { head, body, command, .. } = wire_text::parse(line, &lines) {
                    let value = line.get(head..head + body).unwrap_or_default();
                    return run(Work::Text(command, value, line));
                }
            }
            Owned::LineRefused(line, refusal) => {
                if let Parsed::Request { command, .. } = wire_text::parse(line, &lines) {
                    return run(Work::TextRefused(command, *refusal, line));
                }
            }
            Owned::Key(OwnedKey { line, with_cas, exptime, last }) => {
                let get = wire_text::Get::continued(*with_cas, *exptime);
                if let Parsed::Request { command: wire_text::Command::Get(mut rest), .. } =
                    wire_text::parse_get_rest(line, &get, &lines)
                    && let Some(one) = rest.take_first()
                {
                    let one = wire_text::Get { last: *last, ..one };
                    return run(Work::Text(wire_text::Command::Get(one), &[], &[]));
                }
            }
        }
        if let Owned::Filled(filling) = request {
            run(Work::Filled(Some(filling)));
        }
    }
}

/// A copy of a request; `None` for what only answers.
pub(super) fn own(work: &mut Work<'_>) -> Option<Owned> {
    let frame = |request: &wire_binary::Request<'_>, value: &[u8]| {
        let header = request.header.encode();
        [&header[..], request.framing, request.extras, request.key, value].concat().into_boxed_slice()
    };
    match work {
        Work::Binary(request, value) => Some(Owned::Frame(frame(request, value))),
        Work::BinaryRefused(request, refusal) => Some(Owned::Refused(frame(request, &[]), *refusal)),
        Work::Filled(filling) => filling.take().map(Owned::Filled),
        Work::Text(wire_text::Command::Get(get), ..) => Some(Owned::Key(OwnedKey {
            line: [get.single_key(), wire_text::TRAILER].concat().into(),
            with_cas: get.with_cas,
            exptime: get.exptime,
            last: get.last,
        })),
        Work::Text(_, _, line) => Some(Owned::Line((*line).into())),
        Work::TextRefused(_, refusal, line) => Some(Owned::LineRefused((*line).into(), *refusal)),
        Work::Dump(_) | Work::Watch | Work::BinaryError(_) | Work::TextError(_) => None,
    }
}
