//! Waiting answers of a session, and the requests that must wait for them.
//!
//! ```text
//!   in order      | waiting A | held: answers of B, C | deferred: another request for A's key | held ... |
//!                   └ the outcome arrives in a letter with its ticket
//!   unordered     | waiting A | waiting D |            answers are sent as they arrive
//! ```
//! A request is executed at once even behind a waiting answer; only its own answer is held back. The exceptions are
//! *deferred*, as owned copies: a request for the key of a waiting one, and a *fence*, a request that is ordered with
//! everything before and after it (a change of the session, `flush_all`, a barrier). Under unordered execution nothing
//! is held back; there only quiet requests touch their key ([`couchbase::touch_unordered`]), and only they and fences
//! are deferred.
//!
//! A request whose value is only on disk is *parked*, as a copy, and executed once the value has been fetched.
//!
//! Slots are ordered by their tickets, which increase in the order of the requests. A session has this state only while
//! something waits.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::request::OwnedRequest;
use super::{Filling, Output, Refusal, couchbase};

/// Memory charged for a slot besides the bytes it holds.
const SLOT_BYTES: usize = 256;

/// What a request touches, for ordering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    /// Nothing that another request changes.
    Nothing,
    /// One key, by its hash. (Two keys with the same hash wait for each other.)
    Key(u64),
    /// Everything: it waits for all before it, and all behind it wait for it.
    Everything,
}

/// A request that is kept.
pub(super) enum Owned {
    Request(OwnedRequest),
    /// One whose body is refused.
    Refused(OwnedRequest, Refusal),
    /// One with a large value.
    Filled(Box<Filling>),
}

impl Owned {
    /// Bytes it holds; a large value is already charged.
    fn bytes(&self) -> usize {
        match self {
            Self::Request(request) | Self::Refused(request, _) => request.bytes().len(),
            Self::Filled(filling) => filling.head.len(),
        }
    }
}

enum Slot {
    /// Answers that wait for those before them.
    Held(Output),
    /// It has been executed; its outcome arrives in a letter.
    Waiting { touch: Touch, answer: couchbase::Pending },
    /// To be executed when the requests it waits for are finished.
    Deferred { touch: Touch, request: Owned },
    /// To be executed when its letter arrives: a value is being fetched.
    Parked { touch: Touch, request: Owned, value_bytes: usize },
}

impl Slot {
    fn bytes(&self) -> usize {
        SLOT_BYTES
            + match self {
                Self::Held(out) => out.len(),
                Self::Waiting { .. } => 0,
                Self::Deferred { request, .. } => request.bytes(),
                // The answer will hold the value.
                Self::Parked { request, value_bytes, .. } => request.bytes() + value_bytes,
            }
    }
}

/// A request that waits, or answers that are held back behind one.
#[derive(Debug, Clone, Copy)]
pub struct LastSlot {
    /// Its ticket, or theirs.
    pub ticket: u64,
    /// Bytes of the answers that are held back.
    pub held_bytes: usize,
}

/// What a letter is about.
pub(super) enum Awaited {
    /// A request that has been executed.
    Answer(couchbase::Pending),
    /// One to execute now.
    Request(Owned),
}

/// The waiting answers of a session; see the module.
#[derive(Default)]
pub struct Waits {
    slots: BTreeMap<u64, Slot>,
    /// Tickets of slots that are not held answers.
    unfinished: BTreeSet<u64>,
    fences: BTreeSet<u64>,
    /// The unfinished tickets of each key, in order.
    queues: HashMap<u64, VecDeque<u64>>,
    /// Deferred requests that nothing blocks any more.
    ready: BTreeSet<u64>,
    /// The slot whose deferred request is being executed.
    current: Option<(u64, Touch)>,
    bytes: usize,
}

impl Waits {
    /// Those of a session that is elsewhere: nothing is executed until it is back.
    pub(super) fn fenced() -> Self {
        Self { fences: BTreeSet::from([0]), ..Self::default() }
    }

    /// Bytes of held answers and copies, and of the slots themselves.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if a fence waits: nothing behind it can be executed.
    pub(super) fn is_fenced(&self) -> bool {
        !self.fences.is_empty()
    }

