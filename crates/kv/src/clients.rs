//! The connections to the memcached ports, for `stats conns`.
//!
//! A worker notes the state of its connections, each in an entry of its own. The table is locked when a connection
//! opens or closes, and while a slice of a list is written. The caller chooses the entries' numbers: small ones, no two
//! open at the same time.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use parking_lot::RwLock;

/// Most connections listed under one hold of the table,
const SLICE_LISTED: usize = 64;
/// and most numbers examined.
const SLICE_LOOKED: usize = 1024;

/// Where a port listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// A data port as its sessions know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Where it listens.
    pub address: Address,
    /// The bucket its connections start with.
    pub bucket: Option<String>,
    /// Idle time after which a connection is closed, ms; 0: never.
    pub idle_limit_ms: u64,
    /// Its connections are encrypted.
    pub tls: bool,
}

/// The state of a connection, by memcached's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// A listening socket.
    Listening,
    /// No request has come yet.
    New,
    /// Waits for a request, or for the rest of its head.
    Read,
    /// Executes a request, or will soon.
    Parse,
    /// Waits for the rest of a value.
    Value,
    /// Waits for the rest of a refused value.
    Swallow,
    /// Waits for the peer to take its answers.
    Write,
    /// An answer waits for the disk, or for other nodes.
    Waits,
    /// Watches events.
    Watch,
}

impl State {
    const NAMES: [&'static str; 9] = [
        "conn_listening",
        "conn_new_cmd",
        "conn_read",
        "conn_parse_cmd",
        "conn_nread",
        "conn_swallow",
        "conn_mwrite",
        "conn_io_queue",
        "conn_watch",
    ];
}

/// A connection, or a listening socket.
#[derive(Debug)]
pub struct Client {
    /// Its descriptor.
    number: u32,
    listener: Arc<Listener>,
    /// The peer's address; `None` on a socket in the file system.
    address: Option<SocketAddr>,
    /// The local address it connected to, if the port listens on several.
    reached: Option<IpAddr>,
    state: AtomicU8,
    /// Time of its last request, s of the monotonic clock.
    asked_s: AtomicU32,
}

impl Client {
    /// Creates the entry of a new connection, with its descriptor.
    pub fn new(
        number: usize,
        listener: Arc<Listener>,
        address: Option<SocketAddr>,
        reached: Option<IpAddr>,
        now_ms: u64,
    ) -> Self {
        let (state, asked_s) = (AtomicU8::new(State::New as u8), AtomicU32::new(seconds(now_ms)));
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        Self { number, listener, address, reached, state, asked_s }
    }

    fn listening(number: usize, listener: Arc<Listener>, now_ms: u64) -> Self {
        let client = Self::new(number, listener, None, None, now_ms);
        client.set_state(State::Listening);
        client
    }

    /// Returns its descriptor.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the peer's address; `None` on a socket in the file system.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns its port.
    #[inline]
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Notes that a request has come.
    #[inline]
    pub fn note_asked(&self, now_ms: u64) {
        self.asked_s.store(seconds(now_ms), Relaxed);
        self.set_state(State::Parse);
    }

    /// Sets its state.
    #[inline]
    pub fn set_state(&self, state: State) {
        if self.state.load(Relaxed) != state as u8 {
            self.state.store(state as u8, Relaxed);
        }
    }

    /// Hands the lines about it to `emit`: name and value.
    fn describe(&self, now_ms: u64, emit: &mut dyn FnMut(&str, fmt::Arguments<'_>)) {
        let state = self.state.load(Relaxed);
        if state == State::Listening as u8 {
            emit("addr", format_args!("{}", Shown(&self.listener.address)));
        } else {
            match self.address {
                Some(address) => emit("addr", format_args!("{}", ShownTcp(address))),
                None => emit("addr", format_args!("unix:")),
            }
            match (&self.listener.address, self.reached) {
                (Address::Tcp(address), Some(reached)) => {
                    emit("listen_addr", format_args!("{}", ShownTcp((reached, address.port()).into())));
                }
                (address, _) => emit("listen_addr", format_args!("{}", Shown(address))),
            }
        }
        emit("state", format_args!("{}", State::NAMES.get(usize::from(state)).unwrap_or(&"")));
        let idle_s = seconds(now_ms).saturating_sub(self.asked_s.load(Relaxed));
        emit("secs_since_last_cmd", format_args!("{idle_s}"));
    }
}

struct Shown<'a>(&'a Address);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Address::Tcp(address) => ShownTcp(*address).fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

struct ShownTcp(SocketAddr);

impl fmt::Display for ShownTcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.ip() {
            IpAddr::V4(ip) => write!(f, "tcp:{ip}:{}", self.0.port()),
            IpAddr::V6(ip) => write!(f, "tcp6:[{ip}]:{}", self.0.port()),
        }
    }
}

/// See the module. One per node.
#[derive(Default)]
pub struct Clients(RwLock<Vec<Option<Arc<Client>>>>);

impl Clients {
    /// Adds a port that listens.
    pub fn add_listener(&self, number: usize, listener: Arc<Listener>, now_ms: u64) {
        self.add(number, Arc::new(Client::listening(number, listener, now_ms)));
    }

