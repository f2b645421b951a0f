//! The head of a request, and the parser that finds it.

use super::{HEADER_LEN, Header, Magic, Opcode};
use crate::Parsed;

/// Longest key that any port accepts on the wire: 250 bytes and a five-byte collection id. Executors are stricter.
pub const KEY_LEN_MAX: u16 = 255;

/// Bounds the parser enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest body of a frame in bytes; a larger frame is skipped and answered with "too big".
    pub frame_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { frame_bytes: 30 << 20 }
    }
}

/// The head of one request, borrowing from the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The header's fields.
    pub header: Header,
    /// Frame infos of a flexible request, else empty.
    pub framing: &'a [u8],
    /// The operation's arguments.
    pub extras: &'a [u8],
    /// The key as sent: with its collection id where collections are in use.
    pub key: &'a [u8],
}

/// What is wrong with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The first byte is not the magic of a request. No answer is possible.
    Magic,
    /// Framing extras, extras and key are longer than the body that holds them.
    Lengths,
    /// The key is longer than [`KEY_LEN_MAX`].
    KeyTooLong,
    /// The body is longer than [`Limits::frame_bytes`].
    FrameTooBig,
}

/// A frame that cannot be executed. The header is kept for the answer; it is meaningless for [`ErrorKind::Magic`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    /// The frame's header.
    pub header: Header,
    /// What is wrong.
    pub kind: ErrorKind,
}

/// What a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked<'a> {
    /// The vBucket.
    pub vbucket: u16,
    /// Is returned in the answer.
    pub opaque: u32,
    /// Extras, key and value.
    pub extras: &'a [u8],
    /// See `extras`.
    pub key: &'a [u8],
    /// See `extras`.
    pub value: &'a [u8],
}

impl Asked<'_> {
    /// Appends the request with this opcode.
    pub fn encode(&self, opcode: Opcode, out: &mut Vec<u8>) {
        let Self { vbucket, opaque, extras, key, value } = *self;
        let header = Header {
            magic: Magic::REQUEST,
            opcode,
            framing_len: 0,
            key_len: key.len() as u16,
            extras_len: extras.len() as u8,
            datatype: 0,
            vbucket,
            body_len: (extras.len() + key.len() + value.len()) as u32,
            opaque,
            cas: 0,
        };
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(extras);
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }
}

/// Parses the request head at the start of `input`.
#[inline(always)]
pub fn parse<'a>(input: &'a [u8], limits: &Limits) -> Parsed<Request<'a>, Error> {
    let Some((raw, rest)) = input.split_first_chunk::<HEADER_LEN>() else {
        return short(input);
    };
    let header = Header::decode(raw);
    let prefix = header.prefix_len();
    if header.magic != Magic::REQUEST && header.magic != Magic::FLEXIBLE_REQUEST
        || prefix > header.body_len as usize
        || header.key_len > KEY_LEN_MAX
        || header.body_len > limits.frame_bytes
    {
        return malformed(header, limits);
    }
    let Some((framing, rest)) = rest.split_at_checked(usize::from(header.framing_len)) else {
        return Parsed::Incomplete { need: HEADER_LEN + prefix };
    };
    let Some((extras, rest)) = rest.split_at_checked(usize::from(header.extras_len)) else {
        return Parsed::Incomplete { need: HEADER_LEN + prefix };
    };
    let Some(key) = rest.get(..usize::from(header.key_len)) else {
        return Parsed::Incomplete { need: HEADER_LEN + prefix };
    };
    Parsed::Request {
        head: HEADER_LEN + prefix,
        body: header.body_len as usize - prefix,
        trailer: 0,
        command: Request { header, framing, extras, key },
    }
}

/// Less than a header: the magic alone may already be wrong.
#[cold]
fn short(input: &[u8]) -> Parsed<Request<'_>, Error> {
    match input.first() {
        Some(&magic) if magic != Magic::REQUEST.0 && magic != Magic::FLEXIBLE_REQUEST.0 => {
            let mut raw = [0; HEADER_LEN];
            raw[0] = magic;
            Parsed::Fatal { error: Error { header: Header::decode(&raw), kind: ErrorKind::Magic } }
        }
        _ => Parsed::Incomplete { need: HEADER_LEN },
    }
}

