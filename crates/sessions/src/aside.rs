//! Requests that take long: executed aside, on a thread where no other client waits.
//!
//! ```text
//!   worker   execute ─> TakesLong ─> parked ─ end of the turn ─> the session leaves ┄ a stand-in ┄> it is back: go on
//!   aside                                                          └─> execute the first parked request ─┘
//! ```
//! A worker serves many clients in turn, so none of its requests may take more than about a millisecond. An executor
//! that cannot be sure returns [`kv::KvError::TakesLong`] before it has changed anything, if
//! [`kv::ThreadContext::may_take_long`] says no. The request is then parked, as one whose value must be fetched
//! ([`super::waits`]), and the session as a whole goes to another thread for it. Requests of the same connection wait
//! until it is back: long work costs its own connection.

use kv::{NodeContext, Outcome};
use wire::binary::Opcode;
use wire::meta::{SetMode, Verb};
use wire::text::{Command, StoreVerb};

use super::batch::Work;
use super::deferral::own;
use super::request::Request;
use super::waits::{Touch, Waits};
use super::{Filling, Output, Peer, Port, Queued, Session, opcodes};

/// Bytes of documents that a worker reads through for one request.
pub(super) const IN_PLACE_BYTES: usize = 128 << 10;
/// Bytes that it inflates, or of a new document that it looks at.
pub(super) const INFLATED_IN_PLACE_BYTES: usize = 256 << 10;

impl Session {
    /// Returns true if a request waits to be executed elsewhere.
    #[inline]
    pub fn wants_aside(&self) -> bool {
        !self.aside.is_empty()
    }

    /// Parks a request that takes long. Those behind it wait, whatever they touch: it may be what they need, as an OPEN
    /// is for a CONTROL.
    pub(super) fn park_aside(&mut self, queued: &mut Queued<'_>, cx: &mut NodeContext) {
        let cookie = self.peer.cookie(cx);
        let is_login = is_login(&queued.work);
        let Some(request) = own(&mut queued.work) else { return };
        self.peer.waits.get_or_insert_default().park(cookie.ticket, Touch::Everything, request, 0);
        self.aside.push_back((cookie.ticket, is_login));
    }

    /// Returns true if the first request that waits to be executed elsewhere is a login.
    pub fn logs_in_next(&self) -> bool {
        self.aside.front().is_some_and(|(_, is_login)| *is_login)
    }

    /// Takes the session away from its connection. What is left in its place looks the same from outside, and waits.
    pub fn leave(&mut self) -> Self {
        let peer = &self.peer;
        let stand_in = Peer {
            login_required: peer.login_required,
            user: peer.user.clone(),
            loopback: peer.loopback,
            address: peer.address,
            rules: peer.rules,
            client: peer.client.clone(),
            close: peer.close,
            connection: peer.connection,
            waits: Some(Box::new(Waits::fenced())),
            ..Peer::local(peer.port, peer.bucket.clone(), peer.value_limit)
        };
        let stand_in = Self {
            peer: stand_in,
            protocol: self.protocol,
            receive: super::Receive::Ready,
            aside: Default::default(),
            ..*self
        };
        std::mem::replace(self, stand_in)
    }

    /// Executes the first of the requests that take long; called where it may.
    pub fn execute_aside(&mut self, cx: &mut NodeContext, out: &mut Output) {
        debug_assert!(cx.may_take_long);
        if let Some((ticket, _)) = self.aside.pop_front() {
            self.finish(ticket, Outcome::Fetched(Ok(())), cx, out);
        }
    }

    /// Puts a session back in the place of its stand-in, and goes on with the requests that waited for it.
    pub fn come_back(&mut self, session: Self, cx: &mut NodeContext, out: &mut Output) {
        let stand_in = std::mem::replace(self, session);
        self.peer.close |= stand_in.peer.close;
        self.peer.has_quit |= stand_in.peer.has_quit;
        self.go_on(cx, out);
    }

    /// Returns true if a request with a large value takes long: all of the value is looked at, or it is added to
    /// another one.
    pub(super) fn is_long(&self, filling: &Filling) -> bool {
        let is_long = |request: &Request<'_>| match request {
            Request::Binary(request) => {
                opcodes::is_subdocument(request.header.opcode) || opcodes::extends(request.header.opcode)
            }
            Request::Text(Command::Store(store)) => {
                matches!(store.verb, StoreVerb::Append | StoreVerb::Prepend)
            }
            Request::Text(Command::Meta(command)) => {
                matches!(command.verb, Verb::Set(SetMode::Append | SetMode::Prepend))
            }
            Request::Text(_) => false,
        };
        let is_checked = self.peer.port == Port::Couchbase && filling.bytes() > INFLATED_IN_PLACE_BYTES;
        !filling.is_refused()
            && (is_checked || self.parse_again(&filling.head).is_some_and(|(request, _)| is_long(&request)))
    }
}

fn is_login(work: &Work<'_>) -> bool {
    match work {
        Work::Request(Request::Binary(request), ..) => {
            matches!(request.header.opcode, Opcode::SASL_AUTH | Opcode::SASL_STEP)
        }
        Work::Request(Request::Text(command), ..) => matches!(command, Command::Login),
        _ => false,
    }
}
