//! Splits input into requests.

use kv::NodeContext;
use wire::binary::{HEADER_LEN, Header, Magic, Opcode, Status};
use wire::{Parsed, binary as wire_binary, text as wire_text};

use super::batch::{PREFETCH_READ, Work, place, prefetch_bytes};
use super::filling::FIRST_PART;
use super::request::{Malformed, Request};
use super::{
    Admission, BEFORE_LOGIN_MOST, Batch, Dump, LARGE_VALUE, Protocol, Receive, Refusal, Session, Watch,
};

/// A longer body may be slow to check.
const SLOW_BODY_BYTES: usize = 16 << 10;

/// How far [`Session::parse`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Input bytes that are no longer needed once the batch has been executed.
    pub consumed: usize,
    /// Total number of bytes needed from the first unconsumed one on, 0 if unknown. `None`: the batch is full or must
    /// be executed first; parse again.
    pub need: Option<usize>,
}

/// The lengths of a request's parts.
struct Lengths {
    head: usize,
    body: usize,
    trailer: usize,
}

enum Step {
    /// This many bytes have been handled.
    Done(usize),
    /// This many bytes have been handled, and what was queued must be executed before anything else is parsed.
    Barrier(usize),
    /// This many bytes are needed in total; 0 if unknown.
    Need(usize),
}

