//! Looking into buckets: keys and documents over HTTP, for people and scripts. Clients of the data ports have better.
//!
//! ```text
//!   GET                .../docs           keys in order, or a random sample        walk
//!   GET, PUT, DELETE   .../docs/KEY       one document                             look, change
//!   GET                .../prefixes       memory by prefixes of keys, estimated    prefixes
//!                         place: what path and query name, as bytes
//! ```
//! Keys are not in order anywhere: a page of them is found by a walk over the bucket, which has an upper bound. Work is
//! done on threads of its own, a few at a time, so `/health` is answered meanwhile; walks go one by one. All of this
//! needs a login, also where other reads need none: documents are data.

mod change;
mod look;
pub mod place;
mod prefixes;
mod walk;

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kv::key::{KEY_MAX, NAMED_KEY_MAX};
use kv::{Bucket, Document, Key, KvError, NodeContext};
use serde_json::{Value, json};

use crate::buckets::{invalid, refused};
use crate::login::Identity;
use crate::vbuckets::execute;
use crate::work::{Lane, Party};
use crate::{Console, Refusal};
use place::{Place, encoded};
pub use prefixes::show as prefixes;

/// Keys of a page, and most of them.
const LIMIT: u64 = 100;
const LIMIT_MAX: u64 = 1000;
/// How often a value that leaves memory again is fetched for one request.
const FETCHES_MAX: usize = 8;

/// Why a request about documents is refused.
pub(crate) enum Refused {
    /// By the console.
    Console(Refusal),
    /// By the engine.
    Engine(KvError),
    /// It is unknown whether a durable write will be done.
    Ambiguous,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Console(refusal)
    }
}

impl From<KvError> for Refused {
    fn from(error: KvError) -> Self {
        Self::Engine(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, error, reason) = match self {
            Self::Console(refusal) => return refused(refusal),
            Self::Engine(error) => answer(error),
            Self::Ambiguous => {
                let reason = "The write was not durable in time. It may still be done.";
                (StatusCode::GATEWAY_TIMEOUT, "ambiguous", reason)
            }
        };
        (status, Json(json!({ "error": error, "errors": { "_": reason } }))).into_response()
    }
}

/// Maps the engine's errors to statuses, words for programs, and sentences.
fn answer(error: KvError) -> (StatusCode, &'static str, &'static str) {
    match error {
        KvError::NotFound => (StatusCode::NOT_FOUND, "notFound", "There is no such document."),
        KvError::Exists => (
            StatusCode::PRECONDITION_FAILED,
            "exists",
            "The document has another version: somebody has changed it, or it exists already.",
        ),
        KvError::Locked => (StatusCode::LOCKED, "locked", "The document is locked by a client."),
        KvError::TooBig => (StatusCode::PAYLOAD_TOO_LARGE, "tooBig", "The value is too long."),
        KvError::NoMemory => (
            StatusCode::INSUFFICIENT_STORAGE,
            "noMemory",
            "The bucket's memory budget does not allow it now.",
        ),
        KvError::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "noSpace", "The disk is full."),
        KvError::NotResident => (
            StatusCode::SERVICE_UNAVAILABLE,
            "notResident",
            "The value is on disk, and there is no memory to fetch it now.",
        ),
        KvError::WarmingUp => {
            (StatusCode::SERVICE_UNAVAILABLE, "warmingUp", "The vBucket is being read from disk.")
        }
        KvError::NotActive => {
            (StatusCode::SERVICE_UNAVAILABLE, "notActive", "The vBucket is not active on this node.")
        }
        KvError::DurabilityImpossible => (
            StatusCode::SERVICE_UNAVAILABLE,
            "durabilityImpossible",
            "The bucket demands durable writes, and the vBucket's chains have too few nodes.",
        ),
        KvError::SyncWriteInProgress | KvError::ReCommit => {
            (StatusCode::CONFLICT, "syncWriteInProgress", "A durable write of the key is in progress.")
        }
        KvError::NoCollection => (StatusCode::NOT_FOUND, "noCollection", "There is no such collection."),
        KvError::BucketGone => (StatusCode::NOT_FOUND, "noBucket", "There is no such bucket."),
        KvError::ReadFailed => {
            (StatusCode::INTERNAL_SERVER_ERROR, "readFailed", "The value could not be read from disk.")
        }
        KvError::Damaged => {
            (StatusCode::INTERNAL_SERVER_ERROR, "damaged", "The vBucket's journal is damaged.")
        }
        // Of requests that there are not.
        KvError::NotStored
        | KvError::NotLocked
        | KvError::CasAhead
        | KvError::DeltaBadValue
        | KvError::TakesLong => {
            (StatusCode::INTERNAL_SERVER_ERROR, "unexpected", "The engine refused the request.")
        }
    }
}

