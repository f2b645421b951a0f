//! A request that is kept because it was slow or large.

use std::net::SocketAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::Class;
use crate::key::KEY_MAX;

/// Why a request is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// It took long.
    Slow,
    /// It, or its answer, has many bytes.
    Large,
}

impl Why {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Slow, Self::Large];
}

/// See the module. Its key belongs to the users of its bucket: whoever is shown it must be allowed to read there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Noted {
    /// When it was answered, ns since 1970.
    pub at_unix_ns: u64,
    /// From the wake-up that read its bytes until its answer was given to the socket, us.
    pub took_us: u64,
    /// The part of it in which the request itself was executed, us.
    pub execution_us: u64,
    /// Requests that were answered together with it, itself included.
    pub together: u64,
    /// What it did.
    pub class: Class,
    /// Its operation, as its protocol names it.
    pub operation: &'static str,
    /// The slot of the bucket in use, which no other bucket ever has.
    pub bucket: Option<usize>,
    /// The collection of its key.
    pub collection: u32,
    /// Its key; empty if it has none.
    pub key: ArrayVec<u8, KEY_MAX>,
    /// The client's address; `None` on a socket in the file system.
    pub client: Option<SocketAddr>,
    /// The user, once logged in.
    pub user: Option<Arc<str>>,
    /// Bytes of the request.
    pub request_bytes: u64,
    /// Bytes of its answer.
    pub answer_bytes: u64,
}
