//! Parses hexadecimal digits.

/// The value of each digit; 255 for anything else. A table, because a branch on the kind of digit is mispredicted every
/// third time.
const NIBBLES: [u8; 256] = {
    let mut nibbles = [u8::MAX; 256];
    let mut value = 0;
    while value < 16 {
        nibbles[b"0123456789abcdef"[value] as usize] = value as u8;
        nibbles[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    nibbles
};

/// The byte that two digits stand for, and a value of 16 or more if they are not digits: to be checked once, after the
/// last pair.
#[inline]
pub(crate) fn pair(high: u8, low: u8) -> (u8, u8) {
    let (high, low) = (NIBBLES[usize::from(high)], NIBBLES[usize::from(low)]);
    (high << 4 | low & 15, high | low)
}
