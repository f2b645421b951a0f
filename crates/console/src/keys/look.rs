//! Looking at one document. It is no access: neither its rank nor the counters of requests change.

use std::sync::Arc;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kv::users::roles::Rights;
use kv::{Bucket, Document, Key, KvError, NodeContext, PinnedValue};
use serde_json::{Map, Value, json};
use wire::binary::datatype;
use wire::{snappy, subdocument, xattrs};

use super::place::{Place, encoded};
use super::{Refused, collection_of, fetched, on_documents};
use crate::Console;
use crate::login::Identity;
use crate::work::Party;

/// Bytes of a value that are shown unless the request says otherwise: what can be stored over HTTP.
const SHOWN_BYTES: u64 = 64 << 10;
/// Most bytes that are shown.
const SHOWN_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of extended attributes that are shown.
const XATTRS_BYTES_MAX: usize = 64 << 10;

/// A document as it was read.
struct Look {
    cas: u64,
    is_locked: bool,
    flags: u32,
    expiry: u32,
    seqno: u64,
    revision: u64,
    datatype: u8,
    value_bytes: usize,
    stored_bytes: usize,
    item_bytes: usize,
    allocated_bytes: usize,
    was_resident: bool,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    has_more_xattrs: bool,
    stored: Stored,
}

/// The value as stored, without attributes.
enum Stored {
    Copied(Vec<u8>),
    Pinned(PinnedValue),
}

impl Stored {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Pinned(value) => value,
        }
    }
}

/// `GET .../docs/KEY`.
pub async fn show(
    console: Console,
    party: Party,
    Extension(identity): Extension<Identity>,
    mut place: Place,
) -> Response {
    let shown_bytes = match place.take_number("bytes", 1..=SHOWN_BYTES_MAX) {
        Ok(bytes) => usize::try_from(bytes.unwrap_or(SHOWN_BYTES)).unwrap_or_default(),
        Err(refusal) => return Refused::from(refusal).into_response(),
    };
    if let Err(refusal) = place.end("key, bytes") {
        return Refused::from(refusal).into_response();
    }
    let sees_system = identity.roles().on(&place.names()).contain(Rights::SYSTEM_ATTRIBUTES);
    let look = on_documents(&console, &party, move |console| {
        let (bucket, collection) = collection_of(console, &place)?;
        let bytes = place.key.clone().unwrap_or_default();
        let look = look(console, &bucket, Key { collection, bytes: &bytes }, sees_system)?;
        let cas = look.cas;
        Ok((cas, document(&bytes, look, shown_bytes)))
    });
    match look.await {
        Ok((cas, document)) => ([(header::ETAG, format!("\"{cas}\""))], Json(document)).into_response(),
        Err(refused) => refused.into_response(),
    }
}

fn look(console: &Console, bucket: &Arc<Bucket>, key: Key<'_>, sees_system: bool) -> Result<Look, KvError> {
    let at = bucket.locate(key);
    let mut was_resident = None;
    fetched(console, bucket, key, at, |cx: &mut NodeContext| {
        bucket.with_entry(cx, key, at, |entry| {
            entry.glance();
            let document = entry.document().ok_or(KvError::NotFound)?;
            let was_resident = *was_resident.get_or_insert_with(|| document.is_resident());
            Ok(Look::of(&document, was_resident, sees_system))
        })?
    })
}

impl Look {
    /// Reads a document under its vBucket's lock. Asks for the value if that is on disk.
    fn of(document: &Document<'_>, was_resident: bool, sees_system: bool) -> Self {
        let (mut xattrs, mut room, mut has_more_xattrs) = (Vec::new(), XATTRS_BYTES_MAX, false);
        for (name, value) in xattrs::pairs(document.xattrs()) {
            if xattrs::is_system(name) && !sees_system {
                continue;
            }
            match room.checked_sub(name.len() + value.len()) {
                Some(rest) => {
                    room = rest;
                    xattrs.push((name.to_vec(), value.to_vec()));
                }
                None => has_more_xattrs = true,
            }
        }
        let stored = match document.pin() {
            Some(value) => Stored::Pinned(value),
            None => Stored::Copied(document.stored().to_vec()),
        };
        Self {
            cas: document.visible_cas(),
            is_locked: document.is_locked(),
            flags: document.flags(),
            expiry: document.expiry(),
            seqno: document.seqno(),
            revision: document.rev(),
            datatype: document.datatype(),
            value_bytes: document.value_len(),
            stored_bytes: stored.bytes().len(),
            item_bytes: document.item_size(),
            allocated_bytes: document.footprint(),
            was_resident,
            xattrs,
            has_more_xattrs,
            stored,
        }
    }
}

/// The answer. CAS and numbers of 64 bits are text: JavaScript would round them.
fn document(key: &[u8], look: Look, shown_bytes: usize) -> Value {
    let inflated;
    let value = if look.datatype & datatype::SNAPPY == 0 {
        look.stored.bytes()
    } else {
        let mut room = vec![0; look.value_bytes];
        snappy::inflate(look.stored.bytes(), &mut room);
        inflated = room;
        &inflated
    };
    let xattrs: Map<String, Value> = look
        .xattrs
        .iter()
        .map(|(name, value)| {
            let text = || json!(String::from_utf8_lossy(value));
            let value = serde_json::from_slice(value).unwrap_or_else(|_| text());
            (String::from_utf8_lossy(name).into_owned(), value)
        })
        .collect();
    let mut document = json!({
        "id": std::str::from_utf8(key).ok(),
        "encoded": encoded(key),
        "cas": look.cas.to_string(),
        "locked": look.is_locked,
        "flags": look.flags,
        "expiry": look.expiry,
        "seqno": look.seqno.to_string(),
        "revision": look.revision.to_string(),
        "datatype": {
            "json": subdocument::check(value).is_ok(),
            "compressed": look.datatype & datatype::SNAPPY != 0,
            "xattrs": look.datatype & datatype::XATTR != 0,
        },
        "resident": look.was_resident,
        "valueBytes": look.value_bytes,
        "storedBytes": look.stored_bytes,
        "itemBytes": look.item_bytes,
        "allocatedBytes": look.allocated_bytes,
        "xattrs": xattrs,
        "xattrsTruncated": look.has_more_xattrs,
        "truncated": value.len() > shown_bytes,
    });
    let (name, shown) = shown(value, shown_bytes);
    document[name] = json!(shown);
    document
}

/// The first bytes of a value: as text if they are, else in base64.
fn shown(value: &[u8], most: usize) -> (&'static str, String) {
    let head = value.get(..most).unwrap_or(value);
    match std::str::from_utf8(head) {
        Ok(text) => ("value", text.to_owned()),
        // Cut within a character.
        Err(error) if error.error_len().is_none() && head.len() < value.len() => {
            let whole = head.get(..error.valid_up_to()).unwrap_or_default();
            ("value", String::from_utf8_lossy(whole).into_owned())
        }
        Err(_) => ("base64", STANDARD.encode(head)),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_value_is_cut_between_characters() {
        let text = |text: &str| ("value", text.to_owned());
        assert_eq!(shown("añb".as_bytes(), 9), text("añb"));
        assert_eq!(shown("añb".as_bytes(), 3), text("añ"));
        assert_eq!(shown("añb".as_bytes(), 2), text("a"));
        assert_eq!(shown(b"\xff\x00", 9), ("base64", "/wA=".to_owned()));
        // It ends within a character by itself: that is no text.
        assert_eq!(shown(b"a\xc3", 9), ("base64", "YcM=".to_owned()));
    }
}
