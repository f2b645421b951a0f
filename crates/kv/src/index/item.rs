//! An item's bytes.
//!
//! ```text
//!    0  cas 64
//!    8  seqno 48 | kind 3, committed 1 | rev, low 12
//!   16  value_len 25 | key_len 8 | datatype 3 | marks 8 | last access 20 (seconds, wraps)
//!   24  optional words, 4 B each, in this order: flags, expiry, rev high 32
//!    .  key (LEB128 collection id, then the key) | value
//! ```
//! An ejected item has no value, but keeps its length; a tombstone has neither. The expiry of a tombstone is the second
//! of the deletion.
//!
//! Invariants: `key_len` counts the collection id. Large items (`LARGE`) carry all optional words, have a reference
//! count before them ([`memory::large`]) and a value that is never written once they are linked.
//! Callers hold the vBucket's lock; this file only knows the layout.

use std::ptr::NonNull;

use memory::Location;
use wire::binary::datatype;
use wire::couchbase::collection_id;
use wire::snappy;

use crate::Key;

pub(crate) const HEADER: usize = 24;
const WORD: usize = 4;

const VALUE_LEN_BITS: u32 = 25;
const KEY_LEN_BITS: u32 = 8;
const DATATYPE_BITS: u32 = 3;
const MARK_BITS: u32 = 8;
const ACCESS_BITS: u32 = 20;
const _: () = assert!(VALUE_LEN_BITS + KEY_LEN_BITS + DATATYPE_BITS + MARK_BITS + ACCESS_BITS == 64);

const KEY_LEN_SHIFT: u32 = VALUE_LEN_BITS;
const DATATYPE_SHIFT: u32 = KEY_LEN_SHIFT + KEY_LEN_BITS;
const MARK_SHIFT: u32 = DATATYPE_SHIFT + DATATYPE_BITS;
const ACCESS_SHIFT: u32 = MARK_SHIFT + MARK_BITS;

const SEQNO_BITS: u32 = 48;
const KIND_BITS: u32 = 3;
const REV_LOW_BITS: u32 = 12;
/// The highest revision that is taken from elsewhere. One has 44 bits, and what is written here goes on from it.
pub const REV_MOST: u64 = (1 << 43) - 1;
const KIND_SHIFT: u32 = SEQNO_BITS;
const COMMITTED: u64 = 1 << (KIND_SHIFT + KIND_BITS);
const REV_SHIFT: u32 = KIND_SHIFT + KIND_BITS + 1;
const _: () = assert!(REV_SHIFT + REV_LOW_BITS == 64);
const SEQNO_MASK: u64 = (1 << SEQNO_BITS) - 1;
const KIND_MASK: u64 = (1 << KIND_BITS) - 1;

/// Longest value an item can hold.
pub(crate) const VALUE_MAX: usize = (1 << VALUE_LEN_BITS) - 1;
/// Most bytes of a key with its collection id.
pub(crate) const STORED_KEY_MAX: usize = (1 << KEY_LEN_BITS) - 1;

/// Bits of an item's state.
pub(crate) mod mark {
    pub(crate) const HAS_FLAGS: u8 = 1;
    pub(crate) const HAS_EXPIRY: u8 = 2;
    pub(crate) const HAS_REV_HIGH: u8 = 4;
    pub(crate) const FETCHED: u8 = 8;
    pub(crate) const STALE: u8 = 16;
    pub(crate) const WIN_SENT: u8 = 32;
    /// The expiry wheel has an entry for it, at or before its expiry.
    pub(crate) const EXPIRY_QUEUED: u8 = 64;
    pub(crate) const LARGE: u8 = 128;
    /// Why there is a tombstone; no tombstone is ever stale.
    pub(crate) const DELETED: u8 = 0;
    pub(crate) const EXPIRED: u8 = STALE;
    /// The optional words.
    pub(crate) const WORDS: u8 = HAS_FLAGS | HAS_EXPIRY | HAS_REV_HIGH;
}

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Document,
    /// A deletion that is not on disk yet.
    Tombstone,
    /// A value that waits for its commit.
    Prepare,
    /// A deletion that waits for its commit.
    PrepareDelete,
    /// An aborted prepare, not on disk yet.
    Abort,
    /// A document whose value is on disk only.
    Ejected,
    /// A deleted document that keeps extended attributes. Its expiry is when it goes.
    Shadow,
    /// A shadow that waits for its commit.
    PrepareShadow,
}

