//! Encoding of answers: header, framing extras and extras in one piece, ready to be copied to the output at once.

use super::{HEADER_LEN, Header, Magic, Opcode, Status};

/// Longest framing extras an answer carries: the server duration.
const FRAMING_MAX: usize = 3;
/// Longest extras an answer carries: GET_META's, version 2.
const EXTRAS_MAX: usize = 21;
/// Room for the longest head.
const HEAD_MAX: usize = HEADER_LEN + FRAMING_MAX + EXTRAS_MAX;

/// Frame info id 0, length 2: the server duration.
const SERVER_DURATION_INFO: u8 = 0x02;

/// The fields of an answer besides its extras, key and value.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    /// The request's opcode.
    pub opcode: Opcode,
    /// The request's opaque.
    pub opaque: u32,
    /// The outcome.
    pub status: Status,
    /// Datatype bits of the value.
    pub datatype: u8,
    /// The document's version; 0 if there is none.
    pub cas: u64,
    /// Encoded server duration; with it the answer uses the flexible layout.
    pub duration: Option<u16>,
}

impl Reply {
    /// A plain answer to `header` with `status`.
    #[inline]
    pub const fn to(header: &Header, status: Status) -> Self {
        Self { opcode: header.opcode, opaque: header.opaque, status, datatype: 0, cas: 0, duration: None }
    }

    /// The head of this answer. `key_len` and `value_len` bytes must follow it.
    ///
    /// No answer has `extras` beyond 21 bytes; they would be cut off.
    #[inline]
    pub fn head(&self, extras: &[u8], key_len: usize, value_len: usize) -> ResponseHead {
        let extras = extras.get(..EXTRAS_MAX).unwrap_or(extras);
        let mut bytes = [0; HEAD_MAX];
        let mut len = HEADER_LEN;
        // The flexible layout has one byte for the key's length, so an answer with a longer key omits the duration.
        if let (Some(duration), Ok(key_len)) = (self.duration, u8::try_from(key_len)) {
            bytes[0] = Magic::FLEXIBLE_RESPONSE.0;
            bytes[2] = 3;
            bytes[3] = key_len;
            bytes[HEADER_LEN] = SERVER_DURATION_INFO;
            bytes[HEADER_LEN + 1..HEADER_LEN + 3].copy_from_slice(&duration.to_be_bytes());
            len += 3;
        } else {
            bytes[0] = Magic::RESPONSE.0;
            bytes[2..4].copy_from_slice(&(key_len as u16).to_be_bytes());
        }
        bytes[1] = self.opcode.0;
        bytes[4] = extras.len() as u8;
        bytes[5] = self.datatype;
        bytes[6..8].copy_from_slice(&self.status.0.to_be_bytes());
        let body_len = len - HEADER_LEN + extras.len() + key_len + value_len;
        bytes[8..12].copy_from_slice(&(body_len as u32).to_be_bytes());
        bytes[12..16].copy_from_slice(&self.opaque.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.cas.to_be_bytes());
        bytes[len..len + extras.len()].copy_from_slice(extras);
        ResponseHead { bytes, len: len + extras.len() }
    }
}

/// The answer to a GET that found its document, in the classic layout: header and flags, 28 bytes in one piece.
/// The key (`key_len` bytes, GETK) and then the value follow.
#[inline]
pub fn hit(
    header: &Header,
    datatype: u8,
    flags: u32,
    cas: u64,
    key_len: usize,
    value_len: usize,
) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[0] = Magic::RESPONSE.0;
    bytes[1] = header.opcode.0;
    bytes[2..4].copy_from_slice(&(key_len as u16).to_be_bytes());
    bytes[4] = 4;
    bytes[5] = datatype;
    bytes[8..12].copy_from_slice(&((4 + key_len + value_len) as u32).to_be_bytes());
    bytes[12..16].copy_from_slice(&header.opaque.to_be_bytes());
    bytes[16..24].copy_from_slice(&cas.to_be_bytes());
    bytes[24..28].copy_from_slice(&flags.to_be_bytes());
    bytes
}

/// A successful answer without extras, key or value.
#[inline]
pub fn done(header: &Header, cas: u64) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[0] = Magic::RESPONSE.0;
    bytes[1] = header.opcode.0;
    bytes[12..16].copy_from_slice(&header.opaque.to_be_bytes());
    bytes[16..24].copy_from_slice(&cas.to_be_bytes());
    bytes
}

/// The head of an answer, encoded.
pub struct ResponseHead {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

impl ResponseHead {
    /// Its bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let mut raw = [0; HEADER_LEN];
        raw[0] = 0x80;
        raw[12..16].copy_from_slice(&[1, 2, 3, 4]);
        Header::decode(&raw)
    }

    #[test]
    fn a_hit_is_the_general_head_written_in_one_go() {
        let reply = Reply { datatype: 1, cas: 0x0102_0304, ..Reply::to(&header(), Status::SUCCESS) };
        let general = reply.head(&7u32.to_be_bytes(), 5, 100);
        assert_eq!(general.as_bytes(), hit(&header(), 1, 7, 0x0102_0304, 5, 100));
    }

    #[test]
    fn done_is_the_general_head_without_anything() {
        let reply = Reply { cas: 9, ..Reply::to(&header(), Status::SUCCESS) };
        assert_eq!(reply.head(&[], 0, 0).as_bytes(), done(&header(), 9));
    }

    #[test]
    fn a_duration_makes_the_answer_flexible() {
        let reply = Reply { duration: Some(0x1234), ..Reply::to(&header(), Status::KEY_ENOENT) };
        let head = reply.head(&[9; 16], 2, 3);
        let bytes = head.as_bytes();
        assert_eq!(&bytes[..12], &[0x18, 0, 3, 2, 16, 0, 0, 1, 0, 0, 0, 24]);
        assert_eq!(&bytes[24..27], &[0x02, 0x12, 0x34]);
        assert_eq!(&bytes[27..], &[9; 16]);
    }

    #[test]
    fn a_key_too_long_for_the_flexible_layout_goes_without_the_duration() {
        let reply = Reply { duration: Some(7), ..Reply::to(&header(), Status::SUCCESS) };
        assert_eq!(reply.head(&[], 255, 1).as_bytes()[..4], [0x18, 0, 3, 255]);
        let long = reply.head(&[], 256, 1);
        assert_eq!(long.as_bytes().len(), HEADER_LEN);
        assert_eq!(long.as_bytes()[..12], [0x81, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn lengths_fit_the_longest_answer() {
        let reply = Reply { duration: Some(1), ..Reply::to(&header(), Status::SUCCESS) };
        assert_eq!(reply.head(&[1; EXTRAS_MAX], 255, 20 << 20).as_bytes().len(), HEAD_MAX);
    }
}
