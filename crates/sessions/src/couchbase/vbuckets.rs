//! Queries and commands for vBuckets: SET_VBUCKET, GET_VBUCKET, DEL_VBUCKET, GET_FAILOVER_LOG.

use std::sync::Arc;

use kv::users::roles::Rights;
use kv::{Bucket, NodeContext, RoleChange, RoleError, VbId, VbState};
use wire::binary::{Opcode, Request, Status};

use super::super::waits::Touch;
use super::super::{Output, Peer};
use super::answer::{Answer, Pending};
use super::documents::Waiting;

/// The vBucket that a request names; `None` if an error has been answered.
fn target(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    cx: &NodeContext,
    out: &mut Output,
) -> Option<(Arc<Bucket>, VbId)> {
    let bucket = super::selected(peer, answer, out)?;
    if request.header.vbucket >= bucket.vbuckets() {
        super::handshake::not_my_vbucket(peer, answer, cx, out);
        return None;
    }
    let vb = VbId(request.header.vbucket);
    if let Some(why) = bucket.closed(vb) {
        // Its state and chains are in the journal and have not been read yet.
        super::documents::refuse(answer, why.into(), out);
        return None;
    }
    Some((bucket, vb))
}

/// SET_VBUCKET: the extras are the state, 1 or 4 bytes; the value, if there is one, is
/// `{"topology":[[...],[...]],"source":"node","term":1,"takeover":true}`. What is not named stays. The topology `null`
/// means this node alone. A term is answered once the promise to accept nothing lower is on disk.
pub(super) fn set(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    body: &[u8],
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let number = match *request.extras {
        [state] => u32::from(state),
        [b0, b1, b2, b3] => u32::from_be_bytes([b0, b1, b2, b3]),
        _ => 0,
    };
    let Some(state) = VbState::from_number(number).filter(|_| request.key.is_empty()) else {
        let context = "The extras must be the state, 1 to 4, in 1 or 4 bytes; there must be no key";
        return answer.error(Status::EINVAL, context, out);
    };
    let change = match change(body) {
        Ok(change) => RoleChange { state: Some(state), ..change },
        Err(context) => return answer.error(Status::EINVAL, &context, out),
    };
    let Some((bucket, vb)) = target(peer, answer, request, cx, out) else { return };
    let needed = change.needs(&cx.node.name(), &cx.node.replication());
    if !peer.may_everywhere(Rights::BUCKET) {
        return super::denied(answer, out);
    }
    if !peer.may_everywhere(needed) {
        let context = "Only a full administrator names nodes that are none of this one's peers";
        return answer.error(Status::EACCESS, context, out);
    }
    let has_term = change.term.is_some();
    match bucket.set_role(cx, vb, change) {
        Ok(()) => cx.node.note_map_change(),
        Err(error @ RoleError::Term { .. }) => return answer.error(Status::ERANGE, &error.to_string(), out),
        Err(error @ RoleError::Refilling) => return answer.error(Status::ETMPFAIL, &error.to_string(), out),
        Err(error) => return answer.error(Status::EINVAL, &error.to_string(), out),
    }
    if !has_term {
        return answer.success(out);
    }
    let cookie = peer.cookie(cx);
    match bucket.await_promise(cx, vb, cookie) {
        Ok(true) => answer.success(out),
        Ok(false) => {
            let pending = Pending::new(Answer::new(peer, request, cx), Waiting::default(), cx);
            peer.wait(cookie, Touch::Nothing, pending);
        }
        Err(error) => super::documents::refuse(answer, error, out),
    }
}

fn change(body: &[u8]) -> Result<RoleChange, String> {
    if body.is_empty() {
        return Ok(RoleChange::default());
    }
    let document = serde_json::from_slice(body).map_err(|_| "The value must be a JSON object".to_owned())?;
    RoleChange::from_json(&document)
}

/// GET_VBUCKET: the state, 4 bytes. (The chains are in `stats durability-monitor`.)
///
/// GET_FAILOVER_LOG, as DCP's: the vBucket's histories, newest first, each as `UUID 8 | seqno at which it began 8`. A
/// vBucket that has never lost anything has one history, from 0 on.
pub(super) fn ask(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    is_bare: bool,
    cx: &mut NodeContext,
    out: &mut Output,
) {
    if !is_bare {
        return answer.not_bare(out);
    }
    let Some((bucket, vb)) = target(peer, answer, request, cx, out) else { return };
    let value: Vec<u8> = if request.header.opcode != Opcode::GET_VBUCKET {
        super::dcp::failover_log(&bucket, vb)
    } else {
        bucket.vbucket_state(vb).number().to_be_bytes().into()
    };
    answer.value(0, &[], &value, out);
}

/// DEL_VBUCKET: deletes its documents and makes it dead.
pub(super) fn delete(
    peer: &mut Peer,
    answer: &Answer,
    request: &Request<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) {
    if !request.key.is_empty() || !request.extras.is_empty() {
        return answer.error(Status::EINVAL, "The request must not have extras or a key", out);
    }
    let Some((bucket, vb)) = target(peer, answer, request, cx, out) else { return };
    if !peer.may_everywhere(Rights::BUCKET) {
        return super::denied(answer, out);
    }
    match bucket.delete_vbucket(cx, vb) {
        Ok(()) => answer.success(out),
        Err(error) => super::documents::refuse(answer, error, out),
    }
}
