//! Couchbase KV: which requests are answered, and how; `docs/couchbase-kv.md` is the table for readers.
//!
//! ```text
//!   connected ──HELLO, SASL──> logged in ──SELECT_BUCKET──> data opcodes
//! ```
//! A request passes, in this order: login, frame infos, bucket, shape (extras, key, value), collection, vBucket. Each stage
//! has its own status, so that a client learns the first thing that is wrong. Every error with something to say carries a
//! JSON context where XERROR was granted.
//!
//! * [`handshake`]: HELLO, SASL, error map, bucket and cluster map;
//! * [`documents`]: everything that touches a document;
//! * [`inquiry`]: metadata, seqnos, collections.
//!
//! Answers come in the order of the requests. A node alone is its own majority: a durable write at level "majority" is
//! complete when it is in memory; persistence levels are refused by an ephemeral bucket.

mod answer;
mod documents;
mod handshake;
mod inquiry;

use wire::binary::{Error, ErrorKind, Opcode, Request, Status, datatype};
use wire::couchbase::frame_info::DurabilityLevel;
use wire::couchbase::{Feature, FeatureSet, FrameError, FrameInfos, collection_id};
use wire::sasl::Exchange;

use super::{Admission, At, Body, LARGE_VALUE, Output, Peer, Refusal};
use crate::key::KEY_MAX;
use crate::{BucketKind, Cx, Key, VbId};
use answer::Answer;

/// What HELLO grants. Nothing that does not work is in here.
pub const OFFERED: FeatureSet = FeatureSet::of(&[
    Feature::TCP_NODELAY,
    Feature::MUTATION_SEQNO,
    Feature::XERROR,
    Feature::SELECT_BUCKET,
    Feature::JSON,
    Feature::TRACING,
    Feature::ALT_REQUEST_SUPPORT,
    Feature::SYNC_REPLICATION,
    Feature::COLLECTIONS,
    Feature::PRESERVE_TTL,
    Feature::GET_CLUSTER_CONFIG_WITH_KNOWN_VERSION,
    Feature::DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP,
]);

/// What a connection has negotiated.
#[derive(Default)]
pub struct State {
    /// Collections granted: keys carry a collection id.
    pub collections: bool,
    /// All that HELLO granted.
    pub features: FeatureSet,
    /// What the client calls itself.
    pub agent: Option<Box<str>>,
    /// Revision of the cluster map this connection was sent last; 0 = none.
    map_revision: u64,
    /// A SCRAM login between challenge and proof.
    login: Option<Box<Exchange>>,
}

/// Whether the opcode's key names a document.
#[inline]
const fn names_document(opcode: Opcode) -> bool {
    matches!(
        opcode.0,
        0x00..=0x06 | 0x09 | 0x0c..=0x0f | 0x11..=0x16 | 0x19..=0x1a | 0x1c..=0x1e | 0x83 | 0x94 | 0x95 | 0xa0 | 0xa1
    )
}

const fn stores_body(opcode: Opcode) -> bool {
    matches!(opcode.0, 0x01..=0x03 | 0x0e..=0x0f | 0x11..=0x13 | 0x19..=0x1a)
}

/// See [`super::binary::key`].
#[inline]
pub(super) fn key<'a>(peer: &Peer, request: &Request<'a>) -> Option<Key<'a>> {
    if !names_document(request.header.opcode) {
        return None;
    }
    document_key(peer.couchbase.collections, request.key).ok()
}

/// What is wrong with a key.
enum KeyError {
    Empty,
    TooLong,
    CollectionId,
    UnknownCollection(u32),
}

#[inline]
fn document_key(collections: bool, wire_key: &[u8]) -> Result<Key<'_>, KeyError> {
    let bytes = if collections {
        match collection_id::split(wire_key) {
            Some((0, bytes)) => bytes,
            Some((id, _)) => return Err(KeyError::UnknownCollection(id)),
            None if wire_key.is_empty() => return Err(KeyError::Empty),
            None => return Err(KeyError::CollectionId),
        }
    } else {
        wire_key
    };
    if bytes.is_empty() {
        return Err(KeyError::Empty);
    }
    if bytes.len() > KEY_MAX {
        return Err(KeyError::TooLong);
    }
    Ok(Key::plain(bytes))
}

/// See [`super::binary::admit`].
#[inline]
pub(super) fn admit<'a>(peer: &Peer, request: &Request<'a>, body: usize) -> Admission<'a> {
    if body <= LARGE_VALUE {
        return Admission::Inline;
    }
    // A large body is taken only where nothing but the store itself can fail.
    if !stores_body(request.header.opcode) || body > peer.value_limit {
        return Admission::Refuse(Refusal::TooBig);
    }
    match (key(peer, request), &peer.user, &peer.bucket) {
        (Some(key), Some(_), Some(bucket)) if request.header.vbucket < bucket.vbuckets() => {
            Admission::Store(key)
        }
        _ => Admission::Refuse(Refusal::NotAllowed),
    }
}

