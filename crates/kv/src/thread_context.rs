//! The context a thread executes requests in: the time of this wake-up and the thread's own caches.

use std::collections::BTreeSet;
use std::sync::Arc;

use memory::{Tenant, TenantCache};

use crate::hub::Hub;
use crate::index::{HashPart, Retired};
use crate::mailbox::{Cookie, Letter, Outcome};
use crate::{Now, VbId};

/// Returns the processor time of the process, user and system, in microseconds; `None` if the system does not provide
/// it.
pub type ProcessTimes = fn() -> Option<(u64, u64)>;

/// Per-thread execution context. One per worker, one per background thread; never shared.
pub struct ThreadContext {
    /// Time of this wake-up.
    pub now: Now,
    pub(crate) hub: Arc<Hub>,
    /// Index of this thread among the node's executing threads; picks its shard of the meters.
    pub thread: usize,
    /// The clock [`Now::unix_ns`] was read from, read again only for clients that want server durations. Without one
    /// all durations are 0.
    pub clock_ns: Option<fn() -> u64>,
    /// Where `stats` gets the processor time from.
    pub process_times_us: Option<ProcessTimes>,
    /// The descriptor of the connection whose request is executed, if its bucket is watched.
    pub connection: u32,
    pub(crate) caches: Caches,
    pub(crate) retired: Vec<Retired>,
    pub(crate) parts: Vec<HashPart>,
    /// Followers that have news and have not been told.
    pub(crate) calls: Vec<Cookie>,
    /// The monotonic clock of [`Now::mono_us`], read again where a wake-up's time is too coarse: for deadlines.
    pub clock_us: Option<fn() -> u64>,
    /// Whether this thread calls [`crate::NodeContext::ring_alarms`] when [`ThreadContext::next_alarm_us`] has come.
    pub keeps_alarms: bool,
    /// Whether a request may take long here. Where clients share a thread it may not: [`crate::KvError::TakesLong`].
    pub may_take_long: bool,
    /// The thread that letters about the present request go to: this one, or the one it executes the request for.
    pub home: usize,
    tickets: u64,
    /// When each vBucket (bucket's slot, number) is to be checked for overdue writes.
    alarms: BTreeSet<(u64, usize, VbId)>,
    /// What this thread has posted to itself.
    letters: Vec<Letter>,
}

/// When vBuckets are to be checked for overdue writes.
pub struct Alarms(BTreeSet<(u64, usize, VbId)>);

/// A thread's access to one tenant.
pub(crate) struct Held {
    /// The slot of its bucket, which no other bucket ever has.
    pub(crate) slot: usize,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) cache: TenantCache,
    /// Used since the last call of [`ThreadContext::rest`].
    pub(crate) used: bool,
    /// Has given back what it kept, and the tenant does not know yet.
    pub(crate) rested: bool,
}

/// A thread's accesses, found by their buckets' slots. Slots are never reused, so this is not an array of them but a
/// hash table, at most half full, of those that live.
pub(crate) struct Caches {
    cells: Vec<Option<Held>>,
    held: usize,
    /// The slot that was found last, and its index: mostly the next is the same.
    last: (usize, usize),
}

impl Default for Caches {
    fn default() -> Self {
        Self { cells: Vec::new(), held: 0, last: (usize::MAX, 0) }
    }
}

impl Caches {
    /// Returns the index of a slot's access.
    #[inline]
    pub(crate) fn find(&mut self, slot: usize) -> Option<usize> {
        let (last, at) = self.last;
        if last == slot {
            return Some(at);
        }
        let at = self.search(slot)?;
        self.last = (slot, at);
        Some(at)
    }

    fn search(&self, slot: usize) -> Option<usize> {
        let mask = self.cells.len().wrapping_sub(1);
        let mut at = slot & mask;
        loop {
            match self.cells.get(at)? {
                Some(held) if held.slot == slot => return Some(at),
                Some(_) => at = (at + 1) & mask,
                None => return None,
            }
        }
    }

    /// Returns the access at an index that [`Caches::find`] or [`Caches::insert`] returned.
    #[inline]
    pub(crate) fn at(&mut self, at: usize) -> &mut Held {
        match self.cells.get_mut(at) {
            Some(Some(held)) => held,
            _ => unreachable!("found before"),
        }
    }

    fn get_mut(&mut self, slot: usize) -> Option<&mut Held> {
        self.find(slot).map(|at| self.at(at))
    }

    /// Adds the access of a slot that has none. Returns its index.
    pub(crate) fn insert(&mut self, held: Held) -> usize {
        self.held += 1;
        if self.held * 2 > self.cells.len() {
            self.rebuild();
        }
        self.put(held)
    }