/// `GET .../docs`: a list; with `key` in the query, one document.
pub async fn list(
    State(console): State<Console>,
    party: Party,
    identity: Extension<Identity>,
    uri: Uri,
) -> Response {
    match Place::of(&uri) {
        Ok(place) if place.key.is_some() => look::show(console, party, identity, place).await,
        Ok(place) => page(console, party, place).await,
        Err(refusal) => refused(refusal),
    }
}

/// `GET .../docs/KEY`.
pub async fn show(
    State(console): State<Console>,
    party: Party,
    identity: Extension<Identity>,
    uri: Uri,
) -> Response {
    match Place::of(&uri) {
        Ok(place) => look::show(console, party, identity, place).await,
        Err(refusal) => refused(refusal),
    }
}

/// `PUT .../docs/KEY`.
pub async fn put(
    State(console): State<Console>,
    party: Party,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match Place::of(&uri) {
        Ok(place) => change::put(console, party, place, headers, &body).await,
        Err(refusal) => refused(refusal),
    }
}

/// `DELETE .../docs/KEY`.
pub async fn delete(
    State(console): State<Console>,
    party: Party,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !body.is_empty() {
        return refused(invalid(
            "_",
            "A deletion takes no body. Its condition is If-Match, or cas in the query.",
        ));
    }
    match Place::of(&uri) {
        Ok(place) => change::delete(console, party, place, headers).await,
        Err(refusal) => refused(refusal),
    }
}

/// Executes what is about single documents, a few at a time.
async fn on_documents<T: Send + 'static>(
    console: &Console,
    party: &Party,
    f: impl FnOnce(&Console) -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let own = console.clone();
    console.work(Lane::Documents, party, "dm:document", move || f(&own)).await?
}

/// The bucket and the collection's id.
fn collection_of(console: &Console, place: &Place) -> Result<(Arc<Bucket>, u32), Refused> {
    let bucket = console.node.bucket(&place.bucket).ok_or(KvError::BucketGone)?;
    let (scope, name) = place.collection.as_ref().ok_or(KvError::NoCollection)?;
    let manifest = bucket.collections().manifest();
    let id = manifest.collection(scope, name).ok_or(KvError::NoCollection)?.id;
    Ok((bucket, id))
}

/// Refuses keys that no client can have.
fn check_key(key: Key<'_>) -> Result<(), Refused> {
    let most = if key.collection == kv::collections::DEFAULT_ID { KEY_MAX } else { NAMED_KEY_MAX };
    match key.bytes.len() {
        0 => Err(invalid("key", "A key is needed.").into()),
        length if length > most => {
            Err(invalid("key", format!("The key has {length} bytes. Allowed: 1 to {most}.")).into())
        }
        _ => Ok(()),
    }
}

/// Executes `f` on a key, and again once its value has been fetched from disk.
fn fetched<T>(
    console: &Console,
    bucket: &Arc<Bucket>,
    key: Key<'_>,
    at: kv::Place,
    mut f: impl FnMut(&mut NodeContext) -> Result<T, KvError>,
) -> Result<T, KvError> {
    if !bucket.serves(at.vb.0) {
        return Err(KvError::NotActive);
    }
    for _ in 0..FETCHES_MAX {
        let (done, result) = mpsc::channel();
        let tried = execute(console, |cx| {
            if bucket.is_gone() {
                return Err(KvError::BucketGone);
            }
            let tried = f(cx);
            if matches!(tried, Err(KvError::NotResident)) {
                let done = Box::new(move |result| {
                    // The send fails if who asked is gone.
                    let _ = done.send(result);
                });
                kv::persistence::fetch(bucket, cx, key, at, done);
            }
            tried
        });
        match tried {
            // Without an answer it is there by now.
            Err(KvError::NotResident) => result.recv().unwrap_or(Ok(()))?,
            tried => return tried,
        }
    }
    Err(KvError::NotResident)
}

