//! The conditional operations on one key: stores, removals, counters, each with its meters.

use std::sync::atomic::Ordering::Relaxed;

use super::watch::{Attempt, Deletion};
use super::{Bucket, LONGEST_NUMBER, attention};
use crate::class_counters::ClassCounter;
use crate::index::least_item_size;
use crate::{
    Entry, Expiry, Key, KvError, Meter, Mutated, Mutation, Place, Store, StoreKind, ThreadContext, Value,
};

/// A Couchbase counter operation; see [`Bucket::arithmetic`].
#[derive(Debug, Clone, Copy)]
pub struct Arithmetic {
    /// Amount.
    pub delta: u64,
    /// Subtract (floors at 0) instead of adding (wraps at 2^64).
    pub decrement: bool,
    /// Value of a new document; `None` = NotFound if missing.
    pub initial: Option<u64>,
    /// Expiry of a new document; an existing one keeps its own.
    pub expiry: Expiry,
    /// Required CAS; 0 = any.
    pub cas: u64,
    /// Explicit new CAS; 0 = next of the clock.
    pub new_cas: u64,
}

impl Bucket {
    /// SET, ADD, REPLACE, APPEND, PREPEND, CAS: one conditional store. Locked documents: [`KvError::Locked`] unless the
    /// CAS is the lock's (which also unlocks).
    #[inline(always)]
    pub fn mutate(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        mutation: Mutation<'_>,
    ) -> Result<Mutated, KvError> {
        if let Mutation { kind: StoreKind::Set, cas: 0, store } = &mutation
            && let Store { expiry: Expiry::At(0), value: Value::Bytes(value), new_cas: 0, .. } = store
            && let Some(mutated) = self.overwrite(cx, key, at, store.flags, store.datatype, value)
        {
            return Ok(mutated);
        }
        self.mutate_any(cx, key, at, mutation)
    }

    /// The most common mutation: a plain SET of another value of much the same size over a small document, without a
    /// condition or an expiry. Its arguments stay in registers. Returns `None`, with nothing changed, for anything
    /// else.
    #[inline(always)]
    fn overwrite(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        flags: u32,
        datatype: u8,
        value: &[u8],
    ) -> Option<Mutated> {
        self.admit_in_place(cx, key.bytes.len() + value.len()).ok()?;
        if self.attention.load(Relaxed)
            & (attention::FLUSH | attention::GATES | attention::WATCHED | attention::TTL)
            != 0
        {
            return None;
        }
        let mut locked = self.lock(cx, at.vb);
        if !self.collections().has(key.collection) {
            return None;
        }
        let present = locked.live(key, at.hash)?;
        let (cas, seqno) = locked.overwrite(present, datatype, flags, value)?;
        drop(locked);
        self.count_set(cx, least_item_size(key, value.len()));
        self.count(cx, Meter::TotalItems, 1);
        Some(Mutated { cas, seqno, vb_uuid: self.vb_uuid(at.vb) })
    }

