//! `/pools/default/buckets/B/hotKeys`: the keys that the evicting hand values most, from the index's own counters.
//!
//! ```text
//!   vBuckets from a random one on, SLICE_GROUPS groups per hold of the console's context, one group per hold of the
//!   vBucket's lock, until all are walked or WALK_MOST is over ──> the COUNT of highest worth that the user may read
//! ```
//! Keys are spread over vBuckets by their hash, so some vBuckets are a random sample of all keys. Looking changes no
//! counter.

use crate::buckets::{invalid, refused, unix_s};
use crate::login::Identity;
use crate::requests::document;
use crate::vbuckets::execute;
use crate::work::Party;
use crate::{Console, Refusal};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kv::users::roles::{DataAccess, Rights};
use kv::{Hand, Use, VbId};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Keys in an answer, if the request does not say how many,
const COUNT: usize = 20;
/// and at most.
const COUNT_MAX: usize = 500;
/// A walk begins no further slice after this time.
const WALK_MOST: Duration = Duration::from_millis(500);
/// Groups of the index, of some 30 items each, that are walked at once.
const SLICE_GROUPS: usize = 64;

/// The keys of highest worth.
struct Hottest {
    count: usize,
    /// By worth, the lowest first to go.
    keys: BinaryHeap<Reverse<(u8, Vec<u8>, u32)>>,
    uses: Vec<Use>,
}

impl Hottest {
    fn new(count: usize) -> Self {
        Self { count, keys: BinaryHeap::new(), uses: Vec::new() }
    }

    fn meet(&mut self, collection: u32, key: &[u8], used: Use) {
        if self.keys.len() == self.count {
            if self.keys.peek().is_none_or(|Reverse((least, ..))| used.worth <= *least) {
                return;
            }
            self.keys.pop();
        }
        self.keys.push(Reverse((used.worth, key.to_vec(), collection)));
        if !self.uses.iter().any(|known| known.worth == used.worth) {
            self.uses.push(used);
        }
    }

    /// The keys with their uses, the hottest first.
    fn into_sorted(self) -> Vec<(Use, Vec<u8>, u32)> {
        let uses = self.uses;
        let of = |worth| uses.iter().find(|used| used.worth == worth).copied();
        let sorted = self.keys.into_sorted_vec().into_iter();
        sorted.filter_map(|Reverse((worth, key, collection))| Some((of(worth)?, key, collection))).collect()
    }
}

/// `GET /pools/default/buckets/B/hotKeys`.
pub async fn of_bucket(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    Query(fields): Query<Vec<(String, String)>>,
) -> Response {
    let count = match count(&fields) {
        Ok(count) => count,
        Err(refusal) => return refused(refusal),
    };
    match console.walk(&party, move |console| walk(&console, &identity, &name, count)).await {
        Ok(Some(document)) => Json(document).into_response(),
        Ok(None) => refused(Refusal::Missing),
        Err(refusal) => refused(refusal),
    }
}

fn count(fields: &[(String, String)]) -> Result<usize, Refusal> {
    let mut count = COUNT;
    for (field, value) in fields {
        match field.as_str() {
            "count" => {
                let given = value.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
                count = given.ok_or_else(|| invalid("count", format!("Allowed: 1 to {COUNT_MAX}.")))?;
            }
            other => return Err(invalid("_", format!("Unknown field {other:?}. Allowed: count."))),
        }
    }
    Ok(count)
}

fn walk(console: &Console, identity: &Identity, name: &str, count: usize) -> Option<Value> {
    let bucket = console.node.bucket(name)?;
    let manifest = bucket.collections().manifest();
    let access = DataAccess::new(identity.roles(), name, &manifest);
    let (mut hottest, mut looked, mut is_visited) = (Hottest::new(count), 0_u64, false);
    let (begun, vbuckets) = (Instant::now(), bucket.vbuckets());
    let (first, mut walked) = (arbitrary(), 0_u16);
    'walk: for step in 0..vbuckets {
        // Their number is a power of two.
        let vb = VbId(first.wrapping_add(step) & (vbuckets - 1));
        let mut hand = bucket.serves(vb.0).then(Hand::default);
        while let Some(at) = hand {
            if begun.elapsed() >= WALK_MOST {
                break 'walk;
            }
            hand = execute(console, |cx| {
                let mut next = Some(at);
                for _ in 0..SLICE_GROUPS {
                    let Some(at) = next else { break };
                    let listed = bucket.list(cx, vb, at, &mut |key, document| {
                        let used = document.used();
                        looked += 1;
                        is_visited |= used.frequency > 0 || used.idle_visits.is_some_and(|visits| visits > 0);
                        if access.on(key.collection).contain(Rights::READ) {
                            hottest.meet(key.collection, key.bytes, used);
                        }
                    });
                    // A vBucket may have been closed meanwhile.
                    next = listed.unwrap_or(None);
                }
                next
            });
        }
        walked += 1;
    }
    let keys = hottest.into_sorted().into_iter().map(|(used, key, collection)| {
        let mut shown = document(&key, collection, &manifest);
        shown.insert("frequency".into(), used.frequency.into());
        shown.insert("idleVisits".into(), used.idle_visits.into());
        Value::Object(shown)
    });
    Some(json!({
        "atMs": unix_s() * 1000,
        "looked": looked,
        "items": bucket.accounts().items,
        "vBuckets": walked,
        "ofVBuckets": vbuckets,
        "isVisited": is_visited,
        "keys": keys.collect::<Vec<_>>(),
    }))
}

/// A number that differs from walk to walk.
fn arbitrary() -> u16 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_micros() & 0xffff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(worth: u8) -> Use {
        Use { frequency: worth >> 4, idle_visits: Some(15 - (worth & 15)), worth }
    }

    #[test]
    fn the_hottest_are_kept_in_order() {
        let mut hottest = Hottest::new(3);
        for worth in [5, 200, 15, 255, 15, 96, 0] {
            hottest.meet(7, &[worth], used(worth));
        }
        let sorted = hottest.into_sorted();
        let keys: Vec<_> =
            sorted.iter().map(|(used, key, collection)| (used.worth, key[0], *collection)).collect();
        assert_eq!(keys, [(255, 255, 7), (200, 200, 7), (96, 96, 7)]);
        assert_eq!(sorted[1].0, used(200));
    }

    #[test]
    fn the_count_is_bounded() {
        let of = |value: &str| count(&[("count".to_owned(), value.to_owned())]).ok();
        assert_eq!((of("1"), of("500"), count(&[]).ok()), (Some(1), Some(500), Some(COUNT)));
        for wrong in ["0", "501", "-1", "", "x", "99999999999999999999"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert!(count(&[("number".to_owned(), "1".to_owned())]).is_err());
    }
}
