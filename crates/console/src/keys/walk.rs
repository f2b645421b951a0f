//! Walks over the documents of a bucket, in slices: no lock is held longer than for one group of the index, and other
//! requests get their turn in between. A walk has an upper bound, and says whether it came to the end.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use kv::{Bucket, Document, Hand, Key, KvError, NodeContext, Unavailable, VbId};

use crate::Console;
use crate::vbuckets::execute;

/// Most documents that one request looks at.
pub const VISITS_MAX: u64 = 4 << 20;
/// Groups of the index, of some 30 documents each, in a slice.
const SLICE_GROUPS: usize = 64;

/// How far a walk came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walked {
    /// Documents that it met, of all collections.
    pub visits: u64,
    /// Whether it met every document that was there all the time.
    pub is_complete: bool,
    /// vBuckets that could not be read: they are not active here, still being read from disk, or damaged.
    pub closed_vbuckets: u16,
}

/// What a walk goes through: of each vBucket all groups, or random ones.
struct Route {
    /// The vBuckets in the order `first`, `first + step`, ... modulo their number, a power of two.
    first: u64,
    step: u64,
    /// What chooses groups; `None`: all.
    choice: Option<Choice>,
    visits_max: u64,
}

/// Chooses groups, each on its own: then the variance of a sum over them is known.
struct Choice {
    random: RandomState,
    chance: f64,
    /// One group of each vBucket at least.
    one_at_least: bool,
}

impl Choice {
    /// A number from 0 to below 1.
    fn draw(&self, of: (u16, u64)) -> f64 {
        (self.random.hash_one(of) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The group that is visited in any case, of so many.
    fn certain(&self, vb: VbId, groups: u64) -> Option<u64> {
        self.one_at_least.then(|| self.random.hash_one(vb.0) % groups)
    }
}

/// Calls `f` with each document of a bucket until it has met `visits_max`.
pub fn walk(
    console: &Console,
    bucket: &Bucket,
    visits_max: u64,
    f: &mut dyn FnMut(Key<'_>, &Document<'_>),
) -> Result<Walked, KvError> {
    let route = Route { first: 0, step: 1, choice: None, visits_max };
    go(console, bucket, &route, &mut |_, key, document| {
        f(key, document);
        true
    })
}

/// Calls `f` with the documents of random groups of the index until it returns false; each with the number of its
/// group. Each group has this chance; with `one_at_least`, one of each vBucket is certain. The index places documents
/// by a secret hash, so those of a group are a random sample of their vBucket's.
pub fn sample(
    console: &Console,
    bucket: &Bucket,
    chance: f64,
    one_at_least: bool,
    f: &mut dyn FnMut(u64, Key<'_>, &Document<'_>) -> bool,
) -> Result<Walked, KvError> {
    let random = RandomState::new();
    let (first, step) = (random.hash_one("first"), random.hash_one("step") | 1);
    let choice = (chance < 1.0).then_some(Choice { random, chance, one_at_least });
    go(console, bucket, &Route { first, step, choice, visits_max: VISITS_MAX }, f)
}

/// The chance of each document if `count` of `items` are wanted.
pub fn chance(count: u64, items: u64) -> f64 {
    if count >= items { 1.0 } else { count as f64 / items as f64 }
}

/// What is left of a vBucket.
#[derive(Clone, Copy)]
struct Stretch {
    /// The next group, and the end of those that are chosen from.
    next: u64,
    end: u64,
    /// The group that is visited in any case.
    certain: Option<u64>,
}

/// Where a walk is.
struct Position {
    /// vBuckets left behind.
    done: u64,
    /// In the present vBucket; `None` before its first group.
    at: Option<Stretch>,
    /// Groups visited.
    groups: u64,
    /// Documents met, and groups without any.
    work: u64,
}

/// Follows the route until `f` returns false at the end of a group.
fn go(
    console: &Console,
    bucket: &Bucket,
    route: &Route,
    f: &mut dyn FnMut(u64, Key<'_>, &Document<'_>) -> bool,
) -> Result<Walked, KvError> {
    let mut walked = Walked { is_complete: route.choice.is_none(), ..Walked::default() };
    let mut position = Position { done: 0, at: None, groups: 0, work: 0 };
    let mut goes_on = true;
    while goes_on {
        if bucket.is_gone() {
            return Err(KvError::BucketGone);
        }
        goes_on = execute(console, |cx| {
            (0..SLICE_GROUPS).all(|_| position.step(cx, bucket, route, &mut walked, f))
        });
    }
    walked.is_complete &= position.done >= u64::from(bucket.vbuckets()) && walked.closed_vbuckets == 0;
    Ok(walked)
}

impl Position {
    /// Visits the next group. Returns false at the end.
    fn step(
        &mut self,
        cx: &mut NodeContext,
        bucket: &Bucket,
        route: &Route,
        walked: &mut Walked,
        f: &mut dyn FnMut(u64, Key<'_>, &Document<'_>) -> bool,
    ) -> bool {
        let vbuckets = u64::from(bucket.vbuckets());
        if self.done >= vbuckets {
            return false;
        }
        let number = route.first.wrapping_add(self.done.wrapping_mul(route.step)) % vbuckets;
        let vb = VbId(u16::try_from(number).unwrap_or_default());
        let mut at = self.at.unwrap_or_else(|| match &route.choice {
            Some(choice) => {
                let end = bucket.index_groups(cx, vb);
                Stretch { next: 0, end, certain: choice.certain(vb, end) }
            }
            None => Stretch { next: 0, end: u64::MAX, certain: None },
        });
        if let Some(choice) = &route.choice {
            let is_chosen =
                |group: u64| at.certain == Some(group) || choice.draw((vb.0, group)) < choice.chance;
            at.next = (at.next..at.end).find(|group| is_chosen(*group)).unwrap_or(at.end);
        }
        let (mut goes_on, visits_before) = (true, walked.visits);
        let next: Result<Option<Hand>, Unavailable> = match bucket.serves(vb.0) {
            false => Err(Unavailable::WarmingUp),
            // Behind the last group there is none, and the walk over the vBucket ends.
            true => bucket.list(cx, vb, Hand::at(at.next), &mut |key, document| {
                walked.visits += 1;
                goes_on &= f(self.groups, key, document);
            }),
        };
        self.groups += 1;
        self.work += (walked.visits - visits_before).max(1);
        walked.closed_vbuckets += u16::from(next.is_err());
        self.at = Some(Stretch { next: at.next.saturating_add(1), ..at });
        if !matches!(next, Ok(Some(_))) {
            self.done += 1;
            self.at = None;
        }
        goes_on && self.work < route.visits_max
    }
}
