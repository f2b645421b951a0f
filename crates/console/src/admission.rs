//! Bounds on HTTP connections: how many there are, and how long one may stay silent.
//!
//! A connection holds a permit while it is open; without a free one the listener does not accept. A connection whose
//! peer sends nothing for [`SILENCE_MAX`] reads as closed. The timer exists only while such a connection does.

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Open HTTP connections at a time.
const CONNECTIONS_MAX: usize = 512;
/// A peer may be silent for so long.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Out of file descriptors, accepting is tried again after so long.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// What a peer on a Unix socket has for an address: it counts as one on loopback.
const ON_THIS_MACHINE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A socket that is bound and listens.
#[derive(Debug)]
pub enum Listening {
    /// Of TCP.
    Tcp(std::net::TcpListener),
    /// Of the Unix domain.
    Unix(std::os::unix::net::UnixListener),
}

/// Listeners that admit a bounded number of connections together.
pub struct Admission {
    listeners: Vec<Watched>,
    permits: Arc<Semaphore>,
}

enum Watched {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Watched {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        match self {
            Self::Tcp(listener) => listener.poll_accept(cx).map_ok(|(stream, address)| {
                let _ = stream.set_nodelay(true);
                (Stream::Tcp(stream), address)
            }),
            Self::Unix(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| (Stream::Unix(stream), ON_THIS_MACHINE))
            }
        }
    }
}

impl Admission {
    /// Admission to `listeners`; from within the runtime.
    pub fn new(listeners: Vec<Listening>) -> io::Result<Self> {
        let watched = listeners.into_iter().map(|listener| match listener {
            Listening::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener).map(Watched::Tcp)
            }
            Listening::Unix(listener) => {
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener).map(Watched::Unix)
            }
        });
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        Ok(Self { listeners: watched.collect::<io::Result<_>>()?, permits })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        let mut ready = self.listeners.iter().map(|listener| listener.poll_accept(cx));
        ready.find(Poll::is_ready).unwrap_or(Poll::Pending)
    }
}

impl axum::serve::Listener for Admission {
    type Io = Admitted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Admitted, SocketAddr) {
        // The semaphore is never closed, so a permit always comes.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        loop {
            match poll_fn(|cx| self.poll_accept(cx)).await {
                Ok((stream, address)) => {
                    return (Admitted { stream, silence: None, _permit: permit }, address);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset => {}
                    _ => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        match self.listeners.first() {
            Some(Watched::Tcp(listener)) => listener.local_addr(),
            _ => Ok(ON_THIS_MACHINE),
        }
    }
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub struct Client(SocketAddr);

impl Client {
    /// Whether it is on this machine.
    pub fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }
}

impl Connected<IncomingStream<'_, Admission>> for Client {
    fn connect_info(stream: IncomingStream<'_, Admission>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// A connection's socket.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// An admitted connection.
pub struct Admitted {
    stream: Stream,
    silence: Option<Pin<Box<Sleep>>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsyncRead for Admitted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Pending => {
                let silence = self.silence.get_or_insert_with(|| Box::pin(tokio::time::sleep(SILENCE_MAX)));
                silence.as_mut().poll(cx).map(Ok)
            }
            ready => {
                if let Some(silence) = &mut self.silence {
                    silence.as_mut().reset(Instant::now() + SILENCE_MAX);
                }
                ready
            }
        }
    }
}

impl AsyncWrite for Admitted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
