//! One value in checked text: its span, and what can be read of it on demand.

use super::{Cursor, Number};
use std::borrow::Cow;

/// The kind of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Boolean,
    /// A number that is an integer of 64 bits, however written: `1.0` and `1e3` are.
    Integer,
    /// Any other number.
    Real,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

/// The span of one value in checked text.
#[derive(Debug, Clone, Copy)]
pub struct Value<'a> {
    text: &'a [u8],
}

impl<'a> Value<'a> {
    /// `text` has been checked by [`super::validate`] or a framer, or is a span of such text. (For other text the
    /// results are arbitrary, nothing worse.)
    #[inline]
    pub fn of_checked(text: &'a [u8]) -> Self {
        Self { text }
    }

    /// The text, possibly with white space before it.
    #[inline]
    pub fn text(self) -> &'a [u8] {
        self.text
    }

    /// A cursor at the start of this value.
    #[inline]
    pub fn cursor(self) -> Cursor<'a> {
        Cursor::new(self.text)
    }

    /// Its kind.
    #[inline]
    pub fn kind(self) -> Kind {
        self.cursor().kind()
    }

    /// Returns true if it is `null`.
    #[inline]
    pub fn is_null(self) -> bool {
        self.cursor().peek() == b'n'
    }

    /// The string, if it is one.
    #[inline]
    pub fn as_string(self) -> Option<Cow<'a, str>> {
        let mut cursor = self.cursor();
        (cursor.peek() == b'"').then(|| cursor.string())
    }

    /// The integer, if it is one.
    #[inline]
    pub fn as_integer(self) -> Option<i64> {
        let mut cursor = self.cursor();
        if !matches!(cursor.peek(), b'-' | b'0'..=b'9') {
            return None;
        }
        match cursor.number() {
            Number::Integer(integer) => Some(integer),
            Number::Real(_) => None,
        }
    }

    /// The boolean, if it is one.
    #[inline]
    pub fn as_boolean(self) -> Option<bool> {
        match self.cursor().peek() {
            b't' => Some(true),
            b'f' => Some(false),
            _ => None,
        }
    }

    /// The elements; none unless it is an array.
    #[inline]
    pub fn elements(self) -> Elements<'a> {
        let mut cursor = self.cursor();
        let open = cursor.peek() == b'[';
        if open {
            cursor.enter_array();
        }
        Elements { cursor, open }
    }

    /// The members in the order of the text, duplicates too; none unless it is an object.
    #[inline]
    pub fn members(self) -> Members<'a> {
        let mut cursor = self.cursor();
        let open = cursor.peek() == b'{';
        if open {
            cursor.enter_object();
        }
        Members { cursor, open }
    }

    /// The value of the last member of that name.
    pub fn member(self, name: &str) -> Option<Value<'a>> {
        self.members().filter(|(other, _)| other == name).last().map(|(_, value)| value)
    }
}

/// Iterator over an array.
#[derive(Debug, Clone)]
pub struct Elements<'a> {
    cursor: Cursor<'a>,
    open: bool,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        self.open = self.open && self.cursor.next_element();
        self.open.then(|| self.cursor.skip())
    }
}

/// Iterator over an object.
#[derive(Debug, Clone)]
pub struct Members<'a> {
    cursor: Cursor<'a>,
    open: bool,
}

impl<'a> Iterator for Members<'a> {
    type Item = (Cow<'a, str>, Value<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if !self.open {
            return None;
        }
        match self.cursor.next_member() {
            Some(name) => Some((name, self.cursor.skip())),
            None => {
                self.open = false;
                None
            }
        }
    }
}
