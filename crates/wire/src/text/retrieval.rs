//! `get`, `gets`, `gat` and `gats`: one line, any number of keys.

use super::{Command, Error, KEY_MAX, Limits, Line, Tokens, first, number, trim_return};
use crate::Parsed;

/// A retrieval: of all keys of its line, or of a piece of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Get<'a> {
    /// The keys, in order.
    pub keys: Keys<'a>,
    /// `gets` and `gats`: the answer shows the CAS.
    pub with_cas: bool,
    /// `gat` and `gats`: the new expiration time, as sent.
    pub exptime: Option<i32>,
    /// Whether `END` follows the last of these keys. False for all but the last piece of a command.
    pub last: bool,
}

impl Get<'static> {
    /// Creates a retrieval whose first keys were already handled, for [`parse_get_rest`].
    pub const fn continued(with_cas: bool, exptime: Option<i32>) -> Self {
        Self { keys: Keys { rest: b"" }, with_cas, exptime, last: false }
    }
}

impl<'a> Get<'a> {
    /// The key of a piece made by [`Get::take_first`]; empty if it has none.
    #[inline]
    pub fn single_key(&self) -> &'a [u8] {
        debug_assert!(!self.keys.rest.contains(&b' '), "not made by take_first");
        self.keys.rest
    }

    /// Takes the first key off, as a retrieval of its own. `END` belongs to the piece whose `last` is set. A retrieval
    /// without keys that is `last` yields one piece without a key.
    #[inline]
    pub fn take_first(&mut self) -> Option<Get<'a>> {
        let whole = *self;
        let first = self.keys.next();
        if first.is_none() && !self.last {
            return None;
        }
        let last = self.last && self.keys.is_empty();
        self.last &= !last;
        Some(Get { keys: Keys { rest: first.unwrap_or_default() }, last, ..whole })
    }
}

/// The keys of a retrieval line; each is 1 to [`KEY_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys<'a> {
    rest: &'a [u8],
}

impl<'a> Keys<'a> {
    /// The bytes not yet iterated over, to find the place in the line again.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns true if no key is left.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let mut tokens = Tokens::new(self.rest);
        let key = tokens.next();
        self.rest = tokens.rest();
        key
    }
}

#[inline]
pub(super) fn get(keys: &[u8], with_cas: bool) -> Line<'_> {
    match validate(keys) {
        Some(true) => Line::Command(Command::Get(Get {
            keys: Keys { rest: Tokens::new(keys).rest() },
            with_cas,
            exptime: None,
            last: true,
        })),
        Some(false) => Line::Malformed(Error::BadFormat),
        None => Line::Malformed(Error::RetrievedKeyTooLong),
    }
}

pub(super) fn get_and_touch(mut tokens: Tokens<'_>, with_cas: bool) -> Line<'_> {
    let exptime = tokens.next().unwrap_or_default();
    let keys = Keys { rest: tokens.rest() };
    if keys.is_empty() {
        return Line::Malformed(Error::BadFormat);
    }
    let Some(exptime) = number::signed_32(exptime) else { return Line::Malformed(Error::BadExptime) };
    match validate(keys.rest) {
        Some(_) => Line::Command(Command::Get(Get { keys, with_cas, exptime: Some(exptime), last: true })),
        None => Line::Malformed(Error::RetrievedKeyTooLong),
    }
}

/// `None` if a key is too long, otherwise whether there is a key at all.
#[inline]
fn validate(keys: &[u8]) -> Option<bool> {
    if keys.len() <= KEY_MAX {
        return Some(keys.iter().any(|byte| *byte != b' '));
    }
    let mut any = false;
    for key in Tokens::new(keys) {
        if key.len() > KEY_MAX {
            return None;
        }
        any = true;
    }
    Some(any)
}

/// Handles a line that has filled the window without a newline: takes its whole keys, if it is a retrieval.
#[cold]
pub(super) fn parse_piece(window: &[u8]) -> Parsed<Command<'_>, Error> {
    let mut tokens = Tokens::new(window);
    let (with_cas, touch) = match tokens.next() {
        Some(b"get") => (false, false),
        Some(b"gets") => (true, false),
        Some(b"gat") => (false, true),
        Some(b"gats") => (true, true),
        _ => return Parsed::Fatal { error: Error::LineTooLong },
    };
    let mut exptime = None;
    if touch {
        exptime = tokens.next().and_then(number::signed_32);
        if exptime.is_none() {
            return Parsed::Fatal { error: Error::LongLineMalformed };
        }
    }
    piece(window, tokens.rest(), Get::continued(with_cas, exptime))
}

/// Continues a retrieval whose line was handed out up to here; `get` identifies it (its keys do not matter). Yields
/// pieces of [`Command::Get`] until one is [`Get::last`].
pub fn parse_get_rest<'a>(input: &'a [u8], get: &Get<'_>, limits: &Limits) -> Parsed<Command<'a>, Error> {
    let Get { with_cas, exptime, .. } = *get;
    let window = limits.window(input);
    let Some(end) = memchr::memchr(b'\n', window) else {
        if !limits.is_full(window) {
            return Parsed::Incomplete { need: 0 };
        }
        return piece(window, window, Get::continued(with_cas, exptime));
    };
    let line = trim_return(first(window, end));
    if validate(line).is_none() {
        return Parsed::Malformed { skip: end + 1, error: Error::RetrievedKeyTooLong };
    }
    let get = Get { keys: Keys { rest: Tokens::new(line).rest() }, with_cas, exptime, last: true };
    Parsed::Request { head: end + 1, body: 0, trailer: 0, command: Command::Get(get) }
}

/// The keys of `rest`, the end of `window`, that are known to be whole.
fn piece<'a>(window: &'a [u8], rest: &'a [u8], get: Get<'a>) -> Parsed<Command<'a>, Error> {
    let whole = memchr::memrchr(b' ', rest).map_or(0, |space| space + 1);
    let keys = first(rest, whole);
    let cut = rest.len() - whole;
    if cut > KEY_MAX + 1 || validate(keys).is_none() {
        return Parsed::Fatal { error: Error::LongLineMalformed };
    }
    let get = Get { keys: Keys { rest: Tokens::new(keys).rest() }, ..get };
    Parsed::Request { head: window.len() - cut, body: 0, trailer: 0, command: Command::Get(get) }
}
