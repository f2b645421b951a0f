//! Which documents are JSON. What clients say about it is not relied on, and most documents are never asked about: a
//! short one is checked when somebody wants to know, once per version; a long one when it is stored.
//!
//! A compressed value is not inflated for this: of it the client's word is passed on.

use kv::{Document, LARGE_VALUE, Value};
use wire::binary::datatype;
use wire::{subdocument, xattrs};

/// Returns the datatype of a value to be stored. `bits`: what the client says.
#[inline]
pub(super) fn of_stored(bits: u8, value: &Value<'_>) -> u8 {
    if bits & datatype::SNAPPY != 0 { bits } else { of_long(value.bytes()) }
}

/// Returns the datatype of a value that readers would not check because it is long; RAW if they will.
#[inline]
pub(super) fn of_long(value: &[u8]) -> u8 {
    if value.len() > LARGE_VALUE && is_json(value) { datatype::JSON } else { datatype::RAW }
}

/// Returns the datatype of a document, and notes there what was found.
#[inline]
pub(super) fn detected(document: &Document<'_>) -> u8 {
    let bits = document.datatype();
    if bits & (datatype::JSON | datatype::SNAPPY) != 0 { bits } else { detect(document) }
}

fn detect(document: &Document<'_>) -> u8 {
    let bits = document.datatype();
    if !document.is_resident() {
        return bits;
    }
    let value = document.stored();
    if value.len() > LARGE_VALUE || !is_json(value) {
        return bits;
    }
    document.note_json();
    bits | datatype::JSON
}

/// Returns true if the value of a change stream is JSON; of a long one its datatype says so.
pub(super) fn is_shown(bits: u8, value: &[u8]) -> bool {
    let body = if bits & datatype::XATTR != 0 { xattrs::split(value).1 } else { value };
    body.len() <= LARGE_VALUE && is_json(body)
}

fn is_json(value: &[u8]) -> bool {
    subdocument::check(value).is_ok()
}