    fn put(&mut self, held: Held) -> usize {
        let mask = self.cells.len() - 1;
        let mut at = held.slot & mask;
        while self.cells[at].is_some() {
            at = (at + 1) & mask;
        }
        self.cells[at] = Some(held);
        at
    }

    /// Rebuilds the table with as many cells as the present accesses need.
    fn rebuild(&mut self) {
        let count = (self.held * 2).next_power_of_two();
        let cells = std::mem::take(&mut self.cells);
        self.last = (usize::MAX, 0);
        self.cells.resize_with(count, || None);
        for held in cells.into_iter().flatten() {
            self.put(held);
        }
    }

    /// Removes and returns those for which `f` returns true.
    fn take_if(&mut self, mut f: impl FnMut(&Held) -> bool) -> Vec<Held> {
        let taken: Vec<Held> =
            self.cells.iter_mut().filter_map(|cell| cell.take_if(|held| f(held))).collect();
        if !taken.is_empty() {
            self.held -= taken.len();
            self.rebuild();
        }
        taken
    }

    fn iter(&self) -> impl Iterator<Item = &Held> {
        self.cells.iter().flatten()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.cells.iter_mut().flatten()
    }
}

impl ThreadContext {
    /// Creates a context for the thread with this number, which no other thread has.
    pub(crate) fn new(hub: Arc<Hub>, thread: usize) -> Self {
        assert!(thread < hub.threads(), "the node was made for {} threads", hub.threads());
        let now = Now::default();
        Self {
            now,
            hub,
            thread,
            clock_ns: None,
            process_times_us: None,
            connection: 0,
            caches: Caches::default(),
            retired: Vec::new(),
            parts: Vec::new(),
            calls: Vec::new(),
            clock_us: None,
            keeps_alarms: false,
            may_take_long: true,
            home: thread,
            tickets: 0,
            alarms: BTreeSet::new(),
            letters: Vec::new(),
        }
    }

    /// Returns the monotonic time now, not that of the wake-up.
    pub fn fresh_us(&self) -> u64 {
        self.clock_us.map_or(self.now.mono_us, |clock_us| clock_us())
    }

    /// Notes that this thread will check a vBucket then.
    pub(crate) fn arm(&mut self, at_us: u64, slot: usize, vb: VbId) {
        self.alarms.insert((at_us, slot, vb));
    }

    /// Returns when the next alarm is due, by the monotonic clock.
    #[inline]
    pub fn next_alarm_us(&self) -> Option<u64> {
        self.alarms.first().map(|(at_us, _, _)| *at_us)
    }

    /// Takes the vBucket whose alarm is due next, if it is due by then.
    pub(crate) fn take_alarm(&mut self, now_us: u64) -> Option<(usize, VbId)> {
        let (at_us, slot, vb) = self.alarms.first().copied()?;
        (at_us <= now_us).then(|| {
            self.alarms.pop_first();
            (slot, vb)
        })
    }

    /// Releases the tenants of buckets that are gone, except those with index blocks still to be freed.
    pub(crate) fn drop_gone(&mut self, is_there: impl Fn(usize) -> bool) {
        self.end_batch();
        let Self { retired, caches, .. } = self;
        let is_gone =
            |held: &Held| !retired.iter().any(|retired| retired.slot == held.slot) && !is_there(held.slot);
        for mut held in caches.take_if(is_gone) {
            held.tenant.rest(&mut held.cache);
        }
    }

    /// Returns a number that this thread has never returned before.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// The last ticket returned.
    pub fn last_ticket(&self) -> u64 {
        self.tickets
    }

    /// Makes all later tickets higher than this one: a session's tickets rise, whichever threads execute its requests.
    pub fn skip_tickets(&mut self, last: u64) {
        self.tickets = self.tickets.max(last);
    }

    /// Takes the alarms that this thread has noted, for the thread it works for.
    pub fn take_alarms(&mut self) -> Alarms {
        Alarms(std::mem::take(&mut self.alarms))
    }

    /// Adds the alarms that another thread noted for this one.
    pub fn add_alarms(&mut self, alarms: Alarms) {
        self.alarms.extend(alarms.0);
    }

    /// Notifies a session of the outcome it waits for.
    pub fn post(&mut self, cookie: Cookie, outcome: Outcome) {
        if usize::from(cookie.thread) == self.thread {
            self.letters.push((cookie, outcome));
        } else {
            self.hub.post(cookie, outcome);
        }
    }

    /// Returns true if this thread has posted anything to itself since [`ThreadContext::take_letters`].
    #[inline]
    pub fn has_letters(&self) -> bool {
        !self.letters.is_empty() || !self.calls.is_empty()
    }

