//! Probes: a peer that has been silent for long is sent an echo request, and given up if it does not answer.
//!
//! Each connection has one entry among the deadlines. Receiving does not move it: when it is due it is checked, and
//! entered again for the time that is left. So receiving costs nothing.

use super::EventLoop;
use super::connection::Role;
use super::event_loop::Slot;
use super::logger::Level;
use super::reconnect::seconds;
use super::remotes::PROBE_MS;
use transport::Stream;

/// The probe.
const PROBE: &[u8] = br#"{"id":"echo","method":"echo","params":[]}"#;

impl EventLoop {
    /// Probes the peers that have been silent for long, and gives up those that did not answer.
    pub(super) fn probes_due(&mut self) {
        let now_ms = self.now.monotonic_ms;
        while let Some((due_ms, slot, serial)) =
            self.probes.first().copied().filter(|probe| probe.0 <= now_ms)
        {
            self.probes.remove(&(due_ms, slot, serial));
            let Some(Slot::Connection(connection)) = self.slots.get_mut(slot) else { continue };
            if connection.serial != serial {
                continue;
            }
            let interval_ms = connection.probe.interval_ms;
            let since_ms = connection.probe.asked_ms.unwrap_or(connection.received_ms);
            if connection.closing {
                // The peer did not read its last output in time.
                self.close_slot(slot);
                continue;
            }
            if interval_ms == 0 {
                continue;
            }
            if since_ms + interval_ms > now_ms {
                self.probes.insert((since_ms + interval_ms, slot, serial));
                continue;
            }
            if connection.probe.asked_ms.is_some() {
                let text = format!(
                    "{}: no response to inactivity probe after {} seconds, disconnecting",
                    connection.name,
                    seconds(interval_ms)
                );
                self.log("reconnect", Level::Error, &text);
                self.close_slot(slot);
                continue;
            }
            connection.probe.asked_ms = Some(now_ms);
            self.probes.insert((now_ms + interval_ms, slot, serial));
            if let Role::Session { id, .. } = connection.role
                && let Some(output) = self.server.output(id)
            {
                // Nothing is held between two groups, so this publishes nothing else.
                output.append(PROBE);
                output.publish();
                self.send(slot);
            }
        }
    }

    /// Applies a remote's changed probe interval to its sessions.
    pub(super) fn change_probes(&mut self, name: &str, probe_ms: Option<u64>) {
        let now_ms = self.now.monotonic_ms;
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            if let Slot::Connection(connection) = entry
                && matches!(&connection.role, Role::Session { remote, .. } if **remote == *name)
            {
                connection.probe.interval_ms = probe_interval(&connection.stream, probe_ms);
                if connection.probe.interval_ms > 0 {
                    // An earlier entry is dropped, or merges with this one, when it is due.
                    self.probes.insert((now_ms + connection.probe.interval_ms, slot, connection.serial));
                }
            }
        }
    }
}

/// The silence after which a peer is probed. Local peers are probed only if configured.
pub(super) fn probe_interval(stream: &Stream, configured_ms: Option<u64>) -> u64 {
    configured_ms.unwrap_or(if stream.is_remote() { PROBE_MS } else { 0 })
}
