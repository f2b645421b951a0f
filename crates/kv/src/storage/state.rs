//! A vBucket's state as the value of a `State` record.
//!
//! ```text
//!   0  1   format, 2; 1 has no seqnos of purges and changes
//!   1  8   version: the highest of several is the newest
//!   9  8   highest seqno
//!  17  8   up to this seqno everything was flushed by flush_all
//!  25  8   highest revision of a deleted document
//!  33  2   histories
//!  35      per history: id 8, seqno it began at 8; oldest first
//!          4 the number of prepares that a flush_all left pending, then the seqno 8 of each
//!          8 up to this seqno deletions may be forgotten
//!          8 uid of the manifest whose changes all have seqnos, 4 the number of changes, and of each: 8 seqno,
//!          8 uid, 1 what has changed, 4 scope, 4 collection
//!          1 state: 0 the default, else 1 to 4 as SET_VBUCKET counts them; the rest is its chains, as JSON
//! ```

use crate::collections::{Change, SystemEvent};
use crate::index::{StateRecord, Told};
use crate::{Topology, VbState};

const FORMAT: u8 = 2;
/// Without purges and changes.
const FORMAT_OLD: u8 = 1;

/// Most histories that are remembered.
const HISTORIES_MAX: usize = 20;

pub(crate) fn encode(state: &StateRecord) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    for number in [state.version, state.high_seqno, state.flushed_seqno, state.max_deleted_rev] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let forgotten = state.histories.len().saturating_sub(HISTORIES_MAX);
    let histories = state.histories.get(forgotten..).unwrap_or_default();
    bytes.extend_from_slice(&(histories.len() as u16).to_le_bytes());
    for (id, seqno) in histories {
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&seqno.to_le_bytes());
    }
    bytes.extend_from_slice(&(state.prepares.len() as u32).to_le_bytes());
    for seqno in &state.prepares {
        bytes.extend_from_slice(&seqno.to_le_bytes());
    }
    bytes.extend_from_slice(&state.purged_seqno.to_le_bytes());
    bytes.extend_from_slice(&state.events.uid.to_le_bytes());
    bytes.extend_from_slice(&(state.events.list.len() as u32).to_le_bytes());
    for Told { seqno, event } in &state.events.list {
        bytes.extend_from_slice(&seqno.to_le_bytes());
        bytes.extend_from_slice(&event.uid.to_le_bytes());
        bytes.push(event.what as u8);
        bytes.extend_from_slice(&event.scope.to_le_bytes());
        bytes.extend_from_slice(&event.collection.to_le_bytes());
    }
    match &state.setting {
        None => bytes.push(0),
        Some((state, topology)) => {
            bytes.push(state.number() as u8);
            bytes.extend_from_slice(topology.to_string().as_bytes());
        }
    }
    bytes
}

/// Decodes a state; `None` if it is not one of ours.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<StateRecord> {
    let bytes = &mut bytes;
    let [format] = take(bytes)?;
    if !matches!(format, FORMAT | FORMAT_OLD) {
        return None;
    }
    let mut state = StateRecord {
        version: number(bytes)?,
        high_seqno: number(bytes)?,
        flushed_seqno: number(bytes)?,
        max_deleted_rev: number(bytes)?,
        ..StateRecord::default()
    };
    for _ in 0..u16::from_le_bytes(take(bytes)?) {
        state.histories.push((number(bytes)?, number(bytes)?));
    }
    for _ in 0..u32::from_le_bytes(take(bytes)?) {
        state.prepares.push(number(bytes)?);
    }
    if format == FORMAT {
        state.purged_seqno = number(bytes)?;
        state.events.uid = number(bytes)?;
        for _ in 0..u32::from_le_bytes(take(bytes)?) {
            state.events.list.push(told(bytes)?);
        }
    }
    let [setting] = take(bytes)?;
    if setting != 0 {
        let topology = Topology::from_json(&serde_json::from_slice(bytes).ok()?).ok()?;
        state.setting = Some((VbState::from_number(u32::from(setting))?, topology));
    }
    Some(state)
}

fn told(bytes: &mut &[u8]) -> Option<Told> {
    let (seqno, uid, [what]) = (number(bytes)?, number(bytes)?, take(bytes)?);
    let what = Change::from_number(what)?;
    let (scope, collection) = (u32::from_le_bytes(take(bytes)?), u32::from_le_bytes(take(bytes)?));
    Some(Told { seqno, event: SystemEvent { uid, what, scope, collection } })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Events;

    #[test]
    fn what_is_encoded_is_decoded() {
        let event = SystemEvent { uid: 2, what: Change::DropScope, scope: 9, collection: 0 };
        let state = StateRecord {
            version: 7,
            high_seqno: u64::MAX >> 16,
            flushed_seqno: 12,
            max_deleted_rev: 3,
            histories: vec![(1, 0), (u64::MAX, 5)],
            prepares: vec![3, 4],
            purged_seqno: 6,
            events: Events { uid: 3, list: vec![Told { seqno: 8, event }] },
            setting: Some((VbState::Replica, Topology::default())),
        };
        let bytes = encode(&state);
        assert_eq!(decode(&bytes), Some(state.clone()));
        let old = StateRecord { purged_seqno: 0, events: Events::default(), ..state };
        let mut bytes = encode(&old);
        // Behind two histories and two prepares.
        let at = 35 + 2 * 16 + 4 + 2 * 8;
        bytes.drain(at..at + 20);
        bytes[0] = FORMAT_OLD;
        assert_eq!(decode(&bytes), Some(old));
        assert_eq!(decode(&bytes[..20]), None);
        assert_eq!(decode(&[]), None);
    }
}
