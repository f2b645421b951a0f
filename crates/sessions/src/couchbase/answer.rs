//! Writes answers: classic or flexible layout, with error contexts if negotiated.

use kv::{Document, Mutated, NodeContext, Outcome};
use wire::binary::response::{done, hit};
use wire::binary::{Header, Reply, Request, Status, datatype};
use wire::couchbase::{Feature, FeatureSet, error_context, server_duration};
use wire::dcp::Malformed;

use super::super::{Output, Peer};
use super::documents::Waiting;
use super::json;

/// Why a request is refused.
pub(super) struct Refusal(pub(super) Status, pub(super) &'static str);

impl Refusal {
    pub(super) fn invalid(why: &'static str) -> Self {
        Self(Status::EINVAL, why)
    }
}

impl From<Malformed> for Refusal {
    fn from(Malformed(why): Malformed) -> Self {
        Self::invalid(why)
    }
}

/// What all answers to one request have in common.
pub(super) struct Answer {
    header: Header,
    features: FeatureSet,
    duration: Option<u16>,
}

impl Answer {
    #[inline]
    pub(super) fn new(peer: &Peer, request: &Request<'_>, cx: &NodeContext) -> Self {
        Self::to_header(peer, &request.header, cx)
    }

    #[inline]
    pub(super) fn to_header(peer: &Peer, header: &Header, cx: &NodeContext) -> Self {
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

    /// Returns true if success is not answered.
    pub(super) fn is_quiet(&self) -> bool {
        self.header.opcode.is_quiet()
    }

    fn datatype_of(&self, bits: u8) -> u8 {
        bits & super::known_datatypes(self.features)
    }

    /// Success without further data.
    pub(super) fn success(&self, out: &mut Output) {
        out.bytes(self.reply(Status::SUCCESS).head(&[], 0, 0).as_bytes());
    }

    /// Success with a CAS, extras and a plain value.
    pub(super) fn value(&self, cas: u64, extras: &[u8], value: &[u8], out: &mut Output) {
        let reply = Reply { cas, ..self.reply(Status::SUCCESS) };
        out.bytes(reply.head(extras, 0, value.len()).as_bytes());
        out.bytes(value);
    }

    /// A JSON document of the server's own, with any status.
    pub(super) fn json(&self, status: Status, json: &str, out: &mut Output) {
        let datatype = if json.is_empty() { datatype::RAW } else { self.datatype_of(datatype::JSON) };
        let reply = Reply { datatype, ..self.reply(status) };
        out.bytes(reply.head(&[], 0, json.len()).as_bytes());
        out.bytes(json.as_bytes());
    }

    /// A plain value with a status other than success: SASL challenges.
    pub(super) fn status_value(&self, status: Status, value: &[u8], out: &mut Output) {
        out.bytes(self.reply(status).head(&[], 0, value.len()).as_bytes());
        out.bytes(value);
    }

    /// Returns true if the client accepts values as they are stored.
    #[inline]
    pub(super) fn takes_compressed(&self) -> bool {
        self.features.has(Feature::SNAPPY)
    }

    /// A document, with the CAS to show to the client.
    #[inline]
    pub(super) fn document(&self, key: &[u8], document: &Document<'_>, cas: u64, out: &mut Output) {
        let datatype =
            if self.features.has(Feature::JSON) { json::detected(document) } else { document.datatype() };
        let datatype = self.datatype_of(datatype);
        let flags = document.flags();
        let as_stored = self.takes_compressed();
        let value_len = if as_stored { document.stored().len() } else { document.value_len() };
        if self.duration.is_none() {
            out.bytes(&hit(&self.header, datatype, flags, cas, key.len(), value_len));
        } else {
            let reply = Reply { datatype, cas, ..self.reply(Status::SUCCESS) };
            out.bytes(reply.head(&flags.to_be_bytes(), key.len(), value_len).as_bytes());
        }
        if !key.is_empty() {
            out.bytes(key);
        }
        if as_stored {
            out.stored(document);
        } else {
            out.value(document);
        }
    }

    /// A document with its extended attributes, as it is stored if the client takes it so.
    pub(super) fn whole_document(&self, document: &Document<'_>, out: &mut Output) {
        let section = document.xattrs();
        if section.is_empty() {
            return self.document(&[], document, document.visible_cas(), out);
        }
        let datatype = self.datatype_of(json::detected(document)) | datatype::XATTR;
        let reply = Reply { datatype, cas: document.visible_cas(), ..self.reply(Status::SUCCESS) };
        let value_len = section.len() + document.value_len();
        out.bytes(reply.head(&document.flags().to_be_bytes(), 0, value_len).as_bytes());
        out.bytes(section);
        out.stored(document);
    }

    /// The head of the answer to a sub-document lookup of one path; `value_len` bytes follow.
    pub(super) fn fragment(&self, status: Status, cas: u64, value_len: usize, out: &mut Output) {
        let datatype = if value_len == 0 { datatype::RAW } else { self.datatype_of(datatype::JSON) };
        let reply = Reply { cas, datatype, ..self.reply(status) };
        out.bytes(reply.head(&[], 0, value_len).as_bytes());
    }

    /// Begins an answer whose status and length are known at its end; see [`Answer::close`].
    pub(super) fn open<'e>(&self, cas: u64, extras: &'e [u8], out: &mut Output) -> Open<'e> {
        let at = out.mark();
        out.bytes(Reply { cas, ..self.reply(Status::SUCCESS) }.head(extras, 0, 0).as_bytes());
        Open { at, cas, extras, before: out.len() }
    }

    /// Completes an answer with the bytes that were appended since it was begun.
    pub(super) fn close(&self, open: &Open<'_>, status: Status, out: &mut Output) {
        let value_len = out.len() - open.before;
        let head = Reply { cas: open.cas, ..self.reply(status) }.head(open.extras, 0, value_len);
        out.patch(open.at, head.as_bytes());
    }

    /// A successful change, with the mutation token if negotiated; quiet requests get no answer.
    #[inline]
    pub(super) fn mutated(&self, mutated: Mutated, value: &[u8], out: &mut Output) {
        self.mutated_as(Status::SUCCESS, mutated, value, out);
    }

    /// The same with another status of success.
    #[inline]
    pub(super) fn mutated_as(&self, status: Status, mutated: Mutated, value: &[u8], out: &mut Output) {
        if self.is_quiet() {
            return;
        }
        if self.features.has(Feature::MUTATION_SEQNO) {
            let mut token = [0; 16];
            token[..8].copy_from_slice(&mutated.vb_uuid.to_be_bytes());
            token[8..].copy_from_slice(&mutated.seqno.to_be_bytes());
            let reply = Reply { cas: mutated.cas, ..self.reply(status) };
            out.bytes(reply.head(&token, 0, value.len()).as_bytes());
        } else if self.duration.is_none() && value.is_empty() && status == Status::SUCCESS {
            out.bytes(&done(&self.header, mutated.cas));
        } else {
            let reply = Reply { cas: mutated.cas, ..self.reply(status) };
            out.bytes(reply.head(&[], 0, value.len()).as_bytes());
        }
        if !value.is_empty() {
            out.bytes(value);
        }
    }

    /// A status without further data.
    pub(super) fn status(&self, status: Status, out: &mut Output) {
        out.bytes(self.reply(status).head(&[], 0, 0).as_bytes());
    }

    /// An error with an explanatory sentence.
    #[cold]
    pub(super) fn error(&self, status: Status, context: &str, out: &mut Output) {
        if self.features.has(Feature::XERROR) {
            self.json(status, &error_context::context(context), out);
        } else {
            self.status(status, out);
        }
    }

    /// Error: the request has parts that its opcode does not allow.
    #[cold]
    pub(super) fn not_bare(&self, out: &mut Output) {
        self.error(Status::EINVAL, "The request must not have extras, key or value", out);
    }

    /// Error: an unknown collection or scope. Clients read from it which manifest was used.
    #[cold]
    pub(super) fn manifest_error(&self, status: Status, context: &str, manifest_uid: u64, out: &mut Output) {
        if self.features.has(Feature::XERROR) {
            self.json(status, &error_context::with_manifest(context, manifest_uid), out);
        } else {
            self.status(status, out);
        }
    }
}

