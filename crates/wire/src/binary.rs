//! The memcached binary protocol, which is also the framing of Couchbase KV.
//!
//! ```text
//!         0        1        2        3        4        5        6        7
//!     +--------+--------+-----------------+--------+--------+-----------------+
//!   0 | magic  | opcode |   key length    | extras | data-  |    vBucket /    |
//!     |        |        |                 | length | type   |     status      |
//!     +--------+--------+-----------------+--------+--------+-----------------+
//!   8 |            body length            |              opaque               |
//!     +-----------------------------------+-----------------------------------+
//!  16 |                                  CAS                                  |
//!     +-----------------------------------------------------------------------+
//!  24 | framing extras | extras | key | value                (body length bytes)
//! ```
//!
//! With the flexible magics (0x08 request, 0x18 response) byte 2 is the length of the framing extras and byte 3 that of
//! the key; with the classic ones (0x80, 0x81) bytes 2 and 3 are the key length and there are no framing extras.
//!
//! [`parse`] yields the head of one request: header, framing extras, extras and key. The value is not part of it. It
//! allocates nothing and reads no byte twice. What a request means is up to its executor. Only the lengths are checked
//! here, because they decide where the next frame begins:
//!
//! * fewer than 24 bytes, or an incomplete head: [`Parsed::Incomplete`];
//! * an unknown magic: [`Parsed::Fatal`], the only case in which the boundary is unknown;
//! * lengths that contradict each other, a key that no server accepts, a frame over the limit: [`Parsed::Malformed`],
//!   the frame can be skipped and the connection stays open.

pub mod header;
pub mod opcode;
pub mod request;
pub mod response;
pub mod status;

pub use header::{HEADER_LEN, Header, Magic};
pub use opcode::Opcode;
pub use request::{Asked, Error, ErrorKind, KEY_LEN_MAX, Limits, Request, parse};
pub use response::{Reply, ResponseHead};
pub use status::Status;

/// Datatype bits of the header's byte 5.
pub mod datatype {
    /// Plain bytes.
    pub const RAW: u8 = 0;
    /// The value is a JSON document.
    pub const JSON: u8 = 1;
    /// The value is Snappy-compressed.
    pub const SNAPPY: u8 = 2;
    /// The value begins with an extended-attribute block.
    pub const XATTR: u8 = 4;
}
