//! Scopes and collections: what there is, and the ids of names.

use kv::collections::DEFAULT;
use wire::binary::{Request, Status};

use super::super::{Output, Peer};
use super::answer::Answer;
use super::{dcp, denied, selected};

/// COLLECTIONS_GET_MANIFEST. A node that copies gets all of it.
pub(super) fn get(peer: &Peer, answer: &Answer, is_bare: bool, out: &mut Output) {
    if !is_bare {
        return answer.not_bare(out);
    }
    let Some(bucket) = selected(peer, answer, out) else { return };
    let manifest = bucket.collections().manifest();
    if dcp::is_of_node(peer) {
        return answer.json(Status::SUCCESS, &manifest.to_node_json(), out);
    }
    let visible = manifest.visible(|place| peer.may_know(place));
    answer.json(Status::SUCCESS, &visible.to_json().to_string(), out);
}

/// The requested name: in the value, or in the key as older clients send it.
fn name<'a>(request: &Request<'a>, body: &'a [u8]) -> Option<&'a str> {
    let name = match (request.key, body) {
        ([], body) => body,
        (key, []) => key,
        _ => return None,
    };
    std::str::from_utf8(name).ok().filter(|_| request.extras.is_empty())
}

/// `manifest uid 8 | id 4`.
fn answer_id(answer: &Answer, uid: u64, id: u32, out: &mut Output) {
    let mut extras = [0; 12];
    extras[..8].copy_from_slice(&uid.to_be_bytes());
    extras[8..].copy_from_slice(&id.to_be_bytes());
    answer.value(0, &extras, &[], out);
}

/// An empty name is the default one.
fn or_default(name: &str) -> &str {
    if name.is_empty() { DEFAULT } else { name }
}

/// COLLECTIONS_GET_ID for `scope.collection`; an empty part is the default one.
pub(super) fn collection_id(
    peer: &Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    out: &mut Output,
) {
    let parts = name(request, body).and_then(|name| name.split_once('.'));
    let Some((scope, collection)) = parts.filter(|(_, collection)| !collection.contains('.')) else {
        return answer.error(Status::EINVAL, "The value must be scope.collection", out);
    };
    let Some(bucket) = selected(peer, answer, out) else { return };
    let manifest = bucket.collections().manifest();
    let (scope, collection) = (or_default(scope), or_default(collection));
    if !peer.may_know(&[scope, collection]) {
        return denied(answer, out);
    }
    if manifest.scope(scope).is_none() {
        let context = format!("There is no scope {scope:?}");
        return answer.manifest_error(Status::UNKNOWN_SCOPE, &context, manifest.uid, out);
    }
    match manifest.collection(scope, collection) {
        Some(found) => answer_id(answer, manifest.uid, found.id, out),
        None => {
            let context = format!("There is no collection {collection:?} in the scope {scope:?}");
            answer.manifest_error(Status::UNKNOWN_COLLECTION, &context, manifest.uid, out);
        }
    }
}

/// COLLECTIONS_GET_SCOPE_ID for `scope` (or `scope.collection`, whose second part is ignored).
pub(super) fn scope_id(peer: &Peer, answer: &Answer, request: &Request<'_>, body: &[u8], out: &mut Output) {
    let Some(name) = name(request, body) else {
        return answer.error(Status::EINVAL, "The value must be a scope's name", out);
    };
    let Some(bucket) = selected(peer, answer, out) else { return };
    let manifest = bucket.collections().manifest();
    let scope = or_default(name.split_once('.').map_or(name, |(scope, _)| scope));
    if !peer.may_know(&[scope]) {
        return denied(answer, out);
    }
    match manifest.scope(scope) {
        Some(found) => answer_id(answer, manifest.uid, found.id, out),
        None => {
            let context = format!("There is no scope {scope:?}");
            answer.manifest_error(Status::UNKNOWN_SCOPE, &context, manifest.uid, out);
        }
    }
}