impl Kind {
    #[inline]
    fn of(order: u64) -> Self {
        match order >> KIND_SHIFT & KIND_MASK {
            0 => Self::Document,
            1 => Self::Tombstone,
            2 => Self::Prepare,
            3 => Self::PrepareDelete,
            4 => Self::Abort,
            5 => Self::Ejected,
            6 => Self::Shadow,
            _ => Self::PrepareShadow,
        }
    }

    #[inline]
    const fn may_have_value(self) -> bool {
        matches!(self, Self::Document | Self::Prepare | Self::Abort | Self::Shadow | Self::PrepareShadow)
    }

    /// Returns true for what the table has of a deleted document.
    #[inline]
    pub(crate) const fn is_deleted(self) -> bool {
        matches!(self, Self::Tombstone | Self::Shadow)
    }

    /// Returns true for what waits for its commit.
    pub(crate) const fn is_prepare(self) -> bool {
        matches!(self, Self::Prepare | Self::PrepareDelete | Self::PrepareShadow)
    }
}

/// Everything in an item but key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) cas: u64,
    pub(crate) seqno: u64,
    pub(crate) kind: Kind,
    /// Set if it was prepared before: the commit of a SyncWrite.
    pub(crate) committed: bool,
    pub(crate) rev: u64,
    pub(crate) value_len: usize,
    /// Length of the value as a client sees it: differs from `value_len` if the value is compressed, and in memory.
    pub(crate) inflated_len: usize,
    pub(crate) key_len: usize,
    pub(crate) datatype: u8,
    pub(crate) marks: u8,
    pub(crate) accessed: u32,
    pub(crate) flags: u32,
    pub(crate) expiry: u32,
}

impl Header {
    /// Sets the marks for the words this header needs, and keeps its other marks.
    pub(crate) fn with_words(mut self) -> Self {
        self.marks &= !mark::WORDS;
        if self.marks & mark::LARGE != 0 {
            self.marks |= mark::WORDS;
            return self;
        }
        if self.flags != 0 {
            self.marks |= mark::HAS_FLAGS;
        }
        if self.expiry != 0 {
            self.marks |= mark::HAS_EXPIRY;
        }
        if self.rev >> REV_LOW_BITS != 0 {
            self.marks |= mark::HAS_REV_HIGH;
        }
        self
    }

    /// Returns the size of the whole item in memory.
    #[inline]
    pub(crate) fn item_size(&self) -> usize {
        self.value_offset() + self.resident_len()
    }

    /// Returns the length of the value in memory.
    #[inline]
    pub(crate) fn resident_len(&self) -> usize {
        if self.kind == Kind::Ejected { 0 } else { self.value_len }
    }

    #[inline]
    fn value_offset(&self) -> usize {
        key_offset(self.marks) + self.key_len
    }

    /// Returns true if the value begins with extended attributes. Such a value is never compressed.
    #[inline]
    pub(crate) fn has_xattrs(&self) -> bool {
        self.datatype & datatype::XATTR != 0
    }

    /// Returns true if the value is neither compressed nor begins with extended attributes.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.datatype & (datatype::SNAPPY | datatype::XATTR) == 0
    }

    /// Returns true if the value in memory is compressed.
    #[inline]
    pub(crate) fn is_compressed(&self) -> bool {
        self.datatype & datatype::SNAPPY != 0 && self.kind.may_have_value()
    }

    /// Header bytes with the optional words.
    #[inline]
    pub(crate) fn metadata(&self) -> usize {
        key_offset(self.marks)
    }
}