/// An answer that was begun.
pub(super) struct Open<'e> {
    at: usize,
    cas: u64,
    extras: &'e [u8],
    /// Length of the output before its value.
    before: usize,
}

/// The answer to a request that waits for its outcome: a durable write, or SEQNO_PERSISTENCE.
pub struct Pending {
    answer: Answer,
    waiting: Waiting,
    received_ns: u64,
}

impl Pending {
    pub(super) fn new(answer: Answer, waiting: Waiting, cx: &NodeContext) -> Self {
        Self { answer, waiting, received_ns: cx.now.unix_ns }
    }

    pub(crate) fn complete(mut self, outcome: Outcome, cx: &NodeContext, out: &mut Output) {
        let answer = &mut self.answer;
        answer.duration = answer.duration.map(|_| duration_since(self.received_ns, cx));
        match outcome {
            Outcome::Durable(mutated) => {
                answer.mutated_as(self.waiting.status, mutated, &self.waiting.value, out);
            }
            Outcome::Persisted => answer.success(out),
            Outcome::Unpersisted => answer.error(Status::ETMPFAIL, "The seqno is not on disk yet", out),
            Outcome::Ambiguous | Outcome::Fetched(_) | Outcome::Watched | Outcome::Stirred => answer.error(
                Status::SYNC_WRITE_AMBIGUOUS,
                "The durability level was not reached in time: the write may still be done, or undone",
                out,
            ),
        }
    }
}

/// Time from the wake-up that received the request until now.
fn duration_since_wake_up(cx: &NodeContext) -> u16 {
    duration_since(cx.now.unix_ns, cx)
}

fn duration_since(received_ns: u64, cx: &NodeContext) -> u16 {
    match cx.clock_ns {
        Some(clock_ns) => server_duration::encode(clock_ns().saturating_sub(received_ns) / 1000),
        None => 0,
    }
}
