//! Counters with memcached's semantics, under the vBucket's lock: `incr`, `decr` and the meta command `ma`.

use kv::{Bucket, Entry, Expiry, KvError, Meter, Store, ThreadContext, Value};
use wire::text::unsigned;

use super::output::decimal_digits;

/// Digits of the longest 64-bit decimal number.
pub(super) const NUMBER_MAX: usize = 20;

/// COMPAT: memcached keeps longer values in chunks, and refuses to count them before it checks the CAS.
const CHUNKED: usize = 512 << 10;

/// Numbers up to this length are formatted without an allocation.
const INLINE_TEXT: usize = 64;

/// The parameters of a counter operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Count {
    /// Amount.
    pub delta: u64,
    /// Count down, stopping at 0, instead of up, wrapping at 2^64.
    pub decrement: bool,
    /// Required CAS; 0 = any.
    pub cas: u64,
    /// An explicit new CAS; 0 = the next of the clock.
    pub new_cas: u64,
}

/// The result of a counter operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    pub number: u64,
    pub cas: u64,
    /// Size of the item that was counted.
    pub item_size: usize,
    /// The number was longer than its item: it counts as another item stored.
    pub has_grown: bool,
}

/// Applies the operation to the existing document.
///
/// COMPAT: the value is a number as parsed by `strtoull`. A shorter result is padded with spaces to the old length.
/// Unless the value grows, the marks of the meta protocol and the fetched bit stay: memcached overwrites it in place.
pub(super) fn count(entry: &mut Entry<'_>, how: Count) -> Result<Counted, KvError> {
    entry.name_cas(how.cas);
    let Some(document) = entry.document() else { return Err(KvError::NotFound) };
    let (length, item_size) = (document.value_len(), document.item_size());
    if length == 0 || length > CHUNKED {
        return Err(KvError::DeltaBadValue);
    }
    if how.cas != document.cas() {
        if document.is_locked() {
            return Err(KvError::Locked);
        }
        if how.cas != 0 {
            return Err(KvError::Exists);
        }
    }
    let old = unsigned(&document.value()).ok_or(KvError::DeltaBadValue)?;
    let number = if how.decrement { old.saturating_sub(how.delta) } else { old.wrapping_add(how.delta) };
    let (flags, fetched) = (document.flags(), document.fetched());
    let (stale, win_sent) = (document.is_stale(), document.win_sent());

    let (mut inline, mut spilled) = ([b' '; INLINE_TEXT], Vec::new());
    let room: &mut [u8] = if length <= INLINE_TEXT {
        &mut inline
    } else {
        spilled.resize(length, b' ');
        &mut spilled
    };
    let digits = write_decimal(room, number);
    let text = room.get(..digits.max(length)).unwrap_or_default();
    let store =
        Store { flags, expiry: Expiry::Keep, datatype: 0, value: Value::Bytes(text), new_cas: how.new_cas };
    let mutated = entry.store_any(store)?;
    if digits <= length {
        if stale || win_sent {
            entry.set_marks(stale, win_sent);
        }
        if fetched {
            entry.record_access();
        }
    }
    Ok(Counted { number, cas: mutated.cas, item_size, has_grown: digits > length })
}

/// Creates the document of a counter.
pub(super) fn create(
    entry: &mut Entry<'_>,
    number: u64,
    expiry: Expiry,
    new_cas: u64,
) -> Result<Counted, KvError> {
    let mut digits = [0; NUMBER_MAX];
    let length = write_decimal(&mut digits, number);
    let value = Value::Bytes(digits.get(..length).unwrap_or_default());
    let mutated = entry.store(Store { flags: 0, expiry, datatype: 0, value, new_cas })?;
    Ok(Counted { number, cas: mutated.cas, item_size: entry.item_size(), has_grown: true })
}

/// Counts the operation, unless it met something else than a number. An item made counts as stored, not as a miss.
pub(super) fn note(
    bucket: &Bucket,
    cx: &ThreadContext,
    decrement: bool,
    counted: Result<Counted, KvError>,
    created: bool,
) {
    match counted {
        Ok(counted) if !created => bucket.count_arithmetic_of(cx, decrement, Some(counted.item_size)),
        Err(KvError::NotFound) => bucket.count_arithmetic_of(cx, decrement, None),
        _ => {}
    }
    if counted.is_ok_and(|counted| counted.has_grown) {
        bucket.count(cx, Meter::TotalItems, 1);
    }
}

/// Writes `number` at the start of `into` and returns the number of digits.
pub(super) fn write_decimal(into: &mut [u8], number: u64) -> usize {
    let (digits, at) = decimal_digits(number);
    let text = digits.get(at..).unwrap_or_default();
    if let Some(into) = into.get_mut(..text.len()) {
        into.copy_from_slice(text);
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_fill_the_start() {
        for (number, text) in [(0, "0"), (10, "10"), (u64::MAX, "18446744073709551615")] {
            let mut into = [b' '; 24];
            let digits = write_decimal(&mut into, number);
            assert_eq!(std::str::from_utf8(&into[..digits]).unwrap(), text);
            assert!(into[digits..].iter().all(|byte| *byte == b' '));
        }
    }
}
