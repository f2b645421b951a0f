//! Queries about documents and vBuckets.

use kv::bucket::Observed;
use kv::key::KEY_MAX;
use kv::users::roles::Rights;
use kv::{Key, KvError, NodeContext, Unavailable, VbId};
use wire::binary::{Request, Status, datatype};
use wire::couchbase::FrameInfos;

use super::super::waits::Touch;
use super::super::{Output, Peer, binary};
use super::answer::{Answer, Pending};
use super::documents::{Operation, Waiting};
use super::json;

/// OBSERVE_SEQNO: the answer's format for the present history, and for an earlier one.
const OBSERVE_FORMAT_NO_FAILOVER: u8 = 0;
const OBSERVE_FORMAT_FAILOVER: u8 = 1;

/// GET_META: `deleted 4 | flags 4 | expiry 4 | revision 8`, and with version 2 `| datatype 1`.
pub(super) fn get_meta(
    operation: &Operation<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    let Operation { bucket, key, place, answer, request, has_value, .. } = *operation;
    let extras_len = match (request.extras, has_value) {
        ([] | [1], false) => 20,
        ([2], false) => 21,
        _ => {
            answer.error(Status::EINVAL, "The extras must be the version, 1 or 2, or nothing", out);
            return Ok(());
        }
    };
    let found = bucket.with_entry(cx, key, place, |entry| {
        let Some(document) = entry.document() else {
            let shadow = entry.with_shadow(|shadow| (shadow.rev(), shadow.datatype(), shadow.visible_cas()));
            let deleted = || entry.deletion().map(|it| (it.rev, datatype::RAW, it.cas));
            return shadow.or_else(deleted).map(|(rev, datatype, cas)| {
                let mut extras = [0; 21];
                extras[3] = 1;
                extras[12..20].copy_from_slice(&rev.to_be_bytes());
                extras[20] = datatype;
                (extras, cas)
            });
        };
        let mut extras = [0; 21];
        extras[4..8].copy_from_slice(&document.flags().to_be_bytes());
        extras[8..12].copy_from_slice(&document.expiry().to_be_bytes());
        extras[12..20].copy_from_slice(&document.rev().to_be_bytes());
        extras[20] = json::detected(&document);
        Some((extras, document.visible_cas()))
    })?;
    match found {
        Some((extras, cas)) => answer.value(cas, extras.get(..extras_len).unwrap_or(&extras), &[], out),
        None if request.header.opcode.is_quiet() => {}
        None => answer.status(Status::KEY_ENOENT, out),
    }
    Ok(())
}

/// OBSERVE_SEQNO: the value is the history that the client knows; the answer has the persisted and the current seqno of
/// that history. An ephemeral bucket persists nothing. For an earlier history, the answer also has the seqno at which
/// it ended.
pub(super) fn observe_seqno(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let Ok(uuid) = <[u8; 8]>::try_from(body) else {
        return answer.error(Status::EINVAL, "The value must be the vBucket's UUID, 8 bytes", out);
    };
    if !request.key.is_empty() || !request.extras.is_empty() {
        return answer.error(Status::EINVAL, "The request must not have extras or a key", out);
    }
    let vb = request.header.vbucket;
    let Some(bucket) = super::selected(peer, answer, out) else { return };
    bucket.tell_collections(cx, VbId(vb));
    let Some(info) = bucket.vb_info(VbId(vb)) else {
        return super::handshake::not_my_vbucket(peer, answer, cx, out);
    };
    if let Some(why) = bucket.closed(VbId(vb)) {
        return super::documents::refuse(answer, why.into(), out);
    }
    let uuid = u64::from_be_bytes(uuid);
    let histories = bucket.histories(VbId(vb));
    let Some(at) = histories.iter().position(|(known, _)| *known == uuid) else {
        return answer.error(Status::KEY_ENOENT, "The vBucket has no such history", out);
    };
    let ended_seqno = at.checked_sub(1).and_then(|next| histories.get(next)).map(|(_, began_at)| *began_at);
    let mut value = Vec::with_capacity(43);
    value.push(if ended_seqno.is_some() { OBSERVE_FORMAT_FAILOVER } else { OBSERVE_FORMAT_NO_FAILOVER });
    value.extend(vb.to_be_bytes());
    value.extend(info.uuid.to_be_bytes());
    value.extend(info.persisted_seqno.to_be_bytes());
    value.extend(info.high_seqno.to_be_bytes());
    if let Some(ended_seqno) = ended_seqno {
        value.extend(uuid.to_be_bytes());
        value.extend(ended_seqno.to_be_bytes());
    }
    answer.value(0, &[], &value, out);
}

/// SEQNO_PERSISTENCE: the answer comes when everything of the vBucket up to the seqno of the extras is on disk.
pub(super) fn await_persistence(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let (Ok(seqno), true) = (<[u8; 8]>::try_from(request.extras), request.key.is_empty() && body.is_empty())
    else {
        return answer.error(
            Status::EINVAL,
            "The extras must be a seqno, 8 bytes, without key or value",
            out,
        );
    };
    let Some(bucket) = super::serving(peer, answer, request, cx, out) else { return };
    let vb = VbId(request.header.vbucket);
    if bucket.persistence().is_none() {
        return answer.error(Status::NOT_SUPPORTED, "An ephemeral bucket cannot persist", out);
    }
    if let Some(why) = bucket.closed(vb) {
        return super::documents::refuse(answer, why.into(), out);
    }
    let cookie = peer.cookie(cx);
    match bucket.await_persistence(cx, vb, u64::from_be_bytes(seqno), cookie) {
        Ok(true) => answer.success(out),
        Ok(false) => {
            let is_barrier = FrameInfos::parse(request.framing).is_ok_and(|infos| infos.barrier);
            let touch = if is_barrier { Touch::Everything } else { Touch::Nothing };
            let pending = Pending::new(Answer::new(peer, request, cx), Waiting::default(), cx);
            peer.wait(cookie, touch, pending);
        }
        Err(KvError::NoMemory) => {
            answer.error(Status::ETMPFAIL, "Too many requests wait for this vBucket's flush", out);
        }
        Err(why) => super::documents::refuse(answer, why, out),
    }
}

