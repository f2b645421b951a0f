//! In which terms a vBucket's changes were made, and which of several copies is the newest.
//!
//! ```text
//!   seqno    0 ........ 120 ............ 170 ....
//!   term     1          2               4              a term begins where its active took charge
//! ```
//! Of two copies the one whose last change is of the higher term is the newer one, however long the other is: an active
//! that was cut off goes on counting seqnos, and nobody has acknowledged them. Only within a term the seqno decides.
//!
//! What an active has inherited is safe only once a majority has everything up to where its own term began: before, a
//! copy of a term in between, which lacks it, would be the newer one. So acknowledgements below that do not count
//! ([`crate::durability_monitor::DurabilityMonitor::begin_term`]).

/// Terms that are remembered. What is older counts as of term 0.
const MOST: usize = 64;
/// Length of an encoded term.
pub const TERM_BYTES: usize = 16;

/// The terms of a vBucket's changes, oldest first: each begins at a seqno, and what comes after it is of that term.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms(Vec<(u64, u64)>);

/// What a copy has, as it is compared with others: the higher one has everything that a majority has acknowledged of
/// the lower one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Rank {
    /// The term that its last complete seqno is of.
    pub term: u64,
    /// Up to here it has everything.
    pub seqno: u64,
}

impl Terms {
    /// Notes that a term begins at a seqno. What another active has made above it is no part of it.
    pub(crate) fn begin(&mut self, term: u64, seqno: u64) {
        // Of those that begin at the same seqno the last one counts.
        self.0.retain(|(_, began_at)| *began_at < seqno);
        self.0.push((term, seqno));
        let forgotten = self.0.len().saturating_sub(MOST);
        self.0.drain(..forgotten);
    }

    /// The newest term, and where it began.
    pub(crate) fn newest(&self) -> Option<(u64, u64)> {
        self.0.last().copied()
    }

    /// The rank of a copy that has everything up to a seqno.
    pub(crate) fn rank(&self, seqno: u64) -> Rank {
        let began = self.0.iter().rfind(|(_, began_at)| *began_at <= seqno);
        Rank { term: began.map_or(0, |(term, _)| *term), seqno }
    }

    /// Returns their number, and per term 8 bytes with it and 8 bytes with the seqno at which it began, big-endian.
    pub fn encode(&self) -> (u16, Vec<u8>) {
        let entries = self.0.iter().flat_map(|(term, seqno)| [term.to_be_bytes(), seqno.to_be_bytes()]);
        (self.0.len() as u16, entries.flatten().collect())
    }

    /// Reads what [`Self::encode`] returns; `None` if they are out of order.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (entries, rest) = bytes.as_chunks::<TERM_BYTES>();
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let terms: Vec<(u64, u64)> =
            entries.iter().map(|entry| (number(&entry[..8]), number(&entry[8..]))).collect();
        let is_sorted = terms.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1);
        (rest.is_empty() && is_sorted && terms.len() <= MOST).then_some(Self(terms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_term_of_what_is_complete_decides_and_then_the_seqno() {
        let mut terms = Terms::default();
        assert_eq!(terms.rank(7), Rank { term: 0, seqno: 7 });
        terms.begin(1, 0);
        let cut_off = terms.rank(520);
        terms.begin(2, 120);
        assert_eq!(terms.rank(119), Rank { term: 1, seqno: 119 });
        assert!(terms.rank(120) > cut_off && terms.rank(170) > terms.rank(120));
        // Nothing was made in term 3, and what was made above 110 is of nobody.
        terms.begin(3, 110);
        terms.begin(4, 110);
        assert_eq!((terms.rank(110).term, terms.rank(109).term, terms.newest()), (4, 1, Some((4, 110))));
        let (count, bytes) = terms.encode();
        assert_eq!((count, Terms::decode(&bytes)), (2, Some(terms)));
        assert_eq!(Terms::decode(&bytes[1..]), None);
        let swapped: Vec<u8> = bytes[16..].iter().chain(&bytes[..16]).copied().collect();
        assert_eq!(Terms::decode(&swapped), None);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut terms = Terms::default();
        (1..=100).for_each(|term| terms.begin(term, term * 10));
        assert_eq!((terms.rank(1000).term, terms.rank(370).term, terms.rank(369).term), (100, 37, 0));
    }
}
