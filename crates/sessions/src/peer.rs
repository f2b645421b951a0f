//! What a session knows about its client.

use std::net::IpAddr;
use std::sync::Arc;

use kv::clients::{Client, Listener};
use kv::users::Caller;
use kv::users::attempts::next_connection;
use kv::{Bucket, Cookie, NodeContext, Now};
use wire::couchbase::Feature;

use super::access::Access;
use super::couchbase;
use super::waits::{Touch, Waits};

/// The kind of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// memcached: text, meta or binary by the first byte; one fixed bucket; no login unless a password is set.
    Memcached,
    /// Couchbase KV: binary only; login and SELECT_BUCKET.
    Couchbase,
}

/// Which protocols a memcached port speaks (memcached's `-B`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spoken {
    /// All, told apart by the first byte.
    #[default]
    Any,
    /// Text and meta.
    Text,
    /// Binary.
    Binary,
}

impl Spoken {
    /// All names.
    pub const NAMES: &'static [&'static str] = &["auto", "text", "binary"];

    /// The value with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        let at = Self::NAMES.iter().position(|known| *known == name)?;
        [Self::Any, Self::Text, Self::Binary].get(at).copied()
    }
}

/// What is allowed on a memcached port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Its protocols.
    pub spoken: Spoken,
    /// Whether `flush_all` is executed (memcached's `-F` refuses it).
    pub flush_all: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { spoken: Spoken::Any, flush_all: true }
    }
}

/// The client's state, which executors read and modify.
pub struct Peer {
    /// The kind of port it connected to.
    pub port: Port,
    /// Whether this port requires a login before anything else.
    pub login_required: bool,
    /// The user, once logged in.
    pub user: Option<Arc<str>>,
    /// What the user may do in the bucket in use.
    pub access: Access,
    /// Whether the peer's address is a loopback address.
    pub loopback: bool,
    /// The peer's address; `None` for a peer on this machine without one.
    pub address: Option<IpAddr>,
    /// Over TLS: the hash of the server's certificate, to which a login may be bound.
    pub end_point: Option<Arc<[u8]>>,
    /// The bucket in use.
    pub bucket: Option<Arc<Bucket>>,
    /// Largest value that this port accepts, in bytes.
    pub value_limit: usize,
    /// What is allowed on this port.
    pub rules: Rules,
    /// The connection's entry in the list of connections, with its port; `None` without a socket.
    pub client: Option<Arc<Client>>,
    /// Its bucket was deleted, and it has got no other since.
    pub lost_bucket: bool,
    /// Set by an executor: send all output, then close.
    pub close: bool,
    /// Set with it if the client asked for that.
    pub has_quit: bool,
    /// The connection's number in its thread.
    pub connection: u32,
    /// Its number among all connections that may log in.
    pub login_connection: u64,
    /// Waiting answers, while there are any.
    pub waits: Option<Box<Waits>>,
    /// Couchbase: what HELLO granted, and a SASL exchange in progress.
    pub couchbase: couchbase::State,
}

impl Peer {
    /// A peer on this machine, without a socket, that needs no login.
    pub fn local(port: Port, bucket: Option<Arc<Bucket>>, value_limit: usize) -> Self {
        Self {
            port,
            login_required: false,
            user: None,
            access: Default::default(),
            loopback: true,
            address: None,
            end_point: None,
            bucket,
            value_limit,
            rules: Default::default(),
            client: None,
            lost_bucket: false,
            close: false,
            has_quit: false,
            connection: 0,
            login_connection: next_connection(),
            waits: None,
            couchbase: Default::default(),
        }
    }

    /// Ends the connection as the client asked.
    pub(super) fn quit(&mut self) {
        (self.close, self.has_quit) = (true, true);
    }

    /// The port, if there is one.
    pub fn listener(&self) -> Option<&Listener> {
        self.client.as_ref().map(|client| client.listener())
    }

    /// Returns true if a login is required and has not happened.
    #[inline]
    pub fn must_log_in(&self) -> bool {
        self.login_required && self.user.is_none()
    }

    /// The client as the caller of a login.
    pub(super) fn caller(&self, now: Now) -> Caller {
        let Self { address, loopback, login_connection: connection, .. } = *self;
        Caller { address, loopback, connection, mono_us: now.mono_us }
    }

    /// The cookie under which the answer to the request being executed can wait.
    pub(super) fn cookie(&self, cx: &mut NodeContext) -> Cookie {
        let ticket = self.waits.as_ref().and_then(|waits| waits.current());
        Cookie {
            thread: u16::try_from(cx.home).unwrap_or(u16::MAX),
            connection: self.connection,
            ticket: ticket.unwrap_or_else(|| cx.ticket()),
        }
    }

    /// Makes the answer to the request being executed wait for a letter.
    pub(super) fn wait(&mut self, cookie: Cookie, touch: Touch, answer: couchbase::Pending) {
        self.waits.get_or_insert_default().wait(cookie.ticket, touch, answer);
    }

    /// Returns true if answers may be sent in a different order than their requests arrived.
    #[inline]
    pub(super) fn is_unordered(&self) -> bool {
        self.port == Port::Couchbase && self.couchbase.features.has(Feature::UNORDERED_EXECUTION)
    }

    /// Returns true if keys carry a collection id.
    #[inline]
    pub(super) fn collections(&self) -> bool {
        self.couchbase.collections
    }

    /// Returns true if a key would still be placed as it was when its request was parsed.
    #[inline]
    pub(super) fn places_as(&self, bucket: *const Bucket, collections: bool) -> bool {
        self.bucket.as_ref().is_some_and(|now| std::ptr::eq(Arc::as_ptr(now), bucket))
            && self.collections() == collections
    }
}
