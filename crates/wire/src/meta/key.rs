//! Keys of meta commands, which the `b` flag declares to be base64.

/// A key as it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    sent: &'a [u8],
    encoded: bool,
}

/// Room for a decoded key.
pub type KeyBuffer = [u8; crate::text::KEY_MAX];

impl<'a> Key<'a> {
    /// A key that was sent literally.
    pub(super) const fn plain(sent: &'a [u8]) -> Self {
        Self { sent, encoded: false }
    }

    /// A key in base64; `None` if it is not.
    pub(super) fn encoded(sent: &'a [u8]) -> Option<Self> {
        decode_base64(sent, &mut [0; crate::text::KEY_MAX]).map(|_| Self { sent, encoded: true })
    }

    /// Length of the key itself.
    pub fn length(&self) -> usize {
        self.decode(&mut [0; crate::text::KEY_MAX]).len()
    }

    /// The bytes the client sent.
    pub const fn as_sent(&self) -> &'a [u8] {
        self.sent
    }

    /// Returns true if it was sent in base64 (`b`).
    pub const fn is_encoded(&self) -> bool {
        self.encoded
    }

    /// The key itself; a decoded one lies in `buffer`.
    #[inline]
    pub fn decode<'b>(&self, buffer: &'b mut KeyBuffer) -> &'b [u8]
    where
        'a: 'b,
    {
        if !self.encoded {
            return self.sent;
        }
        let length = decode_base64(self.sent, buffer).unwrap_or(0);
        buffer.get(..length).unwrap_or_default()
    }
}

/// Decodes into `buffer` and returns the length.
///
/// COMPAT: like memcached: bytes outside the alphabet are skipped, what follows a padded group is ignored, and the rest
/// must be whole groups of four.
fn decode_base64(text: &[u8], buffer: &mut KeyBuffer) -> Option<usize> {
    let count = text.iter().filter(|byte| sextet(**byte).is_some()).count();
    if count == 0 || count % 4 != 0 {
        return None;
    }
    let (mut group, mut filled, mut padding, mut length) = (0u32, 0, 0, 0);
    for byte in text {
        let Some(value) = sextet(*byte) else { continue };
        padding += usize::from(*byte == b'=');
        group = group << 6 | u32::from(value);
        filled += 1;
        if filled < 4 {
            continue;
        }
        let [_, bytes @ ..] = group.to_be_bytes();
        let bytes = bytes.get(..3usize.checked_sub(padding).filter(|kept| *kept > 0)?)?;
        buffer.get_mut(length..length + bytes.len())?.copy_from_slice(bytes);
        length += bytes.len();
        if padding > 0 {
            break;
        }
        (group, filled) = (0, 0);
    }
    Some(length)
}

/// Six bits of a character; padding counts as zero.
const fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        b'=' => Some(0),
        _ => None,
    }
}

/// Passes the base64 text of `key` to `write`, piece by piece.
pub fn encode_base64(key: &[u8], mut write: impl FnMut(&[u8])) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in key.chunks(3) {
        let mut group = [0u8; 4];
        for (to, from) in group.iter_mut().skip(1).zip(chunk) {
            *to = *from;
        }
        let group = u32::from_be_bytes(group);
        let mut text = [b'='; 4];
        for (index, to) in text.iter_mut().enumerate().take(chunk.len() + 1) {
            let sextet = group >> (18 - 6 * index) & 63;
            *to = ALPHABET.get(sextet as usize).copied().unwrap_or(b'A');
        }
        write(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &[u8]) -> Option<Vec<u8>> {
        let mut buffer = [0; crate::text::KEY_MAX];
        decode_base64(text, &mut buffer).map(|length| buffer[..length].to_vec())
    }

    #[test]
    fn decodes_as_memcached_does() {
        for (text, key) in [
            (&b"Zm9v"[..], Some(&b"foo"[..])),
            (b"Zm9vYg==", Some(b"foob")),
            (b"Zm9vYmE=", Some(b"fooba")),
            (b"Zh==", Some(b"f")),
            (b"Zm9v?", Some(b"foo")),
            (b"Zm\xff9v", Some(b"foo")),
            (b"Zg==Zg==", Some(b"f")),
            (b"Zm9", None),
            (b"Z===", None),
            (b"====", None),
            (b"?", None),
            (b"", None),
        ] {
            assert_eq!(decoded(text).as_deref(), key, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn encoding_is_undone_by_decoding() {
        for length in 1..=187 {
            let key: Vec<u8> = (0..length).map(|index| (index * 37 + length) as u8).collect();
            let mut text = Vec::new();
            encode_base64(&key, |piece| text.extend_from_slice(piece));
            assert_eq!(decoded(&text), Some(key));
        }
    }
}
