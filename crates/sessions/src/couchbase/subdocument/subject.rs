//! The document that a sub-document request is about, as it was read.

use std::cell::OnceCell;
use std::ops::Deref;

use kv::users::roles::Rights;
use kv::{Bucket, Deletion, Document, KvError, NodeContext, PinnedValue};
use wire::binary::{Status, datatype};
use wire::couchbase::subdocument::{Request, document_flags};
use wire::{snappy, subdocument};

use super::super::super::Output;
use super::super::documents::Operation;
use super::super::json;
use super::status_of;
use crate::LARGE_VALUE;
use crate::aside::IN_PLACE_BYTES;

/// Returns true if a request sees what is deleted. One that creates a deleted document does not replace another
/// unnoticed.
pub(super) fn sees_deleted(request: &Request<'_>) -> bool {
    let creates = request.has(document_flags::ADD) && request.has(document_flags::CREATE_AS_DELETED);
    creates || request.has(document_flags::ACCESS_DELETED)
}

/// Whether the document is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Missing,
    Live,
    /// Deleted, and its deletion can be looked up; it may have extended attributes.
    Deleted,
}

/// A copy of a short body, or a long one in its place.
enum Body {
    Copied(Vec<u8>),
    Pinned(PinnedValue),
}

impl Deref for Body {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Pinned(bytes) => bytes,
        }
    }
}

/// A document as it was read under one hold of the lock.
pub(super) struct Subject {
    pub(super) state: State,
    /// The CAS, even of a locked document.
    pub(super) cas: u64,
    /// The CAS that clients see.
    pub(super) visible_cas: u64,
    pub(super) seqno: u64,
    pub(super) flags: u32,
    pub(super) expiry: u32,
    pub(super) rev: u64,
    pub(super) datatype: u8,
    pub(super) vb_uuid: u64,
    /// Section of the extended attributes.
    pub(super) xattrs: Vec<u8>,
    /// Whether the user may know of its system attributes.
    pub(super) sees_system: bool,
    body: Body,
    is_json: OnceCell<Result<(), Status>>,
}

impl Subject {
    /// Reads the document for a request; a deleted one counts if the request sees those. Fails with
    /// [`KvError::TakesLong`] if more has to be read through than is done in place.
    pub(super) fn read(
        operation: &Operation<'_>,
        request: &Request<'_>,
        cx: &mut NodeContext,
    ) -> Result<Self, KvError> {
        let Operation { bucket, key, place, .. } = *operation;
        let sees_deleted = sees_deleted(request);
        let vb_uuid = bucket.vb_uuid(place.vb);
        let (mut subject, inflated_len) = bucket.with_entry(cx, key, place, |entry| {
            entry.glance();
            let read = match entry.document() {
                Some(document) => Some(Self::of(State::Live, &document, vb_uuid)),
                None if sees_deleted => entry
                    .with_shadow(|shadow| Self::of(State::Deleted, &shadow, vb_uuid))
                    .or_else(|| Some((Self::deleted(&entry.deletion()?, vb_uuid), None))),
                None => None,
            };
            entry.record_access();
            read.unwrap_or_else(|| (Self::missing(vb_uuid), None))
        })?;
        let text_bytes = inflated_len.unwrap_or(subject.body.len()) + subject.xattrs.len();
        if !cx.may_take_long && text_bytes.saturating_mul(request.specs.len()) > IN_PLACE_BYTES {
            return Err(KvError::TakesLong);
        }
        subject.sees_system = operation.may(Rights::SYSTEM_ATTRIBUTES);
        if let Some(inflated_len) = inflated_len {
            subject.inflate(inflated_len, bucket, cx)?;
        }
        Ok(subject)
    }

    /// A deletion that has left no attributes.
    fn deleted(deletion: &Deletion, vb_uuid: u64) -> Self {
        let Deletion { cas, seqno, rev } = *deletion;
        Self { state: State::Deleted, cas, visible_cas: cas, seqno, rev, ..Self::missing(vb_uuid) }
    }