/// What a list says of a key.
struct About {
    value_bytes: usize,
    expiry: u32,
    is_resident: bool,
}

impl About {
    fn of(document: &Document<'_>) -> Self {
        Self {
            value_bytes: document.noted_value_len(),
            expiry: document.expiry(),
            is_resident: document.is_resident(),
        }
    }
}

/// Which keys are wanted.
struct Wanted {
    prefix: Vec<u8>,
    after: Option<Vec<u8>>,
    limit: usize,
    /// A random sample of this many instead.
    sample: Option<u64>,
    visits_max: u64,
}

impl Wanted {
    fn of(place: &mut Place) -> Result<Self, Refusal> {
        let sample = place.take_number("sample", 1..=LIMIT_MAX)?;
        let others = ["after", "limit", "visits"];
        if let Some(field) = others.into_iter().find(|field| sample.is_some() && place.has(field)) {
            return Err(invalid(field, "A sample has neither an order to go on in nor another bound."));
        }
        let wanted = Self {
            prefix: place.take("prefix").unwrap_or_default(),
            after: place.take("after"),
            limit: usize::try_from(place.take_number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT)).unwrap_or(1),
            sample,
            visits_max: place.take_number("visits", 1..=walk::VISITS_MAX)?.unwrap_or(walk::VISITS_MAX),
        };
        place.end("prefix, after, limit, sample, visits")?;
        Ok(wanted)
    }

    fn takes(&self, key: &[u8]) -> bool {
        key.starts_with(&self.prefix) && self.after.as_ref().is_none_or(|after| key > after.as_slice())
    }
}

/// A page of keys.
async fn page(console: Console, party: Party, mut place: Place) -> Response {
    let wanted = match Wanted::of(&mut place) {
        Ok(wanted) => wanted,
        Err(refusal) => return refused(refusal),
    };
    match console.walk(&party, move |console| keys(&console, &place, &wanted)).await {
        Ok(Ok(document)) => Json(document).into_response(),
        Ok(Err(refused)) => refused.into_response(),
        Err(refusal) => refused(refusal),
    }
}

fn keys(console: &Console, place: &Place, wanted: &Wanted) -> Result<Value, Refused> {
    let (bucket, collection) = collection_of(console, place)?;
    let items = bucket.collection_items(collection);
    let mut found = BTreeMap::new();
    let mut has_more = false;
    let walked = match wanted.sample {
        Some(count) => {
            let (chance, most) = (walk::chance(count, items), usize::try_from(count).unwrap_or(usize::MAX));
            walk::sample(console, &bucket, chance, true, &mut |_, key, document| {
                if found.len() < most && key.collection == collection && wanted.takes(key.bytes) {
                    found.insert(key.bytes.to_vec(), About::of(document));
                }
                found.len() < most
            })?
        }
        None => walk::walk(console, &bucket, wanted.visits_max, &mut |key, document| {
            if key.collection != collection || !wanted.takes(key.bytes) {
                return;
            }
            let is_full = found.len() >= wanted.limit;
            if is_full && found.last_key_value().is_some_and(|(last, _)| key.bytes > last.as_slice()) {
                has_more = true;
            } else if found.insert(key.bytes.to_vec(), About::of(document)).is_none() && is_full {
                found.pop_last();
                has_more = true;
            }
        })?,
    };
    let next = found.last_key_value().filter(|_| has_more).map(|(key, _)| encoded(key));
    let keys: Vec<Value> = found.iter().map(|(key, about)| entry(key, about)).collect();
    Ok(json!({
        "keys": keys,
        "next": next,
        "complete": walked.is_complete,
        "visited": walked.visits,
        "closedVBuckets": walked.closed_vbuckets,
        "items": items,
    }))
}

fn entry(key: &[u8], about: &About) -> Value {
    json!({
        "id": std::str::from_utf8(key).ok(),
        "encoded": encoded(key),
        "valueBytes": about.value_bytes,
        "expiry": about.expiry,
        "resident": about.is_resident,
    })
}
