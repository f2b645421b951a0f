//! Couchbase KV: which requests are answered, and how; `docs/couchbase-kv.md` has the table.
//!
//! ```text
//!   connected ──HELLO, SASL──> logged in ──SELECT_BUCKET──> data opcodes
//! ```
//! A request is checked in this order: login, opcode, frame infos, bucket, key, vBucket, rights, extras and value,
//! collection.
//! Each stage has its own status, so that a client learns the first thing that is wrong. Errors with an explanation
//! carry a JSON context if XERROR was granted.
//!
//! * [`handshake`]: HELLO, SASL, error map, bucket and cluster map;
//! * [`documents`]: everything that touches a document; [`subdocument`]: at paths in it; [`incoming`]: the values that
//!   clients send;
//! * [`json`]: which documents are JSON;
//! * [`inquiry`]: metadata and seqnos; [`manifest`]: scopes and collections; [`scan`]: many documents;
//! * [`with_meta`]: changes of other clusters;
//! * [`dcp`]: change streams; [`link`]: those that this node copies from another.
//!
//! A single node is its own majority: a durable write at level "majority" is complete once it is in memory. An
//! ephemeral bucket refuses persistence levels.

mod answer;
mod dcp;
mod documents;
mod handshake;
mod incoming;
mod inquiry;
mod json;
mod link;
mod manifest;
mod map_news;
mod scan;
mod subdocument;
mod vbuckets;
mod with_meta;

use std::sync::Arc;

use answer::Answer;
pub use answer::Pending;
pub(super) use dcp::{Producer, may_follow};
use documents::{Executed, Operation, Waiting};
use kv::collections::DEFAULT_ID;
use kv::key::{KEY_MAX, NAMED_KEY_MAX};
use kv::{Bucket, BucketKind, Durability, Key, KvError, NodeContext, Place, Unavailable, VbId};
pub use link::Link;
pub(super) use map_news::{MapNews, tell_of_map};
use wire::binary::{Error, ErrorKind, Opcode, Request, Status, datatype};
use wire::couchbase::frame_info::DurabilityLevel;
use wire::couchbase::{Feature, FeatureSet, FrameError, FrameInfos, collection_id};
use wire::sasl::Exchange;

use super::waits::Touch;
use super::{Admission, At, Body, LARGE_VALUE, Output, Peer, Refusal, opcodes};

/// The features that HELLO grants; all of them work.
pub const OFFERED: FeatureSet = FeatureSet::of(&[
    Feature::TCP_NODELAY,
    Feature::MUTATION_SEQNO,
    Feature::XATTR,
    Feature::XERROR,
    Feature::DUPLEX,
    Feature::CLUSTERMAP_CHANGE_NOTIFICATION,
    Feature::CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF,
    Feature::UNORDERED_EXECUTION,
    Feature::SELECT_BUCKET,
    Feature::SNAPPY,
    Feature::JSON,
    Feature::TRACING,
    Feature::ALT_REQUEST_SUPPORT,
    Feature::SYNC_REPLICATION,
    Feature::COLLECTIONS,
    Feature::PRESERVE_TTL,
    Feature::VATTR,
    Feature::SUBDOC_CREATE_AS_DELETED,
    Feature::SUBDOC_DOCUMENT_MACRO_SUPPORT,
    Feature::SUBDOC_REPLACE_BODY_WITH_XATTR,
    Feature::SUBDOC_REPLICA_READ,
    Feature::GET_CLUSTER_CONFIG_WITH_KNOWN_VERSION,
    Feature::DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP,
    Feature::SUBDOC_ALLOWS_ACCESS_ON_MULTIPLE_XATTR_KEYS,
    Feature::SUBDOC_BINARY_XATTR,
]);

/// What a connection has negotiated.
#[derive(Default)]
pub struct State {
    /// Collections granted: keys carry a collection id.
    pub collections: bool,
    /// All that HELLO granted.
    pub features: FeatureSet,
    /// The client's name for itself.
    pub agent: Option<Box<str>>,
    /// Revision of the last cluster map sent on this connection; 0 = none.
    map_revision: u64,
    /// A SCRAM login between challenge and proof.
    login: Option<Box<Exchange>>,
    /// The streams of a DCP connection.
    pub(super) producer: Option<Box<Producer>>,
    /// Of a connection that this node has made: what it copies.
    pub(super) link: Option<Box<Link>>,
    /// Wants to be told of new cluster maps.
    pub(super) map_news: Option<Box<MapNews>>,
}