/// Executes one request.
#[inline]
pub(super) fn execute(
    peer: &mut Peer,
    request: &Request<'_>,
    at: At,
    body: Body<'_>,
    cx: &mut Cx,
    out: &mut Output,
) {
    if peer.close {
        return;
    }
    let answer = Answer::new(peer, request, cx);
    if names_document(request.header.opcode) && peer.user.is_some() {
        return execute_on_document(peer, &answer, request, at, body, cx, out);
    }
    execute_other(peer, &answer, request, &body, cx, out);
}

#[inline]
fn execute_on_document(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    at: At,
    body: Body<'_>,
    cx: &mut Cx,
    out: &mut Output,
) {
    let infos = if request.framing.is_empty() {
        FrameInfos::default()
    } else {
        match frame_infos(peer, answer, request, out) {
            Some(infos) => infos,
            None => return,
        }
    };
    let Some(bucket) = peer.bucket.as_deref().filter(|bucket| !bucket.is_gone()) else {
        return answer.error(Status::NO_BUCKET, "No bucket is selected", out);
    };
    let key = match document_key(peer.couchbase.collections, request.key) {
        Ok(key) => key,
        Err(error) => return key_error(answer, &error, out),
    };
    if request.header.vbucket >= bucket.vbuckets() {
        return handshake::not_my_vbucket(peer, answer, cx, out);
    }
    let vb = VbId(request.header.vbucket);
    let place = at.filter(|place| place.vb == vb).unwrap_or_else(|| bucket.locate_in(key, vb));
    let target = documents::Target { bucket, key, place, value_limit: peer.value_limit };
    match request.header.opcode {
        Opcode::GET_META | Opcode::GETQ_META => inquiry::get_meta(&target, answer, request, &body, cx, out),
        Opcode::GET_REPLICA => handshake::not_my_vbucket(peer, answer, cx, out),
        _ => documents::execute(&target, answer, request, &infos, body, cx, out),
    }
}

/// What is not about one document.
#[cold]
fn execute_other(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &Body<'_>,
    cx: &mut Cx,
    out: &mut Output,
) {
    let Body::Inline(body) = *body else { return answer.error(Status::E2BIG, "The value is too long", out) };
    let is_bare = request.header.body_len as usize == request.framing.len();
    match request.header.opcode {
        Opcode::HELLO => return handshake::hello(peer, answer, request, body, out),
        Opcode::SASL_LIST_MECHS => return handshake::list_mechanisms(answer, is_bare, out),
        Opcode::SASL_AUTH => return handshake::authenticate(peer, answer, request, body, cx, out),
        Opcode::SASL_STEP => return handshake::step(peer, answer, request, body, cx, out),
        Opcode::GET_ERROR_MAP => return handshake::error_map(answer, request, body, out),
        Opcode::NOOP if is_bare => return answer.success(out),
        Opcode::VERSION if is_bare => {
            return answer.value(0, &[], cx.node.settings().version.as_bytes(), out);
        }
        Opcode::QUIT | Opcode::QUITQ if is_bare => {
            if request.header.opcode == Opcode::QUIT {
                answer.success(out);
            }
            peer.close = true;
            return;
        }
        Opcode::NOOP | Opcode::VERSION | Opcode::QUIT | Opcode::QUITQ => {
            return answer.error(Status::EINVAL, "The request must not have extras, key or value", out);
        }
        opcode if opcode.name().is_none() => {
            return answer.error(Status::UNKNOWN_COMMAND, "The opcode is not known", out);
        }
        _ => {}
    }
    if peer.user.is_none() {
        return answer.error(Status::EACCESS, "Log in first", out);
    }
    if !request.framing.is_empty() && frame_infos(peer, answer, request, out).is_none() {
        return;
    }
    match request.header.opcode {
        Opcode::SELECT_BUCKET => handshake::select_bucket(peer, answer, request, body, cx, out),
        Opcode::GET_CLUSTER_CONFIG => handshake::cluster_config(peer, answer, request, cx, out),
        Opcode::STAT => inquiry::statistics(peer, answer, request, body, cx, out),
        Opcode::OBSERVE_SEQNO => inquiry::observe_seqno(peer, answer, request, body, cx, out),
        Opcode::COLLECTIONS_GET_MANIFEST => inquiry::manifest(answer, is_bare, out),
        Opcode::COLLECTIONS_GET_ID => inquiry::collection_id(answer, request, body, out),
        Opcode::COLLECTIONS_GET_SCOPE_ID => inquiry::scope_id(answer, request, body, out),
        _ => answer.error(Status::NOT_SUPPORTED, "The operation is not supported", out),
    }
}

