//! Parses records in the plainest notation: no white space, no escapes, integers without fraction or exponent.
//!
//! Nearly all records are like that, and loading a large log is mostly reading them. What this accepts is valid JSON
//! with this meaning, so the text is not checked before or after. At anything else it gives up, and the general parser,
//! which handles all notations and all errors, starts over.

use crate::uuid::Uuid;
use wire::json::{DEPTH_MAX, Scanner, Value, special};

/// Characters of a UUID.
const UUID_LENGTH: usize = 36;

/// A position in the text of a record.
pub(super) struct Plain<'a, 's> {
    rest: &'a [u8],
    scanner: &'s mut Scanner,
}

/// For arrays: finds their ends, and checks them on the way.
pub(super) fn scanner() -> Scanner {
    Scanner::new(DEPTH_MAX)
}

impl<'a, 's> Plain<'a, 's> {
    /// The scanner is at the start of a value, and stays there unless this gives up.
    pub(super) fn new(text: &'a [u8], scanner: &'s mut Scanner) -> Self {
        Self { rest: text, scanner }
    }

    /// Takes exactly this.
    #[inline]
    pub(super) fn take(&mut self, expected: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(expected)?;
        Some(())
    }

    /// Takes exactly this byte.
    #[inline]
    pub(super) fn take_byte(&mut self, expected: u8) -> Option<()> {
        let (first, rest) = self.rest.split_first()?;
        if *first != expected {
            return None;
        }
        self.rest = rest;
        Some(())
    }

    /// Returns true if the rest contains these bytes. Quotation marks in strings are escaped, so a member name is found
    /// only where it is one.
    #[cold]
    pub(super) fn contains(&self, wanted: &[u8]) -> bool {
        self.rest.windows(wanted.len()).any(|window| window == wanted)
    }

    /// The current position, for [`Self::go_back`].
    #[inline]
    pub(super) fn place(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns to an earlier position.
    #[inline]
    pub(super) fn go_back(&mut self, place: &'a [u8]) {
        self.rest = place;
    }

    /// Bytes that are left.
    pub(super) fn length(&self) -> usize {
        self.rest.len()
    }

    /// Returns true if all has been taken.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// After a member or element: returns true if there is another one (a comma), false at the end (`end`).
    #[inline]
    pub(super) fn goes_on(&mut self, end: u8) -> Option<bool> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        match *first {
            b',' => Some(true),
            byte if byte == end => Some(false),
            _ => None,
        }
    }

