//! The system log's socket. Where there is none, nothing is said.

use std::os::unix::net::UnixDatagram;

const SOCKET: &str = "/dev/log";

/// Facilities by name, in the order of their numbers; empty: not assigned.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "clock", "authpriv", "ftp",
    "ntp", "audit", "alert", "clock2", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];
const DAEMON: u8 = 3;

/// The way to the system log.
#[derive(Debug)]
pub struct Syslog {
    socket: Option<UnixDatagram>,
    facility: u8,
}

impl Default for Syslog {
    fn default() -> Self {
        Self { socket: None, facility: DAEMON }
    }
}

impl Syslog {
    /// The number of the facility in force.
    pub fn facility(&self) -> u8 {
        self.facility
    }

    /// Sets the facility by its name.
    pub fn set_facility(&mut self, name: &str) -> Result<(), String> {
        let found = FACILITIES.iter().position(|known| known.eq_ignore_ascii_case(name));
        self.facility = found.and_then(|place| u8::try_from(place).ok()).ok_or("invalid facility")?;
        Ok(())
    }

    /// Sends one message, if anybody takes it at once.
    pub fn send(&mut self, message: &str) {
        if self.socket.is_none() {
            self.socket = UnixDatagram::unbound()
                .ok()
                .filter(|socket| socket.set_nonblocking(true).and_then(|()| socket.connect(SOCKET)).is_ok());
        }
        if self.socket.as_ref().is_some_and(|socket| socket.send(message.as_bytes()).is_err()) {
            // The daemon may have been restarted: another socket next time.
            self.socket = None;
        }
    }
}
