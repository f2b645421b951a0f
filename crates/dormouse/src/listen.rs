//! Binds the listeners and makes room for connections.

use crate::config::Problem;
use crate::config::reader::cause;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{SocketAddr, TcpListener};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// Open files beside client connections: listeners, polls, logs, HTTP connections.
const OTHER_FILES: u64 = 1024;

/// Binds one listener; `key` is the configuration key it comes from.
pub fn bind(key: &str, address: SocketAddr) -> Result<TcpListener, Problem> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        // The standard library asks for a backlog of 128; listening again widens it.
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    });
    bound.map_err(|error| {
        Problem::new(format!(
            "{key} = \"{address}\": {}; allowed: a free address of this machine, or port 0 for any free port",
            cause(&error)
        ))
    })
}

/// Raises the limit on open files to fit `connections`, as far as the system allows. Returns the limit in force.
pub fn raise_open_files(connections: usize) -> u64 {
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OTHER_FILES);
    let now = getrlimit(Resource::Nofile);
    let current = now.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    // A privileged process may raise the hard limit too; others go up to it.
    let hard = now.maximum.unwrap_or(u64::MAX).max(wanted);
    if setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(hard) }).is_ok() {
        return wanted;
    }
    let reachable = now.maximum.unwrap_or(u64::MAX).min(wanted);
    if setrlimit(Resource::Nofile, Rlimit { current: Some(reachable), maximum: now.maximum }).is_ok() {
        return reachable;
    }
    current
}
