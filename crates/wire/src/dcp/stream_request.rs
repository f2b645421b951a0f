//! STREAM_REQ: from where to where a vBucket's stream goes, and what of it is wanted.
//!
//! ```text
//!   extras   flags 4 | 0 4 | start 8 | end 8 | vBucket UUID 8 | snapshot start 8 | snapshot end 8
//!   value    {"uid":"b4","sid":71,"collections":["0","8a"],"scope":"9","purge_seqno":"81021",
//!            "term":3,"tell_end":true}, or nothing
//! ```

use serde_json::{Map, Value};

use super::Malformed;

/// Bytes of the extras.
pub const EXTRAS_BYTES: usize = 48;
/// Most collections that a filter may name.
pub const COLLECTIONS_MOST: usize = 1200;

/// Flags of STREAM_REQ.
pub mod flags {
    /// The consumer takes the vBucket over: the stream ends with the change of states.
    pub const TAKEOVER: u32 = 0x01;
    /// Only what is on disk.
    pub const DISK_ONLY: u32 = 0x02;
    /// The end is the highest seqno of now.
    pub const TO_LATEST: u32 = 0x04;
    /// Only if the vBucket is active.
    pub const ACTIVE_ONLY: u32 = 0x10;
    /// The UUID must be the right one even from the beginning.
    pub const STRICT_UUID: u32 = 0x20;
    /// The start is the highest seqno of now.
    pub const FROM_LATEST: u32 = 0x40;
    /// Deletions that are no longer known do not matter.
    pub const IGNORE_PURGED_TOMBSTONES: u32 = 0x80;
}

/// Which collections a stream is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Filter {
    /// All.
    #[default]
    Everything,
    /// These.
    Collections(Vec<u32>),
    /// All of a scope.
    Scope(u32),
}

/// A STREAM_REQ.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamRequest {
    /// See [`flags`].
    pub flags: u32,
    /// The last seqno that the consumer has.
    pub start: u64,
    /// The stream ends with the snapshot that holds this seqno.
    pub end: u64,
    /// The history that `start` is part of; 0 if the consumer has nothing.
    pub uuid: u64,
    /// The snapshot that `start` is part of.
    pub snapshot_start: u64,
    /// Its end.
    pub snapshot_end: u64,
    /// What is wanted.
    pub filter: Filter,
    /// Tells several streams of a vBucket apart.
    pub stream_id: Option<u16>,
    /// The consumer knows which deletions were purged up to here.
    pub purge_seqno: u64,
    /// The consumer is a replica, which has promised this term.
    pub term: Option<u64>,
    /// The consumer wants to be told when it has everything, even if nothing is sent.
    pub tells_end: bool,
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk::<8>).map_or(0, |chunk| u64::from_be_bytes(*chunk))
}

impl StreamRequest {
    /// Decodes extras and value.
    pub fn decode(extras: &[u8], value: &[u8]) -> Result<Self, Malformed> {
        let (Some(flags), EXTRAS_BYTES) = (extras.first_chunk::<4>(), extras.len()) else {
            return Err(Malformed("The extras must be 48 bytes: flags, 0, and five numbers of 8 bytes"));
        };
        let mut request = Self {
            flags: u32::from_be_bytes(*flags),
            start: be64(extras, 8),
            end: be64(extras, 16),
            uuid: be64(extras, 24),
            snapshot_start: be64(extras, 32),
            snapshot_end: be64(extras, 40),
            ..Self::default()
        };
        if !value.is_empty() {
            request.read_options(value)?;
        }
        Ok(request)
    }

    fn read_options(&mut self, value: &[u8]) -> Result<(), Malformed> {
        let options: Map<String, Value> =
            serde_json::from_slice(value).map_err(|_| Malformed("The value must be a JSON object"))?;
        if options.get("uid").is_some_and(|uid| uid.as_str().and_then(hex64).is_none()) {
            return Err(Malformed("uid must be a string: the manifest's UID, hexadecimal"));
        }
        if let Some(id) = options.get("sid") {
            let id = id.as_u64().and_then(|id| u16::try_from(id).ok()).filter(|id| *id > 0);
            self.stream_id = Some(id.ok_or(Malformed("sid must be a number from 1 to 65535"))?);
        }
        if let Some(seqno) = options.get("purge_seqno") {
            let seqno = seqno.as_str().and_then(|text| text.parse().ok());
            self.purge_seqno = seqno.ok_or(Malformed("purge_seqno must be a string: a decimal number"))?;
        }
        if let Some(term) = options.get("term") {
            self.term = Some(term.as_u64().ok_or(Malformed("term must be a number, from 0 on"))?);
        }
        if let Some(tells_end) = options.get("tell_end") {
            self.tells_end = tells_end.as_bool().ok_or(Malformed("tell_end must be true or false"))?;
        }
        self.filter = match (options.get("collections"), options.get("scope")) {
            (None, None) => Filter::Everything,
            (Some(collections), None) => Filter::Collections(ids(collections)?),
            (None, Some(scope)) => {
                let id = scope.as_str().and_then(hex32);
                Filter::Scope(id.ok_or(Malformed("scope must be a string: its id, hexadecimal"))?)
            }
            (Some(_), Some(_)) => return Err(Malformed("collections and scope exclude each other")),
        };
        Ok(())
    }

