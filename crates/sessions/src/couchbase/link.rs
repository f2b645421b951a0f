//! A connection to another node, which copies vBuckets from it: this node is the consumer.
//!
//! ```text
//!   HELLO ─> SASL ─> SELECT_BUCKET ─> OPEN, CONTROL .. ─> manifest ─> per vBucket: STREAM_REQ ─> messages
//!                                                                                  ^ rolled back, refused, ended: again
//! ```
//! What the other node sends is taken at once, in order. If there is no room for it, it is kept, and no more than the
//! flow-control buffer allows is sent meanwhile. What contradicts what came before ends its stream, which is asked for
//! again after a while.

mod ahead;
mod foreign;
mod handshake;
mod manifest;
mod refill;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foreign::foreign;
use handshake::Phase;
use kv::copier::Copier;
use kv::copying::{CopyOf, CopyWanted, NotCopied};
use kv::follow::Position;
use kv::replication::Replication;
use kv::role::TERM_MOST;
use kv::terms::{TERM_BYTES, Terms};
use kv::{Bucket, NodeContext, RoleChange, VbId, VbState};
use manifest::There;
use refill::Refills;
use serde_json::Value;
use wire::binary::{self, Asked, HEADER_LEN, Header, Magic, Opcode, Request, Status};
use wire::dcp::{Message, StreamRequest, stream_request};

/// Bytes that the other node may send before it hears that they were processed.
const BUFFER_BYTES: u32 = 4 << 20;
/// After so many processed bytes it is told.
const TELL_BYTES: u32 = BUFFER_BYTES / 4;
/// Longest frame that is accepted.
const FRAME_MAX: usize = 40 << 20;
/// What was received and finds no room is never longer: the other node would ignore the buffer's size.
const KEPT_MAX: usize = BUFFER_BYTES as usize + FRAME_MAX;
/// A buffer of more than this is given back once it is empty.
const BUFFER_KEPT: usize = 64 << 10;
/// Interval of NOOPs; a node that is not heard for longer than two of them, and some more, is gone.
const NOOP_INTERVAL_S: u64 = 30;
const SILENCE_MS: u64 = 70_000;
/// What finds no room is tried again after this time.
const AGAIN_MS: u64 = 20;
/// A connection that has lasted for so long is of use.
const LASTING_MS: u64 = 1_000;
/// If it has found none for so long, that is told.
const STUCK_MS: u64 = 10_000;
/// A stream that was refused is asked for again after this time, doubled each time up to a bound.
const RETRY_MS: u64 = 50;
const RETRY_MAX_MS: u64 = 5_000;

/// A vBucket that is copied.
struct Copying {
    term: u64,
    opaque: u32,
    /// From where it was asked for.
    start: u64,
    /// The other node has agreed.
    is_begun: bool,
    /// The last seqno that it was told is here.
    told: u64,
    takes_over: bool,
}

