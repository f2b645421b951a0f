//! Range scans and samples of a vBucket (0xda to 0xdc), and what lists keys: GET_KEYS, GET_RANDOM_KEY.
//!
//! ```text
//!   CREATE    JSON: {"collection": "8", "range": {"start": BASE64, "end": BASE64}, "key_only": true}   answer: id 16
//!   CONTINUE  extras: id 16 | items 4 | milliseconds 4 | bytes 4 (0: no limit)
//!             answer: extras 4 (0: keys, 1: documents); keys, or
//!             flags 4 | expiry 4 | seqno 8 | CAS 8 | datatype 1 | key | value   each text behind its length in LEB128
//!   CANCEL    extras: id 16
//! ```
//! One answer has at most [`ANSWER_BYTES`] besides its last document, so that other requests get their turn: "more" and
//! another CONTINUE follow. A document that is on disk only ends an answer, unless it is its first: then the request
//! waits for it. Those after it are fetched meanwhile.

use std::ops::Bound;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kv::bucket::scan::{ScanError, ScanId, Selection, Taken};
use kv::collections::DEFAULT_ID;
use kv::users::roles::Rights;
use kv::{Bucket, Key, KvError, NodeContext, Unavailable, VbId};
use serde_json::Value;
use wire::binary::{Request, Status, datatype};
use wire::couchbase::collection_id;

use super::super::{Output, Peer};
use super::answer::Answer;
use super::{denied_on, documents, json, selected, serving, unavailable};

/// An answer ends after this many bytes.
const ANSWER_BYTES: usize = 256 << 10;
/// How many documents are fetched ahead.
const AHEAD: usize = 32;
/// Keys that GET_KEYS returns if the client does not say how many.
const KEYS_DEFAULT: u32 = 1000;
/// Most keys that GET_KEYS returns.
const KEYS_MAX: u32 = 10_000;

/// What is wrong with a request.
type Invalid = &'static str;

struct Wanted {
    collection: u32,
    keys_only: bool,
    selection: Selection,
    vb_uuid: Option<u64>,
    /// The seqno that must have been reached.
    seqno: u64,
}

fn bound(range: &Value, inclusive: &str, exclusive: &str) -> Result<Bound<Vec<u8>>, Invalid> {
    let decode = |value: &Value| {
        let text = value.as_str().ok_or("The bounds must be strings in base64")?;
        STANDARD.decode(text).map_err(|_| "The bounds must be strings in base64")
    };
    match (range.get(inclusive), range.get(exclusive)) {
        (Some(value), None) => decode(value).map(Bound::Included),
        (None, Some(value)) => decode(value).map(Bound::Excluded),
        _ => Err("The range must have one start and one end"),
    }
}

fn wanted(body: &[u8]) -> Result<Wanted, Invalid> {
    let body: Value = serde_json::from_slice(body).map_err(|_| "The value must be JSON")?;
    let collection = match body.get("collection") {
        None => DEFAULT_ID,
        Some(id) => {
            let id = id.as_str().and_then(|id| u32::from_str_radix(id.trim_start_matches("0x"), 16).ok());
            id.ok_or("The collection must be an id, in hexadecimal")?
        }
    };
    let keys_only = match body.get("key_only") {
        None => false,
        Some(value) => value.as_bool().ok_or("key_only must be true or false")?,
    };
    let selection = match (body.get("range"), body.get("sampling")) {
        (Some(range), None) => {
            Selection::Range(bound(range, "start", "excl_start")?, bound(range, "end", "excl_end")?)
        }
        (None, Some(sampling)) => {
            let number = |name| sampling.get(name).and_then(Value::as_u64);
            let count = number("samples").filter(|count| *count > 0).ok_or("samples must be at least 1")?;
            let seed = number("seed").unwrap_or(0);
            Selection::Sample { count: usize::try_from(count).unwrap_or(usize::MAX), seed }
        }
        _ => return Err("The value must have a range, or sampling"),
    };
    let (mut vb_uuid, mut seqno) = (None, 0);
    if let Some(snapshot) = body.get("snapshot_requirements") {
        let uuid = snapshot.get("vb_uuid").and_then(Value::as_str).and_then(|uuid| uuid.parse().ok());
        vb_uuid = Some(uuid.ok_or("vb_uuid must be a number, as text")?);
        seqno = snapshot.get("seqno").and_then(Value::as_u64).ok_or("seqno must be a number")?;
    }
    Ok(Wanted { collection, keys_only, selection, vb_uuid, seqno })
}

