//! Extended attributes: what a value with the datatype bit XATTR begins with.
//!
//! ```text
//!   | length of all pairs 4 | length 4 | key | 0 | JSON value | 0 |   ...one pair after another   | body
//! ```
//! Lengths are big-endian and do not count themselves. This is how values travel in change streams, and how they are
//! stored. A key that begins with `_` names a system attribute: it outlives its document's deletion.
//!
//! Source: the protocol document on documents and their extended attributes (`Document.md`).

/// Maximum bytes of a key.
pub const KEY_MAX: usize = 16;
/// Maximum bytes of all system attributes together.
pub const SYSTEM_MAX: usize = 1 << 20;

const LENGTH: usize = 4;

/// Splits a value into the section of its attributes, with its length, and the body. A value that is too short for its
/// section is all body.
#[inline]
pub fn split(value: &[u8]) -> (&[u8], &[u8]) {
    value.split_at_checked(section_len(value)).unwrap_or((&[], value))
}

/// Returns the length of the section at the start of a value.
#[inline]
pub fn section_len(value: &[u8]) -> usize {
    value.first_chunk().map_or(0, |length| LENGTH + u32::from_be_bytes(*length) as usize)
}

/// Returns true if a value begins with a well-formed section.
pub fn is_valid(value: &[u8]) -> bool {
    let (section, _) = split(value);
    section.len() >= LENGTH && Pairs(&section[LENGTH..]).all(|pair| pair.is_some())
}

/// The pairs of a section; `None` for what is malformed, which ends it.
struct Pairs<'a>(&'a [u8]);

impl<'a> Iterator for Pairs<'a> {
    type Item = Option<(&'a [u8], &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let pair = rest.split_first_chunk().and_then(|(length, rest)| {
            let (pair, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            let key_len = pair.iter().position(|byte| *byte == 0)?;
            let (key, value) = (&pair[..key_len], pair[key_len + 1..].strip_suffix(&[0])?);
            self.0 = rest;
            Some((key, value))
        });
        Some(pair)
    }
}

/// Returns the pairs of a section, keys and values. What is malformed is left out.
pub fn pairs(section: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    Pairs(section.get(LENGTH..).unwrap_or_default()).flatten()
}

/// Returns true if a key names a system attribute.
pub fn is_system(key: &[u8]) -> bool {
    key.first() == Some(&b'_')
}

/// Returns the section with only the pairs that are `kept`; empty if none is.
pub fn retained(section: &[u8], kept: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut builder = Builder::default();
    pairs(section).filter(|(key, _)| kept(key)).for_each(|(key, value)| builder.push(key, value));
    builder.finish()
}

/// Builds a section.
#[derive(Default)]
pub struct Builder(Vec<u8>);

impl Builder {
    /// Appends a pair.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        if self.0.is_empty() {
            self.0.extend([0; LENGTH]);
        }
        let length = key.len() + value.len() + 2;
        self.0.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        self.0.extend(key);
        self.0.push(0);
        self.0.extend(value);
        self.0.push(0);
    }

    /// Returns the section; empty without pairs.
    pub fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len().saturating_sub(LENGTH)).unwrap_or(u32::MAX);
        if let Some(room) = self.0.first_chunk_mut() {
            *room = length.to_be_bytes();
        }
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(list: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = Builder::default();
        list.iter().for_each(|(key, value)| builder.push(key.as_bytes(), value.as_bytes()));
        builder.finish()
    }

    #[test]
    fn sections_are_read_as_they_are_built() {
        let built = section(&[("_sync", "{\"cas\":1}"), ("txn", "[]")]);
        let value = [&built[..], b"body"].concat();
        assert_eq!(split(&value), (&built[..], &b"body"[..]));
        assert!(is_valid(&value));
        let found: Vec<_> = pairs(&built).collect();
        assert_eq!(found, [(&b"_sync"[..], &b"{\"cas\":1}"[..]), (&b"txn"[..], &b"[]"[..])]);
        assert_eq!(retained(&built, is_system), section(&[("_sync", "{\"cas\":1}")]));
        assert_eq!(retained(&built, |_| false), b"");
        assert_eq!(section(&[("_sync", "{}")]), b"\x00\x00\x00\x0d\x00\x00\x00\x09_sync\x00{}\x00");
    }

    #[test]
    fn what_is_malformed_ends_the_section() {
        for value in
            [&b""[..], b"\0\0\0", b"\0\0\0\x05abcd", b"\0\0\0\x04\0\0\0\x09", b"\0\0\0\x06\0\0\0\x02ab"]
        {
            assert!(!is_valid(value), "{value:?}");
            assert_eq!(pairs(split(value).0).count(), 0);
        }
        assert!(is_valid(b"\0\0\0\0"));
    }
}
