//! The stream sockets of clients: TCP, or of the Unix domain.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use kv::clients::{self, Address, Client};
use mio::event::Source;
use mio::{Interest, Registry, Token};
use socket2::SockRef;

/// What a peer on a Unix socket has for an address: it is on this machine.
const ON_THIS_MACHINE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Unsent bytes of one connection in the kernel before it takes no more, beside what is under way to the peer. Without a bound it
/// keeps up to 4 MB for a peer that does not read.
const UNSENT_BYTES: u32 = 128 << 10;

/// Bounds what the kernel keeps unsent for each connection that this socket will accept.
pub(crate) fn bound_unsent(listener: &impl AsFd) {
    // Best effort: it is memory of the kernel's, not of this process.
    let _ = SockRef::from(listener).set_tcp_notsent_lowat(UNSENT_BYTES);
}

/// A socket that is bound and listens.
#[derive(Debug)]
pub enum ListeningSocket {
    /// Of TCP.
    Tcp(TcpListener),
    /// Of the Unix domain.
    Unix(UnixListener),
}

impl ListeningSocket {
    /// Where it listens.
    pub(crate) fn address(&self) -> Address {
        match self {
            Self::Tcp(socket) => Address::Tcp(socket.local_addr().unwrap_or(ON_THIS_MACHINE)),
            Self::Unix(socket) => {
                let address = socket.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                Address::Unix(path.unwrap_or_else(|| "".as_ref()).to_owned())
            }
        }
    }

    /// Its descriptor.
    pub(crate) fn number(&self) -> usize {
        number(match self {
            Self::Tcp(socket) => socket.as_raw_fd(),
            Self::Unix(socket) => socket.as_raw_fd(),
        })
    }
}

fn number(descriptor: i32) -> usize {
    usize::try_from(descriptor).unwrap_or_default()
}

/// The same, watched by the acceptor.
pub(crate) enum WatchedListener {
    Tcp(mio::net::TcpListener),
    Unix(mio::net::UnixListener),
}

impl WatchedListener {
    pub(crate) fn new(socket: ListeningSocket) -> io::Result<Self> {
        match socket {
            ListeningSocket::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                bound_unsent(&socket);
                Ok(Self::Tcp(mio::net::TcpListener::from_std(socket)))
            }
            ListeningSocket::Unix(socket) => {
                socket.set_nonblocking(true)?;
                Ok(Self::Unix(mio::net::UnixListener::from_std(socket)))
            }
        }
    }

    pub(crate) fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(listener) => listener,
            Self::Unix(listener) => listener,
        }
    }

    /// The next connection and the address of its peer. A peer on a Unix socket counts as one on loopback.
    pub(crate) fn accept(&self) -> io::Result<(Socket, SocketAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (socket, address) = listener.accept()?;
                let _ = socket.set_nodelay(true);
                // A socket for both families shows IPv4 peers as IPv6.
                Ok((Socket::Tcp(socket), SocketAddr::new(address.ip().to_canonical(), address.port())))
            }
            Self::Unix(listener) => {
                listener.accept().map(|(socket, _)| (Socket::Unix(socket), ON_THIS_MACHINE))
            }
        }
    }
}

/// A client's connection.
pub(crate) enum Socket {
    Tcp(mio::net::TcpStream),
    Unix(mio::net::UnixStream),
}

impl Socket {
    /// Its descriptor.
    pub(crate) fn number(&self) -> usize {
        number(match self {
            Self::Tcp(socket) => socket.as_raw_fd(),
            Self::Unix(socket) => socket.as_raw_fd(),
        })
    }

    /// Its entry in the list of connections.
    pub(crate) fn client(&self, peer: SocketAddr, listener: &Arc<clients::Listener>, now_ms: u64) -> Client {
        let (address, reached) = match (self, &listener.address) {
            (Self::Tcp(socket), Address::Tcp(own)) if own.ip().is_unspecified() => {
                (Some(peer), socket.local_addr().ok().map(|address| address.ip().to_canonical()))
            }
            (Self::Tcp(_), _) => (Some(peer), None),
            (Self::Unix(_), _) => (None, None),
        };
        Client::new(self.number(), Arc::clone(listener), address, reached, now_ms)
    }

    /// What the kernel still has to send is dropped when the socket is closed, and the peer told so: it would be kept for as
    /// long as the peer takes nothing.
    pub(crate) fn reset_when_closed(&self) {
        if let Self::Tcp(socket) = self {
            // Best effort: without it the kernel keeps the bytes for a while.
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(buffer),
            Self::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write_vectored(slices),
            Self::Unix(socket) => socket.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Source for Socket {
    fn register(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.register(registry, token, interests),
            Self::Unix(socket) => socket.register(registry, token, interests),
        }
    }

    fn reregister(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.reregister(registry, token, interests),
            Self::Unix(socket) => socket.reregister(registry, token, interests),
        }
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.deregister(registry),
            Self::Unix(socket) => socket.deregister(registry),
        }
    }
}
