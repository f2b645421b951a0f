//! The pull parser: a position in checked text.
//!
//! The caller checks [`Cursor::kind`] (or [`Cursor::peek`]) and calls the method of that kind. A method of another kind
//! returns an empty value and advances by what it skipped. Text that was not checked gives arbitrary results, but never
//! a panic and never an endless loop.

use super::string;
use super::{Kind, Number, Value, number};
use std::borrow::Cow;

/// A position in checked text.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the start of checked text.
    #[inline]
    pub fn new(text: &'a [u8]) -> Self {
        Self { rest: text }
    }

    /// The text after this position.
    #[inline]
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// The first byte of the next value, which identifies its kind except for numbers (`-` and digits); 0 at the end.
    #[inline]
    pub fn peek(&mut self) -> u8 {
        while let [b' ' | b'\t' | b'\r' | b'\n', rest @ ..] = self.rest {
            self.rest = rest;
        }
        self.rest.first().copied().unwrap_or_default()
    }

    /// The kind of the next value.
    #[inline]
    pub fn kind(&mut self) -> Kind {
        match self.peek() {
            b'"' => Kind::String,
            b'[' => Kind::Array,
            b'{' => Kind::Object,
            b't' | b'f' => Kind::Boolean,
            b'-' | b'0'..=b'9' => match { *self }.number() {
                Number::Integer(_) => Kind::Integer,
                Number::Real(_) => Kind::Real,
            },
            _ => Kind::Null,
        }
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    /// Enters an array. Then call [`Self::next_element`] before each element.
    #[inline]
    pub fn enter_array(&mut self) {
        self.peek();
        self.advance(1);
    }

    /// Returns true if there is one more element, which is then next. If not, leaves the array.
    #[inline]
    pub fn next_element(&mut self) -> bool {
        match self.peek() {
            b',' => {
                self.advance(1);
                true
            }
            b']' => {
                self.advance(1);
                false
            }
            0 => false,
            _ => true,
        }
    }

    /// Enters an object. Then call [`Self::next_member`].
    #[inline]
    pub fn enter_object(&mut self) {
        self.peek();
        self.advance(1);
    }

    /// Returns the name of the next member, whose value is then next. If there is none, leaves the object.
    #[inline]
    pub fn next_member(&mut self) -> Option<Cow<'a, str>> {
        match self.peek() {
            b',' => self.advance(1),
            b'}' => {
                self.advance(1);
                return None;
            }
            _ => {}
        }
        if self.peek() != b'"' {
            self.rest = &[];
            return None;
        }
        let name = self.string();
        if self.peek() == b':' {
            self.advance(1);
        }
        Some(name)
    }

    /// Takes a string. Returns what is between its quotes, and whether there are escapes in it.
    #[inline]
    fn raw_string(&mut self) -> (&'a [u8], bool) {
        if self.peek() != b'"' {
            self.skip();
            return (&[], false);
        }
        let inside = self.rest.get(1..).unwrap_or_default();
        let (end, escapes) = string::end_of_checked(inside);
        let (raw, rest) = inside.split_at_checked(end).unwrap_or((inside, &[]));
        self.rest = rest.get(1..).unwrap_or_default();
        (raw, escapes)
    }

    /// Takes a string, with U+FFFD in place of what is not UTF-8.
    #[inline]
    pub fn string(&mut self) -> Cow<'a, str> {
        let (raw, escapes) = self.raw_string();
        string::text(raw, escapes)
    }

    /// Takes a string as its bytes.
    #[inline]
    pub fn string_bytes(&mut self) -> Cow<'a, [u8]> {
        let (raw, escapes) = self.raw_string();
        string::bytes(raw, escapes)
    }

    /// Takes a number.
    #[inline]
    pub fn number(&mut self) -> Number {
        let first = self.peek();
        if let Some((integer, length)) = plain_integer(self.rest, first == b'-') {
            self.advance(length);
            return Number::Integer(integer);
        }
        let length = self.rest.iter().position(|byte| !is_number_byte(*byte)).unwrap_or(self.rest.len());
        let number = self.rest.get(..length).and_then(|text| number::parse(text).ok());
        self.advance(length);
        number.unwrap_or(Number::Integer(0))
    }

    /// Takes a boolean.
    #[inline]
    pub fn boolean(&mut self) -> bool {
        let value = self.peek() == b't';
        self.skip();
        value
    }

    /// Takes a null.
    #[inline]
    pub fn null(&mut self) {
        self.skip();
    }

    /// Takes `bytes` bytes, which are known to be one value.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize) -> Value<'a> {
        let (text, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, &[]));
        self.rest = rest;
        Value::of_checked(text)
    }

    /// Takes an array and returns its span. Stores the spans of its first elements in `elements`, as many as fit its
    /// capacity. The second result says whether these are all.
    pub(crate) fn skip_array(&mut self, elements: &mut Vec<Value<'a>>) -> (Value<'a>, bool) {
        self.peek();
        let mut whole = *self;
        self.enter_array();
        let mut are_all = true;
        while self.next_element() {
            let element = self.skip();
            if elements.len() < elements.capacity() {
                elements.push(element);
            } else {
                are_all = false;
            }
        }
        (whole.take(whole.rest.len() - self.rest.len()), are_all)
    }

    /// Takes the next value, whatever it is, and returns its span.
    #[inline]
    pub fn skip(&mut self) -> Value<'a> {
        let length = match self.peek() {
            b'"' => string::end_of_checked(self.rest.get(1..).unwrap_or_default()).0 + 2,
            b'[' | b'{' => container_length(self.rest),
            0 => 0,
            _ => scalar_length(self.rest),
        };
        self.take(length)
    }
}

/// An integer of at most 18 digits in the plainest notation, and its length.
#[inline]
fn plain_integer(text: &[u8], negative: bool) -> Option<(i64, usize)> {
    let mut length = usize::from(negative);
    let mut value = 0_i64;
    loop {
        match text.get(length) {
            Some(digit @ b'0'..=b'9') if length < 18 => value = value * 10 + i64::from(digit - b'0'),
            Some(byte) if is_number_byte(*byte) => return None,
            _ => return Some((if negative { -value } else { value }, length)),
        }
        length += 1;
    }
}

/// Returns true for the bytes that numbers are made of.
#[inline]
pub(super) fn is_number_byte(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')
}

/// Length of a number or keyword, up to a separator.
fn scalar_length(text: &[u8]) -> usize {
    let separates = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b':' | b' ' | b'\t' | b'\r' | b'\n');
    text.iter().position(separates).unwrap_or(text.len()).max(1)
}

#[cfg(test)]
thread_local! {
    /// Bytes of containers that were skipped.
    pub(super) static SKIPPED_BYTES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn container_length(text: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut place = 0;
    while let Some(byte) = text.get(place) {
        place += 1;
        match byte {
            b'"' => place += string::end_of_checked(text.get(place..).unwrap_or_default()).0 + 1,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            _ => {}
        }
    }
    #[cfg(test)]
    SKIPPED_BYTES.set(SKIPPED_BYTES.get() + place);
    place
}
