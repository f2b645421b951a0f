//! Failed logins, and how long the next attempt has to wait.
//!
//! ```text
//!   (network, user)  ->  failures, last failure, blocked until
//!     failures 1..=10        not blocked
//!     failure  11, 12, ..    blocked for 50 ms, 100 ms, .. 4 s
//!     a minute without one   forgotten
//! ```
//!
//! While an entry is blocked, attempts are refused without checking the password, with the answer to a wrong password,
//! and do not prolong the block. Nobody waits for it: no thread sleeps, and no connection is held.
//!
//! A blocked entry does not keep out the user whose password is guessed from the same network: the first attempt of a
//! connection is checked all the same. Of these, [`FIRST_FAILURES`] may fail at once, and then one in
//! [`FIRST_EVERY_US`]; those that succeed do not count, and do not end the block. So guessing on some connections
//! keeps no other connection out, and a new connection for each guess gains one guess in a second.
//!
//! * Entries are per network and user, so guessing from one address locks nobody out at another. A network is one IPv4
//!   address or one IPv6 /64; all of this machine's own addresses are one network.
//! * All unknown names share one entry per network: making up names neither fills the table nor pushes entries out.
//! * The table is bounded. What is forgotten goes first, then the entry with the fewest failures.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crate::lock_order::{Ranked, rank};

/// Failures of an entry before the first delay.
pub const FREE_FAILURES: u32 = 10;
/// The first delay; each further failure doubles it.
const DELAY_FIRST_US: u64 = 50_000;
/// Longest delay.
pub const DELAY_MAX_US: u64 = 4_000_000;
/// An entry without a failure for this long is forgotten.
pub const MEMORY_US: u64 = 60_000_000;
/// First attempts of connections that may fail at once while their entry is blocked.
const FIRST_FAILURES: u64 = 4;
/// After this time another one may.
const FIRST_EVERY_US: u64 = 1_000_000;
/// An attempt on a connection without one for this long is a first one again.
const QUIET_US: u64 = 1_000_000;
/// Most connections whose last failed attempts are remembered.
const CONNECTIONS_MAX: usize = 4096;
/// Most entries of the table.
pub const ENTRIES_MAX: usize = 4096;
/// Least time between two notices.
const NOTICE_INTERVAL_US: u64 = 10_000_000;

/// Who attempts a login, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The client's address; `None` for one without, on this machine.
    pub address: Option<IpAddr>,
    /// Whether the client is on this machine.
    pub loopback: bool,
    /// Its connection, by a number of [`next_connection`].
    pub connection: u64,
    /// Monotonic clock, microseconds since the process started.
    pub mono_us: u64,
}

/// Returns a number that no other connection of the process has.
pub fn next_connection() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// Failed logins since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoginFigures {
    /// Logins that failed, refused ones included.
    pub failed: u64,
    /// Of these, refused without checking the password because of earlier failures.
    pub refused: u64,
}

/// What an operator should know of failed logins; at most one in ten seconds.
#[derive(Debug, Clone, Copy)]
pub struct Notice<'a> {
    /// Failed logins since the last notice.
    pub failures: u64,
    /// The user of the last of them, as the client named it.
    pub user: &'a str,
    /// Where the last of them came from.
    pub address: Option<IpAddr>,
}

