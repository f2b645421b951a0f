//! Whether a text is a JSON document, and how many levels it has.

use super::{DEPTH_MAX, Error, skip_blanks};

/// Checks that a document is valid and has at most [`DEPTH_MAX`] levels. Returns its levels: 0 for a string, number or
/// word.
pub fn check(text: &[u8]) -> Result<usize, Error> {
    let at = skip_blanks(text, 0);
    let (end, depth) = check_value(text, at)?;
    if skip_blanks(text, end) == text.len() { Ok(depth) } else { Err(Error::NotJson) }
}

/// The levels of the deepest of one or more values with commas between them.
pub(super) fn check_list(text: &[u8]) -> Result<usize, Error> {
    let (mut at, mut deepest) = (0, 0);
    loop {
        let (end, depth) = check_value(text, skip_blanks(text, at))?;
        deepest = deepest.max(depth);
        at = skip_blanks(text, end);
        match text.get(at) {
            None => return Ok(deepest),
            Some(b',') => at += 1,
            Some(_) => return Err(Error::NotJson),
        }
    }
}

/// Checks the value at `at`; returns its end and its levels.
fn check_value(text: &[u8], mut at: usize) -> Result<(usize, usize), Error> {
    // One bit for each open container: set for an object.
    let (mut objects, mut depth, mut deepest) = (0u64, 0usize, 0usize);
    loop {
        // A value begins here.
        let mut is_closed = true;
        match text.get(at).ok_or(Error::NotJson)? {
            b'"' => at = check_string(text, at)?,
            open @ (b'{' | b'[') => {
                if depth == DEPTH_MAX {
                    return Err(Error::DocumentTooDeep);
                }
                let is_object = *open == b'{';
                objects = objects << 1 | u64::from(is_object);
                depth += 1;
                deepest = deepest.max(depth);
                at = skip_blanks(text, at + 1);
                if text.get(at) == Some(if is_object { &b'}' } else { &b']' }) {
                    (objects, depth, at) = (objects >> 1, depth - 1, at + 1);
                } else {
                    is_closed = false;
                }
            }
            _ => at = check_word(text, at)?,
        }
        // Behind a value: close containers, or come to the next value.
        while is_closed && depth > 0 {
            at = skip_blanks(text, at);
            let is_object = objects & 1 == 1;
            match text.get(at) {
                Some(b',') => {
                    at = skip_blanks(text, at + 1);
                    is_closed = false;
                }
                Some(b'}') if is_object => (objects, depth, at) = (objects >> 1, depth - 1, at + 1),
                Some(b']') if !is_object => (objects, depth, at) = (objects >> 1, depth - 1, at + 1),
                _ => return Err(Error::NotJson),
            }
        }
        if depth == 0 {
            return Ok((at, deepest));
        }
        if objects & 1 == 1 {
            if text.get(at) != Some(&b'"') {
                return Err(Error::NotJson);
            }
            at = skip_blanks(text, check_string(text, at)?);
            if text.get(at) != Some(&b':') {
                return Err(Error::NotJson);
            }
            at = skip_blanks(text, at + 1);
        }
    }
}

/// The end of the string at `at`.
pub(super) fn check_string(text: &[u8], at: usize) -> Result<usize, Error> {
    let start = at + 1;
    let mut at = start;
    loop {
        match text.get(at).ok_or(Error::NotJson)? {
            b'"' => break,
            b'\\' => {
                let escape = text.get(at + 1).ok_or(Error::NotJson)?;
                at += match escape {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
                    b'u' if text
                        .get(at + 2..at + 6)
                        .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) =>
                    {
                        6
                    }
                    _ => return Err(Error::NotJson),
                };
            }
            0..=0x1f => return Err(Error::NotJson),
            _ => at += 1,
        }
    }
    std::str::from_utf8(&text[start..at]).map_err(|_| Error::NotJson)?;
    Ok(at + 1)
}

/// The end of the number, or of the word true, false or null, at `at`.
fn check_word(text: &[u8], at: usize) -> Result<usize, Error> {
    let rest = &text[at..];
    for word in [&b"true"[..], b"false", b"null"] {
        if rest.starts_with(word) {
            return Ok(at + word.len());
        }
    }
    let digits = |from: usize| {
        rest.get(from..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count()
    };
    let mut end = usize::from(rest.first() == Some(&b'-'));
    let whole = digits(end);
    if whole == 0 || whole > 1 && rest[end] == b'0' {
        return Err(Error::NotJson);
    }
    end += whole;
    if rest.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        if fraction == 0 {
            return Err(Error::NotJson);
        }
        end += 1 + fraction;
    }
    if matches!(rest.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(rest.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent == 0 {
            return Err(Error::NotJson);
        }
        end += 1 + sign + exponent;
    }
    Ok(at + end)
}
