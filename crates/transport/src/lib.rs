//! The stream sockets of all ports: TCP and the Unix domain, listening and connected.
//!
//! ```text
//!   Listener::{tcp, unix, unix_in_place_of, inherited} ──accept──> Stream ──> the loop that owns it: a KV worker's, OVSDB's, HTTP's
//!   Stream::{connect_tcp, connect_unix} ─────────────────────────────┘
//! ```
//! All of them are non-blocking. Any event loop can watch one: mio's through [`mio::event::Source`], tokio's by its
//! descriptor. A read that does not fill its buffer means that the socket is empty now.
#![forbid(unsafe_code)]

mod handshakes;
mod listener;
mod open_files;
mod source;
mod stream;
mod tls;
mod unix;

pub use handshakes::Handshakes;
pub use listener::{Address, Listener};
pub use open_files::raise_open_files;
pub use stream::Stream;
pub use tls::certificate::{Certificate, fingerprint, to_pem};
pub use tls::client::{ClientFiles, ClientTls, OutgoingTls};
pub use tls::config::{ClientCertificates, ConfigError, OldestVersion, ServerFiles, ServerTls};
pub use tls::peer::{Certificates, Choice, Identity, PeerTls, Trust};
pub use tls::words::in_words_of_openssl;
pub use tls::{TlsError, explain};
pub use unix::SOCKET_NAME_MAX;
