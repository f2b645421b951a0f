//! A vBucket's state as the value of a `State` record.
//!
//! ```text
//!   0  1   format, 4; 1 has no seqnos of purges and changes, 2 no base, and of the role only state and chains, 3 no terms
//!   1  8   version: the highest of several is the newest
//!   9  8   highest seqno on disk
//!  17  8   up to this seqno on disk everything was flushed by flush_all
//!  25  8   highest revision of a deleted document
//!  33  2   histories
//!  35      per history: id 8, seqno it began at 8; oldest first
//!          4 the number of prepares that a flush_all left pending, then the seqno 8 of each
//!          8 up to this seqno deletions may be forgotten
//!          8 uid of the manifest whose changes all have seqnos, 4 the number of changes, and of each: 8 seqno,
//!          8 uid, 1 what has changed, 4 scope, 4 collection
//!          8 base: what the seqnos on disk are above those that clients see
//!          2 the number of terms of its changes, and of each 8 the term, 8 the seqno at which it began, big-endian
//!          1 state: 0 the default, else 1 to 4 as SET_VBUCKET counts them, and then: 8 term, 1 bits: 1 takes over,
//!          2 copied, 4 emptied; 8 and 8 the snapshot that was copied last, 2 length of the source's name, the name; the rest is
//!          its chains, as JSON
//! ```
//! A vBucket that is emptied and refilled from its active begins anew with seqno 1. On disk its seqnos go on: what is
//! there up to the base is void, as after a flush_all.

use crate::collections::{Change, SystemEvent};
use crate::election::Lacks;
use crate::index::{StateRecord, Told};
use crate::sync_writes::{Copied, Setting};
use crate::terms::{TERM_BYTES, Terms};
use crate::{Role, Topology, VbState};

const FORMAT: u8 = 4;
/// Without terms.
const FORMAT_WITHOUT_TERMS: u8 = 3;
/// Without purges and changes.
const FORMAT_FIRST: u8 = 1;
/// Bits of a role.
const TAKES_OVER: u8 = 1;
const COPIED: u8 = 2;
const EMPTIED: u8 = 4;
const LACKS_UNWRITTEN: u8 = 8;
const LACKS_ANYTHING: u8 = 16;

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
    bytes.extend_from_slice(&state.base.to_le_bytes());
    let (terms, encoded) = state.terms.encode();
    bytes.extend_from_slice(&terms.to_le_bytes());
    bytes.extend_from_slice(&encoded);
    match &state.setting {
        None => bytes.push(0),
        Some(Setting { role, copied }) => {
            bytes.push(role.state.number() as u8);
            bytes.extend_from_slice(&role.term.to_le_bytes());
            let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
            let bits = bit(role.takes_over, TAKES_OVER) | bit(copied.is_any, COPIED);
            let lacks = match copied.lacks {
                Lacks::Nothing => 0,
                Lacks::Unwritten => LACKS_UNWRITTEN,
                Lacks::Anything => LACKS_ANYTHING,
            };
            bytes.push(bits | bit(copied.is_emptied, EMPTIED) | lacks);
            bytes.extend_from_slice(&copied.snapshot.0.to_le_bytes());
            bytes.extend_from_slice(&copied.snapshot.1.to_le_bytes());
            let source = role.source.as_deref().unwrap_or_default();
            bytes.extend_from_slice(&(source.len() as u16).to_le_bytes());
            bytes.extend_from_slice(source.as_bytes());
            bytes.extend_from_slice(role.topology.to_string().as_bytes());
        }
    }
    bytes
}

/// Decodes a state; `None` if it is not one of ours.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<StateRecord> {
    let bytes = &mut bytes;
    let [format] = take(bytes)?;
    if !(FORMAT_FIRST..=FORMAT).contains(&format) {
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
    if format > FORMAT_FIRST {
        state.purged_seqno = number(bytes)?;
        state.events.uid = number(bytes)?;
        for _ in 0..u32::from_le_bytes(take(bytes)?) {
            state.events.list.push(told(bytes)?);
        }
    }
    if format >= FORMAT_WITHOUT_TERMS {
        state.base = number(bytes)?;
    }
    if format == FORMAT {
        let terms = usize::from(u16::from_le_bytes(take(bytes)?)) * TERM_BYTES;
        let (encoded, rest) = bytes.split_at_checked(terms)?;
        state.terms = Terms::decode(encoded)?;
        *bytes = rest;
    }
    let [of_role] = take(bytes)?;
    if of_role != 0 {
        let mut setting = Setting::default();
        setting.role.state = VbState::from_number(u32::from(of_role))?;
        if format >= FORMAT_WITHOUT_TERMS {
            read_role(bytes, &mut setting)?;
        }
        setting.role.topology = Topology::from_json(&serde_json::from_slice(bytes).ok()?).ok()?;
        state.setting = Some(setting);
    }
    Some(state)
}

