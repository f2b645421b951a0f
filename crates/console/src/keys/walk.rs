//! Walks over the documents of a bucket, in slices: no lock is held longer than for one group of the index, and other
//! requests get their turn in between. A walk has an upper bound, and says whether it came to the end.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use kv::{Bucket, Document, Hand, Key, KvError, NodeContext, Unavailable, VbId};

use crate::Console;
use crate::vbuckets::execute;

/// Most documents that one request looks at.
pub const VISITS_MAX: u64 = 4 << 20;
/// Groups of the index, of some 30 documents each, in a slice.
const SLICE_GROUPS: usize = 64;
/// Documents of a group, at least on average: a sample takes no fewer groups than it needs.
const GROUP_ITEMS: u64 = 24;

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

/// What a walk goes through: of each vBucket all groups, or some from a random one on.
struct Route {
    /// The vBuckets in the order `first`, `first + step`, ... modulo their number, a power of two.
    first: u64,
    step: u64,
    /// Groups of each vBucket.
    groups: u64,
    is_random: bool,
    visits_max: u64,
}

/// Calls `f` with each document of a bucket until it has met `visits_max`.
pub fn walk(
    console: &Console,
    bucket: &Bucket,
    visits_max: u64,
    f: &mut dyn FnMut(Key<'_>, &Document<'_>),
) -> Result<Walked, KvError> {
    let route = Route { first: 0, step: 1, groups: u64::MAX, is_random: false, visits_max };
    go(console, bucket, &route, &mut |key, document| {
        f(key, document);
        true
    })
}

/// Calls `f` with documents of random groups until it has returned true `count` times. `items` of the bucket's
/// documents can be meant. The index places documents by a secret hash, so those of a group are a random sample.
pub fn sample(
    console: &Console,
    bucket: &Bucket,
    count: u64,
    items: u64,
    f: &mut dyn FnMut(Key<'_>, &Document<'_>) -> bool,
) -> Result<Walked, KvError> {
    let random = RandomState::new().build_hasher().finish();
    let (all, vbuckets) = (bucket.accounts().items, u64::from(bucket.vbuckets()));
    let groups = match count >= items {
        true => u64::MAX,
        // As many more as there are other documents.
        false => {
            let visits = u128::from(count) * u128::from(all) / u128::from(items.max(1));
            u64::try_from(visits).unwrap_or(u64::MAX).div_ceil(vbuckets * GROUP_ITEMS)
        }
    };
    let route =
        Route { first: random, step: random >> 20 | 1, groups, is_random: true, visits_max: VISITS_MAX };
    let mut left = count;
    go(console, bucket, &route, &mut |key, document| {
        if f(key, document) {
            left = left.saturating_sub(1);
        }
        left > 0
    })
}

/// Where a walk is.
struct Position {
    /// vBuckets left behind.
    done: u64,
    /// In the present vBucket: the first group, the next, and how many it has met. `None` before the first.
    at: Option<(Hand, Hand, u64)>,
    is_around: bool,
    /// Documents met, and groups without any.
    work: u64,
}

/// Follows the route until `f` returns false at the end of a group.
fn go(
    console: &Console,
    bucket: &Bucket,
    route: &Route,
    f: &mut dyn FnMut(Key<'_>, &Document<'_>) -> bool,
) -> Result<Walked, KvError> {
    let mut walked = Walked { is_complete: true, ..Walked::default() };
    let mut position = Position { done: 0, at: None, is_around: false, work: 0 };
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
        f: &mut dyn FnMut(Key<'_>, &Document<'_>) -> bool,
    ) -> bool {
        let vbuckets = u64::from(bucket.vbuckets());
        if self.done >= vbuckets {
            return false;
        }
        let number = route.first.wrapping_add(self.done.wrapping_mul(route.step)) % vbuckets;
        let vb = VbId(u16::try_from(number).unwrap_or_default());
        let begin = |cx: &mut NodeContext| match route.is_random {
            true => bucket.hand_at(cx, vb, route.first.rotate_left(32) ^ number.wrapping_mul(route.step)),
            false => Hand::default(),
        };
        let (first, hand, met) = self.at.unwrap_or_else(|| {
            let first = begin(cx);
            (first, first, 0)
        });
        let (mut goes_on, visits_before) = (true, walked.visits);
        let next: Result<Option<Hand>, Unavailable> = match bucket.serves(vb.0) {
            false => Err(Unavailable::WarmingUp),
            true => bucket.list(cx, vb, hand, &mut |key, document| {
                walked.visits += 1;
                goes_on &= f(key, document);
            }),
        };
        self.work += (walked.visits - visits_before).max(1);
        let met = met + 1;
        let ends_vbucket = match next {
            Err(_) => {
                walked.closed_vbuckets += 1;
                true
            }
            Ok(next) => {
                // The index may have shrunk meanwhile, and have no such group any more.
                let is_lost = self.is_around && next.is_none();
                self.is_around |= next.is_none();
                let next = next.unwrap_or_default();
                let is_all = is_lost || self.is_around && next >= first;
                walked.is_complete &= is_all || met < route.groups;
                self.at = Some((first, next, met));
                is_all || met >= route.groups
            }
        };
        if ends_vbucket {
            self.done += 1;
            (self.at, self.is_around) = (None, false);
        }
        goes_on && self.work < route.visits_max
    }
}