/// RANGE_SCAN_CREATE.
pub(super) fn create(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    if !request.key.is_empty() || !request.extras.is_empty() {
        return answer.error(Status::EINVAL, "The request must not have extras or a key", out);
    }
    let wanted = match wanted(body) {
        Ok(wanted) => wanted,
        Err(why) => return answer.error(Status::EINVAL, why, out),
    };
    let Some(bucket) = serving(peer, answer, request, cx, out) else { return };
    if !peer.may(Rights::READ, wanted.collection) {
        return denied_on(answer, &bucket, wanted.collection, out);
    }
    let vb = VbId(request.header.vbucket);
    if let Some(info) = bucket.vb_info(vb) {
        if wanted.vb_uuid.is_some_and(|uuid| uuid != info.uuid) {
            let why = "The vBucket has another history";
            return answer.error(Status::RANGE_SCAN_VB_UUID_NOT_EQUAL, why, out);
        }
        if wanted.seqno > info.high_seqno {
            return answer.error(Status::ETMPFAIL, "The vBucket has not reached the seqno", out);
        }
    }
    let user = user_of(peer);
    match bucket.create_scan(cx, &user, (vb, wanted.collection), wanted.keys_only, &wanted.selection) {
        Ok(id) => answer.value(0, &[], &id, out),
        Err(ScanError::Empty) => answer.status(Status::KEY_ENOENT, out),
        Err(ScanError::Busy) => {
            answer.error(Status::EBUSY, "There are too many scans, or they take too much memory", out);
        }
        Err(ScanError::Unavailable(why)) => unavailable(answer, &bucket, why, out),
    }
}

/// Whose scans the peer may continue and cancel.
fn user_of(peer: &Peer) -> Arc<str> {
    peer.user.clone().unwrap_or_default()
}

fn id_of(request: &Request<'_>) -> Option<ScanId> {
    request.extras.first_chunk().copied()
}

/// The document that a CONTINUE reads first, which must be in memory: its collection and key.
pub(super) fn next_wanted(peer: &Peer, request: &Request<'_>) -> Option<(u32, Box<[u8]>)> {
    peer.bucket.as_ref()?.scan_next(&user_of(peer), &id_of(request)?)
}

