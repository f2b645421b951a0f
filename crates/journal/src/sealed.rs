//! JSON documents with a checksum, for the files beside a journal.
//!
//! ```text
//! {
//!   "crc32c": "0123abcd",     of all other bytes, as if this line were not there
//!   ...
//! }
//! ```
//! Versions before this one wrote none: such a document is taken as it is.

use thiserror::Error;

/// The name of the checksum.
pub const NAME: &str = "crc32c";
const BEFORE: &str = "{\n  \"crc32c\": \"";
const DIGITS: usize = 8;
const AFTER: &str = "\",";

/// A document is not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("its checksum is not that of what it holds; put back the file as the node wrote it")]
pub struct Broken;

/// Adds the checksum to a pretty-printed object that is not empty, and a line break at its end.
pub fn seal(mut text: String) -> String {
    text.push('\n');
    let sum = crc32c::crc32c(text.as_bytes());
    text.replace_range(..1, &format!("{BEFORE}{sum:08x}{AFTER}"));
    text
}

/// Compares the checksum. It is still a member of the object then.
pub fn check(text: &str) -> Result<(), Broken> {
    let Some(sealed) = text.strip_prefix(BEFORE) else {
        // The checksum may be there under a damaged name.
        let first = text.split_once(',').map_or(text, |(first, _)| first);
        return if ends_in_a_sum(first) { Err(Broken) } else { Ok(()) };
    };
    let (sum, rest) = sealed.split_at_checked(DIGITS).ok_or(Broken)?;
    let rest = rest.strip_prefix(AFTER).ok_or(Broken)?;
    let found = crc32c::crc32c_append(crc32c::crc32c(b"{"), rest.as_bytes());
    if sum == format!("{found:08x}") { Ok(()) } else { Err(Broken) }
}

fn ends_in_a_sum(text: &str) -> bool {
    let digits = text.trim_end().strip_suffix('"').and_then(|text| text.rsplit_once('"'));
    digits.is_some_and(|(_, digits)| {
        digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "{\n  \"a\": 8,\n  \"b\": \"text\"\n}";

    #[test]
    fn what_was_sealed_is_whole() {
        let sealed = seal(DOCUMENT.to_owned());
        assert_eq!(check(&sealed), Ok(()));
        assert_eq!(
            sealed,
            format!("{BEFORE}{}{AFTER}{}\n", &sealed[BEFORE.len()..][..DIGITS], &DOCUMENT[1..])
        );
        assert_eq!(check(DOCUMENT), Ok(()), "of an earlier version");
    }

    /// Bytes that are not UTF-8 are no document in any case.
    #[test]
    fn no_flipped_bit_passes() {
        let sealed = seal(DOCUMENT.to_owned());
        for bit in 0..sealed.len() * 8 {
            let mut bytes = sealed.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Ok(text) = String::from_utf8(bytes) else { continue };
            // What is taken for a document of an earlier version must not be JSON.
            assert!(check(&text).is_err() || !is_json(&text), "bit {bit}: {text}");
        }
    }

    #[test]
    fn no_cut_or_doubled_byte_passes() {
        let sealed = seal(DOCUMENT.to_owned());
        for at in 0..sealed.len() - 1 {
            let cut = &sealed[..at];
            let doubled = format!("{}{}", &sealed[..=at], &sealed[at..]);
            let removed = format!("{}{}", &sealed[..at], &sealed[at + 1..]);
            for text in [cut, &doubled, &removed] {
                assert!(check(text).is_err() || !is_json(text), "byte {at}: {text}");
            }
        }
    }

    fn is_json(text: &str) -> bool {
        serde_json::from_str::<serde_json::Value>(text).is_ok()
    }
}
