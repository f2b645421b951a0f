//! A request of any protocol: all that input, prefetching, waiting and parking know about it.
//!
//! Splitting input needs the two parsers ([`super::input`]); everything after that sees a [`Request`], and copies are
//! bytes that are parsed again ([`OwnedRequest`]). A protocol's executor supplies one function per method here.

use kv::{Bucket, Key, KvError, NodeContext, Place, VbId};
use wire::couchbase::FrameInfos;
use wire::{Parsed, binary as wire_binary, text as wire_text};

use super::batch::Placed;
use super::waits::Touch;
use super::{
    Admission, At, Body, Output, Peer, Port, Protocol, Refusal, Session, binary, couchbase, opcodes, text,
};

/// A request without its value. The tag is wide so that moves copy whole words.
#[repr(u64)]
pub(super) enum Request<'a> {
    Text(wire_text::Command<'a>),
    Binary(wire_binary::Request<'a>),
}

/// Input that could not be parsed as a request.
pub(super) enum Malformed {
    Text(wire_text::Error),
    Binary(wire_binary::Error),
}

impl Malformed {
    pub(super) fn answer(&self, peer: &mut Peer, cx: &mut NodeContext, out: &mut Output) {
        match self {
            Self::Text(error) => text::error(peer, error, cx, out),
            Self::Binary(error) => binary::error(peer, error, cx, out),
        }
    }
}

impl<'a> Request<'a> {
    /// The key to place it by before execution; `None` if it has none, an invalid one, or an encoded one.
    #[inline]
    pub(super) fn key(&self, peer: &Peer) -> Option<Key<'a>> {
        match self {
            Self::Text(command) => text::key(command),
            Self::Binary(request) => binary::key(peer, request),
        }
    }

    /// The key of its document, decoded into `buffer` if it is encoded; `None` if it concerns no document.
    pub(super) fn document_key<'k>(
        &self,
        peer: &Peer,
        buffer: &'k mut [u8; wire_text::KEY_MAX],
    ) -> Option<Key<'k>>
    where
        'a: 'k,
    {
        match self {
            Self::Text(command) => text::document(command, buffer),
            Self::Binary(request) => binary::key(peer, request),
        }
    }

    /// The document that a continued scan reads first: collection, key and vBucket.
    pub(super) fn scanned_key(&self, peer: &Peer) -> Option<(u32, Box<[u8]>, VbId)> {
        match self {
            Self::Binary(request) if peer.port == Port::Couchbase => couchbase::scanned_key(peer, request),
            _ => None,
        }
    }

    /// The place of its key; `None` if there is no such vBucket.
    #[inline(always)]
    pub(super) fn place(&self, peer: &Peer, bucket: &Bucket, key: Key<'_>) -> Option<Place> {
        match self {
            Self::Binary(request) if peer.port == Port::Couchbase => {
                let vb = VbId(request.header.vbucket);
                (vb.0 < bucket.vbuckets()).then(|| bucket.locate_in(key, vb))
            }
            _ => Some(bucket.locate(key)),
        }
    }

    /// Returns true if it is about what a replica has.
    pub(super) fn reads_replica(&self, peer: &Peer) -> bool {
        match self {
            Self::Binary(request) => peer.port == Port::Couchbase && couchbase::reads_replica(request),
            Self::Text(_) => false,
        }
    }

    /// Decides what to do with its body before any of it is received.
    #[inline]
    pub(super) fn admit(&self, peer: &Peer, body: usize) -> Admission<'a> {
        match self {
            Self::Text(command) => text::admit(peer, command, body),
            Self::Binary(request) => binary::admit(peer, request, body),
        }
    }

    /// Returns true if requests behind it can only be parsed once it has been executed.
    #[inline]
    pub(super) fn changes_session(&self) -> bool {
        match self {
            Self::Text(command) => text::traits(command).changes_session,
            Self::Binary(request) => opcodes::changes_session(request.header.opcode),
        }
    }

    /// Returns true if it may be the work of a hundred ordinary requests.
    #[inline]
    pub(super) fn is_slow(&self) -> bool {
        match self {
            Self::Text(command) => text::traits(command).is_slow,
            Self::Binary(request) => opcodes::is_slow(request.header.opcode),
        }
    }

    /// Returns true if it needs the existing value, or at least rewrites the item.
    pub(super) fn needs_value(&self) -> bool {
        match self {
            Self::Text(command) => text::traits(command).needs_value,
            Self::Binary(request) => opcodes::needs_value(request.header.opcode),
        }
    }

    /// What it touches, for ordering. `placed` is its place when it was parsed.
    pub(super) fn touch(&self, peer: &Peer, placed: Option<&Placed>) -> Touch {
        if self.is_fence(peer) {
            return Touch::Everything;
        }
        if let Self::Binary(request) = self
            && peer.is_unordered()
            && let Some(touch) = couchbase::touch_unordered(peer, request.header.opcode)
        {
            return touch;
        }
        if let Some(placed) = placed.filter(|placed| peer.places_as(placed.bucket, placed.collections)) {
            return Touch::Key(placed.place.hash);
        }
        match (self.document_key(peer, &mut [0; wire_text::KEY_MAX]), &peer.bucket) {
            // The hash of a key is the same in every vBucket.
            (Some(key), Some(bucket)) => Touch::Key(bucket.locate_in(key, VbId(0)).hash),
            _ => Touch::Nothing,
        }
    }

    fn is_fence(&self, peer: &Peer) -> bool {
        match self {
            Self::Text(command) => text::traits(command).is_fence,
            Self::Binary(request) => {
                let has_barrier = peer.port == Port::Couchbase
                    && FrameInfos::parse(request.framing).is_ok_and(|infos| infos.barrier);
                has_barrier || opcodes::is_fence(request.header.opcode)
            }
        }
    }

    /// Executes it. An error concerns its document: nothing was changed, and the partial answer must be taken back.
    #[inline]
    pub(super) fn execute(
        &self,
        peer: &mut Peer,
        at: At,
        body: Body<'_>,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Result<(), KvError> {
        match self {
            Self::Binary(request) => binary::execute(peer, request, at, body, cx, out),
            Self::Text(command) => text::execute(peer, command, at, body, cx, out),
        }
    }

    /// Answers it if its body is refused.
    pub(super) fn refuse(&self, peer: &mut Peer, refusal: Refusal, cx: &mut NodeContext, out: &mut Output) {
        match self {
            Self::Text(command) => text::refuse(peer, command, refusal, cx, out),
            Self::Binary(request) => binary::refuse(peer, request, refusal, cx, out),
        }
    }

    /// Answers it if it could not be executed.
    pub(super) fn fail(&self, peer: &mut Peer, error: KvError, cx: &mut NodeContext, out: &mut Output) {
        match self {
            Self::Text(command) => text::fail(peer, command, error, out),
            Self::Binary(request) => binary::fail(peer, request, error, cx, out),
        }
    }

    /// Makes a copy, to be parsed again; `bytes` are the bytes it was parsed from.
    pub(super) fn to_owned(&self, bytes: &[u8]) -> OwnedRequest {
        match self {
            Self::Text(wire_text::Command::Get(get)) => OwnedRequest {
                bytes: [get.single_key(), wire_text::TRAILER].concat().into(),
                retrieval: Some(Retrieval { with_cas: get.with_cas, exptime: get.exptime, last: get.last }),
            },
            _ => OwnedRequest { bytes: bytes.into(), retrieval: None },
        }
    }
}