/// Returns the length of a compressed value as a client sees it. It does not panic, so that callers which ignore the
/// result do not pay for it.
#[inline]
pub(crate) fn inflated_len(block: &[u8]) -> usize {
    let length = snappy::inflated_len(block);
    debug_assert!(length.is_some(), "compressed values are checked when they come");
    length.unwrap_or_default()
}

#[inline]
fn key_offset(marks: u8) -> usize {
    HEADER + WORD * (marks & mark::WORDS).count_ones() as usize
}

/// Returns where the value of a large item with a key of `key_len` bytes starts.
pub(crate) const fn large_value_offset(key_len: usize) -> usize {
    HEADER + 3 * WORD + key_len
}

/// Bytes of a collection id in LEB128.
#[inline]
pub(crate) fn collection_prefix(collection: u32) -> ([u8; 5], usize) {
    let (mut bytes, mut len, mut rest) = ([0u8; 5], 0, collection);
    for byte in &mut bytes {
        *byte = (rest & 0x7f) as u8;
        rest >>= 7;
        len += 1;
        if rest == 0 {
            break;
        }
        *byte |= 0x80;
    }
    (bytes, len)
}

/// Returns what follows the collection id of a stored key.
pub(crate) fn key_of(stored: &[u8]) -> &[u8] {
    let end = stored.iter().position(|byte| byte & 0x80 == 0).map_or(0, |at| at + 1);
    stored.get(end..).unwrap_or_default()
}

/// Returns the collection id that a stored key begins with.
#[inline]
pub(crate) fn collection_of(stored: &[u8]) -> u32 {
    if stored.first() == Some(&0) {
        return 0;
    }
    collection_id::split(stored).map_or(0, |(id, _)| id)
}

/// Bytes a key takes in an item.
#[inline]
pub(crate) fn stored_key_len(key: Key<'_>) -> usize {
    collection_prefix(key.collection).1 + key.bytes.len()
}

/// Returns the least size of an item in memory: without flags and expiry, in a collection with a short id.
#[inline]
pub(crate) fn least_item_size(key: Key<'_>, value_len: usize) -> usize {
    HEADER + 1 + key.bytes.len() + value_len
}

/// Where a new value goes in an item that is overwritten in place.
pub(crate) struct Room {
    pub(crate) old_len: usize,
    pub(crate) old_seqno: u64,
    pub(crate) old_datatype: u8,
    key_len: u64,
    offset: usize,
    words: u8,
    rev: u64,
}

/// A pointer to an item. Copyable, and may dangle: every method that reads the item needs its lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemPtr(pub(crate) NonNull<u8>);

/// All methods: the item is live in its heap, and its vBucket's lock is held by the caller.
impl ItemPtr {
    /// A word of the header.
    #[inline]
    unsafe fn word(self, index: usize) -> u64 {
        // SAFETY: the three words of the header are part of every item. Items are 4-aligned.
        unsafe { self.0.cast::<u64>().add(index).read_unaligned() }
    }

    #[inline]
    unsafe fn set_word(self, index: usize, word: u64) {
        // SAFETY: as in `word`.
        unsafe { self.0.cast::<u64>().add(index).write_unaligned(word) }
    }

    #[inline]
    pub(crate) unsafe fn cas(self) -> u64 {
        // SAFETY: see the impl.
        unsafe { self.word(0) }
    }

    #[inline]
    pub(crate) unsafe fn set_cas(self, cas: u64) {
        // SAFETY: see the impl.
        unsafe { self.set_word(0, cas) }
    }

    #[inline]
    pub(crate) unsafe fn seqno(self) -> u64 {
        // SAFETY: see the impl.
        unsafe { self.word(1) & SEQNO_MASK }
    }

