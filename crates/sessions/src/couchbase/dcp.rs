//! DCP: change streams.
//!
//! ```text
//!   OPEN ──> CONTROL .. ──> STREAM_REQ .. ──> [`Producer`]: messages of all streams, in turns
//! ```
//! A connection that was opened as a producer's sends messages whenever there is something new, room in the consumer's
//! buffer, and nothing unsent before them. It goes on to answer requests.

mod producer;
mod shown;

use kv::collections::{Manifest, ManifestError};
use kv::follow::{Position, Refused};
use kv::users::roles::Rights;
use kv::{Adopted, Bucket, BucketKind, NodeContext, VbId, VbState};
use wire::binary::{Request, Status};
use wire::couchbase::{Feature, FrameInfos};
use wire::dcp::message::MarkerForm;
use wire::dcp::{Filter, Malformed, Open, Place, StreamRequest, open, stream_request};

pub(crate) use producer::Producer;
use producer::{Opened, OutOfOrder, Wanted};

use super::super::{Output, Peer};
use super::answer::{Answer, Refusal};

/// What a user needs to follow documents: system attributes are among what is sent.
const STREAM_RIGHTS: Rights = Rights::READ.and(Rights::SYSTEM_ATTRIBUTES);
/// Bounds of the interval of NOOPs, in seconds.
const NOOP_INTERVAL_S: std::ops::RangeInclusive<u64> = 1..=10_800;
/// The names of replicas' connections begin with this.
pub(super) const REPLICATION: &str = "replication:";
/// Name of the setting with which a node that copies sends scopes and collections that supersede those of the active.
pub(super) const NEWER_MANIFEST: &[u8] = b"dormouse_manifest";
/// Most streams of a vBucket on a connection: each is visited by every write.
const STREAMS_MOST: usize = 64;
/// Longest name of a consumer.
const NAME_MOST: usize = 200;

/// Answers with success, or with the error.
fn settle(answer: &Answer, result: Result<(), Refusal>, out: &mut Output) {
    match result {
        Ok(()) => answer.success(out),
        Err(Refusal(status, why)) => answer.error(status, why, out),
    }
}

/// OPEN.
pub(super) fn open(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let Some(bucket) = super::selected(peer, answer, out) else { return };
    // Streams ask for the rights to what they show.
    if !peer.may_somewhere(STREAM_RIGHTS) {
        return super::denied(answer, out);
    }
    let result = (|| -> Result<(), Refusal> {
        if !body.is_empty() {
            return Err(Refusal::invalid("A consumer of this node is a connection of its own"));
        }
        let opened = Open::decode(request.extras, request.key)?;
        if peer.couchbase.producer.is_some() {
            return Err(Refusal::invalid("The connection is open already"));
        }
        if opened.has(open::flags::NOTIFIER) {
            return Err(Refusal(Status::NOT_SUPPORTED, "There are no notifiers"));
        }
        if !opened.has(open::flags::PRODUCER) {
            return Err(Refusal(Status::NOT_SUPPORTED, "This node connects to those it follows by itself"));
        }
        // The name of a replica's connection: whoever has it takes the place of the one before.
        if opened.name.starts_with(REPLICATION.as_bytes()) && !peer.may_everywhere(Rights::BUCKET) {
            let why = "Only whoever may change the bucket has a connection of this name";
            return Err(Refusal(Status::EACCESS, why));
        }
        let features = peer.couchbase.features;
        let settled = Opened {
            flags: opened.flags,
            has_collections: peer.couchbase.collections,
            has_snappy: features.has(Feature::SNAPPY),
            has_json: features.has(Feature::JSON),
        };
        let cookie = peer.cookie(cx);
        let user = peer.user.clone().unwrap_or_default();
        let producer = Producer::new(&bucket, (user, opened.name), settled, cookie, cx);
        peer.couchbase.producer = Some(Box::new(producer));
        Ok(())
    })();
    settle(answer, result, out);
}

/// The connection's producer; otherwise the error has been answered.
fn producer<'p>(peer: &'p mut Peer, answer: &Answer, out: &mut Output) -> Option<&'p mut Producer> {
    let producer = peer.couchbase.producer.as_deref_mut();
    if producer.is_none() {
        answer.error(Status::EINVAL, "The connection is not open for streams", out);
    }
    producer
}

