//! Objects of requests and schemas, read member by member with the stock server's errors: a required member is missing,
//! one has the wrong type, one is unexpected.

use crate::error::Error;
use crate::member_order;
use std::borrow::Cow;
use wire::json::{Kind, Value};

/// A set of kinds that a member may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// `null`
    pub const NULL: Self = Self(1);
    /// `true` and `false`
    pub const BOOLEAN: Self = Self(2);
    /// An integer.
    pub const INTEGER: Self = Self(4);
    /// Any number.
    pub const NUMBER: Self = Self(4 | 8);
    /// A string.
    pub const STRING: Self = Self(16);
    /// An array.
    pub const ARRAY: Self = Self(32);
    /// An object.
    pub const OBJECT: Self = Self(64);
    /// A string that is an [identifier](is_id).
    pub const ID: Self = Self(128);
    /// Anything.
    pub const ANY: Self = Self(127);

    /// Either of two.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if `value` is of one of these kinds.
    pub fn allow(self, value: Value<'_>) -> bool {
        let bit = match value.cursor().peek() {
            b'"' => 16,
            b'[' => 32,
            b'{' => 64,
            b't' | b'f' => 2,
            b'n' => 1,
            _ if self.0 & Self::NUMBER.0 == Self::NUMBER.0 => 4,
            _ if value.kind() == Kind::Integer => 4,
            _ => 8,
        };
        self.0 & bit != 0 || self.0 & Self::ID.0 != 0 && value.as_string().is_some_and(|text| is_id(&text))
    }
}

/// Returns true if `text` is an `<id>`: letters, digits and underscores, no digit first.
pub fn is_id(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// An object being read. Only the first error is kept.
#[derive(Debug)]
pub struct Members<'a> {
    what: Cow<'static, str>,
    object: Value<'a>,
    members: Vec<Member<'a>>,
    error: Option<Error>,
}

#[derive(Debug)]
struct Member<'a> {
    name: Cow<'a, str>,
    value: Value<'a>,
    used: bool,
}

impl<'a> Members<'a> {
    /// Starts reading `value`, which messages call `what`.
    pub fn new(value: Value<'a>, what: impl Into<Cow<'static, str>>) -> Self {
        let mut this = Self { what: what.into(), object: value, members: Vec::with_capacity(8), error: None };
        if value.cursor().peek() != b'{' {
            // COMPAT: this error shows no syntax.
            this.error = Some(Error::syntax_error_anywhere(this.details("Object expected.")));
            return this;
        }
        for (name, value) in value.members() {
            match this.members.iter_mut().find(|member| member.name == name) {
                Some(member) => member.value = value,
                None => this.members.push(Member { name, value, used: false }),
            }
        }
        this
    }

    /// A required member. `None` after an error.
    pub fn required(&mut self, name: &str, kinds: Kinds) -> Option<Value<'a>> {
        self.member(name, kinds, true)
    }

    /// An optional member.
    pub fn optional(&mut self, name: &str, kinds: Kinds) -> Option<Value<'a>> {
        self.member(name, kinds, false)
    }

    fn member(&mut self, name: &str, kinds: Kinds, required: bool) -> Option<Value<'a>> {
        match self.members.iter_mut().find(|member| member.name == name) {
            Some(member) if kinds.allow(member.value) => {
                member.used = true;
                Some(member.value)
            }
            Some(_) => {
                self.raise(&format!("Type mismatch for member '{name}'."));
                None
            }
            None => {
                if required {
                    self.raise(&format!("Required '{name}' member is missing."));
                }
                None
            }
        }
    }

    /// Records an error, unless there is one already.
    pub fn raise(&mut self, message: &str) {
        if self.error.is_none() {
            self.error = Some(Error::syntax_error(self.object, self.details(message)));
        }
    }

    fn details(&self, message: &str) -> String {
        format!("Parsing {} failed: {message}", self.what)
    }

    /// Returns true if there is an error.
    pub fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// Ends the reading: the first error, or one about unexpected members.
    pub fn finish(mut self) -> Result<(), Error> {
        if self.error.is_none() && self.members.iter().any(|member| !member.used) {
            self.report_unused();
        }
        self.error.map_or(Ok(()), Err)
    }

    #[cold]
    fn report_unused(&mut self) {
        let unused = self.members.iter().filter(|member| !member.used).count();
        let order = member_order::walk(self.members.iter().map(|member| member.name.as_ref()));
        let first = order.iter().filter_map(|index| self.members.get(*index)).find(|member| !member.used);
        let name = first.map(|member| member.name.clone()).unwrap_or_default();
        let message = match unused {
            1 => format!("Member '{name}' is present but not allowed here."),
            2 => format!("Member '{name}' and 1 other member are present but not allowed here."),
            n => format!("Member '{name}' and {} other members are present but not allowed here.", n - 1),
        };
        self.raise(&message);
    }
}
