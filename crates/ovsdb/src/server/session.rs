//! Sessions: the clients of a server and their state.

use super::Output;
use super::databases::DatabaseId;
use super::waits::{Wait, WaitId};
use crate::history::CommitId;
use crate::monitor::{GroupId, Member, MemberId};
use std::collections::VecDeque;

/// Identifies a session. The id of a session that has ended is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    slot: u32,
    generation: u32,
}

impl SessionId {
    #[cfg(test)]
    pub(crate) fn of_slot(slot: u32) -> Self {
        Self { slot, generation: 0 }
    }
}

/// What is known about a client when it connects.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Its name in logs, e.g. `unix#3`.
    pub name: String,
    /// Whether it may only read.
    pub read_only: bool,
    /// The role its transactions are checked against; empty: none.
    pub role: String,
    /// The name in its certificate.
    pub client: Option<String>,
}

/// A monitor from its session's point of view.
#[derive(Debug)]
pub(crate) struct SessionMonitor {
    /// Its id, as canonical JSON.
    pub id: Box<[u8]>,
    pub database: DatabaseId,
    pub group: GroupId,
    pub member: MemberId,
    /// The memory that it is assumed to need: its request's length.
    pub bytes: usize,
}

/// A client.
#[derive(Debug, Default)]
pub(crate) struct Session {
    pub options: SessionOptions,
    pub output: Output,
    /// In order of creation.
    pub monitors: Vec<SessionMonitor>,
    /// Locks it owns or waits for.
    pub locks: Vec<Box<str>>,
    /// Waiting transactions.
    pub waits: Vec<WaitId>,
    /// Bytes of the waiting transactions, and of the names of locks and of monitors.
    pub kept_bytes: usize,
    /// Monitors that are behind.
    pub behind: usize,
    /// Whether it is in the list of sessions that are notified later.
    pub late: bool,
    /// Whether it is aware of databases that are added, removed and changed.
    pub database_change_aware: bool,
    /// Whether nothing is left of it but output to be sent.
    pub ended: bool,
    /// Whether it is in the list of sessions with newly visible output.
    pub ready: bool,
}

impl Session {
    /// Subtracts a transaction that no longer waits.
    pub fn forget(&mut self, id: WaitId, wait: &Wait) {
        self.waits.retain(|other| *other != id);
        self.kept_bytes = self.kept_bytes.saturating_sub(wait.bytes());
    }

    /// The index of the monitor with this id.
    pub fn monitor(&self, id: &[u8]) -> Option<usize> {
        self.monitors.iter().position(|monitor| *monitor.id == *id)
    }
}

/// All sessions, by slot.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Sessions whose output has held bytes, or had some since the last publication.
    pub touched: Vec<SessionId>,
    /// Sessions with output that became visible since the loop last asked.
    pub ready: Vec<SessionId>,
    /// Sessions with monitors that are behind because a change had too many.
    pub late: VecDeque<SessionId>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    session: Option<Session>,
}

impl Sessions {
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn insert(&mut self, session: Session) -> SessionId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let mut generation = 0;
        if let Some(entry) = self.slots.get_mut(slot as usize) {
            entry.session = Some(session);
            generation = entry.generation;
        }
        SessionId { slot, generation }
    }

    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        let entry = self.slots.get_mut(id.slot as usize).filter(|entry| entry.generation == id.generation)?;
        let session = entry.session.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(session)
    }

    #[inline]
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.slots.get(id.slot as usize).filter(|entry| entry.generation == id.generation)?.session.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.slots
            .get_mut(id.slot as usize)
            .filter(|entry| entry.generation == id.generation)?
            .session
            .as_mut()
    }

    /// In slot order.
    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.slots.iter().enumerate().filter_map(|(slot, entry)| {
            let id = SessionId { slot: slot as u32, generation: entry.generation };
            entry.session.as_ref().map(|session| (id, session))
        })
    }

    /// The output of a session, to append to. Records that it was touched.
    #[inline]
    pub fn output(&mut self, id: SessionId) -> Option<&mut Output> {
        let entry = self.slots.get_mut(id.slot as usize).filter(|entry| entry.generation == id.generation)?;
        let session = entry.session.as_mut().filter(|session| !session.ended)?;
        if session.output.held_bytes() == 0 {
            self.touched.push(id);
        }
        Some(&mut session.output)
    }

    /// Leaves a monitor behind after the commit `known`. `is_late`: its session is to be notified before it has read
    /// anything. Returns false if the session does not exist.
    pub fn leave_behind(&mut self, member: &mut Member, known: CommitId, is_late: bool) -> bool {
        let Some(session) = self.get_mut(member.session) else { return false };
        member.behind = Some(known);
        session.behind += 1;
        if is_late && !std::mem::replace(&mut session.late, true) {
            self.late.push_back(member.session);
        }
        true
    }

    /// Makes all held output visible.
    pub fn publish(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        for id in touched.drain(..) {
            let Some(session) = self.get_mut(id) else { continue };
            if session.output.publish() && !session.ready {
                session.ready = true;
                self.ready.push(id);
            }
        }
        self.touched = touched;
    }
}