    /// Its extras.
    pub fn extras(&self) -> [u8; EXTRAS_BYTES] {
        let mut extras = [0; EXTRAS_BYTES];
        extras[..4].copy_from_slice(&self.flags.to_be_bytes());
        let numbers = [self.start, self.end, self.uuid, self.snapshot_start, self.snapshot_end];
        for (place, number) in extras[8..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        extras
    }

    /// Its value, for a request of everything.
    pub fn value(&self) -> Vec<u8> {
        debug_assert!(self.filter == Filter::Everything && self.stream_id.is_none());
        let tells_end = if self.tells_end { ",\"tell_end\":true" } else { "" };
        self.term.map_or_else(Vec::new, |term| format!("{{\"term\":{term}{tells_end}}}").into_bytes())
    }

    /// Returns true if it has this flag.
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

fn ids(collections: &Value) -> Result<Vec<u32>, Malformed> {
    let ids: Option<Vec<u32>> = collections
        .as_array()
        .filter(|list| (1..=COLLECTIONS_MOST).contains(&list.len()))
        .and_then(|list| list.iter().map(|id| id.as_str().and_then(hex32)).collect());
    ids.ok_or(Malformed("collections must be an array of 1 to 1200 strings: their ids, hexadecimal"))
}

fn hex64(text: &str) -> Option<u64> {
    (!text.starts_with('+')).then(|| u64::from_str_radix(text, 16).ok())?
}

fn hex32(text: &str) -> Option<u32> {
    u32::try_from(hex64(text)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_encoding() {
        let request = StreamRequest {
            flags: flags::ACTIVE_ONLY,
            start: 0xff_eedd,
            end: u64::MAX,
            uuid: 0xfeed_deca,
            snapshot_start: 0xff_ee00,
            snapshot_end: 0xff_eeff,
            ..StreamRequest::default()
        };
        assert_eq!(StreamRequest::decode(&request.extras(), &request.value()), Ok(request.clone()));
        for tells_end in [false, true] {
            let request = StreamRequest { term: Some(7), tells_end, ..request.clone() };
            assert_eq!(StreamRequest::decode(&request.extras(), &request.value()), Ok(request));
        }
    }

    #[test]
    fn options_say_what_is_wanted() {
        let decode = |text: &str| StreamRequest::decode(&[0; EXTRAS_BYTES], text.as_bytes());
        let all = decode(r#"{"uid":"b4","sid":71,"collections":["0","8A"],"purge_seqno":"81021","other":1}"#)
            .unwrap();
        assert_eq!(all.filter, Filter::Collections(vec![0, 0x8a]));
        assert_eq!((all.stream_id, all.purge_seqno), (Some(71), 81021));
        assert_eq!(decode(r#"{"scope":"9"}"#).unwrap().filter, Filter::Scope(9));
        assert_eq!(decode("{}").unwrap(), StreamRequest::default());
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for extras in [&[0; 47][..], &[0; 49], &[]] {
            assert!(StreamRequest::decode(extras, b"").is_err());
        }
        for text in [
            "[]",
            "x",
            r#"{"uid":180}"#,
            r#"{"uid":"0xb4"}"#,
            r#"{"sid":0}"#,
            r#"{"sid":65536}"#,
            r#"{"sid":"1"}"#,
            r#"{"collections":"0"}"#,
            r#"{"collections":[]}"#,
            r#"{"collections":[0]}"#,
            r#"{"collections":["100000000"]}"#,
            r#"{"scope":9}"#,
            r#"{"scope":"9","collections":["0"]}"#,
            r#"{"purge_seqno":81021}"#,
            r#"{"purge_seqno":"-1"}"#,
            r#"{"term":-1}"#,
            r#"{"term":"1"}"#,
            r#"{"tell_end":1}"#,
        ] {
            assert!(StreamRequest::decode(&[0; EXTRAS_BYTES], text.as_bytes()).is_err(), "{text}");
        }
    }
}
