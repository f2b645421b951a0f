//! CLUSTERMAP_CHANGE_NOTIFICATION: a request that the server sends over a connection with Duplex. It needs no answer.
//!
//! ```text
//!   0x82 | 0x01 | extras: epoch, revision (8 bytes each) | key: bucket, or nothing | value: the map, or nothing
//! ```

use crate::binary::{Header, Magic, Opcode, datatype};

/// The opcode, one of those of servers.
pub const OPCODE: Opcode = Opcode(0x01);

/// A new cluster map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapChange<'a> {
    /// The first part of its version.
    pub epoch: u64,
    /// The second part.
    pub revision: u64,
    /// The bucket it is of; empty: the one without buckets.
    pub bucket: &'a str,
    /// The map as JSON; empty: the client asks for it if it wants it.
    pub map: &'a str,
}

impl MapChange<'_> {
    /// Appends the request. Its value is marked as JSON where the client has asked for that.
    pub fn encode(&self, with_datatype: bool, out: &mut Vec<u8>) {
        let Self { epoch, revision, bucket, map } = *self;
        let is_json = with_datatype && !map.is_empty();
        let extras = [epoch.to_be_bytes(), revision.to_be_bytes()];
        let extras = extras.as_flattened();
        let header = Header {
            magic: Magic::SERVER_REQUEST,
            opcode: OPCODE,
            framing_len: 0,
            key_len: bucket.len() as u16,
            extras_len: extras.len() as u8,
            datatype: if is_json { datatype::JSON } else { datatype::RAW },
            vbucket: 0,
            body_len: (extras.len() + bucket.len() + map.len()) as u32,
            opaque: 0,
            cas: 0,
        };
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(extras);
        out.extend_from_slice(bucket.as_bytes());
        out.extend_from_slice(map.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_comes_before_bucket_and_map() {
        let mut out = Vec::new();
        MapChange { epoch: 2, revision: 0x0103, bucket: "b", map: "{}" }.encode(true, &mut out);
        assert_eq!(out[..12], [0x82, 1, 0, 1, 16, 1, 0, 0, 0, 0, 0, 19]);
        assert_eq!(out[24..], *b"\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\x01\x03b{}");
        out.clear();
        MapChange { epoch: 2, revision: 1, bucket: "", map: "" }.encode(true, &mut out);
        assert_eq!((out.len(), out[5]), (24 + 16, 0));
    }
}
