//! What requests do: their latencies by class, for `/figures` and `/events`; `/requests/slow` and `/requests/large`.
//!
//! Workers record while somebody looks ([`kv::requests`]): each of these answers is a look, and makes them record for
//! a while. Keys are their users' data, so a list has only requests for documents that whoever asks may read.

use crate::Console;
use crate::buckets::{refused, unix_s};
use crate::keys::place::encoded;
use crate::login::Identity;
use crate::work::Party;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kv::Bucket;
use kv::collections::Manifest;
use kv::requests::{Class, Counts, LOOK_MAX_S, NOTED_MAX, Noted, PerClass, Requests, Why};
use kv::users::roles::{DataAccess, Rights, Roles};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long workers record after figures were read, s: a stream reads them each second.
const FIGURES_LOOK_S: u32 = 10;
/// The same after a list was read, s.
const LIST_LOOK_S: u32 = 60;
const _: () = assert!(LIST_LOOK_S <= LOOK_MAX_S);
/// Latencies are those of at least the last so many seconds,
const WINDOW_LEAST: Duration = Duration::from_millis(900);
/// and at most these.
const WINDOW_MOST: Duration = Duration::from_secs(60);
/// Earlier readings that are kept.
const READINGS_MAX: usize = 4;
/// Shares of all requests whose latency is shown, in thousandths.
const SHARES: [(&str, u64); 5] =
    [("p50Us", 500), ("p95Us", 950), ("p99Us", 990), ("p999Us", 999), ("maxUs", 1000)];

/// The last readings of the histograms, newest last: latencies are differences of two.
#[derive(Debug, Default)]
pub struct Latency(Mutex<VecDeque<(Instant, PerClass<Counts>)>>);

impl Latency {
    /// The latencies of requests since the last reading, or since one at least [`WINDOW_LEAST`] ago. Null if there is
    /// no such reading.
    pub fn read(&self, requests: &Requests) -> Value {
        look(requests, FIGURES_LOOK_S);
        self.read_at(Instant::now(), requests.counts())
    }

    fn read_at(&self, now: Instant, counts: PerClass<Counts>) -> Value {
        let mut readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |reading: &(Instant, PerClass<Counts>)| now.saturating_duration_since(reading.0);
        readings.retain(|reading| age(reading) <= WINDOW_MOST);
        // The newest that is old enough is the first one then.
        while readings.get(1).is_some_and(|reading| age(reading) >= WINDOW_LEAST) {
            readings.pop_front();
        }
        let before = readings.front().filter(|reading| age(reading) >= WINDOW_LEAST);
        let latency = before.map_or(Value::Null, |(at, before)| {
            let classes = Class::ALL.iter().zip(counts.iter().zip(before));
            let classes = classes.map(|(class, (now, before))| (class, now.since(before)));
            let shown = classes.filter(|(_, counts)| counts.total() > 0);
            let shown: Map<_, _> =
                shown.map(|(class, counts)| (class.name().into(), percentiles(&counts))).collect();
            json!({ "overMs": (now - *at).as_millis() as u64, "classes": shown })
        });
        if readings.back().is_none_or(|reading| age(reading) >= WINDOW_LEAST) && readings.len() < READINGS_MAX
        {
            readings.push_back((now, counts));
        }
        latency
    }
}

fn percentiles(counts: &Counts) -> Value {
    let mut shown = Map::from_iter([("requests".to_owned(), counts.total().into())]);
    let shares = SHARES.map(|(name, thousandths)| (name.to_owned(), counts.within_us(thousandths).into()));
    shown.extend(shares);
    shown.into()
}

/// Makes workers record for so many seconds.
fn look(requests: &Requests, for_s: u32) {
    requests.look(u32::try_from(unix_s()).unwrap_or(u32::MAX), for_s);
}

/// `GET /requests/slow`.
pub async fn slow(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
) -> Response {
    list(console, &party, identity, Why::Slow).await
}

/// `GET /requests/large`.
pub async fn large(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
) -> Response {
    list(console, &party, identity, Why::Large).await
}

