//! One key under its vBucket's lock: the primitive from which every command is made.

use wire::binary::datatype;
use wire::couchbase::collection_id;
use wire::{snappy, subdocument, xattrs};

use crate::LARGE_VALUE;
use crate::index::{Dead, Header, Kind, Locked, NewValue, Present, VALUE_MAX, large_value_offset, mark};
use crate::{
    Deletion, Document, Expiry, Key, KvError, LargeItem, Made, MadeKind, Mutated, Resolution, Store, Value,
};

/// A longer value is copied only where a request may take long.
const COPIED_IN_PLACE_BYTES: usize = 512 << 10;

/// A key, present or missing, while its vBucket is locked. Obtained from [`crate::Bucket::with_entry`]. Expired,
/// flushed and deleted documents look missing.
pub struct Entry<'v> {
    locked: Locked<'v>,
    key: Key<'v>,
    hash: u64,
    vb_uuid: u64,
    present: Option<Present>,
    /// Why the document that was met is not to be seen.
    dead: Option<Dead>,
    /// The CAS that the caller names: a document lock's CAS opens it. 0: none.
    named_cas: u64,
    /// Durability level to prepare writes at; 0: write at once.
    level: u8,
    /// Hides this access from watchers.
    is_glance: bool,
    /// See [`crate::ThreadContext::may_take_long`].
    may_take_long: bool,
}

