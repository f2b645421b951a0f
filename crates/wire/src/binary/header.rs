//! The 24-byte header at the front of every binary frame.

/// Bytes in a header.
pub const HEADER_LEN: usize = 24;

/// The first byte of a frame: who sends it and how its lengths are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Magic(pub u8);

impl Magic {
    /// A request of the classic layout.
    pub const REQUEST: Self = Self(0x80);
    /// A response of the classic layout.
    pub const RESPONSE: Self = Self(0x81);
    /// A request with framing extras.
    pub const FLEXIBLE_REQUEST: Self = Self(0x08);
    /// A response with framing extras.
    pub const FLEXIBLE_RESPONSE: Self = Self(0x18);
    /// A request the server sends (Duplex).
    pub const SERVER_REQUEST: Self = Self(0x82);
    /// The client's response to such a request.
    pub const SERVER_RESPONSE: Self = Self(0x83);
}

/// A decoded request header. Numbers are in host order; `opaque` is echoed as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Layout.
    pub magic: Magic,
    /// Operation.
    pub opcode: super::Opcode,
    /// Length of the framing extras, 0 in the classic layout.
    pub framing_len: u8,
    /// Length of the key with its collection prefix.
    pub key_len: u16,
    /// Length of the extras.
    pub extras_len: u8,
    /// Datatype bits of the value.
    pub datatype: u8,
    /// The vBucket the client computed.
    pub vbucket: u16,
    /// Bytes that follow the header.
    pub body_len: u32,
    /// Chosen by the client, returned in the answer.
    pub opaque: u32,
    /// Required version; 0 = any.
    pub cas: u64,
}

impl Header {
    /// Decodes 24 bytes. Any magic is taken as classic unless it is [`Magic::FLEXIBLE_REQUEST`].
    #[inline]
    pub fn decode(b: &[u8; HEADER_LEN]) -> Self {
        let magic = Magic(b[0]);
        let (framing_len, key_len) = if magic == Magic::FLEXIBLE_REQUEST {
            (b[2], u16::from(b[3]))
        } else {
            (0, u16::from_be_bytes([b[2], b[3]]))
        };
        Self {
            magic,
            opcode: super::Opcode(b[1]),
            framing_len,
            key_len,
            extras_len: b[4],
            datatype: b[5],
            vbucket: u16::from_be_bytes([b[6], b[7]]),
            body_len: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            opaque: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
            cas: u64::from_be_bytes([b[16], b[17], b[18], b[19], b[20], b[21], b[22], b[23]]),
        }
    }

    /// Framing extras, extras and key together.
    #[inline]
    pub const fn prefix_len(&self) -> usize {
        self.framing_len as usize + self.extras_len as usize + self.key_len as usize
    }

    /// Length of the value; 0 if the lengths contradict each other.
    #[inline]
    pub const fn value_len(&self) -> usize {
        (self.body_len as usize).saturating_sub(self.prefix_len())
    }

    /// Encodes the header, for clients and tests.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[0] = self.magic.0;
        b[1] = self.opcode.0;
        if self.magic == Magic::FLEXIBLE_REQUEST {
            b[2] = self.framing_len;
            b[3] = self.key_len.to_be_bytes()[1];
        } else {
            b[2..4].copy_from_slice(&self.key_len.to_be_bytes());
        }
        b[4] = self.extras_len;
        b[5] = self.datatype;
        b[6..8].copy_from_slice(&self.vbucket.to_be_bytes());
        b[8..12].copy_from_slice(&self.body_len.to_be_bytes());
        b[12..16].copy_from_slice(&self.opaque.to_be_bytes());
        b[16..24].copy_from_slice(&self.cas.to_be_bytes());
        b
    }
}
