//! The stream sockets of clients: TCP, or of the Unix domain.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

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