/// Why a message is not taken.
enum Stop {
    /// There is no room now.
    Later,
    /// It contradicts what came before.
    Broken(String),
    /// The connection is of no use.
    Failed(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// How often a stream was refused.
#[derive(Default)]
struct Refusals {
    count: u32,
    /// When it is asked for again.
    at_ms: Option<u64>,
}

/// A connection to another node.
pub struct Link {
    copier: Copier,
    replication: Arc<Replication>,
    /// The hash of the other node's certificate, to which the login is bound.
    end_point: Option<Arc<[u8]>>,
    /// This node's name.
    node: String,
    phase: Phase,
    /// What was received and not taken: a part of a frame, or what found no room.
    received: Vec<u8>,
    /// What is to be sent.
    out: Vec<u8>,
    streams: BTreeMap<u16, Copying>,
    opaques: u32,
    /// Streams that are asked for again, by time, and when, and how often each was refused since it was of use.
    retries: BTreeSet<(u64, u16)>,
    refusals: BTreeMap<u16, Refusals>,
    refills: Refills,
    /// The scopes and collections that the other node has.
    there: There,
    /// VBuckets of which something is to be acknowledged, maybe.
    touched: BTreeSet<u16>,
    /// Bytes processed and not told.
    processed: u32,
    heard_ms: u64,
    /// Since when streams have been asked for, and whether that was of use.
    ready_ms: Option<u64>,
    is_of_use: bool,
    /// Nothing is taken before this.
    stuck_until_ms: Option<u64>,
    /// Since when nothing has been taken, and whether that is told.
    stuck_since_ms: Option<u64>,
    is_told_of_stuck: bool,
    /// Up to here frames have been looked at that find no room.
    looked: usize,
    has_news: bool,
    /// There is nothing to be copied any more.
    is_over: bool,
    /// Something to be told to an operator.
    complaint: Option<String>,
    failure: Option<String>,
}

impl Link {
    /// A connection that has just been made; over TLS, to a server whose certificate has the hash `end_point`.
    pub fn new(copier: Copier, end_point: Option<Arc<[u8]>>, cx: &NodeContext) -> Self {
        Self {
            copier,
            replication: cx.node.replication(),
            end_point,
            node: cx.node.name(),
            phase: Phase::New,
            received: Vec::new(),
            out: Vec::new(),
            streams: BTreeMap::new(),
            opaques: 0,
            retries: BTreeSet::new(),
            refusals: BTreeMap::new(),
            refills: Refills::default(),
            there: There::default(),
            touched: BTreeSet::new(),
            processed: 0,
            heard_ms: cx.now.mono_ms(),
            ready_ms: None,
            is_of_use: false,
            stuck_until_ms: None,
            stuck_since_ms: None,
            is_told_of_stuck: false,
            looked: 0,
            has_news: true,
            is_over: false,
            complaint: None,
            failure: None,
        }
    }

    /// Returns the ticket of the letters that say that there is news.
    pub(crate) fn ticket(&self) -> u64 {
        self.copier.news().cookie().ticket
    }

    pub(crate) fn note_news(&mut self) {
        self.has_news = true;
    }

    /// Returns the other node's name, and why the connection is of no use, if it is not.
    pub(crate) fn failure(&self) -> Option<(&str, &str)> {
        self.failure.as_deref().map(|why| (&**self.copier.peer(), why))
    }

    /// Notes why the connection has ended, unless it was of use.
    pub(crate) fn note_end(&mut self, why: &str) {
        if !self.is_of_use && !self.is_over {
            self.failure.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Returns true if there is nothing to be copied any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the other node's name, and what is to be told to an operator, if there is something new.
    pub(crate) fn take_complaint(&mut self) -> Option<(&str, String)> {
        let complaint = self.complaint.take()?;
        Some((self.copier.peer(), complaint))
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.received.capacity() + self.out.capacity() + self.refills.held_bytes()
    }

    /// Leaves no vBucket half replaced, since the connection ends.
    pub(crate) fn close(&mut self, cx: &mut NodeContext) {
        self.end_refills(cx);
    }

    /// Returns true if it has something to send or to look after.
    pub(crate) fn has_to_send(&self) -> bool {
        self.failure.is_none()
            && (!self.out.is_empty()
                || self.has_news
                || self.complaint.is_some()
                || matches!(self.phase, Phase::New))
    }

    /// When it has something to do if nothing is received.
    pub(crate) fn due_ms(&self) -> u64 {
        let retry_ms = self.retries.first().map(|(at_ms, _)| *at_ms);
        let lasting_ms = self.ready_ms.filter(|_| !self.is_of_use).map(|ready_ms| ready_ms + LASTING_MS);
        let due = [
            Some(self.heard_ms + SILENCE_MS),
            retry_ms,
            self.stuck_until_ms,
            lasting_ms,
            self.refills.due_ms,
        ];
        due.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Does what is due. Returns false if the other node is silent.
    pub(crate) fn turn(&mut self, cx: &mut NodeContext) -> bool {
        let now_ms = cx.now.mono_ms();
        if self.stuck_until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.stuck_until_ms = None;
            self.take_on(&[], false, cx);
        }
        if self.ready_ms.is_some_and(|ready_ms| ready_ms + LASTING_MS <= now_ms) {
            self.note_use();
        }
        while let Some((_, vb)) = self.retries.first().copied().filter(|(at_ms, _)| *at_ms <= now_ms) {
            self.forget_retry(vb);
            self.look_at(vb, cx);
        }
        if self.refills.due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
            self.go_on_refilling(cx);
            self.acknowledge(cx);
        }
        if self.heard_ms + SILENCE_MS <= now_ms {
            self.failure.get_or_insert_with(|| "it is silent".to_owned());
        }
        self.failure.is_none()
    }

    /// Takes what was received. Within a quiescence section.
    pub(crate) fn take(&mut self, input: &[u8], cx: &mut NodeContext) {
        self.take_on(input, true, cx);
    }

    fn take_on(&mut self, input: &[u8], may_load: bool, cx: &mut NodeContext) {
        if !input.is_empty() {
            self.heard_ms = cx.now.mono_ms();
        }
        if self.failure.is_some() {
            return;
        }
        let mut rest = input;
        // A frame that has begun is completed, and what follows is taken from where it lies.
        while !self.received.is_empty() && self.stuck_until_ms.is_none() && self.failure.is_none() {
            let (missing, later) = rest.split_at(self.missing_bytes().min(rest.len()));
            self.keep(missing, cx);
            rest = later;
            let received = std::mem::take(&mut self.received);
            let taken = self.take_frames(&received, may_load, cx);
            self.received = received;
            self.received.drain(..taken);
            self.looked = self.looked.saturating_sub(taken);
            if taken == 0 && rest.is_empty() {
                break;
            }
        }
        if self.received.is_empty() && self.stuck_until_ms.is_none() {
            let taken = self.take_frames(rest, may_load, cx);
            rest = rest.get(taken..).unwrap_or_default();
        }
        self.keep(rest, cx);
        if self.received.is_empty() && self.received.capacity() > BUFFER_KEPT {
            self.received = Vec::new();
        }
        if self.stuck_until_ms.is_some() {
            self.answer_noops();
        }
        if self.received.len() > KEPT_MAX {
            self.failure = Some(format!("it sends more than {BUFFER_BYTES} bytes, the size of the buffer"));
        }
        self.acknowledge(cx);
    }

    /// Bytes that are missing of the first frame that was kept, or of its header.
    fn missing_bytes(&self) -> usize {
        let frame_bytes = match self.received.first_chunk() {
            Some(head) => HEADER_LEN + Header::decode(head).body_len as usize,
            None => HEADER_LEN,
        };
        frame_bytes.saturating_sub(self.received.len())
    }

    /// Keeps what was not taken. A long frame gets its memory at once: a buffer that doubles would take up to three
    /// times as much while it grows. The bucket makes room for it before.
    fn keep(&mut self, input: &[u8], cx: &mut NodeContext) {
        self.received.extend_from_slice(input);
        let frame_bytes = self.received.len() + self.missing_bytes();
        if (self.received.capacity() + 1..=FRAME_MAX).contains(&frame_bytes) {
            self.copier.bucket().make_room_for_frame(cx, frame_bytes);
            self.received.reserve_exact(self.missing_bytes());
        }
    }

    /// Answers NOOPs behind what finds no room: otherwise the other node would think that this one is gone.
    fn answer_noops(&mut self) {
        while let Some(head) = self.received.get(self.looked..).and_then(|rest| rest.first_chunk()) {
            let header = Header::decode(head);
            let end = self.looked.saturating_add(HEADER_LEN + header.body_len as usize);
            if end > self.received.len() {
                return;
            }
            if header.magic == Magic::REQUEST && header.opcode == Opcode::DCP_NOOP {
                self.answer(&header);
                self.received.drain(self.looked..end);
            } else {
                self.looked = end;
            }
        }
    }

    /// The next attempt to connect may come at once.
    fn note_use(&mut self) {
        if !std::mem::replace(&mut self.is_of_use, true) {
            self.copier.note_success();
        }
    }

    /// Takes whole frames. Returns how many bytes they have.
    fn take_frames(&mut self, input: &[u8], may_load: bool, cx: &mut NodeContext) -> usize {
        let (mut taken, mut loaded) = (0, 0);
        while let Some(rest) = input.get(taken..).filter(|rest| rest.len() >= HEADER_LEN) {
            if may_load && taken >= loaded {
                loaded = taken + ahead::load(self.copier.bucket(), rest);
            }
            let Some(head) = rest.first_chunk() else { break };
            let header = Header::decode(head);
            let length = HEADER_LEN + header.body_len as usize;
            if length > FRAME_MAX {
                self.failure = Some(format!("a frame has {length} bytes"));
                break;
            }
            let Some(frame) = rest.get(..length) else { break };
            match self.take_frame(&header, frame, cx) {
                Ok(()) => {
                    taken += length;
                    (self.stuck_since_ms, self.is_told_of_stuck) = (None, false);
                }
                Err(Stop::Later) => {
                    self.note_stuck(header.vbucket, cx.now.mono_ms());
                    break;
                }
                Err(Stop::Broken(why)) => {
                    taken += length;
                    self.break_off(header.vbucket, why, cx);
                }
                Err(Stop::Failed(why)) => {
                    self.failure = Some(why);
                    break;
                }
            }
        }
        taken
    }

    fn take_frame(&mut self, header: &Header, frame: &[u8], cx: &mut NodeContext) -> Result<(), Stop> {
        if header.magic == Magic::RESPONSE {
            let extras_end = HEADER_LEN + usize::from(header.extras_len);
            let extras = frame.get(HEADER_LEN..extras_end).unwrap_or_default();
            let value = frame.get(extras_end + usize::from(header.key_len)..).unwrap_or_default();
            return self.take_response(header, extras, value, cx);
        }
        let (request, value) = parse(frame)?;
        match Message::decode(&request, value) {
            Some(Ok((_, Message::Noop))) => {
                self.answer(&request.header);
                Ok(())
            }
            Some(Ok((place, message))) => {
                let taken = self.take_message(place.vbucket, &request, &message, frame, cx);
                if !matches!(taken, Err(Stop::Later)) {
                    self.processed += frame.len() as u32;
                }
                taken
            }
            Some(Err(error)) => Err(Stop::Failed(error.to_string())),
            None => Err(Stop::Failed(format!("it asks for {:?}", request.header.opcode))),
        }
    }

    fn note_stuck(&mut self, vb: u16, now_ms: u64) {
        self.stuck_until_ms = Some(now_ms + AGAIN_MS);
        let since_ms = *self.stuck_since_ms.get_or_insert(now_ms);
        if since_ms + STUCK_MS <= now_ms && !std::mem::replace(&mut self.is_told_of_stuck, true) {
            let why = "there is no room in memory, or its scopes and collections cannot be written";
            self.complaint = Some(format!("vBucket {vb} waits: {why}"));
        }
    }

    /// Ends a stream that contradicts itself, or what is here. It is asked for again after a while.
    fn break_off(&mut self, vb: u16, why: String, cx: &mut NodeContext) {
        self.close_stream(vb, cx);
        if self.refusals.get(&vb).is_none_or(|refusals| refusals.count == 0) {
            self.complaint = Some(format!("vBucket {vb}: {why}"));
        }
        self.retry(vb, cx);
    }

    fn close_stream(&mut self, vb: u16, cx: &mut NodeContext) {
        self.forget_refill(vb, cx);
        if self.streams.remove(&vb).is_some() {
            self.ask(Opcode::DCP_CLOSE_STREAM, &Asked { vbucket: vb, ..Asked::default() });
        }
    }

    /// Answers a message with success.
    fn answer(&mut self, message: &Header) {
        let reply = binary::Reply::to(message, Status::SUCCESS);
        self.out.extend_from_slice(reply.head(&[], 0, 0).as_bytes());
    }

    fn ask(&mut self, opcode: Opcode, asked: &Asked<'_>) {
        asked.encode(opcode, &mut self.out);
    }

    /// Sends what comes first, and looks after the vBuckets that have news.
    pub(crate) fn produce(&mut self, cx: &mut NodeContext) -> Vec<u8> {
        if matches!(self.phase, Phase::New) {
            self.say_hello();
        }
        if matches!(self.phase, Phase::Ready) && self.has_news {
            let mut news = Vec::new();
            self.copier.news().take(|vb| news.push(vb.0));
            news.into_iter().for_each(|vb| self.look_at(vb, cx));
            self.acknowledge(cx);
            self.is_over = self.streams.is_empty() && self.retries.is_empty() && !self.copier.is_wanted();
        }
        // Before that they are kept.
        self.has_news = false;
        std::mem::take(&mut self.out)
    }

    fn take_response(
        &mut self,
        header: &Header,
        extras: &[u8],
        value: &[u8],
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        // In a response the status is where requests have the vBucket.
        let (opcode, status) = (header.opcode, Status(header.vbucket));
        if matches!(self.phase, Phase::Ready) {
            match opcode {
                Opcode::DCP_STREAM_REQ if status == Status::SUCCESS => {
                    return self.take_log(header.opaque, extras, value, cx);
                }
                Opcode::DCP_STREAM_REQ => return self.take_refusal(header.opaque, status, value, cx),
                // A stream that had ended already, or been closed.
                Opcode::DCP_CLOSE_STREAM | Opcode::DCP_SEQNO_ACKNOWLEDGED => return Ok(()),
                Opcode::COLLECTIONS_GET_MANIFEST if status == Status::SUCCESS => {
                    return self.take_manifest(value, cx);
                }
                // It has taken the scopes and collections that are here, or will be asked again.
                Opcode::DCP_CONTROL => return Ok(()),
                _ => {}
            }
        }
        self.go_on(opcode, status, value, cx)
    }

    /// Asks for the stream of a vBucket, or closes it, as its role demands.
    fn look_at(&mut self, vb: u16, cx: &mut NodeContext) {
        let wanted = self.wanted(vb, cx);
        let present = self.streams.get(&vb).map(|copying| (copying.term, copying.takes_over));
        match (wanted, present) {
            (Some(wanted), Some(present)) if present == (wanted.term, wanted.takes_over) => {
                self.touched.insert(vb);
                return;
            }
            _ => self.close_stream(vb, cx),
        }
        self.forget_retry(vb);
        let Some(wanted) = wanted else { return };
        let position = self.copier.bucket().copy_position(cx, VbId(vb));
        self.ask_for(vb, wanted, position);
    }

    /// Returns how a vBucket is to be copied, once that is promised: what is not on disk yet will be news.
    fn wanted(&self, vb: u16, cx: &mut NodeContext) -> Option<CopyWanted> {
        let (bucket, peer, news) = (self.copier.bucket(), self.copier.peer(), self.copier.news());
        bucket.copy_wanted(cx, VbId(vb), peer, news).filter(|wanted| wanted.is_promised)
    }

    /// Asks for the stream of a vBucket from a position on.
    fn ask_for(&mut self, vb: u16, wanted: CopyWanted, position: Position) {
        self.ask_manifest_for(vb, wanted.term);
        let takeover = if wanted.takes_over { stream_request::flags::TAKEOVER } else { 0 };
        let request = StreamRequest {
            flags: stream_request::flags::ACTIVE_ONLY | takeover,
            start: position.start,
            end: position.end,
            uuid: position.uuid,
            snapshot_start: position.snapshot.0,
            snapshot_end: position.snapshot.1,
            term: Some(wanted.term),
            tells_end: wanted.lacks_something,
            ..StreamRequest::default()
        };
        self.opaques += 1;
        let (opaque, extras, value) = (self.opaques, request.extras(), request.value());
        let asked = Asked { vbucket: vb, opaque, extras: &extras, value: &value, key: &[] };
        self.ask(Opcode::DCP_STREAM_REQ, &asked);
        let (term, start, takes_over) = (wanted.term, position.start, wanted.takes_over);
        self.streams.insert(vb, Copying { term, opaque, start, is_begun: false, told: 0, takes_over });
    }

    /// Returns the vBucket whose stream was asked for with this; not one that was closed meanwhile.
    fn asked(&self, opaque: u32) -> Option<u16> {
        self.streams.iter().find(|(_, copying)| copying.opaque == opaque).map(|(vb, _)| *vb)
    }

    /// Takes the answer that a stream begins: the failover log, and the terms, whose number is in the extras.
    fn take_log(
        &mut self,
        opaque: u32,
        extras: &[u8],
        value: &[u8],
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        let Some(vb) = self.asked(opaque) else { return Ok(()) };
        let Some(term) = self.streams.get(&vb).map(|copying| copying.term) else { return Ok(()) };
        if self.there.is_older_than(vb, term) {
            // It has become the active after it was asked for its manifest.
            self.close_stream(vb, cx);
            self.retry(vb, cx);
            return Ok(());
        }
        let terms_bytes =
            extras.first_chunk().map_or(0, |count| usize::from(u16::from_be_bytes(*count))) * TERM_BYTES;
        let (log, terms) =
            value.split_at_checked(value.len().saturating_sub(terms_bytes)).unwrap_or_default();
        let Some(terms) = Terms::decode(terms) else {
            return Err(Stop::Failed("the terms of a vBucket are malformed".to_owned()));
        };
        let (entries, _) = log.as_chunks::<16>();
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let log: Vec<(u64, u64)> =
            entries.iter().map(|entry| (number(&entry[..8]), number(&entry[8..]))).collect();
        let Some(copying) = self.streams.get_mut(&vb) else { return Ok(()) };
        if self.refills.collects(vb) {
            copying.is_begun = true;
            self.refill_begun(vb, log, terms);
            return Ok(());
        }
        let (bucket, peer) = (Arc::clone(self.copier.bucket()), Arc::clone(self.copier.peer()));
        match bucket.copy_begun(cx, VbId(vb), CopyOf { term: copying.term, peer: &peer }, &log, &terms) {
            Ok(()) => copying.is_begun = true,
            Err(NotCopied::Broken(why)) => self.break_off(vb, why.to_owned(), cx),
            // There is news.
            Err(NotCopied::Role | NotCopied::Later) => self.close_stream(vb, cx),
        }
        self.touched.insert(vb);
        Ok(())
    }

    /// Takes the answer that a stream does not begin.
    fn take_refusal(
        &mut self,
        opaque: u32,
        status: Status,
        value: &[u8],
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        let Some(vb) = self.asked(opaque) else { return Ok(()) };
        let Some(&Copying { term, start, .. }) = self.streams.get(&vb) else { return Ok(()) };
        let bucket = Arc::clone(self.copier.bucket());
        match status {
            Status::ROLLBACK => {
                self.streams.remove(&vb);
                // What was collected is no part of its history either.
                self.forget_refill(vb, cx);
                if start == 0 {
                    let why = "it is to roll back, and has nothing";
                    self.break_off(vb, why.to_owned(), cx);
                } else {
                    self.refill(vb, term, cx);
                }
            }
            Status::ERANGE => {
                self.streams.remove(&vb);
                self.forget_refill(vb, cx);
                let answer: Value = serde_json::from_slice(value).unwrap_or_default();
                match answer.get("term").and_then(Value::as_u64) {
                    // It is promised first, and then asked for again.
                    Some(higher) if higher > term && higher <= TERM_MOST => {
                        let change = RoleChange { term: Some(higher), ..RoleChange::default() };
                        let _its_role_may_have_changed = bucket.set_role(cx, VbId(vb), change);
                        self.has_news = true;
                    }
                    _ => self.retry(vb, cx),
                }
            }
            _ => {
                self.streams.remove(&vb);
                self.forget_refill(vb, cx);
                self.retry(vb, cx);
            }
        }
        Ok(())
    }

    /// Asks for a stream again after a while.
    fn retry(&mut self, vb: u16, cx: &NodeContext) {
        self.forget_retry(vb);
        let refusals = self.refusals.entry(vb).or_default();
        let wait_ms = RETRY_MS.checked_shl(refusals.count).unwrap_or(RETRY_MAX_MS).min(RETRY_MAX_MS);
        let at_ms = cx.now.mono_ms() + wait_ms;
        (refusals.count, refusals.at_ms) = ((refusals.count + 1).min(16), Some(at_ms));
        self.retries.insert((at_ms, vb));
    }

    fn forget_retry(&mut self, vb: u16) {
        if let Some(at_ms) = self.refusals.get_mut(&vb).and_then(|refusals| refusals.at_ms.take()) {
            self.retries.remove(&(at_ms, vb));
        }
    }

    fn take_message(
        &mut self,
        vb: u16,
        request: &Request<'_>,
        message: &Message<'_>,
        frame: &[u8],
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        let is_ours = |copying: &Copying| copying.opaque == request.header.opaque && copying.is_begun;
        if !self.streams.get(&vb).is_some_and(is_ours) {
            return Ok(());
        }
        if !self.refills.collects(vb) {
            return self.take_change(vb, request, message, cx);
        }
        if self.refills.is_given_up(vb, message) {
            self.streams.remove(&vb);
            self.forget_refill(vb, cx);
            self.retry(vb, cx);
        } else {
            self.collect(vb, message, frame, cx);
        }
        Ok(())
    }

    fn take_change(
        &mut self,
        vb: u16,
        request: &Request<'_>,
        message: &Message<'_>,
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        let Some(copying) = self.streams.get(&vb) else { return Ok(()) };
        let (term, takes_over) = (copying.term, copying.takes_over);
        let (bucket, peer) = (self.copier.bucket(), self.copier.peer());
        let foreign = match message {
            Message::StreamEnd(_) => {
                self.streams.remove(&vb);
                self.retry(vb, cx);
                return Ok(());
            }
            Message::SetVBucketState(state) => {
                let goes_on = takes_over && take_over(bucket, (vb, term, peer), u32::from(*state), cx);
                if goes_on {
                    self.answer(&request.header);
                } else {
                    self.close_stream(vb, cx);
                    self.has_news = true;
                }
                return Ok(());
            }
            _ => foreign(message, cx)?,
        };
        self.check_collection(&foreign)?;
        let of = CopyOf { term, peer: self.copier.peer() };
        match self.copier.bucket().copy(cx, VbId(vb), of, &foreign) {
            Ok(has_prepares) => {
                if has_prepares {
                    self.touched.insert(vb);
                }
                self.note_use();
                if !self.refusals.is_empty() {
                    self.forget_retry(vb);
                    self.refusals.remove(&vb);
                }
                Ok(())
            }
            Err(NotCopied::Role) => {
                // There is news.
                self.close_stream(vb, cx);
                self.has_news = true;
                Ok(())
            }
            Err(NotCopied::Later) => Err(Stop::Later),
            Err(NotCopied::Broken(why)) => Err(Stop::Broken(why.to_owned())),
        }
    }

    /// Acknowledges what was processed, and prepares that are as durable here as they demand.
    fn acknowledge(&mut self, cx: &mut NodeContext) {
        if self.processed >= TELL_BYTES {
            let extras = std::mem::take(&mut self.processed).to_be_bytes();
            self.ask(Opcode::DCP_BUFFER_ACKNOWLEDGEMENT, &Asked { extras: &extras, ..Asked::default() });
        }
        let (bucket, peer) = (Arc::clone(self.copier.bucket()), Arc::clone(self.copier.peer()));
        for vb in std::mem::take(&mut self.touched) {
            let Some(copying) = self.streams.get_mut(&vb).filter(|copying| copying.is_begun) else {
                continue;
            };
            let of = CopyOf { term: copying.term, peer: &peer };
            if let Some(seqno) = bucket.copy_acknowledgement(cx, VbId(vb), of, copying.told) {
                copying.told = seqno;
                let extras = seqno.to_be_bytes();
                let asked =
                    Asked { vbucket: vb, opaque: copying.opaque, extras: &extras, ..Asked::default() };
                asked.encode(Opcode::DCP_SEQNO_ACKNOWLEDGED, &mut self.out);
            }
        }
    }
}

/// Returns a request and its value.
fn parse(frame: &[u8]) -> Result<(Request<'_>, &[u8]), Stop> {
    let limits = binary::Limits { frame_bytes: FRAME_MAX as u32 };
    match binary::parse(frame, &limits) {
        wire::Parsed::Request { head, command, .. } => Ok((command, frame.get(head..).unwrap_or_default())),
        _ => Err(Stop::Failed("a frame is malformed".to_owned())),
    }
}

/// Does its part in a take-over: the active asks whether it is still wanted, and once it is dead and everything of it
/// is here, the vBucket becomes active. Returns false if it is not wanted, or not any more.
fn take_over(bucket: &Bucket, of: (u16, u64, &str), state: u32, cx: &mut NodeContext) -> bool {
    let (vb, term, peer) = of;
    if state != VbState::Active.number() {
        return bucket.is_to_succeed(cx, VbId(vb), term, peer);
    }
    let has_succeeded = bucket.succeed(cx, VbId(vb), term, peer).is_ok_and(|is_done| is_done);
    if has_succeeded {
        cx.node.note_map_change();
    }
    has_succeeded
}
