//! The flags of a meta command.

use super::Key;
use crate::text::{Error, Tokens, digits, digits_32, signed_32};

/// Longest `O` flag in bytes, its letter included.
const OPAQUE_MAX: usize = 32;

/// The flags of a meta command: the set of letters, and the words themselves in their order.
///
/// Every number a flag carries was checked when the line was parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags<'a> {
    letters: u64,
    words: &'a [u8],
}

/// One flag: its letter and what follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag<'a> {
    /// The letter.
    pub letter: u8,
    /// Letter and token, as sent.
    pub word: &'a [u8],
}

impl<'a> Flags<'a> {
    /// No flags.
    pub(super) const fn none() -> Self {
        Self { letters: 0, words: b"" }
    }

    /// Checks the flags of a line, and the key, which `b` declares to be base64.
    ///
    /// COMPAT: an unknown or repeated flag ends the check at once; of other errors the last one is reported.
    pub(super) fn parse(words: Tokens<'a>, key: &'a [u8]) -> Result<(Key<'a>, Self), Error> {
        let mut flags = Self { letters: 0, words: words.rest() };
        let mut key = Key::plain(key);
        let mut failure = None;
        let mut opaque_too_long = false;
        for word in words {
            let Some((&letter, token)) = word.split_first() else { continue };
            if flags.has(letter) {
                return Err(Error::DuplicateFlag);
            }
            flags.letters |= bit(letter);
            let valid = match letter {
                b'k' | b's' | b't' | b'c' | b'f' | b'v' | b'h' | b'l' | b'u' | b'q' | b'I' | b'x' | b'P'
                | b'L' | b'M' => Ok(()),
                b'O' => {
                    opaque_too_long = word.len() > OPAQUE_MAX;
                    Ok(())
                }
                b'b' => match Key::encoded(key.as_sent()) {
                    Some(encoded) => {
                        key = encoded;
                        Ok(())
                    }
                    None => Err(Error::BadKeyEncoding),
                },
                b'N' | b'T' | b'R' => signed_32(token).map(drop).ok_or(Error::BadToken),
                b'C' | b'E' => digits(token).map(drop).ok_or(Error::BadToken),
                b'F' => digits_32(token).map(drop).ok_or(failure.unwrap_or(Error::BadFormat)),
                b'J' => digits(token).map(drop).ok_or(Error::BadInitial),
                b'D' => digits(token).map(drop).ok_or(Error::BadDeltaFlag),
                letter if Self::may_be(letter) => return Err(Error::InvalidFlag),
                _ => return Err(Error::NoFlag),
            };
            failure = valid.err().or(failure);
        }
        match failure {
            Some(error) => Err(error),
            None if opaque_too_long => Err(Error::OpaqueTooLong),
            None => Ok((key, flags)),
        }
    }

    /// Returns true if a flag may begin with that letter, whether or not there is one.
    pub(super) const fn may_be(letter: u8) -> bool {
        matches!(letter, b'0'..=b'9' | b'A'..=b'z')
    }

    /// Returns true if a flag of that letter was given.
    #[inline]
    pub const fn has(&self, letter: u8) -> bool {
        self.letters & bit(letter) != 0
    }

    /// The flags in the order they were sent.
    pub fn iter(&self) -> impl Iterator<Item = Flag<'a>> + use<'a> {
        Tokens::new(self.words).filter_map(|word| Some(Flag { letter: *word.first()?, word }))
    }

    /// The expiration time of `T`, `N` or `R`, as sent.
    pub fn exptime(&self, letter: u8) -> Option<i32> {
        signed_32(self.token(letter)?)
    }

    /// The number of `C`, `E`, `D` or `J`.
    pub fn number(&self, letter: u8) -> Option<u64> {
        digits(self.token(letter)?)
    }

    /// The client flags of `F`; 0 if there are none.
    pub fn client_flags(&self) -> u32 {
        self.token(b'F').and_then(digits_32).unwrap_or(0)
    }

    /// The mode of `M`; 0 if nothing follows the letter. COMPAT: one character decides.
    pub(super) fn mode(&self) -> Option<u8> {
        self.token(b'M').map(|token| token.first().copied().unwrap_or(0))
    }

    fn token(&self, letter: u8) -> Option<&'a [u8]> {
        if !self.has(letter) {
            return None;
        }
        self.iter().find(|flag| flag.letter == letter).and_then(|flag| flag.word.get(1..))
    }
}

/// Bit of a letter; 0 for anything else.
#[inline]
const fn bit(letter: u8) -> u64 {
    match letter {
        b'A'..=b'Z' => 1 << (letter - b'A'),
        b'a'..=b'z' => 1 << (letter - b'a' + 26),
        _ => 0,
    }
}
