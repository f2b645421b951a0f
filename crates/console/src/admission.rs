//! Bounds on HTTP connections: their number, how long each may take, and how many bytes wait to be sent.
//!
//! ```text
//!            first byte           head complete             answer made            last byte taken
//!   Idle ---------------> Head ---------------> Handling ---------------> Answering --------------> Idle
//!   10 s, 60 s later      10 s, 16 KiB           |     ^                  30 s without progress
//!                                                v     | 30 s             2 minutes in all
//!                                               Body --+
//!                                                +--> Streaming: 30 s without progress while something is to be sent
//! ```
//! All but Handling wait for the client.
//!
//! * A connection is always accepted. If there are then more than [`CONNECTIONS_MAX`], one is cut off that waits for
//!   its client: of the user with the most connections, if that has more than [`SHARE`]; else one without a login, of
//!   the address with the most of these; else one of the user with the most. Of several, the longest waiting. So a
//!   client that sends a request at once is served, whatever others hold open.
//! * While the thread is busy ([`Turns`]), a new connection that its client has closed already is not served.
//! * If none of them waits, the new connection is in the reserve, of [`RESERVE`] connections. It gets an answer to
//!   `/health`, and to all else that there are too many.
//! * Streams of maps and events are counted separately, up to [`STREAMS_MAX`]; a logged-in client displaces one that
//!   is not, and one of a user with more of them.
//! * Unsent answers may take [`UNSENT_BYTES_MAX`] together; beyond that, connections of those with the most of them are
//!   cut off.
//!
//! The total is reported to the node: unsent answers, bodies, and [`CONNECTION_BYTES`] per connection. No bucket is
//! charged for it.
//!
//! Timers exist only while a connection waits for its client.

mod table;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request, State as Served};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use kv::Node;
use kv::client_memory::Holder;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, Sleep};
use transport::{Handshakes, Listener, ServerTls, Stream};

use crate::socket::{Socket, Watched, is_closed_by_peer};
use crate::turns::Turns;
use crate::work::Party;
use table::{Phase, State, Table};

/// Maximum number of open HTTP connections, not counting streams.
const CONNECTIONS_MAX: usize = 512;
/// Connections of a user that are not cut off as long as there is one without a login.
const SHARE: usize = 64;
/// Connections beyond the maximum, for `/health`.
const RESERVE: usize = 16;
/// Maximum number of concurrent streams of maps and events.
const STREAMS_MAX: usize = 128;
/// Bytes of answers that clients have not taken yet, of all connections together.
const UNSENT_BYTES_MAX: usize = 32 << 20;
/// Other memory of an open connection: its task, and buffers for a head and its parts.
const CONNECTION_BYTES: usize = 2 * HEAD_BYTES_MAX;
/// Largest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Largest body of a request.
pub const BODY_BYTES_MAX: usize = 64 << 10;
/// Time for a head, from the start of the connection or the head's first byte.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time between two requests of a connection.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Time for a body.
const BODY_TIME: Duration = Duration::from_secs(30);
/// Time within which a peer must take at least one byte of what it is sent.
const STALL_TIME: Duration = Duration::from_secs(30);
/// Time for taking an answer.
const ANSWER_TIME: Duration = Duration::from_secs(120);

/// The requests that the reserve is for begin with this.
const HEALTH: &str = "/health";

/// When file descriptors run out, accepting is retried after this time.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// The address of a peer on a Unix socket, which counts as loopback.
const ON_THIS_MACHINE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// An HTTP port.
pub struct Port {
    /// Its socket.
    pub listener: Listener,
    /// Present if it is an HTTPS port.
    pub tls: Option<Arc<ServerTls>>,
    /// What it is for.
    pub serves: Serves,
}

/// What an HTTP port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serves {
    /// All of this crate's requests.
    Management,
    /// A service that is not there, by its name: it answers pings, and what a container's start asks of it.
    Absent(&'static str),
}

/// A connection whose handshake is complete, its peer's address, and what its port is for.
type Shaken = (Stream, SocketAddr, Serves);

/// All open connections.
struct Connections {
    table: Mutex<Table>,
    node: Arc<Node>,
}