/// See [`super::binary::key`].
#[inline]
pub(super) fn key<'a>(peer: &Peer, request: &Request<'a>) -> Option<Key<'a>> {
    if !opcodes::has_couchbase_key(request.header.opcode) {
        return None;
    }
    document_key(peer.couchbase.collections, request.key).ok()
}

/// See [`super::request::Request::scanned_key`].
pub(super) fn scanned_key(peer: &Peer, request: &Request<'_>) -> Option<(u32, Box<[u8]>, VbId)> {
    if request.header.opcode != Opcode::RANGE_SCAN_CONTINUE {
        return None;
    }
    let vb = VbId(request.header.vbucket);
    let serves = peer.bucket.as_ref().is_some_and(|bucket| bucket.serves(vb.0));
    let (collection, key) = scan::next_wanted(peer, request).filter(|_| serves)?;
    Some((collection, key, vb))
}

/// What is wrong with a key.
enum KeyError {
    Empty,
    TooLong,
    CollectionId,
}

#[inline]
fn document_key(collections: bool, wire_key: &[u8]) -> Result<Key<'_>, KeyError> {
    let key = if collections {
        match collection_id::split(wire_key) {
            Some((collection, bytes)) => Key { collection, bytes },
            None if wire_key.is_empty() => return Err(KeyError::Empty),
            None => return Err(KeyError::CollectionId),
        }
    } else {
        Key::plain(wire_key)
    };
    if key.bytes.is_empty() {
        return Err(KeyError::Empty);
    }
    // Most keys are shorter than either.
    if key.bytes.len() > NAMED_KEY_MAX && (key.collection != DEFAULT_ID || key.bytes.len() > KEY_MAX) {
        return Err(KeyError::TooLong);
    }
    Ok(key)
}

/// See [`super::binary::admit`].
#[inline]
pub(super) fn admit<'a>(peer: &Peer, request: &Request<'a>, body: usize) -> Admission<'a> {
    if body <= LARGE_VALUE {
        return Admission::Inline;
    }
    // A large body is accepted only if nothing but the store itself can fail.
    if !opcodes::stores_body(request.header.opcode) || body > peer.value_limit {
        return Admission::Refuse(Refusal::TooBig);
    }
    match (key(peer, request), &peer.user, &peer.bucket) {
        (Some(key), Some(_), Some(bucket))
            if bucket.serves(request.header.vbucket) && may_touch(peer, request, key) =>
        {
            Admission::Store(key)
        }
        _ => Admission::Refuse(Refusal::NotAllowed),
    }
}

/// Returns true if the request is about what a replica has.
pub(super) fn reads_replica(request: &Request<'_>) -> bool {
    match request.header.opcode {
        Opcode::GET_REPLICA | Opcode::GET_EX_REPLICA => true,
        opcode => opcodes::is_subdocument(opcode) && wire::couchbase::subdocument::reads_replica(request),
    }
}

/// Returns true if the vBucket is here in the state that the request is for.
#[inline]
fn serves(bucket: &Bucket, request: &Request<'_>) -> bool {
    let vb = request.header.vbucket;
    if reads_replica(request) { bucket.serves_copy(vb) } else { bucket.serves(vb) }
}

/// Returns true if the user has the rights that a request for this document needs.
#[inline]
fn may_touch(peer: &Peer, request: &Request<'_>, key: Key<'_>) -> bool {
    peer.may(opcodes::needed_rights(request.header.opcode), key.collection)
}

#[cold]
fn denied(answer: &Answer, out: &mut Output) {
    answer.error(Status::EACCESS, "The user's roles do not allow this here", out);
}

/// The same for a collection; of one that is not there the client has to learn that it is gone.
#[cold]
fn denied_on(answer: &Answer, bucket: &Bucket, collection: u32, out: &mut Output) {
    if !bucket.has_collection(collection) {
        return unavailable(answer, bucket, Unavailable::NoCollection, out);
    }
    denied(answer, out);
}

