//! Which runs a segment has.
//!
//! While a segment is written to, all its runs are in memory, in file order, and each refers to the previous run of the
//! same vBucket. Of a sealed segment a line per vBucket is in memory; the runs are in its footer.

use super::footer::Footer;
use super::run::Run;

/// No run.
const NONE: u32 = u32::MAX;
/// A table grows by this fraction of itself.
const GROWTH: usize = 8;

/// The runs of a segment that is not sealed.
#[derive(Debug, Default)]
pub(super) struct RunTable {
    runs: Vec<Run>,
    /// For each run, the previous run of its vBucket.
    before: Vec<u32>,
    /// For each vBucket, its newest run; empty without runs.
    newest: Vec<u32>,
}

impl RunTable {
    pub fn add(&mut self, runs: &[Run], vbuckets: u16) {
        if self.newest.is_empty() && !runs.is_empty() {
            self.newest = vec![NONE; usize::from(vbuckets)];
        }
        grow(&mut self.runs, runs.len());
        grow(&mut self.before, runs.len());
        for run in runs {
            let index = self.runs.len() as u32;
            if let Some(newest) = self.newest.get_mut(usize::from(run.vbucket())) {
                self.before.push(std::mem::replace(newest, index));
                self.runs.push(*run);
            }
        }
    }

    /// In file order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The runs of a vBucket, newest first.
    pub fn of(&self, vbucket: u16) -> impl Iterator<Item = &Run> {
        let step = |index: u32| self.runs.get(index as usize).map(|run| (run, index));
        let newest = self.newest.get(usize::from(vbucket)).copied().unwrap_or(NONE);
        std::iter::successors(step(newest), move |(_, index)| {
            step(self.before.get(*index as usize).copied().unwrap_or(NONE))
        })
        .map(|(run, _)| run)
    }

    /// The vBuckets that have runs.
    pub fn vbuckets(&self) -> impl Iterator<Item = u16> {
        (0..).zip(&self.newest).filter(|(_, newest)| **newest != NONE).map(|(vbucket, _)| vbucket)
    }

    /// Adds the number of runs of each vBucket that has some.
    pub fn count(&self, counts: &mut [u32]) {
        for run in &self.runs {
            if let Some(count) = counts.get_mut(usize::from(run.vbucket())) {
                *count += 1;
            }
        }
    }
}

/// Makes room for `more` items, and little beyond: a table stays as it is until its segment is full, which may be
/// never.
fn grow<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more {
        list.reserve_exact(more + list.len() / GROWTH);
    }
}

/// The runs of a segment.
#[derive(Debug)]
pub(super) enum Table {
    Memory(RunTable),
    Sealed(Footer),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_room_is_left_free() {
        let mut table = RunTable::default();
        for batch in 0..1000 {
            let run = |vbucket| Run::new(vbucket, batch * 4096, batch, batch, 100, 1);
            table.add(&[run(0), run(7), run(3)], 8);
            let (runs, room) = (table.runs.len(), table.runs.capacity().max(table.before.capacity()));
            assert!(room <= runs + runs / GROWTH + 3, "{room} for {runs}");
        }
        assert_eq!(table.of(7).count(), 1000);
    }
}
