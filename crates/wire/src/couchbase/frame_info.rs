//! Frame infos: the framing extras of a flexible request.
//!
//! ```text
//!   | id 4 | length 4 | [id - 15] | [length - 15] | payload |   ...repeated
//! ```
//! A nibble of 15 means that the next byte is added to it (the id's first).

/// The durability that a client requests for a mutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durability {
    /// What the mutation must have reached.
    pub level: DurabilityLevel,
    /// How long that may take, ms; `None` for the server's default.
    pub timeout_ms: Option<u16>,
}

/// What a durable mutation must have reached before it is answered, from the least on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DurabilityLevel {
    /// In the memory of a majority.
    Majority,
    /// In the memory of a majority, and on the active node's disk.
    MajorityAndPersistToActive,
    /// On the disks of a majority.
    PersistToMajority,
}

/// The content of a request's frame infos.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameInfos {
    /// The request must not be reordered.
    pub barrier: bool,
    /// A durable mutation.
    pub durability: Option<Durability>,
    /// DCP stream id.
    pub stream_id: Option<u16>,
    /// Keep the document's expiry.
    pub preserve_ttl: bool,
    /// Impersonation or extra privileges are requested, which only trusted services may do.
    pub privileged: bool,
}

/// Why frame infos are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame info extends beyond the framing extras.
    #[error("frame info exceeds the framing extras")]
    Truncated,
    /// A known frame info has the wrong length.
    #[error("frame info {0} has an invalid length")]
    Length(u16),
    /// A frame info comes twice.
    #[error("frame info {0} appears more than once")]
    Repeated(u16),
    /// The durability level is not 1, 2 or 3.
    #[error("durability level {0} does not exist")]
    Level(u8),
    /// The durability timeout is 0 or 0xffff.
    #[error("durability timeout must be 1 to 65534 ms")]
    Timeout,
    /// An undefined id.
    #[error("frame info {0} is unknown")]
    Unknown(u16),
}

impl FrameInfos {
    /// Reads all frame infos of a request.
    pub fn parse(mut framing: &[u8]) -> Result<Self, FrameError> {
        let mut infos = Self::default();
        let mut seen = 0u8;
        while let Some((&lead, rest)) = framing.split_first() {
            let (id, rest) = escaped(lead >> 4, rest).ok_or(FrameError::Truncated)?;
            let (len, rest) = escaped(lead & 0x0f, rest).ok_or(FrameError::Truncated)?;
            let (payload, rest) = rest.split_at_checked(usize::from(len)).ok_or(FrameError::Truncated)?;
            framing = rest;
            if id < 8 {
                if seen & (1 << id) != 0 && id < 6 {
                    return Err(FrameError::Repeated(id));
                }
                seen |= 1 << id;
            }
            match (id, payload) {
                (0, []) => infos.barrier = true,
                (1, [level]) => {
                    infos.durability = Some(Durability { level: level_of(*level)?, timeout_ms: None })
                }
                (1, [level, high, low]) => {
                    let timeout_ms = u16::from_be_bytes([*high, *low]);
                    let level = level_of(*level)?;
                    if timeout_ms == 0 || timeout_ms == u16::MAX {
                        return Err(FrameError::Timeout);
                    }
                    infos.durability = Some(Durability { level, timeout_ms: Some(timeout_ms) });
                }
                (2, [high, low]) => infos.stream_id = Some(u16::from_be_bytes([*high, *low])),
                (4, [_, ..]) | (6, [_, ..]) | (7, [_, ..]) => infos.privileged = true,
                (5, []) => infos.preserve_ttl = true,
                (0 | 1 | 2 | 4..=7, _) => return Err(FrameError::Length(id)),
                _ => return Err(FrameError::Unknown(id)),
            }
        }
        Ok(infos)
    }
}

/// A nibble, continued in the next byte if it is 15.
fn escaped(nibble: u8, rest: &[u8]) -> Option<(u16, &[u8])> {
    if nibble < 15 {
        return Some((u16::from(nibble), rest));
    }
    let (&more, rest) = rest.split_first()?;
    Some((15 + u16::from(more), rest))
}

fn level_of(byte: u8) -> Result<DurabilityLevel, FrameError> {
    match byte {
        1 => Ok(DurabilityLevel::Majority),
        2 => Ok(DurabilityLevel::MajorityAndPersistToActive),
        3 => Ok(DurabilityLevel::PersistToMajority),
        _ => Err(FrameError::Level(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_real_clients_send() {
        // cbc-pillowfight -d majority: 51,720 ms. The SDKs add preserve-TTL (0x50) after it.
        let infos = FrameInfos::parse(&[0x13, 0x01, 0xca, 0x08, 0x50]).unwrap();
        let durability = infos.durability.unwrap();
        assert_eq!((durability.level, durability.timeout_ms), (DurabilityLevel::Majority, Some(51_720)));
        assert!(infos.preserve_ttl && !infos.barrier);
        assert_eq!(FrameInfos::parse(&[0x11, 3]).unwrap().durability.unwrap().timeout_ms, None);
        assert!(FrameInfos::parse(&[0x00]).unwrap().barrier);
        assert_eq!(FrameInfos::parse(&[]).unwrap(), FrameInfos::default());
    }

    #[test]
    fn invalid_infos_are_named() {
        for (bytes, error) in [
            (&[0x11u8, 0][..], FrameError::Level(0)),
            (&[0x11, 4], FrameError::Level(4)),
            (&[0x13, 1, 0, 0], FrameError::Timeout),
            (&[0x13, 1, 0xff, 0xff], FrameError::Timeout),
            (&[0x12, 1, 0], FrameError::Length(1)),
            (&[0x13, 1, 0], FrameError::Truncated),
            (&[0x51, 0], FrameError::Length(5)),
            (&[0x11, 1, 0x11, 1], FrameError::Repeated(1)),
            (&[0x30], FrameError::Unknown(3)),
            (&[0xf0, 0x00], FrameError::Unknown(15)),
            (&[0xf0], FrameError::Truncated),
        ] {
            assert_eq!(FrameInfos::parse(bytes), Err(error), "{bytes:x?}");
        }
    }

    #[test]
    fn a_long_payload_is_escaped() {
        let mut bytes = vec![0x4f, 1];
        bytes.extend([b'x'; 16]);
        assert!(FrameInfos::parse(&bytes).unwrap().privileged);
        bytes.pop();
        assert_eq!(FrameInfos::parse(&bytes), Err(FrameError::Truncated));
    }

    proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = FrameInfos::parse(&bytes);
        }
    }
}