    #[inline]
    pub(crate) unsafe fn kind(self) -> Kind {
        // SAFETY: see the impl.
        Kind::of(unsafe { self.word(1) })
    }

    #[inline]
    unsafe fn shape(self) -> u64 {
        // SAFETY: see the impl.
        unsafe { self.word(2) }
    }

    #[inline]
    pub(crate) unsafe fn marks(self) -> u8 {
        // SAFETY: see the impl.
        unsafe { (self.shape() >> MARK_SHIFT) as u8 }
    }

    #[inline]
    pub(crate) unsafe fn set_marks(self, marks: u8) {
        // SAFETY: see the impl. The words an item has never change in place.
        unsafe {
            debug_assert_eq!((marks ^ self.marks()) & (mark::WORDS | mark::LARGE), 0);
            self.set_word(2, self.shape() & !(0xff << MARK_SHIFT) | u64::from(marks) << MARK_SHIFT);
        }
    }

    /// Notes that the value is a JSON document.
    pub(crate) unsafe fn set_json(self) {
        // SAFETY: see the impl.
        unsafe { self.set_word(2, self.shape() | u64::from(datatype::JSON) << DATATYPE_SHIFT) }
    }

    /// Notes an access at `now_s`; writes only when something changes.
    #[inline]
    pub(crate) unsafe fn record_access(self, now_s: u32) {
        // SAFETY: see the impl.
        unsafe {
            let old = self.shape();
            let access = u64::from(now_s) << ACCESS_SHIFT;
            let new = old & ((1 << ACCESS_SHIFT) - 1) | access | u64::from(mark::FETCHED) << MARK_SHIFT;
            if new != old {
                self.set_word(2, new);
            }
        }
    }

    #[inline]
    pub(crate) unsafe fn expiry(self) -> u32 {
        // SAFETY: see the impl; the word is there when its mark is.
        unsafe {
            let marks = self.marks();
            if marks & mark::HAS_EXPIRY == 0 {
                return 0;
            }
            let index = usize::from(marks & mark::HAS_FLAGS != 0);
            *self.0.add(HEADER + WORD * index).cast::<u32>().as_ptr()
        }
    }

    /// Writes the expiry of an item that has the word.
    pub(crate) unsafe fn set_expiry(self, expiry: u32) {
        // SAFETY: see the impl.
        unsafe {
            let marks = self.marks();
            assert!(marks & mark::HAS_EXPIRY != 0, "the item has no expiry word");
            let index = usize::from(marks & mark::HAS_FLAGS != 0);
            *self.0.add(HEADER + WORD * index).cast::<u32>().as_ptr() = expiry;
        }
    }

    /// Reads the whole header.
    #[inline(always)]
    pub(crate) unsafe fn header(self) -> Header {
        // SAFETY: see the impl.
        unsafe {
            let (order, shape) = (self.word(1), self.shape());
            let marks = (shape >> MARK_SHIFT) as u8;
            let mut words = self.0.add(HEADER).cast::<u32>();
            let mut next = |bit: u8| {
                if marks & bit == 0 {
                    return 0;
                }
                let word = *words.as_ptr();
                words = words.add(1);
                word
            };
            let (flags, expiry) = (next(mark::HAS_FLAGS), next(mark::HAS_EXPIRY));
            let rev_high = u64::from(next(mark::HAS_REV_HIGH));
            let value_len = (shape & ((1 << VALUE_LEN_BITS) - 1)) as usize;
            let mut header = Header {
                cas: self.cas(),
                seqno: order & SEQNO_MASK,
                kind: Kind::of(order),
                committed: order & COMMITTED != 0,
                rev: rev_high << REV_LOW_BITS | order >> REV_SHIFT,
                value_len,
                inflated_len: value_len,
                key_len: (shape >> KEY_LEN_SHIFT & ((1 << KEY_LEN_BITS) - 1)) as usize,
                datatype: (shape >> DATATYPE_SHIFT & ((1 << DATATYPE_BITS) - 1)) as u8,
                marks,
                accessed: (shape >> ACCESS_SHIFT) as u32,
                flags,
                expiry,
            };
            if header.is_compressed() {
                header.inflated_len = inflated_len(self.value(&header));
            }
            header
        }
    }

