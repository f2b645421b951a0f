//! STAT: one answer per statistic, then one without key and value.

use kv::{Bucket, NodeContext};
use wire::binary::response::done;
use wire::binary::{Header, Reply, Request, Status};

use super::super::{Output, Peer, Port};
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
    if let Some(what) = request.key.strip_prefix(b"detail ")
        && peer.port == Port::Memcached
    {
        return detail(bucket, what, header, out);
    }
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
        stats::Answer::List | stats::Answer::Reset => true,
        stats::Answer::Unknown | stats::Answer::Refused(_) => false,
    };
    if is_known {
        out.bytes(&done(header, 0));
    }
    is_known
}

/// Answers STAT `detail on`, `detail off` and `detail dump`: what is dumped is the text protocol's answer.
fn detail(bucket: &Bucket, what: &[u8], header: &Header, out: &mut Output) -> bool {
    match what {
        b"on" | b"off" => bucket.prefixes.switch(what == b"on"),
        b"dump" => {
            const NAME: &[u8] = b"detailed";
            let lines = stats::prefix_lines(bucket);
            out.bytes(Reply::to(header, Status::SUCCESS).head(&[], NAME.len(), lines.len()).as_bytes());
            out.bytes(NAME);
            out.bytes(&lines);
        }
        _ => return false,
    }
    out.bytes(&done(header, 0));
    true
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
