//! How a request is answered: classic or flexible layout, error contexts where they were negotiated.

use wire::binary::response::{done, hit};
use wire::binary::{Header, Reply, Request, Status, datatype};
use wire::couchbase::{Feature, FeatureSet, error_context, server_duration};

use super::super::{Output, Peer};
use crate::{Cx, Document, Mutated};

/// What all answers to one request have in common.
pub(super) struct Answer {
    header: Header,
    features: FeatureSet,
    duration: Option<u16>,
}

impl Answer {
    #[inline]
    pub(super) fn new(peer: &Peer, request: &Request<'_>, cx: &Cx) -> Self {
        Self::to_header(peer, &request.header, cx)
    }

    #[inline]
    pub(super) fn to_header(peer: &Peer, header: &Header, cx: &Cx) -> Self {
        let features = peer.couchbase.features;
        let duration = features.has(Feature::TRACING).then(|| duration_since_wake_up(cx));
        Self { header: *header, features, duration }
    }

    pub(super) fn features(&self) -> FeatureSet {
        self.features
    }

    #[inline]
    fn reply(&self, status: Status) -> Reply {
        Reply { duration: self.duration, ..Reply::to(&self.header, status) }
    }

    fn datatype_of(&self, bits: u8) -> u8 {
        if self.features.has(Feature::JSON) { bits & datatype::JSON } else { datatype::RAW }
    }

    /// Success, nothing else to say.
    pub(super) fn success(&self, out: &mut Output) {
        out.bytes(self.reply(Status::SUCCESS).head(&[], 0, 0).as_bytes());
    }

    /// Success with a CAS, extras and a plain value.
    pub(super) fn value(&self, cas: u64, extras: &[u8], value: &[u8], out: &mut Output) {
        let reply = Reply { cas, ..self.reply(Status::SUCCESS) };
        out.bytes(reply.head(extras, 0, value.len()).as_bytes());
        out.bytes(value);
    }

    /// A JSON document of our own, with another status than success where asked for.
    pub(super) fn json(&self, status: Status, json: &str, out: &mut Output) {
        let datatype = if json.is_empty() { datatype::RAW } else { self.datatype_of(datatype::JSON) };
        let reply = Reply { datatype, ..self.reply(status) };
        out.bytes(reply.head(&[], 0, json.len()).as_bytes());
        out.bytes(json.as_bytes());
    }

    /// A plain value with another status than success: SASL challenges.
    pub(super) fn status_value(&self, status: Status, value: &[u8], out: &mut Output) {
        out.bytes(self.reply(status).head(&[], 0, value.len()).as_bytes());
        out.bytes(value);
    }

    /// A document, with the CAS the client shall see.
    #[inline]
    pub(super) fn document(&self, key: &[u8], document: &Document<'_>, cas: u64, out: &mut Output) {
        let datatype = self.datatype_of(document.datatype());
        let (flags, value_len) = (document.flags(), document.value().len());
        if self.duration.is_none() {
            out.bytes(&hit(&self.header, datatype, flags, cas, key.len(), value_len));
        } else {
            let reply = Reply { datatype, cas, ..self.reply(Status::SUCCESS) };
            out.bytes(reply.head(&flags.to_be_bytes(), key.len(), value_len).as_bytes());
        }
        if !key.is_empty() {
            out.bytes(key);
        }
        out.value(document);
    }

    /// A change that succeeded; quiet requests get no answer. The mutation token goes with it where it was negotiated.
    #[inline]
    pub(super) fn mutated(&self, mutated: Mutated, value: &[u8], out: &mut Output) {
        if self.header.opcode.is_quiet() {
            return;
        }
        if self.features.has(Feature::MUTATION_SEQNO) {
            let mut token = [0; 16];
            token[..8].copy_from_slice(&mutated.vb_uuid.to_be_bytes());
            token[8..].copy_from_slice(&mutated.seqno.to_be_bytes());
            let reply = Reply { cas: mutated.cas, ..self.reply(Status::SUCCESS) };
            out.bytes(reply.head(&token, 0, value.len()).as_bytes());
        } else if self.duration.is_none() && value.is_empty() {
            out.bytes(&done(&self.header, mutated.cas));
        } else {
            let reply = Reply { cas: mutated.cas, ..self.reply(Status::SUCCESS) };
            out.bytes(reply.head(&[], 0, value.len()).as_bytes());
        }
        if !value.is_empty() {
            out.bytes(value);
        }
    }

    /// A status that says it all.
    pub(super) fn status(&self, status: Status, out: &mut Output) {
        out.bytes(self.reply(status).head(&[], 0, 0).as_bytes());
    }

    /// An error with a sentence for whoever looks into it.
    #[cold]
    pub(super) fn error(&self, status: Status, context: &str, out: &mut Output) {
        if self.features.has(Feature::XERROR) {
            self.json(status, &error_context::context(context), out);
        } else {
            self.status(status, out);
        }
    }

    /// An unknown collection or scope: clients read from it which manifest was asked.
    #[cold]
    pub(super) fn manifest_error(&self, status: Status, context: &str, out: &mut Output) {
        if self.features.has(Feature::XERROR) {
            self.json(status, &error_context::with_manifest(context, super::inquiry::MANIFEST_UID), out);
        } else {
            self.status(status, out);
        }
    }
}

/// From the wake-up that received the request until now.
fn duration_since_wake_up(cx: &Cx) -> u16 {
    match cx.clock_ns {
        Some(clock_ns) => server_duration::encode(clock_ns().saturating_sub(cx.now.unix_ns) / 1000),
        None => 0,
    }
}
