//! The memcached meta protocol: `mg`, `ms`, `md`, `ma`, `me`, `mn` with single-letter flags.
//!
//! ```text
//!   mg <key> <flag>*\r\n              ms <key> <length> <flag>*\r\n  <length bytes>\r\n
//!   flag = one letter, optionally followed by a token: `v`, `T30`, `Oopaque`
//! ```
//!
//! Flags are checked while the line is parsed (known, not repeated, numeric where they must be), so that an executor
//! can read them from a [`Flags`] without errors. A flag's token is parsed again when it is read, which keeps the
//! command small. Flags of memcached versions after 1.6.18 are known too.

mod flags;
mod key;

pub use flags::{Flag, Flags};
pub use key::{Key, KeyBuffer, encode_base64};

use crate::text::{self, Error, KEY_MAX, Line, Tokens};

/// Most flags a command can have: memcached takes 20 words in all, one of them its end of line.
const FLAGS_MAX: usize = 17;

/// A meta command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command<'a> {
    /// The command.
    pub verb: Verb,
    /// The key; empty for [`Verb::Noop`].
    pub key: Key<'a>,
    /// The flags.
    pub flags: Flags<'a>,
}

/// What a meta command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `mg`
    Get,
    /// `ms`, with its mode; a data block follows.
    Set(SetMode),
    /// `md`
    Delete,
    /// `ma`, which counts up or down.
    Arithmetic {
        /// Mode `D` or `-`.
        decrement: bool,
    },
    /// `me`
    Debug,
    /// `mn`
    Noop,
}

/// The `M` flag of `ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetMode {
    /// `S`, or none: store.
    Set,
    /// `E`: store if missing.
    Add,
    /// `R`: store if present.
    Replace,
    /// `A`: append to the existing value.
    Append,
    /// `P`: prepend to the existing value.
    Prepend,
}

/// Parses the line after `m` and `verb`.
pub(crate) fn parse_line(verb: u8, tokens: Tokens<'_>) -> Line<'_> {
    match verb {
        b'g' => get(tokens),
        b's' => set(tokens),
        b'd' => delete(tokens),
        b'a' => arithmetic(tokens),
        b'e' => debug(tokens),
        b'n' => command(Verb::Noop, Key::plain(b""), Flags::none()),
        _ => Line::Malformed(Error::Unknown),
    }
}

fn command<'a>(verb: Verb, key: Key<'a>, flags: Flags<'a>) -> Line<'a> {
    Line::Command(text::Command::Meta(Command { verb, key, flags }))
}

fn get(mut tokens: Tokens<'_>) -> Line<'_> {
    let Some(key) = tokens.next() else { return Line::Malformed(Error::Unknown) };
    if key.len() > KEY_MAX {
        return Line::Malformed(Error::BadFormat);
    }
    if tokens.remaining() > FLAGS_MAX {
        return Line::Malformed(Error::FlagsAreTooLong);
    }
    match Flags::parse(tokens, key) {
        Ok((key, flags)) => command(Verb::Get, key, flags),
        Err(error) => Line::Malformed(error),
    }
}

fn set(mut tokens: Tokens<'_>) -> Line<'_> {
    let Some(key) = tokens.next() else { return Line::Malformed(Error::Unknown) };
    let Some(length) = tokens.next() else { return Line::Malformed(Error::BadFormat) };
    if key.len() > KEY_MAX {
        return Line::Malformed(Error::BadFormat);
    }
    if tokens.remaining() > FLAGS_MAX - 1 {
        return Line::Malformed(Error::FlagsTooLong);
    }
    let Some(length) = text::block_length(length) else { return Line::Malformed(Error::BadFormat) };
    let parsed = Flags::parse(tokens, key);
    let mode = match parsed {
        Ok((_, flags)) => match flags.mode() {
            None | Some(b'S') => SetMode::Set,
            Some(b'E') => SetMode::Add,
            Some(b'R') => SetMode::Replace,
            Some(b'A') => SetMode::Append,
            Some(b'P') => SetMode::Prepend,
            Some(_) => return Line::MalformedStorage(Error::BadSetMode, length),
        },
        Err(_) => SetMode::Set,
    };
    match parsed {
        Ok((key, flags)) => {
            let command = Command { verb: Verb::Set(mode), key, flags };
            Line::Storage(text::Command::Meta(command), length)
        }
        Err(error) => Line::MalformedStorage(error, length),
    }
}

fn delete(mut tokens: Tokens<'_>) -> Line<'_> {
    let Some(key) = tokens.next() else { return Line::Malformed(Error::Unknown) };
    if key.len() > KEY_MAX {
        return Line::Malformed(Error::BadFormat);
    }
    if tokens.remaining() > FLAGS_MAX {
        return Line::Malformed(Error::FlagsTooLong);
    }
    match Flags::parse(tokens, key) {
        Ok((key, flags)) => command(Verb::Delete, key, flags),
        Err(error) => Line::Malformed(vague(error)),
    }
}

fn arithmetic(mut tokens: Tokens<'_>) -> Line<'_> {
    let Some(key) = tokens.next() else { return Line::Malformed(Error::Unknown) };
    if key.len() > KEY_MAX {
        return Line::Malformed(Error::BadFormat);
    }
    if tokens.remaining() > FLAGS_MAX {
        return Line::Malformed(Error::FlagsTooLong);
    }
    let (key, flags) = match Flags::parse(tokens, key) {
        Ok(parsed) => parsed,
        Err(error) => return Line::Malformed(vague(error)),
    };
    let decrement = match flags.mode() {
        None | Some(b'I' | b'+') => false,
        Some(b'D' | b'-') => true,
        Some(_) => return Line::Malformed(Error::BadArithmeticMode),
    };
    command(Verb::Arithmetic { decrement }, key, flags)
}

fn debug(mut tokens: Tokens<'_>) -> Line<'_> {
    let Some(key) = tokens.next().filter(|key| key.len() <= KEY_MAX) else {
        return Line::Malformed(Error::BadFormat);
    };
    let key = match tokens.next() {
        Some(b"b") => match Key::encoded(key) {
            Some(key) => key,
            None => return Line::Malformed(Error::BadFormat),
        },
        _ => Key::plain(key),
    };
    command(Verb::Debug, key, Flags::none())
}

/// The errors that `md` and `ma` report for bad flags.
const fn vague(error: Error) -> Error {
    match error {
        Error::OpaqueTooLong => error,
        _ => Error::InvalidOrDuplicateFlag,
    }
}

#[cfg(test)]
mod tests;