/// CONTROL: the key is a setting's name, the value its value.
pub(super) fn control(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let has_snappy = peer.couchbase.features.has(Feature::SNAPPY);
    if request.key == NEWER_MANIFEST && is_of_node(peer) {
        return take_manifest(peer, answer, body, cx, out);
    }
    let Some(producer) = producer(peer, answer, out) else { return };
    let result = match std::str::from_utf8(body) {
        _ if !request.extras.is_empty() => Err(Refusal::invalid("The request must not have extras")),
        Ok(value) => set(producer, request.key, value, has_snappy).map(|()| producer.note_settings()),
        Err(_) => Err(Refusal::invalid("The value must be text")),
    };
    settle(answer, result, out);
}

/// Returns true if the peer is another node, which copies from this one and may change the bucket.
pub(super) fn is_of_node(peer: &Peer) -> bool {
    let producer = peer.couchbase.producer.as_ref();
    producer.is_some_and(|producer| producer.is_of_node()) && peer.may_everywhere(Rights::BUCKET)
}

/// A node that copies from this one has scopes and collections that supersede those here.
fn take_manifest(peer: &Peer, answer: &Answer, body: &[u8], cx: &mut NodeContext, out: &mut Output) {
    let Some(bucket) = super::selected(peer, answer, out) else { return };
    let adopted = Manifest::from_node_json(body).map(|there| bucket.adopt_collections(cx, &there));
    let result = match adopted {
        Some(Ok(Adopted::Taken | Adopted::Kept)) => {
            cx.node.note_map_change();
            Ok(())
        }
        Some(Ok(Adopted::Waits) | Err(ManifestError::Unkept(_))) => {
            Err(Refusal(Status::ETMPFAIL, "The manifest cannot be taken yet"))
        }
        Some(Err(_)) | None => Err(Refusal::invalid("The value must be a manifest, as nodes have it")),
    };
    settle(answer, result, out);
}

fn flag(value: &str) -> Result<bool, Refusal> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Refusal::invalid("The value must be true or false")),
    }
}

fn one_of(value: &str, allowed: &[&str], why: &'static str) -> Result<(), Refusal> {
    if allowed.contains(&value) { Ok(()) } else { Err(Refusal::invalid(why)) }
}

/// Changes a setting of a connection.
fn set(producer: &mut Producer, name: &[u8], value: &str, has_snappy: bool) -> Result<(), Refusal> {
    let wanted: &mut Wanted = &mut producer.wanted;
    match name {
        b"enable_noop" => wanted.has_noops = flag(value)?,
        b"set_noop_interval" => {
            let seconds = value.parse().ok().filter(|seconds| NOOP_INTERVAL_S.contains(seconds));
            wanted.noop_interval_s =
                seconds.ok_or(Refusal::invalid("The interval must be 1 to 10800 seconds"))?;
        }
        b"connection_buffer_size" => {
            let bytes = value.parse::<u32>();
            wanted.buffer_bytes =
                bytes.map_err(|_| Refusal::invalid("The size must be a number of bytes below 2^32"))?;
        }
        b"send_stream_end_on_client_close_stream" => wanted.ends_on_close = flag(value)?,
        b"enable_expiry_opcode" => wanted.has_expirations = flag(value)?,
        b"enable_stream_id" => {
            if !flag(value)? || producer.has_streams() {
                return Err(Refusal::invalid(
                    "Stream ids are enabled before the first stream, and stay enabled",
                ));
            }
            producer.wanted.has_stream_ids = true;
        }
        b"enable_sync_writes" => wanted.has_sync_writes = flag(value)?,
        b"consumer_name" => {
            if value.is_empty() || value.len() > NAME_MOST {
                return Err(Refusal::invalid("The name must be 1 to 200 bytes"));
            }
            wanted.consumer = value.into();
        }
        b"force_value_compression" => {
            wanted.compresses = flag(value)?;
            if wanted.compresses && !has_snappy {
                wanted.compresses = false;
                return Err(Refusal::invalid("HELLO has not negotiated Snappy"));
            }
        }
        b"include_deleted_user_xattrs" => wanted.keeps_user_xattrs = flag(value)?,
        b"max_marker_version" => {
            wanted.marker = match value {
                "1.0" => MarkerForm::V1,
                "2.0" => MarkerForm::V2,
                _ => return Err(Refusal::invalid("The version must be 1.0 or 2.0")),
            };
        }
        // What these allow is never done, or always.
        b"supports_cursor_dropping"
        | b"supports_cursor_dropping_vulcan"
        | b"supports_hifi_MFU"
        | b"v7_dcp_status_codes" => drop(flag(value)?),
        b"enable_out_of_order_snapshots" => {
            wanted.out_of_order = match value {
                "true" => OutOfOrder::Taken,
                "true_with_seqno_advanced" => OutOfOrder::TakenAndAdvanced,
                "false" => OutOfOrder::Refused,
                _ => {
                    return Err(Refusal::invalid(
                        "The value must be true, true_with_seqno_advanced or false",
                    ));
                }
            };
        }
        b"backfill_order" => {
            one_of(value, &["round-robin", "sequential"], "The order must be round-robin or sequential")?;
        }
        b"set_priority" => {
            one_of(value, &["high", "medium", "low"], "The priority must be high, medium or low")?;
        }
        b"enable_ext_metadata" | b"change_streams" | b"flatbuffers_system_events" => {
            return Err(Refusal(Status::NOT_SUPPORTED, "The setting is not supported"));
        }
        _ => return Err(Refusal::invalid("The setting is not known")),
    }
    Ok(())
}