/// Opcodes that may carry a durability level and preserve-TTL.
const fn mutates(opcode: Opcode) -> bool {
    matches!(opcode.0, 0x01..=0x06 | 0x0e..=0x0f | 0x11..=0x16 | 0x19..=0x1a | 0x1c..=0x1e)
}

/// The request's frame infos, where they can be honoured; else the error is answered.
#[cold]
fn frame_infos(peer: &Peer, answer: &Answer, request: &Request<'_>, out: &mut Output) -> Option<FrameInfos> {
    let infos = match FrameInfos::parse(request.framing) {
        Ok(infos) => infos,
        Err(error) => {
            let status = match error {
                FrameError::Unknown(_) => Status::UNKNOWN_FRAME_INFO,
                _ => Status::EINVAL,
            };
            answer.error(status, &error.to_string(), out);
            return None;
        }
    };
    if infos.privileged {
        answer.error(Status::NOT_SUPPORTED, "Impersonation is not supported", out);
        return None;
    }
    if infos.stream_id.is_some() {
        answer.error(Status::EINVAL, "A stream id belongs to DCP", out);
        return None;
    }
    if (infos.durability.is_some() || infos.preserve_ttl) && !mutates(request.header.opcode) {
        answer.error(Status::EINVAL, "The operation takes neither durability nor preserve-TTL", out);
        return None;
    }
    let level = infos.durability.map(|durability| durability.level);
    let is_ephemeral =
        peer.bucket.as_deref().is_some_and(|bucket| bucket.settings().kind == BucketKind::Ephemeral);
    if is_ephemeral && level.is_some_and(|level| level != DurabilityLevel::Majority) {
        answer.error(Status::DURABILITY_INVALID_LEVEL, "An ephemeral bucket cannot persist", out);
        return None;
    }
    Some(infos)
}

#[cold]
fn key_error(answer: &Answer, error: &KeyError, out: &mut Output) {
    match error {
        KeyError::Empty => answer.error(Status::EINVAL, "The request must have a key", out),
        KeyError::TooLong => answer.error(Status::E2BIG, "The key is longer than 250 bytes", out),
        KeyError::CollectionId => answer.error(Status::EINVAL, "The key has no valid collection id", out),
        KeyError::UnknownCollection(id) => {
            answer.manifest_error(
                Status::UNKNOWN_COLLECTION,
                &format!("There is no collection {id:#x}"),
                out,
            );
        }
    }
}

/// See [`super::binary::refuse`]: the stages of [`execute`] without the body.
#[cold]
pub(super) fn refuse(
    peer: &mut Peer,
    request: &Request<'_>,
    refusal: Refusal,
    cx: &mut Cx,
    out: &mut Output,
) {
    if peer.close {
        return;
    }
    let answer = Answer::new(peer, request, cx);
    if peer.user.is_none() {
        return answer.error(Status::EACCESS, "Log in first", out);
    }
    if !stores_body(request.header.opcode) {
        return match request.header.opcode.name() {
            None => answer.error(Status::UNKNOWN_COMMAND, "The opcode is not known", out),
            Some(_) => answer.error(Status::E2BIG, "The value is too long for this operation", out),
        };
    }
    let Some(bucket) = peer.bucket.as_deref().filter(|bucket| !bucket.is_gone()) else {
        return answer.error(Status::NO_BUCKET, "No bucket is selected", out);
    };
    if let Err(error) = document_key(peer.couchbase.collections, request.key) {
        return key_error(&answer, &error, out);
    }
    if request.header.vbucket >= bucket.vbuckets() {
        return handshake::not_my_vbucket(peer, &answer, cx, out);
    }
    match refusal {
        Refusal::TooBig => {
            let text = format!("The value is longer than {} bytes", peer.value_limit);
            answer.error(Status::E2BIG, &text, out);
        }
        Refusal::NoMemory | Refusal::NotAllowed | Refusal::BadTrailer => {
            answer.error(Status::ETMPFAIL, "The bucket's memory budget does not allow the value now", out);
        }
    }
}

/// See [`super::binary::error`].
#[cold]
pub(super) fn error(peer: &mut Peer, error: &Error, cx: &mut Cx, out: &mut Output) {
    if peer.close {
        return;
    }
    let answer = Answer::to_header(peer, &error.header, cx);
    match error.kind {
        ErrorKind::Magic => peer.close = true,
        ErrorKind::Lengths => answer.error(Status::EINVAL, "Extras and key are longer than the body", out),
        ErrorKind::KeyTooLong => answer.error(Status::E2BIG, "The key is longer than 250 bytes", out),
        ErrorKind::FrameTooBig => answer.error(Status::E2BIG, "The frame is too long", out),
    }
}

/// Datatype bits a client may send: JSON once granted, nothing else.
#[inline]
const fn datatype_is_valid(features: FeatureSet, bits: u8) -> bool {
    bits == datatype::RAW || (bits == datatype::JSON && features.has(Feature::JSON))
}
