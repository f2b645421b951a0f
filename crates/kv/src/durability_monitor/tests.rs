use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use wire::couchbase::frame_info::DurabilityLevel::{Majority, MajorityAndPersistToActive, PersistToMajority};

/// Chains of names; "-" is a place no node has taken.
fn topology<S: AsRef<str>>(chains: &[Vec<S>]) -> Topology {
    let place = |name: &'_ S| Some(name.as_ref().to_owned()).filter(|name| name != "-");
    let named: Vec<Vec<Option<String>>> =
        chains.iter().map(|chain| chain.iter().map(place).collect()).collect();
    Topology::new(named.iter().map(|chain| chain.iter().map(Option::as_deref))).unwrap()
}

fn monitor(chains: &[Vec<&str>]) -> DurabilityMonitor<u32> {
    DurabilityMonitor::new(&topology(chains), 0)
}

fn ended(monitor: &mut DurabilityMonitor<u32>) -> Vec<(u64, Verdict)> {
    let mut ended = Vec::new();
    while let Some((verdict, seqno)) = monitor.verdict() {
        monitor.end_first().unwrap();
        ended.push((seqno, verdict));
    }
    ended
}

fn expired(monitor: &mut DurabilityMonitor<u32>, now_us: u64) -> Vec<u64> {
    let mut seqnos = Vec::new();
    monitor.expire(now_us, |seqno, _, _| seqnos.push(seqno));
    seqnos
}

#[test]
fn a_node_alone_is_its_own_majority() {
    let mut alone = DurabilityMonitor::<u32>::new(&Topology::default(), 0);
    assert!(alone.is_possible() && alone.is_trivial(Majority));
    assert!(!alone.is_trivial(PersistToMajority));
    alone.track(1, Majority, Some(10), 0);
    assert_eq!(ended(&mut alone), [(1, Verdict::Commit)]);
    assert!(monitor(&[vec!["us"]]).is_trivial(Majority));
    assert!(!monitor(&[vec!["us", "b"]]).is_trivial(Majority));
}

#[test]
fn a_chain_with_too_few_nodes_makes_it_impossible() {
    assert!(!monitor(&[vec!["us", "-"]]).is_possible());
    assert!(monitor(&[vec!["us", "b", "-"]]).is_possible());
    assert!(!monitor(&[vec!["us", "b"], vec!["c", "-"]]).is_possible());
}

#[test]
fn a_short_timeout_behind_a_long_one_is_told_at_its_own_deadline_and_ends_in_its_place() {
    let mut it = monitor(&[vec!["us", "b"]]);
    it.track(1, Majority, Some(30_000), 0);
    it.track(2, Majority, Some(1_000), 0);
    assert_eq!(it.next_deadline_us(), Some(1_000));
    assert_eq!((expired(&mut it, 999), expired(&mut it, 1_000)), (vec![], vec![2]));
    assert_eq!((ended(&mut it), it.next_deadline_us(), it.overdue()), (vec![], Some(30_000), 1));
    assert_eq!(expired(&mut it, 30_000), [1]);
    assert_eq!(ended(&mut it), [(1, Verdict::Abort), (2, Verdict::Abort)]);
    assert_eq!(it.next_deadline_us(), None);
}

#[test]
fn an_overdue_write_is_committed_if_the_majority_comes_first() {
    let mut it = monitor(&[vec!["us", "b"]]);
    it.track(1, Majority, Some(30_000), 0);
    it.track(2, Majority, Some(1_000), 0);
    assert_eq!(expired(&mut it, 1_000), [2]);
    assert!(it.acknowledge("b", 2, 0));
    assert_eq!(ended(&mut it), [(1, Verdict::Commit), (2, Verdict::Commit)]);
}

#[test]
fn an_acknowledgement_may_come_before_its_prepare_and_before_its_node() {
    let mut it = monitor(&[vec!["us", "b", "c"]]);
    it.acknowledge("b", 3, 0);
    it.acknowledge("d", 9, 9);
    it.track(1, Majority, None, 0);
    it.track(2, PersistToMajority, None, 0);
    it.track(4, Majority, None, 0);
    it.persisted(4);
    assert_eq!(ended(&mut it), [(1, Verdict::Commit)]);
    it.set_topology(&topology(&[vec!["us", "d"]]));
    assert_eq!(ended(&mut it), [(2, Verdict::Commit), (4, Verdict::Commit)]);
}

