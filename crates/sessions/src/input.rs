//! Input, split into requests.

use kv::{NodeContext, VbId};
use wire::{Parsed, binary as wire_binary, text as wire_text};

use super::batch::{PREFETCH_READ, Work, place, prefetch_bytes};
use super::filling::FIRST_PART;
use super::{
    Admission, BEFORE_LOGIN_MOST, Batch, Dump, LARGE_VALUE, Protocol, Receive, Refusal, Session, Watch,
    binary, opcodes, text,
};

/// How far [`Session::parse`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Input bytes that are done with once the batch has been executed.
    pub consumed: usize,
    /// More input is needed: so many bytes in all from the first unconsumed one, 0 if unknown. `None`: the batch is
    /// full or must be executed first; parse again.
    pub need: Option<usize>,
}

enum Step {
    /// So many bytes are dealt with.
    Done(usize),
    /// So many bytes are dealt with, and what was queued must be executed before anything else is parsed.
    Barrier(usize),
    /// So many bytes are needed in all; 0 if unknown.
    Need(usize),
}

impl Session {
    /// Splits input into at most `most` requests, until the input or the batch ends, or a request must be executed
    /// first.
    pub fn parse<'a>(
        &mut self,
        input: &'a [u8],
        connection: u32,
        most: usize,
        cx: &mut NodeContext,
        batch: &mut Batch<'a>,
    ) -> Progress {
        let mut consumed = 0;
        let end = batch.len().saturating_add(most);
        self.tend(cx);
        if self.is_stalled() {
            return Progress { consumed, need: Some(0) };
        }
        loop {
            if batch.is_full() || batch.len() >= end || self.peer.close {
                return Progress { consumed, need: None };
            }
            let rest = &input[consumed..];
            match &mut self.receive {
                Receive::Skipping(left) => {
                    let skipped = (*left).min(rest.len());
                    consumed += skipped;
                    *left -= skipped;
                    if *left > 0 {
                        return Progress { consumed, need: Some(0) };
                    }
                    self.receive = Receive::Ready;
                }
                Receive::Filling(filling) => {
                    let taken = filling.take(rest);
                    consumed += taken;
                    let mut next = Receive::Ready;
                    if filling.needs_room() {
                        match filling.grow(rest.len() - taken, cx) {
                            Ok(()) if taken < rest.len() => continue,
                            Ok(()) => return Progress { consumed, need: Some(0) },
                            Err(left) => next = Receive::Skipping(left),
                        }
                    } else if !filling.is_complete() {
                        return Progress { consumed, need: Some(0) };
                    }
                    let Receive::Filling(filling) = std::mem::replace(&mut self.receive, next) else {
                        unreachable!("matched above")
                    };
                    batch.push(connection, None, 0, Work::Filled(Some(filling)));
                }
                Receive::Dumping(_) => {
                    if let Receive::Dumping(dump) = std::mem::replace(&mut self.receive, Receive::Ready) {
                        batch.push(connection, None, 0, Work::Dump(Some(dump)));
                    }
                    return Progress { consumed, need: None };
                }
                Receive::Watching(watch) => {
                    batch.push(connection, None, 0, Work::Watch);
                    if !watch.has_begun() {
                        return Progress { consumed, need: None };
                    }
                    return Progress { consumed: input.len(), need: Some(0) };
                }
                Receive::Ready | Receive::Keys { .. } => {
                    if rest.is_empty() {
                        return Progress { consumed, need: Some(0) };
                    }
                    match self.parse_head(rest, connection, cx, batch) {
                        Step::Done(bytes) => consumed += bytes,
                        Step::Barrier(bytes) => return Progress { consumed: consumed + bytes, need: None },
                        Step::Need(need) => return Progress { consumed, need: Some(need) },
                    }
                }
            }
        }
    }

    #[inline]
    fn parse_head<'a>(
        &mut self,
        input: &'a [u8],
        connection: u32,
        cx: &mut NodeContext,
        batch: &mut Batch<'a>,
    ) -> Step {
        match self.protocol {
            Protocol::Binary => self.parse_binary(input, connection, cx, batch),
            Protocol::Text => self.parse_text(input, connection, cx, batch),
            Protocol::Unknown => {
                let is_binary = matches!(input.first(), Some(0x80 | 0x08));
                self.protocol = if is_binary { Protocol::Binary } else { Protocol::Text };
                self.parse_head(input, connection, cx, batch)
            }
        }
    }

    #[inline]
    fn parse_binary<'a>(
        &mut self,
        input: &'a [u8],
        connection: u32,
        cx: &mut NodeContext,
        batch: &mut Batch<'a>,
    ) -> Step {
        let limits = wire_binary::Limits { frame_bytes: self.frame_bytes };
        match wire_binary::parse(input, &limits) {
            Parsed::Incomplete { need } => Step::Need(need),
            Parsed::Malformed { skip, error } => {
                batch.push(connection, None, 0, Work::BinaryError(error));
                self.skip(skip, input.len())
            }
            Parsed::Fatal { error } => {
                batch.push(connection, None, 0, Work::BinaryError(error));
                self.skip(usize::MAX, input.len())
            }
            Parsed::Request { head, body, trailer: _, command } => {
                let large = if body == 0 {
                    None
                } else {
                    match binary::admit(&self.peer, &command, body) {
                        Admission::Refuse(refusal) => {
                            batch.push(connection, None, 0, Work::BinaryRefused(command, refusal));
                            return self.skip(head + body, input.len());
                        }
                        Admission::Inline
                            if body > LARGE_VALUE
                                || self.peer.must_log_in() && head + body > BEFORE_LOGIN_MOST =>
                        {
                            batch.push(connection, None, 0, Work::BinaryRefused(command, Refusal::TooBig));
                            return self.skip(head + body, input.len());
                        }
                        Admission::Store(key) if body > LARGE_VALUE => Some(key),
                        Admission::Store(_) | Admission::Inline => None,
                    }
                };
                if let Some(key) = large {
                    let available = body.min(input.len() - head);
                    return match self.start_filling(&input[..head], key, body, 0, available, cx) {
                        Ok(true) => Step::Done(head),
                        Ok(false) => Step::Need(head + FIRST_PART),
                        Err(refusal) => {
                            batch.push(connection, None, 0, Work::BinaryRefused(command, refusal));
                            self.skip(head + body, input.len())
                        }
                    };
                }
                let Some(value) = input.get(head..head + body) else { return Step::Need(head + body) };
                let key = binary::key(&self.peer, &command);
                let placed = key.and_then(|key| place(&self.peer, key, Some(VbId(command.header.vbucket))));
                let prefetch_bytes = prefetch_bytes(command.key.len(), body);
                batch.push(connection, placed, prefetch_bytes, Work::Binary(command, value));
                if opcodes::changes_session(command.header.opcode) {
                    Step::Barrier(head + body)
                } else {
                    Step::Done(head + body)
                }
            }
        }
    }

    fn parse_text<'a>(
        &mut self,
        input: &'a [u8],
        connection: u32,
        cx: &mut NodeContext,
        batch: &mut Batch<'a>,
    ) -> Step {
        let line_bytes = match self.peer.must_log_in() {
            true => self.line_bytes.min(BEFORE_LOGIN_MOST - wire_text::LOGIN_MAX),
            false => self.line_bytes,
        };
        let limits = wire_text::Limits { line_bytes };
        let parsed = match &self.receive {
            Receive::Keys { with_cas, exptime } => {
                let get = wire_text::Get::continued(*with_cas, *exptime);
                wire_text::parse_get_rest(input, &get, &limits)
            }
            _ if self.peer.must_log_in() => wire_text::parse_login(input, &limits),
            _ => wire_text::parse(input, &limits),
        };
        let was_in_keys = matches!(self.receive, Receive::Keys { .. });
        match parsed {
            Parsed::Incomplete { need } => Step::Need(need),
            Parsed::Malformed { skip, error } => {
                batch.push(connection, None, 0, Work::TextError(error));
                self.skip(skip, input.len())
            }
            Parsed::Fatal { error } => {
                batch.push(connection, None, 0, Work::TextError(error));
                self.skip(usize::MAX, input.len())
            }
            Parsed::Request { head, command: wire_text::Command::Get(get), .. } => {
                if was_in_keys {
                    self.receive = Receive::Ready;
                }
                self.queue_keys(input, head, get, connection, batch)
            }
            Parsed::Request { head, command: wire_text::Command::Dump(dump), .. } => {
                self.receive = Receive::Dumping(Box::new(Dump::new(dump)));
                Step::Done(head)
            }
            Parsed::Request { head, command: wire_text::Command::Watch(watched), .. } => {
                self.receive = Receive::Watching(Box::new(Watch::new(watched)));
                Step::Done(head)
            }
            Parsed::Request { head, body, trailer, command } => {
                let key = text::key(&command);
                if trailer > 0 {
                    match text::admit(&self.peer, &command, body) {
                        Admission::Refuse(refusal) => {
                            batch.push(
                                connection,
                                None,
                                0,
                                Work::TextRefused(command, refusal, &input[..head]),
                            );
                            return self.skip(head + body + trailer, input.len());
                        }
                        Admission::Store(key) if body > LARGE_VALUE => {
                            let available = body.min(input.len() - head);
                            let head_bytes = &input[..head];
                            return match self.start_filling(head_bytes, key, body, trailer, available, cx) {
                                Ok(true) => Step::Done(head),
                                Ok(false) => Step::Need(head + FIRST_PART),
                                Err(refusal) => {
                                    batch.push(
                                        connection,
                                        None,
                                        0,
                                        Work::TextRefused(command, refusal, &input[..head]),
                                    );
                                    self.skip(head + body + trailer, input.len())
                                }
                            };
                        }
                        Admission::Store(_) | Admission::Inline => {}
                    }
                }
                let end = head + body + trailer;
                let (Some(value), Some(tail)) = (input.get(head..head + body), input.get(head + body..end))
                else {
                    return Step::Need(end);
                };
                let placed = key.and_then(|key| place(&self.peer, key, None));
                let prefetch_bytes = prefetch_bytes(key.map_or(0, |key| key.bytes.len()), body);
                let is_login = matches!(command, wire_text::Command::Login);
                if trailer > 0 && tail != wire_text::TRAILER {
                    batch.push(
                        connection,
                        None,
                        0,
                        Work::TextRefused(command, Refusal::BadTrailer, &input[..head]),
                    );
                } else {
                    batch.push(connection, placed, prefetch_bytes, Work::Text(command, value, &input[..end]));
                }
                if is_login { Step::Barrier(end) } else { Step::Done(end) }
            }
        }
    }

    /// Queues the keys of a retrieval one by one, so that each is placed and prefetched and the output stays bounded.
    fn queue_keys<'a>(
        &mut self,
        input: &'a [u8],
        head: usize,
        mut get: wire_text::Get<'a>,
        connection: u32,
        batch: &mut Batch<'a>,
    ) -> Step {
        let (with_cas, exptime, ends) = (get.with_cas, get.exptime, get.last);
        while !batch.is_full() {
            let Some(one) = get.take_first() else { break };
            let is_last = one.last;
            let command = wire_text::Command::Get(one);
            let placed = text::key(&command).and_then(|key| place(&self.peer, key, None));
            batch.push(connection, placed, PREFETCH_READ as u32, Work::Text(command, &[], &[]));
            if is_last {
                return Step::Done(head);
            }
        }
        self.receive = Receive::Keys { with_cas, exptime };
        if get.keys.is_empty() && !ends {
            return Step::Done(head);
        }
        // The keys left over are the end of the line: they are parsed again as the rest of the retrieval.
        let rest = get.keys.rest();
        Step::Done(rest.as_ptr() as usize - input.as_ptr() as usize)
    }

    /// The request's bytes are done with: those here now, and those to come.
    fn skip(&mut self, bytes: usize, available: usize) -> Step {
        let here = bytes.min(available);
        self.receive = if bytes > here { Receive::Skipping(bytes - here) } else { Receive::Ready };
        Step::Done(here)
    }
}
