//! The changes of scopes and collections, among the changes of a vBucket.
//!
//! ```text
//!   manifest  uid 3 ──written to, or followed──> tell_changes: a seqno for each change since the uid told last
//! ```
//! A consumer has to hear of a collection before it gets a document of it. So a change gets its seqno here before the
//! next document of a named collection does; or when somebody follows, and then soon after it is made.

use super::vbucket::{Locked, State, VBucket};
use crate::collections::{Change, DEFAULT_ID, DROPS_MOST, Manifest, SystemEvent};

/// A change and its seqno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) seqno: u64,
    pub(crate) event: SystemEvent,
}

/// The changes that have a seqno.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Events {
    /// The manifest whose changes are all told.
    pub(crate) uid: u64,
    /// In the order of their seqnos, without those that later ones supersede.
    pub(crate) list: Vec<Told>,
}

impl Events {
    /// Adds a change. Returns the seqno of one that is forgotten for it.
    pub(super) fn push(&mut self, told: Told) -> Option<u64> {
        self.list.retain(|older| !told.event.supersedes(&older.event));
        self.list.push(told);
        let is_drop = |told: &Told| matches!(told.event.what, Change::DropCollection | Change::DropScope);
        if self.list.iter().filter(|told| is_drop(told)).count() <= DROPS_MOST {
            return None;
        }
        let oldest = self.list.iter().position(is_drop)?;
        Some(self.list.remove(oldest).seqno)
    }

    /// Returns the manifest's uid of the last of them.
    pub(crate) fn last_uid(&self) -> u64 {
        self.list.last().map_or(0, |told| told.event.uid)
    }

    /// Returns the changes with seqnos above `after`, up to `end`.
    fn between(&self, after: u64, end: u64) -> &[Told] {
        let from = self.list.partition_point(|told| told.seqno <= after);
        let to = self.list.partition_point(|told| told.seqno <= end);
        self.list.get(from..to).unwrap_or_default()
    }
}

impl VBucket {
    /// Returns true if another node is in a chain of this active, and a majority has not acknowledged the last change
    /// of a manifest yet.
    pub(crate) fn awaits_acknowledgement(&self, manifest: &Manifest) -> bool {
        self.state.lock().awaits_acknowledgement(manifest)
    }
}

impl State {
    fn awaits_acknowledgement(&self, manifest: &Manifest) -> bool {
        let Some(rare) = &self.rare else { return false };
        let sync = rare.sync_writes.as_ref().filter(|sync| sync.is_active_with_others());
        let Some(sync) = sync else { return false };
        let (told_uid, last) = rare.events.as_ref().map_or((0, None), |told| (told.uid, told.list.last()));
        let has_all = told_uid == manifest.uid || manifest.events_after(told_uid).is_empty();
        !has_all || last.is_some_and(|told| !sync.monitor.is_acknowledged(told.seqno))
    }
}

impl Locked<'_> {
    pub(crate) fn told(&self) -> Option<&Events> {
        self.state.rare.as_ref()?.events.as_deref()
    }

    /// Returns the seqno of the last change.
    pub(crate) fn last_event(&self) -> Option<u64> {
        self.told()?.list.last().map(|told| told.seqno)
    }

    /// Returns true if this vBucket has been told of a collection.
    pub(crate) fn knows_collection(&self, id: u32) -> bool {
        let creates =
            |told: &Told| (told.event.what, told.event.collection) == (Change::CreateCollection, id);
        self.told().is_some_and(|told| told.list.iter().any(creates))
    }

    /// See [`VBucket::awaits_acknowledgement`].
    pub(crate) fn awaits_acknowledgement(&self, manifest: &Manifest) -> bool {
        self.state.awaits_acknowledgement(manifest)
    }

    /// Returns the changes that have a seqno.
    pub(crate) fn events(&self) -> Events {
        self.told().cloned().unwrap_or_default()
    }

    /// Takes the changes that a journal has.
    pub(crate) fn set_events(&mut self, events: Events) {
        let is_any = events != Events::default();
        if let Some(rare) = self.state.rare.as_mut().filter(|_| !is_any) {
            rare.events = None;
        }
        if is_any {
            self.state.rare.get_or_insert_default().events = Some(Box::new(events));
        }
    }

    /// Returns the changes with seqnos above `after`, up to `end`.
    pub(crate) fn events_between(&self, after: u64, end: u64) -> &[Told] {
        self.told().map(|told| told.between(after, end)).unwrap_or_default()
    }

    /// Tells what has changed, before a document of this collection gets its seqno.
    #[inline]
    pub(crate) fn tell_changes_before(&mut self, collection: u32) {
        if collection != DEFAULT_ID {
            self.tell_changes();
        }
    }

    /// Assigns a seqno to each change of the scopes and collections that has none yet.
    pub(crate) fn tell_changes(&mut self) {
        let told_uid = self.told().map_or(0, |told| told.uid);
        if told_uid != self.memory.resources.collections.uid() && !self.is_inactive() {
            self.tell_changes_since(told_uid);
        }
    }

    #[cold]
    fn tell_changes_since(&mut self, told_uid: u64) {
        let manifest = self.memory.resources.collections.manifest();
        if manifest.uid == told_uid {
            return;
        }
        let mut events = self.events();
        // After one that was lost, with changes that have no event.
        let told_uid = if told_uid > manifest.uid { events.last_uid() } else { told_uid };
        let mut forgotten =
            (0 < told_uid && told_uid < manifest.forgotten_uid()).then_some(self.state.high_seqno);
        for event in manifest.events_after(told_uid) {
            self.state.high_seqno += 1;
            forgotten = events.push(Told { seqno: self.state.high_seqno, event }).max(forgotten);
        }
        if events == Events::default() {
            // Nothing that streams are told of: the scopes and collections that every bucket has.
            return;
        }
        events.uid = manifest.uid;
        self.set_events(events);
        self.note_state();
        if let Some(seqno) = forgotten {
            self.purge(seqno, u32::MAX);
        }
        self.call_followers(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(seqno: u64, what: Change, collection: u32) -> Told {
        Told { seqno, event: SystemEvent { uid: seqno, what, scope: 0, collection } }
    }

    #[test]
    fn a_drop_supersedes_its_creation_and_old_drops_are_forgotten() {
        let mut events = Events::default();
        for at in 0..=DROPS_MOST as u64 {
            let id = at as u32;
            assert_eq!(events.push(told(2 * at + 1, Change::CreateCollection, id)), None);
            let forgotten = events.push(told(2 * at + 2, Change::DropCollection, id));
            assert_eq!(forgotten, (at == DROPS_MOST as u64).then_some(2));
        }
        assert_eq!(events.list.len(), DROPS_MOST);
        assert_eq!(events.between(4, 8).iter().map(|told| told.seqno).collect::<Vec<_>>(), [6, 8]);
        assert_eq!(events.between(0, 3), []);
    }
}