#[cold]
fn malformed<'a>(header: Header, limits: &Limits) -> Parsed<Request<'a>, Error> {
    if header.magic != Magic::REQUEST && header.magic != Magic::FLEXIBLE_REQUEST {
        let mut raw = [0; HEADER_LEN];
        raw[0] = header.magic.0;
        return Parsed::Fatal { error: Error { header: Header::decode(&raw), kind: ErrorKind::Magic } };
    }
    let kind = if header.prefix_len() > header.body_len as usize {
        ErrorKind::Lengths
    } else if header.body_len > limits.frame_bytes {
        ErrorKind::FrameTooBig
    } else {
        ErrorKind::KeyTooLong
    };
    Parsed::Malformed { skip: HEADER_LEN + header.body_len as usize, error: Error { header, kind } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binary::Opcode;
    use proptest::prelude::*;

    fn get(key: &[u8]) -> Vec<u8> {
        let header = Header {
            magic: Magic::REQUEST,
            opcode: Opcode::GET,
            framing_len: 0,
            key_len: u16::try_from(key.len()).unwrap(),
            extras_len: 0,
            datatype: 0,
            vbucket: 7,
            body_len: u32::try_from(key.len()).unwrap(),
            opaque: 0xdead_beef,
            cas: 0,
        };
        [&header.encode(), key].concat()
    }

    #[test]
    fn a_get_is_its_header_and_key() {
        let bytes = get(b"hello");
        let Parsed::Request { head, body, trailer, command } = parse(&bytes, &Limits::default()) else {
            panic!("not a request")
        };
        assert_eq!((head, body, trailer), (29, 0, 0));
        assert_eq!((command.key, command.extras, command.framing), (&b"hello"[..], &b""[..], &b""[..]));
        assert_eq!((command.header.vbucket, command.header.opaque), (7, 0xdead_beef));
    }

    #[test]
    fn a_durable_set_has_framing_extras_before_its_extras() {
        let mut bytes = vec![0x08, 0x01, 4, 3, 8, 1, 0, 9];
        bytes.extend(20u32.to_be_bytes());
        bytes.extend([0; 12]);
        bytes.extend(*b"\x13\x01\x23\x45FLAGSEXPkey12345");
        let Parsed::Request { head, body, command, .. } = parse(&bytes, &Limits::default()) else {
            panic!("not a request")
        };
        assert_eq!((head, body), (24 + 15, 5));
        assert_eq!(
            (command.framing, command.extras, command.key),
            (&b"\x13\x01\x23\x45"[..], &b"FLAGSEXP"[..], &b"key"[..])
        );
    }

    #[test]
    fn an_unknown_magic_is_fatal_from_its_first_byte() {
        for magic in (0..=255u8).filter(|m| *m != 0x80 && *m != 0x08) {
            let mut bytes = get(b"k");
            bytes[0] = magic;
            for end in 1..=bytes.len() {
                let Parsed::Fatal { error } = parse(&bytes[..end], &Limits::default()) else {
                    panic!("{magic:#x} with {end} bytes")
                };
                assert_eq!(error.kind, ErrorKind::Magic);
            }
        }
    }

    #[test]
    fn a_malformed_frame_can_be_skipped() {
        let limits = Limits { frame_bytes: 1000 };
        let mut contradictory = get(b"hello");
        contradictory[11] = 4;
        let mut long_key = get(&[b'k'; 256]);
        let too_big = get(&[b'k'; 1001]);
        for (bytes, kind, skip) in [
            (&mut contradictory, ErrorKind::Lengths, 28),
            (&mut long_key, ErrorKind::KeyTooLong, 24 + 256),
            (&mut too_big.clone(), ErrorKind::FrameTooBig, 24 + 1001),
        ] {
            for end in 24..=bytes.len() {
                let Parsed::Malformed { skip: found, error } = parse(&bytes[..end], &limits) else {
                    panic!("{kind:?} with {end} bytes")
                };
                assert_eq!((found, error.kind), (skip, kind));
            }
        }
    }

    proptest! {
        #[test]
        fn headers_survive_encoding(raw in proptest::array::uniform24(any::<u8>())) {
            let header = Header::decode(&raw);
            prop_assert_eq!(header.encode(), raw);
        }

        #[test]
        fn no_input_panics_and_every_prefix_agrees(
            magic in prop_oneof![Just(0x80u8), Just(0x08), any::<u8>()],
            lengths in (0u8..4, 0u8..40, 0u8..24),
            body_len in prop_oneof![0u32..120, any::<u32>()],
            tail in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            let mut bytes = vec![magic, 0x01, lengths.0, lengths.1, lengths.2, 0, 0, 0];
            bytes.extend(body_len.to_be_bytes());
            bytes.extend([0; 12]);
            bytes.extend(tail);
            let limits = Limits { frame_bytes: 1 << 20 };
            let whole = parse(&bytes, &limits);
            for end in 0..bytes.len() {
                match parse(&bytes[..end], &limits) {
                    Parsed::Incomplete { need } => prop_assert!(need > end),
                    decided => prop_assert_eq!(&decided, &whole),
                }
            }
            if let Parsed::Request { head, body, trailer, command } = whole {
                prop_assert_eq!(head + body + trailer, HEADER_LEN + body_len as usize);
                prop_assert_eq!(head, HEADER_LEN + command.framing.len() + command.extras.len() + command.key.len());
                prop_assert_eq!(body, command.header.value_len());
            }
        }
    }
}
