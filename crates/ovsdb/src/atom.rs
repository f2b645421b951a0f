//! Atoms: the five kinds of single values, and their packed form.
//!
//! ```text
//!   integer  zigzag LEB128        real  8 bytes, little-endian (one zero)      boolean  1 byte
//!   string   LEB128 length, UTF-8                                              uuid     16 bytes
//! ```
//!
//! Equal atoms have equal bytes, so most comparisons never unpack. Packed bytes come from this crate; malformed bytes
//! unpack to some atom and never panic.

use crate::uuid::Uuid;
use std::cmp::Ordering;
use std::fmt;
use wire::json::write;

/// The type of an atom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomType {
    /// 64 bits, signed.
    Integer,
    /// Double precision, finite.
    Real,
    /// True or false.
    Boolean,
    /// UTF-8 without NUL.
    String,
    /// A UUID, perhaps a reference to a row.
    Uuid,
}

impl AtomType {
    /// The name in schemas and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Real => "real",
            Self::Boolean => "boolean",
            Self::String => "string",
            Self::Uuid => "uuid",
        }
    }

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Integer, Self::Real, Self::Boolean, Self::String, Self::Uuid]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    /// The default value of a column of this type.
    pub fn default_atom(self) -> Atom<'static> {
        match self {
            Self::Integer => Atom::Integer(0),
            Self::Real => Atom::Real(0.0),
            Self::Boolean => Atom::Boolean(false),
            Self::String => Atom::String(""),
            Self::Uuid => Atom::Uuid(Uuid::zero()),
        }
    }
}

/// One value. Strings are borrowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Atom<'a> {
    /// 64 bits, signed.
    Integer(i64),
    /// Double precision, finite.
    Real(f64),
    /// True or false.
    Boolean(bool),
    /// UTF-8 without NUL.
    String(&'a str),
    /// A UUID.
    Uuid(Uuid),
}

impl Atom<'_> {
    /// Its type.
    pub fn kind(&self) -> AtomType {
        match self {
            Self::Integer(_) => AtomType::Integer,
            Self::Real(_) => AtomType::Real,
            Self::Boolean(_) => AtomType::Boolean,
            Self::String(_) => AtomType::String,
            Self::Uuid(_) => AtomType::Uuid,
        }
    }

    /// Appends it as JSON.
    #[inline]
    pub fn write_json(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Integer(value) => write::integer(out, value),
            Self::Real(value) => write::real(out, value),
            Self::Boolean(value) => write::boolean(out, value),
            Self::String(text) => write::string(out, text),
            Self::Uuid(uuid) => uuid.write_json(out),
        }
    }
}

/// The form in the stock server's messages: strings in quotes unless they look like an identifier.
impl fmt::Display for Atom<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        match *self {
            Self::String(plain) if !needs_quotes(plain) => return formatter.write_str(plain),
            Self::Uuid(uuid) => uuid.write(&mut text),
            ref other => other.write_json(&mut text),
        }
        formatter.write_str(&String::from_utf8_lossy(&text))
    }
}

fn needs_quotes(text: &str) -> bool {
    let mut bytes = text.bytes();
    let starts = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    !starts
        || !bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
        || matches!(text, "true" | "false")
        || Uuid::parse(text).is_some()
}

/// The stock server's order: numbers by value, strings by bytes, UUIDs by their text, false before true.
#[inline]
pub fn compare(one: &Atom<'_>, other: &Atom<'_>) -> Ordering {
    match (one, other) {
        (Atom::Integer(one), Atom::Integer(other)) => one.cmp(other),
        (Atom::Real(one), Atom::Real(other)) => one.total_cmp(other),
        (Atom::Boolean(one), Atom::Boolean(other)) => one.cmp(other),
        (Atom::String(one), Atom::String(other)) => one.as_bytes().cmp(other.as_bytes()),
        (Atom::Uuid(one), Atom::Uuid(other)) => one.cmp(other),
        _ => (one.kind() as u8).cmp(&(other.kind() as u8)),
    }
}

/// Appends the packed form.
#[inline]
pub fn put(out: &mut Vec<u8>, atom: Atom<'_>) {
    match atom {
        Atom::Integer(value) => put_length(out, zigzag(value)),
        Atom::Real(value) => out.extend_from_slice(&real_bits(value).to_le_bytes()),
        Atom::Boolean(value) => out.push(u8::from(value)),
        Atom::String(text) => {
            put_length(out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        }
        Atom::Uuid(uuid) => out.extend_from_slice(&uuid.0),
    }
}

/// Takes an atom off packed bytes.
#[inline]
pub fn take<'a>(rest: &mut &'a [u8], kind: AtomType) -> Atom<'a> {
    match kind {
        AtomType::Integer => Atom::Integer(unzigzag(take_length(rest))),
        AtomType::Real => Atom::Real(f64::from_bits(u64::from_le_bytes(take_array(rest)))),
        AtomType::Boolean => Atom::Boolean(take_array::<1>(rest) != [0]),
        AtomType::String => {
            let length = usize::try_from(take_length(rest)).unwrap_or(usize::MAX);
            Atom::String(std::str::from_utf8(take_bytes(rest, length)).unwrap_or_default())
        }
        AtomType::Uuid => Atom::Uuid(Uuid(take_array(rest))),
    }
}

/// Takes the packed bytes of one atom without unpacking it.
#[inline]
pub fn take_packed<'a>(rest: &mut &'a [u8], kind: AtomType) -> &'a [u8] {
    let start = *rest;
    match kind {
        AtomType::Integer => {
            take_length(rest);
        }
        AtomType::Real => {
            take_array::<8>(rest);
        }
        AtomType::Boolean => {
            take_array::<1>(rest);
        }
        AtomType::String => {
            let length = usize::try_from(take_length(rest)).unwrap_or(usize::MAX);
            take_bytes(rest, length);
        }
        AtomType::Uuid => {
            take_array::<16>(rest);
        }
    }
    start.get(..start.len() - rest.len()).unwrap_or_default()
}

/// Compares two packed atoms.
#[inline]
pub fn compare_packed(kind: AtomType, mut one: &[u8], mut other: &[u8]) -> Ordering {
    match kind {
        // With equal byte lengths, or without the length prefixes, byte order is the order of the atoms.
        AtomType::Boolean | AtomType::Uuid => one.cmp(other),
        AtomType::String => {
            take_length(&mut one);
            take_length(&mut other);
            one.cmp(other)
        }
        AtomType::Integer | AtomType::Real => compare(&take(&mut one, kind), &take(&mut other, kind)),
    }
}

#[inline]
fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

#[inline]
fn unzigzag(bits: u64) -> i64 {
    (bits >> 1).cast_signed() ^ -(bits & 1).cast_signed()
}

fn real_bits(value: f64) -> u64 {
    // Negative zero is packed as zero.
    if value == 0.0 { 0 } else { value.to_bits() }
}

/// Appends a LEB128 number.
#[inline]
pub fn put_length(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a LEB128 number.
#[inline]
pub fn take_length(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    while let Some((byte, after)) = rest.split_first() {
        *rest = after;
        if shift < 64 {
            value |= u64::from(byte & 0x7f) << shift;
        }
        if *byte < 0x80 {
            break;
        }
        shift += 7;
    }
    value
}

#[inline]
fn take_array<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    match rest.split_first_chunk::<N>() {
        Some((array, after)) => {
            *rest = after;
            *array
        }
        None => {
            *rest = &[];
            [0; N]
        }
    }
}

/// Takes this many bytes, or as many as there are.
#[inline]
pub(crate) fn take_bytes<'a>(rest: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (bytes, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
    *rest = after;
    bytes
}
