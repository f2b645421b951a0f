//! The requests of a connecting client: features, login, error map, bucket, cluster map.

use std::sync::Arc;

use kv::{Bucket, Compression, NodeContext, cluster_config};
use wire::binary::{Request, Status};
use wire::couchbase::feature::{negotiate, requested};
use wire::couchbase::{Feature, error_map};
use wire::sasl::{Channel, Mechanism, Plain, SaslError};

use super::super::access::may_select;
use super::super::{Output, Peer};
use super::OFFERED;
use super::answer::Answer;
use super::map_news::MapNews;

/// Longest agent name that is kept.
const AGENT_MAX: usize = 250;

/// HELLO: grants those requested features that are offered. A later HELLO replaces an earlier one.
pub(super) fn hello(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let Some(features) = requested(body).filter(|_| request.extras.is_empty()) else {
        return answer.error(Status::EINVAL, "The value must be a list of 16-bit features", out);
    };
    // A bucket that is selected later still accepts compressed values if it must, and stores them inflated.
    let stores_none = peer.bucket.as_ref().is_some_and(|bucket| bucket.compression() == Compression::Off);
    let offered = if stores_none { OFFERED.without(Feature::SNAPPY) } else { OFFERED };
    let (granted, list) = negotiate(features, offered);
    let wants_maps = granted.has(Feature::CLUSTERMAP_CHANGE_NOTIFICATION)
        || granted.has(Feature::CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF);
    if wants_maps && !granted.has(Feature::DUPLEX) {
        return answer.error(Status::EINVAL, "Clustermap change notification needs Duplex", out);
    }
    let agent = request.key.get(..AGENT_MAX).unwrap_or(request.key);
    peer.couchbase.map_news = wants_maps.then(|| MapNews::begin(peer, cx));
    let state = &mut peer.couchbase;
    state.features = granted;
    state.collections = granted.has(Feature::COLLECTIONS);
    state.agent = Some(String::from_utf8_lossy(agent).into());
    // The answer still has the layout of the previous features.
    answer.value(0, &[], &list, out);
}

/// SASL_LIST_MECHS. Those that are bound to the channel exist over TLS, and come last: old clients take the first.
pub(super) fn list_mechanisms(peer: &Peer, answer: &Answer, is_bare: bool, out: &mut Output) {
    if !is_bare {
        return answer.not_bare(out);
    }
    let bound = Mechanism::BOUND.into_iter().filter(|_| peer.end_point.is_some());
    let names: Vec<&str> = Mechanism::ALL.into_iter().chain(bound).map(Mechanism::name).collect();
    answer.value(0, &[], names.join(" ").as_bytes(), out);
}

/// SASL_AUTH: the key is the mechanism, the value the client's first message. Discards a login that is in progress or
/// complete.
pub(super) fn authenticate(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    peer.user = None;
    peer.bucket = None;
    peer.couchbase.producer = None;
    peer.couchbase.login = None;
    let users = cx.node.users();
    match Mechanism::from_name(request.key) {
        None => deny(answer, "The mechanism is not supported", out),
        Some(Mechanism::Plain) => {
            let verified = Plain::parse(body).and_then(|plain| {
                users.log_in(plain.user, plain.password, peer.caller(cx.now)).ok_or(SaslError::Denied)
            });
            match verified {
                Ok(user) => {
                    peer.log_in(user, cx);
                    answer.success(out);
                }
                Err(error) => deny(answer, &error.to_string(), out),
            }
        }
        Some(mechanism @ (Mechanism::Scram(hash) | Mechanism::ScramPlus(hash))) => {
            let is_bound = matches!(mechanism, Mechanism::ScramPlus(_));
            let channel = Channel { end_point: peer.end_point.as_deref(), is_bound };
            match users.start_scram(hash, channel, body, peer.loopback) {
                Ok((exchange, challenge)) => {
                    peer.couchbase.login = Some(Box::new(exchange));
                    answer.status_value(Status::AUTH_CONTINUE, &challenge, out);
                }
                Err(error) => deny(answer, &error.to_string(), out),
            }
        }
    }
}

