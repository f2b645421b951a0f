//! The envelope of a message: which of the four kinds it is, and its parts as spans.

use crate::json::Value;
use std::borrow::Cow;
use std::fmt;

/// A message. Its parts are spans of the text.
#[derive(Debug, Clone)]
pub enum Message<'a> {
    /// It expects an answer.
    Request {
        /// The method.
        method: Cow<'a, str>,
        /// An array.
        params: Params<'a>,
        /// Any value but null.
        id: Value<'a>,
    },
    /// It expects none.
    Notification {
        /// The method.
        method: Cow<'a, str>,
        /// An array.
        params: Value<'a>,
    },
    /// The result of a request.
    Reply {
        /// Any value but null.
        result: Value<'a>,
        /// The request's id.
        id: Value<'a>,
    },
    /// The failure of a request.
    Error {
        /// Any value but null.
        error: Value<'a>,
        /// The request's id.
        id: Value<'a>,
    },
}

/// The params of a request. The first of them are remembered, so they need not be searched again.
#[derive(Debug, Clone)]
pub struct Params<'a> {
    array: Value<'a>,
    first: Vec<Value<'a>>,
    are_all: bool,
}

impl<'a> Params<'a> {
    /// The array.
    pub fn array(&self) -> Value<'a> {
        self.array
    }

    /// All of them.
    pub fn into_elements(self) -> Vec<Value<'a>> {
        if self.are_all { self.first } else { self.array.elements().collect() }
    }
}

/// Number of params that are remembered.
const FIRST_PARAMS: usize = 16;

/// Why a JSON value is not a JSON-RPC message, in the stock server's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageError(String);

impl fmt::Display for MessageError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for MessageError {}

impl<'a> Message<'a> {
    /// Reads the envelope of a framed message. A null member counts as missing.
    pub fn parse(text: &'a [u8]) -> Result<Self, MessageError> {
        let value = Value::of_checked(text);
        if value.cursor().peek() != b'{' {
            return Err(MessageError("message is not a JSON object".to_owned()));
        }
        let mut parts: [Option<Value<'a>>; 5] = [None; 5];
        let mut unknown: Option<Cow<'a, str>> = None;
        let (mut first, mut are_all) = (Vec::new(), false);
        let mut cursor = value.cursor();
        cursor.enter_object();
        while let Some(name) = cursor.next_member() {
            let value = if name == PARAMS && cursor.peek() == b'[' {
                first = Vec::with_capacity(FIRST_PARAMS);
                let array;
                (array, are_all) = cursor.skip_array(&mut first);
                array
            } else {
                cursor.skip()
            };
            let place = NAMES.iter().position(|known| *known == name);
            match place.and_then(|place| parts.get_mut(place)) {
                Some(part) => *part = (!value.is_null()).then_some(value),
                None => unknown = unknown.or(Some(name)),
            }
        }
        let [method, params, result, error, id] = parts;
        if method.is_some_and(|method| method.cursor().peek() != b'"') {
            return Err(MessageError("method is not a JSON string".to_owned()));
        }
        if let Some(name) = unknown {
            return Err(MessageError(format!("message has unexpected member \"{name}\"")));
        }
        let kind = if result.is_some() {
            Kind::Reply
        } else if error.is_some() {
            Kind::Error
        } else if id.is_some() {
            Kind::Request
        } else {
            Kind::Notification
        };
        if params.is_some_and(|params| params.cursor().peek() != b'[') {
            return Err(MessageError("\"params\" must be JSON array".to_owned()));
        }
        for ((name, part), must) in NAMES.iter().zip(parts).zip(kind.pattern()) {
            if part.is_some() != must {
                let not = if must { "" } else { " not" };
                return Err(MessageError(format!("{} must{not} have \"{name}\"", kind.name())));
            }
        }
        let method = method.and_then(Value::as_string).unwrap_or_default();
        let nothing = Value::of_checked(b"null");
        let (params, id) = (params.unwrap_or(nothing), id.unwrap_or(nothing));
        Ok(match kind {
            Kind::Request => {
                let params = Params { array: params, first, are_all };
                Self::Request { method, params, id }
            }
            Kind::Notification => Self::Notification { method, params },
            Kind::Reply => Self::Reply { result: result.unwrap_or(nothing), id },
            Kind::Error => Self::Error { error: error.unwrap_or(nothing), id },
        })
    }
}

const PARAMS: &str = "params";
const NAMES: [&str; 5] = ["method", PARAMS, "result", "error", "id"];

#[derive(Clone, Copy)]
enum Kind {
    Request,
    Notification,
    Reply,
    Error,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Notification => "notification",
            Self::Reply => "reply",
            Self::Error => "error",
        }
    }

    /// Which of [`NAMES`] it has.
    fn pattern(self) -> [bool; 5] {
        match self {
            Self::Request => [true, true, false, false, true],
            Self::Notification => [true, true, false, false, false],
            Self::Reply => [false, false, true, false, true],
            Self::Error => [false, false, false, true, true],
        }
    }
}
