//! The context a thread executes requests in: the time of this wake-up and the thread's own caches.

use std::sync::Arc;

use memory::{Tenant, TenantCache};

use crate::index::{HashPart, Retired};
use crate::node::Node;

/// The time of one wake-up, read once from the clocks by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Wall clock, seconds since 1970.
    pub unix_s: u32,
    /// Wall clock, nanoseconds since 1970.
    pub unix_ns: u64,
    /// Monotonic clock, milliseconds since the process started.
    pub mono_ms: u64,
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
    pub(crate) caches: Vec<Option<Held>>,
    pub(crate) retired: Vec<Retired>,
    pub(crate) parts: Vec<HashPart>,
    generation: u64,
}

/// A thread's access to one tenant.
pub(crate) struct Held {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) cache: TenantCache,
    /// Used since the last look of [`Cx::rest`].
    pub(crate) used: bool,
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
            caches: Vec::new(),
            retired: Vec::new(),
            parts: Vec::new(),
            generation: 0,
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

    /// Gives back what the thread keeps of tenants it has not used since the last call. Gives whether it keeps any still.
    pub fn rest(&mut self) -> bool {
        let mut keeps = false;
        for held in self.caches.iter_mut().flatten() {
            if std::mem::take(&mut held.used) {
                keeps = true;
            } else {
                held.tenant.rest(&mut held.cache);
            }
        }
        keeps
    }

    /// Whether the thread keeps blocks of any tenant for later.
    pub fn keeps_blocks(&self) -> bool {
        self.caches.iter().flatten().any(|held| !Tenant::is_resting(&held.cache))
    }
}