/// Takes the next document from the value of an OBSERVE: `vBucket 2 | key length 2 | key`, repeated.
fn observed<'a>(body: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let (vb, rest) = body.split_first_chunk()?;
    let (key_len, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*key_len)))?;
    *body = rest;
    Some((u16::from_be_bytes(*vb), key))
}

/// OBSERVE: clients without seqno support poll with it until a change is on disk. The answer repeats each document of
/// the request, followed by `state 1 | CAS 8`. The CAS in the answer's header is the expected time to persist, in ms:
/// 0, which means unknown.
pub(super) fn observe(
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
    let Some(bucket) = super::selected(peer, answer, out) else { return };
    let (mut rest, mut value) = (body, Vec::with_capacity(2 * body.len()));
    while !rest.is_empty() {
        let Some((vb, wire_key)) = observed(&mut rest) else {
            return answer.error(Status::EINVAL, "The value must be vBuckets and keys", out);
        };
        let key = match super::document_key(peer.couchbase.collections, wire_key) {
            Ok(key) => key,
            Err(error) => return super::key_error(answer, &error, out),
        };
        if !bucket.serves(vb) {
            return super::handshake::not_my_vbucket(peer, answer, cx, out);
        }
        if !peer.may(Rights::READ, key.collection) {
            return super::denied_on(answer, &bucket, key.collection, out);
        }
        if !bucket.has_collection(key.collection) {
            return super::unavailable(answer, &bucket, Unavailable::NoCollection, out);
        }
        let (state, cas) = match bucket.observe(cx, key, bucket.locate_in(key, VbId(vb))) {
            Ok(observed) => observed,
            Err(why) => return super::documents::refuse(answer, why.into(), out),
        };
        value.extend(vb.to_be_bytes());
        value.extend((wire_key.len() as u16).to_be_bytes());
        value.extend(wire_key);
        value.push(match state {
            Observed::Unpersisted => 0x00,
            Observed::Persisted => 0x01,
            Observed::Missing => 0x80,
            Observed::DeletionUnpersisted => 0x81,
        });
        value.extend(cas.to_be_bytes());
    }
    answer.value(0, &[], &value, out);
}

/// STAT of one document: `key NAME VBUCKET`, or `vkey`, which also reads the journal and compares the document with it.
/// Returns false if the group is another.
fn document_statistics(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> bool {
    let (arguments, validates) = match (request.key.strip_prefix(b"key "), request.key.strip_prefix(b"vkey "))
    {
        (Some(arguments), _) => (arguments, false),
        (_, Some(arguments)) => (arguments, true),
        _ => return false,
    };
    let Some(bucket) = peer.bucket.clone() else { return false };
    // COMPAT: cbstats sends a blank behind the number.
    let arguments = arguments.strip_suffix(b" ").unwrap_or(arguments);
    let at = arguments.iter().rposition(|byte| *byte == b' ').unwrap_or(0);
    let (name, vb) = arguments.split_at(at);
    let vb = std::str::from_utf8(vb).ok().and_then(|vb| vb.trim_start().parse::<u16>().ok());
    let (Some(vb), false) = (vb, name.is_empty() || name.len() > KEY_MAX) else {
        answer.error(
            Status::EINVAL,
            "The group must be followed by a key and the number of its vBucket",
            out,
        );
        return true;
    };
    if !bucket.serves(vb) {
        super::handshake::not_my_vbucket(peer, answer, cx, out);
        return true;
    }
    let key = Key::plain(name);
    if !peer.may(Rights::READ, key.collection) {
        super::denied(answer, out);
        return true;
    }
    match bucket.document_statistics(cx, key, bucket.locate_in(key, VbId(vb)), validates) {
        Ok(Some(statistics)) => binary::listed(request, &statistics, out),
        Ok(None) => answer.status(Status::KEY_ENOENT, out),
        Err(why) => super::documents::refuse(answer, why, out),
    }
    true
}

/// STAT.
pub(super) fn statistics(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    // COMPAT: cbstats says in JSON which streams it wants listed. All are.
    let is_filter = request.key == b"dcp" && wire::json::validate(body).is_ok();
    if !request.extras.is_empty() || !(body.is_empty() || is_filter) {
        return answer.error(Status::EINVAL, "The request must not have extras or a value", out);
    }
    if peer.bucket.is_some() && document_statistics(peer, answer, request, cx, out) {
        return;
    }
    let Some(bucket) = peer.bucket.as_deref() else {
        return answer.error(Status::NO_BUCKET, "No bucket is selected", out);
    };
    let may = match request.key.split(|byte| *byte == b' ').next() {
        // They show those that the user may see.
        Some(b"collections" | b"scopes") => true,
        Some(b"reset") => peer.may_everywhere(Rights::BUCKET),
        _ => peer.may_everywhere(Rights::STATISTICS),
    };
    if !may {
        return super::denied(answer, out);
    }
    if !binary::statistics(bucket, peer, request, cx, out) {
        answer.error(Status::KEY_ENOENT, "There are no statistics of that name", out);
    }
}