/// A copy of a request with its value, or of its head alone.
pub(super) struct OwnedRequest {
    bytes: Box<[u8]>,
    /// Present for a single key of a text retrieval; `bytes` is then only the key.
    retrieval: Option<Retrieval>,
}

/// How a key of a retrieval was requested.
struct Retrieval {
    with_cas: bool,
    exptime: Option<i32>,
    last: bool,
}

impl OwnedRequest {
    /// The bytes that [`Request::to_owned`] copied.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Session {
    /// Parses the head of a request again, and any part of the value after it.
    pub(super) fn parse_again<'a>(&self, bytes: &'a [u8]) -> Option<(Request<'a>, &'a [u8])> {
        let (head, body, request) = if self.protocol == Protocol::Binary {
            let limits = wire_binary::Limits { frame_bytes: self.frame_bytes };
            let Parsed::Request { head, body, command, .. } = wire_binary::parse(bytes, &limits) else {
                return None;
            };
            (head, body, Request::Binary(command))
        } else {
            let limits = wire_text::Limits { line_bytes: self.line_bytes };
            let parsed = match self.peer.must_log_in() {
                true => wire_text::parse_login(bytes, &limits),
                false => wire_text::parse(bytes, &limits),
            };
            let Parsed::Request { head, body, command, .. } = parsed else {
                return None;
            };
            (head, body, Request::Text(command))
        };
        Some((request, bytes.get(head..head + body).unwrap_or_default()))
    }

    /// Parses a copied request as originally received, and its value.
    pub(super) fn parse_owned<'a>(&self, owned: &'a OwnedRequest) -> Option<(Request<'a>, &'a [u8])> {
        let Some(Retrieval { with_cas, exptime, last }) = owned.retrieval else {
            return self.parse_again(&owned.bytes);
        };
        let limits = wire_text::Limits { line_bytes: self.line_bytes };
        let get = wire_text::Get::continued(with_cas, exptime);
        match wire_text::parse_get_rest(&owned.bytes, &get, &limits) {
            Parsed::Request { command: wire_text::Command::Get(mut rest), .. } => {
                let one = wire_text::Get { last, ..rest.take_first()? };
                Some((Request::Text(wire_text::Command::Get(one)), &[]))
            }
            _ => None,
        }
    }
}
