//! The memcached meta protocol: `mg`, `ms`, `md`, `ma`, `me`, `mn` with single-letter flags.
//!
//! ```text
//!   mg <key> <flag>*\r\n              ms <key> <length> <flag>*\r\n  <length bytes>\r\n
//!   flag = one letter, optionally followed by a token: `v`, `T30`, `Oopaque`
//! ```
//!
//! Flags are checked while the line is parsed (known, not repeated, numeric where they must be), so that an executor
//! can read them from a [`Flags`] without errors. A flag's token is parsed again when it is read, which keeps the
//! command small. Flags and errors are those of memcached 1.6.45.

mod flags;
mod key;

pub use flags::{Flag, Flags};
pub use key::{Key, KeyBuffer, encode_base64};

use crate::text::{self, Error, KEY_MAX, Line, Tokens};

/// Most words a command can have.
const WORDS_MAX: usize = 20;
/// Most flags of a command that has its name and a key before them.
const FLAGS_MAX: usize = WORDS_MAX - 2;
/// Words behind a key that are looked at in any case.
const SCANNED_WORDS: usize = 22;

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

/// Parses the line after `m` and `verb`. `head`: length of the line with its end.
pub(crate) fn parse_line(verb: u8, tokens: Tokens<'_>, head: usize) -> Line<'_> {
    match verb {
        b'g' => get(tokens),
        b's' => set(tokens),
        b'd' => delete(tokens),
        b'a' => arithmetic(tokens),
        b'e' => debug(tokens),
        b'n' if head < text::LINE_LEAST => Line::Malformed(Error::BadFormat),
        b'n' => command(Verb::Noop, Key::plain(b""), Flags::none()),
        _ => Line::Malformed(Error::Unknown),
    }
}

fn command<'a>(verb: Verb, key: Key<'a>, flags: Flags<'a>) -> Line<'a> {
    Line::Command(text::Command::Meta(Command { verb, key, flags }))
}

/// Parses flags, at most `most`, behind a key.
fn key_and_flags<'a>(key: &'a [u8], words: Tokens<'a>, most: usize) -> Result<(Key<'a>, Flags<'a>), Error> {
    let parsed = if key.len() > KEY_MAX {
        Err(Error::BadFormat)
    } else if words.remaining() > most {
        Err(Error::FlagsTooLong)
    } else {
        Flags::parse(words, key)
    };
    parsed.map_err(|error| if has_no_flag(words) { Error::NoFlag } else { error })
}

/// COMPAT: a word that cannot be a flag outranks all other errors, if it is among the first.
#[cold]
fn has_no_flag(words: Tokens<'_>) -> bool {
    words.take(SCANNED_WORDS).any(|word| word.first().is_some_and(|letter| !Flags::may_be(*letter)))
}

fn get(mut tokens: Tokens<'_>) -> Line<'_> {
    let Some(key) = tokens.next() else { return Line::Malformed(Error::BadFormat) };
    match key_and_flags(key, tokens, FLAGS_MAX) {
        Ok((key, flags)) => command(Verb::Get, key, flags),
        Err(error) => Line::Malformed(error),
    }
}

fn set(mut tokens: Tokens<'_>) -> Line<'_> {
    let (Some(key), Some(length)) = (tokens.next(), tokens.next().and_then(text::block_length)) else {
        return Line::Malformed(Error::BadFormat);
    };
    let parsed = key_and_flags(key, tokens, FLAGS_MAX - 1);
    match parsed.and_then(|(key, flags)| Ok((key, flags, set_mode(&flags)?))) {
        Ok((key, flags, mode)) => {
            let command = Command { verb: Verb::Set(mode), key, flags };
            Line::Storage(text::Command::Meta(command), length)
        }
        Err(Error::NoFlag) => Line::Malformed(Error::NoFlag),
        Err(error) => Line::MalformedStorage(error, length),
    }
}

fn set_mode(flags: &Flags<'_>) -> Result<SetMode, Error> {
    match flags.mode() {
        None | Some(b'S') => Ok(SetMode::Set),
        Some(b'E') => Ok(SetMode::Add),
        Some(b'R') => Ok(SetMode::Replace),
        Some(b'A') => Ok(SetMode::Append),
        Some(b'P') => Ok(SetMode::Prepend),
        Some(_) => Err(Error::BadSetMode),
    }
}

fn delete(mut tokens: Tokens<'_>) -> Line<'_> {
    let Some(key) = tokens.next() else { return Line::Malformed(Error::BadFormat) };
    match key_and_flags(key, tokens, FLAGS_MAX) {
        Ok((key, flags)) => command(Verb::Delete, key, flags),
        Err(error) => Line::Malformed(error),
    }
}

fn arithmetic(mut tokens: Tokens<'_>) -> Line<'_> {
    let Some(key) = tokens.next() else { return Line::Malformed(Error::BadFormat) };
    let (key, flags) = match key_and_flags(key, tokens, FLAGS_MAX) {
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

/// COMPAT: words but `b` are ignored; so is a `b` behind a key that is not base64, unless something follows it.
fn debug(mut tokens: Tokens<'_>) -> Line<'_> {
    let Some(key) = tokens.next().filter(|key| key.len() <= KEY_MAX) else {
        return Line::Malformed(Error::BadFormat);
    };
    if has_no_flag(tokens) {
        return Line::Malformed(Error::NoFlag);
    }
    let key = match (tokens.next(), tokens.next()) {
        (Some(b"b"), after) => match (Key::encoded(key), after) {
            (Some(key), _) => key,
            (None, None) => Key::plain(key),
            (None, Some(_)) => return Line::Malformed(Error::BadFormat),
        },
        _ => Key::plain(key),
    };
    command(Verb::Debug, key, Flags::none())
}

/// The errors that `ma` reports for a bad key or bad flags.
const fn vague(error: Error) -> Error {
    match error {
        Error::OpaqueTooLong | Error::NoFlag => error,
        _ => Error::InvalidOrDuplicateFlag,
    }
}

#[cfg(test)]
mod tests;
