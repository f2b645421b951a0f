//! STAT: one answer per statistic, then one without key and value.

use kv::{Bucket, NodeContext};
use wire::binary::response::done;
use wire::binary::{Reply, Request, Status};

use super::super::{Output, Peer};
use crate::stats;

/// Answers STAT for the group that the key names. Returns false, without an answer, if there is no such group.
pub(crate) fn answer(
    bucket: &Bucket,
    peer: &Peer,
    request: &Request<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> bool {
    let header = &request.header;
    let mut text = String::new();
    let answer = stats::gather(bucket, peer, request.key, cx, &mut |name, value| {
        text.clear();
        // Writing to a string cannot fail.
        let _ = std::fmt::write(&mut text, value);
        out.bytes(Reply::to(header, Status::SUCCESS).head(&[], name.len(), text.len()).as_bytes());
        out.bytes(name.as_bytes());
        out.bytes(text.as_bytes());
    });
    let is_known = match answer {
        stats::Answer::List | stats::Answer::Entry | stats::Answer::Reset => true,
        stats::Answer::Unknown | stats::Answer::Refused(_) => false,
    };
    if is_known {
        out.bytes(&done(header, 0));
    }
    is_known
}

/// Answers with the given statistics.
pub(crate) fn listed(request: &Request<'_>, statistics: &[(&str, String)], out: &mut Output) {
    let header = &request.header;
    for (name, value) in statistics {
        out.bytes(Reply::to(header, Status::SUCCESS).head(&[], name.len(), value.len()).as_bytes());
        out.bytes(name.as_bytes());
        out.bytes(value.as_bytes());
    }
    out.bytes(&done(header, 0));
}
