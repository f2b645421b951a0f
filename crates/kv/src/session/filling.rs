//! A large value on its way from the socket into item memory, and the request it belongs to.

use wire::{Parsed, binary as wire_binary, text as wire_text};

use super::{Body, Output, Protocol, Receive, Refusal, Session, binary, text};
use crate::{Cx, Key, LargeItem};

/// Most bytes of a large value that are received at once.
const SINK_BYTES: usize = 256 << 10;

/// A large value on its way into item memory.
pub(super) struct Filling {
    /// The request's head, parsed again when the value is there.
    pub(super) head: Box<[u8]>,
    item: LargeItem,
    filled: usize,
    trailer: usize,
    trailer_is_good: bool,
}

/// A request with a large value, without the value.
pub(super) enum Head<'a> {
    Binary(wire_binary::Request<'a>),
    Text(wire_text::Command<'a>),
}

impl Session {
    /// Where the next input bytes belong, if they are the rest of a large value: read from the socket straight into it, then
    /// call [`Session::filled`].
    pub fn sink(&mut self) -> Option<&mut [u8]> {
        match &mut self.receive {
            Receive::Filling(filling) if filling.filled < filling.item.len() => {
                let filled = filling.filled;
                Some(filling.item.window(filled, SINK_BYTES))
            }
            _ => None,
        }
    }

    /// So many bytes were read into the sink.
    pub fn filled(&mut self, bytes: usize) {
        if let Receive::Filling(filling) = &mut self.receive {
            filling.filled += bytes;
            debug_assert!(filling.filled <= filling.item.len());
        }
    }

    /// Whether a complete large value waits to be executed: [`Session::parse`] goes on without new input.
    pub fn has_filled(&self) -> bool {
        matches!(&self.receive, Receive::Filling(f) if f.filled == f.item.len() && f.trailer == 0)
    }

    pub(super) fn start_filling(
        &mut self,
        head: &[u8],
        key: Key<'_>,
        body: usize,
        trailer: usize,
        cx: &mut Cx,
    ) -> Result<(), Refusal> {
        let bucket = self.peer.bucket.clone().ok_or(Refusal::NotAllowed)?;
        let item = bucket.prepare_large(cx, key, body).map_err(|error| match error {
            crate::KvError::TooBig => Refusal::TooBig,
            crate::KvError::BucketGone => Refusal::NotAllowed,
            _ => Refusal::NoMemory,
        })?;
        let filling = Filling { head: head.into(), item, filled: 0, trailer, trailer_is_good: true };
        self.receive = Receive::Filling(Box::new(filling));
        Ok(())
    }

    #[cold]
    pub(super) fn execute_filled(&mut self, filling: Filling, cx: &mut Cx, out: &mut Output) {
        let Filling { head, item, trailer_is_good, .. } = filling;
        match self.parse_filled(&head) {
            Some(Head::Binary(command)) => {
                binary::execute(&mut self.peer, &command, None, Body::Large(item), cx, out);
            }
            Some(Head::Text(command)) if trailer_is_good => {
                text::execute(&mut self.peer, &command, None, Body::Large(item), cx, out);
            }
            Some(Head::Text(command)) => {
                text::refuse(&mut self.peer, &command, Refusal::BadTrailer, cx, out);
            }
            None => {}
        }
    }

    /// Parses the head of a request with a large value again.
    pub(super) fn parse_filled<'a>(&self, head: &'a [u8]) -> Option<Head<'a>> {
        if self.protocol == Protocol::Binary {
            let limits = wire_binary::Limits { frame_bytes: self.frame_bytes };
            let Parsed::Request { command, .. } = wire_binary::parse(head, &limits) else { return None };
            return Some(Head::Binary(command));
        }
        let limits = wire_text::Limits { line_bytes: self.line_bytes };
        let Parsed::Request { command, .. } = wire_text::parse(head, &limits) else { return None };
        Some(Head::Text(command))
    }
}

impl Filling {
    pub(super) fn is_complete(&self) -> bool {
        self.filled == self.item.len() && self.trailer == 0
    }

    /// Takes value and trailer bytes that came with other input.
    pub(super) fn take(&mut self, input: &[u8]) -> usize {
        let filled = self.filled;
        let missing = self.item.window(filled, input.len());
        let (value, rest) = input.split_at(missing.len().min(input.len()));
        missing[..value.len()].copy_from_slice(value);
        self.filled += value.len();
        if self.filled < self.item.len() {
            return value.len();
        }
        let trailer = rest.len().min(self.trailer);
        let expected = &wire_text::TRAILER[wire_text::TRAILER.len() - self.trailer..];
        self.trailer_is_good &= rest[..trailer] == expected[..trailer];
        self.trailer -= trailer;
        value.len() + trailer
    }
}