    /// Moves the letters for this thread to the end of `into`: its own, and with `from_others` those of its mailbox.
    pub fn take_letters(&mut self, from_others: bool, into: &mut Vec<Letter>) {
        self.call_followers();
        into.append(&mut self.letters);
        if from_others && let Some(mailbox) = self.hub.mailbox(self.thread) {
            mailbox.take(into);
        }
    }

    /// Tells the followers that have news.
    fn call_followers(&mut self) {
        while let Some(cookie) = self.calls.pop() {
            self.post(cookie, Outcome::Stirred);
        }
    }

    /// Ends a batch: publishes what was allocated, tells those who follow, and frees what nobody peeks at any more.
    /// Returns true if blocks are left that wait for another thread's batch to end.
    pub fn end_batch(&mut self) -> bool {
        self.call_followers();
        let mut purge = false;
        for held in self.caches.iter_mut() {
            held.tenant.publish(&mut held.cache);
            purge |= held.tenant.wants_purge();
        }
        if purge {
            self.hub.ask_for_purge();
        }
        if !self.retired.is_empty() {
            self.free_retired();
        }
        !self.retired.is_empty()
    }

    #[expect(unsafe_code, reason = "frees retired index blocks once their stamp has passed")]
    fn free_retired(&mut self) {
        let quiescence = Arc::clone(&self.hub.quiescence);
        for index in (0..self.retired.len()).rev() {
            if !quiescence.has_passed(self.retired[index].stamp) {
                continue;
            }
            let retired = self.retired.swap_remove(index);
            if let Some(held) = self.caches.get_mut(retired.slot) {
                // SAFETY: the slot's tenant is the one it was allocated from (a slot is never given to a second
                // bucket), and its stamp has passed.
                unsafe { retired.free(&held.tenant, &mut held.cache) }
            }
        }
    }

    /// Like [`ThreadContext::rest`], for a thread that calls it seldom: what comes free goes back to the system,
    /// however little it is.
    pub fn rest_for_long(&mut self) -> bool {
        let keeps = self.rest();
        let mut has_rested = false;
        for held in self.caches.iter_mut() {
            if std::mem::take(&mut held.rested) {
                held.tenant.note_rested();
                has_rested = true;
            }
        }
        if has_rested {
            self.hub.pager.ring();
        }
        keeps
    }

    /// Frees what the thread keeps of tenants it has not used since the last call. Returns true if it still keeps any.
    pub fn rest(&mut self) -> bool {
        let mut keeps = false;
        for held in self.caches.iter_mut() {
            if std::mem::take(&mut held.used) {
                keeps = true;
            } else if !Tenant::is_resting(&held.cache) {
                held.tenant.rest(&mut held.cache);
                held.rested = true;
            }
        }
        keeps
    }

    /// Returns true if the thread keeps blocks of any tenant for later.
    pub fn keeps_blocks(&self) -> bool {
        self.caches.iter().any(|held| !Tenant::is_resting(&held.cache))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BucketSettings, Expiry, Key, Limits, Mutation, Node, NodeContext, NodeSettings, Store, StoreKind,
        Value,
    };

    /// However many buckets there ever were, a thread keeps what the living ones need, and finds each one's.
    #[test]
    fn caches_are_those_of_living_buckets() {
        let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed: 7 };
        let node = Node::new(settings, Limits::default());
        let mut cx = NodeContext::new(Arc::clone(&node), 0);
        let mut settings = BucketSettings { vbuckets: 2, ..BucketSettings::default() };
        settings.memory_bytes = 16 << 20;
        node.create_bucket("stays", settings.clone()).unwrap();
        for round in 0..600 {
            let name = format!("passing-{}", round % 3);
            if round >= 3 {
                node.delete_bucket(&name).unwrap();
            }
            node.create_bucket(&name, settings.clone()).unwrap();
            cx.tend();
            for bucket in node.buckets() {
                let key = Key::plain(b"key");
                let store = Store {
                    flags: 0,
                    expiry: Expiry::At(0),
                    datatype: 0,
                    value: Value::Bytes(b"v"),
                    new_cas: 0,
                };
                let at = bucket.locate(key);
                bucket.mutate(&mut cx, key, at, Mutation { kind: StoreKind::Set, cas: 0, store }).unwrap();
                let cache = cx.caches.find(bucket.slot()).unwrap();
                assert!(Arc::ptr_eq(&cx.caches.at(cache).tenant, bucket.tenant()));
            }
            cx.end_batch();
            assert!(cx.caches.iter().count() <= 4 && cx.caches.cells.len() <= 8, "round {round}");
        }
        assert_eq!(cx.caches.iter().count(), 4);
    }
}
