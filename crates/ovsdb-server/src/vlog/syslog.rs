//! The system log's socket, and optionally one to a log collector. If one of them cannot be reached, its messages are
//! dropped silently.

use std::net::{ToSocketAddrs as _, UdpSocket};
use std::os::unix::net::UnixDatagram;

const SOCKET: &str = "/dev/log";

/// Facilities by name, in the order of their numbers; empty: not assigned.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "clock", "authpriv", "ftp",
    "ntp", "audit", "alert", "clock2", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];
const DAEMON: u8 = 3;
const LOCAL0: u8 = 16;

/// The connection to the system log.
#[derive(Debug, Default)]
pub struct Syslog {
    socket: Option<UnixDatagram>,
    /// The socket of `--syslog-target`.
    target: Option<UdpSocket>,
    facility: Option<u8>,
}

impl Syslog {
    /// The number of the facility in force for the local system log.
    pub fn facility(&self) -> u8 {
        self.facility.unwrap_or(DAEMON)
    }

    /// COMPAT: where none is set, patterns and collectors show another facility.
    pub fn shown_facility(&self) -> u8 {
        self.facility.unwrap_or(LOCAL0)
    }

    /// Also sends messages to `HOST:PORT` from now on.
    pub fn set_target(&mut self, target: &str) -> Result<(), String> {
        let port = target.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
        let port = port.filter(|port| !port.is_empty());
        let port = port.ok_or_else(|| format!("{target}: port must be specified"))?;
        if port.parse::<u16>().is_err() {
            return Err(format!("{target}: bad port number \"{port}\""));
        }
        let failed = |error: std::io::Error| format!("{target}: {}", super::system_text(&error));
        let mut addresses = target.to_socket_addrs().map_err(failed)?;
        let address = addresses.next().ok_or_else(|| format!("{target}: no address"))?;
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).map_err(failed)?;
        socket.set_nonblocking(true).and_then(|()| socket.connect(address)).map_err(failed)?;
        self.target = Some(socket);
        Ok(())
    }

    /// Returns true if there is a collector.
    pub fn has_target(&self) -> bool {
        self.target.is_some()
    }

    /// Sends one message to the collector, if it can be sent at once.
    pub fn send_to_target(&self, message: &str) {
        if let Some(socket) = &self.target {
            let _ = socket.send(message.as_bytes());
        }
    }

    /// Sets the facility by its name.
    pub fn set_facility(&mut self, name: &str) -> Result<(), String> {
        let found = FACILITIES.iter().position(|known| known.eq_ignore_ascii_case(name));
        self.facility = Some(found.and_then(|place| u8::try_from(place).ok()).ok_or("invalid facility")?);
        Ok(())
    }

    /// Sends one message, if it is accepted at once.
    pub fn send(&mut self, message: &str) {
        if self.socket.is_none() {
            self.socket = UnixDatagram::unbound()
                .ok()
                .filter(|socket| socket.set_nonblocking(true).and_then(|()| socket.connect(SOCKET)).is_ok());
        }
        if self.socket.as_ref().is_some_and(|socket| socket.send(message.as_bytes()).is_err()) {
            // The daemon may have restarted: use another socket next time.
            self.socket = None;
        }
    }
}