/// SASL_STEP: the client's proof.
pub(super) fn step(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let exchange = peer.couchbase.login.take();
    let is_scram =
        matches!(Mechanism::from_name(request.key), Some(Mechanism::Scram(_) | Mechanism::ScramPlus(_)));
    let Some(exchange) = exchange.filter(|_| is_scram) else {
        return deny(answer, "There is no login to continue", out);
    };
    match cx.node.users().finish_scram(*exchange, body, peer.caller(cx.now)) {
        Ok((user, signature)) => {
            peer.log_in(user, cx);
            answer.value(0, &[], &signature, out);
        }
        Err(error) => deny(answer, &error.to_string(), out),
    }
}

fn deny(answer: &Answer, context: &str, out: &mut Output) {
    answer.error(Status::AUTH_ERROR, context, out);
}

/// GET_ERROR_MAP: the value is the highest version the client knows.
pub(super) fn error_map(answer: &Answer, request: &Request<'_>, body: &[u8], out: &mut Output) {
    let version =
        <[u8; 2]>::try_from(body).ok().filter(|_| request.key.is_empty() && request.extras.is_empty());
    match version.map(u16::from_be_bytes).and_then(error_map::in_version) {
        Some(map) => answer.json(Status::SUCCESS, map, out),
        None => answer.error(Status::EINVAL, "The value must be a version, from 1 on", out),
    }
}

/// SELECT_BUCKET: the key is its name.
pub(super) fn select_bucket(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    if request.key.is_empty() || !request.extras.is_empty() || !body.is_empty() {
        return answer.error(
            Status::EINVAL,
            "The request must have a bucket's name as its key, and nothing else",
            out,
        );
    }
    if peer.couchbase.producer.is_some() {
        return answer.error(
            Status::NOT_SUPPORTED,
            "A connection that is open for streams keeps its bucket",
            out,
        );
    }
    let bucket = std::str::from_utf8(request.key).ok().and_then(|name| cx.node.bucket(name));
    match bucket.filter(|bucket| may_select(peer, bucket)) {
        Some(bucket) => {
            (peer.bucket, peer.lost_bucket) = (Some(bucket), false);
            // The bucket's map has not been sent, whatever was before.
            peer.couchbase.map_revision = 0;
            peer.renew_access();
            answer.success(out);
        }
        // A missing bucket and one without access must look the same.
        None => answer.error(Status::EACCESS, "There is no such bucket", out),
    }
}

/// GET_CLUSTER_CONFIG: the client may send its version in 16 bytes of extras; no map is sent if it has the newest.
pub(super) fn cluster_config(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let known = match request.extras.split_first_chunk::<8>() {
        None if request.extras.is_empty() => None,
        Some((epoch, revision)) => match <[u8; 8]>::try_from(revision) {
            Ok(revision) => Some((i64::from_be_bytes(*epoch), i64::from_be_bytes(revision))),
            Err(_) => {
                return answer.error(Status::EINVAL, "The extras must be epoch and revision, 16 bytes", out);
            }
        },
        None => return answer.error(Status::EINVAL, "The extras must be epoch and revision, 16 bytes", out),
    };
    if peer.user.is_some() && !peer.is_user(cx) {
        return super::denied(answer, out);
    }
    let bucket = map_bucket(peer);
    if known.is_some_and(|(epoch, revision)| cluster_config::is_current(&cx.node, bucket, epoch, revision)) {
        return answer.success(out);
    }
    let map = current_map(peer, cx);
    answer.json(Status::SUCCESS, &map, out);
}

/// The bucket whose map this connection is sent.
pub(super) fn map_bucket(peer: &Peer) -> Option<&Bucket> {
    peer.bucket.as_deref().filter(|bucket| !bucket.is_gone() && peer.has_access())
}

/// The map for this connection, recorded as sent to it.
pub(super) fn current_map(peer: &mut Peer, cx: &NodeContext) -> Arc<str> {
    peer.couchbase.map_revision = cx.node.map_revision();
    match map_bucket(peer) {
        Some(bucket) => cluster_config::bucket_level(&cx.node, bucket),
        None => cluster_config::cluster_level(&cx.node),
    }
}

/// NOT_MY_VBUCKET with the map, unless the client asked not to get the same one twice.
#[cold]
pub(super) fn not_my_vbucket(peer: &mut Peer, answer: &Answer, cx: &NodeContext, out: &mut Output) {
    let dedupes = answer.features().has(Feature::DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP);
    if dedupes && peer.couchbase.map_revision == cx.node.map_revision() {
        return answer.status(Status::NOT_MY_VBUCKET, out);
    }
    let map = current_map(peer, cx);
    answer.json(Status::NOT_MY_VBUCKET, &map, out);
}
