//! Deadlines of connections: a peer must log in, finish a request and take an answer in time; an idle connection may be
//! closed.
//!
//! A connection has at most one entry in the ordered set: its deadline at the time of insertion. A peer's activity
//! moves the deadline, not the entry. An entry that comes up early is inserted again with the current deadline. So a
//! busy connection costs one comparison per turn, and a worker without deadlines sleeps.

use std::sync::atomic::Ordering::Relaxed;

use super::Worker;

/// The time limit of the login while there is no room for more connections.
const LOGIN_CROWDED_MS: u64 = 1000;

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// The peer left a request unfinished.
    Unfinished,
    /// The peer has not logged in.
    Unknown,
    /// The peer took none of its answers.
    Stuck,
    /// The peer sent no request.
    Idle,
    /// A follower has been sent nothing for a while, or has not answered a NOOP.
    Noop,
}

impl Worker {
    /// Inserts a connection's deadline unless it already has an earlier entry.
    pub(super) fn arm(&mut self, id: u32) {
        let now_ms = self.cx.now.mono_ms();
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return };
        connection.look_for_unfinished(now_ms);
        let Some((at_ms, _)) = connection.deadline(&self.limits) else { return };
        if connection.alarm_ms.is_none_or(|alarm_ms| at_ms < alarm_ms) {
            if let Some(alarm_ms) = connection.alarm_ms.replace(at_ms) {
                self.deadlines.remove(&(alarm_ms, id));
            }
            self.deadlines.insert((at_ms, id));
        }
    }

    /// Sends a follower a NOOP, or closes its connection if it has not answered the last one. One that copies does what
    /// is due.
    fn send_noop(&mut self, id: u32) {
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return };
        if !connection.session.send_noop(&mut self.cx, &mut self.out) {
            tracing::info!(connection = id, "dropped a follower that does not answer");
            return self.close_because(id, "error");
        }
        self.settle(id);
        self.send_all();
        self.charge(id);
        self.arm(id);
    }

    /// Closes the connections whose peers have not logged in for a while, after a client was refused for want of room.
    pub(super) fn make_room(&mut self) {
        if !self.inbox.make_room.swap(false, Relaxed) {
            return;
        }
        let now_ms = self.cx.now.mono_ms();
        for id in 0..u32::try_from(self.connections.len()).unwrap_or(u32::MAX) {
            let Some(Some(connection)) = self.connections.get(id as usize) else { continue };
            if connection.is_unknown_for(LOGIN_CROWDED_MS, now_ms) {
                self.cx.node.connection_timed_out();
                self.close_because(id, "error");
            }
        }
    }

    /// When the next entry comes up.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.first().map(|(at_ms, _)| *at_ms)
    }

    /// Closes the connections whose deadline has passed.
    pub(super) fn close_overdue(&mut self, now_ms: u64) {
        while let Some((at_ms, id)) = self.deadlines.first().copied().filter(|(at_ms, _)| *at_ms <= now_ms) {
            self.deadlines.remove(&(at_ms, id));
            let Some(Some(connection)) = self.connections.get_mut(id as usize) else { continue };
            connection.alarm_ms = None;
            connection.look_for_unfinished(now_ms);
            match connection.deadline(&self.limits) {
                Some((at_ms, Overdue::Noop)) if at_ms <= now_ms => self.send_noop(id),
                Some((at_ms, why)) if at_ms <= now_ms => {
                    tracing::debug!(connection = id, ?why, "closed a connection that missed its deadline");
                    let reason = if why == Overdue::Idle { "idle_timeout" } else { "error" };
                    match why {
                        Overdue::Unfinished | Overdue::Unknown => self.cx.node.connection_timed_out(),
                        Overdue::Stuck => {
                            self.cx.node.connection_stuck();
                            let limit_ms = self.limits.stuck_peer_ms;
                            tracing::info!(connection = id, limit_ms, "dropped a peer that does not read");
                        }
                        Overdue::Idle => self.cx.node.connection_kicked(),
                        Overdue::Noop => {}
                    }
                    self.close_because(id, reason);
                }
                _ => self.arm(id),
            }
        }
    }
}
