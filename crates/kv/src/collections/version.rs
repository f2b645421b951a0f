//! Which manifest counts when nodes have different ones, and why no uid and no id is given twice.
//!
//! ```text
//!   n1, term 1   uid 262 ── create ──> 263, acknowledged ── drop ──> 264, not acknowledged; n1 is lost
//!   n2, term 2                         263 ── promotion ──> 519 ── create ──> 520
//! ```
//! A manifest has the term of the active of vBucket 0, which makes it: one node at a time is elected for that. Becoming
//! that active in a higher term makes a new one ([`Manifest::begin_term`]) with the same content, so what the active of
//! that term has is higher than what anybody had before, also if nothing is changed in it. Manifests are ordered by
//! (term, uid): a node takes the higher one as a whole, and never a lower one.
//!
//! *Uniqueness.* In one term one node makes changes, one after the other: the next is accepted only when a majority has
//! acknowledged the one before, also if that was made in an earlier term ([`ManifestError::Unacknowledged`]). A node
//! that is elected by a majority has every acknowledged change. Call `a` the number of these at some time. A term that
//! begins then has at least `a` changes behind it; what is lost of a term has at most `a + 1`: one was not
//! acknowledged. Each term adds [`UIDS_PER_TERM`] to the uid, so uid = changes + 256 * term: what term t loses has at
//! most uid `a + 1 + 256 t`, less than `a + 256 (t + 1)`, the least of any later term. (2 would do; there is room for
//! changes that have no event and are not waited for, the settings of a collection.) The ids of scopes and of
//! collections work likewise: each term skips [`IDS_PER_CHANGE`], the most that one change gives.
//!
//! *Limits.* Ids are scarce: more than [`TERMS_COUNTED`] terms at once count as so many. An id could be given twice
//! only if two terms, each so far above the last manifest that a majority knows, each create something, and the first
//! is lost. None of this holds if nodes are promoted without a majority. The order is total even then: of two
//! different manifests with the same version the one with the greater text counts.

#[cfg(doc)]
use super::ManifestError;
use super::{ID_MAX, Manifest};

/// What each term adds to the uid: more than the changes that it can lose.
const UIDS_PER_TERM: u64 = 256;
/// Most ids of scopes, and of collections, that one change of a replicated bucket gives. Each term skips as many.
pub const IDS_PER_CHANGE: u32 = 16;
/// Most terms for which ids are skipped at once.
const TERMS_COUNTED: u64 = 64;

/// What manifests are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Version {
    /// The term of the active that made it.
    pub term: u64,
    /// Its uid.
    pub uid: u64,
}

impl Manifest {
    /// Returns what it is ordered by.
    pub fn version(&self) -> Version {
        Version { term: self.term, uid: self.uid }
    }

    /// Returns true if it counts, and `other` does not. Of equal ones neither does.
    pub fn supersedes(&self, other: &Self) -> bool {
        self.version().cmp(&other.version()).then_with(|| self.text().cmp(&other.text())).is_gt()
    }

