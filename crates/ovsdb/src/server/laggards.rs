//! The monitors of a database that were left behind, by the last commit they were notified of.

use crate::history::CommitId;
use std::collections::BTreeMap;

/// The number of monitors behind, by commit.
#[derive(Debug, Default)]
pub struct Laggards {
    counts: BTreeMap<CommitId, usize>,
}

impl Laggards {
    /// Adds monitors that are left behind.
    pub fn add(&mut self, commit: CommitId, count: usize) {
        *self.counts.entry(commit).or_default() += count;
    }

    /// Removes a monitor that has caught up, or is gone.
    pub fn remove(&mut self, commit: CommitId) {
        if let Some(count) = self.counts.get_mut(&commit) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&commit);
            }
        }
    }

    /// The commit of the slowest one.
    pub fn slowest(&self) -> Option<CommitId> {
        self.counts.first_key_value().map(|(commit, _)| *commit)
    }

    /// The commits after `commit` were undone: monitors that are behind at one of them are behind at `commit`.
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
            laggards.add(CommitId(commit), 1);
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