    /// Like [`Bucket::with_entry`], with a single error type that includes unavailability.
    #[inline(always)]
    pub fn change<R>(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        f: impl FnOnce(&mut Entry<'_>) -> Result<R, KvError>,
    ) -> Result<R, KvError> {
        self.with_entry(cx, key, at, f)?
    }

    fn mutate_any(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        mutation: Mutation<'_>,
    ) -> Result<Mutated, KvError> {
        let added = key.bytes.len() + mutation.store.value.len();
        let value_len = mutation.store.value.len();
        let mut attempt = Attempt::of(self, key, &mutation);
        let result = match self.admit(cx, added) {
            Ok(()) => self.change(cx, key, at, |entry| {
                let mutated = mutate_entry(entry, &mutation.kind, mutation.cas, mutation.store)?;
                if let Some(attempt) = &mut attempt {
                    attempt.note(entry);
                }
                Ok(mutated)
            }),
            Err(error) => Err(error),
        };
        if matches!(result, Err(KvError::TakesLong)) {
            return result;
        }
        self.count_store_of(cx, (key, value_len), mutation.cas != 0, result.map(drop));
        if let Some(attempt) = attempt {
            attempt.report(self, cx, key, result.map(drop));
        }
        result
    }

    /// Counts an attempted store, but not by size class.
    pub fn count_store(&self, cx: &ThreadContext, with_cas: bool, result: Result<(), KvError>) {
        self.count(cx, Meter::CmdSet, 1);
        self.count_outcome(cx, with_cas, result);
    }

    /// Counts an attempted store of a key and a value of this length.
    pub fn count_store_of(
        &self,
        cx: &ThreadContext,
        (key, value_len): (Key<'_>, usize),
        with_cas: bool,
        result: Result<(), KvError>,
    ) {
        let size = least_item_size(key, value_len);
        self.count_set(cx, size);
        self.count_outcome(cx, with_cas, result);
        let counter = match result {
            Ok(()) if with_cas => ClassCounter::CasHits,
            Ok(()) => return,
            Err(KvError::Exists) if with_cas => ClassCounter::CasBadval,
            Err(KvError::NoMemory) => ClassCounter::OutOfMemory,
            Err(_) => return,
        };
        self.count_in_class(cx, size, counter);
    }

    fn count_outcome(&self, cx: &ThreadContext, with_cas: bool, result: Result<(), KvError>) {
        match result {
            Ok(()) => {
                self.count(cx, Meter::TotalItems, 1);
                if with_cas {
                    self.count(cx, Meter::CasHits, 1);
                }
            }
            Err(error) => self.count_failed_store(cx, with_cas, error),
        }
    }

    fn count_failed_store(&self, cx: &ThreadContext, with_cas: bool, error: KvError) {
        match error {
            KvError::NoMemory => self.count(cx, Meter::StoreNoMemory, 1),
            KvError::TooBig => self.count(cx, Meter::StoreTooLarge, 1),
            KvError::NotFound if with_cas => self.count(cx, Meter::CasMisses, 1),
            KvError::Exists if with_cas => self.count(cx, Meter::CasBadval, 1),
            _ => {}
        }
    }

    /// DELETE; `cas` 0 = any.
    pub fn remove(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        cas: u64,
    ) -> Result<Mutated, KvError> {
        self.remove_as(cx, key, at, cas, None)
    }

    /// DELETE, reported to the watchers of deletions.
    pub fn remove_as(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        cas: u64,
        mut deletion: Option<Deletion>,
    ) -> Result<Mutated, KvError> {
        let mut size = 0;
        let result = self.change(cx, key, at, |entry| {
            entry.check_version(cas)?;
            size = entry.item_size();
            if let Some(deletion) = &mut deletion {
                deletion.note(entry);
            }
            entry.remove()
        });
        self.count_removal(cx, result.map(drop));
        if result.is_ok() {
            self.count_in_class(cx, size, ClassCounter::DeleteHits);
            if let Some(deletion) = deletion {
                deletion.report(self, cx, key);
            }
        }
        result
    }

    /// Removes the old document after an unconditional set was refused for its length or for lack of memory: as in
    /// memcached, readers must not go on seeing what was replaced. A persistent bucket keeps it: what is on disk is not
    /// given up for a failed request. A document that is locked, or waits for a durable write, stays too.
    pub fn drop_replaced(&self, cx: &mut ThreadContext, key: Key<'_>, at: Place) {
        if self.persistence().is_none() && self.serves(at.vb.0) {
            // Nobody asks whether it existed and could be removed.
            let _ = self.change(cx, key, at, |entry| entry.remove());
        }
    }

    /// Counts an attempted removal.
    pub fn count_removal(&self, cx: &ThreadContext, result: Result<(), KvError>) {
        match result {
            Ok(()) => self.count(cx, Meter::DeleteHits, 1),
            Err(KvError::NotFound) => self.count(cx, Meter::DeleteMisses, 1),
            Err(_) => {}
        }
    }

    /// INCR/DECR; returns the new number.
    pub fn arithmetic(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        how: Arithmetic,
    ) -> Result<(u64, Mutated), KvError> {
        self.admit(cx, key.bytes.len() + LONGEST_NUMBER)?;
        let (mut existed, mut size) = (false, 0);
        let mut attempt = Attempt::to_count(self, key, how.initial.unwrap_or(0), how.expiry);
        let result = self.change(cx, key, at, |entry| {
            existed = entry.document().is_some();
            size = entry.item_size();
            let counted = count_entry(entry, &how)?;
            if let Some(attempt) = &mut attempt {
                attempt.note(entry);
            }
            Ok(counted)
        });
        if !existed || result.is_ok() {
            let size = existed.then_some(size);
            self.count_arithmetic_of(cx, how.decrement, size);
        }
        if let Some(attempt) = attempt.filter(|_| result.is_ok() && !existed) {
            attempt.report(self, cx, key, Ok(()));
        }
        result
    }

    /// Counts a counter operation on an item of this size, or on none.
    pub fn count_arithmetic_of(&self, cx: &ThreadContext, decrement: bool, found: Option<usize>) {
        self.count_arithmetic(cx, decrement, found.is_some());
        if let Some(size) = found {
            let counter = if decrement { ClassCounter::DecrHits } else { ClassCounter::IncrHits };
            self.count_in_class(cx, size, counter);
        }
    }

    /// Counts a counter operation, but not by size class. `hit`: the document existed.
    pub fn count_arithmetic(&self, cx: &ThreadContext, decrement: bool, hit: bool) {
        let meter = match (decrement, hit) {
            (false, true) => Meter::IncrHits,
            (false, false) => Meter::IncrMisses,
            (true, true) => Meter::DecrHits,
            (true, false) => Meter::DecrMisses,
        };
        self.count(cx, meter, 1);
    }

    /// Counts an attempted change of the expiry of an item of this size, or of none.
    pub fn count_touch_of(&self, cx: &ThreadContext, found: Option<usize>) {
        self.count_touch(cx, found.is_some());
        if let Some(size) = found {
            self.count_in_class(cx, size, ClassCounter::TouchHits);
        }
    }

    /// Counts an attempted change of an expiry, but not by size class.
    pub fn count_touch(&self, cx: &ThreadContext, hit: bool) {
        self.count(cx, Meter::CmdTouch, 1);
        self.count(cx, if hit { Meter::TouchHits } else { Meter::TouchMisses }, 1);
    }
}

impl Entry<'_> {
    /// Stores under a condition.
    pub fn mutate(&mut self, mutation: Mutation<'_>) -> Result<Mutated, KvError> {
        let Mutation { kind, cas, store } = mutation;
        mutate_entry(self, &kind, cas, store)
    }
}

#[inline(always)]
pub(crate) fn mutate_entry(
    entry: &mut Entry<'_>,
    kind: &StoreKind,
    cas: u64,
    store: Store<'_>,
) -> Result<Mutated, KvError> {
    let version = entry.check_version(cas);
    match kind {
        StoreKind::Set => match version {
            Err(KvError::NotFound) if cas == 0 => entry.store(store),
            Ok(()) => entry.store(store),
            Err(error) => Err(error),
        },
        StoreKind::Add => match version {
            Err(KvError::NotFound) => entry.store(store),
            Err(error @ (KvError::Locked | KvError::SyncWriteInProgress)) => Err(error),
            _ => Err(KvError::Exists),
        },
        StoreKind::Replace => version.and_then(|()| entry.store(store)),
        StoreKind::Append | StoreKind::Prepend => match version {
            Err(KvError::NotFound) => Err(KvError::NotStored),
            Err(error) => Err(error),
            Ok(()) => entry.extend(&store.value, *kind == StoreKind::Prepend, store.new_cas),
        },
    }
}

pub(crate) fn count_entry(entry: &mut Entry<'_>, how: &Arithmetic) -> Result<(u64, Mutated), KvError> {
    match entry.check_version(how.cas) {
        Err(KvError::NotFound) => {
            let number = how.initial.ok_or(KvError::NotFound)?;
            let text = number.to_string();
            let value = Value::Bytes(text.as_bytes());
            let store = Store { flags: 0, expiry: how.expiry, datatype: 0, value, new_cas: how.new_cas };
            return entry.store(store).map(|mutated| (number, mutated));
        }
        other => other?,
    }
    let Some(document) = entry.document() else { return Err(KvError::NotFound) };
    // Checked before a longer one is inflated.
    if document.value_len() > LONGEST_NUMBER {
        return Err(KvError::DeltaBadValue);
    }
    let old = parse_number(&document.value()).ok_or(KvError::DeltaBadValue)?;
    let number = if how.decrement { old.saturating_sub(how.delta) } else { old.wrapping_add(how.delta) };
    let (flags, text) = (document.flags(), number.to_string());
    let value = Value::Bytes(text.as_bytes());
    let store = Store { flags, expiry: Expiry::Keep, datatype: 0, value, new_cas: how.new_cas };
    entry.store(store).map(|mutated| (number, mutated))
}

/// Parses a counter's number: decimal digits, trailing spaces allowed, at most 20 characters.
fn parse_number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= LONGEST_NUMBER)?;
    let digits = text.trim_end_matches(' ');
    if digits.starts_with('+') { None } else { digits.parse().ok() }
}