#[test]
fn levels_that_persist_want_the_actives_disk() {
    let mut it = monitor(&[vec!["us", "b", "c"]]);
    it.track(1, MajorityAndPersistToActive, None, 0);
    it.acknowledge("b", 1, 1);
    it.acknowledge("c", 1, 1);
    assert_eq!(ended(&mut it), []);
    it.persisted(1);
    assert_eq!(ended(&mut it), [(1, Verdict::Commit)]);
    it.track(2, PersistToMajority, None, 0);
    it.acknowledge("b", 2, 2);
    it.acknowledge("c", 2, 2);
    assert_eq!(ended(&mut it), []);
    it.persisted(2);
    assert_eq!(ended(&mut it), [(2, Verdict::Commit)]);
}

#[test]
fn abandoned_prepares_never_time_out() {
    let mut it = monitor(&[vec!["us", "b"]]);
    it.track(1, Majority, Some(10), 7);
    it.track(2, Majority, Some(20), 8);
    assert_eq!(expired(&mut it, 15), [1]);
    // The first one is aborted first.
    assert_eq!(ended(&mut it), [(1, Verdict::Abort)]);
    let mut fired = Vec::new();
    it.abandon(|entry| fired.push(*entry));
    assert_eq!((fired, expired(&mut it, 1_000), it.next_deadline_us()), (vec![8], vec![], None));
    it.acknowledge("b", 2, 0);
    assert_eq!(ended(&mut it), [(2, Verdict::Commit)]);
}

#[test]
fn strangers_give_way_to_the_nodes_of_the_chains() {
    let mut it = monitor(&[vec!["us", "b"]]);
    for number in 0..100 {
        it.acknowledge(&format!("stranger {number}"), 5, 5);
    }
    it.acknowledge("b", 4, 0);
    it.set_topology(&topology(&[vec!["us", "b"], vec!["e", "f", "g", "h"]]));
    it.track(4, Majority, None, 0);
    for node in ["e", "f"] {
        it.acknowledge(node, 4, 0);
        assert_eq!(ended(&mut it), []);
    }
    it.acknowledge("h", 4, 0);
    assert_eq!(ended(&mut it), [(4, Verdict::Commit)]);
}

#[test]
fn deadlines_of_ended_prepares_are_swept_out() {
    let mut it = monitor(&[vec!["us", "b"]]);
    it.track(1, Majority, Some(u64::MAX), 0);
    for seqno in 2..10_000 {
        it.track(seqno, Majority, Some(seqno), 0);
        it.acknowledge("b", seqno - 1, 0);
        ended(&mut it);
    }
    assert!(it.deadlines.len() <= STALE_DEADLINES_MAX + 8, "{}", it.deadlines.len());
}

// ---- against a model ------------------------------------------------------------------------------------------------

#[derive(Debug, Clone)]
enum Step {
    Track { level: DurabilityLevel, timeout: Option<u64> },
    Acknowledge { node: &'static str, in_memory: u64, persisted: u64 },
    Persisted(u64),
    Pass(u64),
    Topology(Vec<Vec<&'static str>>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let level = prop_oneof![Just(Majority), Just(MajorityAndPersistToActive), Just(PersistToMajority)];
    let node = prop_oneof![Just("b"), Just("c"), Just("d")];
    let chain = |first: &'static str| {
        proptest::sample::subsequence(vec!["b", "c", "d", "-"], 0..=3).prop_map(move |mut rest| {
            rest.retain(|name| *name != first);
            rest.insert(0, first);
            rest
        })
    };
    let chains = prop_oneof![
        3 => chain("us").prop_map(|chain| vec![chain]),
        1 => (chain("us"), chain("us")).prop_map(|(a, b)| vec![a, b]),
        1 => (chain("us"), chain("b")).prop_map(|(a, b)| vec![a, b]),
    ];
    let step = prop_oneof![
        6 => (level, proptest::option::weighted(0.9, 1u64..60))
            .prop_map(|(level, timeout)| Step::Track { level, timeout }),
        4 => (node, 0u64..60, 0u64..60)
            .prop_map(|(node, in_memory, persisted)| Step::Acknowledge { node, in_memory, persisted }),
        2 => (0u64..60).prop_map(Step::Persisted),
        4 => (1u64..30).prop_map(Step::Pass),
        1 => chains.prop_map(Step::Topology),
    ];
    proptest::collection::vec(step, 1..120)
}

struct Waiting {
    seqno: u64,
    level: DurabilityLevel,
    deadline: Option<u64>,
    fired: bool,
}

/// The rules, written down once more in the simplest way.
struct Model {
    chains: Vec<Vec<&'static str>>,
    in_memory: BTreeMap<&'static str, u64>,
    persisted: BTreeMap<&'static str, u64>,
    waiting: Vec<Waiting>,
}

impl Model {
    fn is_satisfied(&self, waiting: &Waiting) -> bool {
        let memory =
            |node: &str| if node == "us" { u64::MAX } else { *self.in_memory.get(node).unwrap_or(&0) };
        let disk = |node: &str| *self.persisted.get(node).unwrap_or(&0);
        let has = |node: &str| match waiting.level {
            PersistToMajority => disk(node) >= waiting.seqno,
            _ => memory(node) >= waiting.seqno,
        };
        (waiting.level == Majority || disk("us") >= waiting.seqno)
            && self.chains.iter().all(|chain| {
                let count = chain.iter().filter(|node| **node != "-" && has(node)).count();
                count > chain.len() / 2
            })
    }

