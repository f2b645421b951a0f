//! Numbers as C's `strtol` family reads them: leading blanks, a sign, digits, and then the end or a blank.

/// An unsigned number. `None` if it is not one, is negative, or does not fit.
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

/// An unsigned number of 32 bits.
#[inline]
pub(crate) fn unsigned_32(token: &[u8]) -> Option<u32> {
    u32::try_from(unsigned(token)?).ok()
}

/// A signed number.
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

/// An expiration time, which memcached keeps in 32 bits with a sign: 2^31 to 2^32 - 1 are how many clients write a
/// negative one. `None` if it is no number or greater.
#[inline]
pub(crate) fn exptime(token: &[u8]) -> Option<i32> {
    let number = signed(token)?;
    match i32::try_from(number) {
        Ok(exptime) => Some(exptime),
        Err(_) if number < 0 => Some(i32::MIN),
        Err(_) => u32::try_from(number).ok().map(u32::cast_signed),
    }
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
    if length == 0 || digits.get(length).is_some_and(|byte| !is_blank(*byte)) {
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
    fn expiration_times_have_32_bits() {
        for (token, time) in [
            ("2147483647", Some(i32::MAX)),
            ("2147483648", Some(i32::MIN)),
            ("4294967295", Some(-1)),
            ("4294967296", None),
            ("-2147483649", Some(i32::MIN)),
            ("-9223372036854775808", Some(i32::MIN)),
            ("x", None),
        ] {
            assert_eq!(exptime(token.as_bytes()), time, "{token:?}");
        }
    }
}