async fn list(console: Console, party: &Party, identity: Identity, why: Why) -> Response {
    look(console.node.requests(), LIST_LOOK_S);
    let read = console.measure(party, move |console| {
        let limits = console.node.limits();
        let (mut shown, hidden) = Readable::new(&console, identity.roles()).list(why);
        shown.truncate(NOTED_MAX);
        let threshold = match why {
            Why::Slow => ("slowUs", limits.slow_request_us),
            Why::Large => ("largeBytes", limits.large_request_bytes as u64),
        };
        json!({ threshold.0: threshold.1, "hidden": hidden, "requests": shown })
    });
    match read.await {
        Ok(document) => Json(document).into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// The documents that a user may read, in buckets by their slots.
struct Readable<'c> {
    console: &'c Console,
    /// Whether who asks may know users and their addresses.
    sees_users: bool,
    buckets: HashMap<usize, (Arc<Bucket>, Arc<Manifest>, DataAccess)>,
}

impl<'c> Readable<'c> {
    fn new(console: &'c Console, roles: &Roles) -> Self {
        let buckets = console.node.buckets().into_iter().map(|bucket| {
            let manifest = bucket.collections().manifest();
            let access = DataAccess::new(roles, bucket.name(), &manifest);
            (bucket.slot(), (bucket, manifest, access))
        });
        let sees_users = roles.on_node().contain(Rights::SEE_USERS);
        Self { console, sees_users, buckets: buckets.collect() }
    }

    /// The requests that may be shown, and the number of the others. Those of deleted buckets and collections are
    /// neither.
    fn list(&self, why: Why) -> (Vec<Value>, usize) {
        let (mut shown, mut hidden) = (Vec::new(), 0);
        for noted in self.console.node.requests().noted(why) {
            let bucket = noted.bucket.map(|slot| self.buckets.get(&slot));
            match bucket {
                Some(None) => {}
                Some(Some((_, manifest, _)))
                    if !noted.key.is_empty() && manifest.of_id(noted.collection).is_none() => {}
                Some(Some((.., access)))
                    if !noted.key.is_empty() && !access.on(noted.collection).contain(Rights::READ) =>
                {
                    hidden += 1;
                }
                Some(Some((bucket, manifest, _))) => {
                    let mut request = self.request(&noted);
                    request.insert("bucket".into(), bucket.name().into());
                    if !noted.key.is_empty() {
                        request.extend(document(&noted.key, noted.collection, manifest));
                    }
                    shown.push(request.into());
                }
                None => shown.push(self.request(&noted).into()),
            }
        }
        (shown, hidden)
    }

    /// What is not the users' data.
    fn request(&self, noted: &Noted) -> Map<String, Value> {
        let mut shown = Map::new();
        let mut add = |name: &str, value: Value| drop(shown.insert(name.to_owned(), value));
        add("atMs", (noted.at_unix_ns / 1_000_000).into());
        add("tookUs", noted.took_us.into());
        add("executionUs", noted.execution_us.into());
        add("together", noted.together.into());
        add("class", noted.class.name().into());
        add("operation", noted.operation.into());
        add("requestBytes", noted.request_bytes.into());
        add("answerBytes", noted.answer_bytes.into());
        if self.sees_users {
            add("client", noted.client.map(|client| client.to_string()).into());
            add("user", noted.user.as_deref().into());
        }
        shown
    }
}

/// A document's scope, collection and key, as in a list of keys.
pub fn document(key: &[u8], collection: u32, manifest: &Manifest) -> Map<String, Value> {
    let mut shown = Map::new();
    if let Some((scope, collection)) = manifest.of_id(collection) {
        shown.insert("scope".into(), scope.name.as_str().into());
        shown.insert("collection".into(), collection.name.as_str().into());
    }
    shown.insert("id".into(), std::str::from_utf8(key).ok().into());
    shown.insert("encoded".into(), encoded(key).into());
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv::requests::Histogram;

    fn counts(us: u64, times: u64) -> PerClass<Counts> {
        let histogram = Histogram::default();
        histogram.add(us, times);
        let mut counts = PerClass::<Counts>::default();
        counts[Class::Read as usize].add(&histogram);
        counts
    }

    #[test]
    fn latencies_are_of_the_time_since_a_reading_that_is_not_too_new() {
        let (latency, start) = (Latency::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(latency.read_at(at(0), counts(20, 5)), Value::Null);
        assert_eq!(latency.read_at(at(500), counts(20, 6)), Value::Null);
        let read = latency.read_at(at(1000), counts(20, 8));
        assert_eq!((&read["overMs"], &read["classes"]["read"]["requests"]), (&json!(1000), &json!(3)));
        assert_eq!((&read["classes"]["read"]["p999Us"], &read["classes"].get("write")), (&json!(20), &None));
        // Another asks half a second later: a window of its own, and the first one's goes on from its own reading.
        assert_eq!(latency.read_at(at(1500), counts(20, 9))["overMs"], json!(1500));
        assert_eq!(latency.read_at(at(2000), counts(20, 9))["overMs"], json!(1000));
        let silent = latency.read_at(at(3000), counts(20, 9));
        assert_eq!(silent, json!({ "overMs": 1000, "classes": {} }));
        assert_eq!(latency.read_at(at(3000 + 61_000), counts(20, 10)), Value::Null, "too long ago");
        for ms in 0..1000 {
            latency.read_at(at(70_000 + ms * 100), counts(20, 10));
            assert!(latency.0.lock().unwrap().len() <= READINGS_MAX);
        }
    }

    #[test]
    fn keys_are_those_of_a_list() {
        let mut manifest = Manifest::default();
        manifest.add_scope("s").unwrap();
        manifest.add_collection("s", "c", 0, false).unwrap();
        let id = manifest.collection("s", "c").unwrap().id;
        let shown = document("<b>\u{1f600}\n".as_bytes(), id, &manifest);
        let encoded = "%3Cb%3E%F0%9F%98%80%0A";
        let expected = json!({ "scope": "s", "collection": "c", "id": "<b>\u{1f600}\n", "encoded": encoded });
        assert_eq!(Value::from(shown), expected);
        let shown = document(b"\xff\n", 99, &manifest);
        assert_eq!(Value::from(shown), json!({ "id": null, "encoded": "%FF%0A" }));
    }
}
