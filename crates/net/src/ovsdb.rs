//! The event loop of OVSDB: one thread that owns all databases of the process, their clients' connections and the
//! control socket.
//!
//! ```text
//!   epoll ─> read ready connections once, frame, Server::receive        ─┐
//!         ─> Server::flush: one log write for all transactions of this   ├─ a turn
//!            wake-up, then one write per session that has output         │
//!         ─> timers that are due, a slice of compaction                 ─┘
//! ```
//! * A short read or a bound of time ends a connection's turn; one with more to do goes to the end of a queue.
//! * There is no periodic timer: without work, probes of remote peers, retries or waiting transactions the loop sleeps
//!   without a timeout.
//! * While a peer's unsent output exceeds a bound, the loop does not read from it. What it holds for all peers together
//!   is bounded, too ([`held`]).
//! * Log texts are the stock server's; they go to a [`Logger`].

mod compaction;
mod connection;
mod control;
mod coverage;
mod database_remote;
mod event_loop;
mod held;
mod logger;
mod outgoing;
mod probes;
mod reconnect;
mod remote;
mod remote_status;
mod remotes;
mod resolver;
mod sessions;
mod tls;

pub use compaction::{CompactionEnd, CompactionTimes};
pub use control::{Answer, Command, Ticket};
pub use database_remote::RemoteError;
pub use event_loop::{EventLoop, Host, Settings, Waker};
pub use logger::{Level, Logger};
pub use remote::{DatabaseRemote, Endpoint, Remote, Security};
pub use tls::TlsOptions;

/// The log of a database on the real disk.
pub type DatabaseLog = ovsdb::file::Log<journal::RealDisk>;
/// The server of databases that the loop runs.
pub type Core = ovsdb::server::Server<DatabaseLog>;