/// See [`super::binary::execute`].
#[inline]
pub(super) fn execute(
    peer: &mut Peer,
    request: &Request<'_>,
    at: At,
    body: Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    if peer.close {
        return Ok(());
    }
    let answer = Answer::new(peer, request, cx);
    if opcodes::has_couchbase_key(request.header.opcode) && peer.user.is_some() {
        return execute_on_document(peer, answer, request, at, body, cx, out);
    }
    if !cx.may_take_long && opcodes::takes_long(request.header.opcode) {
        return Err(KvError::TakesLong);
    }
    execute_other(peer, &answer, request, &body, cx, out);
    Ok(())
}

#[inline]
fn execute_on_document(
    peer: &mut Peer,
    answer: Answer,
    request: &Request<'_>,
    at: At,
    body: Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    let infos = if request.framing.is_empty() {
        FrameInfos::default()
    } else {
        match frame_infos(peer, &answer, request, out) {
            Some(infos) => infos,
            None => return Ok(()),
        }
    };
    let Some(bucket) = peer.bucket.as_deref().filter(|bucket| !bucket.is_gone()) else {
        answer.error(Status::NO_BUCKET, "No bucket is selected", out);
        return Ok(());
    };
    let key = match document_key(peer.couchbase.collections, request.key) {
        Ok(key) => key,
        Err(error) => {
            key_error(&answer, &error, out);
            return Ok(());
        }
    };
    if !serves(bucket, request) {
        handshake::not_my_vbucket(peer, &answer, cx, out);
        return Ok(());
    }
    if !may_touch(peer, request, key) {
        denied_on(&answer, bucket, key.collection, out);
        return Ok(());
    }
    let vb = VbId(request.header.vbucket);
    let place = at.filter(|place| place.vb == vb).unwrap_or_else(|| bucket.locate_in(key, vb));
    let durability = required_durability(bucket, request, &infos).map(|asked| Durability {
        level: asked.level,
        timeout_ms: asked.timeout_ms,
        cookie: peer.cookie(cx),
    });
    let operation = Operation {
        bucket,
        key,
        place,
        value_limit: peer.value_limit,
        durability,
        answer: &answer,
        request,
        infos: &infos,
        has_value: !matches!(body, Body::Inline([])),
        access: &peer.access,
    };
    match request.header.opcode {
        Opcode::GET_META | Opcode::GETQ_META => inquiry::get_meta(&operation, cx, out)?,
        Opcode::SET_WITH_META
        | Opcode::SETQ_WITH_META
        | Opcode::ADD_WITH_META
        | Opcode::ADDQ_WITH_META
        | Opcode::DEL_WITH_META
        | Opcode::DELQ_WITH_META
        | Opcode::MUTATE_WITH_META => operation.with_meta(&body, cx, out)?,
        Opcode::RETURN_META => operation.return_meta(body, cx, out)?,
        _ => match operation.execute(body, cx, out)? {
            Executed::Answered => {}
            Executed::Waits(waiting) => wait(peer, answer, &infos, durability, place, waiting, cx),
        },
    }
    Ok(())
}

/// Returns the durability that the request asks for, or the bucket's least one if that is higher.
#[inline]
fn required_durability(
    bucket: &Bucket,
    request: &Request<'_>,
    infos: &FrameInfos,
) -> Option<wire::couchbase::Durability> {
    let asked = infos.durability;
    match bucket.least_durability().level() {
        None => asked,
        Some(least) => at_least(least, asked, request.header.opcode),
    }
}

/// Returns true if a request must become more durable than memory before it is answered.
pub(super) fn is_durable(peer: &Peer, request: &Request<'_>) -> bool {
    opcodes::may_be_durable(request.header.opcode)
        && peer.bucket.as_ref().is_some_and(|bucket| {
            FrameInfos::parse(request.framing)
                .is_ok_and(|infos| required_durability(bucket, request, &infos).is_some())
        })
}