    fn missing(vb_uuid: u64) -> Self {
        Self {
            state: State::Missing,
            cas: 0,
            visible_cas: 0,
            seqno: 0,
            flags: 0,
            expiry: 0,
            rev: 0,
            datatype: datatype::RAW,
            vb_uuid,
            xattrs: Vec::new(),
            sees_system: false,
            body: Body::Copied(Vec::new()),
            is_json: OnceCell::new(),
        }
    }

    /// Returns a copy of a document, and the length to inflate it to.
    fn of(state: State, document: &Document<'_>, vb_uuid: u64) -> (Self, Option<usize>) {
        let body = match document.pin() {
            Some(pinned) => Body::Pinned(pinned),
            None => Body::Copied(document.stored().to_vec()),
        };
        let subject = Self {
            state,
            cas: document.cas(),
            visible_cas: document.visible_cas(),
            seqno: document.seqno(),
            flags: document.flags(),
            expiry: if state == State::Live { document.expiry() } else { 0 },
            rev: document.rev(),
            datatype: document.datatype(),
            vb_uuid,
            xattrs: document.xattrs().to_vec(),
            sees_system: false,
            body,
            is_json: OnceCell::new(),
        };
        (subject, document.is_compressed().then(|| document.value_len()))
    }

    fn inflate(&mut self, inflated_len: usize, bucket: &Bucket, cx: &mut NodeContext) -> Result<(), KvError> {
        self.body = if inflated_len > LARGE_VALUE {
            let room = bucket.reserve_inflated(cx, inflated_len)?;
            Body::Pinned(Bucket::inflate_large(&self.body, room))
        } else {
            let mut inflated = vec![0; inflated_len];
            snappy::inflate(&self.body, &mut inflated);
            Body::Copied(inflated)
        };
        Ok(())
    }

    /// Returns the datatype bit JSON, if it was checked.
    pub(super) fn checked_datatype(&self) -> u8 {
        if self.datatype & datatype::SNAPPY == 0 { self.datatype & datatype::JSON } else { datatype::RAW }
    }

    /// Returns the datatype of the body if it stays as it is.
    pub(super) fn kept_datatype(&self) -> u8 {
        if self.checked_datatype() == datatype::JSON { datatype::JSON } else { json::of_long(self.body()) }
    }

    /// The document's bytes, whatever they are.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Appends bytes to an output; those of a long body from where they lie.
    pub(super) fn send(&self, bytes: &[u8], out: &mut Output) {
        let pinned = match &self.body {
            Body::Pinned(body) if bytes.len() > LARGE_VALUE => body.part(bytes),
            _ => None,
        };
        match pinned {
            Some(pinned) => out.pinned(pinned),
            None => out.bytes(bytes),
        }
    }

    /// The document, which must be JSON.
    pub(super) fn json(&self) -> Result<&[u8], Status> {
        let checked = self.is_json.get_or_init(|| {
            if self.checked_datatype() == datatype::JSON {
                return Ok(());
            }
            subdocument::check(self.body()).map(drop).map_err(status_of)
        });
        checked.map(|()| self.body())
    }

    /// Notes that the document has turned out to be JSON, so that nobody has to check it again.
    pub(super) fn note_json(&self, operation: &Operation<'_>, cx: &mut NodeContext) {
        if self.datatype & (datatype::JSON | datatype::SNAPPY) != 0 || self.is_json.get() != Some(&Ok(())) {
            return;
        }
        let Operation { bucket, key, place, .. } = *operation;
        // A document that has become unavailable meanwhile needs no note.
        let _ = bucket.with_entry(cx, key, place, |entry| {
            entry.glance();
            let same = entry.document().filter(|document| document.seqno() == self.seqno);
            if let Some(document) = same.filter(|document| !document.is_compressed()) {
                document.note_json();
            }
        });
    }
}
