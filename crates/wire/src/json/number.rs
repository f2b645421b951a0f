//! Numbers by the stock server's rule: an integer is whatever has an integral value of 64 bits and at most about 19
//! significant digits, in any notation; all else is a real, which must be finite and not denormal.

/// A number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// An integer.
    Integer(i64),
    /// Not an integer of 64 bits. Finite, not -0.
    Real(f64),
}

/// An exponent that has reached this takes no further digit.
const EXPONENT_MAX: i32 = i32::MAX / 10;

/// Parses a number that fills `text`. The error is the stock server's text.
pub(super) fn parse(text: &[u8]) -> Result<Number, &'static str> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut rest = digits;
    let mut decimal = Decimal { significand: 0, power: 0, imprecise: false };
    match rest {
        [b'0', b'0'..=b'9', ..] => return Err("leading zeros not allowed"),
        [b'0', after @ ..] => rest = after,
        [b'1'..=b'9', ..] => {
            while let [digit @ b'0'..=b'9', after @ ..] = rest {
                decimal.integer_digit(*digit);
                rest = after;
            }
        }
        _ => return Err("'-' must be followed by digit"),
    }
    if let [b'.', after @ ..] = rest {
        rest = after;
        if !matches!(rest, [b'0'..=b'9', ..]) {
            return Err("decimal point must be followed by digit");
        }
        while let [digit @ b'0'..=b'9', after @ ..] = rest {
            decimal.fraction_digit(*digit);
            rest = after;
        }
    }
    if let [b'e' | b'E', after @ ..] = rest {
        let (minus, after) = match after {
            [b'-', after @ ..] => (true, after),
            [b'+', after @ ..] => (false, after),
            _ => (false, after),
        };
        rest = after;
        if !matches!(rest, [b'0'..=b'9', ..]) {
            return Err("exponent must contain at least one digit");
        }
        let mut exponent = 0;
        while let [digit @ b'0'..=b'9', after @ ..] = rest {
            if exponent >= EXPONENT_MAX {
                return Err("exponent outside valid range");
            }
            exponent = exponent * 10 + i32::from(*digit - b'0');
            rest = after;
        }
        decimal.power = decimal.power.saturating_add(i64::from(if minus { -exponent } else { exponent }));
    }
    if !rest.is_empty() {
        return Err("syntax error in number");
    }
    match decimal.integer(negative) {
        Some(integer) => Ok(Number::Integer(integer)),
        None => real(text),
    }
}

fn real(text: &[u8]) -> Result<Number, &'static str> {
    const OUTSIDE: &str = "number outside valid range";
    let value: f64 = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(OUTSIDE)?;
    if value == 0.0 {
        Ok(Number::Real(0.0))
    } else if value.is_normal() {
        Ok(Number::Real(value))
    } else {
        Err(OUTSIDE)
    }
}

/// The digits as an integer times a power of ten, as far as 64 bits go.
struct Decimal {
    significand: u64,
    power: i64,
    imprecise: bool,
}

impl Decimal {
    fn integer_digit(&mut self, digit: u8) {
        if !self.push(digit) {
            self.power += 1;
        }
    }

    fn fraction_digit(&mut self, digit: u8) {
        if self.push(digit) {
            self.power -= 1;
        }
    }

    /// COMPAT: at the very edge the stock server's arithmetic wraps, and ours with it: 18446744073709551616 is 0.
    fn push(&mut self, digit: u8) -> bool {
        let fits = self.significand <= u64::MAX / 10;
        if fits {
            self.significand = self.significand.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        } else if digit != b'0' {
            self.imprecise = true;
        }
        fits
    }

    fn integer(mut self, negative: bool) -> Option<i64> {
        if self.significand == 0 {
            return Some(0);
        }
        if self.imprecise {
            return None;
        }
        while self.power > 0 && self.significand < u64::MAX / 10 {
            self.significand *= 10;
            self.power -= 1;
        }
        while self.power < 0 && self.significand.is_multiple_of(10) {
            self.significand /= 10;
            self.power += 1;
        }
        if self.power != 0 {
            return None;
        }
        if negative {
            0_i64.checked_sub_unsigned(self.significand)
        } else {
            i64::try_from(self.significand).ok()
        }
    }
}