impl Connections {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change of the table is a single step, so it is consistent even after a panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table, and reports to the node if connections hold another amount of memory then.
    fn change<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = self.table();
        let before = table.held_bytes();
        let result = f(&mut table);
        if table.held_bytes() != before {
            self.node.set_client_memory(Holder::Http, table.held_bytes() as u64);
        }
        result
    }
}

/// Listeners that accept every connection and bound their number.
pub struct Admission {
    listeners: Vec<(Watched, Option<Arc<ServerTls>>, Serves)>,
    handshakes: Option<Arc<Handshakes>>,
    /// Delivers TLS connections whose handshakes are complete.
    shaken: (UnboundedSender<Shaken>, UnboundedReceiver<Shaken>),
    connections: Arc<Connections>,
    turns: Arc<Turns>,
}

impl Admission {
    /// Admission for `listeners` of `node`. Call it within the runtime.
    pub fn new(
        listeners: Vec<Port>,
        handshakes: Option<Arc<Handshakes>>,
        node: Arc<Node>,
        turns: Arc<Turns>,
    ) -> io::Result<Self> {
        let watched = listeners
            .into_iter()
            .map(|Port { listener, tls, serves }| Ok((Watched::new(listener)?, tls, serves)));
        let connections = Arc::new(Connections { table: Mutex::default(), node });
        Ok(Self {
            listeners: watched.collect::<io::Result<_>>()?,
            handshakes,
            shaken: unbounded_channel(),
            connections,
            turns,
        })
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr, Serves)>> {
        // Another is the first each time.
        self.listeners.rotate_left(1);
        for (listener, tls, serves) in &self.listeners {
            let serves = *serves;
            while let Poll::Ready(accepted) = listener.poll_accept(cx) {
                let (stream, address) = accepted?;
                if self.turns.note_connection() && is_closed_by_peer(&stream) {
                    continue;
                }
                let address = address.unwrap_or(ON_THIS_MACHINE);
                let (Some(tls), Some(handshakes)) = (tls, &self.handshakes) else {
                    return Poll::Ready(Socket::new(stream).map(|socket| (socket, address, serves)));
                };
                let shaken = self.shaken.0.clone();
                handshakes.begin(stream.into_tls(tls)?, move |result| match result {
                    Ok(stream) => drop(shaken.send((stream, address, serves))),
                    Err(error) => {
                        let why = transport::explain(&error);
                        tracing::debug!(peer = %address, why, "a TLS handshake failed and the connection was closed");
                    }
                });
            }
        }
        match ready!(self.shaken.1.poll_recv(cx)) {
            Some((stream, address, serves)) => {
                Poll::Ready(Socket::new(stream).map(|socket| (socket, address, serves)))
            }
            None => Poll::Pending,
        }
    }

    /// Admits a connection from `address`.
    fn admit(&self, address: IpAddr) -> Connection {
        let id = self.connections.change(|table| {
            let is_reserve = !table.has_room();
            if is_reserve {
                table.make_room_in_reserve();
            }
            table.insert(address, is_reserve)
        });
        Connection { id, connections: Arc::clone(&self.connections) }
    }
}

impl axum::serve::Listener for Admission {
    type Io = Admitted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Admitted, SocketAddr) {
        loop {
            match poll_fn(|cx| self.poll_accept(cx)).await {
                Ok((stream, address, serves)) => {
                    let connection = self.admit(address.ip().to_canonical());
                    return (Admitted { stream, connection, serves, silence: None, stall: None }, address);
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
            Some((listener, ..)) => Ok(listener.address().unwrap_or(ON_THIS_MACHINE)),
            None => Ok(ON_THIS_MACHINE),
        }
    }
}

/// A request's handle to its connection.
#[derive(Clone)]
pub struct Connection {
    id: u64,
    connections: Arc<Connections>,
}

impl Connection {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> Option<R> {
        self.connections.change(|table| table.change(self.id, f))
    }

    /// Its number among all connections that may log in.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Notes that its client has logged in.
    pub fn set_user(&self, user: Arc<str>) {
        self.connections.change(|table| table.set_user(self.id, user));
    }

    /// Turns the request being answered into a stream; returns false if there are too many.
    pub fn begin_stream(&self) -> bool {
        self.connections.change(|table| {
            let has_room = table.make_room_for_stream(self.id);
            if has_room {
                table.change(self.id, |state| state.enter(Phase::Streaming));
            }
            has_room
        })
    }

    /// Awaits a whole body; or the answer if it is too long or comes too slowly.
    pub async fn receive(&self, body: Body) -> Result<Bytes, Box<Response>> {
        self.with(|state| {
            state.has_received = true;
            state.phase = Phase::Body;
            state.since = Instant::now();
        });
        let received = received(body).await;
        self.with(|state| {
            state.phase = Phase::Handling;
            state.since = Instant::now();
        });
        received
    }

    /// Wraps bytes so that they are counted until they are sent or the connection ends.
    pub fn charge<K: Send + 'static>(&self, bytes: Bytes, kept: K) -> Bytes {
        self.connections.change(|table| {
            table.change(self.id, |state| state.unsent_bytes += bytes.len());
            table.bound_unsent();
        });
        Bytes::from_owner(Unsent { bytes, connection: self.clone(), _kept: kept })
    }
}