type Listener = Box<dyn Fn(Notice<'_>) + Send + Sync>;

/// The table of failed logins.
#[derive(Default)]
pub(super) struct Attempts {
    table: Ranked<Table, { rank::ATTEMPTS }>,
    failed: AtomicU64,
    refused: AtomicU64,
    listener: OnceLock<Listener>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    /// Connections with the times of their last failed attempts.
    connections: HashMap<u64, u64>,
    unreported: u64,
    next_notice_us: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    network: Network,
    /// `None` stands for all unknown names.
    user: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Network {
    Local,
    V4([u8; 4]),
    V6([u8; 8]),
}

impl Network {
    fn of(caller: Caller) -> Self {
        match caller.address.map(|address| address.to_canonical()) {
            _ if caller.loopback => Self::Local,
            None => Self::Local,
            Some(address) if address.is_loopback() => Self::Local,
            Some(IpAddr::V4(address)) => Self::V4(address.octets()),
            Some(IpAddr::V6(address)) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    failures: u32,
    last_us: u64,
    blocked_until_us: u64,
    /// When as many first attempts may fail at once as ever.
    firsts_full_us: u64,
}

impl Entry {
    fn is_forgotten(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.last_us) >= MEMORY_US
    }

    fn is_blocked(&self, now_us: u64) -> bool {
        now_us < self.blocked_until_us
    }

    fn checks_firsts(&self, now_us: u64) -> bool {
        self.firsts_full_us <= now_us.saturating_add((FIRST_FAILURES - 1) * FIRST_EVERY_US)
    }

    fn fail_first(&mut self, now_us: u64) {
        self.firsts_full_us = self.firsts_full_us.max(now_us).saturating_add(FIRST_EVERY_US);
    }

    fn fail(&mut self, now_us: u64) {
        if self.is_forgotten(now_us) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.last_us = now_us;
        if let Some(doublings) = self.failures.checked_sub(FREE_FAILURES + 1) {
            let delay_us = DELAY_FIRST_US.checked_shl(doublings.min(32)).unwrap_or(DELAY_MAX_US);
            self.blocked_until_us = now_us.saturating_add(delay_us.min(DELAY_MAX_US));
        }
    }
}

impl Attempts {
    /// Returns true if an attempt would be refused now without a check.
    pub(super) fn is_refused(&self, caller: Caller, user: Option<Arc<str>>) -> bool {
        let key = Key { network: Network::of(caller), user };
        let table = self.table.lock();
        table.entries.get(&key).is_some_and(|entry| table.refuses(entry, caller))
    }

    /// Runs `check` unless the caller is refused for this user, and notes the outcome. `user` is the name if there is
    /// such a user; `named` is what the client called itself.
    pub(super) fn attempt<T, E>(
        &self,
        caller: Caller,
        user: Option<Arc<str>>,
        named: &str,
        denied: E,
        check: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let key = Key { network: Network::of(caller), user };
        let now_us = caller.mono_us;
        // Held during the check: otherwise parallel attempts would all be let in before the first of them has failed.
        let mut table = self.table.lock();
        let entry = table.entries.get(&key).copied();
        let is_blocked = entry.is_some_and(|entry| entry.is_blocked(now_us));
        let is_refused = entry.is_some_and(|entry| table.refuses(&entry, caller));
        let result = if is_refused {
            self.refused.fetch_add(1, Relaxed);
            Err(denied)
        } else {
            check()
        };
        if result.is_ok() {
            if entry.is_some() && !is_blocked {
                table.entries.remove(&key);
            }
            return result;
        }
        self.failed.fetch_add(1, Relaxed);
        table.note_attempt(caller);
        if !is_blocked {
            table.make_room(&key, now_us);
            table.entries.entry(key).or_default().fail(now_us);
        } else if !is_refused {
            table.entries.entry(key).or_default().fail_first(now_us);
        }
        table.unreported += 1;
        if now_us >= table.next_notice_us {
            table.next_notice_us = now_us.saturating_add(NOTICE_INTERVAL_US);
            let failures = std::mem::take(&mut table.unreported);
            drop(table);
            if let Some(listener) = self.listener.get() {
                listener(Notice { failures, user: named, address: caller.address });
            }
        }
        result
    }

    pub(super) fn figures(&self) -> LoginFigures {
        LoginFigures { failed: self.failed.load(Relaxed), refused: self.refused.load(Relaxed) }
    }

    pub(super) fn set_listener(&self, listener: Listener) {
        // Once per process.
        let _ = self.listener.set(listener);
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.table.lock().entries.len()
    }

    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.table.lock().connections.len()
    }
}

impl Table {
    /// Returns true if an attempt on this entry is refused without a check.
    fn refuses(&self, entry: &Entry, caller: Caller) -> bool {
        let now_us = caller.mono_us;
        entry.is_blocked(now_us) && !(self.is_first(caller) && entry.checks_firsts(now_us))
    }

    fn is_first(&self, caller: Caller) -> bool {
        let last_us = self.connections.get(&caller.connection);
        last_us.is_none_or(|last_us| caller.mono_us.saturating_sub(*last_us) >= QUIET_US)
    }

    /// Notes a failed attempt on a connection.
    fn note_attempt(&mut self, caller: Caller) {
        let now_us = caller.mono_us;
        if self.connections.len() >= CONNECTIONS_MAX && !self.connections.contains_key(&caller.connection) {
            self.connections.retain(|_, last_us| now_us.saturating_sub(*last_us) < QUIET_US);
            let oldest = self.connections.iter().min_by_key(|(_, last_us)| **last_us).map(|(id, _)| *id);
            if let Some(oldest) = oldest.filter(|_| self.connections.len() >= CONNECTIONS_MAX) {
                self.connections.remove(&oldest);
            }
        }
        self.connections.insert(caller.connection, now_us);
    }

    fn make_room(&mut self, key: &Key, now_us: u64) {
        if self.entries.len() < ENTRIES_MAX || self.entries.contains_key(key) {
            return;
        }
        self.entries.retain(|_, entry| !entry.is_forgotten(now_us));
        if self.entries.len() < ENTRIES_MAX {
            return;
        }
        let least = self.entries.iter().min_by_key(|(_, entry)| (entry.failures, entry.last_us));
        if let Some(key) = least.map(|(key, _)| key.clone()) {
            self.entries.remove(&key);
        }
    }
}
