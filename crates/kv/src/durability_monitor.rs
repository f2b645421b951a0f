//! The durability monitor of one vBucket: which prepares wait, for whom, until when, and in which order they end.
//!
//! ```text
//!                 by seqno                      front satisfied ─> commit
//!   track ──> | 5 | 6 | 7 | ... |  ── verdict ─<
//!               ^       ^                       front overdue   ─> abort
//!   acknowledge ┘       └ expire: past its deadline, its client is told "ambiguous" at once; it stays in its place
//! ```
//! A pure structure: the vBucket's lock protects it, time and acknowledgements are arguments, and what is stored with a
//! prepare (`T`) is up to the caller.
//!
//! * Prepares end in seqno order. An overdue one is aborted when it is the first, unless the acknowledgements came
//!   before: then it is committed, although its client was told "ambiguous".
//! * A node acknowledges cumulatively, possibly before its prepare is tracked.
//! * A majority is `floor(nodes / 2) + 1` of each chain. The active always has a prepare in memory. The levels that
//!   persist require it among the nodes that have persisted, since it is the one that commits.
//! * A prepare without a deadline (recovered from a journal) is never overdue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use arrayvec::ArrayVec;
use wire::couchbase::frame_info::DurabilityLevel;

use crate::topology::{CHAINS_MAX, NODES_MAX, Topology};

/// Most nodes whose acknowledgements are kept: those of two chains, and as many that may join one.
const NODES_KEPT_MAX: usize = 2 * CHAINS_MAX * NODES_MAX;
/// Index of the active in the list of nodes.
const ACTIVE: usize = 0;
/// Deadlines of ended prepares are swept out when they outnumber the others, and this.
const STALE_DEADLINES_MAX: usize = 64;

/// How a prepare ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Enough nodes have it: it becomes the document.
    Commit,
    /// Its deadline has passed before that: it is taken back.
    Abort,
}

struct Prepare<T> {
    seqno: u64,
    level: DurabilityLevel,
    is_overdue: bool,
    entry: T,
}

/// How far a node has got.
struct Node {
    name: Box<str>,
    in_memory_seqno: u64,
    persisted_seqno: u64,
}

/// Indices into the list of nodes; `None` is a place no node has taken.
type Places = ArrayVec<Option<u8>, NODES_MAX>;

/// See the module.
pub struct DurabilityMonitor<T> {
    prepares: VecDeque<Prepare<T>>,
    /// Deadline and seqno, the earliest on top; may include those of ended prepares.
    deadlines: BinaryHeap<Reverse<(u64, u64)>>,
    nodes: Vec<Node>,
    chains: ArrayVec<Places, CHAINS_MAX>,
    /// Where the term of this node, the active, began.
    began_at: u64,
}

impl<T> DurabilityMonitor<T> {
    /// Creates a monitor without prepares. `persisted_seqno` is how far this node, the active, has persisted; 0 if it
    /// never does.
    pub fn new(topology: &Topology, persisted_seqno: u64) -> Self {
        let nodes = vec![Node { name: "".into(), in_memory_seqno: u64::MAX, persisted_seqno }];
        let mut monitor = Self {
            prepares: VecDeque::new(),
            deadlines: BinaryHeap::new(),
            nodes,
            chains: ArrayVec::new(),
            began_at: 0,
        };
        monitor.set_topology(topology);
        monitor
    }

    /// Replaces the chains. The first node of the first chain is this one. [`DurabilityMonitor::verdict`] returns what
    /// can end by that.
    pub fn set_topology(&mut self, topology: &Topology) {
        self.chains.clear();
        if let Some(active) = topology.chains().first().and_then(|chain| chain.first()?.clone()) {
            // It may have acknowledged as a replica before; as the active it does not.
            while let Some(at) = self.nodes.iter().skip(1).position(|node| node.name == active) {
                self.nodes.remove(at + 1);
            }
            self.nodes[ACTIVE].name = active;
        }
        for chain in topology.chains() {
            let mut places = Places::new();
            for name in chain {
                let is_in_chain = |_: u8, node: &Node| {
                    topology.chains().iter().flatten().flatten().any(|known| *known == node.name)
                };
                places.push(name.as_deref().and_then(|name| self.node(name, is_in_chain)));
            }
            self.chains.push(places);
        }
    }

