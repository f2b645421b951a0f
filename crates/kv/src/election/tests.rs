//! A small model of a vBucket on three nodes: every order of writes, copies and promotions up to a number of steps.
//!
//! A step is a write on a node that takes itself for the active, one change copied from an active to a node that has
//! promised its term, or a promotion among any two or three nodes. So every node may be cut off, and come back, at any
//! moment. After each promotion the new active must have every durable write that was acknowledged, which a read may
//! have shown.

use std::collections::HashSet;

use super::*;
use crate::terms::Terms;

const NODES: usize = 3;
/// Longer logs and higher terms show nothing new.
const LOG_MOST: usize = 3;
const TERM_MOST: u64 = 4;

/// What may be wrong.
#[derive(Clone, Copy, Default)]
struct Rules {
    /// The longest log wins, whatever terms it is of.
    longest_wins: bool,
    /// Acknowledgements from below where the active's term began count.
    counts_inherited: bool,
    /// A copy that is replaced is emptied first, and is then found so.
    empties_first: bool,
}

/// A change: who made it, as which of all; and whether it is a durable write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Change {
    number: u8,
    is_durable: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Node {
    log: Vec<Change>,
    /// The terms of the log, as encoded.
    terms: Vec<u8>,
    promised: u64,
    /// It takes itself for the active of the term it has promised.
    is_active: bool,
    /// What the others have acknowledged to it.
    acknowledged: [usize; NODES],
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    nodes: [Node; NODES],
    /// Numbers of durable writes that were acknowledged to clients.
    promised_writes: Vec<u8>,
    next: u8,
}

impl Node {
    fn terms(&self) -> Terms {
        Terms::decode(&self.terms).unwrap()
    }

    fn set_terms(&mut self, terms: &Terms) {
        self.terms = terms.encode().1;
    }

    fn rank(&self, rules: Rules) -> Rank {
        let rank = self.terms().rank(self.log.len() as u64);
        if rules.longest_wins { Rank { term: 0, ..rank } } else { rank }
    }

    fn take_charge(&mut self, term: u64) {
        let mut terms = self.terms();
        terms.begin(term, self.log.len() as u64);
        self.set_terms(&terms);
        (self.promised, self.is_active, self.acknowledged) = (term, true, [0; NODES]);
    }
}

impl World {
    fn new() -> Self {
        let mut nodes: [Node; NODES] = Default::default();
        nodes.iter_mut().for_each(|node| node.promised = 1);
        nodes[0].take_charge(1);
        Self { nodes, promised_writes: Vec::new(), next: 0 }
    }

    fn write(&self, at: usize, is_durable: bool) -> Option<Self> {
        let mut world = self.clone();
        let node = &mut world.nodes[at];
        if !node.is_active || node.log.len() == LOG_MOST {
            return None;
        }
        node.log.push(Change { number: world.next, is_durable });
        world.next += 1;
        Some(world)
    }

    /// One change is copied, or, if the copy has another history, all of them.
    fn copy(&self, from: usize, to: usize, rules: Rules) -> Option<Self> {
        let mut world = self.clone();
        let source = world.nodes[from].clone();
        let copy = &mut world.nodes[to];
        if from == to || !source.is_active || copy.is_active || copy.promised != source.promised {
            return None;
        }
        if source.log.starts_with(&copy.log) {
            let Some(next) = source.log.get(copy.log.len()) else {
                // It has everything, and the terms at last.
                copy.terms = source.terms.clone();
                return world.acknowledge(from, to, rules);
            };
            copy.log.push(*next);
        } else if rules.empties_first {
            copy.log.clear();
        } else {
            copy.log = source.log.clone();
        }
        copy.terms = source.terms.clone();
        world.acknowledge(from, to, rules)
    }

    fn acknowledge(mut self, from: usize, to: usize, rules: Rules) -> Option<Self> {
        let length = self.nodes[to].log.len();
        let active = &mut self.nodes[from];
        let began_at = active.terms().newest().map_or(0, |(_, seqno)| seqno as usize);
        if length >= began_at || rules.counts_inherited {
            active.acknowledged[to] = length;
        }
        for (index, change) in active.log.iter().enumerate().filter(|(_, change)| change.is_durable) {
            let others = active.acknowledged.iter().filter(|length| **length > index).count();
            if others + 1 >= majority(NODES) && !self.promised_writes.contains(&change.number) {
                self.promised_writes.push(change.number);
            }
        }
        self.promised_writes.sort_unstable();
        Some(self)
    }

    fn promote(&self, asked: &[usize], rules: Rules) -> Option<Self> {
        let mut world = self.clone();
        let term = asked.iter().map(|at| world.nodes[*at].promised).max()? + 1;
        if term > TERM_MOST {
            return None;
        }
        let mut answers = [None; NODES];
        for at in asked {
            let node = &mut world.nodes[*at];
            (node.promised, node.is_active) = (term, false);
            answers[*at] = Some(Answer { rank: node.rank(rules), ..Answer::default() });
        }
        let elected = elect(&[vec![0, 1, 2]], &answers, false).unwrap();
        assert_eq!(elected.lost, Lacks::Nothing);
        world.nodes[elected.at].take_charge(term);
        Some(world)
    }