    /// Adds a connection.
    pub fn add_client(&self, client: Arc<Client>) {
        self.add(client.number as usize, client);
    }

    fn add(&self, number: usize, client: Arc<Client>) {
        let mut clients = self.0.write();
        if number >= clients.len() {
            clients.resize_with(number + 1, || None);
        }
        clients[number] = Some(client);
    }

    /// Removes a connection; its number may be reused afterwards.
    pub fn remove(&self, number: usize) {
        if let Some(client) = self.0.write().get_mut(number) {
            *client = None;
        }
    }

    /// Lists some of the sockets and connections of the ports that serve this bucket, from a number on. Returns the
    /// number to continue with, `None` at the end.
    pub fn list(
        &self,
        from: usize,
        bucket: &str,
        now_ms: u64,
        emit: &mut dyn FnMut(usize, &str, fmt::Arguments<'_>),
    ) -> Option<usize> {
        let clients = self.0.read();
        let end = clients.len().min(from + SLICE_LOOKED);
        let mut listed = 0;
        for (number, client) in clients.iter().enumerate().take(end).skip(from) {
            let Some(client) = client else { continue };
            if client.listener.bucket.as_deref() != Some(bucket) {
                continue;
            }
            client.describe(now_ms, &mut |name, value| emit(number, name, value));
            listed += 1;
            if listed == SLICE_LISTED {
                return Some(number + 1);
            }
        }
        (end < clients.len()).then_some(end)
    }
}

fn seconds(ms: u64) -> u32 {
    u32::try_from(ms / 1000).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(address: &str, bucket: &str) -> Arc<Listener> {
        let address = address.parse().map_or_else(|_| Address::Unix(address.into()), Address::Tcp);
        Arc::new(Listener { address, bucket: Some(bucket.into()), idle_limit_ms: 0, tls: false })
    }

    fn list(clients: &Clients, bucket: &str, now_ms: u64) -> (Vec<String>, usize) {
        let (mut lines, mut slices, mut next) = (Vec::new(), 0, Some(0));
        while let Some(from) = next {
            next = clients.list(from, bucket, now_ms, &mut |number, name, value| {
                lines.push(format!("{number}:{name} {value}"));
            });
            slices += 1;
        }
        (lines, slices)
    }

    #[test]
    fn those_of_a_bucket_are_listed_as_memcached_does() {
        let clients = Clients::default();
        let (tcp, unix) = (listener("0.0.0.0:11211", "a"), listener("/run/m.sock", "a"));
        let other = listener("[::1]:11212", "b");
        clients.add_listener(7, Arc::clone(&tcp), 1000);
        clients.add_listener(3, Arc::clone(&unix), 1000);
        clients.add_listener(4, Arc::clone(&other), 1000);
        let peer = |address: &str| Some(address.parse().unwrap());
        let first = Arc::new(Client::new(9, tcp, peer("10.0.0.1:99"), Some([10, 0, 0, 2].into()), 2000));
        clients.add_client(Arc::clone(&first));
        clients.add_client(Arc::new(Client::new(8, unix, None, None, 3000)));
        clients.add_client(Arc::new(Client::new(5, other, peer("[::1]:98"), None, 3000)));
        first.note_asked(4000);
        let of_b = [
            "4:addr tcp6:[::1]:11212",
            "4:state conn_listening",
            "4:secs_since_last_cmd 4",
            "5:addr tcp6:[::1]:98",
            "5:listen_addr tcp6:[::1]:11212",
            "5:state conn_new_cmd",
            "5:secs_since_last_cmd 2",
        ];
        assert_eq!(list(&clients, "b", 5999).0, of_b);
        let of_a = [
            "3:addr unix:/run/m.sock",
            "3:state conn_listening",
            "3:secs_since_last_cmd 4",
            "7:addr tcp:0.0.0.0:11211",
            "7:state conn_listening",
            "7:secs_since_last_cmd 4",
            "8:addr unix:",
            "8:listen_addr unix:/run/m.sock",
            "8:state conn_new_cmd",
            "8:secs_since_last_cmd 2",
            "9:addr tcp:10.0.0.1:99",
            "9:listen_addr tcp:10.0.0.2:11211",
            "9:state conn_parse_cmd",
            "9:secs_since_last_cmd 1",
        ];
        assert_eq!(list(&clients, "a", 5999).0, of_a);
        clients.remove(9);
        assert_eq!(list(&clients, "a", 5999).0, of_a[..10]);
    }

    #[test]
    fn a_long_list_is_written_in_slices() {
        let clients = Clients::default();
        let (mine, other) = (listener("127.0.0.1:1", "a"), listener("127.0.0.1:2", "b"));
        for number in 0..10_000 {
            let listener = if number % 2 == 0 { &mine } else { &other };
            clients.add_client(Arc::new(Client::new(number, Arc::clone(listener), None, None, 0)));
        }
        let (lines, slices) = list(&clients, "a", 0);
        assert_eq!((lines.len(), slices), (4 * 5000, 5000 / SLICE_LISTED + 1));
        assert_eq!(list(&clients, "c", 0), (vec![], 10_000 / SLICE_LOOKED + 1));
    }

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Client>() <= 80, "{}", size_of::<Client>());
    }
}
