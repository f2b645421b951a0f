//! What the messages of a stream say.

use kv::NodeContext;
use kv::collections::ForeignChange;
use kv::copying::Foreign;
use kv::follow::{Version, VersionKind, VersionValue};
use wire::dcp::Message;
use wire::dcp::message::{Deletion, Event as Told, Mutation, Prepare};

use super::Stop;

/// Returns what a message says.
pub(super) fn foreign<'a>(message: &Message<'a>, cx: &NodeContext) -> Result<Foreign<'a>, Stop> {
    let text = |name: &'a [u8]| std::str::from_utf8(name).map_err(|_| "a name is no text".to_owned());
    Ok(match *message {
        Message::Marker(marker) => Foreign::Snapshot { start: marker.start, end: marker.end },
        Message::Mutation(mutation) => Foreign::Version(version(&mutation, VersionKind::Document, 0)),
        Message::Prepare(Prepare { mutation, is_deletion, level }) => {
            let kind = if is_deletion { VersionKind::PrepareDeletion } else { VersionKind::Prepare };
            let mut prepare = version(&mutation, kind, level);
            // The time of the deletion. Other producers do not tell it.
            if is_deletion && prepare.expiry == 0 {
                prepare.expiry = cx.now.unix_s;
            }
            Foreign::Version(prepare)
        }
        Message::Deletion(deletion) => deleted(&deletion, VersionKind::Deletion, cx),
        Message::Expiration(deletion) => deleted(&deletion, VersionKind::Expiration, cx),
        Message::Commit(end) => {
            Foreign::Commit { prepared: end.prepared, seqno: end.seqno, stored_key: end.key }
        }
        Message::Abort(end) => {
            Foreign::Abort { prepared: end.prepared, seqno: end.seqno, stored_key: end.key }
        }
        Message::SeqnoAdvanced(seqno) => Foreign::Advanced(seqno),
        Message::SystemEvent(event) => {
            let change = match event.event {
                Told::CreateScope { id, name } => ForeignChange::CreateScope { id, name: text(name)? },
                Told::CreateCollection { scope, id, max_ttl, name } => {
                    // 0: none, whatever the bucket's is.
                    let max_ttl_s = match max_ttl {
                        None => 0,
                        Some(0) => -1,
                        Some(seconds) => i32::try_from(seconds).unwrap_or(i32::MAX),
                    };
                    ForeignChange::CreateCollection { scope, id, name: text(name)?, max_ttl_s }
                }
                Told::DropScope { id } => ForeignChange::DropScope { id },
                Told::DropCollection { scope, id } => ForeignChange::DropCollection { scope, id },
            };
            Foreign::System { seqno: event.seqno, uid: event.manifest, change }
        }
        Message::OutOfOrder(_) | Message::SetVBucketState(_) | Message::StreamEnd(_) | Message::Noop => {
            return Err("a message is no change".to_owned().into());
        }
    })
}

fn version<'a>(mutation: &Mutation<'a>, kind: VersionKind, level: u8) -> Version<'a> {
    let Mutation { seqno, rev, cas, flags, expiry, datatype, key: stored_key, value, .. } = *mutation;
    let value = VersionValue::Bytes(value);
    Version { kind, seqno, rev, cas, flags, expiry, datatype, level, stored_key, value, ..Version::default() }
}

fn deleted<'a>(deletion: &Deletion<'a>, kind: VersionKind, cx: &NodeContext) -> Foreign<'a> {
    let Deletion { seqno, rev, cas, deleted_s, datatype, key: stored_key, value } = *deletion;
    let (value, expiry) = (VersionValue::Bytes(value), deleted_s.unwrap_or(cx.now.unix_s));
    Foreign::Version(Version {
        kind,
        seqno,
        rev,
        cas,
        expiry,
        datatype,
        stored_key,
        value,
        ..Version::default()
    })
}
