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

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use kv::Node;
use kv::client_memory::Holder;
use kv::users::attempts::next_connection;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, Sleep};
use transport::{Handshakes, Listener, ServerTls, Stream};

use crate::socket::{Socket, Watched};
use crate::work::Party;

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

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before the first byte of a request.
    Idle,
    /// Within the head of a request.
    Head,
    /// A request's body is awaited.
    Body,
    /// A request is being answered.
    Handling,
    /// The answer is being sent.
    Answering,
    /// Maps or events are sent as they come.
    Streaming,
}

struct State {
    address: IpAddr,
    phase: Phase,
    since: Instant,
    /// Bytes received in this phase: of a head, or of several heads that arrived together.
    head_bytes: usize,
    /// Bytes received of the body, while its request is being answered.
    body_bytes: usize,
    has_asked: bool,
    /// The body of the request was awaited.
    has_received: bool,
    /// Who has logged in.
    user: Option<Arc<str>>,
    /// In the reserve, for `/health`.
    is_reserve: bool,
    unsent_bytes: usize,
    /// Cut off: no longer counted, and closed as soon as its task runs.
    is_cut: bool,
    task: Option<Waker>,
}

impl State {
    fn new(address: IpAddr) -> Self {
        Self {
            address,
            phase: Phase::Idle,
            since: Instant::now(),
            head_bytes: 0,
            body_bytes: 0,
            has_asked: false,
            has_received: false,
            user: None,
            is_reserve: false,
            unsent_bytes: 0,
            is_cut: false,
            task: None,
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
        self.head_bytes = 0;
        self.body_bytes = 0;
    }

    fn waits_for_client(&self) -> bool {
        !matches!(self.phase, Phase::Handling | Phase::Streaming)
    }

    fn party(&self) -> Party {
        self.user.clone().map_or(Party::Address(self.address), Party::User)
    }

    /// Upper bound of the memory it holds.
    fn held_bytes(&self) -> usize {
        CONNECTION_BYTES + self.body_bytes + self.unsent_bytes
    }

    fn cut(&mut self) {
        self.is_cut = true;
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// The time by which input must arrive; `None` while none is expected.
    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle if self.has_asked => Some(self.since + IDLE_TIME),
            Phase::Idle | Phase::Head => Some(self.since + HEAD_TIME),
            Phase::Body | Phase::Handling | Phase::Answering | Phase::Streaming => None,
        }
    }
}

/// All open connections.
struct Connections {
    table: Mutex<Table>,
    node: Arc<Node>,
}

#[derive(Default)]
struct Table {
    states: HashMap<u64, State>,
}

impl Connections {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change of the table is a single step, so it is consistent even after a panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports to the node what all connections hold now. Those that are cut off count until their tasks have run.
    fn report(&self, table: &Table) {
        let held: usize = table.states.values().map(State::held_bytes).sum();
        self.node.set_client_memory(Holder::Http, held as u64);
    }
}

impl Table {
    fn live(&self) -> impl Iterator<Item = (u64, &State)> {
        self.states.iter().filter(|(_, state)| !state.is_cut).map(|(id, state)| (*id, state))
    }

    fn streams(&self) -> impl Iterator<Item = (u64, &State)> {
        self.live().filter(|(_, state)| state.phase == Phase::Streaming)
    }

    /// Connections that are neither streams nor in the reserve.
    fn plain(&self) -> impl Iterator<Item = (u64, &State)> {
        self.live().filter(|(_, state)| state.phase != Phase::Streaming && !state.is_reserve)
    }

    fn cut(&mut self, id: u64) {
        if let Some(state) = self.states.get_mut(&id) {
            state.cut();
        }
    }

    /// Cuts off one connection, if any is eligible.
    fn make_room(&mut self) -> bool {
        let counts = counted(self.plain().map(|(_, state)| (state.party(), 1)));
        let victim = |is_eligible: &dyn Fn(&State, usize) -> bool| {
            let eligible = self.plain().filter_map(|(id, state)| {
                let count = counts.get(&state.party()).copied().unwrap_or_default();
                is_eligible(state, count).then_some((id, state, count))
            });
            let worst = eligible
                .max_by_key(|(_, state, count)| (state.waits_for_client(), *count, state.since.elapsed()));
            worst.map(|(id, ..)| id)
        };
        let victim =
            victim(&|state, count| state.user.is_some() && count > SHARE && state.waits_for_client())
                .or_else(|| victim(&|state, _| state.user.is_none()))
                .or_else(|| victim(&|state, _| state.waits_for_client()));
        victim.is_some_and(|id| {
            self.cut(id);
            true
        })
    }

