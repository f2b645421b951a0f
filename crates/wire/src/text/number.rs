//! Numbers, in the two forms that memcached reads.
//!
//! Where it calls C's `strtol` family (the flags and the expiration time of a store, the number in a counter's value):
//! leading blanks, a sign, digits, and then the end, a blank or a NUL. Everywhere else ([`digits`], [`digits_32`]):
//! digits and nothing else, with a minus sign where the number has one.

/// Longest number of 64 bits in bytes, leading zeros included.
const DIGITS_MAX: usize = 22;
/// Longest number of 32 bits in bytes, sign and leading zeros included.
const DIGITS_32_MAX: usize = 11;

/// An unsigned number as `strtoull` reads it. `None` if it is not one, is negative, or does not fit.
#[inline]
pub fn unsigned(token: &[u8]) -> Option<u64> {
    match plain(token) {
        Some(number) => Some(number),
        None => match scan(token)? {
            (true, 1..) => None,
            (_, magnitude) => Some(magnitude),
        },
    }
}

/// A signed number as `strtoll` reads it.
#[inline]
pub(crate) fn signed(token: &[u8]) -> Option<i64> {
    match plain(token) {
        Some(number) => i64::try_from(number).ok(),
        None => match scan(token)? {
            (true, magnitude) => 0i64.checked_sub_unsigned(magnitude),
            (false, magnitude) => i64::try_from(magnitude).ok(),
        },
    }
}

/// An unsigned number of digits alone.
#[inline]
pub(crate) fn digits(token: &[u8]) -> Option<u64> {
    match plain(token) {
        Some(number) => Some(number),
        None if token.len() <= DIGITS_MAX && token.iter().all(u8::is_ascii_digit) => Some(scan(token)?.1),
        None => None,
    }
}

/// The same, of 32 bits.
#[inline]
pub(crate) fn digits_32(token: &[u8]) -> Option<u32> {
    u32::try_from(digits(token)?).ok().filter(|_| token.len() <= DIGITS_32_MAX)
}

/// A number of 32 bits of digits and perhaps a minus sign.
///
/// COMPAT: a minus sign alone is 0, as in memcached.
#[inline]
pub(crate) fn signed_32(token: &[u8]) -> Option<i32> {
    if token.len() > DIGITS_32_MAX {
        return None;
    }
    match token {
        [b'-'] => Some(0),
        [b'-', magnitude @ ..] => i32::try_from(0i64.checked_sub_unsigned(digits(magnitude)?)?).ok(),
        _ => i32::try_from(digits(token)?).ok(),
    }
}

/// An expiration time of a store.
///
/// COMPAT: memcached keeps the lower 32 bits: 2^31 to 2^32 - 1 are how many clients write a negative one.
#[inline]
pub(crate) fn stored_exptime(token: &[u8]) -> Option<i32> {
    Some(signed(token)? as i32)
}

/// The client flags of a store.
///
/// COMPAT: memcached keeps the lower 32 bits.
#[inline]
pub(crate) fn stored_flags(token: &[u8]) -> Option<u32> {
    Some(unsigned(token)? as u32)
}

/// The usual case: one to eighteen digits and nothing else.
#[inline]
fn plain(token: &[u8]) -> Option<u64> {
    if token.is_empty() || token.len() > 18 {
        return None;
    }
    let mut number = 0u64;
    for byte in token {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    Some(number)
}

/// Sign and magnitude of anything `strtol` accepts.
fn scan(token: &[u8]) -> Option<(bool, u64)> {
    let blanks = token.iter().take_while(|byte| is_blank(**byte)).count();
    let (negative, digits) = match token.get(blanks..)? {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 || digits.get(length).is_some_and(|byte| !is_blank(*byte) && *byte != 0) {
        return None;
    }
    let magnitude = digits.iter().take(length).try_fold(0u64, |number, byte| {
        number.checked_mul(10)?.checked_add(u64::from(byte.wrapping_sub(b'0')))
    })?;
    Some((negative, magnitude))
}

/// C's `isspace`.
const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | 9..=13)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_strtoul_reads() {
        for (token, number) in [
            ("0", Some(0)),
            ("010", Some(10)),
            ("+7", Some(7)),
            ("-0", Some(0)),
            ("\t7", Some(7)),
            ("7\t8", Some(7)),
            ("7\r", Some(7)),
            ("7\0", Some(7)),
            ("7\08", Some(7)),
            ("\x007", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("00000000000000000000000000001", Some(1)),
            ("18446744073709551616", None),
            ("-1", None),
            ("", None),
            ("\t", None),
            ("+", None),
            ("0x10", None),
            ("1x", None),
            ("- 1", None),
        ] {
            assert_eq!(unsigned(token.as_bytes()), number, "{token:?}");
        }
    }

    #[test]
    fn reads_what_strtol_reads() {
        for (token, number) in [
            ("-1", Some(-1)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("999999999999999999", Some(999_999_999_999_999_999)),
            ("-9223372036854775809", None),
        ] {
            assert_eq!(signed(token.as_bytes()), number, "{token:?}");
        }
    }

    #[test]
    fn digits_are_nothing_but_digits() {
        for (token, number) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("0000000000000000000005", Some(5)),
            ("00000000000000000000005", None),
            ("18446744073709551616", None),
            ("+7", None),
            ("-7", None),
            ("-", None),
            ("\t7", None),
            ("7\t", None),
            ("7\0", None),
            ("", None),
        ] {
            assert_eq!(digits(token.as_bytes()), number, "{token:?}");
        }
        for (token, number) in [
            ("4294967295", Some(u32::MAX)),
            ("00000000005", Some(5)),
            ("000000000005", None),
            ("4294967296", None),
            ("-1", None),
        ] {
            assert_eq!(digits_32(token.as_bytes()), number, "{token:?}");
        }
        for (token, number) in [
            ("2147483647", Some(i32::MAX)),
            ("-2147483648", Some(i32::MIN)),
            ("00000000005", Some(5)),
            ("-0", Some(0)),
            ("-", Some(0)),
            ("000000000005", None),
            ("2147483648", None),
            ("-2147483649", None),
            ("+5", None),
            ("--5", None),
            ("5\0", None),
            ("", None),
        ] {
            assert_eq!(signed_32(token.as_bytes()), number, "{token:?}");
        }
    }

    #[test]
    fn a_store_keeps_32_bits() {
        for (token, time) in [
            ("2147483647", Some(i32::MAX)),
            ("2147483648", Some(i32::MIN)),
            ("4294967295", Some(-1)),
            ("4294967396", Some(100)),
            ("99999999999", Some(1_215_752_191)),
            ("-2147483649", Some(i32::MAX)),
            ("9223372036854775808", None),
            ("x", None),
        ] {
            assert_eq!(stored_exptime(token.as_bytes()), time, "{token:?}");
        }
        for (token, flags) in [
            ("4294967295", Some(u32::MAX)),
            ("4294967296", Some(0)),
            ("18446744073709551615", Some(u32::MAX)),
            ("-1", None),
        ] {
            assert_eq!(stored_flags(token.as_bytes()), flags, "{token:?}");
        }
    }
}
