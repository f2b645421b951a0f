//! The context a thread executes requests in: the time of this wake-up and the thread's own caches.

use std::collections::BTreeSet;
use std::sync::Arc;

use memory::{Tenant, TenantCache};

use crate::index::{HashPart, Retired};
use crate::mailbox::{Cookie, Letter, Outcome};
use crate::node::Node;
use crate::{KvError, VbId};

/// The time of one wake-up, read once from the clocks by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Wall clock, seconds since 1970.
    pub unix_s: u32,
    /// Wall clock, nanoseconds since 1970.
    pub unix_ns: u64,
    /// Monotonic clock, microseconds since the process started.
    pub mono_us: u64,
}

impl Now {
    /// Monotonic clock in milliseconds.
    #[inline]
    pub const fn mono_ms(&self) -> u64 {
        self.mono_us / 1000
    }
}

/// Per-thread execution context. One per worker, one per background thread; never shared.
pub struct Cx {
    /// Time of this wake-up.
    pub now: Now,
    /// The node all sessions belong to.
    pub node: Arc<Node>,
    /// Index of this thread among the node's executing threads; picks its shard of the meters.
    pub thread: usize,
    /// The clock [`Now::unix_ns`] was read from, asked again only for clients that want server durations.
    /// Without one all durations are 0.
    pub clock_ns: Option<fn() -> u64>,
    /// Set by an operation that could not see what it was asked for: [`crate::KvError::WarmingUp`],
    /// [`crate::KvError::Damaged`], or [`crate::KvError::NotResident`]. What it gave says nothing then; whoever answers takes this.
    pub obstacle: Option<KvError>,
    pub(crate) caches: Vec<Option<Held>>,
    pub(crate) retired: Vec<Retired>,
    pub(crate) parts: Vec<HashPart>,
    generation: u64,
    /// The monotonic clock of [`Now::mono_us`], asked again where a wake-up's time is too coarse: for deadlines.
    pub clock_us: Option<fn() -> u64>,
    /// Whether this thread calls [`Cx::ring_alarms`] when [`Cx::next_alarm_us`] has come.
    pub keeps_alarms: bool,
    tickets: u64,
    /// When which vBucket (bucket's slot, number) is to be looked at for overdue writes.
    alarms: BTreeSet<(u64, usize, VbId)>,
    /// What this thread has posted to itself.
    letters: Vec<Letter>,
}

/// A thread's access to one tenant.
pub(crate) struct Held {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) cache: TenantCache,
    /// Used since the last look of [`Cx::rest`].
    pub(crate) used: bool,
    /// Has given back since what was kept.
    pub(crate) rested: bool,
}

impl Cx {
    /// A context for the thread with this number, which no other thread has.
    pub fn new(node: Arc<Node>, thread: usize) -> Self {
        assert!(
            thread < node.settings().threads,
            "the node was made for {} threads",
            node.settings().threads
        );
        let now = Now::default();
        Self {
            now,
            node,
            thread,
            clock_ns: None,
            obstacle: None,
            caches: Vec::new(),
            retired: Vec::new(),
            parts: Vec::new(),
            generation: 0,
            clock_us: None,
            keeps_alarms: false,
            tickets: 0,
            alarms: BTreeSet::new(),
            letters: Vec::new(),
        }
    }

    /// The monotonic time now, not that of the wake-up.
    pub fn fresh_us(&self) -> u64 {
        self.clock_us.map_or(self.now.mono_us, |clock_us| clock_us())
    }

    /// This thread will look at a vBucket then.
    pub(crate) fn arm(&mut self, at_us: u64, slot: usize, vb: VbId) {
        self.alarms.insert((at_us, slot, vb));
    }

    /// When the next alarm is due, by the monotonic clock.
    #[inline]
    pub fn next_alarm_us(&self) -> Option<u64> {
        self.alarms.first().map(|(at_us, _, _)| *at_us)
    }