/// Bytes of an answer, and a value to drop once they are sent.
struct Unsent<K> {
    bytes: Bytes,
    connection: Connection,
    _kept: K,
}

impl<K> AsRef<[u8]> for Unsent<K> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<K> Drop for Unsent<K> {
    fn drop(&mut self) {
        self.connection.with(|state| {
            state.unsent_bytes = state.unsent_bytes.saturating_sub(self.bytes.len());
            if state.phase == Phase::Answering {
                state.enter(Phase::Idle);
            }
        });
    }
}

/// Tracks the phase of each connection, around all handlers.
pub async fn track(
    Served(turns): Served<Arc<Turns>>,
    ConnectInfo(client): ConnectInfo<Client>,
    request: Request,
    next: Next,
) -> Response {
    let connection = client.connection;
    let asked = connection.with(|state| {
        state.has_asked = true;
        state.has_received = false;
        state.enter(Phase::Handling);
        (state.party(), state.is_reserve)
    });
    let (party, is_reserve) = asked.unwrap_or((Party::Address(client.address), false));
    let is_health = request.uri().path().starts_with(HEALTH);
    turns.begin(party, is_health).await;
    let has_body = !request.body().is_end_stream();
    let mut response = match is_reserve && !is_health {
        true => too_many(),
        false => next.run(request).await,
    };
    // What is sent of the body cannot be told from the next request, unless it is awaited.
    if has_body && connection.with(|state| state.has_received) == Some(false) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if connection.connections.table().is_stream(connection.id) {
        return response;
    }
    let (parts, body) = response.into_parts();
    // Answers other than streams are complete.
    let Ok(bytes) = axum::body::to_bytes(body, usize::MAX).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    if bytes.is_empty() {
        connection.with(|state| state.enter(Phase::Idle));
        return Response::from_parts(parts, Body::empty());
    }
    connection.with(|state| state.enter(Phase::Answering));
    Response::from_parts(parts, Body::from(connection.charge(bytes, ())))
}

/// The answer to a connection in the reserve.
fn too_many() -> Response {
    let headers = [(header::CONNECTION, "close"), (header::RETRY_AFTER, "1")];
    let text = "There are too many connections, and all are being served. Try again later.\r\n";
    (StatusCode::SERVICE_UNAVAILABLE, headers, text).into_response()
}

async fn received(body: Body) -> Result<Bytes, Box<Response>> {
    match tokio::time::timeout(BODY_TIME, axum::body::to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => {
            Err((StatusCode::PAYLOAD_TOO_LARGE, "The body is too long.\r\n").into_response().into())
        }
        Err(_) => {
            let close = [(header::CONNECTION, "close")];
            let late = (StatusCode::REQUEST_TIMEOUT, close, "The body did not arrive in time.\r\n");
            Err(late.into_response().into())
        }
    }
}

/// The client of a request.
#[derive(Clone)]
pub struct Client {
    /// The peer's address.
    pub address: IpAddr,
    /// Its connection.
    pub connection: Connection,
    /// What its port is for.
    pub serves: Serves,
    /// Its connection is encrypted.
    pub uses_tls: bool,
}