    /// Cuts off the longest waiting connection of the reserve if that is full.
    fn make_room_in_reserve(&mut self) {
        let reserve = || self.live().filter(|(_, state)| state.is_reserve);
        if reserve().count() >= RESERVE {
            let oldest = reserve().max_by_key(|(_, state)| (state.waits_for_client(), state.since.elapsed()));
            oldest.map(|(id, _)| id).into_iter().for_each(|id| self.cut(id));
        }
    }

    /// Makes room for a stream of this connection: a client with a login displaces one without, and one of a user with
    /// more of them. Returns false if there is none.
    fn make_room_for_stream(&mut self, id: u64) -> bool {
        if self.streams().count() < STREAMS_MAX {
            return true;
        }
        let Some(user) = self.states.get(&id).and_then(|state| state.user.clone()) else { return false };
        let counts = counted(self.streams().map(|(_, state)| (state.party(), 1)));
        let own = counts.get(&Party::User(user)).copied().unwrap_or_default();
        let displaced = self.streams().filter_map(|(id, state)| {
            let count = counts.get(&state.party()).copied().unwrap_or_default();
            (state.user.is_none() || count > own + 1).then_some((id, state, count))
        });
        let victim =
            displaced.max_by_key(|(_, state, count)| (state.user.is_none(), *count, state.since.elapsed()));
        victim.map(|(id, ..)| id).is_some_and(|id| {
            self.cut(id);
            true
        })
    }

    fn bound_unsent(&mut self) {
        while self.live().map(|(_, state)| state.unsent_bytes).sum::<usize>() > UNSENT_BYTES_MAX {
            let of_party = counted(self.live().map(|(_, state)| (state.party(), state.unsent_bytes)));
            let worst = self.live().filter(|(_, state)| state.unsent_bytes > 0).max_by_key(|(_, state)| {
                let bytes = of_party.get(&state.party()).copied().unwrap_or_default();
                (state.user.is_none(), bytes, state.unsent_bytes)
            });
            let Some((id, _)) = worst else { return };
            self.cut(id);
        }
    }
}

/// The sums of each party.
fn counted(parts: impl Iterator<Item = (Party, usize)>) -> HashMap<Party, usize> {
    parts.fold(HashMap::new(), |mut sums, (party, count)| {
        *sums.entry(party).or_default() += count;
        sums
    })
}

/// Listeners that accept every connection and bound their number.
pub struct Admission {
    listeners: Vec<(Watched, Option<Arc<ServerTls>>, Serves)>,
    handshakes: Option<Arc<Handshakes>>,
    /// Delivers TLS connections whose handshakes are complete.
    shaken: (UnboundedSender<Shaken>, UnboundedReceiver<Shaken>),
    connections: Arc<Connections>,
}

