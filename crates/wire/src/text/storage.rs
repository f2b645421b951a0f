//! `set`, `add`, `replace`, `append`, `prepend` and `cas`.

use super::{Command, Error, KEY_MAX, LENGTH_MAX, Line, Tokens, number, signed, unsigned, unsigned_32};

/// What a storage command does with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreVerb {
    /// Store.
    Set,
    /// Store if missing.
    Add,
    /// Store if present.
    Replace,
    /// Append to the existing value.
    Append,
    /// Prepend to the existing value.
    Prepend,
    /// Replace one version.
    Cas,
}

impl StoreVerb {
    /// The command's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Cas => "cas",
        }
    }
}

/// A storage command; its data block follows the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store<'a> {
    /// What to do with the value.
    pub verb: StoreVerb,
    /// The key.
    pub key: &'a [u8],
    /// The client flags.
    pub flags: u32,
    /// Expiration time as sent.
    pub exptime: i32,
    /// [`StoreVerb::Cas`]: the version to replace. It may be 0, which no document has.
    pub cas: u64,
    /// No answer wanted.
    pub noreply: bool,
}

/// `<key> <flags> <exptime> <length> [noreply]`
#[inline]
pub(super) fn store(verb: StoreVerb, mut tokens: Tokens<'_>) -> Line<'_> {
    let (Some(key), Some(flags), Some(exptime), Some(length)) =
        (tokens.next(), tokens.next(), tokens.next(), tokens.next())
    else {
        return Line::Malformed(Error::Unknown);
    };
    finish(verb, key, flags, exptime, length, None, tokens)
}

/// `<key> <flags> <exptime> <length> <cas> [noreply]`
pub(super) fn cas(mut tokens: Tokens<'_>) -> Line<'_> {
    let (Some(key), Some(flags), Some(exptime), Some(length), Some(cas)) =
        (tokens.next(), tokens.next(), tokens.next(), tokens.next(), tokens.next())
    else {
        return Line::Malformed(Error::Unknown);
    };
    finish(StoreVerb::Cas, key, flags, exptime, length, Some(cas), tokens)
}

#[inline]
fn finish<'a>(
    verb: StoreVerb,
    key: &'a [u8],
    flags: &[u8],
    exptime: &[u8],
    length: &[u8],
    cas: Option<&[u8]>,
    mut tokens: Tokens<'a>,
) -> Line<'a> {
    // COMPAT: memcached takes the last word for the option, whatever it is, even if a number is missing.
    let noreply = match tokens.next() {
        Some(option) => option == b"noreply",
        None => cas.unwrap_or(length) == b"noreply",
    };
    if !tokens.rest().is_empty() {
        return Line::Malformed(Error::Unknown);
    }
    let numbers = || {
        let cas = match cas {
            Some(cas) => unsigned(cas)?,
            None => 0,
        };
        Some((unsigned_32(flags)?, number::exptime(exptime)?, block_length(length)?, cas))
    };
    match numbers() {
        Some((flags, exptime, length, cas)) if key.len() <= KEY_MAX => {
            Line::Storage(Command::Store(Store { verb, key, flags, exptime, cas, noreply }), length)
        }
        _ => Line::malformed(Error::BadFormat, noreply),
    }
}

/// The length of a data block.
pub(crate) fn block_length(token: &[u8]) -> Option<usize> {
    usize::try_from(signed(token)?).ok().filter(|length| *length <= LENGTH_MAX)
}