#[cold]
fn at_least(
    least: DurabilityLevel,
    asked: Option<wire::couchbase::Durability>,
    opcode: Opcode,
) -> Option<wire::couchbase::Durability> {
    if !opcodes::may_be_durable(opcode) {
        return asked;
    }
    Some(wire::couchbase::Durability {
        level: asked.map_or(least, |asked| asked.level.max(least)),
        timeout_ms: asked.and_then(|asked| asked.timeout_ms),
    })
}

/// Makes the answer to a durable write wait.
#[cold]
fn wait(
    peer: &mut Peer,
    answer: Answer,
    infos: &FrameInfos,
    durability: Option<Durability>,
    place: Place,
    waiting: Waiting,
    cx: &NodeContext,
) {
    let Some(durability) = durability else { return };
    let touch = if infos.barrier {
        Touch::Everything
    } else if peer.is_unordered() && !answer.is_quiet() {
        Touch::Nothing
    } else {
        Touch::Key(place.hash)
    };
    peer.wait(durability.cookie, touch, Pending::new(answer, waiting, cx));
}

/// What a request touches under unordered execution, if it has no barrier and does not change the session; `None`: the
/// key it names.
///
/// The answer to a request implies that earlier quiet requests without an answer are done. So nothing overtakes a quiet
/// request, and quiet requests of one key stay in order. Many batches end with a NOOP, which waits for all before it.
/// Other requests may overtake one another. A client that waits for a durable write may itself have to change the
/// chains that the write waits for, so SET_VBUCKET and DEL_VBUCKET are executed at once, whatever waits. So is
/// SEQNO_PERSISTENCE, which nothing should wait behind for long.
pub(super) fn touch_unordered(peer: &Peer, opcode: Opcode) -> Option<Touch> {
    let waits_for_quiet = || peer.waits.as_ref().is_some_and(|waits| waits.has_keyed());
    match opcode {
        Opcode::NOOP => Some(Touch::Everything),
        Opcode::SET_VBUCKET | Opcode::DEL_VBUCKET | Opcode::SEQNO_PERSISTENCE => Some(Touch::Nothing),
        quiet if quiet.is_quiet() => None,
        _ if waits_for_quiet() => Some(Touch::Everything),
        _ => Some(Touch::Nothing),
    }
}

/// Executes requests that do not concern a single document.
#[cold]
fn execute_other(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let Body::Inline(body) = *body else { return answer.error(Status::E2BIG, "The value is too long", out) };
    let is_bare = request.header.body_len as usize == request.framing.len();
    match request.header.opcode {
        Opcode::HELLO => return handshake::hello(peer, answer, request, body, cx, out),
        Opcode::SASL_LIST_MECHS => return handshake::list_mechanisms(peer, answer, is_bare, out),
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
            return answer.not_bare(out);
        }
        opcode if opcode.name().is_none() => {
            return answer.error(Status::UNKNOWN_COMMAND, "The opcode is not known", out);
        }
        _ => {}
    }
    if peer.user.is_none() {
        return answer.error(Status::EACCESS, "Log in first", out);
    }
    if !is_query(request.header.opcode) {
        return answer.error(Status::NOT_SUPPORTED, "The operation is not supported", out);
    }
    if !request.framing.is_empty() && frame_infos(peer, answer, request, out).is_none() {
        return;
    }
    match request.header.opcode {
        Opcode::SELECT_BUCKET => handshake::select_bucket(peer, answer, request, body, cx, out),
        Opcode::GET_CLUSTER_CONFIG => handshake::cluster_config(peer, answer, request, cx, out),
        Opcode::SET_VBUCKET => vbuckets::set(peer, answer, request, body, cx, out),
        Opcode::GET_VBUCKET | Opcode::GET_FAILOVER_LOG | Opcode::DCP_GET_FAILOVER_LOG => {
            vbuckets::ask(peer, answer, request, is_bare, cx, out);
        }
        Opcode::DEL_VBUCKET => vbuckets::delete(peer, answer, request, cx, out),
        Opcode::STAT => inquiry::statistics(peer, answer, request, body, cx, out),
        Opcode::OBSERVE => inquiry::observe(peer, answer, request, body, cx, out),
        Opcode::OBSERVE_SEQNO => inquiry::observe_seqno(peer, answer, request, body, cx, out),
        Opcode::SEQNO_PERSISTENCE => inquiry::await_persistence(peer, answer, request, body, cx, out),
        Opcode::RANGE_SCAN_CREATE => scan::create(peer, answer, request, body, cx, out),
        Opcode::RANGE_SCAN_CONTINUE => scan::proceed(peer, answer, request, body, cx, out),
        Opcode::RANGE_SCAN_CANCEL => scan::cancel(peer, answer, request, body, cx, out),
        Opcode::GET_KEYS => scan::keys(peer, answer, request, body, cx, out),
        Opcode::GET_RANDOM_KEY => scan::random_key(peer, answer, request, body, cx, out),
        Opcode::COLLECTIONS_GET_MANIFEST => manifest::get(peer, answer, is_bare, out),
        Opcode::COLLECTIONS_GET_ID => manifest::collection_id(peer, answer, request, body, out),
        Opcode::COLLECTIONS_GET_SCOPE_ID => manifest::scope_id(peer, answer, request, body, out),
        Opcode::GET_ALL_VB_SEQNOS => dcp::all_seqnos(peer, answer, request, body, cx, out),
        Opcode::DCP_OPEN => dcp::open(peer, answer, request, body, cx, out),
        Opcode::DCP_CONTROL => dcp::control(peer, answer, request, body, cx, out),
        Opcode::DCP_STREAM_REQ => dcp::stream(peer, answer, request, body, cx, out),
        Opcode::DCP_CLOSE_STREAM => dcp::close(peer, answer, request, is_bare, out),
        Opcode::DCP_BUFFER_ACKNOWLEDGEMENT => dcp::acknowledge_bytes(peer, answer, request, out),
        Opcode::DCP_SEQNO_ACKNOWLEDGED => dcp::acknowledge_seqno(peer, answer, request, cx, out),
        _ => answer.error(Status::NOT_SUPPORTED, "The operation is not supported", out),
    }
}

