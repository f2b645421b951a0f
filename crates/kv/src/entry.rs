//! One key under its vBucket's lock: the primitive from which every command is made.

use wire::snappy;

use crate::LARGE_VALUE;
use crate::index::{Header, Kind, Locked, NewValue, Present, VALUE_MAX, large_value_offset, mark};
use crate::{Document, Expiry, Key, KvError, Mutated, Store, Value};

/// A key, present or missing, while its vBucket is locked. Obtained from [`crate::Bucket::with_entry`]. Expired,
/// flushed and deleted documents look missing.
pub struct Entry<'v> {
    locked: Locked<'v>,
    key: Key<'v>,
    hash: u64,
    vb_uuid: u64,
    present: Option<Present>,
    /// The CAS that the caller names: a document lock's CAS opens it. 0: none.
    named_cas: u64,
    /// Durability level to prepare writes at; 0: write at once.
    level: u8,
    /// Hides this access from watchers.
    is_glance: bool,
}

impl<'v> Entry<'v> {
    #[inline(always)]
    pub(crate) fn new(locked: Locked<'v>, key: Key<'v>, hash: u64, vb_uuid: u64) -> Self {
        // Looked up in place: moving what was just written stalls the processor.
        let mut entry =
            Self { locked, key, hash, vb_uuid, present: None, named_cas: 0, level: 0, is_glance: false };
        entry.present = entry.locked.look_up(key, hash).ok();
        entry
    }

    /// Hides this access from watchers: it only prepares the request itself.
    #[inline]
    pub fn glance(&mut self) {
        self.is_glance = true;
    }

    #[inline]
    pub(crate) fn is_glance(&self) -> bool {
        self.is_glance
    }

    /// Returns true if a value was wanted that is not in memory.
    #[inline]
    pub(crate) fn has_missed(&self) -> bool {
        self.locked.has_missed()
    }

    #[inline]
    pub(crate) fn armed_s(&self) -> u32 {
        self.locked.armed_s()
    }

    #[inline]
    fn current(&self) -> Option<(Present, Header)> {
        self.present.map(|present| (present, self.locked.header(present)))
    }

