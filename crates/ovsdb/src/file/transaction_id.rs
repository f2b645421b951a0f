//! Transaction ids that mean the same before and after a restart, although no record of the log contains its own.
//!
//! ```text
//! 12 bytes   chain: SHA-1 of the chain before it and of the record's SHA-1, cut; of the schema record: of zeros and that
//!  4 bytes   tag: which values the ephemeral columns have; 0 if unknown, or if there are no such columns
//! ```
//!
//! Every reader of the records can compute the chain. A record that is equal to another gets another id, because its
//! predecessor differs. Compaction drops the records, so the comment of the snapshot carries the chain ([`comment`]).
//!
//! A commit that does not touch ephemeral columns keeps the tag of its predecessor. One that changes them gets a new
//! tag, and so does opening the log, which resets them. The tag is derived from the previous id, the change and the
//! time: none recurs with another meaning, neither after a restart nor after a commit was undone. Chain and tag
//! together thus name exactly one state: whoever knows what the chain stands for (the log) and what the tag stands for
//! (the file beside it, [`super::ephemeral`]) knows all that a client knew.

use crate::uuid::Uuid;
use sha1::{Digest, Sha1};

const CHAIN_BYTES: usize = 12;
const OPENING: &str = " (transaction ";
const CLOSING: &str = ")";

/// The id after the next record, whose SHA-1 is given, if it does not touch ephemeral columns.
pub fn successor(previous: Uuid, checksum: &[u8; 20]) -> Uuid {
    let mut hash = Sha1::new();
    hash.update(previous.0.get(..CHAIN_BYTES).unwrap_or_default());
    hash.update(checksum);
    let digest = hash.finalize();
    let mut id = previous;
    for (to, from) in id.0.iter_mut().zip(digest).take(CHAIN_BYTES) {
        *to = from;
    }
    id
}

/// The id after a change of ephemeral columns at this time.
pub fn tagged(previous: Uuid, change: &[u8], now_ms: u64) -> Uuid {
    let mut hash = Sha1::new();
    hash.update(previous.0);
    hash.update(now_ms.to_le_bytes());
    hash.update(change);
    let digest = hash.finalize();
    let mut id = previous;
    for (to, from) in id.0.iter_mut().skip(CHAIN_BYTES).zip(digest) {
        *to = from;
    }
    if !is_tagged(id) {
        id.0[CHAIN_BYTES] = 1;
    }
    id
}

/// The id without its tag: the part that the log alone determines.
pub fn logged(id: Uuid) -> Uuid {
    with_tag_of(id, Uuid::zero())
}

/// The chain of one id with the tag of another.
pub fn with_tag_of(chain: Uuid, tag: Uuid) -> Uuid {
    let mut id = chain;
    for (to, from) in id.0.iter_mut().zip(tag.0).skip(CHAIN_BYTES) {
        *to = from;
    }
    id
}

/// Returns true if it tells which values ephemeral columns have.
pub fn is_tagged(id: Uuid) -> bool {
    logged(id) != id
}

/// The comment of a snapshot of the state `id`.
pub fn comment(words: &str, id: Uuid) -> String {
    format!("{words}{OPENING}{}{CLOSING}", logged(id))
}

/// The id that a snapshot's comment carries.
pub fn of_comment(comment: &str) -> Option<Uuid> {
    let rest = comment.strip_suffix(CLOSING)?;
    let place = rest.rfind(OPENING)?;
    Uuid::parse(rest.get(place + OPENING.len()..)?).filter(|id| !is_tagged(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_records_have_different_ids() {
        let first = successor(Uuid::zero(), &[7; 20]);
        let second = successor(first, &[7; 20]);
        assert_ne!(first, second);
        assert!(!is_tagged(first) && !is_tagged(second));
    }

    #[test]
    fn chain_and_tag_change_apart() {
        let id = successor(Uuid::zero(), &[7; 20]);
        let one = tagged(id, b"x", 5);
        assert!(is_tagged(one));
        assert_ne!(tagged(one, b"x", 5), one);
        assert_ne!(tagged(id, b"x", 6), one);
        assert_ne!(tagged(id, b"y", 5), one);
        assert_eq!(logged(tagged(one, b"x", 5)), id);
        let next = successor(one, &[8; 20]);
        assert_eq!(logged(next), successor(id, &[8; 20]));
        assert_eq!(with_tag_of(id, next), one);
    }

    #[test]
    fn a_comment_carries_an_id() {
        let id = successor(Uuid::zero(), &[7; 20]);
        let text = comment("compacting database online", tagged(id, b"x", 9));
        assert_eq!(of_comment(&text), Some(id));
        for other in ["", ")", "compacted by ovsdb-tool 3.1.0", " (transaction )", " (transaction \u{e9})"] {
            assert_eq!(of_comment(other), None, "{other}");
        }
    }
}
