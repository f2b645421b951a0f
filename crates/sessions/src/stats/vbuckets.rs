//! Statistics of vBuckets: of all, or of the one whose number follows the group's name.

use std::fmt::Arguments;
use std::ops::Range;

use kv::{Bucket, NodeContext, VbId};

type Show = fn(&Bucket, VbId, &mut dyn FnMut(&str, Arguments<'_>));

/// Returns the vBuckets that the words after a group's name select; `None` if they are not the number of one.
fn selected(bucket: &Bucket, group: &[u8]) -> Option<Range<u16>> {
    if group.is_empty() {
        return Some(0..bucket.vbuckets());
    }
    let vb = std::str::from_utf8(group).ok()?.trim().parse().ok().filter(|vb| *vb < bucket.vbuckets())?;
    Some(vb..vb + 1)
}

/// `stats vbucket`, `stats vbucket-details`, `stats vbucket-seqno`, `stats hash` and `stats failovers`. Returns false
/// if `arguments` is none of these.
pub(super) fn gather(
    bucket: &Bucket,
    arguments: &[u8],
    cx: &mut NodeContext,
    emit: &mut dyn FnMut(&str, Arguments<'_>),
) -> bool {
    let at = arguments.iter().position(|byte| *byte == b' ').unwrap_or(arguments.len());
    let (group, rest) = arguments.split_at(at);
    let show: Show = match group {
        b"vbucket" => state,
        b"vbucket-details" => details,
        b"vbucket-seqno" => seqnos,
        b"hash" => hash,
        b"failovers" => failovers,
        _ => return false,
    };
    let Some(vbuckets) = selected(bucket, rest) else { return false };
    let has_seqnos = matches!(group, b"vbucket-details" | b"vbucket-seqno");
    for vb in vbuckets.map(VbId) {
        if has_seqnos {
            bucket.tell_collections(cx, vb);
        }
        show(bucket, vb, emit);
    }
    true
}

fn state(bucket: &Bucket, vb: VbId, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    emit(&format!("vb_{}", vb.0), format_args!("{}", bucket.vbucket_state(vb).name()));
}

fn details(bucket: &Bucket, vb: VbId, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    state(bucket, vb, emit);
    let Some(info) = bucket.vb_info(vb) else { return };
    emit(&format!("vb_{}:num_items", vb.0), format_args!("{}", info.items));
    emit(&format!("vb_{}:max_cas", vb.0), format_args!("{}", info.max_cas));
    seqnos(bucket, vb, emit);
}

/// What the index has of it.
fn hash(bucket: &Bucket, vb: VbId, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let Some(info) = bucket.vb_info(vb) else { return };
    emit(&format!("vb_{}:state", vb.0), format_args!("{}", bucket.vbucket_state(vb).name()));
    emit(&format!("vb_{}:counted", vb.0), format_args!("{}", info.items));
}

fn seqnos(bucket: &Bucket, vb: VbId, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let Some(info) = bucket.vb_info(vb) else { return };
    for (name, figure) in [
        ("uuid", info.uuid),
        ("high_seqno", info.high_seqno),
        ("abs_high_seqno", info.high_seqno),
        ("last_persisted_seqno", info.persisted_seqno),
    ] {
        emit(&format!("vb_{}:{name}", vb.0), format_args!("{figure}"));
    }
}

/// Its history ids, newest first, each with the seqno it began at.
fn failovers(bucket: &Bucket, vb: VbId, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let histories = bucket.histories(vb);
    emit(&format!("vb_{}:num_entries", vb.0), format_args!("{}", histories.len()));
    for (at, (uuid, began_at)) in histories.iter().enumerate() {
        emit(&format!("vb_{}:{at}:id", vb.0), format_args!("{uuid}"));
        emit(&format!("vb_{}:{at}:seq", vb.0), format_args!("{began_at}"));
    }
}
