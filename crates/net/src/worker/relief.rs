//! What connections hold is counted, and the largest are cut off when all of them together hold too much.
//!
//! Every worker knows its own connections by what they hold, and tells the others only the most that one of them holds.
//! Under pressure a worker cuts off its largest unless another worker has a far larger one, and wakes one that has a
//! larger one.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use kv::client_memory::Pressure;
use transport::Stream;

use super::Worker;

/// Under [`Pressure::Soft`] a peer goes that has taken and sent nothing for so long.
const PATIENCE_MS: u64 = 1000;
/// One that holds less than this part of what the largest holds stays.
const WORTH_FRACTION: usize = 8;
/// So many of the largest are looked at for one.
const CANDIDATES: usize = 64;

/// What an idle connection takes: itself, its entry in the list of connections, its place in the worker's tables, and
/// what the allocator adds.
pub(super) fn own_bytes(stream: &Stream) -> i64 {
    const PLAIN_BYTES: usize =
        size_of::<crate::connection::Connection>() + size_of::<kv::clients::Client>() + 160;
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
    /// Accounts for what a connection holds now.
    pub(super) fn charge(&mut self, id: u32) {
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return };
        let before = connection.charged();
        connection.charge();
        connection.note_state();
        let after = connection.charged();
        self.count_change(id, before, after);
    }

    /// Accounts for a connection that holds nothing any more.
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

    /// Cuts off peers until the node's connections hold little enough.
    #[inline]
    pub(super) fn relieve(&mut self) {
        let memory = self.cx.node.client_memory();
        match memory.pressure() {
            Pressure::None if !memory.has_too_much_large() => self.relief_at_ms = None,
            // Who makes no progress is looked for once in a millisecond.
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
            let mut victim = None;
            if large {
                victim = self.stuck_one(&self.holders.large, now_ms);
            }
            if victim.is_none() && pressure > Pressure::None {
                let own = self.holders.largest();
                let other = self.shared.inboxes().iter().max_by_key(|inbox| inbox.largest.load(Relaxed));
                if let Some(other) = other.filter(|inbox| inbox.largest.load(Relaxed) > own) {
                    other.wake();
                }
                victim = self.stuck_one(&self.holders.buffers, now_ms);
                if victim.is_none() && pressure == Pressure::Hard {
                    // Another worker may be long in coming: only one with a far larger peer is waited for.
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
            tracing::debug!(connection = id, ?pressure, "cut off a peer that holds much");
            self.cx.node.client_memory().note_cut_off();
            if let Some(Some(connection)) = self.connections.get(id as usize) {
                connection.socket.reset_when_closed();
            }
            self.close_because(id, "error");
        }
    }

    /// The largest of those that make no progress, if it is large enough to be of use.
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

/// What a connection is charged with.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charged {
    /// Unfinished input, unsent and held answers.
    pub(crate) buffers: usize,
    /// The part of these that no bucket is charged for.
    pub(crate) outside: usize,
    /// Large values on their way: their bucket is charged with them as items.
    pub(crate) large: usize,
}

fn difference(new: usize, old: usize) -> i64 {
    new.cast_signed() as i64 - old.cast_signed() as i64
}
