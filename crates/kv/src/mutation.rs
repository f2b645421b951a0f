//! The arguments and results of operations that change a document.

use memory::{LargeBlock, Pin};

/// Values longer than this have memory of their own: they are received straight into it, are immutable there, and are
/// sent from where they lie.
pub const LARGE_VALUE: usize = 32 << 10;

/// The new expiry to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Keep the document's own (preserve-TTL); none for a new document.
    Keep,
    /// Absolute seconds since 1970; 0 = never. A time not after now makes the document vanish at once.
    At(u32),
}

impl Expiry {
    /// From a memcached/Couchbase protocol field: 0 never, up to 30 days relative, above absolute, negative already
    /// expired.
    pub fn from_protocol(exptime: impl Into<i64>, now_unix_s: u32) -> Self {
        const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;
        match exptime.into() {
            0 => Self::At(0),
            i64::MIN..0 => Self::At(1),
            relative @ 1..=RELATIVE_MAX_S => {
                Self::At(u32::try_from(i64::from(now_unix_s) + relative).unwrap_or(u32::MAX))
            }
            absolute => Self::At(u32::try_from(absolute).unwrap_or(u32::MAX)),
        }
    }
}

/// The condition and manner of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// Store whatever is there. With a CAS: only over that version ([`crate::KvError::NotFound`] if missing).
    Set,
    /// Only if missing ([`crate::KvError::Exists`]).
    Add,
    /// Only if present ([`crate::KvError::NotFound`]).
    Replace,
    /// Append the value to the present one ([`crate::KvError::NotStored`] if missing); flags and expiry stay.
    Append,
    /// Prepend the value to the present one.
    Prepend,
}

impl StoreKind {
    /// Returns memcached's name for an attempt to store this way with this CAS.
    pub const fn name(self, cas: u64) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Prepend => "prepend",
            _ if cas != 0 => "cas",
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
        }
    }
}

/// The bytes of a value to store.
pub enum Value<'a> {
    /// Bytes in the input buffer; they are copied.
    Bytes(&'a [u8]),
    /// A large value already in item memory, from [`crate::Bucket::prepare_large`]; it is linked, not copied.
    Large(Box<LargeItem>),
}

impl Value<'_> {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Large(item) => item.bytes(),
        }
    }
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Large(item) => item.len(),
        }
    }
    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What to store, without any condition.
pub struct Store<'a> {
    /// The client's flags.
    pub flags: u32,
    /// The new expiry.
    pub expiry: Expiry,
    /// Datatype bits; 2 marks a Snappy block, which the caller has checked ([`wire::snappy::check`]).
    pub datatype: u8,
    /// The value.
    pub value: Value<'a>,
    /// An explicit CAS (meta `E`, with-meta); 0 = the next of the vBucket's clock.
    pub new_cas: u64,
}

/// A store with its condition: SET, ADD, REPLACE, APPEND, PREPEND or CAS.
pub struct Mutation<'a> {
    /// Condition and manner.
    pub kind: StoreKind,
    /// Required CAS of the present version; 0 = any.
    pub cas: u64,
    /// What to store.
    pub store: Store<'a>,
}

/// A version of a document that was made elsewhere.
pub struct Made<'a> {
    /// Its CAS; 0: it gets the next one of the clock.
    pub cas: u64,
    /// Its revision.
    pub rev: u64,
    /// The client's flags.
    pub flags: u32,
    /// When it expires, in unix seconds; 0: never.
    pub expiry: u32,
    /// Datatype bits.
    pub datatype: u8,
    /// Its value; of a deletion the section of extended attributes that are left.
    pub value: &'a [u8],
    /// What it is.
    pub kind: MadeKind,
}

/// See [`Made::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MadeKind {
    /// A document.
    Document,
    /// A deletion.
    Deletion,
    /// A deletion because it had expired.
    Expiration,
}

/// Which of two versions wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// That of more revisions, then that of the higher CAS.
    Revision,
    /// That of the higher CAS, which is a time; then that of more revisions.
    Time,
}

/// The result of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mutated {
    /// The document's CAS now (for a lock: the lock's CAS).
    pub cas: u64,
    /// The sequence number of the change.
    pub seqno: u64,
    /// The vBucket's history id (mutation token).
    pub vb_uuid: u64,
}

/// A large item under construction in the bucket's memory. Fill it piece by piece, then store it. If it is dropped
/// without being stored, its memory is freed.
pub struct LargeItem {
    pub(crate) block: LargeBlock,
    pub(crate) value_offset: usize,
}

impl LargeItem {
    /// Returns up to `most` of the value's bytes from `from` on, to be filled.
    pub fn window(&mut self, from: usize, most: usize) -> &mut [u8] {
        let from = from.min(self.len());
        let end = self.len().min(from.saturating_add(most));
        self.block.window(self.value_offset + from..self.value_offset + end)
    }
    /// Turns it into a pin on its value, which is only sent.
    pub(crate) fn into_pin(self) -> Pin {
        self.block.into_pin(self.value_offset)
    }
    /// Returns the value's bytes, as far as they have been filled.
    pub fn bytes(&self) -> &[u8] {
        self.block.bytes().get(self.value_offset..).unwrap_or_default()
    }
    /// Returns the length of the value in bytes.
    pub fn len(&self) -> usize {
        self.block.size() - self.value_offset
    }
    /// Returns true if the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
