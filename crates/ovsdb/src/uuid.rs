//! UUIDs: 16 bytes in the order of their text, so that comparing bytes gives the stock server's order.

use crate::hexadecimal;
use std::fmt;
use wire::json::write;

/// A UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

/// Where in the text the two digits of each byte are.
const PAIRS: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];

impl Uuid {
    /// The UUID of zeros.
    pub const fn zero() -> Self {
        Self([0; 16])
    }

    /// Returns true if it is the UUID of zeros.
    pub fn is_zero(self) -> bool {
        self == Self::zero()
    }

    /// 16 random bytes as a UUID of version 4.
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        let [_, _, _, _, _, _, version, _, variant, ..] = &mut bytes;
        *version = *version & 0x0f | 0x40;
        *variant = *variant & 0x3f | 0x80;
        Self(bytes)
    }

    /// Parses exactly 36 characters, hexadecimal digits of either case with dashes at their places.
    pub fn parse(text: &str) -> Option<Self> {
        Self::parse_bytes(text.as_bytes())
    }

    /// As [`Self::parse`], from bytes.
    #[inline]
    pub fn parse_bytes(text: &[u8]) -> Option<Self> {
        let text: &[u8; 36] = text.try_into().ok()?;
        let mut uuid = [0; 16];
        let mut wrong = 0;
        for (byte, place) in uuid.iter_mut().zip(PAIRS) {
            let (value, doubt) = hexadecimal::pair(text[place], text[place + 1]);
            *byte = value;
            wrong |= doubt;
        }
        let has_dashes = [text[8], text[13], text[18], text[23]] == *b"----";
        (wrong < 16 && has_dashes).then_some(Self(uuid))
    }

    /// Appends the 36 characters.
    #[inline]
    pub fn write(self, out: &mut Vec<u8>) {
        write::uuid(out, &self.0);
    }

    /// Appends `["uuid","..."]`.
    #[inline]
    pub fn write_json(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"[\"uuid\",\"");
        write::uuid(out, &self.0);
        out.extend_from_slice(b"\"]");
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::with_capacity(36);
        self.write(&mut text);
        formatter.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::Uuid;

    #[test]
    fn only_the_36_characters_are_a_uuid() {
        let text = "00112233-4455-6677-8899-aabbccddeeff";
        let uuid = Uuid::parse(text).expect("a UUID");
        assert_eq!(uuid.to_string(), text);
        assert_eq!(Uuid::parse(&text.to_uppercase()), Some(uuid));
        for bad in [
            "",
            "00112233-4455-6677-8899-aabbccddeef",
            "00112233-4455-6677-8899-aabbccddeefff",
            "00112233-4455-6677-8899-aabbccddeeff ",
            "001122334-455-6677-8899-aabbccddeeff",
            "00112233 4455 6677 8899 aabbccddeeff",
            "0011223g-4455-6677-8899-aabbccddeeff",
        ] {
            assert_eq!(Uuid::parse(bad), None, "{bad}");
        }
        assert!(Uuid::zero().is_zero() && !uuid.is_zero());
        assert_eq!(Uuid::from_random([255; 16]).to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
