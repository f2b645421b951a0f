//! A read view of one item, valid while its vBucket is locked.

use std::borrow::Cow;
use std::ops::Deref;

use memory::Pin;
use wire::{snappy, xattrs};

use super::rank::{self, Use};
use super::{Header, Kind, Locked, Present, mark};

/// The CAS readers see while a document is locked.
pub const LOCKED_CAS: u64 = u64::MAX;

/// A live document under its vBucket's lock. `'a` is the lock.
#[derive(Clone, Copy)]
pub struct Document<'a> {
    locked: &'a Locked<'a>,
    present: &'a Present,
}

impl<'a> Document<'a> {
    #[inline]
    pub(crate) fn new(locked: &'a Locked<'a>, present: &'a Present) -> Self {
        Self { locked, present }
    }

    /// Each method reads it again and keeps what it needs: passing a copy around costs more.
    #[inline(always)]
    fn header(&self) -> Header {
        self.locked.header(*self.present)
    }

    /// Returns true if the value is in memory; if not, [`Document::value`] is empty.
    #[inline]
    pub fn is_resident(&self) -> bool {
        self.header().kind != Kind::Ejected
    }

    /// Returns the value's bytes as they are stored, without extended attributes.
    #[inline]
    pub fn stored(&self) -> &'a [u8] {
        let header = self.header();
        let value = self.locked.value(*self.present, &header);
        if header.has_xattrs() { body_of(value) } else { value }
    }

    /// Returns the section of its extended attributes; empty if it has none.
    pub fn xattrs(&self) -> &'a [u8] {
        let header = self.header();
        let value = self.locked.value(*self.present, &header);
        if header.has_xattrs() { xattrs::split(value).0 } else { &[] }
    }

    /// Returns true if it is stored compressed.
    #[inline]
    pub fn is_compressed(&self) -> bool {
        self.header().is_compressed()
    }

    /// Returns the value without extended attributes, inflated if it is compressed. The lock is held: only for short
    /// values, see [`Document::value_len`].
    pub fn value(&self) -> Cow<'a, [u8]> {
        let stored = self.stored();
        if !self.is_compressed() {
            return Cow::Borrowed(stored);
        }
        let mut value = vec![0; self.value_len()];
        snappy::inflate(stored, &mut value);
        Cow::Owned(value)
    }

    /// Returns the length of the value, inflated if it is compressed.
    #[inline]
    pub fn value_len(&self) -> usize {
        let header = self.header();
        // The header alone does not suffice: for an ejected value this notes that it was wanted.
        let value = self.locked.value(*self.present, &header);
        if header.is_plain() { value.len() } else { self.rare_len() }
    }

    /// The length of a value that is compressed, or has extended attributes.
    #[cold]
    fn rare_len(&self) -> usize {
        let header = self.header();
        if header.is_compressed() { header.inflated_len } else { self.stored().len() }
    }

    /// The same without asking for the value: if that is on disk only, its length there, with extended attributes.
    pub fn noted_value_len(&self) -> usize {
        if self.is_resident() { self.value_len() } else { self.header().value_len }
    }

    /// Returns a handle that keeps a large value where it is, to be sent after the lock is released; `None` for small
    /// values.
    #[inline]
    pub fn pin(&self) -> Option<PinnedValue> {
        let header = self.header();
        if header.marks & mark::LARGE == 0 {
            return None;
        }
        self.locked.pin(*self.present, &header, self.xattrs().len()).map(PinnedValue::new)
    }

    /// The client's flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.header().flags
    }

    /// Absolute expiry, seconds since 1970; 0 = never.
    #[inline]
    pub fn expiry(&self) -> u32 {
        self.header().expiry
    }

    /// The CAS, even while the document is locked; readers may see [`Document::visible_cas`].
    #[inline]
    pub fn cas(&self) -> u64 {
        self.header().cas
    }

    /// The CAS readers may see: [`LOCKED_CAS`] while the document is locked.
    #[inline]
    pub fn visible_cas(&self) -> u64 {
        if self.is_locked() { LOCKED_CAS } else { self.header().cas }
    }

    /// Returns true if the document is locked now (GET_LOCKED).
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.locked.locked_until(self.header().seqno).is_some()
    }

    /// Sequence number within the vBucket.
    pub fn seqno(&self) -> u64 {
        self.header().seqno
    }

    /// Revision number (44 bits).
    pub fn rev(&self) -> u64 {
        self.header().rev
    }

    /// Notes that the value, which is not compressed, was found to be a JSON document.
    pub fn note_json(&self) {
        // SAFETY: the item is in the table and the lock is held.
        unsafe { self.present.item.set_json() }
    }

    /// Datatype bits: 1 JSON, 2 stored compressed, 4 extended attributes. Without bit 2, bit 1 says that the value was
    /// checked.
    #[inline]
    pub fn datatype(&self) -> u8 {
        self.header().datatype
    }

    /// Meta protocol: read at least once since it was stored, not counting this access.
    pub fn fetched(&self) -> bool {
        self.header().marks & mark::FETCHED != 0
    }

    /// Meta protocol: marked stale by an invalidation.
    pub fn is_stale(&self) -> bool {
        self.header().marks & mark::STALE != 0
    }

    /// Meta protocol: a client was already told to recache it.
    pub fn win_sent(&self) -> bool {
        self.header().marks & mark::WIN_SENT != 0
    }

    /// Seconds since the last access, or since it was stored (20 bits, wraps after 12 days).
    pub fn idle_s(&self) -> u32 {
        self.locked.now.unix_s.wrapping_sub(self.header().accessed) & 0xf_ffff
    }

    /// Key, value and item header in bytes, as in memory.
    pub fn item_size(&self) -> usize {
        self.header().item_size()
    }

    /// The same as allocated, rounded up to its size class.
    pub fn footprint(&self) -> usize {
        self.present.found.location.footprint(self.header().item_size())
    }

    /// What the index knows about its use. Looking is no access.
    pub fn used(&self) -> Use {
        rank::use_of(self.locked.root.rank(&self.present.found))
    }
}

/// The part of a value behind its extended attributes.
#[cold]
fn body_of(value: &[u8]) -> &[u8] {
    xattrs::split(value).1
}

/// A large value kept alive and in place until dropped, charged to its bucket meanwhile. It is sent from where it lies.
pub struct PinnedValue(Pin);

impl PinnedValue {
    #[inline]
    pub(crate) fn new(pin: Pin) -> Self {
        Self(pin)
    }

    /// Returns a handle on bytes that are a part of these; `None` if they lie elsewhere.
    pub fn part(&self, bytes: &[u8]) -> Option<Self> {
        let start = bytes.as_ptr().addr().checked_sub(self.0.as_ptr().addr())?;
        let end = start.checked_add(bytes.len()).filter(|end| *end <= self.0.len())?;
        Some(Self(self.0.part(start..end)))
    }
}

impl Deref for PinnedValue {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