    /// Looks at the vBuckets whose alarms are due.
    pub fn ring_alarms(&mut self) {
        let now_us = self.fresh_us();
        while let Some((at_us, slot, vb)) = self.alarms.first().copied()
            && at_us <= now_us
        {
            self.alarms.pop_first();
            if let Some(bucket) = self.node.bucket_in_slot(slot) {
                bucket.expire_sync_writes(self, vb);
            }
        }
    }

    /// A number this thread has given to nobody yet.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Tells a session how what it waits for has ended.
    pub fn post(&mut self, cookie: Cookie, outcome: Outcome) {
        if usize::from(cookie.thread) == self.thread {
            self.letters.push((cookie, outcome));
        } else {
            self.node.post(cookie, outcome);
        }
    }

    /// Whether this thread has posted anything to itself since [`Cx::take_letters`].
    #[inline]
    pub fn has_letters(&self) -> bool {
        !self.letters.is_empty()
    }

    /// The letters for this thread, to the end of `into`: its own, and with `from_others` those of its mailbox.
    pub fn take_letters(&mut self, from_others: bool, into: &mut Vec<Letter>) {
        into.append(&mut self.letters);
        if from_others && let Some(mailbox) = self.node.mailbox(self.thread) {
            mailbox.take(into);
        }
    }

    /// Ends a batch: publishes what was allocated and frees what nobody peeks at any more.
    /// Gives whether blocks are left that wait for another thread's batch to end.
    pub fn end_batch(&mut self) -> bool {
        let mut purge = false;
        for held in self.caches.iter_mut().flatten() {
            held.tenant.publish(&mut held.cache);
            purge |= held.tenant.wants_purge();
        }
        if purge {
            self.node.ask_for_purge();
        }
        if !self.retired.is_empty() {
            self.free_retired();
        }
        !self.retired.is_empty()
    }

    #[expect(unsafe_code, reason = "frees retired index blocks once their stamp has passed")]
    fn free_retired(&mut self) {
        let quiescence = Arc::clone(self.node.quiescence());
        for index in (0..self.retired.len()).rev() {
            if !quiescence.has_passed(self.retired[index].stamp) {
                continue;
            }
            let retired = self.retired.swap_remove(index);
            if let Some(Some(held)) = self.caches.get_mut(retired.slot) {
                // SAFETY: the slot's tenant is the one it was allocated from (a slot is never given to a second bucket),
                // and its stamp has passed.
                unsafe { retired.free(&held.tenant, &mut held.cache) }
            }
        }
    }

    /// Lets go of buckets that are gone; call it once per wake-up.
    #[inline]
    pub fn tend(&mut self) {
        let generation = self.node.generation();
        if self.generation != generation {
            self.generation = generation;
            self.drop_gone();
        }
    }

    fn drop_gone(&mut self) {
        self.end_batch();
        for slot in 0..self.caches.len() {
            let waits = self.retired.iter().any(|retired| retired.slot == slot);
            if waits || self.node.has_slot(slot) {
                continue;
            }
            if let Some(mut held) = self.caches[slot].take() {
                held.tenant.rest(&mut held.cache);
            }
        }
    }

    /// As [`Cx::rest`], for a thread that calls it seldom: what comes free goes back to the system, however little it is.
    pub fn rest_for_long(&mut self) -> bool {
        let keeps = self.rest();
        let mut has_rested = false;
        for held in self.caches.iter_mut().flatten() {
            if std::mem::take(&mut held.rested) {
                held.tenant.note_rested();
                has_rested = true;
            }
        }
        if has_rested {
            self.node.doorbell().ring();
        }
        keeps
    }

    /// Gives back what the thread keeps of tenants it has not used since the last call. Gives whether it keeps any still.
    pub fn rest(&mut self) -> bool {
        let mut keeps = false;
        for held in self.caches.iter_mut().flatten() {
            if std::mem::take(&mut held.used) {
                keeps = true;
            } else if !Tenant::is_resting(&held.cache) {
                held.tenant.rest(&mut held.cache);
                held.rested = true;
            }
        }
        keeps
    }

    /// Whether the thread keeps blocks of any tenant for later.
    pub fn keeps_blocks(&self) -> bool {
        self.caches.iter().flatten().any(|held| !Tenant::is_resting(&held.cache))
    }
}