    /// Returns true if a request that touches one key is unfinished.
    pub(super) fn has_keyed(&self) -> bool {
        !self.queues.is_empty()
    }

    /// The last slot.
    pub(super) fn last(&self) -> Option<LastSlot> {
        let (ticket, slot) = self.slots.last_key_value()?;
        let held_bytes = if let Slot::Held(out) = slot { out.len() } else { 0 };
        Some(LastSlot { ticket: *ticket, held_bytes })
    }

    /// Returns true if there is a slot of this ticket.
    pub(super) fn has(&self, ticket: u64) -> bool {
        self.slots.contains_key(&ticket)
    }

    /// Returns true if nothing waits any more.
    pub(super) fn is_over(&self) -> bool {
        self.slots.is_empty()
    }

    /// The ticket of the request being executed, if it already has one.
    pub(super) fn current(&self) -> Option<u64> {
        self.current.map(|(ticket, _)| ticket)
    }

    /// Returns true if a request must not be executed now.
    pub(super) fn defers(&self, touch: Touch) -> bool {
        match touch {
            _ if self.is_fenced() => true,
            Touch::Nothing => false,
            Touch::Key(hash) => self.queues.contains_key(&hash),
            Touch::Everything => !self.unfinished.is_empty(),
        }
    }

    fn put(&mut self, ticket: u64, slot: Slot) {
        self.bytes += slot.bytes();
        let replaced = self.slots.insert(ticket, slot);
        debug_assert!(replaced.is_none(), "two slots of one ticket");
    }

    fn take(&mut self, ticket: u64) -> Option<Slot> {
        let slot = self.slots.remove(&ticket)?;
        self.bytes -= slot.bytes();
        Some(slot)
    }

    fn begin(&mut self, ticket: u64, touch: Touch) {
        self.unfinished.insert(ticket);
        match touch {
            Touch::Nothing => {}
            Touch::Key(hash) => self.queues.entry(hash).or_default().push_back(ticket),
            Touch::Everything => drop(self.fences.insert(ticket)),
        }
    }

    /// Notes that the request of this ticket has been executed and its answer waits.
    pub(super) fn wait(&mut self, ticket: u64, touch: Touch, answer: couchbase::Pending) {
        let touch = self.begin_or_keep(ticket, touch);
        self.put(ticket, Slot::Waiting { touch, answer });
    }

    /// Parks the request of this ticket until its letter arrives.
    pub(super) fn park(&mut self, ticket: u64, touch: Touch, request: Owned, value_bytes: usize) {
        let touch = self.begin_or_keep(ticket, touch);
        self.put(ticket, Slot::Parked { touch, request, value_bytes });
    }

    /// Begins a request; one that was deferred or parked before keeps its place.
    fn begin_or_keep(&mut self, ticket: u64, touch: Touch) -> Touch {
        match self.current {
            Some((current, touch)) if current == ticket => touch,
            _ => {
                self.begin(ticket, touch);
                touch
            }
        }
    }

    /// Defers a request.
    pub(super) fn defer(&mut self, ticket: u64, touch: Touch, request: Owned) {
        self.begin(ticket, touch);
        self.put(ticket, Slot::Deferred { touch, request });
    }

    /// Takes the last slot's output to append to it, or a new one; return it with [`Waits::hold`].
    pub(super) fn tail(&mut self, new_ticket: u64) -> (u64, Output) {
        let last = self.slots.last_key_value().filter(|(_, slot)| matches!(slot, Slot::Held(_)));
        match last.map(|(ticket, _)| *ticket).and_then(|ticket| Some((ticket, self.take(ticket)?))) {
            Some((ticket, Slot::Held(out))) => (ticket, out),
            _ => (new_ticket, Output::default()),
        }
    }

    /// Holds answers back in their place.
    pub(super) fn hold(&mut self, ticket: u64, out: Output) {
        if !out.is_empty() {
            self.put(ticket, Slot::Held(out));
        }
    }

