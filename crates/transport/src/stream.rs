//! Connected sockets.

use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use rustix::net::Shutdown;
use rustls::pki_types::ServerName;

use crate::tls::client::ClientTls;
use crate::tls::config::ServerTls;
use crate::tls::session::Session;
use crate::tls::{OWN_BYTES, Tls};
use crate::unix::ShortName;

/// A socket that is connected or connecting.
#[derive(Debug)]
pub struct Stream(Socket);

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Tls>),
}

impl Stream {
    pub(crate) fn of_tcp(socket: TcpStream) -> Self {
        let _ = socket.set_nodelay(true);
        Self(Socket::Tcp(socket))
    }

    pub(crate) fn of_unix(socket: UnixStream) -> Self {
        Self(Socket::Unix(socket))
    }

    /// Starts connecting to a socket in the file system.
    pub fn connect_unix(path: &Path) -> io::Result<Self> {
        let name = ShortName::of(path)?;
        UnixStream::connect(&name.path).map(Self::of_unix)
    }

    /// Takes over a connection.
    pub fn adopt(socket: std::net::TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self::of_tcp(TcpStream::from_std(socket)))
    }

    /// Starts connecting to a TCP address.
    pub fn connect_tcp(address: SocketAddr) -> io::Result<Self> {
        TcpStream::connect(address).map(Self::of_tcp)
    }

    /// Turns an accepted TCP connection into a TLS one; pass it to [`crate::Handshakes`] next.
    pub fn into_tls(self, tls: &ServerTls) -> io::Result<Self> {
        match self.0 {
            Socket::Tcp(socket) => {
                let (config, end_point) =
                    tls.current().ok_or_else(|| io::Error::other("client certificates cannot be checked"))?;
                let session = Session::server(config).map_err(io::Error::other)?;
                Ok(Self(Socket::Tls(Box::new(Tls::new(socket, session, Some(end_point))))))
            }
            other => Ok(Self(other)),
        }
    }

    /// Turns a TCP connection that was started into a TLS one to a server of this name or address; pass it to
    /// [`crate::Handshakes`] next.
    pub fn into_tls_client(self, tls: &ClientTls, name: &str) -> io::Result<Self> {
        match self.0 {
            Socket::Tcp(socket) => {
                let name = match ServerName::try_from(name.to_owned()) {
                    Ok(name) => name,
                    Err(error) if tls.checks_names() => return Err(io::Error::other(error)),
                    // It is resolved by now, and sent to nobody.
                    Err(_) => socket.peer_addr()?.ip().into(),
                };
                let session = Session::client(tls.config(), name).map_err(io::Error::other)?;
                Ok(Self(Socket::Tls(Box::new(Tls::new(socket, session, None)))))
            }
            other => Ok(Self(other)),
        }
    }

    /// Continues the handshake. Returns true if it is over.
    pub(crate) fn shake_hands(&mut self) -> io::Result<bool> {
        match &mut self.0 {
            Socket::Tls(tls) => tls.shake_hands(),
            _ => Ok(true),
        }
    }

    /// Returns true if a read would return something (data, the end or an error) although the socket is empty.
    #[inline]
    pub fn has_more(&self) -> bool {
        match &self.0 {
            Socket::Tls(tls) => tls.has_more(),
            _ => false,
        }
    }

    /// Bytes of memory held between two calls.
    pub fn held_bytes(&self) -> usize {
        match &self.0 {
            Socket::Tls(tls) => tls.held_bytes(),
            _ => 0,
        }
    }

    /// Bytes of memory it takes for its whole life, besides itself.
    pub fn own_bytes(&self) -> usize {
        match &self.0 {
            Socket::Tls(_) => OWN_BYTES,
            _ => 0,
        }
    }

    /// The certificate that a TLS peer has presented, and its chain, in DER.
    pub fn peer_certificates(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        let chain = match &self.0 {
            Socket::Tls(tls) => tls.peer_certificates(),
            _ => &[],
        };
        chain.iter().map(|certificate| certificate.as_ref())
    }

    /// The hash of the server's certificate to which a login may be bound; `None` without TLS.
    pub fn end_point(&self) -> Option<Arc<[u8]>> {
        match &self.0 {
            Socket::Tls(tls) => tls.end_point(),
            _ => None,
        }
    }

    fn tcp(&self) -> Option<&TcpStream> {
        match &self.0 {
            Socket::Tcp(socket) => Some(socket),
            Socket::Tls(tls) => Some(&tls.socket),
            Socket::Unix(_) => None,
        }
    }

    /// Returns true if a connection that was started is established, false if not yet. Fails if it could not be.
    pub fn is_connected(&self) -> io::Result<bool> {
        match &self.0 {
            Socket::Unix(socket) => socket.take_error()?.map_or(Ok(true), Err),
            Socket::Tls(_) => Ok(true),
            Socket::Tcp(socket) => {
                if let Some(error) = socket.take_error()? {
                    return Err(error);
                }
                match socket.peer_addr() {
                    Ok(_) => Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Returns true if what it sends is encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self.0, Socket::Tls(_))
    }

    /// Returns true for TCP: the kernel does not report when the peer's machine is gone.
    pub fn is_remote(&self) -> bool {
        self.tcp().is_some()
    }

    /// Its own address, if it is a TCP socket.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.tcp().and_then(|socket| socket.local_addr().ok())
    }

    /// Sets the differentiated services code point of its packets; see [`crate::Listener::set_dscp`].
    pub fn set_dscp(&self, dscp: u8) {
        if self.is_remote() {
            mark(self, dscp);
        }
    }

    /// Sends the acknowledgement of what was received now, instead of with the next data or after a delay.
    pub fn acknowledge(&self) {
        if self.is_remote() {
            // Best effort: the delay is short.
            let _ = rustix::net::sockopt::set_tcp_quickack(self, true);
        }
    }

    /// When the socket is closed, drops what the kernel still has to send and resets the connection. Otherwise that is
    /// kept for as long as the peer takes nothing.
    pub fn reset_when_closed(&self) {
        if self.is_remote() {
            // Best effort: without it the kernel keeps the bytes for a while.
            let _ = rustix::net::sockopt::set_socket_linger(self, Some(Duration::ZERO));
        }
    }

    /// Tells the peer that no more data follows.
    pub fn finish_writing(&mut self) -> io::Result<()> {
        if let Socket::Tls(tls) = &mut self.0 {
            tls.finish_writing();
        }
        Ok(rustix::net::shutdown(&*self, Shutdown::Write)?)
    }

    fn source(&mut self) -> &mut dyn Source {
        match &mut self.0 {
            Socket::Tcp(socket) => socket,
            Socket::Unix(socket) => socket,
            Socket::Tls(tls) => &mut tls.socket,
        }
    }
}

/// This is a hint: a system that refuses it works all the same.
pub(crate) fn mark(socket: &impl AsFd, dscp: u8) {
    if rustix::net::sockopt::set_ip_tos(socket, dscp << 2).is_err() {
        let _ = rustix::net::sockopt::set_ipv6_tclass(socket, u32::from(dscp) << 2);
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Socket::Tcp(socket) => socket.read(room),
            Socket::Unix(socket) => socket.read(room),
            Socket::Tls(tls) => tls.read(room),
        }
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
            Socket::Tls(tls) => tls.write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // A single piece takes the cheaper call.
        if let [only] = slices {
            return self.write(only);
        }
        match &mut self.0 {
            Socket::Tcp(socket) => socket.write_vectored(slices),
            Socket::Unix(socket) => socket.write_vectored(slices),
            Socket::Tls(tls) => tls.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

crate::source::delegate!(Stream);

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tls(tls) => tls.socket.as_fd(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
