//! The monitors of a database that were left behind, by the last commit they were told of.

use crate::history::CommitId;
use std::collections::BTreeMap;

/// How many monitors are behind at which commit.
#[derive(Debug, Default)]
pub struct Laggards {
    counts: BTreeMap<CommitId, usize>,
}

impl Laggards {
    /// A monitor is left behind.
    pub fn add(&mut self, commit: CommitId) {
        *self.counts.entry(commit).or_default() += 1;
    }

    /// A monitor has caught up, or is gone.
    pub fn remove(&mut self, commit: CommitId) {
        if let Some(count) = self.counts.get_mut(&commit) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&commit);
            }
        }
    }

    /// Where the slowest one is.
    pub fn slowest(&self) -> Option<CommitId> {
        self.counts.first_key_value().map(|(commit, _)| *commit)
    }

    /// What came after `commit` has not happened: nobody has been told of it.
    pub fn take_back(&mut self, commit: CommitId) {
        let later = self.counts.split_off(&CommitId(commit.0 + 1));
        let count: usize = later.values().sum();
        if count > 0 {
            *self.counts.entry(commit).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_counts() {
        let mut laggards = Laggards::default();
        for commit in [5, 3, 3, 9] {
            laggards.add(CommitId(commit));
        }
        laggards.remove(CommitId(3));
        assert_eq!(laggards.slowest(), Some(CommitId(3)));
        laggards.remove(CommitId(3));
        assert_eq!(laggards.slowest(), Some(CommitId(5)));
        laggards.take_back(CommitId(4));
        assert_eq!(laggards.slowest(), Some(CommitId(4)));
        laggards.remove(CommitId(4));
        laggards.remove(CommitId(4));
        laggards.remove(CommitId(4));
        assert_eq!(laggards.slowest(), None);
    }
}
