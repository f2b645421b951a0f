//! Snappy's raw blocks, as clients send values: `length as a varint | literals and copies`.
//!
//! Input from outside goes through [`check`] first, which needs no room for the result: it only adds up what each
//! element would write. So a few bytes that claim to become twenty mebibytes cost only the reading, and what has passed
//! inflates.

use snap::raw::{Decoder, Encoder, max_compress_len};

/// Longest length prefix in bytes.
const PREFIX_MAX: usize = 5;
/// Literals longer than this have their length after the tag.
const SHORT_LITERAL: usize = 60;

/// Why a block is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SnappyError {
    /// Bytes that no compressor produces.
    #[error("the bytes are not a Snappy block")]
    Malformed,
    /// It inflates to more than allowed.
    #[error("the Snappy block inflates to more than allowed")]
    TooLong,
}

/// The inflated length that a block declares, and how many bytes that declaration takes.
#[inline]
fn prefix(block: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0u64;
    for (at, byte) in block.iter().take(PREFIX_MAX).enumerate() {
        length |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(length).ok()? as usize, at + 1));
        }
    }
    None
}

/// The inflated length that a block declares.
#[inline]
pub fn inflated_len(block: &[u8]) -> Option<usize> {
    prefix(block).map(|(length, _)| length)
}

/// Checks that a block inflates to no more than `most` bytes. Returns how many.
pub fn check(block: &[u8], most: usize) -> Result<usize, SnappyError> {
    let (length, head) = prefix(block).ok_or(SnappyError::Malformed)?;
    if length > most {
        return Err(SnappyError::TooLong);
    }
    let elements = block.get(head..).unwrap_or_default();
    if written_by(elements, length) == Some(length) { Ok(length) } else { Err(SnappyError::Malformed) }
}

/// How many bytes the elements write, none beyond `length`; `None` if one of them is invalid.
fn written_by(mut elements: &[u8], length: usize) -> Option<usize> {
    let mut written = 0usize;
    while let Some((tag, rest)) = elements.split_first() {
        let upper = usize::from(tag >> 2);
        let (count, rest) = match tag & 3 {
            0 if upper < SHORT_LITERAL => (upper + 1, rest.get(upper + 1..)?),
            0 => {
                let (bytes, rest) = rest.split_at_checked(upper - SHORT_LITERAL + 1)?;
                let count = little_endian(bytes).checked_add(1)?;
                (count, rest.get(count..)?)
            }
            copy => {
                let offset_bytes = [0, 1, 2, 4][usize::from(copy)];
                let (bytes, rest) = rest.split_at_checked(offset_bytes)?;
                let (count, offset) = match copy {
                    1 => (4 + (upper & 7), little_endian(bytes) | usize::from(tag >> 5) << 8),
                    _ => (1 + upper, little_endian(bytes)),
                };
                if offset == 0 || offset > written {
                    return None;
                }
                (count, rest)
            }
        };
        written = written.checked_add(count).filter(|written| *written <= length)?;
        elements = rest;
    }
    Some(written)
}

fn little_endian(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Inflates a block that has passed [`check`] into a buffer of the length that [`check`] returned.
pub fn inflate(block: &[u8], into: &mut [u8]) {
    let inflated = Decoder::new().decompress(block, into);
    assert_eq!(inflated, Ok(into.len()), "the block was checked");
}

/// Compresses blocks; keeps its tables from one to the next.
pub struct Compressor {
    encoder: Encoder,
    block: Vec<u8>,
}

impl Default for Compressor {
    fn default() -> Self {
        Self { encoder: Encoder::new(), block: Vec::new() }
    }
}

impl Compressor {
    /// Compresses the value into a block. Returns `None` if it is longer than 4 GiB.
    pub fn compress(&mut self, value: &[u8]) -> Option<&[u8]> {
        self.block.resize(max_compress_len(value.len()), 0);
        let length = self.encoder.compress(value, &mut self.block).ok()?;
        self.block.get(..length)
    }

    /// Bytes of the buffer for the last block.
    pub fn room(&self) -> usize {
        self.block.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: usize = 1 << 20;

    fn decoded(block: &[u8]) -> Option<Vec<u8>> {
        // The decoder allocates the declared length, so this is limited to what a test can bear.
        inflated_len(block).filter(|length| *length <= MOST)?;
        Decoder::new().decompress_vec(block).ok()
    }

    fn agree(block: &[u8]) -> Result<(), TestCaseError> {
        let checked = check(block, MOST).ok();
        let decoded = decoded(block);
        prop_assert_eq!(checked, decoded.as_ref().map(Vec::len), "{:02x?}", block);
        if let Some(decoded) = decoded {
            let mut inflated = vec![0xee; decoded.len()];
            inflate(block, &mut inflated);
            prop_assert_eq!(inflated, decoded);
        }
        Ok(())
    }

    /// Bytes that repeat themselves here and there.
    fn values() -> impl Strategy<Value = Vec<u8>> {
        let pieces = prop::collection::vec((prop::collection::vec(any::<u8>(), 0..90), 1..40usize), 0..20);
        pieces.prop_map(|pieces| pieces.iter().flat_map(|(piece, times)| piece.repeat(*times)).collect())
    }

    proptest! {
        #[test]
        fn a_compressed_value_is_itself_again(value in values()) {
            let mut compressor = Compressor::default();
            let block = compressor.compress(&value).unwrap().to_vec();
            prop_assert_eq!(check(&block, value.len()), Ok(value.len()));
            let mut inflated = vec![0; value.len()];
            inflate(&block, &mut inflated);
            prop_assert_eq!(inflated, value);
        }

        #[test]
        fn any_bytes_are_taken_for_what_the_decoder_takes_them_for(block in prop::collection::vec(any::<u8>(), 0..60)) {
            agree(&block)?;
        }

        #[test]
        fn blocks_with_a_few_wrong_bytes_too(
            value in values(),
            wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut block = Compressor::default().compress(&value).unwrap().to_vec();
            for (at, byte) in wrong {
                let at = at.index(block.len());
                block[at] = byte;
            }
            if let Some(cut) = cut {
                block.truncate(cut.index(block.len() + 1));
            }
            agree(&block)?;
        }
    }

    #[test]
    fn what_becomes_too_long_is_refused_by_its_first_bytes() {
        // 4 GiB less one, in seven bytes.
        assert_eq!(check(&[0xff, 0xff, 0xff, 0xff, 0x0f, 0, b'a'], MOST), Err(SnappyError::TooLong));
        assert_eq!(check(&[0x80, 0x80, 0x80, 0x80, 0x10], MOST), Err(SnappyError::Malformed));
        assert_eq!(check(&[], MOST), Err(SnappyError::Malformed));
        assert_eq!(check(&[0], MOST), Ok(0));
    }

    #[test]
    fn copies_reach_back_only_as_far_as_there_is_something() {
        // "ab", then six bytes from two before: "abababab".
        assert_eq!(check(&[8, 4, b'a', b'b', 0b0000_1001, 2], MOST), Ok(8));
        for offset in [0, 3] {
            assert_eq!(check(&[8, 4, b'a', b'b', 0b0000_1001, offset], MOST), Err(SnappyError::Malformed));
        }
    }
}
