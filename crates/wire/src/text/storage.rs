//! `set`, `add`, `replace`, `append`, `prepend` and `cas`.

use super::{Command, Error, KEY_MAX, LENGTH_MAX, Line, Tokens, number};

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

/// `<key> <flags> <exptime> <length> [noreply]`, and for `cas` the version before the option.
///
/// COMPAT: the last word is the option, whatever is between it and the numbers. If the length of the block is known,
/// the block of a refused line is skipped; if not, the line is answered, whatever the option says.
#[inline]
pub(super) fn store(verb: StoreVerb, mut tokens: Tokens<'_>) -> Line<'_> {
    let (Some(key), Some(flags), Some(exptime), Some(length)) =
        (tokens.next(), tokens.next(), tokens.next(), tokens.next().and_then(block_length))
    else {
        return Line::Malformed(Error::BadFormat);
    };
    let noreply = !tokens.rest().is_empty() && tokens.last_word() == b"noreply";
    let mut numbers = || {
        let cas = match verb {
            StoreVerb::Cas => number::digits(tokens.next()?)?,
            _ => 0,
        };
        Some((number::stored_flags(flags)?, number::stored_exptime(exptime)?, cas))
    };
    match numbers() {
        Some((flags, exptime, cas)) if key.len() <= KEY_MAX => {
            Line::Storage(Command::Store(Store { verb, key, flags, exptime, cas, noreply }), length)
        }
        _ => Line::MalformedStorage(if noreply { Error::Silent } else { Error::BadFormat }, length),
    }
}

/// The length of a data block.
pub(crate) fn block_length(token: &[u8]) -> Option<usize> {
    usize::try_from(number::signed_32(token)?).ok().filter(|length| *length <= LENGTH_MAX)
}