    /// Takes what waits under this ticket; `None` if nothing does. After executing a request, call [`Waits::executed`].
    pub(super) fn awaited(&mut self, ticket: u64) -> Option<Awaited> {
        if !matches!(self.slots.get(&ticket)?, Slot::Waiting { .. } | Slot::Parked { .. }) {
            return None;
        }
        match self.take(ticket)? {
            Slot::Waiting { touch, answer } => {
                self.finish(ticket, touch);
                Some(Awaited::Answer(answer))
            }
            Slot::Parked { touch, request, .. } => {
                self.current = Some((ticket, touch));
                Some(Awaited::Request(request))
            }
            Slot::Held(_) | Slot::Deferred { .. } => None,
        }
    }

    /// Takes a deferred request that can be executed now. Afterwards call [`Waits::executed`].
    pub(super) fn next_ready(&mut self) -> Option<Owned> {
        let ticket = self.ready.pop_first()?;
        match self.take(ticket)? {
            Slot::Deferred { touch, request } => {
                self.current = Some((ticket, touch));
                Some(request)
            }
            _ => None,
        }
    }

    /// Notes that the deferred request has been executed, and holds its answer. The request is finished unless it now
    /// waits itself.
    pub(super) fn executed(&mut self, held: Output) {
        let Some((ticket, touch)) = self.current.take() else { return };
        if self.slots.contains_key(&ticket) {
            debug_assert!(held.is_empty(), "an answer that waits, and one that does not");
            return;
        }
        self.hold(ticket, held);
        self.finish(ticket, touch);
    }

    /// Notes that the connection closes after the request of this ticket: later requests are not answered.
    pub(super) fn drop_after(&mut self, ticket: u64) {
        let later: Vec<u64> = self.slots.range(ticket + 1..).map(|(ticket, _)| *ticket).collect();
        for ticket in later {
            self.take(ticket);
            self.unfinished.remove(&ticket);
            self.fences.remove(&ticket);
            self.ready.remove(&ticket);
        }
        self.queues.values_mut().for_each(|queue| queue.retain(|queued| *queued <= ticket));
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    /// Takes the first answers if nothing before them waits.
    pub(super) fn release(&mut self) -> Option<Output> {
        let (ticket, slot) = self.slots.first_key_value()?;
        let ticket = *ticket;
        if !matches!(slot, Slot::Held(_)) {
            return None;
        }
        match self.take(ticket)? {
            Slot::Held(out) => Some(out),
            _ => None,
        }
    }

    /// Finishes a request: those that waited only for it become ready.
    fn finish(&mut self, ticket: u64, touch: Touch) {
        self.unfinished.remove(&ticket);
        match touch {
            Touch::Nothing => {}
            Touch::Key(hash) => {
                if let Some(queue) = self.queues.get_mut(&hash) {
                    debug_assert_eq!(queue.front(), Some(&ticket), "requests of one key end in order");
                    queue.pop_front();
                    match queue.front().copied() {
                        Some(next) => self.wake(next),
                        None => drop(self.queues.remove(&hash)),
                    }
                }
            }
            Touch::Everything => {
                self.fences.remove(&ticket);
                let end = self.fences.first().copied().unwrap_or(u64::MAX);
                let behind: Vec<u64> = self.unfinished.range(ticket..end).copied().collect();
                behind.into_iter().for_each(|ticket| self.wake(ticket));
            }
        }
        if let Some(fence) = self.fences.first().copied() {
            self.wake(fence);
        }
    }

    fn wake(&mut self, ticket: u64) {
        if let Some(Slot::Deferred { touch, .. }) = self.slots.get(&ticket)
            && self.may_run(ticket, *touch)
        {
            self.ready.insert(ticket);
        }
    }

    fn may_run(&self, ticket: u64, touch: Touch) -> bool {
        let is_before_fences = self.fences.first().is_none_or(|fence| *fence > ticket);
        match touch {
            Touch::Nothing => is_before_fences,
            Touch::Key(hash) => {
                is_before_fences && self.queues.get(&hash).is_some_and(|queue| queue.front() == Some(&ticket))
            }
            Touch::Everything => self.unfinished.first() == Some(&ticket),
        }
    }
}