    fn end(&mut self) -> Vec<(u64, Verdict)> {
        let mut ended = Vec::new();
        while let Some(first) = self.waiting.first() {
            let verdict = match (self.is_satisfied(first), first.fired) {
                (true, _) => Verdict::Commit,
                (false, true) => Verdict::Abort,
                (false, false) => break,
            };
            ended.push((self.waiting.remove(0).seqno, verdict));
        }
        ended
    }
}

proptest! {
    #[test]
    fn it_does_what_the_model_does(steps in steps()) {
        let first = vec![vec!["us", "b"]];
        let mut it = monitor(&first);
        let (in_memory, persisted) = (BTreeMap::new(), BTreeMap::new());
        let mut model = Model { chains: first, in_memory, persisted, waiting: Vec::new() };
        let (mut now, mut seqno) = (0, 0);
        let mut answers = BTreeMap::<u64, u32>::new();
        for step in steps {
            match step {
                Step::Track { level, timeout } => {
                    seqno += 1;
                    let deadline = timeout.map(|timeout| now + timeout);
                    it.track(seqno, level, deadline, 0);
                    model.waiting.push(Waiting { seqno, level, deadline, fired: false });
                }
                Step::Acknowledge { node, in_memory, persisted } => {
                    it.acknowledge(node, in_memory, persisted);
                    let entry = model.in_memory.entry(node).or_default();
                    *entry = (*entry).max(in_memory).max(persisted);
                    let entry = model.persisted.entry(node).or_default();
                    *entry = (*entry).max(persisted);
                }
                Step::Persisted(seqno) => {
                    it.persisted(seqno);
                    let entry = model.persisted.entry("us").or_default();
                    *entry = (*entry).max(seqno);
                }
                Step::Topology(chains) => {
                    it.set_topology(&topology(&chains));
                    model.chains = chains;
                }
                Step::Pass(time) => {
                    now += time;
                    let mut fired = Vec::new();
                    it.expire(now, |seqno, deadline, _| fired.push((deadline, seqno)));
                    let due = model.waiting.iter_mut().filter(|w| !w.fired && w.deadline.is_some_and(|at| at <= now));
                    let mut expected: Vec<_> =
                        due.map(|w| { w.fired = true; (w.deadline.unwrap(), w.seqno) }).collect();
                    expected.sort_unstable();
                    for (_, seqno) in &fired {
                        *answers.entry(*seqno).or_default() += 1;
                    }
                    prop_assert_eq!(fired, expected);
                }
            }
            let mut verdicts = Vec::new();
            while let Some((verdict, seqno)) = it.verdict() {
                let (_, is_overdue) = it.end_first().unwrap();
                prop_assert_eq!(is_overdue, answers.contains_key(&seqno));
                if !is_overdue {
                    *answers.entry(seqno).or_default() += 1;
                }
                verdicts.push((seqno, verdict));
            }
            prop_assert_eq!(verdicts, model.end());
            prop_assert_eq!(it.len(), model.waiting.len());
            let next = model.waiting.iter().filter(|w| !w.fired).filter_map(|w| w.deadline).min();
            prop_assert_eq!(it.next_deadline_us(), next);
        }
        prop_assert!(answers.values().all(|count| *count == 1));
    }
}
