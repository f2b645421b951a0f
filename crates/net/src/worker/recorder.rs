//! Records what requests do, while somebody looks ([`kv::requests`]).
//!
//! ```text
//!   wake-up                                                                     send
//!     | read, parse, | request A | request B | ..  (executions, a clock each) ... | one clock: the time of A, B, ..
//! ```
//! * A request's time is from the wake-up that finds its bytes until its answer is given to the socket, or queued
//!   because the socket is full. Requests answered together have one time: that of the last of them.
//! * Of requests answered together the one with the longest execution stands for all in the list of slow ones.
//! * A request that waits (for other nodes, the disk, another request) is recorded by itself, when that has come.
//!
//! While nobody looks, [`Recorder::is_on`] is all that is asked.

use std::collections::BTreeMap;

use kv::NodeContext;
use kv::requests::{Noted, PerClass, Requests, Why};
use sessions::{Output, Queued, Session};

use super::Worker;

/// Most waiting requests that are kept in mind; more are not recorded.
const WAITING_MAX: usize = 1024;
/// Most large requests that are kept of those answered together.
const LARGE_MAX: usize = 16;

/// See the module.
#[derive(Default)]
pub(super) struct Recorder {
    is_on: bool,
    /// Requests whose answers are not sent yet.
    unsent: PerClass<u64>,
    /// The one of them whose execution took longest, and the large ones.
    slowest: Noted,
    large: Vec<Noted>,
    /// The end of the last execution.
    last_us: u64,
    /// Requests that wait, by connection, ticket and number, and when their wake-up was. Answers that are held back
    /// together have one ticket.
    waiting: BTreeMap<(u32, u64, u64), (u64, Noted)>,
    /// The next request's number.
    number: u64,
    /// The request being executed.
    current: Noted,
}

impl Recorder {
    /// Begins a wake-up.
    #[inline]
    pub(super) fn begin(&mut self, cx: &NodeContext) {
        self.is_on = cx.node.requests().is_recording(cx.now.unix_s);
    }

    /// Returns true if this wake-up is recorded.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns true if requests wait.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Notes that executions begin.
    pub(super) fn begin_batch(&mut self, cx: &NodeContext) {
        self.last_us = cx.fresh_us();
    }

    /// Executes a request and records it.
    #[inline(never)]
    pub(super) fn execute(
        &mut self,
        session: &mut Session,
        queued: &mut Queued<'_>,
        large_bytes: usize,
        cx: &mut NodeContext,
        out: &mut Output,
    ) {
        let is_request = session.describe(queued, &mut self.current);
        let (sent_before, before) = (out.len(), session.last_waiting());
        session.execute_described(queued, cx, out);
        let now_us = cx.fresh_us();
        let execution_us = now_us.saturating_sub(std::mem::replace(&mut self.last_us, now_us));
        if !is_request {
            return;
        }
        let current = &mut self.current;
        current.execution_us = execution_us;
        if let Some(now) = session.last_waiting().filter(|now| session.waits_since(before, *now)) {
            let held_before =
                before.filter(|before| before.ticket == now.ticket).map_or(0, |before| before.held_bytes);
            current.answer_bytes = now.held_bytes.saturating_sub(held_before) as u64;
            if self.waiting.len() < WAITING_MAX {
                session.sign(current);
                self.number += 1;
                let key = (queued.connection, now.ticket, self.number);
                self.waiting.insert(key, (cx.now.mono_us, current.clone()));
            }
            return;
        }
        current.answer_bytes = out.len().saturating_sub(sent_before) as u64;
        let is_slowest =
            self.unsent.iter().all(|count| *count == 0) || execution_us > self.slowest.execution_us;
        self.unsent[current.class as usize] += 1;
        let is_large = current.request_bytes.max(current.answer_bytes) >= large_bytes as u64;
        if is_slowest || is_large {
            session.sign(current);
        }
        if is_large && self.large.len() < LARGE_MAX {
            self.large.push(current.clone());
        }
        if is_slowest {
            self.slowest.clone_from(current);
        }
    }

    /// Records the requests whose answers have been sent.
    pub(super) fn sent(&mut self, slow_us: u64, cx: &NodeContext) {
        let now_us = cx.fresh_us();
        self.last_us = now_us;
        let together: u64 = self.unsent.iter().sum();
        if together == 0 {
            return;
        }
        let took_us = now_us.saturating_sub(cx.now.mono_us);
        let requests = cx.node.requests();
        for class in kv::requests::Class::ALL {
            let count = std::mem::take(&mut self.unsent[class as usize]);
            if count > 0 {
                requests.add(cx.thread, class, took_us, count);
            }
        }
        if took_us >= slow_us {
            let slowest = Noted { together, ..std::mem::take(&mut self.slowest) };
            note(requests, Why::Slow, slowest, took_us, now_us, cx);
        }
        for large in self.large.drain(..) {
            note(requests, Why::Large, Noted { together, ..large }, took_us, now_us, cx);
        }
    }

    /// Records the requests of a connection that do not wait any more.
    fn note_finished(
        &mut self,
        id: u32,
        session: &Session,
        (slow_us, large_bytes): (u64, usize),
        cx: &NodeContext,
    ) {
        let now_us = cx.fresh_us();
        let requests = cx.node.requests();
        let of_connection = self.waiting.range((id, 0, 0)..=(id, u64::MAX, u64::MAX)).map(|(key, _)| *key);
        let over: Vec<_> = of_connection.filter(|(_, ticket, _)| !session.has_waiting(*ticket)).collect();
        for (since_us, noted) in over.iter().filter_map(|key| self.waiting.remove(key)) {
            let took_us = now_us.saturating_sub(since_us);
            requests.add(cx.thread, noted.class, took_us, 1);
            let noted = Noted { together: 1, ..noted };
            if noted.request_bytes.max(noted.answer_bytes) >= large_bytes as u64 {
                note(requests, Why::Large, noted.clone(), took_us, now_us, cx);
            }
            if took_us >= slow_us {
                note(requests, Why::Slow, noted, took_us, now_us, cx);
            }
        }
    }

    /// Forgets the requests of a connection that is closed.
    pub(super) fn forget(&mut self, id: u32) {
        let mut later = self.waiting.split_off(&(id, 0, 0));
        if let Some(next) = id.checked_add(1) {
            self.waiting.append(&mut later.split_off(&(next, 0, 0)));
        }
    }
}

fn note(requests: &Requests, why: Why, noted: Noted, took_us: u64, now_us: u64, cx: &NodeContext) {
    let since_wake_up_us = now_us.saturating_sub(cx.now.mono_us);
    let at_unix_ns = cx.now.unix_ns.saturating_add(since_wake_up_us.saturating_mul(1000));
    requests.note(cx.thread, why, Noted { at_unix_ns, took_us, ..noted });
}

impl Worker {
    /// Records requests of a connection whose letters have come.
    pub(super) fn record_finished(&mut self, id: u32) {
        let bounds = (self.limits.slow_request_us, self.limits.large_request_bytes);
        if let Some(Some(connection)) = self.connections.get(id as usize) {
            self.recorder.note_finished(id, &connection.session, bounds, &self.cx);
        }
    }
}