    /// Returns the live document, if there is one.
    #[inline]
    pub fn document(&self) -> Option<Document<'_>> {
        self.present.as_ref().map(|present| Document::new(&self.locked, present))
    }

    pub(crate) fn locked(&mut self) -> &mut Locked<'v> {
        &mut self.locked
    }

    /// Returns true if there is a live document.
    #[inline]
    pub fn exists(&self) -> bool {
        self.present.is_some()
    }

    /// Returns true if the document may be locked or wait for a commit; checked before looking closer.
    #[inline]
    pub(crate) fn may_be_held(&self) -> bool {
        self.locked.has_holds()
    }

    /// Makes everything stored, extended or removed from now on a prepare at this durability level (1 to 3): it becomes
    /// visible with [`crate::Bucket::commit`]. The seqno of [`Mutated`] is the prepare's.
    pub fn prepare_at(&mut self, level: u8) {
        self.level = level;
    }

    /// Returns the seqno of the prepare that this key waits for: no other write is accepted meanwhile.
    #[inline]
    pub fn pending(&self) -> Option<u64> {
        if self.may_be_held() { self.locked.pending(self.hash) } else { None }
    }

    /// [`KvError::SyncWriteInProgress`] while a prepare waits for its commit.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), KvError> {
        if self.pending().is_some() { Err(KvError::SyncWriteInProgress) } else { Ok(()) }
    }

    /// Sets the CAS that the caller names for the present version. A locked document can be changed only by naming the
    /// lock's CAS, whatever the operation and protocol; a successful change ends the lock.
    #[inline]
    pub fn name_cas(&mut self, cas: u64) {
        self.named_cas = cas;
    }

    /// Everything of the vBucket up to this seqno is on disk.
    pub(crate) fn persisted_seqno(&self) -> u64 {
        self.locked.persisted_seqno()
    }

    /// As [`Entry::check_open`], and [`KvError::Locked`] if the document is locked and its lock's CAS was not named.
    #[inline]
    pub fn check_changeable(&self) -> Result<(), KvError> {
        if !self.may_be_held() {
            return Ok(());
        }
        self.check_open()?;
        match self.document() {
            Some(document) if document.is_locked() && document.cas() != self.named_cas => {
                Err(KvError::Locked)
            }
            _ => Ok(()),
        }
    }

    /// Returns the document with its value in memory. [`KvError::NotFound`] if missing, [`KvError::NotResident`] if
    /// ejected.
    fn resident(&self) -> Result<(Present, Header), KvError> {
        let (present, header) = self.current().ok_or(KvError::NotFound)?;
        if header.kind == Kind::Ejected {
            self.locked.miss();
            return Err(KvError::NotResident);
        }
        Ok((present, header))
    }

    /// Marks the document as read now: fetched bit, last access, frequency. ([`crate::Bucket::read`] does it itself.)
    #[inline]
    pub fn record_access(&mut self) {
        if let Some(present) = self.present {
            self.locked.record_access(present);
        }
    }

    fn mutated(&self, cas: u64, seqno: u64) -> Mutated {
        Mutated { cas, seqno, vb_uuid: self.vb_uuid }
    }

    /// Stores over whatever is there, with no condition but that of [`Entry::name_cas`]: check [`Entry::document`]
    /// first. Clears stale and win marks, and a document lock.
    #[inline]
    pub fn store(&mut self, store: Store<'_>) -> Result<Mutated, KvError> {
        self.check_changeable()?;
        let old = self.current();
        let expiry = match store.expiry {
            Expiry::At(at) => at,
            Expiry::Keep => old.map_or(0, |(_, header)| header.expiry),
        };
        let header = Header {
            cas: self.locked.cas_for(store.new_cas)?,
            seqno: 0,
            kind: Kind::Document,
            committed: false,
            rev: old.map_or_else(|| self.locked.first_rev(), |(_, header)| header.rev + 1),
            value_len: 0,
            inflated_len: 0,
            key_len: 0,
            datatype: store.datatype,
            marks: 0,
            accessed: self.locked.now.unix_s & 0xf_ffff,
            flags: store.flags,
            expiry,
        };
        let value = match store.value {
            Value::Bytes(bytes) => NewValue::Parts(bytes, &[]),
            Value::Large(item) => NewValue::Large(item.block),
        };
        self.write(header, value)
    }

    #[inline]
    fn write(&mut self, header: Header, value: NewValue<'_>) -> Result<Mutated, KvError> {
        if self.level != 0 {
            let seqno = self.locked.prepare(self.key, self.hash, header, Some(value), self.level)?;
            return Ok(self.mutated(header.cas, seqno));
        }
        let (present, seqno) = self.locked.write(self.key, self.hash, self.present, header, value)?;
        self.present = Some(present);
        Ok(self.mutated(header.cas, seqno))
    }

    /// Appends (`front == false`) or prepends bytes to the present value, in place where they fit; new CAS.
    /// [`KvError::NotStored`] if missing, [`KvError::TooBig`] if the result is too long for an item. The result is not
    /// compressed.
    pub fn extend(&mut self, value: &Value<'_>, front: bool, new_cas: u64) -> Result<Mutated, KvError> {
        self.check_changeable()?;
        let (present, old) = self.resident().map_err(|error| match error {
            KvError::NotFound => KvError::NotStored,
            other => other,
        })?;
        let added = value.bytes();
        let sum = old.inflated_len + added.len();
        if sum > VALUE_MAX {
            return Err(KvError::TooBig);
        }
        if old.is_compressed() && !self.locked.has_room(sum.saturating_sub(old.value_len)) {
            return Err(KvError::NoMemory);
        }
        let cas = self.locked.cas_for(new_cas)?;
        if !front
            && self.level == 0
            && sum <= LARGE_VALUE
            && let Some(seqno) = self.locked.append_in_place(present, added, cas)
        {
            return Ok(self.mutated(cas, seqno));
        }
        let accessed = self.locked.now.unix_s & 0xf_ffff;
        let header = Header { cas, rev: old.rev + 1, datatype: 0, marks: 0, accessed, ..old };
        let mut large = if sum > LARGE_VALUE { Some(self.locked.new_large(old.key_len, sum)?) } else { None };
        let mut small = Vec::new();
        {
            // Small items are joined in a copy: the old value lies in the very item that is rewritten.
            let into = match &mut large {
                Some(block) => {
                    let (from, end) = (large_value_offset(old.key_len), block.size());
                    block.window(from..end)
                }
                None => {
                    small.resize(sum, 0);
                    &mut small
                }
            };
            let present_value = self.locked.value(present, &old);
            let (for_added, for_present) = if front {
                into.split_at_mut(added.len())
            } else {
                let (head, tail) = into.split_at_mut(old.inflated_len);
                (tail, head)
            };
            for_added.copy_from_slice(added);
            if old.is_compressed() {
                snappy::inflate(present_value, for_present);
            } else {
                for_present.copy_from_slice(present_value);
            }
        }
        match large {
            Some(block) => self.write(header, NewValue::Large(block)),
            None => self.write(header, NewValue::Parts(&small, &[])),
        }
    }

    /// Changes only the expiry; the CAS stays (memcached touch). In a persistent bucket the seqno is new, for which the
    /// value has to be in memory. [`KvError::NotFound`] if missing.
    pub fn set_expiry(&mut self, expiry: Expiry) -> Result<(), KvError> {
        self.check_changeable()?;
        let Some((present, header)) = self.current() else { return Err(KvError::NotFound) };
        let Expiry::At(expiry) = expiry else { return Ok(()) };
        if expiry == header.expiry || self.locked.set_expiry_in_place(present, self.hash, expiry)? {
            return Ok(());
        }
        let marks = header.marks & (mark::FETCHED | mark::STALE | mark::WIN_SENT);
        self.rewrite(Header { expiry, marks, ..header }).map(|_| ())
    }

    /// Changes the expiry as a mutation: new CAS and seqno (Couchbase touch).
    pub fn touch(&mut self, expiry: Expiry) -> Result<Mutated, KvError> {
        let Some((_, header)) = self.current() else { return Err(KvError::NotFound) };
        let expiry = if let Expiry::At(at) = expiry { at } else { header.expiry };
        let cas = self.locked.next_cas();
        let marks = header.marks & (mark::FETCHED | mark::STALE | mark::WIN_SENT);
        self.rewrite(Header { cas, rev: header.rev + 1, expiry, marks, ..header })
    }

    /// Gives the document a new CAS and seqno without changing anything else (0 = next of the clock).
    pub fn revise(&mut self, new_cas: u64) -> Result<Mutated, KvError> {
        let Some((_, header)) = self.current() else { return Err(KvError::NotFound) };
        let cas = self.locked.cas_for(new_cas)?;
        let marks = header.marks & (mark::FETCHED | mark::STALE | mark::WIN_SENT);
        self.rewrite(Header { cas, rev: header.rev + 1, marks, ..header })
    }

    /// Rewrites the present value under another header.
    fn rewrite(&mut self, header: Header) -> Result<Mutated, KvError> {
        self.check_changeable()?;
        let (present, old) = self.resident()?;
        if old.marks & mark::LARGE != 0 {
            let seqno = self.locked.rewrite_large(present, self.hash, header)?;
            return Ok(self.mutated(header.cas, seqno));
        }
        let value = self.locked.value(present, &old).to_vec();
        self.write(header, NewValue::Parts(&value, &[]))
    }

    /// Sets the meta protocol's marks.
    pub fn set_marks(&mut self, stale: bool, win_sent: bool) {
        if let Some(present) = self.present {
            let set = if stale { mark::STALE } else { 0 } | if win_sent { mark::WIN_SENT } else { 0 };
            self.locked.set_marks(present, mark::STALE | mark::WIN_SENT, set);
        }
    }

    /// Clears the fetched bit, as a fresh store does.
    pub fn clear_fetched(&mut self) {
        if let Some(present) = self.present {
            self.locked.set_marks(present, mark::FETCHED, 0);
        }
    }

    /// Removes the document. [`KvError::NotFound`] if missing.
    pub fn remove(&mut self) -> Result<Mutated, KvError> {
        self.check_changeable()?;
        let Some((present, header)) = self.current() else { return Err(KvError::NotFound) };
        let cas = self.locked.next_cas();
        if self.level != 0 {
            let header = Header { cas, rev: header.rev + 1, marks: 0, ..header };
            let seqno = self.locked.prepare(self.key, self.hash, header, None, self.level)?;
            return Ok(self.mutated(cas, seqno));
        }
        let seqno = self.locked.delete(present, cas)?;
        self.present = None;
        Ok(self.mutated(cas, seqno))
    }

    /// Locks the document until `until_unix_s`; the lock has a new CAS, which is returned. [`KvError::Locked`] if it is
    /// locked already. The value must be in memory, since the caller wants to see it.
    pub fn lock(&mut self, until_unix_s: u32) -> Result<Mutated, KvError> {
        self.check_open()?;
        let (present, header) = self.resident()?;
        if self.locked.locked_until(header.seqno).is_some() {
            return Err(KvError::Locked);
        }
        self.locked.lock_seqno(header.seqno, until_unix_s)?;
        let cas = self.locked.next_cas();
        self.locked.set_cas(present, cas);
        Ok(self.mutated(cas, header.seqno))
    }

    /// Releases the lock. [`KvError::NotLocked`] if there is none; the caller has compared the CAS.
    pub fn unlock(&mut self) -> Result<(), KvError> {
        let Some((_, header)) = self.current() else { return Err(KvError::NotFound) };
        if self.locked.locked_until(header.seqno).is_none() {
            return Err(KvError::NotLocked);
        }
        self.locked.unlock_seqno(header.seqno);
        Ok(())
    }

    /// Returns the highest CAS used in this vBucket.
    pub fn max_cas(&self) -> u64 {
        self.locked.max_cas()
    }
}
