//! Ids of transactions that mean the same before and after a restart, though no record names its own.
//!
//! ```text
//! 12 bytes   chain: SHA-1 of the chain before it and of the record's SHA-1, cut; of the schema record: of zeros and that
//!  4 bytes   0 for the state right after the record; else a tag of a state that differs from it in ephemeral columns only
//! ```
//!
//! Whoever reads the records finds the chain. A record that is equal to another gets another id, because its predecessor
//! differs. Compaction forgets the records, so the comment of the snapshot carries the chain ([`comment`]).
//!
//! The tag is made from the time, so that a tag of before a restart does not come again after it. Opening a log gives
//! the database a tagged id at once: ephemeral columns have been reset then, and a client that was told the id without a
//! tag before the restart is not up to date in them.

use crate::uuid::Uuid;
use sha1::{Digest, Sha1};

const CHAIN_BYTES: usize = 12;
const OPENING: &str = " (transaction ";
const CLOSING: &str = ")";

/// The id after the next record, whose SHA-1 is given.
pub fn successor(previous: Uuid, checksum: &[u8; 20]) -> Uuid {
    let mut hash = Sha1::new();
    hash.update(previous.0.get(..CHAIN_BYTES).unwrap_or_default());
    hash.update(checksum);
    let digest = hash.finalize();
    let mut id = Uuid::zero();
    for (to, from) in id.0.iter_mut().zip(digest).take(CHAIN_BYTES) {
        *to = from;
    }
    id
}

/// The id after a commit at this time that left no record, or after opening the log.
pub fn unlogged(previous: Uuid, now_ms: u64) -> Uuid {
    let mut hash = Sha1::new();
    hash.update(previous.0);
    hash.update(now_ms.to_le_bytes());
    let digest = hash.finalize();
    let mut id = previous;
    for (to, from) in id.0.iter_mut().skip(CHAIN_BYTES).zip(digest) {
        *to = from;
    }
    // Never the tag of the record itself.
    if is_logged(id) {
        id.0[CHAIN_BYTES] = 1;
    }
    id
}

/// The id of the state right after the last record that `id` includes.
pub fn logged(id: Uuid) -> Uuid {
    let mut id = id;
    id.0.iter_mut().skip(CHAIN_BYTES).for_each(|byte| *byte = 0);
    id
}

/// Whether it is the id of a state right after a record.
pub fn is_logged(id: Uuid) -> bool {
    logged(id) == id
}

/// The comment of a snapshot of the state `id`.
pub fn comment(words: &str, id: Uuid) -> String {
    format!("{words}{OPENING}{}{CLOSING}", logged(id))
}

/// The id that a snapshot's comment carries.
pub fn of_comment(comment: &str) -> Option<Uuid> {
    let rest = comment.strip_suffix(CLOSING)?;
    let place = rest.rfind(OPENING)?;
    Uuid::parse(rest.get(place + OPENING.len()..)?).filter(|id| is_logged(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_records_have_different_ids() {
        let first = successor(Uuid::zero(), &[7; 20]);
        let second = successor(first, &[7; 20]);
        assert_ne!(first, second);
        assert!(is_logged(first) && is_logged(second));
    }

    #[test]
    fn what_leaves_no_record_does_not_change_the_chain() {
        let id = successor(Uuid::zero(), &[7; 20]);
        let tagged = unlogged(id, 5);
        assert!(!is_logged(tagged));
        assert_ne!(unlogged(tagged, 5), tagged);
        assert_ne!(unlogged(id, 6), tagged);
        assert_eq!(logged(unlogged(tagged, 5)), id);
        assert_eq!(successor(tagged, &[8; 20]), successor(id, &[8; 20]));
    }

    #[test]
    fn a_comment_carries_an_id() {
        let id = successor(Uuid::zero(), &[7; 20]);
        let text = comment("compacting database online", unlogged(id, 9));
        assert_eq!(of_comment(&text), Some(id));
        for other in ["", ")", "compacted by ovsdb-tool 3.1.0", " (transaction )", " (transaction \u{e9})"] {
            assert_eq!(of_comment(other), None, "{other}");
        }
    }
}
