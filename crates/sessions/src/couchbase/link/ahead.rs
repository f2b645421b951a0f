//! Loads ahead what the next messages need: their vBuckets, and the places of their keys.

use arrayvec::ArrayVec;
use kv::{Bucket, Place, VbId};
use wire::binary::{HEADER_LEN, Header, Magic, Opcode};

/// So many messages at a time.
const MESSAGES: usize = 16;
/// Most bytes of an item that are loaded.
const BYTES_MOST: usize = 512;

/// Starts loading what the first messages need. Returns their bytes. Within a quiescence section.
pub(super) fn load(bucket: &Bucket, input: &[u8]) -> usize {
    let mut places = ArrayVec::<(Place, usize), MESSAGES>::new();
    let mut at = 0;
    while let Some(rest) = input.get(at..).filter(|_| !places.is_full())
        && let Some(head) = rest.first_chunk()
    {
        let header = Header::decode(head);
        let length = HEADER_LEN.saturating_add(header.body_len as usize);
        if rest.len() < length {
            break;
        }
        at += length;
        let is_change = matches!(
            header.opcode,
            Opcode::DCP_MUTATION
                | Opcode::DCP_DELETION
                | Opcode::DCP_EXPIRATION
                | Opcode::DCP_PREPARE
                | Opcode::DCP_COMMIT
                | Opcode::DCP_ABORT
        );
        let key_at = HEADER_LEN + usize::from(header.extras_len);
        let key = rest.get(key_at..key_at + usize::from(header.key_len)).unwrap_or_default();
        if header.magic == Magic::REQUEST && is_change && header.vbucket < bucket.vbuckets() {
            let place = bucket.locate_stored(key, VbId(header.vbucket));
            bucket.prefetch_vbucket(place);
            places.push((place, length.min(BYTES_MOST)));
        }
    }
    places.iter().for_each(|(place, _)| bucket.prefetch_directory(*place));
    places.iter().for_each(|(place, _)| bucket.prefetch_line(*place));
    places.iter().for_each(|(place, bytes)| bucket.prefetch_item(*place, *bytes));
    at
}