/// RANGE_SCAN_CONTINUE.
pub(super) fn proceed(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let (
        Some(id),
        &[_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, i0, i1, i2, i3, t0, t1, t2, t3, b0, b1, b2, b3],
    ) = (id_of(request), request.extras)
    else {
        let why = "The extras must be the scan's id and limits of items, milliseconds and bytes, 28 bytes";
        return answer.error(Status::EINVAL, why, out);
    };
    if !request.key.is_empty() || !body.is_empty() {
        return answer.error(Status::EINVAL, "The request must not have a key or a value", out);
    }
    let or_most = |limit: u32, most: usize| match limit {
        0 => most,
        limit => usize::try_from(limit).unwrap_or(usize::MAX).min(most),
    };
    let mut items_left = or_most(u32::from_be_bytes([i0, i1, i2, i3]), usize::MAX);
    let bytes_most = or_most(u32::from_be_bytes([b0, b1, b2, b3]), ANSWER_BYTES);
    let limit_ms = u64::from(u32::from_be_bytes([t0, t1, t2, t3]));
    let until_us = if limit_ms == 0 { u64::MAX } else { cx.fresh_us() + limit_ms * 1000 };
    let Some(bucket) = serving(peer, answer, request, cx, out) else { return };
    let user = user_of(peer);
    let mut scan = match bucket.take_scan(&user, &id) {
        Taken::Scan(scan) if !peer.may(Rights::READ, scan.collection) => {
            let collection = scan.collection;
            bucket.return_scan(&id, scan, cx.now.unix_s);
            return denied_on(answer, &bucket, collection, out);
        }
        Taken::Scan(scan) if scan.vb.0 == request.header.vbucket => scan,
        Taken::Scan(scan) => {
            bucket.return_scan(&id, scan, cx.now.unix_s);
            return answer.error(Status::EINVAL, "The scan is of another vBucket", out);
        }
        Taken::Busy => return answer.error(Status::EBUSY, "Another request continues the scan", out),
        Taken::Missing => return answer.error(Status::KEY_ENOENT, "There is no such scan", out),
    };
    let mark = out.mark();
    let has_documents = u32::from(!scan.keys_only).to_be_bytes();
    let head = answer.open(0, &has_documents, out);
    let first = out.len();
    let takes_compressed = answer.takes_compressed();
    let status = loop {
        let Some(text) = scan.key() else { break Status::RANGE_SCAN_COMPLETE };
        if items_left == 0 || out.len() - first >= bytes_most || cx.fresh_us() >= until_us {
            break Status::RANGE_SCAN_MORE;
        }
        if scan.keys_only {
            sized(text, out);
        } else {
            let key = Key { collection: scan.collection, bytes: text };
            match document(&bucket, key, scan.vb, takes_compressed, cx, out) {
                Ok(()) => {}
                Err(Unavailable::NotResident) => {
                    // Also where this is the first one: it was taken from memory since the request waited for it.
                    fetch_ahead(&bucket, key, &scan, cx);
                    break Status::RANGE_SCAN_MORE;
                }
                Err(why) => {
                    out.truncate(mark);
                    unavailable(answer, &bucket, why, out);
                    bucket.end_scan(&user, &id);
                    return;
                }
            }
        }
        items_left -= 1;
        scan.advance();
    };
    answer.close(&head, status, out);
    if status == Status::RANGE_SCAN_COMPLETE {
        bucket.end_scan(&user, &id);
    } else {
        bucket.return_scan(&id, scan, cx.now.unix_s);
    }
}

fn sized(text: &[u8], out: &mut Output) {
    let mut length = Vec::with_capacity(5);
    collection_id::encode(u32::try_from(text.len()).unwrap_or(u32::MAX), &mut length);
    out.bytes(&length);
    out.bytes(text);
}

/// Appends a document; nothing if it is gone.
fn document(
    bucket: &Bucket,
    key: Key<'_>,
    vb: VbId,
    takes_compressed: bool,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), Unavailable> {
    let mark = out.mark();
    let result = bucket.with_entry(cx, key, bucket.locate_in(key, vb), |entry| {
        entry.glance();
        let Some(document) = entry.document() else { return };
        if !document.is_resident() {
            // Asks for it.
            let _ = document.stored();
            return;
        }
        let mut bits = json::detected(&document) & !datatype::XATTR;
        if !takes_compressed {
            bits &= !datatype::SNAPPY;
        }
        out.bytes(&document.flags().to_be_bytes());
        out.bytes(&document.expiry().to_be_bytes());
        out.bytes(&document.seqno().to_be_bytes());
        out.bytes(&document.visible_cas().to_be_bytes());
        out.bytes(&[bits]);
        sized(key.bytes, out);
        let value_len = if takes_compressed { document.stored().len() } else { document.value_len() };
        let mut length = Vec::with_capacity(5);
        collection_id::encode(u32::try_from(value_len).unwrap_or(u32::MAX), &mut length);
        out.bytes(&length);
        if takes_compressed {
            out.stored(&document);
        } else {
            out.value(&document);
        }
    });
    if result.is_err() {
        out.truncate(mark);
        return result;
    }
    if out.has_compressed() && out.inflate(bucket, cx).is_err() {
        // Another time there may be room.
        out.truncate(mark);
        return Err(Unavailable::NotResident);
    }
    Ok(())
}

fn fetch_ahead(bucket: &Arc<Bucket>, key: Key<'_>, scan: &kv::bucket::scan::Scan, cx: &mut NodeContext) {
    let next = scan.ahead(AHEAD).map(|bytes| Key { bytes, ..key });
    for key in std::iter::once(key).chain(next) {
        let place = bucket.locate_in(key, scan.vb);
        kv::persistence::fetch(bucket, cx, key, place, Box::new(|_| {}));
    }
}

