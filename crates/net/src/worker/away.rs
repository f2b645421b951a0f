//! Sessions that are elsewhere because their next request takes long ([`crate::aside`]).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::Worker;
use crate::aside::{Done, Job};

impl Worker {
    /// Hands a session to the threads for long requests, if it has one.
    pub(super) fn send_aside(&mut self, id: u32) {
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return };
        if !connection.session.wants_aside() {
            return;
        }
        let is_closed = Arc::new(AtomicBool::new(false));
        connection.away = Some(Arc::clone(&is_closed));
        self.shared.aside.push(Job {
            session: connection.session.leave(),
            thread: self.thread,
            connection: id,
            is_closed,
            last_ticket: self.cx.last_ticket(),
        });
    }

    /// Takes sessions back, with the answers to their requests.
    pub(super) fn take_back(&mut self) {
        let done = std::mem::take(&mut *self.inbox.done.lock());
        if done.is_empty() {
            return;
        }
        for Done { session, connection: id, is_closed, answers, alarms, last_ticket } in done {
            self.cx.skip_tickets(last_ticket);
            self.cx.add_alarms(alarms);
            let connection = self.connections.get_mut(id as usize).and_then(Option::as_mut);
            let is_its = |away: &Option<Arc<AtomicBool>>| {
                away.as_ref().is_some_and(|away| Arc::ptr_eq(away, &is_closed))
            };
            // Otherwise it has closed meanwhile.
            let Some(connection) = connection.filter(|connection| is_its(&connection.away)) else { continue };
            connection.away = None;
            self.out.append(answers);
            connection.session.come_back(session, &mut self.cx, &mut self.out);
            self.settle(id);
            if self.recorder.has_waiting() {
                self.record_finished(id);
            }
            self.redeliver(id);
            if self.goes_on(id) {
                self.make_ready(id);
            }
        }
        self.retired = self.cx.end_batch();
    }

    /// Delivers the letters that came for a session while it was elsewhere.
    fn redeliver(&mut self, id: u32) {
        if self.kept_letters.is_empty() {
            return;
        }
        let letters = std::mem::take(&mut self.kept_letters);
        for (cookie, outcome) in letters {
            if cookie.connection == id {
                self.complete(cookie, outcome);
            } else {
                self.kept_letters.push((cookie, outcome));
            }
        }
    }
}