    /// Takes the name of a member, with its colon.
    #[inline]
    pub(super) fn name(&mut self) -> Option<&'a [u8]> {
        let text = self.rest.strip_prefix(b"\"")?;
        let end = text.iter().position(|byte| !matches!(byte, b' ' | b'!' | b'#'..=b'[' | b']'..=b'~'))?;
        let (name, rest) = text.split_at_checked(end)?;
        self.rest = rest.strip_prefix(b"\":")?;
        Some(name)
    }

    /// Takes this member name, which has no quotes or backslashes, with its colon.
    #[inline]
    pub(super) fn take_name(&mut self, name: &str) -> Option<()> {
        let [b'"', rest @ ..] = self.rest else { return None };
        let (found, rest) = rest.split_at_checked(name.len())?;
        let [b'"', b':', rest @ ..] = rest else { return None };
        if found != name.as_bytes() {
            return None;
        }
        self.rest = rest;
        Some(())
    }

    /// Takes a member name that is a UUID, with its colon.
    #[inline]
    pub(super) fn uuid_name(&mut self) -> Option<Uuid> {
        let [b'"', text @ ..] = self.rest else { return None };
        let (uuid, rest) = text.split_at_checked(UUID_LENGTH)?;
        let [b'"', b':', rest @ ..] = rest else { return None };
        self.rest = rest;
        Uuid::parse_bytes(uuid)
    }

    /// Returns true if a null is next.
    #[inline]
    pub(super) fn is_null(&self) -> bool {
        self.rest.starts_with(b"null")
    }

    /// Takes a string without escapes. Returns what is between its quotes.
    #[inline]
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let [b'"', text @ ..] = self.rest else { return None };
        let (string, rest) = text.split_at_checked(special(text)?)?;
        let [b'"', rest @ ..] = rest else { return None };
        self.rest = rest;
        Some(string)
    }

    /// Takes an integer of at most 18 digits.
    #[inline]
    pub(super) fn integer(&mut self) -> Option<i64> {
        let digits = match self.rest {
            [b'-', digits @ ..] => digits,
            digits => digits,
        };
        let (mut value, mut count) = (0_i64, 0);
        while let Some(digit @ b'0'..=b'9') = digits.get(count) {
            value = value.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'));
            count += 1;
        }
        let is_plain = if digits.first() == Some(&b'0') { count == 1 } else { (1..=18).contains(&count) };
        let is_negative = digits.len() != self.rest.len();
        // A fraction or exponent shows in what follows: that is not the end of a member or element.
        self.rest = digits.get(count..).filter(|_| is_plain)?;
        Some(if is_negative { -value } else { value })
    }

    #[inline]
    fn split(&mut self, length: usize) -> Option<Value<'a>> {
        let (value, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(Value::of_checked(value))
    }

    /// Takes a value that is not an object.
    #[inline]
    pub(super) fn value(&mut self) -> Option<Value<'a>> {
        match self.rest {
            [b'"', text @ ..] => {
                let end = special(text)?;
                if text.get(end) != Some(&b'"') {
                    return None;
                }
                self.split(end + 2)
            }
            [b'-' | b'0'..=b'9', ..] => {
                let digits = self.rest.strip_prefix(b"-").unwrap_or(self.rest);
                let count = digits.iter().position(|byte| !byte.is_ascii_digit())?;
                let is_plain = match digits {
                    [b'0', ..] => count == 1,
                    _ => (1..=18).contains(&count),
                };
                // A fraction or exponent shows in what follows: that is not the end of a member or element.
                is_plain.then(|| self.split(self.rest.len() - digits.len() + count))?
            }
            [b't', ..] if self.rest.starts_with(b"true") => self.split(4),
            [b'f', ..] if self.rest.starts_with(b"false") => self.split(5),
            [b'[', ..] => {
                let end = self.scanner.advance(self.rest).ok()??;
                self.split(end)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<(String, String)> {
        let mut scanner = scanner();
        let mut plain = Plain::new(text.as_bytes(), &mut scanner);
        let value = plain.value()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some((text(value.text()), text(plain.rest)))
    }

    #[test]
    fn plain_values_are_taken() {
        for plain in
            ["0", "-0", "17", "-123456789012345678", "true", "false", "\"\"", "\"é x\"", "[\"set\",[1, 2.5]]"]
        {
            for end in [",", "}", "]"] {
                assert_eq!(
                    value(&format!("{plain}{end}")),
                    Some((plain.to_owned(), end.to_owned())),
                    "{plain}"
                );
            }
        }
    }

    #[test]
    fn other_values_are_left_to_others() {
        for other in [
            "",
            "01,",
            "-,",
            "1234567890123456789,",
            "null,",
            "tru,",
            "\"a\\n\",",
            "\"a\nb\"",
            "\"a",
            "[1",
            "[1}",
            "{},",
            " 1,",
        ] {
            assert_eq!(value(other), None, "{other}");
        }
        // The rest of a fraction cannot follow a value.
        assert_eq!(value("1.5,"), Some(("1".to_owned(), ".5,".to_owned())));
        let mut scanner = scanner();
        assert_eq!(Plain::new(b".5,", &mut scanner).goes_on(b'}'), None);
    }

    #[test]
    fn names_are_without_escapes() {
        let mut scanner = scanner();
        assert_eq!(Plain::new(b"\"ab c\":1", &mut scanner).name(), Some(&b"ab c"[..]));
        for other in [&b"\"a\\u0062\":1"[..], b"\"a\" :1", b"a:1", b"\"a", b"\"\xc3\xa9\":1"] {
            assert_eq!(Plain::new(other, &mut scanner).name(), None);
        }
    }
}