    /// Returns true if the active of the highest term lacks what was acknowledged.
    fn has_lost(&self) -> bool {
        let newest = self.nodes.iter().filter(|node| node.is_active).max_by_key(|node| node.promised);
        let has =
            |number: &u8| newest.is_some_and(|node| node.log.iter().any(|change| change.number == *number));
        !self.promised_writes.iter().all(has)
    }

    fn next(&self, rules: Rules) -> Vec<Self> {
        let mut worlds = Vec::new();
        for at in 0..NODES {
            worlds.extend([false, true].into_iter().filter_map(|is_durable| self.write(at, is_durable)));
            worlds.extend((0..NODES).filter_map(|to| self.copy(at, to, rules)));
        }
        let groups: [&[usize]; 4] = [&[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];
        worlds.extend(groups.into_iter().filter_map(|asked| self.promote(asked, rules)));
        worlds
    }
}

/// Returns after how many steps something is lost, and how many states were looked at.
fn steps_to_loss(rules: Rules, most: usize) -> (Option<usize>, usize) {
    let mut seen = HashSet::from([World::new()]);
    let mut edge = vec![World::new()];
    for step in 1..=most {
        let mut further = Vec::new();
        for world in edge.iter().flat_map(|world| world.next(rules)) {
            if world.has_lost() {
                return (Some(step), seen.len());
            }
            if seen.insert(world.clone()) {
                further.push(world);
            }
        }
        edge = further;
    }
    (None, seen.len())
}

#[test]
fn no_order_of_writes_copies_and_promotions_loses_what_was_acknowledged() {
    let (loss, states) = steps_to_loss(Rules::default(), 8);
    assert_eq!(loss, None);
    assert!(states > 100_000, "{states}");
}

#[test]
fn the_model_finds_what_other_rules_lose() {
    for rules in [
        Rules { longest_wins: true, ..Rules::default() },
        Rules { counts_inherited: true, ..Rules::default() },
        Rules { empties_first: true, ..Rules::default() },
    ] {
        let (loss, _) = steps_to_loss(rules, 8);
        assert!(loss.is_some(), "the model finds nothing");
    }
}

fn answered(term: u64, seqno: u64) -> Option<Answer> {
    Some(Answer { rank: Rank { term, seqno }, ..Answer::default() })
}

#[test]
fn so_many_are_needed_as_every_majority_includes_one_of() {
    for (members, needed) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
        let chain: Vec<usize> = (0..members).collect();
        for count in 0..=members {
            let answers: Vec<_> = (0..members).map(|at| answered(1, 5).filter(|_| at < count)).collect();
            let elected = elect(std::slice::from_ref(&chain), &answers, false);
            if count >= needed {
                assert_eq!(elected, Ok(Elected { at: 0, lost: Lacks::Nothing }));
            } else {
                assert_eq!(elected, Err(NotElected::TooFew { counted: count, needed }));
            }
        }
    }
}

#[test]
fn the_damaged_and_the_forgetful_do_not_count() {
    let chain = [vec![0, 1, 2]];
    let damaged = answered(9, 9).map(|answer| Answer { is_damaged: true, ..answer });
    let empty = answered(0, 0).map(|answer| Answer { lacks: Lacks::Anything, ..answer });
    let few = Err(NotElected::TooFew { counted: 1, needed: 2 });
    for other in [damaged, empty] {
        assert_eq!(elect(&chain, &[answered(1, 5), other, None], false), few);
        assert_eq!(
            elect(&chain, &[answered(1, 5), other, None], true),
            Ok(Elected { at: 0, lost: Lacks::Anything })
        );
    }
    // If nobody is missing, what is not there is nowhere.
    assert_eq!(
        elect(&chain, &[empty, answered(1, 5), empty], false),
        Ok(Elected { at: 1, lost: Lacks::Anything })
    );
    let complete = [empty, answered(1, 5), answered(1, 4)];
    assert_eq!(elect(&chain, &complete, false), Ok(Elected { at: 1, lost: Lacks::Nothing }));
    assert_eq!(elect(&chain, &[damaged, None, damaged], true), Err(NotElected::Nobody));
    // Of those that have ended without a clean stop, what was on disk counts.
    let restarted = answered(1, 5).map(|answer| Answer { lacks: Lacks::Unwritten, ..answer });
    assert_eq!(elect(&chain, &[answered(1, 4), restarted, None], false), few);
    let elected = Elected { at: 1, lost: Lacks::Unwritten };
    assert_eq!(elect(&chain, &[answered(1, 4), restarted, None], true), Ok(elected.clone()));
    assert_eq!(elect(&chain, &[answered(1, 4), restarted, restarted], false), Ok(elected));
    // The term comes first, then the seqno, then the place.
    let best = |answers: [Option<Answer>; 3]| elect(&chain, &answers, false).map(|elected| elected.at);
    assert_eq!(best([answered(1, 520), answered(2, 120), None]), Ok(1));
    assert_eq!(best([answered(2, 120), answered(2, 121), answered(1, 900)]), Ok(1));
    assert_eq!(best([None, answered(2, 120), answered(2, 120)]), Ok(1));
    // While a vBucket moves, each chain must answer.
    let two = [vec![0, 1, 2], vec![2, 3, 4]];
    let answers = [answered(1, 5), answered(1, 6), None, answered(1, 7), None];
    assert_eq!(elect(&two, &answers, false), Err(NotElected::TooFew { counted: 1, needed: 2 }));
}
