//! The process's limit on open files: every connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files besides client connections: listeners, polls, logs, HTTP connections.
const OTHER_FILES: u64 = 1024;

/// Raises the limit on open files to fit `connections`, as far as the system allows. Returns the limit in force.
pub fn raise_open_files(connections: usize) -> u64 {
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OTHER_FILES);
    let now = getrlimit(Resource::Nofile);
    let current = now.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    // A privileged process may raise the hard limit too; others are limited by it.
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
