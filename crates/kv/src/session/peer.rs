//! What a session knows of its client.

use std::sync::Arc;

use super::couchbase;
use crate::Bucket;

/// What a listener's sessions speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// memcached: text, meta or binary by the first byte; one fixed bucket; no login unless a password is set.
    Memcached,
    /// Couchbase KV: binary only; login and SELECT_BUCKET.
    Couchbase,
}

/// The client as the executors see and change it.
pub struct Peer {
    /// Which kind of port it came in by.
    pub port: Port,
    /// Whether this port demands a login before anything else.
    pub login_required: bool,
    /// The user once logged in.
    pub user: Option<Arc<str>>,
    /// Whether the peer's address is a loopback address.
    pub loopback: bool,
    /// The bucket in use.
    pub bucket: Option<Arc<Bucket>>,
    /// Largest value this port takes, in bytes.
    pub value_limit: usize,
    /// Set by an executor: send what there is, then close.
    pub close: bool,
    /// Couchbase: what HELLO granted, and a SASL exchange in progress.
    pub couchbase: couchbase::State,
}

impl Peer {
    /// Whether a login is demanded and has not happened.
    #[inline]
    pub fn must_log_in(&self) -> bool {
        self.login_required && self.user.is_none()
    }

    /// Whether keys carry a collection id.
    #[inline]
    pub(super) fn collections(&self) -> bool {
        self.couchbase.collections
    }

    /// Whether a key would still be placed as it was when its request was parsed.
    #[inline]
    pub(super) fn places_as(&self, bucket: *const Bucket, collections: bool) -> bool {
        self.bucket.as_ref().is_some_and(|now| std::ptr::eq(Arc::as_ptr(now), bucket))
            && self.collections() == collections
    }
}
