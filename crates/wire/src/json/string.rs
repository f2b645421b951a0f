//! Strings: where one ends, whether its escapes are valid, and what they stand for.

use std::borrow::Cow;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The position of the first byte that is a quote, a backslash or a control character.
#[inline]
pub fn special(bytes: &[u8]) -> Option<usize> {
    let mut base = 0;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        let found = special_bytes(word);
        if found != 0 {
            return Some(base + (found.trailing_zeros() / 8) as usize);
        }
        base += 8;
    }
    let place = chunks.remainder().iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
    Some(base + place)
}

/// The high bit of each special byte; bits above the lowest one set may be wrong.
#[inline]
fn special_bytes(word: u64) -> u64 {
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let found = (quote.wrapping_sub(ONES) & !quote)
        | (backslash.wrapping_sub(ONES) & !backslash)
        | (word.wrapping_sub(ONES * 0x20) & !word);
    found & HIGHS
}

/// The position of the quote that ends the string whose first byte after the opening quote is `bytes[0]`, and whether
/// there are escapes before it. The text has been checked.
#[inline]
pub(super) fn end_of_checked(bytes: &[u8]) -> (usize, bool) {
    let mut place = 0;
    let mut escapes = false;
    while let Some(found) = special(bytes.get(place..).unwrap_or_default()) {
        place += found;
        match bytes.get(place) {
            Some(b'"') => return (place, escapes),
            Some(b'\\') => {
                escapes = true;
                place += 2;
            }
            _ => place += 1,
        }
    }
    (bytes.len(), escapes)
}

/// What an escape stands for.
pub(super) enum Escape {
    /// A character and the length of the escape, with its backslash.
    Character(u32, usize),
    /// Its end has not arrived yet.
    Incomplete,
    /// It is invalid; the stock server's text.
    Wrong(String),
}

/// Reads the escape at the start of `text`, which starts with a backslash. `ended`: the string ends where `text` does.
pub(super) fn escape(text: &[u8], ended: bool) -> Escape {
    let Some(letter) = text.get(1) else {
        return match ended {
            true => Escape::Wrong("quoted string may not end with backslash".to_owned()),
            false => Escape::Incomplete,
        };
    };
    let character = match letter {
        b'"' | b'\\' | b'/' => *letter,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'u' => return unicode(text, ended),
        other => {
            let mut text = b"bad escape \\".to_vec();
            text.push(*other);
            return Escape::Wrong(String::from_utf8_lossy(&text).into_owned());
        }
    };
    Escape::Character(u32::from(character), 2)
}

fn unicode(text: &[u8], ended: bool) -> Escape {
    let first = match hex(text.get(2..).unwrap_or_default(), ended) {
        Ok(value) => value,
        Err(escape) => return escape,
    };
    if !(0xd800..0xdc00).contains(&first) {
        return Escape::Character(first, 6);
    }
    let pair = text.get(6..).unwrap_or_default();
    match pair {
        [b'\\', b'u', ..] => {}
        [] | [b'\\'] if !ended => return Escape::Incomplete,
        _ => return Escape::Wrong("malformed escaped surrogate pair".to_owned()),
    }
    match hex(pair.get(2..).unwrap_or_default(), ended) {
        Ok(second) if (0xdc00..0xe000).contains(&second) => {
            Escape::Character(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00), 12)
        }
        Ok(_) => Escape::Wrong("second half of escaped surrogate pair is not trailing surrogate".to_owned()),
        Err(escape) => escape,
    }
}

fn hex(digits: &[u8], ended: bool) -> Result<u32, Escape> {
    let Some(digits) = digits.get(..4) else {
        return Err(match ended {
            true => Escape::Wrong("quoted string ends within \\u escape".to_owned()),
            false => Escape::Incomplete,
        });
    };
    let mut value = 0;
    for digit in digits {
        match char::from(*digit).to_digit(16) {
            Some(digit) => value = value << 4 | digit,
            None => return Err(Escape::Wrong("malformed \\u escape".to_owned())),
        }
    }
    match value {
        0 => Err(Escape::Wrong("null bytes not supported in quoted strings".to_owned())),
        value => Ok(value),
    }
}

/// Checks the escapes of a piece of a string. Returns how much of it is decided: less than all only if an escape
/// continues after a piece that is not the last.
pub(super) fn check_escapes(piece: &[u8], last: bool) -> Result<usize, String> {
    let mut place = 0;
    while let Some(found) = memchr::memchr(b'\\', piece.get(place..).unwrap_or_default()) {
        place += found;
        match escape(piece.get(place..).unwrap_or_default(), last) {
            Escape::Character(_, length) => place += length,
            Escape::Incomplete => return Ok(place),
            Escape::Wrong(text) => return Err(text),
        }
    }
    Ok(piece.len())
}

/// The bytes that the inside of a string stands for. A surrogate without its leading half becomes the three bytes that
/// the stock server produces, which are not UTF-8.
pub(super) fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(found) = memchr::memchr(b'\\', rest) {
        let (plain, at) = rest.split_at_checked(found).unwrap_or((rest, &[]));
        bytes.extend_from_slice(plain);
        rest = match escape(at, true) {
            Escape::Character(character, length) => {
                put_character(&mut bytes, character);
                at.get(length..).unwrap_or_default()
            }
            Escape::Incomplete | Escape::Wrong(_) => at.get(1..).unwrap_or_default(),
        };
    }
    bytes.extend_from_slice(rest);
    bytes
}

fn put_character(bytes: &mut Vec<u8>, character: u32) {
    match char::from_u32(character) {
        Some(character) => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        None => bytes.extend([
            0xe0 | (character >> 12) as u8 & 0x0f,
            0x80 | (character >> 6) as u8 & 0x3f,
            0x80 | character as u8 & 0x3f,
        ]),
    }
}

/// The bytes that the inside of a string stands for, borrowed if there are no escapes.
#[inline]
pub(super) fn bytes(raw: &[u8], escapes: bool) -> Cow<'_, [u8]> {
    if escapes { Cow::Owned(unescape(raw)) } else { Cow::Borrowed(raw) }
}

/// The string, with U+FFFD in place of what is not UTF-8.
#[inline]
pub(super) fn text(raw: &[u8], escapes: bool) -> Cow<'_, str> {
    match bytes(raw, escapes) {
        // Far cheaper than searching for invalid bytes.
        Cow::Borrowed(bytes) => match str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => String::from_utf8_lossy(bytes),
        },
        Cow::Owned(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Cow::Owned(text),
            Err(error) => Cow::Owned(String::from_utf8_lossy(error.as_bytes()).into_owned()),
        },
    }
}
