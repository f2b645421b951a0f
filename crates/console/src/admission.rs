//! Bounds on HTTP connections: how many there are, and how long one may stay silent.
//!
//! A connection holds a permit while it is open; without a free one the listener does not accept. A connection whose
//! peer sends nothing for [`SILENCE_MAX`] reads as closed. The timer exists only while such a connection does.

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Open HTTP connections at a time.
const CONNECTIONS_MAX: usize = 512;
/// A peer may be silent for so long.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// A listener that admits a bounded number of connections.
pub struct Admission {
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

impl Admission {
    /// Admission to `listener`.
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl axum::serve::Listener for Admission {
    type Io = Admitted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Admitted, SocketAddr) {
        // The semaphore is never closed, so a permit always comes.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
        let _ = stream.set_nodelay(true);
        (Admitted { stream, silence: None, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
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

/// An admitted connection.
pub struct Admitted {
    stream: TcpStream,
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