/// STREAM_REQ: the answer is the failover log, or the seqno to roll back to.
pub(super) fn stream(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    if producer(peer, answer, out).is_none() {
        return;
    }
    let Some(bucket) = super::selected(peer, answer, out) else { return };
    let vb = VbId(request.header.vbucket);
    if vb.0 >= bucket.vbuckets() {
        return super::handshake::not_my_vbucket(peer, answer, cx, out);
    }
    let wanted = match StreamRequest::decode(request.extras, body) {
        Ok(wanted) if request.key.is_empty() => wanted,
        Ok(_) => return answer.error(Status::EINVAL, "The request must not have a key", out),
        Err(Malformed(why)) => return answer.error(Status::EINVAL, why, out),
    };
    let state = bucket.vbucket_state(vb);
    let is_active = state == VbState::Active;
    let of_active = wanted.has(stream_request::flags::ACTIVE_ONLY) || wanted.term.is_some();
    if state == VbState::Dead || !is_active && of_active {
        return super::handshake::not_my_vbucket(peer, answer, cx, out);
    }
    if let Err(Refusal(status, why)) = check_filter(peer, &bucket, &wanted.filter) {
        if status == Status::UNKNOWN_COLLECTION || status == Status::UNKNOWN_SCOPE {
            return answer.manifest_error(status, why, bucket.collections().uid(), out);
        }
        return answer.error(status, why, out);
    }
    let Some(producer) = peer.couchbase.producer.as_deref_mut() else { return };
    if producer.wanted.has_stream_ids != wanted.stream_id.is_some() {
        let why = "Streams have ids if, and only if, they were enabled";
        return answer.error(Status::DCP_STREAMID_INVALID, why, out);
    }
    if producer.streams_of(vb.0) >= STREAMS_MOST {
        return answer.error(Status::ETMPFAIL, "There are 64 streams of the vBucket on this connection", out);
    }
    // Their number is bounded by what clients may hold altogether.
    let memory = cx.node.client_memory();
    if memory.allowance() < producer::STREAM_BYTES {
        return answer.error(Status::ETMPFAIL, "Clients hold too much memory for another stream", out);
    }
    if !memory.leaves_as_much(producer.bytes_with_another()) {
        return answer.error(Status::ETMPFAIL, "The user has as many streams as are left to others", out);
    }
    let place = Place { vbucket: vb.0, opaque: request.header.opaque, stream_id: wanted.stream_id };
    if producer.has_stream(&place) {
        return answer.error(Status::KEY_EEXISTS, "There is such a stream already", out);
    }
    let may_change = peer.may_everywhere(Rights::BUCKET);
    let takes_over = wanted.has(stream_request::flags::TAKEOVER);
    // Without a term nobody would know later who is the active.
    if takes_over && (wanted.term.is_none() || !may_change) {
        let why = "Only a replica that names its term, and whose user may change the bucket, takes over";
        return answer.error(Status::NOT_SUPPORTED, why, out);
    }
    let Some(producer) = peer.couchbase.producer.as_deref_mut() else { return };
    // What is wanted from disk is read in its order there.
    let in_any_order =
        producer.wanted.out_of_order != OutOfOrder::Refused && !wanted.has(stream_request::flags::DISK_ONLY);
    bucket.tell_collections(cx, vb);
    let position = Position { in_any_order, ..position(&bucket, vb, &wanted) };
    let has_term = wanted.term.is_some();
    match producer.begin(&bucket, place, &position, wanted, cx) {
        Ok(()) => {
            if producer.wanted.has_sync_writes && has_term && may_change {
                bucket.forget_acknowledgements(vb, &producer.wanted.consumer);
            }
            let mut log = failover_log(&bucket, vb);
            if !has_term {
                return answer.value(0, &[], &log, out);
            }
            // A node that copies: the terms follow the log, and the extras say how many there are.
            let (terms, encoded) = bucket.terms(cx, vb).encode();
            log.extend_from_slice(&encoded);
            answer.value(0, &terms.to_be_bytes(), &log, out);
        }
        Err(Refused::Term(term)) => {
            let context = format!("The term of vBucket {} is {term}", vb.0);
            let json = serde_json::json!({ "error": { "context": context }, "term": term });
            answer.json(Status::ERANGE, &json.to_string(), out);
        }
        Err(Refused::RollBack(seqno)) => {
            answer.status_value(Status::ROLLBACK, &seqno.to_be_bytes(), out);
        }
        Err(Refused::Range) => {
            answer.error(
                Status::ERANGE,
                "The seqnos must be: snapshot start, start, snapshot end; and end",
                out,
            );
        }
        Err(Refused::NoMemory) => {
            answer.error(Status::ETMPFAIL, "There is no memory to keep the order of the documents", out);
        }
        Err(Refused::Unavailable(why)) => super::documents::refuse(answer, why.into(), out),
    }
}

