//! OPEN, the first request on a DCP connection: `0 4 | flags 4`, and the connection's name as the key.

use super::Malformed;

/// Bytes of the extras.
pub const EXTRAS_BYTES: usize = 8;
/// Longest name of a connection.
pub const NAME_MOST: usize = 200;

/// Flags of OPEN.
pub mod flags {
    /// The receiver is to be the producer; without it, the consumer.
    pub const PRODUCER: u32 = 0x01;
    /// Only tells that there is something new. No longer supported by anybody.
    pub const NOTIFIER: u32 = 0x02;
    /// Values come with their extended attributes.
    pub const INCLUDE_XATTRS: u32 = 0x04;
    /// Messages come without values.
    pub const NO_VALUE: u32 = 0x08;
    /// Deletions say when they happened.
    pub const INCLUDE_DELETE_TIMES: u32 = 0x20;
    /// As [`NO_VALUE`], but the datatype is that of the value left out.
    pub const NO_VALUE_WITH_DATATYPE: u32 = 0x40;
    /// Deletions come with the attributes that users gave the document.
    pub const INCLUDE_DELETED_USER_XATTRS: u32 = 0x100;
}

/// An OPEN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open<'a> {
    /// See [`flags`].
    pub flags: u32,
    /// Names the connection; a second one of the same name replaces the first.
    pub name: &'a [u8],
}

impl<'a> Open<'a> {
    /// Decodes extras and key.
    pub fn decode(extras: &[u8], key: &'a [u8]) -> Result<Self, Malformed> {
        let Some((_, flags)) = extras.split_first_chunk::<4>() else {
            return Err(Malformed("The extras must be 4 bytes and the flags, 4 bytes"));
        };
        let flags: [u8; 4] =
            flags.try_into().map_err(|_| Malformed("The extras must be 4 bytes and the flags, 4 bytes"))?;
        if key.is_empty() || key.len() > NAME_MOST {
            return Err(Malformed("The key must be the connection's name, at most 200 bytes"));
        }
        Ok(Self { flags: u32::from_be_bytes(flags), name: key })
    }

    /// Its extras.
    pub fn extras(&self) -> [u8; EXTRAS_BYTES] {
        let mut extras = [0; EXTRAS_BYTES];
        extras[4..].copy_from_slice(&self.flags.to_be_bytes());
        extras
    }

    /// Returns true if it has any of these flags.
    pub const fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_survives_encoding() {
        let open = Open { flags: flags::PRODUCER | flags::INCLUDE_XATTRS, name: b"stream" };
        assert_eq!(Open::decode(&open.extras(), b"stream"), Ok(open));
        assert!(open.has(flags::PRODUCER) && !open.has(flags::NO_VALUE));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for (extras, key) in
            [(&[0; 7][..], &b"n"[..]), (&[0; 9], b"n"), (&[], b"n"), (&[0; 8], b""), (&[0; 8], &[b'n'; 201])]
        {
            assert!(Open::decode(extras, key).is_err(), "{extras:?} {key:?}");
        }
    }
}