    /// Writes the whole header; the item has room for it.
    pub(crate) unsafe fn set_header(self, header: &Header) {
        debug_assert!(header.value_len <= VALUE_MAX && header.key_len <= STORED_KEY_MAX);
        debug_assert!(header.seqno >> SEQNO_BITS == 0);
        let shape = header.value_len as u64
            | (header.key_len as u64) << KEY_LEN_SHIFT
            | u64::from(header.datatype & ((1 << DATATYPE_BITS) - 1)) << DATATYPE_SHIFT
            | u64::from(header.marks) << MARK_SHIFT
            | u64::from(header.accessed) << ACCESS_SHIFT;
        // SAFETY: see the impl.
        unsafe {
            self.set_word(0, header.cas);
            let order = header.seqno
                | (header.kind as u64) << KIND_SHIFT
                | if header.committed { COMMITTED } else { 0 }
                | (header.rev & ((1 << REV_LOW_BITS) - 1)) << REV_SHIFT;
            self.set_word(1, order);
            self.set_word(2, shape);
            let mut words = self.0.add(HEADER).cast::<u32>();
            let rev_high = (header.rev >> REV_LOW_BITS) as u32;
            for (bit, word) in [
                (mark::HAS_FLAGS, header.flags),
                (mark::HAS_EXPIRY, header.expiry),
                (mark::HAS_REV_HIGH, rev_high),
            ] {
                if header.marks & bit != 0 {
                    words.write(word);
                    words = words.add(1);
                }
            }
        }
    }

    /// Returns the room for a new value over the present one, if this is a small item without expiry and extended
    /// attributes that keeps its words and the size class of its location.
    #[inline]
    pub(crate) unsafe fn room_for(self, at: Location, flags: u32, value_len: usize) -> Option<Room> {
        // SAFETY: see the impl.
        let (shape, order) = unsafe { (self.shape(), self.word(1)) };
        let marks = (shape >> MARK_SHIFT) as u8;
        // The high part of the revision stays as it is while the low part does not overflow.
        let words = if flags == 0 { 0 } else { mark::HAS_FLAGS } | marks & mark::HAS_REV_HIGH;
        let rev = order >> REV_SHIFT;
        // Extended attributes would stay.
        let must_match = u64::from(mark::WORDS | mark::LARGE | mark::EXPIRY_QUEUED) << MARK_SHIFT
            | u64::from(datatype::XATTR) << DATATYPE_SHIFT;
        if shape & must_match != u64::from(words) << MARK_SHIFT
            || order >> KIND_SHIFT & KIND_MASK != Kind::Document as u64
            || rev == (1 << REV_LOW_BITS) - 1
        {
            return None;
        }
        let old_len = (shape & ((1 << VALUE_LEN_BITS) - 1)) as usize;
        let key_len = shape >> KEY_LEN_SHIFT & ((1 << KEY_LEN_BITS) - 1);
        let offset = key_offset(words) + key_len as usize;
        let fits = old_len == value_len || at.capacity(offset + old_len) == at.capacity(offset + value_len);
        let old_datatype = (shape >> DATATYPE_SHIFT & ((1 << DATATYPE_BITS) - 1)) as u8;
        fits.then_some(Room {
            old_len,
            old_seqno: order & SEQNO_MASK,
            old_datatype,
            key_len,
            offset,
            words,
            rev,
        })
    }

