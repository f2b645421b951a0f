//! Operations with metadata (SET, ADD and DELETE_WITH_META): a version that was made in another cluster.
//!
//! ```text
//!   extras  flags 4 | expiry 4 | revision 8 | CAS 8 [ | options 4 ] [ | length of the extended metadata 2 ]
//!   value   value | extended metadata: version 1 | (id 1, length 2, field) ..
//! ```

use serde_json::{Map, Value};

use crate::dcp::Malformed;

/// Bits of the options.
pub mod options {
    /// The version is taken whatever there is.
    pub const SKIP_CONFLICT_RESOLUTION: u32 = 0x01;
    /// Required in a bucket that resolves conflicts by time, and not allowed in any other.
    pub const FORCE_ACCEPT: u32 = 0x02;
    /// The node gives it a CAS of its own; only with [`SKIP_CONFLICT_RESOLUTION`].
    pub const REGENERATE_CAS: u32 = 0x04;
    /// A deletion because the document had expired.
    pub const IS_EXPIRATION: u32 = 0x10;
    /// All of them.
    pub(super) const KNOWN: u32 = SKIP_CONFLICT_RESOLUTION | FORCE_ACCEPT | REGENERATE_CAS | IS_EXPIRATION;
}

/// The extras of such an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WithMeta {
    /// The client's flags.
    pub flags: u32,
    /// When the document expires, in unix seconds, or was deleted.
    pub expiry: u32,
    /// Its revision.
    pub rev: u64,
    /// Its CAS.
    pub cas: u64,
    /// See [`options`].
    pub options: u32,
    /// The bytes of extended metadata behind the value.
    pub meta_len: usize,
}

impl WithMeta {
    /// Decodes extras of 24, 26, 28 or 30 bytes.
    pub fn decode(extras: &[u8]) -> Option<Self> {
        let (fixed, rest) = extras.split_at_checked(24)?;
        let long = |at: usize| fixed.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
        let word = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_be_bytes);
        let (options, meta_len) = match rest.len() {
            0 | 2 => (0, rest),
            4 | 6 => (word(&rest[..4])?, &rest[4..]),
            _ => return None,
        };
        let meta_len = match *meta_len {
            [high, low] => u16::from_be_bytes([high, low]),
            _ => 0,
        };
        Some(Self {
            flags: word(&fixed[..4])?,
            expiry: word(&fixed[4..8])?,
            rev: long(8)?,
            cas: long(16)?,
            options,
            meta_len: usize::from(meta_len),
        })
    }

    /// Returns true if the options have this bit.
    pub const fn has(&self, option: u32) -> bool {
        self.options & option != 0
    }
}

/// What MUTATE_WITH_META does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Stores a document.
    Set,
    /// The same, if there is none.
    Add,
    /// Deletes one.
    Delete,
}

/// The metadata of MUTATE_WITH_META, which come as JSON behind the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonMeta {
    /// What it does.
    pub command: Command,
    /// As the other operations have it. Without a CAS the node gives it one.
    pub meta: WithMeta,
    /// Where the new CAS is to be written in the extended attributes.
    pub cas_offsets: Vec<usize>,
    /// Where the new seqno is.
    pub seqno_offsets: Vec<usize>,
}

/// Most offsets of a kind.
const OFFSETS_MOST: usize = 1000;
/// Options have other bits here, beside those of the other operations.
const JSON_SKIP_CONFLICT_RESOLUTION: u64 = 0x08;
const JSON_FORCE_ACCEPT: u64 = 0x20;

impl JsonMeta {
    /// Parses it. Numbers are JSON numbers, or strings in decimal or, after `0x`, in hexadecimal.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        let members: Map<String, Value> =
            serde_json::from_slice(text).map_err(|_| Malformed("The metadata must be a JSON object"))?;
        let command = match members.get("command").and_then(Value::as_str) {
            Some("set") => Command::Set,
            Some("add") => Command::Add,
            Some("delete") => Command::Delete,
            _ => return Err(Malformed("command must be set, add or delete")),
        };
        let known =
            ["command", "cas", "expiration", "flags", "rev_seqno", "options", "cas_offsets", "seqno_offsets"];
        if members.keys().any(|name| !known.contains(&name.as_str())) {
            return Err(Malformed("The metadata have a member that is not known"));
        }
        let long = |name: &str| match members.get(name) {
            None => Ok(None),
            Some(value) => number(value).map(Some).ok_or(Malformed("A member must be a number")),
        };
        let word = |name: &str| match long(name)?.map(u32::try_from) {
            None => Ok(0),
            Some(Ok(word)) => Ok(word),
            Some(Err(_)) => Err(Malformed("flags and expiration must be below 2^32")),
        };
        let offsets = |name: &str| match members.get(name) {
            None => Ok(Vec::new()),
            Some(list) => {
                let list = list.as_array().filter(|list| list.len() <= OFFSETS_MOST);
                let list = list.map(|list| list.iter().map(|at| number(at).map(|at| at as usize)).collect());
                list.flatten().ok_or(Malformed("Offsets must be an array of at most 1000 numbers"))
            }
        };
        let (cas, raw) = (long("cas")?, long("options")?.unwrap_or_default());
        let mut bits = raw as u32 & options::KNOWN;
        for (json, bit) in [
            (JSON_SKIP_CONFLICT_RESOLUTION, options::SKIP_CONFLICT_RESOLUTION),
            (JSON_FORCE_ACCEPT, options::FORCE_ACCEPT),
        ] {
            bits |= if raw & json != 0 { bit } else { 0 };
        }
        if raw & !(u64::from(options::KNOWN) | JSON_SKIP_CONFLICT_RESOLUTION | JSON_FORCE_ACCEPT) != 0 {
            return Err(Malformed("An option is not known"));
        }
        if cas.is_some() && bits & options::REGENERATE_CAS != 0 {
            return Err(Malformed("cas and the option REGENERATE_CAS exclude each other"));
        }
        let meta = Self {
            command,
            meta: WithMeta {
                flags: word("flags")?,
                expiry: word("expiration")?,
                rev: long("rev_seqno")?.unwrap_or_default(),
                cas: cas.unwrap_or_default(),
                options: bits | if cas.is_none() { options::REGENERATE_CAS } else { 0 },
                meta_len: text.len(),
            },
            cas_offsets: offsets("cas_offsets")?,
            seqno_offsets: offsets("seqno_offsets")?,
        };
        if !meta.cas_offsets.is_empty() && bits & options::REGENERATE_CAS == 0 {
            return Err(Malformed("cas_offsets need the option REGENERATE_CAS"));
        }
        Ok(meta)
    }
}

