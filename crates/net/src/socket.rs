//! A socket's description in the list of connections.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use kv::clients::{self, Client};
use transport::{Address, Stream};

/// The address of a peer on a Unix socket: it is on this machine.
const ON_THIS_MACHINE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Its descriptor.
pub(crate) fn number(socket: &impl AsRawFd) -> usize {
    usize::try_from(socket.as_raw_fd()).unwrap_or_default()
}

/// The address of a peer. A peer on a Unix socket counts as loopback; a dual-stack socket reports IPv4 peers as IPv6.
pub(crate) fn peer_address(accepted: Option<SocketAddr>) -> SocketAddr {
    accepted.map_or(ON_THIS_MACHINE, |address| SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// The address of a port in the list of connections.
pub(crate) fn listed_address(address: &Address) -> clients::Address {
    match address {
        Address::Tcp(address) => clients::Address::Tcp(*address),
        Address::Unix(path) => clients::Address::Unix(path.clone()),
    }
}

/// A connection's entry in the list of connections.
pub(crate) fn client_of(
    stream: &Stream,
    peer: SocketAddr,
    listener: &Arc<clients::Listener>,
    now_ms: u64,
) -> Client {
    let (address, reached) = match &listener.address {
        clients::Address::Tcp(own) if own.ip().is_unspecified() => {
            (Some(peer), stream.local_address().map(|address| address.ip().to_canonical()))
        }
        clients::Address::Tcp(_) => (Some(peer), None),
        clients::Address::Unix(_) => (None, None),
    };
    Client::new(number(stream), Arc::clone(listener), address, reached, now_ms)
}