    /// Writes a new version over an item, into the room just found.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the fields of a header, kept in registers")]
    pub(crate) unsafe fn overwrite(
        self,
        room: &Room,
        cas: u64,
        seqno: u64,
        datatype: u8,
        accessed: u32,
        flags: u32,
        value: &[u8],
    ) {
        debug_assert!(value.len() <= VALUE_MAX && seqno >> SEQNO_BITS == 0);
        let shape = value.len() as u64
            | room.key_len << KEY_LEN_SHIFT
            | u64::from(datatype & ((1 << DATATYPE_BITS) - 1)) << DATATYPE_SHIFT
            | u64::from(room.words) << MARK_SHIFT
            | u64::from(accessed) << ACCESS_SHIFT;
        // SAFETY: see the impl; the allocation has room for the value at this offset, and `value` lies elsewhere.
        unsafe {
            self.set_word(0, cas);
            self.set_word(1, seqno | (room.rev + 1) << REV_SHIFT);
            self.set_word(2, shape);
            if room.words & mark::HAS_FLAGS != 0 {
                *self.0.add(HEADER).cast::<u32>().as_ptr() = flags;
            }
            self.0.add(room.offset).copy_from_nonoverlapping(NonNull::from(value).cast(), value.len());
        }
    }

    /// Writes the key of an item whose header is written, including the collection id.
    pub(crate) unsafe fn set_stored_key(self, stored: &[u8]) {
        // SAFETY: see the impl; the header's key_len is that of `stored`.
        unsafe {
            let at = self.0.add(key_offset(self.marks()));
            at.copy_from_nonoverlapping(NonNull::from(stored).cast(), stored.len());
        }
    }

    /// Writes the key of an item whose header is written.
    pub(crate) unsafe fn set_key(self, key: Key<'_>) {
        let (prefix, prefix_len) = collection_prefix(key.collection);
        // SAFETY: see the impl; the header's key_len covers prefix and key.
        unsafe {
            let at = self.0.add(key_offset(self.marks()));
            at.copy_from_nonoverlapping(NonNull::from(&prefix).cast(), prefix_len);
            at.add(prefix_len).copy_from_nonoverlapping(NonNull::from(key.bytes).cast(), key.bytes.len());
        }
    }

    /// The key with its collection id.
    #[inline]
    pub(crate) unsafe fn stored_key<'a>(self) -> &'a [u8] {
        // SAFETY: see the impl; 'a must not outlive the lock.
        unsafe {
            let shape = self.shape();
            let len = (shape >> KEY_LEN_SHIFT & ((1 << KEY_LEN_BITS) - 1)) as usize;
            std::slice::from_raw_parts(self.0.add(key_offset((shape >> MARK_SHIFT) as u8)).as_ptr(), len)
        }
    }

    /// Returns true if the item has this key.
    #[inline]
    pub(crate) unsafe fn is(self, key: Key<'_>) -> bool {
        // SAFETY: see the impl.
        let stored = unsafe { self.stored_key() };
        if key.collection == 0 {
            return stored.split_first() == Some((&0, key.bytes));
        }
        let (prefix, len) = collection_prefix(key.collection);
        stored.split_at_checked(len) == Some((&prefix[..len], key.bytes))
    }

    /// The value's bytes.
    #[inline]
    pub(crate) unsafe fn value<'a>(self, header: &Header) -> &'a [u8] {
        // SAFETY: see the impl; 'a must not outlive the lock.
        unsafe {
            std::slice::from_raw_parts(self.0.add(header.value_offset()).as_ptr(), header.resident_len())
        }
    }

    /// Returns the value's bytes for writing. Never for a large item that is linked.
    #[inline]
    pub(crate) unsafe fn value_mut<'a>(self, header: &Header) -> &'a mut [u8] {
        // SAFETY: see the impl; 'a must not outlive the lock, and nobody else refers to the value.
        unsafe {
            std::slice::from_raw_parts_mut(self.0.add(header.value_offset()).as_ptr(), header.value_len)
        }
    }

    /// Offset of the value in the item.
    pub(crate) fn value_offset(header: &Header) -> usize {
        header.value_offset()
    }
}