/// The selected bucket, if the user has a right there; otherwise the error has been answered.
fn selected(peer: &Peer, answer: &Answer, out: &mut Output) -> Option<Arc<Bucket>> {
    let bucket = peer.bucket.clone().filter(|bucket| !bucket.is_gone());
    if bucket.is_none() {
        answer.error(Status::NO_BUCKET, "No bucket is selected", out);
    } else if !peer.has_access() {
        denied(answer, out);
        return None;
    }
    bucket
}

/// The selected bucket, if it serves the request's vBucket; otherwise the error has been answered.
fn serving(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    cx: &NodeContext,
    out: &mut Output,
) -> Option<Arc<Bucket>> {
    let bucket = selected(peer, answer, out)?;
    if !bucket.serves(request.header.vbucket) {
        handshake::not_my_vbucket(peer, answer, cx, out);
        return None;
    }
    Some(bucket)
}

fn unavailable(answer: &Answer, bucket: &Bucket, why: Unavailable, out: &mut Output) {
    if why == Unavailable::NoCollection {
        let uid = bucket.collections().uid();
        return answer.manifest_error(Status::UNKNOWN_COLLECTION, "There is no such collection", uid, out);
    }
    documents::refuse(answer, why.into(), out);
}

/// Returns true for the opcodes that [`execute_other`] answers after the login.
const fn is_query(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::SELECT_BUCKET
            | Opcode::GET_CLUSTER_CONFIG
            | Opcode::SET_VBUCKET
            | Opcode::GET_VBUCKET
            | Opcode::GET_FAILOVER_LOG
            | Opcode::DCP_GET_FAILOVER_LOG
            | Opcode::DEL_VBUCKET
            | Opcode::STAT
            | Opcode::OBSERVE
            | Opcode::OBSERVE_SEQNO
            | Opcode::SEQNO_PERSISTENCE
            | Opcode::RANGE_SCAN_CREATE
            | Opcode::RANGE_SCAN_CONTINUE
            | Opcode::RANGE_SCAN_CANCEL
            | Opcode::GET_KEYS
            | Opcode::GET_RANDOM_KEY
            | Opcode::COLLECTIONS_GET_MANIFEST
            | Opcode::COLLECTIONS_GET_ID
            | Opcode::COLLECTIONS_GET_SCOPE_ID
            | Opcode::GET_ALL_VB_SEQNOS
            | Opcode::DCP_OPEN
            | Opcode::DCP_CONTROL
            | Opcode::DCP_STREAM_REQ
            | Opcode::DCP_CLOSE_STREAM
            | Opcode::DCP_BUFFER_ACKNOWLEDGEMENT
            | Opcode::DCP_SEQNO_ACKNOWLEDGED
    )
}