/// Reads of a role what is between its state and its chains.
fn read_role(bytes: &mut &[u8], setting: &mut Setting) -> Option<()> {
    let Setting { role: Role { term, source, takes_over, .. }, copied } = setting;
    let Copied { is_any, snapshot, is_emptied, lacks, knows_end: _ } = copied;
    *term = number(bytes)?;
    let [bits] = take(bytes)?;
    (*takes_over, *is_any) = (bits & TAKES_OVER != 0, bits & COPIED != 0);
    *is_emptied = bits & EMPTIED != 0;
    *lacks = match bits & (LACKS_UNWRITTEN | LACKS_ANYTHING) {
        0 => Lacks::Nothing,
        LACKS_UNWRITTEN => Lacks::Unwritten,
        _ => Lacks::Anything,
    };
    *snapshot = (number(bytes)?, number(bytes)?);
    let length = u16::from_le_bytes(take(bytes)?);
    let (name, rest) = bytes.split_at_checked(length.into())?;
    *bytes = rest;
    let name = std::str::from_utf8(name).ok()?;
    *source = (!name.is_empty()).then(|| name.into());
    Some(())
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
        let mut terms = Terms::default();
        terms.begin(2, 0);
        terms.begin(7, 5);
        let state = StateRecord {
            version: 7,
            high_seqno: u64::MAX >> 16,
            flushed_seqno: 12,
            max_deleted_rev: 3,
            histories: vec![(1, 0), (u64::MAX, 5)],
            terms,
            prepares: vec![3, 4],
            purged_seqno: 6,
            events: Events { uid: 3, list: vec![Told { seqno: 8, event }] },
            base: 99,
            setting: Some(Setting {
                role: Role {
                    state: VbState::Pending,
                    term: 8,
                    source: Some("n1".into()),
                    takes_over: true,
                    ..Role::default()
                },
                copied: Copied {
                    is_any: true,
                    snapshot: (4, 9),
                    is_emptied: true,
                    lacks: Lacks::Unwritten,
                    knows_end: false,
                },
            }),
        };
        let bytes = encode(&state);
        assert_eq!(decode(&bytes), Some(state.clone()));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "{cut}");
        }
        // Earlier formats knew no terms.
        let terms_at = bytes.len() - r#"null"#.len() - 1 - 8 - 1 - 16 - 2 - "n1".len() - 2 * TERM_BYTES - 2;
        let mut without = bytes.clone();
        without.drain(terms_at..terms_at + 2 + 2 * TERM_BYTES);
        without[0] = FORMAT_WITHOUT_TERMS;
        let state = StateRecord { terms: Terms::default(), ..state };
        assert_eq!(decode(&without), Some(state.clone()));
        // Even earlier ones knew state and chains only.
        let role = Role { state: VbState::Replica, ..Role::default() };
        let setting = Some(Setting { role, copied: Copied::default() });
        let old = StateRecord { base: 0, setting, ..state };
        let mut bytes = encode(&old);
        let before_role = bytes.len() - "null".len() - 1 - 27;
        bytes.drain(before_role + 1..before_role + 1 + 27);
        bytes.drain(before_role - 8 - 2..before_role);
        bytes[0] = 2;
        assert_eq!(decode(&bytes), Some(old.clone()));
        let oldest = StateRecord { purged_seqno: 0, events: Events::default(), ..old };
        // Behind two histories and two prepares.
        let at = 35 + 2 * 16 + 4 + 2 * 8;
        bytes.drain(at..at + 20 + 25);
        bytes[0] = FORMAT_FIRST;
        assert_eq!(decode(&bytes), Some(oldest));
    }
}
