//! The data plane: epoll workers that read, execute and write; an acceptor that hands them sockets; the pager's thread.
//!
//! ```text
//!   acceptor ──socket──> worker 0..N   one epoll loop each, no async code
//!                          │  wake-up: read ready connections, parse, prefetch, execute as one batch, write once each
//!   pager    <──doorbell───┘  sleeps until something is due
//! ```
//! No thread has a periodic tick. A worker sleeps in `epoll_wait` without a timeout unless a peer is stuck or it holds
//! cached blocks; the pager sleeps until its next deadline.
#![forbid(unsafe_code)]

mod acceptor;
mod aside;
mod backlog;
mod clock;
mod connection;
mod durability;
mod journals;
mod links;
pub mod ovsdb;
mod pager;
mod refusals;
mod server;
mod socket;
mod worker;
mod write;

pub use clock::Clock;
pub use journals::Unwritten;
pub use server::{Listener, Server, executing_threads};
