//! What a consumer is shown of a value: with or without extended attributes, compressed or not, or nothing.

use kv::PinnedValue;
use kv::follow::VersionValue;
use wire::binary::datatype::{JSON, RAW, SNAPPY, XATTR};
use wire::dcp::open::flags;
use wire::{snappy, xattrs};

/// A shorter value is not worth compressing.
const COMPRESSED_LEAST: usize = 64;

/// What a connection has asked to be shown.
pub(super) struct Showing<'a> {
    /// Flags of OPEN.
    pub(super) flags: u32,
    pub(super) has_snappy: bool,
    pub(super) has_json: bool,
    /// Compress what is not.
    pub(super) compresses: bool,
    /// Deletions keep the attributes that users gave.
    pub(super) keeps_user_xattrs: bool,
    pub(super) compressor: &'a mut snappy::Compressor,
}

/// A value as it is shown.
pub(super) enum Shown<'a> {
    Bytes(&'a [u8]),
    /// Made for the consumer.
    Made(Vec<u8>),
    /// A long one, where it lies.
    Pinned(PinnedValue),
}

impl Shown<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Made(bytes) => bytes,
            Self::Pinned(pinned) => pinned,
        }
    }
}

impl Showing<'_> {
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns datatype and value of a document.
    pub(super) fn document<'a>(&mut self, datatype: u8, value: VersionValue<'a>) -> (u8, Shown<'a>) {
        let datatype = self.detected(datatype, value.bytes());
        let has_xattrs = datatype & XATTR != 0 && self.has(flags::INCLUDE_XATTRS);
        if self.has(flags::NO_VALUE | flags::NO_VALUE_WITH_DATATYPE) {
            let section = if has_xattrs { xattrs::split(value.bytes()).0.to_vec() } else { Vec::new() };
            let shown = match (self.has(flags::NO_VALUE_WITH_DATATYPE), has_xattrs) {
                (true, true) => datatype,
                (true, false) => datatype & !XATTR,
                (false, true) => XATTR,
                (false, false) => RAW,
            };
            // A consumer that sees the bit inflates what there is not.
            return (self.understood(shown & !SNAPPY), Shown::Made(section));
        }
        if datatype & XATTR != 0 && !has_xattrs {
            let body = xattrs::split(value.bytes()).1.to_vec();
            return self.compressed(datatype & !XATTR, Shown::Made(body));
        }
        if datatype & SNAPPY != 0 && !self.has_snappy {
            let mut inflated = vec![0; snappy::inflated_len(value.bytes()).unwrap_or_default()];
            snappy::inflate(value.bytes(), &mut inflated);
            return (self.understood(datatype & !SNAPPY), Shown::Made(inflated));
        }
        let shown = match value {
            VersionValue::Bytes(bytes) => Shown::Bytes(bytes),
            VersionValue::Pinned(pinned) => Shown::Pinned(pinned),
        };
        self.compressed(datatype, shown)
    }

    /// Returns datatype and value of a deletion: the attributes that outlive a document.
    pub(super) fn deletion<'a>(&self, datatype: u8, value: VersionValue<'a>) -> (u8, Shown<'a>) {
        let is_shown = datatype & XATTR != 0 && self.has(flags::INCLUDE_XATTRS);
        if !is_shown {
            return (RAW, Shown::Bytes(&[]));
        }
        let section = xattrs::split(value.bytes()).0;
        let kept = match self.keeps_user_xattrs {
            true => section.to_vec(),
            false => xattrs::retained(section, xattrs::is_system),
        };
        (if kept.is_empty() { RAW } else { XATTR }, Shown::Made(kept))
    }

    /// Returns the datatype with the bit of JSON, if the consumer wants to know.
    fn detected(&self, datatype: u8, value: &[u8]) -> u8 {
        if self.has_json && datatype & (JSON | SNAPPY) == 0 && super::super::json::is_shown(datatype, value) {
            datatype | JSON
        } else {
            datatype
        }
    }

    /// Returns the bits that the consumer understands.
    fn understood(&self, datatype: u8) -> u8 {
        if self.has_json { datatype } else { datatype & !JSON }
    }

    fn compressed<'a>(&mut self, datatype: u8, shown: Shown<'a>) -> (u8, Shown<'a>) {
        let datatype = self.understood(datatype);
        if !self.compresses || datatype & SNAPPY != 0 || shown.bytes().len() < COMPRESSED_LEAST {
            return (datatype, shown);
        }
        let block = self.compressor.compress(shown.bytes()).map(<[u8]>::to_vec);
        match block.filter(|block| block.len() < shown.bytes().len()) {
            Some(block) => (datatype | SNAPPY, Shown::Made(block)),
            None => (datatype, shown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags of OPEN, Snappy, compression of everything, attributes of users in deletions.
    type Asked = (u32, bool, bool, bool);

    const ALL: Asked = (flags::INCLUDE_XATTRS, true, false, false);

    fn with<T>(asked: Asked, f: impl FnOnce(&mut Showing<'_>) -> T) -> T {
        let (flags, has_snappy, compresses, keeps_user_xattrs) = asked;
        let compressor = &mut snappy::Compressor::default();
        f(&mut Showing { flags, has_snappy, has_json: true, compresses, keeps_user_xattrs, compressor })
    }

    fn with_xattrs(pairs: &[(&[u8], &[u8])], body: &[u8]) -> Vec<u8> {
        let mut section = xattrs::Builder::default();
        pairs.iter().for_each(|(key, value)| section.push(key, value));
        [section.finish(), body.to_vec()].concat()
    }

    fn shown(asked: Asked, datatype: u8, value: &[u8]) -> (u8, Vec<u8>) {
        with(asked, |showing| {
            let (datatype, shown) = showing.document(datatype, VersionValue::Bytes(value));
            (datatype, shown.bytes().to_vec())
        })
    }

    #[test]
    fn attributes_are_shown_to_those_who_ask() {
        let value = with_xattrs(&[(b"_s", b"1")], b"{}");
        assert_eq!(shown(ALL, XATTR | JSON, &value), (XATTR | JSON, value.clone()));
        assert_eq!(shown((0, true, false, false), XATTR | JSON, &value), (JSON, b"{}".to_vec()));
        let section = with_xattrs(&[(b"_s", b"1")], b"");
        let bare = (flags::INCLUDE_XATTRS | flags::NO_VALUE, true, false, false);
        assert_eq!(shown(bare, XATTR | JSON, &value), (XATTR, section));
        let bare = (flags::NO_VALUE, true, false, false);
        assert_eq!(shown(bare, XATTR | JSON, &value), (RAW, Vec::new()));
        let bare = (flags::NO_VALUE_WITH_DATATYPE, true, false, false);
        assert_eq!(shown(bare, XATTR | JSON, &value), (JSON, Vec::new()));
    }

    #[test]
    fn compressed_values_are_shown_as_stored_or_inflated() {
        let value =
            b"a value that is long enough and repeats itself, repeats itself, repeats itself, repeats itself";
        let block = snappy::Compressor::default().compress(value).unwrap().to_vec();
        assert_eq!(shown(ALL, SNAPPY, &block), (SNAPPY, block.clone()));
        let without = (flags::INCLUDE_XATTRS, false, false, false);
        assert_eq!(shown(without, SNAPPY, &block), (RAW, value.to_vec()));
        let forced = (flags::INCLUDE_XATTRS, true, true, false);
        assert_eq!(shown(forced, RAW, value), (SNAPPY, block));
        assert_eq!(shown(forced, RAW, b"short"), (RAW, b"short".to_vec()));
    }

    #[test]
    fn a_deletion_keeps_what_outlives_a_document() {
        let value = with_xattrs(&[(b"_s", b"1"), (b"u", b"2")], b"");
        let deleted = |asked: Asked| {
            with(asked, |showing| {
                let (datatype, shown) = showing.deletion(XATTR, VersionValue::Bytes(&value));
                (datatype, shown.bytes().to_vec())
            })
        };
        assert_eq!(deleted(ALL), (XATTR, with_xattrs(&[(b"_s", b"1")], b"")));
        assert_eq!(deleted((flags::INCLUDE_XATTRS, true, false, true)), (XATTR, value.clone()));
        assert_eq!(deleted((0, true, false, false)), (RAW, Vec::new()));
    }
}
