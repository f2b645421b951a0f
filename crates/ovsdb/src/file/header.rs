//! The line before each record: `OVSDB JSON <length> <sha1>`.

use crate::hexadecimal;

/// What every record of a standalone database starts with.
pub(super) const MAGIC: &[u8] = b"OVSDB JSON ";
/// What every record of a clustered database starts with.
pub(super) const CLUSTER_MAGIC: &[u8] = b"OVSDB CLUSTER ";
/// Most bytes of a header and its line end.
pub(super) const LENGTH_MAX: usize = 127;
/// Digits of a length that is not known yet when the header is written.
pub(super) const WIDE_DIGITS: usize = 12;

/// A SHA-1 checksum.
pub(super) type Checksum = [u8; 20];

/// What a header states about the record after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Bytes of the record, its line end included; not 0.
    pub(super) length: u64,
    /// The record's SHA-1.
    pub(super) checksum: Checksum,
}

impl Header {
    /// Reads a header with its line end.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let rest = line.strip_prefix(MAGIC)?.strip_suffix(b"\n")?;
        let space = rest.iter().position(|byte| *byte == b' ')?;
        let (digits, rest) = rest.split_at_checked(space)?;
        let mut length = 0_u64;
        for digit in digits {
            let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
            length = length.checked_mul(10)?.checked_add(digit)?;
        }
        let digits: &[u8; 40] = rest.get(1..)?.try_into().ok()?;
        let mut checksum = [0; 20];
        let mut wrong = 0;
        for (byte, [high, low]) in checksum.iter_mut().zip(digits.as_chunks::<2>().0) {
            let (value, doubt) = hexadecimal::pair(*high, *low);
            *byte = value;
            wrong |= doubt;
        }
        (length > 0 && wrong < 16).then_some(Self { length, checksum })
    }

    /// Appends the header with its line end; the length has at least this many digits.
    pub(super) fn write(&self, digits: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        let start = out.len();
        wire::json::write::unsigned(out, self.length);
        for _ in out.len() - start..digits {
            out.insert(start, b'0');
        }
        out.push(b' ');
        write_checksum(&self.checksum, out);
        out.push(b'\n');
    }
}

/// Appends the 40 digits of a checksum.
pub(super) fn write_checksum(checksum: &Checksum, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in checksum {
        out.extend([usize::from(byte >> 4), usize::from(byte & 15)].map(|digit| DIGITS[digit]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"OVSDB JSON 90 86d297d2bf3da0ac76e53d0d23cd9377d9724acf\n";

    #[test]
    fn a_header_is_read_as_it_is_written() {
        let header = Header::parse(LINE).expect("a header");
        assert_eq!(header.length, 90);
        let mut out = Vec::new();
        header.write(0, &mut out);
        assert_eq!(out, LINE);
        out.clear();
        header.write(WIDE_DIGITS, &mut out);
        assert_eq!(out.len(), LINE.len() - 2 + WIDE_DIGITS);
        assert_eq!(Header::parse(&out), Some(header));
    }

    #[test]
    fn what_is_no_header_is_none() {
        for wrong in [
            &b"OVSDB JSON"[..],
            b"",
            b"\n",
            b"OVSDB JSON 0 86d297d2bf3da0ac76e53d0d23cd9377d9724acf\n",
            b"OVSDB JSON -1 86d297d2bf3da0ac76e53d0d23cd9377d9724acf\n",
            b"OVSDB JSON 99999999999999999999 86d297d2bf3da0ac76e53d0d23cd9377d9724acf\n",
            b"OVSDB JSON 90 86d297d2bf3da0ac76e53d0d23cd9377d9724ac\n",
            b"OVSDB JSON 90 86d297d2bf3da0ac76e53d0d23cd9377d9724acg\n",
            b"OVSDB JSON 90 86d297d2bf3da0ac76e53d0d23cd9377d9724acf",
            b"OVSDB JSON 90 86d297d2bf3da0ac76e53d0d23cd9377d9724acf \n",
            b"OVSDB CLUSTER 90 86d297d2bf3da0ac76e53d0d23cd9377d9724acf\n",
        ] {
            assert_eq!(Header::parse(wrong), None, "{}", String::from_utf8_lossy(wrong));
        }
    }
}
