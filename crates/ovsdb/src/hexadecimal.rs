//! Hexadecimal digits, read.

/// The value of each digit; of anything else 255. A table, because a guess which kind a digit is goes wrong every third
/// time.
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

/// The byte that two digits stand for, and something that is 16 or more if they are none: to be asked about once, after
/// the last pair.
#[inline]
pub(crate) fn pair(high: u8, low: u8) -> (u8, u8) {
    let (high, low) = (NIBBLES[usize::from(high)], NIBBLES[usize::from(low)]);
    (high << 4 | low & 15, high | low)
}