/// The request's frame infos; `None` if they cannot be honoured and the error has been answered.
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
    if infos.stream_id.is_some() && request.header.opcode != Opcode::DCP_CLOSE_STREAM {
        answer.error(Status::EINVAL, "A stream id belongs to DCP", out);
        return None;
    }
    let opcode = request.header.opcode;
    if infos.durability.is_some() && !opcodes::may_be_durable(opcode)
        || infos.preserve_ttl && !opcodes::may_preserve_ttl(opcode)
    {
        answer.error(Status::EINVAL, "The operation does not take this frame info", out);
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
        KeyError::TooLong => {
            answer.error(
                Status::E2BIG,
                "The key is longer than 250 bytes, or 246 in a named collection",
                out,
            );
        }
        KeyError::CollectionId => answer.error(Status::EINVAL, "The key has no valid collection id", out),
    }
}

/// See [`super::binary::refuse`]: the stages of [`execute`] without the body.
#[cold]
pub(super) fn refuse(
    peer: &mut Peer,
    request: &Request<'_>,
    refusal: Refusal,
    cx: &mut NodeContext,
    out: &mut Output,
) {
    if peer.close {
        return;
    }
    let answer = Answer::new(peer, request, cx);
    if peer.user.is_none() {
        return answer.error(Status::EACCESS, "Log in first", out);
    }
    if !opcodes::stores_body(request.header.opcode) {
        return match request.header.opcode.name() {
            None => answer.error(Status::UNKNOWN_COMMAND, "The opcode is not known", out),
            Some(_)
                if opcodes::has_couchbase_key(request.header.opcode) || is_query(request.header.opcode) =>
            {
                answer.error(Status::E2BIG, "The value is too long for this operation", out);
            }
            Some(_) => answer.error(Status::NOT_SUPPORTED, "The operation is not supported", out),
        };
    }
    let Some(bucket) = peer.bucket.as_deref().filter(|bucket| !bucket.is_gone()) else {
        return answer.error(Status::NO_BUCKET, "No bucket is selected", out);
    };
    let key = match document_key(peer.couchbase.collections, request.key) {
        Ok(key) => key,
        Err(error) => return key_error(&answer, &error, out),
    };
    if !bucket.serves(request.header.vbucket) {
        return handshake::not_my_vbucket(peer, &answer, cx, out);
    }
    if !may_touch(peer, request, key) {
        return denied_on(&answer, bucket, key.collection, out);
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

/// See [`super::binary::fail`].
pub(super) fn fail(peer: &Peer, request: &Request<'_>, error: KvError, cx: &NodeContext, out: &mut Output) {
    let answer = Answer::new(peer, request, cx);
    if let (KvError::NoCollection, Some(bucket)) = (error, &peer.bucket) {
        let id = collection_id::split(request.key).map_or(DEFAULT_ID, |(id, _)| id);
        let context = format!("There is no collection {id:#x}");
        return answer.manifest_error(Status::UNKNOWN_COLLECTION, &context, bucket.collections().uid(), out);
    }
    documents::refuse(&answer, error, out);
}

/// See [`super::binary::error`].
#[cold]
pub(super) fn error(peer: &mut Peer, error: &Error, cx: &mut NodeContext, out: &mut Output) {
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

/// Datatype bits that a client may send: JSON and Snappy if granted, nothing else.
#[inline]
const fn datatype_is_valid(features: FeatureSet, bits: u8) -> bool {
    bits & !known_datatypes(features) == datatype::RAW
}

/// Datatype bits that a client understands.
#[inline]
const fn known_datatypes(features: FeatureSet) -> u8 {
    let json = if features.has(Feature::JSON) { datatype::JSON } else { datatype::RAW };
    let snappy = if features.has(Feature::SNAPPY) { datatype::SNAPPY } else { datatype::RAW };
    json | snappy
}
