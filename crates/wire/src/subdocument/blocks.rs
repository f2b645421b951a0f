//! A walk through valid JSON in blocks of 64 bytes, for containers that are long: what it costs does not depend on how
//! many values there are.
//!
//! ```text
//!   text      {"a":"x{\"","b":[1]}
//!   quotes    010100100010101000 0      an escaped one does not count
//!   inside    011001111100110000 0      from an opening quote to before the closing one: the parity of the quotes
//!   opens     100000000000000100 0      outside of strings
//!   closes    000000000000000001 1
//! ```
//! A block whose closing brackets are fewer than the levels that are open only changes their number. The compiler makes
//! vector instructions of the comparisons.

use memchr::memmem;

use super::{Error, skip_blanks};

const BLOCK: usize = 64;

/// One bit for each byte of a block.
#[derive(Clone, Copy, Default)]
struct Masks {
    /// Opening and closing quotes.
    quotes: u64,
    inside: u64,
    opens: u64,
    closes: u64,
}

/// A walk from the opening bracket of a container.
pub(super) struct Walk<'d> {
    document: &'d [u8],
    /// Start of the present block.
    at: usize,
    masks: Masks,
    /// Levels that are open before the present block.
    depth: usize,
    /// Whether the previous block ends inside a string: all ones, or 0.
    carry: u64,
    /// Whether the first byte of the next block is escaped.
    escapes: bool,
}

fn bits(bytes: &[u8; BLOCK]) -> u64 {
    let (lanes, _) = bytes.as_chunks::<8>();
    let bit = |lane: &[u8; 8]| {
        // Each byte is 0 or 0xff; the product gathers their high bits.
        (u64::from_le_bytes(*lane) & 0x8080_8080_8080_8080).wrapping_mul(0x0002_0408_1020_4081) >> 56
    };
    lanes.iter().enumerate().fold(0, |all, (index, lane)| all | bit(lane) << (8 * index))
}

fn equal(block: &[u8; BLOCK], ignored: u8, wanted: u8) -> u64 {
    let mut result = [0; BLOCK];
    for (to, from) in result.iter_mut().zip(block) {
        *to = if from | ignored == wanted { 0xff } else { 0 };
    }
    bits(&result)
}