impl Session {
    /// Splits input into at most `most` requests, until the input ends, the batch is full, or a request must be
    /// executed first.
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
        if self.peer.couchbase.link.is_some() {
            return self.parse_link(input, cx);
        }
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
                    batch.note_slow();
                }
                Receive::Dumping(_) => {
                    if let Receive::Dumping(dump) = std::mem::replace(&mut self.receive, Receive::Ready) {
                        batch.push(connection, None, 0, Work::Dump(Some(dump)));
                        batch.note_slow();
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
        if self.protocol == Protocol::Unknown {
            let is_binary = matches!(input.first(), Some(0x80 | 0x08));
            self.protocol = if is_binary { Protocol::Binary } else { Protocol::Text };
        }
        if self.protocol == Protocol::Binary {
            if self.follows()
                && let Some(step) = self.take_response(input, cx)
            {
                return step;
            }
            let limits = wire_binary::Limits { frame_bytes: self.frame_bytes };
            return match wire_binary::parse(input, &limits) {
                Parsed::Incomplete { need } => Step::Need(need),
                Parsed::Malformed { skip, error } => {
                    self.queue_malformed(Malformed::Binary(error), skip, input, connection, batch)
                }
                Parsed::Fatal { error } => {
                    self.queue_malformed(Malformed::Binary(error), usize::MAX, input, connection, batch)
                }
                Parsed::Request { head, body, trailer, command } => {
                    let lengths = Lengths { head, body, trailer };
                    self.queue(Request::Binary(command), lengths, input, connection, cx, batch)
                }
            };
        }
        match self.parse_line(input) {
            Parsed::Incomplete { need } => Step::Need(need),
            Parsed::Malformed { skip, error } => {
                self.queue_malformed(Malformed::Text(error), skip, input, connection, batch)
            }
            Parsed::Fatal { error } => {
                self.queue_malformed(Malformed::Text(error), usize::MAX, input, connection, batch)
            }
            Parsed::Request { head, command: wire_text::Command::Get(get), .. } => {
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
                let lengths = Lengths { head, body, trailer };
                self.queue(Request::Text(command), lengths, input, connection, cx, batch)
            }
        }
    }

    /// Takes what a follower answers to a message: only that to a NOOP, or to a change of state, means anything.
    #[cold]
    fn take_response(&mut self, input: &[u8], cx: &mut NodeContext) -> Option<Step> {
        let responses =
            [Magic::RESPONSE, Magic::FLEXIBLE_RESPONSE, Magic::SERVER_RESPONSE].map(|magic| magic.0);
        let is_response = input.first().is_some_and(|magic| responses.contains(magic));
        if !is_response {
            return None;
        }
        let Some(head) = input.first_chunk() else { return Some(Step::Need(HEADER_LEN)) };
        let header = Header::decode(head);
        // In a response the status is where requests have the vBucket.
        let is_success = Status(header.vbucket) == Status::SUCCESS;
        match header.opcode {
            Opcode::DCP_NOOP => self.note_noop_answer(cx.now.mono_ms()),
            Opcode::DCP_SET_VBUCKET_STATE if is_success => self.note_state_answer(header.opaque, cx),
            _ => {}
        }
        Some(self.skip(HEADER_LEN + header.body_len as usize, input.len()))
    }

    /// A line of text, or the rest of one that asks for many keys.
    #[inline]
    fn parse_line<'a>(&self, input: &'a [u8]) -> Parsed<wire_text::Command<'a>, wire_text::Error> {
        let must_log_in = self.peer.must_log_in();
        let line_bytes = match must_log_in {
            true => self.line_bytes.min(BEFORE_LOGIN_MOST - wire_text::LOGIN_MAX),
            false => self.line_bytes,
        };
        let limits = wire_text::Limits { line_bytes };
        match self.receive {
            Receive::Keys { with_cas, exptime } => {
                let get = wire_text::Get::continued(with_cas, exptime);
                wire_text::parse_get_rest(input, &get, &limits)
            }
            _ if must_log_in => wire_text::parse_login(input, &limits),
            _ => wire_text::parse(input, &limits),
        }
    }

    #[cold]
    fn queue_malformed<'a>(
        &mut self,
        error: Malformed,
        skip: usize,
        input: &'a [u8],
        connection: u32,
        batch: &mut Batch<'a>,
    ) -> Step {
        batch.push(connection, None, 0, Work::Malformed(error));
        self.skip(skip, input.len())
    }

    /// Queues a request once its value has arrived; a long value is received directly into item memory.
    #[inline(always)]
    fn queue<'a>(
        &mut self,
        request: Request<'a>,
        lengths: Lengths,
        input: &'a [u8],
        connection: u32,
        cx: &mut NodeContext,
        batch: &mut Batch<'a>,
    ) -> Step {
        let Lengths { head, body, trailer } = lengths;
        let end = head + body + trailer;
        if body + trailer > 0 {
            let refusal = match request.admit(&self.peer, body) {
                Admission::Refuse(refusal) => Some(refusal),
                Admission::Inline
                    if body > LARGE_VALUE || self.peer.must_log_in() && head + body > BEFORE_LOGIN_MOST =>
                {
                    Some(Refusal::TooBig)
                }
                Admission::Store(key) if body > LARGE_VALUE => {
                    let available = body.min(input.len() - head);
                    match self.start_filling(&input[..head], key, body, trailer, available, cx) {
                        Ok(true) => return Step::Done(head),
                        Ok(false) => return Step::Need(head + FIRST_PART),
                        Err(refusal) => Some(refusal),
                    }
                }
                Admission::Store(_) | Admission::Inline => None,
            };
            if let Some(refusal) = refusal {
                batch.push(connection, None, 0, Work::Refused(request, refusal, &input[..head]));
                return self.skip(end, input.len());
            }
        }
        let Some(bytes) = input.get(..end) else { return Step::Need(end) };
        let (value, tail) = bytes[head..].split_at(body);
        let is_barrier = request.changes_session();
        let is_slow = request.is_slow() || body > SLOW_BODY_BYTES;
        if trailer > 0 && tail != wire_text::TRAILER {
            batch.push(connection, None, 0, Work::Refused(request, Refusal::BadTrailer, &input[..head]));
        } else {
            let key = request.key(&self.peer);
            let placed = key.and_then(|key| place(&self.peer, &request, key));
            let prefetch_bytes = prefetch_bytes(key.map_or(0, |key| key.bytes.len()), body);
            batch.push(connection, placed, prefetch_bytes, Work::Request(request, value, bytes));
            if is_slow {
                batch.note_slow();
            }
        }
        if is_barrier { Step::Barrier(end) } else { Step::Done(end) }
    }

    /// Queues the keys of a retrieval individually, so that each is placed and prefetched and the output stays bounded.
    fn queue_keys<'a>(
        &mut self,
        input: &'a [u8],
        head: usize,
        mut get: wire_text::Get<'a>,
        connection: u32,
        batch: &mut Batch<'a>,
    ) -> Step {
        let (with_cas, exptime, ends) = (get.with_cas, get.exptime, get.last);
        self.receive = Receive::Ready;
        while !batch.is_full() {
            let Some(one) = get.take_first() else { break };
            let is_last = one.last;
            let request = Request::Text(wire_text::Command::Get(one));
            let placed = request.key(&self.peer).and_then(|key| place(&self.peer, &request, key));
            batch.push(connection, placed, PREFETCH_READ as u32, Work::Request(request, &[], &[]));
            if is_last {
                return Step::Done(head);
            }
        }
        self.receive = Receive::Keys { with_cas, exptime };
        if get.keys.is_empty() && !ends {
            return Step::Done(head);
        }
        // The remaining keys are the end of the line: they are parsed again as the rest of the retrieval.
        let rest = get.keys.rest();
        Step::Done(rest.as_ptr() as usize - input.as_ptr() as usize)
    }

    /// Skips the request's bytes: those received, and those to come.
    fn skip(&mut self, bytes: usize, available: usize) -> Step {
        let here = bytes.min(available);
        self.receive = if bytes > here { Receive::Skipping(bytes - here) } else { Receive::Ready };
        Step::Done(here)
    }
}