    /// Returns the index of a node, which is added if it is not known. If there is no room, a node that is not `spared`
    /// gives way; the active never does.
    fn node(&mut self, name: &str, spared: impl Fn(u8, &Node) -> bool) -> Option<u8> {
        let index = |at: usize| u8::try_from(at).ok();
        if let Some(at) = self.nodes.iter().position(|node| *node.name == *name) {
            return index(at);
        }
        let node = Node { name: name.into(), in_memory_seqno: 0, persisted_seqno: 0 };
        if self.nodes.len() < NODES_KEPT_MAX {
            self.nodes.push(node);
            return index(self.nodes.len() - 1);
        }
        let others = self.nodes.iter_mut().enumerate().skip(ACTIVE + 1);
        let (at, place) =
            others.into_iter().find(|(at, node)| index(*at).is_some_and(|at| !spared(at, node)))?;
        *place = node;
        index(at)
    }

    /// Returns true if there are enough nodes for a durable write to succeed at all.
    pub fn is_possible(&self) -> bool {
        self.chains.iter().all(|places| places.iter().flatten().count() >= majority(places))
    }

    /// Returns true if a write of this level needs no other node and no disk: it is durable as soon as it is in memory.
    pub fn is_trivial(&self, level: DurabilityLevel) -> bool {
        level == DurabilityLevel::Majority
            && self.chains.iter().all(|places| self.has_majority(places, |n| n.in_memory_seqno, u64::MAX))
    }

    /// Tracks a prepare, whose seqno is above all others'. It may be satisfied already: ask for the verdict.
    pub fn track(&mut self, seqno: u64, level: DurabilityLevel, deadline_us: Option<u64>, entry: T) {
        debug_assert!(self.prepares.back().is_none_or(|last| last.seqno < seqno));
        self.prepares.push_back(Prepare { seqno, level, is_overdue: false, entry });
        if let Some(deadline_us) = deadline_us {
            if self.deadlines.len() > 2 * self.prepares.len() + STALE_DEADLINES_MAX {
                let first = self.prepares.front().map_or(u64::MAX, |prepare| prepare.seqno);
                self.deadlines.retain(|Reverse((_, seqno))| *seqno >= first);
            }
            self.deadlines.push(Reverse((deadline_us, seqno)));
        }
    }

    /// Notes that a replica has everything up to these seqnos. Returns true if that is news.
    pub fn acknowledge(&mut self, node: &str, in_memory_seqno: u64, persisted_seqno: u64) -> bool {
        let chains = self.chains.clone();
        let is_in_chain = |at: u8, _: &Node| chains.iter().flatten().any(|place| *place == Some(at));
        let Some(at) = self.node(node, is_in_chain).map(usize::from) else { return false };
        let Some(node) = self.nodes.get_mut(at).filter(|_| at != ACTIVE) else { return false };
        let of_term = |seqno: u64| if seqno < self.began_at { 0 } else { seqno };
        let (in_memory_seqno, persisted_seqno) = (of_term(in_memory_seqno), of_term(persisted_seqno));
        // What is on its disk is also in its memory.
        let in_memory_seqno = in_memory_seqno.max(persisted_seqno);
        let is_news = in_memory_seqno > node.in_memory_seqno || persisted_seqno > node.persisted_seqno;
        node.in_memory_seqno = node.in_memory_seqno.max(in_memory_seqno);
        node.persisted_seqno = node.persisted_seqno.max(persisted_seqno);
        is_news
    }

    /// Notes that the active's term began at a seqno. A node that does not have everything up to there acknowledges
    /// nothing: what was prepared in earlier terms can still be outranked ([`crate::terms`]).
    pub(crate) fn begin_term(&mut self, seqno: u64) {
        self.began_at = seqno;
        self.forget_acknowledgements(|_| true);
    }

    /// Notes that this node, the active, has persisted everything up to this seqno.
    pub fn persisted(&mut self, seqno: u64) {
        let active = &mut self.nodes[ACTIVE];
        active.persisted_seqno = active.persisted_seqno.max(seqno);
    }

    /// Notes that this node has nothing any more.
    pub(crate) fn begin_anew(&mut self) {
        self.nodes[ACTIVE].persisted_seqno = 0;
    }

    /// Returns how the first prepare is to be ended, and its seqno; `None` if it has to wait. Call it after everything
    /// that may end one, including tracking, until there is nothing more; carry out each verdict with
    /// [`DurabilityMonitor::end_first`].
    pub fn verdict(&self) -> Option<(Verdict, u64)> {
        let first = self.prepares.front()?;
        if self.is_satisfied(first.level, first.seqno) {
            Some((Verdict::Commit, first.seqno))
        } else if first.is_overdue {
            Some((Verdict::Abort, first.seqno))
        } else {
            None
        }
    }

    /// Returns the first prepare's seqno.
    pub fn first_seqno(&self) -> Option<u64> {
        self.prepares.front().map(|first| first.seqno)
    }

