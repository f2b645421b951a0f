//! SASL: PLAIN (RFC 4616) and SCRAM with SHA-1, SHA-256 and SHA-512 (RFC 5802, RFC 7677); of SCRAM both sides.
//!
//! Over TLS, SCRAM may be bound to the channel ([`Channel`]): a login is then worth nothing on a connection to a server
//! with another certificate, to which somebody in between would relay it.
//!
//! There is no clock and no source of randomness here: salts and server nonces are arguments. All secrets are compared
//! in constant time.

pub mod client;
pub mod plain;
pub mod scram;

pub use client::{ClientExchange, Expected};
pub use plain::Plain;
pub use scram::{Channel, Exchange, Hash, ScramKeys};

/// Why a login attempt fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SaslError {
    /// The message does not follow the mechanism's grammar.
    #[error("malformed SASL message")]
    Malformed,
    /// The client insists on an authorization identity, an extension or a channel binding that we do not support.
    #[error("unsupported SASL option")]
    Unsupported,
    /// A server's salt or number of rounds that no honest one has.
    #[error("the server's salt or number of rounds is implausible")]
    Implausible,
    /// Nonce or channel-binding data differ from what was agreed.
    #[error("SASL exchange does not match")]
    Mismatch,
    /// The password is wrong, or there is no such user.
    #[error("authentication failed")]
    Denied,
}

/// A mechanism, under the name Couchbase clients use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// The password in clear text: for TLS and loopback.
    Plain,
    /// Challenge and response.
    Scram(Hash),
    /// The same, bound to the channel.
    ScramPlus(Hash),
}

impl Mechanism {
    /// Those that are bound to a channel, strongest first.
    pub const BOUND: [Self; 2] = [Self::ScramPlus(Hash::Sha512), Self::ScramPlus(Hash::Sha256)];

    /// All others, strongest first.
    pub const ALL: [Self; 4] =
        [Self::Scram(Hash::Sha512), Self::Scram(Hash::Sha256), Self::Scram(Hash::Sha1), Self::Plain];

    /// The mechanism's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Scram(Hash::Sha1) => "SCRAM-SHA1",
            Self::Scram(Hash::Sha256) => "SCRAM-SHA256",
            Self::Scram(Hash::Sha512) => "SCRAM-SHA512",
            Self::ScramPlus(Hash::Sha1) => "SCRAM-SHA1-PLUS",
            Self::ScramPlus(Hash::Sha256) => "SCRAM-SHA256-PLUS",
            Self::ScramPlus(Hash::Sha512) => "SCRAM-SHA512-PLUS",
        }
    }

    /// The mechanism a client names.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::BOUND).find(|mechanism| mechanism.name().as_bytes() == name)
    }
}

/// Compares in a time that depends only on the lengths.
pub fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let difference = a.iter().zip(b).fold(0u8, |acc, (x, y)| acc | (x ^ y));
    std::hint::black_box(difference) == 0
}