/// Where a stream begins and ends.
fn position(bucket: &Bucket, vb: VbId, wanted: &StreamRequest) -> Position {
    let info = bucket.vb_info(vb);
    let high_seqno = info.as_ref().map_or(0, |info| info.high_seqno);
    let mut position = Position {
        start: wanted.start,
        end: wanted.end,
        uuid: wanted.uuid,
        snapshot: (wanted.snapshot_start, wanted.snapshot_end),
        purged_seqno: wanted.purge_seqno,
        term: wanted.term,
        ignores_purged: wanted.has(stream_request::flags::IGNORE_PURGED_TOMBSTONES),
        ..Position::default()
    };
    if wanted.has(stream_request::flags::FROM_LATEST) {
        (position.start, position.snapshot) = (high_seqno, (high_seqno, high_seqno));
        position.ignores_purged = true;
        position.uuid = bucket.vb_uuid(vb);
    }
    if position.start == 0 && !wanted.has(stream_request::flags::STRICT_UUID) {
        position.uuid = 0;
    }
    if wanted.has(stream_request::flags::TO_LATEST) {
        position.end = high_seqno;
    }
    if wanted.has(stream_request::flags::DISK_ONLY) {
        let is_persistent = bucket.settings().kind == BucketKind::Persistent;
        let persisted_seqno = info.as_ref().filter(|_| is_persistent).map(|info| info.persisted_seqno);
        position.end = position.end.min(persisted_seqno.unwrap_or(high_seqno)).max(position.start);
    }
    position
}

/// The histories of a vBucket, newest first, each as `UUID 8 | seqno at which it began 8`.
pub(super) fn failover_log(bucket: &Bucket, vb: VbId) -> Vec<u8> {
    let entries = bucket.histories(vb).into_iter();
    entries.flat_map(|(uuid, began_at)| [uuid.to_be_bytes(), began_at.to_be_bytes()]).flatten().collect()
}

/// Returns true if the user may see what is to be followed.
pub(crate) fn may_follow(peer: &Peer, bucket: &Bucket, filter: &Filter) -> bool {
    match filter {
        Filter::Everything => peer.may_everywhere(STREAM_RIGHTS),
        Filter::Collections(ids) => ids.iter().all(|id| peer.may(STREAM_RIGHTS, *id)),
        Filter::Scope(id) => {
            let manifest = bucket.collections().manifest();
            let of_scope = manifest.collections().filter(|(scope, _)| scope.id == *id);
            of_scope.map(|(_, one)| one.id).all(|id| peer.may(STREAM_RIGHTS, id))
        }
    }
}

/// Checks that what is to be followed is there, and that the user may.
fn check_filter(peer: &Peer, bucket: &Bucket, filter: &Filter) -> Result<(), Refusal> {
    match filter {
        Filter::Everything => {}
        Filter::Collections(_) | Filter::Scope(_) if !peer.couchbase.collections => {
            return Err(Refusal::invalid("HELLO has not negotiated collections"));
        }
        Filter::Collections(ids) => {
            if ids.iter().any(|id| !bucket.has_collection(*id)) {
                return Err(Refusal(Status::UNKNOWN_COLLECTION, "There is no such collection"));
            }
        }
        Filter::Scope(id) => {
            if !bucket.collections().manifest().scopes.iter().any(|scope| scope.id == *id) {
                return Err(Refusal(Status::UNKNOWN_SCOPE, "There is no such scope"));
            }
        }
    }
    if may_follow(peer, bucket, filter) {
        Ok(())
    } else {
        Err(Refusal(Status::EACCESS, "The user's roles do not allow this here"))
    }
}

