//! Accounts for the memory that connections hold, and cuts off the largest when all of them together hold too much.
//!
//! Every worker orders its own connections by what they hold, and shares only the maximum with the other workers. Under
//! pressure a worker cuts off its largest connection unless another worker has a far larger one, and wakes a worker
//! that has a larger one.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use kv::client_memory::Pressure;
use transport::Stream;

use super::Worker;
use crate::connection::Connection;

/// Under [`Pressure::Soft`], a peer is cut off if it has taken and sent nothing for this long.
const PATIENCE_MS: u64 = 1000;
/// A connection that holds less than this fraction of the largest stays.
const WORTH_FRACTION: usize = 8;
/// How many of the largest connections are searched for one to cut off.
const CANDIDATES: usize = 64;

/// Memory of an idle connection: itself, its entry in the list of connections, its place in the worker's tables, and
/// the allocator's overhead.
pub(super) fn own_bytes(stream: &Stream) -> i64 {
    const PLAIN_BYTES: usize = size_of::<Connection>() + size_of::<kv::clients::Client>() + 160;
    (PLAIN_BYTES + stream.own_bytes()) as i64
}

/// Connections by the bytes they hold.
#[derive(Default)]
pub(super) struct Holders {
    buffers: BTreeSet<(usize, u32)>,
    large: BTreeSet<(usize, u32)>,
}

impl Holders {
    fn change(set: &mut BTreeSet<(usize, u32)>, id: u32, from: usize, to: usize) {
        if from != to {
            if from > 0 {
                set.remove(&(from, id));
            }
            if to > 0 {
                set.insert((to, id));
            }
        }
    }

    fn largest(&self) -> usize {
        self.buffers.last().map_or(0, |(bytes, _)| *bytes)
    }
}

impl Worker {
    /// Updates the account of what a connection holds.
    pub(super) fn charge(&mut self, id: u32) {
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return };
        let before = connection.charged();
        connection.charge();
        connection.note_state();
        let after = connection.charged();
        self.count_change(id, before, after);
    }

    /// Updates the accounts for a change in what a connection holds.
    pub(super) fn count_change(&mut self, id: u32, before: Charged, after: Charged) {
        if before == after {
            return;
        }
        Holders::change(&mut self.holders.buffers, id, before.buffers, after.buffers);
        Holders::change(&mut self.holders.large, id, before.large, after.large);
        self.inbox.largest.store(self.holders.largest(), Relaxed);
        let node = &self.cx.node;
        let memory = node.client_memory();
        let outside = difference(after.outside, before.outside);
        memory.change(difference(after.buffers, before.buffers), outside, node.doorbell());
        memory.change_large(difference(after.large, before.large));
    }

    /// Cuts off peers until the pressure is relieved.
    #[inline]
    pub(super) fn relieve(&mut self) {
        let memory = self.cx.node.client_memory();
        match memory.pressure() {
            Pressure::None if !memory.has_too_much_large() => self.relief_at_ms = None,
            // Peers without progress are searched for once per millisecond.
            Pressure::None | Pressure::Soft if self.relief_looked_ms == self.cx.now.mono_ms() => {
                self.relief_at_ms.get_or_insert(self.relief_looked_ms + PATIENCE_MS);
            }
            _ => self.cut_off(),
        }
    }

    #[cold]
    fn cut_off(&mut self) {
        let now_ms = self.cx.now.mono_ms();
        self.relief_at_ms = None;
        loop {
            let memory = self.cx.node.client_memory();
            let (pressure, large) = (memory.pressure(), memory.has_too_much_large());
            let (mut victim, mut of) = (None, "values in transit");
            if large {
                victim = self.stuck_one(&self.holders.large, now_ms);
            }
            if victim.is_none() && pressure > Pressure::None {
                of = "clients' buffers";
                let own = self.holders.largest();
                let other = self.shared.inboxes().iter().max_by_key(|inbox| inbox.largest.load(Relaxed));
                if let Some(other) = other.filter(|inbox| inbox.largest.load(Relaxed) > own) {
                    other.wake();
                }
                victim = self.stuck_one(&self.holders.buffers, now_ms);
                if victim.is_none() && pressure == Pressure::Hard {
                    // Another worker may take long to react: wait only for one with a far larger peer.
                    let is_large = other.is_none_or(|inbox| inbox.largest.load(Relaxed) / 2 <= own);
                    victim = self.holders.buffers.last().map(|(_, id)| *id).filter(|_| is_large);
                }
            }
            let Some(id) = victim else {
                if pressure > Pressure::None || large {
                    self.relief_at_ms = Some(now_ms + PATIENCE_MS);
                }
                self.relief_looked_ms = now_ms;
                return;
            };
            self.cx.node.client_memory().note_cut_off();
            if let Some(Some(connection)) = self.connections.get(id as usize) {
                self.shared.cut_offs.log(connection.address(), &reason(connection, now_ms, of));
                connection.socket.reset_when_closed();
            }
            self.close_because(id, "error");
        }
    }

    /// The largest connection without progress, if it is large enough to help.
    fn stuck_one(&self, holders: &BTreeSet<(usize, u32)>, now_ms: u64) -> Option<u32> {
        let is_stuck = |id: u32| {
            let connection = self.connections.get(id as usize)?.as_ref()?;
            Some(now_ms.saturating_sub(connection.progress_ms()) >= PATIENCE_MS)
        };
        let least = holders.last().map_or(0, |(bytes, _)| bytes / WORTH_FRACTION);
        let candidates = holders.iter().rev().take(CANDIDATES).filter(|(bytes, _)| *bytes >= least);
        candidates.map(|(_, id)| *id).find(|id| is_stuck(*id) == Some(true))
    }
}

/// Why a connection is cut off, for the log.
fn reason(connection: &Connection, now_ms: u64, of: &str) -> String {
    let Charged { buffers, large, .. } = connection.charged();
    let rest_ms = now_ms.saturating_sub(connection.progress_ms());
    format!(
        "{of} hold too much memory; it held {buffers} bytes of buffers and {large} bytes of values in transit, \
         and took and sent nothing for {rest_ms} ms"
    )
}

/// What is charged for a connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charged {
    /// Unfinished input, unsent and held answers.
    pub(crate) buffers: usize,
    /// The part of `buffers` that is charged to no bucket.
    pub(crate) outside: usize,
    /// Large values in transit: charged to their bucket as items.
    pub(crate) large: usize,
}

fn difference(new: usize, old: usize) -> i64 {
    new.cast_signed() as i64 - old.cast_signed() as i64
}
