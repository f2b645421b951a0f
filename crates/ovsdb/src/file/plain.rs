//! Takes apart records of the plainest notation: no white space, no escapes, integers without fraction or exponent.
//!
//! Nearly all records are like that, and loading a large log is mostly reading them. What this accepts is JSON and means
//! what it says, so nobody checks the text before or after; at anything else it gives up, and the general way, which
//! knows all notations and all complaints, begins again.

use wire::json::{DEPTH_MAX, Scanner, Value};

/// A place in the text of a record.
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

    /// Whether the rest has these bytes somewhere. Quotation marks in strings are escaped: a member of an object is found only
    /// where it is one.
    #[cold]
    pub(super) fn contains(&self, wanted: &[u8]) -> bool {
        self.rest.windows(wanted.len()).any(|window| window == wanted)
    }

    /// Bytes that are left.
    pub(super) fn length(&self) -> usize {
        self.rest.len()
    }

    /// Whether all has been taken.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// After a member or element: whether there is another one (a comma) or an end (`end`).
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

    #[inline]
    fn split(&mut self, length: usize) -> Option<Value<'a>> {
        let (value, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(Value::of_checked(value))
    }

    /// Takes a value that is no object.
    #[inline]
    pub(super) fn value(&mut self) -> Option<Value<'a>> {
        match self.rest {
            [b'"', text @ ..] => {
                let end = text.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'))?;
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
                // A fraction or exponent would show as something else than the end of a member or element.
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