impl Admission {
    /// Admission for `listeners` of `node`. Call it within the runtime.
    pub fn new(
        listeners: Vec<Port>,
        handshakes: Option<Arc<Handshakes>>,
        node: Arc<Node>,
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
        })
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr, Serves)>> {
        for (listener, tls, serves) in &self.listeners {
            let serves = *serves;
            while let Poll::Ready(accepted) = listener.poll_accept(cx) {
                let (stream, address) = accepted?;
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
        let mut table = self.connections.table();
        let mut state = State::new(address);
        if table.plain().count() >= CONNECTIONS_MAX && !table.make_room() {
            table.make_room_in_reserve();
            state.is_reserve = true;
        }
        let id = next_connection();
        table.states.insert(id, state);
        self.connections.report(&table);
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
        let mut table = self.connections.table();
        let state = table.states.get_mut(&self.id)?;
        let before = state.held_bytes();
        let result = f(state);
        if state.held_bytes() != before {
            self.connections.report(&table);
        }
        Some(result)
    }

    /// Its number among all connections that may log in.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Notes that its client has logged in.
    pub fn set_user(&self, user: Arc<str>) {
        self.with(|state| state.user = Some(user));
    }

    /// Turns the request being answered into a stream; returns false if there are too many.
    pub fn begin_stream(&self) -> bool {
        let mut table = self.connections.table();
        if !table.make_room_for_stream(self.id) {
            return false;
        }
        if let Some(state) = table.states.get_mut(&self.id) {
            state.enter(Phase::Streaming);
        }
        self.connections.report(&table);
        true
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
        let mut table = self.connections.table();
        if let Some(state) = table.states.get_mut(&self.id) {
            state.unsent_bytes += bytes.len();
        }
        table.bound_unsent();
        self.connections.report(&table);
        drop(table);
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
pub async fn track(ConnectInfo(client): ConnectInfo<Client>, request: Request, next: Next) -> Response {
    let connection = client.connection;
    let is_reserve = connection.with(|state| {
        state.has_asked = true;
        state.has_received = false;
        state.enter(Phase::Handling);
        state.is_reserve
    });
    let has_body = !request.body().is_end_stream();
    let mut response = match is_reserve.unwrap_or_default() && !request.uri().path().starts_with(HEALTH) {
        true => too_many(),
        false => next.run(request).await,
    };
    // What is sent of the body cannot be told from the next request, unless it is awaited.
    if has_body && connection.with(|state| state.has_received) == Some(false) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if connection.with(|state| state.phase) == Some(Phase::Streaming) {
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
        let connections = &self.connection.connections;
        let mut table = connections.table();
        table.states.remove(&self.connection.id);
        connections.report(&table);
    }
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "cut off")
}

impl Admitted {
    /// Calls `f` with the table's state and notes the task to wake; an error if the connection is cut off.
    fn look<R>(&self, cx: &Context<'_>, f: impl FnOnce(&mut State) -> R) -> io::Result<R> {
        let looked = self.connection.with(|state| {
            if state.is_cut {
                return Err(cut_off());
            }
            if !state.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                state.task = Some(cx.waker().clone());
            }
            Ok(f(state))
        });
        looked.unwrap_or_else(|| Err(cut_off()))
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

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn add(table: &mut Table, count: usize, user: Option<&str>, phase: Phase) {
        for _ in 0..count {
            let mut state = State::new(address(1));
            state.user = user.map(Arc::from);
            state.enter(phase);
            table.states.insert(next_connection(), state);
        }
    }

    fn cut_of(table: &Table, user: Option<&str>) -> usize {
        table.states.values().filter(|state| state.is_cut && state.user.as_deref() == user).count()
    }

    #[test]
    fn a_user_with_most_connections_gives_way_first() {
        let mut table = Table::default();
        add(&mut table, 100, Some("eve"), Phase::Body);
        add(&mut table, 70, Some("bob"), Phase::Idle);
        add(&mut table, 10, Some("ann"), Phase::Idle);
        add(&mut table, 20, None, Phase::Head);
        let make_room = |table: &mut Table, count: usize| {
            assert!((0..count).all(|_| table.make_room()));
            ["eve", "bob", "ann"].map(|name| cut_of(table, Some(name)))
        };
        assert_eq!(make_room(&mut table, 30), [30, 0, 0]);
        // Both have 70, and give way in turns down to their share; then those without a login.
        assert_eq!(make_room(&mut table, 12), [36, 6, 0]);
        assert_eq!(make_room(&mut table, 20), [36, 6, 0]);
        assert_eq!(cut_of(&table, None), 20);
        assert_eq!(make_room(&mut table, 2), [37, 7, 0]);
    }

    #[test]
    fn those_that_are_served_stay() {
        let mut table = Table::default();
        add(&mut table, 500, Some("eve"), Phase::Handling);
        add(&mut table, 12, Some("ann"), Phase::Handling);
        add(&mut table, 1, Some("ann"), Phase::Answering);
        add(&mut table, 9, Some("eve"), Phase::Streaming);
        assert!(table.make_room());
        assert_eq!(cut_of(&table, Some("ann")), 1);
        assert!(!table.make_room());
    }

    #[test]
    fn the_reserve_is_bounded_and_counted_apart() {
        let mut table = Table::default();
        add(&mut table, 512, Some("eve"), Phase::Handling);
        for _ in 0..2 * RESERVE {
            table.make_room_in_reserve();
            let mut state = State::new(address(1));
            state.is_reserve = true;
            table.states.insert(next_connection(), state);
        }
        assert_eq!(table.live().filter(|(_, state)| state.is_reserve).count(), RESERVE);
        assert_eq!(table.plain().count(), 512);
    }

    #[test]
    fn who_has_most_unsent_is_cut_off() {
        let mut table = Table::default();
        add(&mut table, 100, Some("eve"), Phase::Answering);
        add(&mut table, 1, Some("ann"), Phase::Answering);
        for state in table.states.values_mut() {
            let is_eve = state.user.as_deref() == Some("eve");
            state.unsent_bytes = if is_eve { 400 << 10 } else { 1 << 20 };
        }
        table.bound_unsent();
        assert_eq!(cut_of(&table, Some("ann")), 0);
        assert_eq!(cut_of(&table, Some("eve")), 21);
    }
}