fn number(value: &Value) -> Option<u64> {
    let Some(text) = value.as_str() else { return value.as_u64() };
    match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => text.parse().ok(),
    }
}

/// Returns true if extended metadata is well-formed. Nothing in it has a meaning here.
pub fn is_valid(meta: &[u8]) -> bool {
    let Some((1, mut rest)) = meta.split_first().map(|(version, rest)| (*version, rest)) else {
        return meta.is_empty();
    };
    while let Some(([_, high, low], fields)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let Some(left) = fields.get(length..) else { return false };
        rest = left;
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_are_decoded() {
        let mut extras = Vec::new();
        extras.extend(7u32.to_be_bytes());
        extras.extend(8u32.to_be_bytes());
        extras.extend(9u64.to_be_bytes());
        extras.extend(10u64.to_be_bytes());
        let short = WithMeta { flags: 7, expiry: 8, rev: 9, cas: 10, ..WithMeta::default() };
        assert_eq!(WithMeta::decode(&extras), Some(short));
        assert_eq!(
            WithMeta::decode(&[&extras[..], &[0, 3]].concat()),
            Some(WithMeta { meta_len: 3, ..short })
        );
        let with_options = [&extras[..], &[0, 0, 0, 5]].concat();
        let decoded = WithMeta::decode(&with_options).unwrap();
        assert!(decoded.has(options::SKIP_CONFLICT_RESOLUTION) && !decoded.has(options::FORCE_ACCEPT));
        let whole = [&with_options[..], &[1, 0]].concat();
        assert_eq!(WithMeta::decode(&whole), Some(WithMeta { options: 5, meta_len: 256, ..short }));
        for len in [0, 23, 25, 27, 29, 31] {
            assert_eq!(WithMeta::decode(&vec![0; len]), None, "{len}");
        }
    }

    #[test]
    fn metadata_as_json() {
        let parse = |text: &str| JsonMeta::parse(text.as_bytes());
        let text =
            r#"{"command":"add","cas":"0x10","expiration":"7","flags":8,"rev_seqno":9,"options":"0x28"}"#;
        let parsed = parse(text).unwrap();
        let options = options::SKIP_CONFLICT_RESOLUTION | options::FORCE_ACCEPT;
        let meta = WithMeta { flags: 8, expiry: 7, rev: 9, cas: 16, options, meta_len: text.len() };
        assert_eq!((parsed.command, parsed.meta), (Command::Add, meta));
        let parsed =
            parse(r#"{"command":"set","options":4,"cas_offsets":[5,"0x6"],"seqno_offsets":[]}"#).unwrap();
        assert_eq!((parsed.cas_offsets, parsed.meta.cas), (vec![5, 6], 0));
        assert!(parse(r#"{"command":"delete"}"#).unwrap().meta.has(options::REGENERATE_CAS));
        for malformed in [
            "",
            "[]",
            "{}",
            r#"{"command":"get"}"#,
            r#"{"command":"set","more":1}"#,
            r#"{"command":"set","cas":-1}"#,
            r#"{"command":"set","cas":"0x+1"}"#,
            r#"{"command":"set","flags":4294967296}"#,
            r#"{"command":"set","options":64}"#,
            r#"{"command":"set","options":4,"cas":1}"#,
            r#"{"command":"set","cas":1,"cas_offsets":[1]}"#,
            r#"{"command":"set","options":4,"cas_offsets":1}"#,
        ] {
            assert!(parse(malformed).is_err(), "{malformed}");
        }
    }

    #[test]
    fn extended_metadata_is_checked() {
        for valid in [&b""[..], &[1], &[1, 2, 0, 1, 9], &[1, 1, 0, 0, 2, 0, 2, 7, 7]] {
            assert!(is_valid(valid), "{valid:?}");
        }
        for malformed in [&[0][..], &[2], &[1, 2], &[1, 2, 0, 2, 9], &[1, 2, 0, 1, 9, 9]] {
            assert!(!is_valid(malformed), "{malformed:?}");
        }
    }
}
