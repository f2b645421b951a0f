//! What the loop holds for clients: partial messages, waiting requests, replies and notifications that they have not
//! read.
//!
//! Each connection's share is recounted after each of its turns and sends; the sum is the number that a node adds to
//! its total. Above the bound the loop closes the connection that holds most, then the next, until the rest fits.
//! Clients that read their output hold next to nothing.

use super::EventLoop;
use super::connection::{Connection, Role};
use super::event_loop::Slot;
use super::logger::Level;

/// Shares of shared buffers change when other connections have sent theirs: near the bound all connections are
/// recounted, at most once per this interval.
const RECOUNT_MS: u64 = 250;

/// The sum of what connections hold.
#[derive(Debug, Default)]
pub(super) struct Held {
    total: usize,
    recounted_ms: u64,
    /// Connections that were closed because they held most.
    closed: u64,
}

impl Held {
    /// Records that a connection that held `before` now holds `now`.
    fn change(&mut self, before: &mut usize, now: usize) {
        if *before != now {
            self.total = self.total.saturating_sub(*before) + now;
            *before = now;
        }
    }

    /// All connections are closed.
    pub fn clear(&mut self) {
        self.total = 0;
    }
}

impl EventLoop {
    /// The bytes held for all clients.
    pub fn client_bytes(&self) -> usize {
        self.held.total
    }

    /// Clients that were disconnected because they held most when all together held too much.
    pub fn clients_over_bound(&self) -> u64 {
        self.held.closed
    }

    /// Recounts what a connection holds.
    pub(super) fn count_held(&mut self, slot: usize) {
        let Some(Slot::Connection(connection)) = self.slots.get_mut(slot) else { return };
        let kept = match &connection.role {
            Role::Session { id, .. } => self.server.session_bytes(*id),
            Role::Control(control) => control.bytes(),
        };
        let now = connection.input_bytes() + kept;
        self.held.change(&mut connection.held_bytes, now);
    }

    /// Subtracts a connection that is about to close.
    pub(super) fn forget_held(&mut self, connection: &mut Connection) {
        self.held.change(&mut connection.held_bytes, 0);
    }

    /// Closes the connections that hold most while the sum exceeds the bound.
    pub(super) fn bound_held(&mut self) {
        let bound = self.settings.client_bytes;
        let is_near = self.held.total > bound / 2;
        let is_over = self.held.total > bound;
        if !is_near || !is_over && self.now.monotonic_ms < self.held.recounted_ms + RECOUNT_MS {
            return;
        }
        self.held.recounted_ms = self.now.monotonic_ms;
        for slot in 0..self.slots.len() {
            self.count_held(slot);
        }
        while self.held.total > bound {
            let connections = self.slots.iter().enumerate().filter_map(|(slot, entry)| match entry {
                Slot::Connection(connection) => Some((connection.held_bytes, slot)),
                _ => None,
            });
            let Some((bytes, slot)) = connections.max().filter(|(bytes, _)| *bytes > 0) else { return };
            if let Some(Slot::Connection(connection)) = self.slots.get(slot) {
                let text = format!(
                    "{}: disconnecting (it holds {bytes} bytes of requests and replies, most of {} of all clients; \
                    {bound} are allowed)",
                    connection.name, self.held.total
                );
                self.log("ovsdb_jsonrpc_server", Level::Warning, &text);
            }
            self.held.closed += 1;
            self.close_slot(slot);
        }
    }
}