    /// Returns true if clients see the same.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.version() == other.version() && self.text() == other.text()
    }

    fn text(&self) -> String {
        self.to_json().to_string()
    }

    /// Makes it that of the active of a term, unless it is already.
    pub(super) fn begin_term(&mut self, term: u64) {
        let Some(terms) = term.checked_sub(self.term).filter(|terms| *terms > 0) else { return };
        let skipped = IDS_PER_CHANGE * terms.min(TERMS_COUNTED) as u32;
        self.term = term;
        self.uid = self.uid.saturating_add(UIDS_PER_TERM.saturating_mul(terms));
        for next in [&mut self.next_scope, &mut self.next_collection] {
            *next = next.saturating_add(skipped).min(ID_MAX + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::collections::{Collections, DEFAULT};

    /// A term on a node that was elected by a majority.
    #[derive(Debug, Clone)]
    struct Term {
        /// Terms before it in which nothing was changed.
        skipped: u64,
        /// Which of the manifests that such a node may have it begins with.
        from: usize,
        /// How many collections each change creates.
        changes: Vec<u32>,
        /// Nobody has acknowledged its last change when it ends.
        loses_last: bool,
    }

    fn term() -> impl Strategy<Value = Term> {
        let changes = proptest::collection::vec(0..=IDS_PER_CHANGE, 0..5);
        (0..4u64, any::<usize>(), changes, any::<bool>())
            .prop_map(|(skipped, from, changes, loses_last)| Term { skipped, from, changes, loses_last })
    }

    proptest! {
        /// What was not acknowledged may be lost with the term, or be found by any later one.
        #[test]
        fn no_term_gives_what_an_earlier_one_gave(terms in proptest::collection::vec(term(), 1..12)) {
            // The manifests of which a node that is elected may have one.
            let mut known = vec![Manifest::default()];
            let (mut names, mut uids) = (BTreeMap::new(), BTreeSet::from([0]));
            let (mut number, mut now) = (0, 0);
            for Term { skipped, from, changes, loses_last } in terms {
                now += 1 + skipped;
                let base = known[from % known.len()].clone();
                let collections = Collections::new(base.clone());
                collections.begin_term(now);
                let begun = Manifest::clone(&collections.manifest());
                prop_assert!(known.iter().all(|one| begun.supersedes(one) && begun.uid > one.uid));
                prop_assert!(uids.insert(begun.uid), "uid {} again", begun.uid);
                known.push(begun.clone());
                // Nothing is changed before a majority has what there is.
                let mut acknowledged = vec![base, begun];
                for creates in &changes {
                    let change = |manifest: &mut Manifest| {
                        for _ in 0..*creates {
                            number += 1;
                            manifest.add_collection(DEFAULT, &format!("c{number}"), 0, false)?;
                        }
                        number += 1;
                        manifest.set_collection(DEFAULT, DEFAULT, Some(number), None)
                    };
                    collections.change(change, |_| Ok(())).unwrap();
                    let made = Manifest::clone(&collections.manifest());
                    prop_assert!(uids.insert(made.uid), "uid {} again", made.uid);
                    for (_, one) in made.collections() {
                        let name = names.entry(one.id).or_insert_with(|| one.name.clone());
                        prop_assert_eq!(&*name, &one.name, "id {} again", one.id);
                    }
                    known = [acknowledged, vec![made.clone()]].concat();
                    acknowledged = vec![made];
                }
                if !changes.is_empty() && !loses_last {
                    known = acknowledged;
                }
            }
        }
    }

    #[test]
    fn a_lost_change_of_the_term_before_is_lower_and_shares_no_id() {
        let lost = Collections::new(Manifest::default());
        lost.begin_term(1);
        let acknowledged = Manifest::clone(&lost.manifest());
        lost.change(|m| m.add_collection(DEFAULT, "lost", 0, false), |_| Ok(())).unwrap();
        let next = Collections::new(acknowledged);
        next.begin_term(2);
        assert!(next.manifest().supersedes(&lost.manifest()) && next.uid() > lost.uid());
        next.change(|m| m.add_collection(DEFAULT, "other", 0, false), |_| Ok(())).unwrap();
        let id = |of: &Collections, name| of.manifest().collection(DEFAULT, name).map(|one| one.id);
        assert_eq!((id(&lost, "lost"), id(&next, "other")), (Some(24), Some(40)));
    }

    #[test]
    fn a_term_far_ahead_leaves_ids() {
        let mut manifest = Manifest::default();
        manifest.begin_term(crate::role::TERM_MOST);
        assert_eq!(manifest.uid, UIDS_PER_TERM * crate::role::TERM_MOST);
        assert!(manifest.add_collection(DEFAULT, "c", 0, false).is_ok());
        manifest.begin_term(1);
        assert_eq!(manifest.version().term, crate::role::TERM_MOST);
    }
}
