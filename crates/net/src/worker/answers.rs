//! Answers on their way to the peers: those of this wake-up, those that waited, and those that a peer has not taken
//! yet.

use std::ops::Range;

use kv::{Cookie, Meter, Outcome};

use super::{SEND_BYTES, Worker};
use crate::backlog::{Backlog, Sent};
use crate::connection::Connection;
use crate::write::write_bytes;

/// Answers of one connection within the output.
pub(super) struct Segment {
    id: u32,
    bytes: Range<usize>,
}

impl Worker {
    /// Notes that the output since the last cut is this connection's. It is sent together with the others' output: a
    /// peer that is woken then finds more than one answer, which avoids context switches back and forth.
    pub(super) fn settle(&mut self, id: u32) {
        if self.out.has_pinned() {
            self.send_settled();
            let now_ms = self.cx.now.mono_ms();
            if let Some(Some(connection)) = self.connections.get_mut(id as usize) {
                let backlog = connection.backlog.get_or_insert_with(|| Backlog::begun(now_ms));
                backlog.push_output(&mut self.out, self.cut);
                self.send_backlog(id);
            }
            self.out.clear();
            self.cut = 0;
            if self.recorder.is_on() {
                self.recorder.sent(self.limits.slow_request_us, &self.cx);
            }
        } else if self.out.mark() > self.cut {
            let end = self.out.mark();
            match self.segments.last_mut() {
                Some(last) if last.id == id && last.bytes.end == self.cut => last.bytes.end = end,
                _ => self.segments.push(Segment { id, bytes: self.cut..end }),
            }
            self.cut = end;
        }
    }

    /// Delivers the letters of other threads and of this one to their sessions.
    pub(super) fn deliver(&mut self) {
        let mut letters = std::mem::take(&mut self.letters);
        let mut from_others = std::mem::take(&mut self.rung);
        while from_others || self.cx.has_letters() {
            self.cx.take_letters(from_others, &mut letters);
            from_others = false;
            // Groups each connection's answers, so that they leave in one write.
            letters.sort_by_key(|(cookie, _)| cookie.connection);
            let records = self.recorder.has_waiting();
            let mut letters = letters.drain(..).peekable();
            while let Some((cookie, outcome)) = letters.next() {
                let id = cookie.connection;
                self.complete(cookie, outcome);
                if records && letters.peek().is_none_or(|(next, _)| next.connection != id) {
                    self.record_finished(id);
                }
            }
        }
        self.letters = letters;
        self.retired = self.cx.end_batch();
    }

    pub(super) fn complete(&mut self, cookie: Cookie, outcome: Outcome) {
        let id = cookie.connection;
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return };
        if connection.away.is_some() {
            self.kept_letters.push((cookie, outcome));
            return;
        }
        if outcome == Outcome::Watched {
            // A watcher is sent only what it takes: lines that do not fit are skipped, not kept.
            if connection.session.watches_as(cookie.ticket) {
                connection.unparsed = true;
                if self.goes_on(id) {
                    self.make_ready(id);
                }
            }
            return;
        }
        if outcome == Outcome::Stirred {
            if connection.session.note_news(cookie.ticket) && self.goes_on(id) {
                self.make_ready(id);
            }
            return;
        }
        if !connection.session.complete(cookie.ticket, outcome, &mut self.cx, &mut self.out) {
            return;
        }
        self.settle(id);
        if self.out.len() >= SEND_BYTES {
            self.send_all();
        }
        if self.goes_on(id) {
            self.make_ready(id);
        }
    }

    /// Sends all settled answers, one write per connection; what a peer does not take now becomes its backlog.
    pub(super) fn send_all(&mut self) {
        self.send_settled();
        if self.recorder.is_on() {
            self.recorder.sent(self.limits.slow_request_us, &self.cx);
        }
        if self.cut == self.out.mark() && !self.out.has_pinned() {
            self.out.clear();
            self.cut = 0;
        }
    }

    fn send_settled(&mut self) {
        let mut segments = std::mem::take(&mut self.segments);
        for Segment { id, bytes } in segments.drain(..) {
            let Some(Some(connection)) = self.connections.get_mut(id as usize) else { continue };
            let bytes = self.out.plain().get(bytes).unwrap_or_default();
            if let Some(backlog) = &mut connection.backlog {
                backlog.push_bytes(bytes);
                self.send_backlog(id);
                continue;
            }
            let written = write_bytes(&mut connection.socket, bytes);
            connection.count(Meter::BytesWritten, *written.as_ref().unwrap_or(&0), &self.cx);
            match written {
                Ok(sent) if sent == bytes.len() => {}
                Ok(sent) => {
                    let mut backlog = Backlog::begun(self.cx.now.mono_ms());
                    backlog.push_bytes(bytes.get(sent..).unwrap_or_default());
                    connection.backlog = Some(backlog);
                    self.charge(id);
                    self.arm(id);
                    self.relieve();
                }
                Err(_) => self.close_because(id, "error"),
            }
        }
        self.segments = segments;
    }

    /// Sends what the peer takes of its backlog.
    fn send_backlog(&mut self, id: u32) {
        let now_ms = self.cx.now.mono_ms();
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return };
        let Connection { backlog: Some(backlog), socket, .. } = &mut **connection else { return };
        let unsent = backlog.len();
        let sent = backlog.send(socket, now_ms);
        let taken = unsent - backlog.len();
        connection.count(Meter::BytesWritten, taken, &self.cx);
        match sent {
            Ok(Sent::All) => {
                connection.backlog = None;
                self.charge(id);
                self.arm(id);
            }
            Ok(sent) => {
                self.charge(id);
                self.arm(id);
                if sent == Sent::TurnOver {
                    self.make_later(id);
                }
                self.relieve();
            }
            Err(_) => self.close_because(id, "error"),
        }
    }
}
