//! Who becomes the active of a vBucket when its active is lost.
//!
//! Members of its chains have promised a term, and have said what they have. A durable write was acknowledged by a
//! majority of each chain, so with n members any n - majority + 1 of them include one that has it. Of these the one of
//! the highest [`Rank`] has all of them. A member that is damaged, or that may lack what it has acknowledged,
//! counts as missing. If all answer and too few count, the best is elected, and some writes may be lost.

use crate::terms::Rank;

/// What of all that it has acknowledged a member may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Lacks {
    /// It has all of it.
    #[default]
    Nothing,
    /// What it had only in memory: it has ended without a clean stop.
    Unwritten,
    /// Anything.
    Anything,
}

impl Lacks {
    /// Returns its name in the role of a vBucket; `None` if nothing is lacking.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Unwritten => Some("unwritten"),
            Self::Anything => Some("anything"),
        }
    }

    /// Returns what a name means. An unknown one may mean anything.
    pub fn from_name(name: Option<&str>) -> Self {
        let is_it = |lacks: &Self| lacks.name() == name;
        [Self::Nothing, Self::Unwritten].into_iter().find(is_it).unwrap_or(Self::Anything)
    }
}

/// What a member of a chain has, as it says after it has promised the new term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answer {
    /// What it has.
    pub rank: Rank,
    /// A part of its journal is damaged: it cannot become the active.
    pub is_damaged: bool,
    /// What it may lack of all that it has acknowledged: anything if it was emptied, or keeps nothing on disk and has
    /// nothing.
    pub lacks: Lacks,
}

/// Who becomes the active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elected {
    /// Its place among the answers.
    pub at: usize,
    /// What may be lost of the durable writes that were acknowledged.
    pub lost: Lacks,
}

/// Why nobody does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotElected {
    /// Too few can answer for what was acknowledged.
    #[error("{counted} of the chain can answer for what was acknowledged, and {needed} are needed")]
    TooFew {
        /// How many can.
        counted: usize,
        /// How many must.
        needed: usize,
    },
    /// None of those that have answered is whole.
    #[error("no member that has answered is whole")]
    Nobody,
}

/// Elects among the members of `chains`, whose numbers are places in `answers`. `force`: even if too few have answered.
pub fn elect(chains: &[Vec<usize>], answers: &[Option<Answer>], force: bool) -> Result<Elected, NotElected> {
    let answer = |at: &usize| answers.get(*at).copied().flatten();
    let mut lost = Lacks::Nothing;
    for chain in chains {
        let needed = chain.len() - majority(chain.len()) + 1;
        let whole = || chain.iter().filter_map(answer).filter(|answer| !answer.is_damaged);
        let count = |most| whole().filter(|answer| answer.lacks <= most).count();
        let counted = count(Lacks::Nothing);
        if counted < needed {
            // If nobody is missing, there is nobody else to ask.
            let is_complete = whole().count() == chain.len();
            if !force && !is_complete {
                return Err(NotElected::TooFew { counted, needed });
            }
            let has_all_written = count(Lacks::Unwritten) >= needed;
            lost = lost.max(if has_all_written { Lacks::Unwritten } else { Lacks::Anything });
        }
    }
    let members = chains.iter().flatten().filter_map(|at| Some((*at, answer(at)?)));
    let mut best: Option<(usize, Rank)> = None;
    // Of equals the first in the chains.
    for (at, Answer { rank, .. }) in members.filter(|(_, answer)| !answer.is_damaged) {
        if best.is_none_or(|(_, highest)| highest < rank) {
            best = Some((at, rank));
        }
    }
    let (at, _) = best.ok_or(NotElected::Nobody)?;
    Ok(Elected { at, lost })
}

/// How many members of a chain are its majority.
pub(crate) fn majority(members: usize) -> usize {
    members / 2 + 1
}

#[cfg(test)]
mod tests;