impl<'v> Entry<'v> {
    #[inline(always)]
    pub(crate) fn new(
        locked: Locked<'v>,
        key: Key<'v>,
        hash: u64,
        vb_uuid: u64,
        may_take_long: bool,
    ) -> Self {
        // Looked up in place: moving what was just written stalls the processor.
        let mut entry = Self {
            locked,
            key,
            hash,
            vb_uuid,
            present: None,
            dead: None,
            named_cas: 0,
            level: 0,
            is_glance: false,
            may_take_long,
        };
        match entry.locked.look_up(key, hash) {
            Ok(present) => entry.present = Some(present),
            Err(dead) => entry.dead = dead,
        }
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

    /// Returns why the document that was met is not to be seen; `None` if there was none, or it is seen.
    #[inline]
    pub(crate) fn met_dead(&self) -> Option<Dead> {
        self.dead
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

    /// Returns the size of the document in memory, header and key included; 0 if there is none.
    pub fn item_size(&self) -> usize {
        self.current().map_or(0, |(_, header)| header.item_size())
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

    /// [`KvError::SyncWriteInProgress`] while a prepare waits for its commit, [`KvError::NotActive`] where another node
    /// makes the changes.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), KvError> {
        if self.pending().is_some() {
            Err(KvError::SyncWriteInProgress)
        } else if self.may_be_held() && self.locked.is_inactive() {
            Err(KvError::NotActive)
        } else {
            Ok(())
        }
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

    /// Checks that the document's version is `cas` (0 = any), and that its lock, if any, is the caller's.
    #[inline(always)]
    pub fn check_version(&mut self, cas: u64) -> Result<(), KvError> {
        if cas == 0 && !self.may_be_held() {
            return if self.exists() { Ok(()) } else { Err(KvError::NotFound) };
        }
        self.check_open()?;
        self.name_cas(cas);
        let Some(document) = self.document() else { return Err(KvError::NotFound) };
        if document.is_locked() {
            return if document.cas() == cas { Ok(()) } else { Err(KvError::Locked) };
        }
        if cas != 0 && document.cas() != cas { Err(KvError::Exists) } else { Ok(()) }
    }

    /// Returns a new CAS, and the seqno of the next change under this lock.
    pub fn next_version(&mut self) -> (u64, u64) {
        self.locked.tell_changes_before(self.key.collection);
        (self.locked.next_cas(), self.locked.high_seqno() + 1)
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

    /// Calls `f` with the key's shadow, if there is one: a deleted document with extended attributes.
    pub fn with_shadow<R>(&self, f: impl FnOnce(Document<'_>) -> R) -> Option<R> {
        if self.present.is_some() {
            return None;
        }
        let present = self.locked.shadow(self.key, self.hash)?;
        Some(f(Document::new(&self.locked, &present)))
    }

    /// Returns the key's deletion, if it is deleted, without attributes, and that can be looked up.
    pub fn deletion(&self) -> Option<Deletion> {
        if self.present.is_some() {
            return None;
        }
        self.locked.deletion(self.key, self.hash)
    }

    /// Stores over whatever is there, with no condition but that of [`Entry::name_cas`]: check [`Entry::document`]
    /// first. Extended attributes stay. Clears stale and win marks, and a document lock.
    #[inline]
    pub fn store(&mut self, store: Store<'_>) -> Result<Mutated, KvError> {
        match self.current() {
            Some((_, old)) if old.has_xattrs() => self.store_behind_xattrs(store),
            _ => self.put(store),
        }
    }

    /// As [`Entry::store`], over a document with extended attributes.
    #[cold]
    fn store_behind_xattrs(&mut self, store: Store<'_>) -> Result<Mutated, KvError> {
        self.check_changeable()?;
        let (present, header) = self.resident()?;
        let section = xattrs::split(self.locked.value(present, &header)).0.to_vec();
        let inflated;
        let mut body = store.value.bytes();
        if store.datatype & datatype::SNAPPY != 0 {
            let mut room = vec![0; snappy::inflated_len(body).unwrap_or_default()];
            snappy::inflate(body, &mut room);
            inflated = room;
            body = &inflated;
        }
        let json = match store.datatype & datatype::SNAPPY == 0 {
            true => store.datatype & datatype::JSON,
            // What a client says of a compressed value has not been checked, and readers check no long ones.
            false if body.len() > LARGE_VALUE && subdocument::check(body).is_ok() => datatype::JSON,
            false => datatype::RAW,
        };
        let datatype = datatype::XATTR | json;
        let sum = section.len() + body.len();
        if sum > VALUE_MAX {
            return Err(KvError::TooBig);
        }
        let small;
        let value = if sum > LARGE_VALUE {
            Value::Large(Box::new(self.large(&section, body)?))
        } else {
            small = [&section[..], body].concat();
            Value::Bytes(&small)
        };
        let Store { flags, expiry, new_cas, .. } = store;
        self.put(Store { flags, expiry, datatype, value, new_cas })
    }

    /// Returns the seqno on disk of a version of the key.
    pub(crate) fn on_disk(&self, seqno: u64) -> u64 {
        self.locked.base() + seqno
    }

    /// Copies a value of more than 32 KiB, given in two parts, into item memory.
    fn large(&mut self, front: &[u8], back: &[u8]) -> Result<LargeItem, KvError> {
        let (key_len, length) = (crate::index::stored_key_len(self.key), front.len() + back.len());
        let mut block = self.locked.new_large(key_len, length)?;
        let value_offset = large_value_offset(key_len);
        let (for_front, for_back) =
            block.window(value_offset..value_offset + length).split_at_mut(front.len());
        for_front.copy_from_slice(front);
        for_back.copy_from_slice(back);
        Ok(LargeItem { block, value_offset })
    }

    /// As [`Entry::store`], of bytes that may be more than 32 KiB.
    pub fn store_any(&mut self, store: Store<'_>) -> Result<Mutated, KvError> {
        let value = match store.value {
            Value::Bytes(bytes) if bytes.len() > LARGE_VALUE => {
                Value::Large(Box::new(self.large(bytes, &[])?))
            }
            other => other,
        };
        self.store(Store { value, ..store })
    }

    /// Stores a value that begins with extended attributes if its datatype says so. Those that the document has go.
    pub fn store_whole(&mut self, store: Store<'_>) -> Result<Mutated, KvError> {
        self.put(store)
    }

    /// Takes a version that was made elsewhere, unless what there is wins: [`KvError::Exists`]. Without a resolution
    /// nothing wins over it.
    pub fn take(&mut self, made: &Made<'_>, by: Option<Resolution>) -> Result<Mutated, KvError> {
        self.check_changeable()?;
        self.locked.check_named_cas(made.cas)?;
        let stored_key = stored(self.key);
        if let Some((rev, cas)) = self.locked.version_of(&stored_key, self.hash) {
            let wins = match by {
                None => true,
                Some(Resolution::Revision) => (made.rev, made.cas) > (rev, cas),
                Some(Resolution::Time) => (made.cas, made.rev) > (cas, rev),
            };
            if !wins {
                return Err(KvError::Exists);
            }
        }
        self.locked.tell_changes_before(self.key.collection);
        let (seqno, is_deletion) = (self.locked.high_seqno() + 1, made.kind != MadeKind::Document);
        let cas = if made.cas == 0 { self.locked.next_cas() } else { made.cas };
        let like = match made.kind {
            MadeKind::Document => {
                let (kind, datatype) = (Kind::Document, made.datatype);
                let (flags, expiry) = (made.flags, made.expiry);
                Header { kind, datatype, flags, expiry, ..self.locked.shadow_header() }
            }
            _ if !made.value.is_empty() => self.locked.shadow_header(),
            kind => self.locked.tombstone_header(kind == MadeKind::Expiration),
        };
        let header = Header { cas, seqno, rev: made.rev.max(1), ..like };
        self.locked.take_version(&stored_key, self.hash, header, made.value)?;
        self.present = if is_deletion { None } else { self.locked.live(self.key, self.hash) };
        Ok(self.mutated(cas, seqno))
    }

    /// Leaves a shadow with this section of extended attributes, in place of the document, of another shadow, or of
    /// nothing. Without attributes nothing is left. `new_cas`: 0 = the next of the clock.
    pub fn leave_shadow(&mut self, section: &[u8], new_cas: u64) -> Result<Mutated, KvError> {
        self.check_changeable()?;
        if section.is_empty() {
            return self.remove_all();
        }
        let rev = match self.current() {
            Some((_, header)) => header.rev + 1,
            None => self.new_rev(),
        };
        let header = Header { cas: self.locked.cas_for(new_cas)?, rev, ..self.locked.shadow_header() };
        let mutated = if section.len() > LARGE_VALUE {
            let block = self.large(section, &[])?.block;
            self.write(header, NewValue::Large(block))
        } else {
            self.write(header, NewValue::Parts(section, &[]))
        }?;
        if self.level == 0 {
            self.present = None;
        }
        Ok(mutated)
    }

    /// Returns the revision of a document that was not there.
    fn new_rev(&self) -> u64 {
        let after_shadow = self.locked.shadow_rev(self.key, self.hash).map_or(0, |rev| rev + 1);
        self.locked.first_rev().max(after_shadow)
    }

    /// Returns the expiry that the document gets for the requested one.
    #[inline]
    fn limited(&self, expiry: u32) -> u32 {
        self.locked.limited(self.key.collection, expiry)
    }

    #[inline]
    fn put(&mut self, store: Store<'_>) -> Result<Mutated, KvError> {
        self.check_changeable()?;
        let old = self.current();
        let expiry = match (store.expiry, old) {
            (Expiry::At(at), _) => self.limited(at),
            (Expiry::Keep, Some((_, header))) => header.expiry,
            (Expiry::Keep, None) => self.limited(0),
        };
        let header = Header {
            cas: self.locked.cas_for(store.new_cas)?,
            seqno: 0,
            kind: Kind::Document,
            committed: false,
            rev: old.map_or_else(|| self.new_rev(), |(_, header)| header.rev + 1),
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
    /// [`KvError::NotStored`] if missing, [`KvError::TooBig`] if the result is too long for an item,
    /// [`KvError::TakesLong`] if it is too long to be copied here. The result is not compressed.
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
        if sum > COPIED_IN_PLACE_BYTES && !self.may_take_long {
            return Err(KvError::TakesLong);
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
        // Extended attributes are the only bytes before the body.
        let datatype = old.datatype & datatype::XATTR;
        let has_section = front && old.has_xattrs();
        let before = if has_section { xattrs::split(self.locked.value(present, &old)).0.len() } else { 0 };
        let header = Header { cas, rev: old.rev + 1, datatype, marks: 0, accessed, ..old };
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
            let (section, present_value) = present_value.split_at(before);
            let (for_section, into) = into.split_at_mut(before);
            for_section.copy_from_slice(section);
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
        let expiry = self.limited(expiry);
        if expiry == header.expiry || self.locked.set_expiry_in_place(present, self.hash, expiry)? {
            return Ok(());
        }
        let marks = header.marks & (mark::FETCHED | mark::STALE | mark::WIN_SENT);
        self.rewrite(Header { expiry, marks, ..header }).map(|_| ())
    }

    /// Changes the expiry as a mutation: new CAS and seqno (Couchbase touch). The expiry that the document has changes
    /// nothing.
    pub fn touch(&mut self, expiry: Expiry) -> Result<Mutated, KvError> {
        let Some((_, header)) = self.current() else { return Err(KvError::NotFound) };
        let expiry = if let Expiry::At(at) = expiry { self.limited(at) } else { header.expiry };
        if expiry == header.expiry {
            self.check_changeable()?;
            self.resident()?;
            return Ok(self.mutated(header.cas, header.seqno));
        }
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

    /// Removes the document, except for its system attributes. [`KvError::NotFound`] if missing.
    pub fn remove(&mut self) -> Result<Mutated, KvError> {
        self.check_changeable()?;
        let Some((_, header)) = self.current() else { return Err(KvError::NotFound) };
        if header.has_xattrs() {
            // Asks for the value.
            let (present, _) = self.resident()?;
            let section = self.locked.system_xattrs(present);
            if !section.is_empty() {
                return self.leave_shadow(&section, 0);
            }
        }
        self.remove_all()
    }

    /// Removes the document, or the shadow, with all extended attributes.
    fn remove_all(&mut self) -> Result<Mutated, KvError> {
        let present = self.present.or_else(|| self.locked.shadow(self.key, self.hash));
        let Some(present) = present else { return self.delete_again() };
        let header = self.locked.header(present);
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

    /// Gives a deletion another CAS and seqno.
    fn delete_again(&mut self) -> Result<Mutated, KvError> {
        let deletion = self.deletion().filter(|_| self.level == 0).ok_or(KvError::NotFound)?;
        self.locked.tell_changes_before(self.key.collection);
        let (cas, seqno) = (self.locked.next_cas(), self.locked.high_seqno() + 1);
        let header = Header { cas, seqno, rev: deletion.rev + 1, ..self.locked.tombstone_header(false) };
        self.locked.take_version(&stored(self.key), self.hash, header, &[])?;
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

/// The key with its collection's prefix.
fn stored(key: Key<'_>) -> Vec<u8> {
    let mut stored = Vec::with_capacity(crate::index::stored_key_len(key));
    collection_id::encode(key.collection, &mut stored);
    stored.extend_from_slice(key.bytes);
    stored
}