/// CLOSE_STREAM.
pub(super) fn close(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    is_bare: bool,
    out: &mut Output,
) {
    let Some(producer) = producer(peer, answer, out) else { return };
    if !is_bare {
        return answer.not_bare(out);
    }
    let stream_id = FrameInfos::parse(request.framing).ok().and_then(|infos| infos.stream_id);
    if producer.wanted.has_stream_ids != stream_id.is_some() {
        let why = "Streams have ids if, and only if, they were enabled";
        return answer.error(Status::DCP_STREAMID_INVALID, why, out);
    }
    if !producer.close(request.header.vbucket, stream_id) {
        return answer.error(Status::KEY_ENOENT, "There is no such stream", out);
    }
    answer.success(out);
}

/// BUFFER_ACKNOWLEDGEMENT: the extras are the bytes that the consumer has processed. Only errors are answered.
pub(super) fn acknowledge_bytes(peer: &mut Peer, answer: &Answer, request: &Request<'_>, out: &mut Output) {
    let Some(producer) = producer(peer, answer, out) else { return };
    match <[u8; 4]>::try_from(request.extras) {
        Ok(bytes) if request.key.is_empty() => producer.acknowledged(u32::from_be_bytes(bytes)),
        _ => answer.error(Status::EINVAL, "The extras must be a number of bytes, in 4 bytes", out),
    }
}

/// SEQNO_ACKNOWLEDGED: the extras are the seqno up to which the consumer is prepared. Only errors are answered.
pub(super) fn acknowledge_seqno(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let Some(producer) = producer(peer, answer, out) else { return };
    let consumer = producer.wanted.consumer.clone();
    if !producer.wanted.has_sync_writes || consumer.is_empty() {
        let why = "enable_sync_writes and consumer_name come first";
        return answer.error(Status::EINVAL, why, out);
    }
    let Ok(seqno) = <[u8; 8]>::try_from(request.extras) else {
        return answer.error(Status::EINVAL, "The extras must be a seqno, 8 bytes", out);
    };
    let (vb, seqno) = (VbId(request.header.vbucket), u64::from_be_bytes(seqno));
    let Some(bucket) = super::selected(peer, answer, out) else { return };
    let Some(producer) = peer.couchbase.producer.as_deref() else { return };
    let (_, term) = bucket.standing(vb);
    if producer.is_replaced() || !producer.has_stream_of_term(vb.0, term) {
        return answer.error(Status::KEY_ENOENT, "There is no such stream", out);
    }
    // Durable writes are answered on its word.
    if !peer.may_everywhere(Rights::BUCKET) {
        return super::denied(answer, out);
    }
    if bucket.vb_info(vb).is_none_or(|info| seqno > info.high_seqno) {
        return answer.error(Status::ERANGE, "There is no such seqno yet", out);
    }
    bucket.acknowledge_in(cx, vb, term, &consumer, seqno);
}

/// GET_ALL_VB_SEQNOS: the extras are nothing, or a state, or a state and a collection, 4 bytes each. The answer is
/// `vBucket 2 | highest seqno 8` for each vBucket in that state; 0: in any but dead.
pub(super) fn all_seqnos(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let Some(bucket) = super::selected(peer, answer, out) else { return };
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes).unwrap_or(u32::MAX);
    let (state, collection) = match request.extras.len() {
        0 => (0, None),
        4 => (number(request.extras), None),
        8 => (number(&request.extras[..4]), Some(number(&request.extras[4..]))),
        _ => (u32::MAX, None),
    };
    if state > VbState::Dead.number() || !request.key.is_empty() || !body.is_empty() {
        let why = "The extras must be a state, 0 to 4, and a collection, 4 bytes each";
        return answer.error(Status::EINVAL, why, out);
    }
    if let Some(id) = collection.filter(|id| !bucket.has_collection(*id)) {
        let context = format!("There is no collection {id:#x}");
        return answer.manifest_error(Status::UNKNOWN_COLLECTION, &context, bucket.collections().uid(), out);
    }
    bucket.tell_collections_everywhere(cx);
    let mut value = Vec::new();
    for vb in (0..bucket.vbuckets()).map(VbId) {
        let is_in = match (bucket.vbucket_state(vb), state) {
            (now, 0) => now != VbState::Dead,
            (now, wanted) => now.number() == wanted,
        };
        let Some(info) = bucket.vb_info(vb).filter(|_| is_in) else { continue };
        value.extend(vb.0.to_be_bytes());
        value.extend(info.high_seqno.to_be_bytes());
    }
    answer.value(0, &[], &value, out);
}