/// The first block of the bytes, filled up with blanks.
fn padded_block<'b>(rest: &'b [u8], padded: &'b mut [u8; BLOCK]) -> &'b [u8; BLOCK] {
    if let Some(block) = rest.first_chunk::<BLOCK>() {
        return block;
    }
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

/// The parity of all bits up to each one.
const fn parity(mut bits: u64) -> u64 {
    let mut shift = 1;
    while shift < BLOCK {
        bits ^= bits << shift;
        shift *= 2;
    }
    bits
}

impl<'d> Walk<'d> {
    /// `at`: the bracket.
    pub(super) fn new(document: &'d [u8], at: usize) -> Self {
        let mut this = Self { document, at, masks: Masks::default(), depth: 0, carry: 0, escapes: false };
        this.load();
        this
    }

    fn load(&mut self) {
        let rest = self.document.get(self.at..).unwrap_or_default();
        let mut padded = [b' '; BLOCK];
        let block = padded_block(rest, &mut padded);
        let backslashes = equal(block, 0, b'\\');
        let mut quotes = equal(block, 0, b'"');
        if backslashes != 0 || self.escapes {
            quotes &= !self.escaped(backslashes);
        }
        let inside = parity(quotes) ^ self.carry;
        self.carry = (inside.cast_signed() >> (BLOCK - 1)).cast_unsigned();
        // A square bracket differs from a curly one by this bit only.
        let opens = equal(block, 0x20, b'{') & !inside;
        let closes = equal(block, 0x20, b'}') & !inside;
        self.masks = Masks { quotes, inside, opens, closes };
    }

    /// The bytes that a backslash before them escapes.
    fn escaped(&mut self, backslashes: u64) -> u64 {
        let mut escaped = u64::from(std::mem::take(&mut self.escapes));
        let mut left = backslashes & !escaped;
        while left != 0 {
            let at = left.trailing_zeros();
            let next = 2_u64.checked_shl(at).filter(|next| *next != 0);
            match next {
                Some(next) => {
                    escaped |= next;
                    left &= !(1 << at | next);
                }
                None => {
                    self.escapes = true;
                    left &= !(1 << at);
                }
            }
        }
        escaped
    }

    /// Goes on to the block of `at`. Returns where the container ends, if that is before it.
    fn advance(&mut self, at: usize) -> Result<Option<usize>, Error> {
        while at - self.at >= BLOCK {
            if let Some(end) = self.end_before(u64::MAX) {
                return Ok(Some(end));
            }
            self.next_block()?;
        }
        Ok(None)
    }

    /// Goes on to the next block, in which the container still is.
    fn next_block(&mut self) -> Result<(), Error> {
        self.depth += self.masks.opens.count_ones() as usize;
        self.depth = self.depth.checked_sub(self.masks.closes.count_ones() as usize).ok_or(Error::NotJson)?;
        self.at += BLOCK;
        if self.at >= self.document.len() {
            return Err(Error::NotJson);
        }
        self.load();
        Ok(())
    }

    /// Returns where the container ends, if that is at one of these bits of the present block.
    fn end_before(&self, range: u64) -> Option<usize> {
        if ((self.masks.closes & range).count_ones() as usize) < self.depth {
            return None;
        }
        let (mut depth, mut left) = (self.depth, (self.masks.opens | self.masks.closes) & range);
        while left != 0 {
            let at = left.trailing_zeros();
            left &= left - 1;
            if self.masks.opens >> at & 1 == 1 {
                depth += 1;
            } else {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(self.at + at as usize);
                }
            }
        }
        None
    }

    /// Returns where the container ends: behind its closing bracket.
    pub(super) fn end(mut self) -> Result<usize, Error> {
        loop {
            if let Some(end) = self.end_before(u64::MAX) {
                return Ok(end + 1);
            }
            let next = self.at + BLOCK;
            if let Some(end) = self.advance(next)? {
                return Ok(end + 1);
            }
        }
    }

    /// Returns the start and the position of an element of the array: of the one with this number, or the last one if
    /// there are fewer. `None` if it has none. (The same of the members of an object.)
    pub(super) fn element(mut self, number: u32) -> Result<(Option<usize>, u32), Error> {
        let first = skip_blanks(self.document, self.at + 1);
        if matches!(self.document.get(first), Some(b']' | b'}')) {
            return Ok((None, 0));
        }
        let (mut comma, mut position) = (self.at, 0);
        while position < number {
            let closes = self.masks.closes.count_ones() as usize;
            // Otherwise nothing in this block is on the level of the elements.
            if closes + 1 >= self.depth {
                let commas = self.commas();
                let (mut depth, mut left) = (self.depth, self.masks.opens | self.masks.closes | commas);
                while left != 0 {
                    let bit = left & left.wrapping_neg();
                    left ^= bit;
                    if self.masks.opens & bit != 0 {
                        depth += 1;
                    } else if self.masks.closes & bit != 0 {
                        depth = depth.checked_sub(1).ok_or(Error::NotJson)?;
                        if depth == 0 {
                            let last = skip_blanks(self.document, comma + 1);
                            return Ok((Some(last), position));
                        }
                    } else if depth == 1 {
                        comma = self.at + bit.trailing_zeros() as usize;
                        position += 1;
                        if position == number {
                            break;
                        }
                    }
                }
            }
            if position < number {
                self.next_block()?;
            }
        }
        Ok((Some(skip_blanks(self.document, comma + 1)), position))
    }

    /// The commas of the present block outside of strings.
    fn commas(&self) -> u64 {
        let rest = self.document.get(self.at..).unwrap_or_default();
        let mut padded = [b' '; BLOCK];
        let block = padded_block(rest, &mut padded);
        equal(block, 0, b',') & !self.masks.inside
    }

    /// Returns the start of the member of this name, with its quotes, of the object; `None` if it has none.
    pub(super) fn member(mut self, quoted_name: &[u8]) -> Result<Option<usize>, Error> {
        let finder = memmem::Finder::new(quoted_name);
        let mut from = self.at;
        loop {
            let found = self.document.get(from..).and_then(|rest| finder.find(rest)).map(|at| from + at);
            let Some(at) = found else {
                return self.end().map(|_| None);
            };
            if self.advance(at)?.is_some() {
                return Ok(None);
            }
            let bit = at - self.at;
            let before = (1 << bit) - 1;
            if self.end_before(before).is_some() {
                return Ok(None);
            }
            let opened = self.depth + (self.masks.opens & before).count_ones() as usize;
            let depth = opened.saturating_sub((self.masks.closes & before).count_ones() as usize);
            let is_opening = self.masks.quotes & self.masks.inside & 1 << bit != 0;
            let colon = skip_blanks(self.document, at + quoted_name.len());
            if depth == 1 && is_opening && self.document.get(colon) == Some(&b':') {
                return Ok(Some(at));
            }
            from = at + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_reach_over_blocks() {
        for blanks in 0..140 {
            for text in [r#"["\\\"]",1]"#, r#"["a\\"]"#, r#"["\\\\\"","[",{"]":[]}]"#] {
                let document = format!("{}{text} rest", " ".repeat(blanks));
                // From a place before it, so that block boundaries fall everywhere.
                let document = format!("[{}", &document[..document.len() - 5]) + "]";
                assert_eq!(Walk::new(document.as_bytes(), 0).end(), Ok(document.len()), "{document}");
            }
        }
        assert_eq!(Walk::new(br#"["\"]"#, 0).end(), Err(Error::NotJson));
        assert_eq!(Walk::new(&[b'['; 200], 0).end(), Err(Error::NotJson));
    }

    #[test]
    fn only_names_of_the_object_itself_are_found() {
        let filler = "x".repeat(70);
        let document = format!(
            r#"{{"a":{{"n":1}},"b":["n",{{"n":2}}],"c":"\"n\":3","{filler}":"n","n" : 4,"z":5}} {{"later":1}}"#
        );
        let at = Walk::new(document.as_bytes(), 0).member(b"\"n\"").unwrap().unwrap();
        assert!(document[at..].starts_with("\"n\" : 4"));
        assert_eq!(Walk::new(document.as_bytes(), 0).member(b"\"later\""), Ok(None));
        assert_eq!(Walk::new(document.as_bytes(), 0).member(b"\"none\""), Ok(None));
    }
}