impl Connected<IncomingStream<'_, Admission>> for Client {
    fn connect_info(stream: IncomingStream<'_, Admission>) -> Self {
        let Admitted { connection, serves, stream: socket, .. } = stream.io();
        let address = stream.remote_addr().ip().to_canonical();
        let uses_tls = socket.is_tls();
        Self { address, connection: connection.clone(), serves: *serves, uses_tls }
    }
}

/// An admitted connection; dropping it removes it from the table.
pub struct Admitted {
    stream: Socket,
    connection: Connection,
    serves: Serves,
    /// Runs while input is expected.
    silence: Option<Pin<Box<Sleep>>>,
    /// Runs while the peer does not take its output.
    stall: Option<Pin<Box<Sleep>>>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.connection.connections.change(|table| table.remove(self.connection.id));
    }
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "cut off")
}

impl Admitted {
    /// Calls `f` with the table's state and notes the task to wake; an error if the connection is cut off.
    fn look<R>(&self, cx: &Context<'_>, f: impl FnOnce(&State) -> R) -> io::Result<R> {
        let mut table = self.connection.connections.table();
        table.look(self.connection.id, cx.waker()).map(f).ok_or_else(cut_off)
    }

    /// Reads a head of bounded size.
    fn read_head(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        room: usize,
    ) -> Poll<io::Result<()>> {
        let room = room.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut part);
        let received = part.filled().len();
        buffer.advance(received);
        if received > 0 {
            self.connection.with(|state| {
                if state.phase == Phase::Idle {
                    state.enter(Phase::Head);
                }
                state.head_bytes += received;
            });
        }
        polled
    }

    fn read_body(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let received = buffer.filled().len() - before;
        if received > 0 {
            self.connection.with(|state| state.body_bytes += received);
        }
        polled
    }

    fn write_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut Socket>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let is_late =
            self.look(cx, |state| state.phase == Phase::Answering && state.since.elapsed() > ANSWER_TIME)?;
        if is_late {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        match write(Pin::new(&mut self.stream), cx) {
            Poll::Pending => {
                let stall = self.stall.get_or_insert_with(|| Box::pin(tokio::time::sleep(STALL_TIME)));
                stall.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
            }
            ready => {
                self.stall = None;
                ready
            }
        }
    }
}

impl AsyncRead for Admitted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (room, deadline) = self.look(cx, |state| {
            let is_head = matches!(state.phase, Phase::Idle | Phase::Head);
            (is_head.then(|| HEAD_BYTES_MAX.saturating_sub(state.head_bytes)), state.deadline())
        })?;
        let polled = match room {
            Some(0) => Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "the head is too long"))),
            Some(room) => self.read_head(cx, buffer, room),
            None => self.read_body(cx, buffer),
        };
        if polled.is_ready() {
            return polled;
        }
        let Some(deadline) = deadline else {
            self.silence = None;
            return Poll::Pending;
        };
        let silence = self.silence.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if silence.deadline() != deadline {
            silence.as_mut().reset(deadline);
        }
        // Reported to the reader as closed by the peer.
        silence.as_mut().poll(cx).map(Ok)
    }
}

impl AsyncWrite for Admitted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write_with(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write_with(cx, |stream, cx| stream.poll_write_vectored(cx, slices))
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::serve::Listener as _;
    use kv::{Limits, NodeSettings};
    use std::net::TcpStream;

    #[tokio::test]
    async fn a_busy_thread_passes_over_clients_that_have_gone() {
        let listener = Listener::tcp(ON_THIS_MACHINE).unwrap();
        let address = listener.tcp_address().unwrap();
        let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed: 7 };
        let node = Node::new(settings, Limits::default());
        let turns = Arc::<Turns>::default();
        let port = Port { listener, tls: None, serves: Serves::Management };
        let mut admission = Admission::new(vec![port], None, node, Arc::clone(&turns)).unwrap();
        let connect = || TcpStream::connect(address).unwrap();
        let gone = || drop(connect());
        gone();
        drop(admission.accept().await);
        while !turns.note_connection() {}
        (0..100).for_each(|_| gone());
        let waiting = connect();
        let (_, peer) = admission.accept().await;
        assert_eq!(peer, waiting.local_addr().unwrap());
    }
}
