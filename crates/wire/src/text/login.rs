//! ASCII authentication: if a login is required, the first command is a `set` of any key whose data block is `user
//! password`. Flags and expiration time are ignored.

use super::{Command, Error, Limits, TRAILER, Tokens, first, is_http, trim_return};
use crate::Parsed;

/// Longest data block of a login in bytes.
pub const LOGIN_MAX: usize = 1024;

/// Replaces [`super::parse`] until the client has logged in.
pub fn parse_login<'a>(input: &'a [u8], limits: &Limits) -> Parsed<Command<'a>, Error> {
    let window = limits.window(input);
    let Some(end) = memchr::memchr(b'\n', window) else {
        return match limits.is_full(window) {
            true => Parsed::Fatal { error: Error::LineTooLong },
            false => Parsed::Incomplete { need: 0 },
        };
    };
    let head = end + 1;
    let line = trim_return(first(window, end));
    let mut tokens = Tokens::new(line);
    let is_set = tokens.next() == Some(b"set");
    let length = tokens.nth(3).and_then(super::storage::block_length);
    match length {
        Some(body) if is_set && body <= LOGIN_MAX => {
            Parsed::Request { head, body, trailer: TRAILER.len(), command: Command::Login }
        }
        Some(body) if is_set => {
            Parsed::Malformed { skip: head + body + TRAILER.len(), error: Error::Unauthenticated }
        }
        None if !is_set && is_http(line) => Parsed::Fatal { error: Error::Http },
        _ => Parsed::Malformed { skip: head, error: Error::Unauthenticated },
    }
}

/// User and password of a login's data block.
pub fn credentials(block: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut tokens = Tokens::new(block);
    Some((tokens.next()?, tokens.next()?))
}