    /// Removes the first prepare after it has been ended. Returns what was tracked with it, and whether it was overdue.
    pub fn end_first(&mut self) -> Option<(T, bool)> {
        let Prepare { is_overdue, entry, .. } = self.prepares.pop_front()?;
        if self.prepares.is_empty() {
            self.deadlines.clear();
        }
        Some((entry, is_overdue))
    }

    /// Returns true if a majority of each chain has everything up to this seqno.
    pub fn is_acknowledged(&self, seqno: u64) -> bool {
        self.is_satisfied(DurabilityLevel::Majority, seqno)
    }

    fn is_satisfied(&self, level: DurabilityLevel, seqno: u64) -> bool {
        let (has_it, active_persists): (fn(&Node) -> u64, bool) = match level {
            DurabilityLevel::Majority => (|node| node.in_memory_seqno, false),
            DurabilityLevel::MajorityAndPersistToActive => (|node| node.in_memory_seqno, true),
            DurabilityLevel::PersistToMajority => (|node| node.persisted_seqno, true),
        };
        (!active_persists || self.nodes[ACTIVE].persisted_seqno >= seqno)
            && self.chains.iter().all(|places| self.has_majority(places, has_it, seqno))
    }

    fn has_majority(&self, places: &Places, has_it: fn(&Node) -> u64, seqno: u64) -> bool {
        let nodes = places.iter().flatten().filter_map(|at| self.nodes.get(usize::from(*at)));
        nodes.filter(|node| has_it(node) >= seqno).count() >= majority(places)
    }

    /// Calls `f` with seqno, deadline and entry of each prepare whose deadline has come, once for each, the earliest
    /// deadline first. Then ask [`DurabilityMonitor::verdict`].
    pub fn expire(&mut self, now_us: u64, mut f: impl FnMut(u64, u64, &mut T)) {
        while let Some(Reverse((deadline_us, seqno))) = self.deadlines.peek().copied()
            && deadline_us <= now_us
        {
            self.deadlines.pop();
            if let Ok(at) = self.prepares.binary_search_by_key(&seqno, |prepare| prepare.seqno)
                && let Some(prepare) = self.prepares.get_mut(at)
            {
                prepare.is_overdue = true;
                f(seqno, deadline_us, &mut prepare.entry);
            }
        }
    }

    /// Returns the earliest deadline of the prepares that are not overdue.
    pub fn next_deadline_us(&mut self) -> Option<u64> {
        let first = self.prepares.front()?.seqno;
        while let Some(Reverse((deadline_us, seqno))) = self.deadlines.peek().copied() {
            if seqno >= first {
                return Some(deadline_us);
            }
            self.deadlines.pop();
        }
        None
    }

    /// Drops the deadlines, because nobody waits any more: what is tracked stays as after a recovery. `f` sees the
    /// entries of those that were not overdue.
    pub fn abandon(&mut self, mut f: impl FnMut(&mut T)) {
        self.deadlines.clear();
        for prepare in &mut self.prepares {
            if !std::mem::take(&mut prepare.is_overdue) {
                f(&mut prepare.entry);
            }
        }
    }

    /// Forgets all prepares, because another node ends them; and what nodes have acknowledged, which may be of another
    /// history.
    pub fn clear(&mut self) {
        self.prepares.clear();
        self.deadlines.clear();
        self.forget_acknowledgements(|_| true);
    }

    /// Forgets what some replicas have acknowledged.
    pub fn forget_acknowledgements(&mut self, of: impl Fn(&str) -> bool) {
        for node in self.nodes.iter_mut().skip(ACTIVE + 1).filter(|node| of(&node.name)) {
            (node.in_memory_seqno, node.persisted_seqno) = (0, 0);
        }
    }

    /// Returns the number of prepares that wait.
    pub fn len(&self) -> usize {
        self.prepares.len()
    }

    /// Returns true if no prepare waits.
    pub fn is_empty(&self) -> bool {
        self.prepares.is_empty()
    }

    /// Returns the number of prepares whose clients were told "ambiguous" and that have not ended.
    pub fn overdue(&self) -> usize {
        self.prepares.iter().filter(|prepare| prepare.is_overdue).count()
    }

    /// Returns name, seqno in memory and seqno persisted of every node that has acknowledged or is in a chain, this one
    /// first.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.nodes.iter().map(|node| (&*node.name, node.in_memory_seqno, node.persisted_seqno))
    }
}

fn majority(places: &Places) -> usize {
    places.len() / 2 + 1
}

#[cfg(test)]
mod tests;
