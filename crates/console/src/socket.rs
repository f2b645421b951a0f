//! HTTP sockets, registered with the runtime.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use transport::{Listener, Stream};

fn watch<T: AsRawFd>(socket: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: a listener or a stream owns its descriptor and does not close or replace it before it is dropped, inside
    // this value.
    let watched = unsafe { AsyncFd::register(socket) };
    watched.map_err(|error| error.into_parts().1)
}

/// A listening socket.
pub struct Watched(AsyncFd<Listener>);

impl Watched {
    /// Call it within the runtime.
    pub fn new(listener: Listener) -> io::Result<Self> {
        watch(listener).map(Self)
    }

    /// Its address, if it is a TCP socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.get_ref().tcp_address()
    }

    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, Option<SocketAddr>)>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            if let Ok(accepted) = guard.try_io(|listener| listener.get_ref().accept()) {
                return Poll::Ready(accepted);
            }
        }
    }
}

/// Returns true if the peer has closed its side of a connection.
pub fn is_closed_by_peer(stream: &Stream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
}

/// A connected socket.
pub struct Socket(AsyncFd<Stream>);

impl Socket {
    /// Call it within the runtime.
    pub fn new(stream: Stream) -> io::Result<Self> {
        watch(stream).map(Self)
    }

    /// Returns true if it is encrypted.
    pub fn is_tls(&self) -> bool {
        self.0.get_ref().is_tls()
    }

    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&mut Stream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready_mut(cx))?;
            if let Ok(written) = guard.try_io(|stream| uninterrupted(|| write(stream.get_mut()))) {
                return Poll::Ready(written);
            }
        }
    }
}

fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.get_ref().has_more() {
            // The socket will not raise an event for it.
            let count = uninterrupted(|| self.0.get_mut().read(buffer.initialize_unfilled()))?;
            buffer.advance(count);
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut guard = ready!(self.0.poll_read_ready_mut(cx))?;
            let room = buffer.initialize_unfilled();
            if let Ok(read) = guard.try_io(|stream| uninterrupted(|| stream.get_mut().read(room))) {
                buffer.advance(read?);
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.get_mut().finish_writing())
    }
}