/// RANGE_SCAN_CANCEL.
pub(super) fn cancel(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let id =
        id_of(request).filter(|_| request.extras.len() == 16 && request.key.is_empty() && body.is_empty());
    let Some(id) = id else {
        return answer.error(Status::EINVAL, "The extras must be the scan's id, 16 bytes", out);
    };
    let Some(bucket) = serving(peer, answer, request, cx, out) else { return };
    if bucket.end_scan(&user_of(peer), &id) {
        answer.success(out);
    } else {
        answer.error(Status::KEY_ENOENT, "There is no such scan", out);
    }
}

/// GET_KEYS: keys of a vBucket in order, from the request's key on; each behind its length, 2 bytes. With collections
/// they have their collection's id in front, as the request's has.
pub(super) fn keys(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let count = match *request.extras {
        [] => KEYS_DEFAULT,
        [c0, c1, c2, c3] => u32::from_be_bytes([c0, c1, c2, c3]).min(KEYS_MAX),
        _ => return answer.error(Status::EINVAL, "The extras must be the count, 4 bytes, or nothing", out),
    };
    if !body.is_empty() {
        return answer.error(Status::EINVAL, "The request must not have a value", out);
    }
    let has_collections = peer.couchbase.collections;
    let start = if has_collections {
        let parts = collection_id::split(request.key);
        parts.map(|(collection, bytes)| Key { collection, bytes })
    } else {
        Some(Key::plain(request.key))
    };
    let Some(start) = start else {
        return answer.error(Status::EINVAL, "The key has no valid collection id", out);
    };
    let Some(bucket) = serving(peer, answer, request, cx, out) else { return };
    if !peer.may(Rights::READ, start.collection) {
        return denied_on(answer, &bucket, start.collection, out);
    }
    let mut prefix = Vec::new();
    if has_collections {
        collection_id::encode(start.collection, &mut prefix);
    }
    match bucket.keys_from(cx, VbId(request.header.vbucket), start, count as usize) {
        Ok(keys) if keys.is_empty() => answer.status(Status::KEY_ENOENT, out),
        Ok(keys) => {
            let mut value = Vec::new();
            for key in keys {
                let length = u16::try_from(prefix.len() + key.len()).unwrap_or(u16::MAX);
                value.extend(length.to_be_bytes());
                value.extend(&prefix);
                value.extend(key);
            }
            answer.value(0, &[], &value, out);
        }
        Err(why) => unavailable(answer, &bucket, why, out),
    }
}

/// GET_RANDOM_KEY: some document, with its key.
pub(super) fn random_key(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let collection = match *request.extras {
        [] => DEFAULT_ID,
        [c0, c1, c2, c3] => u32::from_be_bytes([c0, c1, c2, c3]),
        _ => {
            return answer.error(
                Status::EINVAL,
                "The extras must be a collection's id, 4 bytes, or nothing",
                out,
            );
        }
    };
    if !request.key.is_empty() || !body.is_empty() {
        return answer.error(Status::EINVAL, "The request must not have a key or a value", out);
    }
    let Some(bucket) = selected(peer, answer, out) else { return };
    if !peer.may(Rights::READ, collection) {
        return denied_on(answer, &bucket, collection, out);
    }
    if !bucket.has_collection(collection) {
        return unavailable(answer, &bucket, Unavailable::NoCollection, out);
    }
    let Some((vb, bytes)) = bucket.random_key(cx, collection) else {
        return answer.status(Status::KEY_ENOENT, out);
    };
    let key = Key { collection, bytes: &bytes };
    let place = bucket.locate_in(key, vb);
    let mut wire_key = Vec::new();
    if peer.couchbase.collections {
        collection_id::encode(collection, &mut wire_key);
    }
    wire_key.extend(&bytes);
    let read = bucket.read(cx, key, place, |document| match document {
        Some(document) => {
            answer.document(&wire_key, &document, document.visible_cas(), out);
            true
        }
        None => false,
    });
    match read {
        Ok(true) => {}
        Ok(false) => answer.status(Status::KEY_ENOENT, out),
        Err(Unavailable::NotResident) => {
            kv::persistence::fetch(&bucket, cx, key, place, Box::new(|_| {}));
            documents::refuse(answer, KvError::NotResident, out);
        }
        Err(why) => unavailable(answer, &bucket, why, out),
    }
}
