//! A connection to another node, which copies vBuckets from it: this node is the consumer.
//!
//! ```text
//!   HELLO ─> SASL ─> SELECT_BUCKET ─> OPEN, CONTROL .. ─> manifest ─> per vBucket: STREAM_REQ ─> messages
//!                                                                                  ^ rolled back, refused, ended: again
//! ```
//! What the other node sends is taken at once, in order. If there is no room for it, it is kept, and no more than the
//! flow-control buffer allows is sent meanwhile. What contradicts what came before ends its stream, which is asked for
//! again after a while.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kv::collections::{ForeignChange, Manifest};
use kv::copier::Copier;
use kv::copying::{CopyOf, Foreign, NotCopied};
use kv::follow::{Version, VersionKind, VersionValue};
use kv::replication::Replication;
use kv::role::TERM_MOST;
use kv::{Bucket, NodeContext, RoleChange, VbId, VbState};
use serde_json::Value;
use wire::binary::{self, Asked, HEADER_LEN, Header, Magic, Opcode, Request, Status};
use wire::couchbase::{Feature, collection_id};
use wire::dcp::message::{Deletion, Event as Told, Mutation, Prepare};
use wire::dcp::{Message, Open, StreamRequest, open, stream_request};
use wire::sasl::{ClientExchange, Expected, Hash, Mechanism};

use super::dcp::REPLICATION;

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
const HASH: Hash = Hash::Sha512;

const FEATURES: &[Feature] = &[
    Feature::XATTR,
    Feature::XERROR,
    Feature::SELECT_BUCKET,
    Feature::SNAPPY,
    Feature::JSON,
    Feature::COLLECTIONS,
];

/// How far a connection is.
enum Phase {
    New,
    Hello,
    Challenge(ClientExchange),
    Proof(Expected),
    Bucket,
    Open,
    /// So many settings have not been answered.
    Controls(usize),
    Manifest,
    Ready,
}

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
    /// The collections that the other node has, and the version of its manifest.
    collections: (BTreeSet<u32>, u64),
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
    /// A connection that has just been made.
    pub fn new(copier: Copier, cx: &NodeContext) -> Self {
        Self {
            copier,
            replication: cx.node.replication(),
            node: cx.node.name(),
            phase: Phase::New,
            received: Vec::new(),
            out: Vec::new(),
            streams: BTreeMap::new(),
            opaques: 0,
            retries: BTreeSet::new(),
            refusals: BTreeMap::new(),
            collections: Default::default(),
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
        self.received.capacity() + self.out.capacity()
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
        let due = [Some(self.heard_ms + SILENCE_MS), retry_ms, self.stuck_until_ms, lasting_ms];
        due.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Does what is due. Returns false if the other node is silent.
    pub(crate) fn turn(&mut self, cx: &mut NodeContext) -> bool {
        let now_ms = cx.now.mono_ms();
        if self.stuck_until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.stuck_until_ms = None;
            self.take(&[], cx);
        }
        if self.ready_ms.is_some_and(|ready_ms| ready_ms + LASTING_MS <= now_ms) {
            self.note_use();
        }
        while let Some((_, vb)) = self.retries.first().copied().filter(|(at_ms, _)| *at_ms <= now_ms) {
            self.forget_retry(vb);
            self.look_at(vb, cx);
        }
        if self.heard_ms + SILENCE_MS <= now_ms {
            self.failure.get_or_insert_with(|| "it is silent".to_owned());
        }
        self.failure.is_none()
    }

    /// Takes what was received.
    pub(crate) fn take(&mut self, input: &[u8], cx: &mut NodeContext) {
        if !input.is_empty() {
            self.heard_ms = cx.now.mono_ms();
        }
        if self.failure.is_some() {
            return;
        }
        let is_stuck = self.stuck_until_ms.is_some();
        if self.received.is_empty() && !is_stuck {
            let taken = self.take_frames(input, cx);
            self.received.extend_from_slice(input.get(taken..).unwrap_or_default());
        } else {
            self.received.extend_from_slice(input);
            if !is_stuck {
                let received = std::mem::take(&mut self.received);
                let taken = self.take_frames(&received, cx);
                self.received = received;
                self.received.drain(..taken);
                self.looked = self.looked.saturating_sub(taken);
            }
        }
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

    /// Answers NOOPs behind what finds no room: otherwise the other node would think that this one is gone.
    fn answer_noops(&mut self) {
        while let Some(head) = self.received.get(self.looked..).and_then(|rest| rest.first_chunk()) {
            let header = Header::decode(head);
            let end = self.looked.saturating_add(HEADER_LEN + header.body_len as usize);
            if end > self.received.len() {
                return;
            }
            if header.magic == Magic::REQUEST && header.opcode == Opcode::DCP_NOOP {
                let reply = binary::Reply::to(&header, Status::SUCCESS);
                self.out.extend_from_slice(reply.head(&[], 0, 0).as_bytes());
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
    fn take_frames(&mut self, input: &[u8], cx: &mut NodeContext) -> usize {
        let mut taken = 0;
        while let Some(rest) = input.get(taken..).filter(|rest| rest.len() >= HEADER_LEN) {
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
            let extras_end = HEADER_LEN + usize::from(header.extras_len) + usize::from(header.key_len);
            let value = frame.get(extras_end..).unwrap_or_default();
            // In a response the status is where requests have the vBucket.
            return self.take_response(header, Status(header.vbucket), value, cx);
        }
        let limits = binary::Limits { frame_bytes: FRAME_MAX as u32 };
        let (request, head) = match binary::parse(frame, &limits) {
            wire::Parsed::Request { head, command, .. } => (command, head),
            _ => return Err(Stop::Failed("a frame is malformed".to_owned())),
        };
        let value = frame.get(head..).unwrap_or_default();
        match Message::decode(&request, value) {
            Some(Ok((_, Message::Noop))) => {
                self.answer(&request);
                Ok(())
            }
            Some(Ok((place, message))) => {
                let taken = self.take_message(place.vbucket, &request, &message, cx);
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
    fn break_off(&mut self, vb: u16, why: String, cx: &NodeContext) {
        self.close_stream(vb);
        if self.refusals.get(&vb).is_none_or(|refusals| refusals.count == 0) {
            self.complaint = Some(format!("vBucket {vb}: {why}"));
        }
        self.retry(vb, cx);
    }

    fn close_stream(&mut self, vb: u16) {
        if self.streams.remove(&vb).is_some() {
            self.ask(Opcode::DCP_CLOSE_STREAM, &Asked { vbucket: vb, ..Asked::default() });
        }
    }

    /// Answers a message with success.
    fn answer(&mut self, request: &Request<'_>) {
        let reply = binary::Reply::to(&request.header, Status::SUCCESS);
        self.out.extend_from_slice(reply.head(&[], 0, 0).as_bytes());
    }

    fn ask(&mut self, opcode: Opcode, asked: &Asked<'_>) {
        asked.encode(opcode, &mut self.out);
    }

    // ---- until it is open -----------------------------------------------------------------------------------------

    /// Sends what comes first, and looks after the vBuckets that have news.
    pub(crate) fn produce(&mut self, cx: &mut NodeContext) -> Vec<u8> {
        if matches!(self.phase, Phase::New) {
            let value: Vec<u8> = FEATURES.iter().flat_map(|feature| feature.0.to_be_bytes()).collect();
            let agent = format!("dormouse {}", self.node);
            self.ask(Opcode::HELLO, &Asked { key: agent.as_bytes(), value: &value, ..Asked::default() });
            self.phase = Phase::Hello;
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
        status: Status,
        value: &[u8],
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        let opcode = header.opcode;
        if matches!(self.phase, Phase::Ready) {
            match opcode {
                Opcode::DCP_STREAM_REQ => return self.take_stream_response(header.opaque, status, value, cx),
                // A stream that had ended already, or been closed.
                Opcode::DCP_CLOSE_STREAM | Opcode::DCP_SEQNO_ACKNOWLEDGED => return Ok(()),
                _ => {}
            }
        }
        let is_next = match opcode {
            Opcode::SASL_AUTH => status == Status::AUTH_CONTINUE,
            _ => status == Status::SUCCESS,
        };
        if !is_next {
            let text = String::from_utf8_lossy(value.get(..value.len().min(200)).unwrap_or_default());
            return Err(format!("it answers {opcode:?} with {status:?} {text}").into());
        }
        self.phase = match (std::mem::replace(&mut self.phase, Phase::New), opcode) {
            (Phase::Hello, Opcode::HELLO) => {
                if self.replication.user.is_empty() {
                    return Err("no user is configured: see replication.user".to_owned().into());
                }
                let nonce = format!("{:016x}{:016x}", cx.node.nonce(), cx.node.nonce());
                let (exchange, first) = ClientExchange::start(HASH, &self.replication.user, &nonce);
                let key = Mechanism::Scram(HASH).name().as_bytes();
                self.ask(Opcode::SASL_AUTH, &Asked { key, value: &first, ..Asked::default() });
                Phase::Challenge(exchange)
            }
            (Phase::Challenge(exchange), Opcode::SASL_AUTH) => {
                let proved = exchange.prove(value, self.replication.password.as_bytes());
                let (proof, expected) = proved.map_err(|error| format!("login: {error}"))?;
                let key = Mechanism::Scram(HASH).name().as_bytes();
                self.ask(Opcode::SASL_STEP, &Asked { key, value: &proof, ..Asked::default() });
                Phase::Proof(expected)
            }
            (Phase::Proof(expected), Opcode::SASL_STEP) => {
                if !expected.is(value) {
                    return Err("it does not know the user's password".to_owned().into());
                }
                let name = self.copier.bucket().name().to_owned();
                self.ask(Opcode::SELECT_BUCKET, &Asked { key: name.as_bytes(), ..Asked::default() });
                Phase::Bucket
            }
            (Phase::Bucket, Opcode::SELECT_BUCKET) => {
                let name = format!(
                    "{REPLICATION}{}->{}:{}",
                    self.copier.peer(),
                    self.node,
                    self.copier.bucket().name()
                );
                let flags = open::flags::PRODUCER
                    | open::flags::INCLUDE_XATTRS
                    | open::flags::INCLUDE_DELETE_TIMES
                    | open::flags::INCLUDE_DELETED_USER_XATTRS;
                let name = name.get(..name.len().min(open::NAME_MOST)).unwrap_or("replication").as_bytes();
                let extras = Open { flags, name }.extras();
                self.ask(Opcode::DCP_OPEN, &Asked { extras: &extras, key: name, ..Asked::default() });
                Phase::Open
            }
            (Phase::Open, Opcode::DCP_OPEN) => {
                let (interval, buffer) = (NOOP_INTERVAL_S.to_string(), BUFFER_BYTES.to_string());
                let node = self.node.clone();
                let controls = [
                    ("enable_noop", "true"),
                    ("set_noop_interval", &*interval),
                    ("connection_buffer_size", &*buffer),
                    ("enable_expiry_opcode", "true"),
                    ("enable_sync_writes", "true"),
                    ("consumer_name", &*node),
                ];
                for (name, value) in controls {
                    let (key, value) = (name.as_bytes(), value.as_bytes());
                    self.ask(Opcode::DCP_CONTROL, &Asked { key, value, ..Asked::default() });
                }
                Phase::Controls(controls.len())
            }
            (Phase::Controls(1), Opcode::DCP_CONTROL) => {
                self.ask(Opcode::COLLECTIONS_GET_MANIFEST, &Asked::default());
                Phase::Manifest
            }
            (Phase::Controls(left), Opcode::DCP_CONTROL) => Phase::Controls(left - 1),
            (Phase::Manifest, Opcode::COLLECTIONS_GET_MANIFEST) => {
                let manifest: Value =
                    serde_json::from_slice(value).map_err(|_| "its manifest is no JSON".to_owned())?;
                let there =
                    Manifest::from_json(&manifest).ok_or_else(|| "its manifest is none".to_owned())?;
                let bucket = self.copier.bucket();
                let here = bucket.collections().manifest();
                for (scope, one) in there.collections() {
                    let other = here.of_id(one.id).filter(|(s, c)| (s.id, &c.name) != (scope.id, &one.name));
                    if let Some((_, other)) = other {
                        let (id, name, here) = (one.id, &one.name, &other.name);
                        let why = format!("collection {id:#x} is {name:?} there, and {here:?} here");
                        return Err(format!("{why}: the bucket is not the same one").into());
                    }
                }
                bucket.adopt_collections(&manifest).map_err(|error| error.to_string())?;
                let ids = there.collections().map(|(_, one)| one.id).collect();
                self.collections = (ids, there.uid);
                self.ready_ms = Some(cx.now.mono_ms());
                // From now on news are looked after.
                self.has_news = true;
                Phase::Ready
            }
            _ => return Err(format!("it answers {opcode:?}, which was not asked").into()),
        };
        Ok(())
    }

    // ---- streams --------------------------------------------------------------------------------------------------

    /// Asks for the stream of a vBucket, or closes it, as its role demands.
    fn look_at(&mut self, vb: u16, cx: &mut NodeContext) {
        let bucket = Arc::clone(self.copier.bucket());
        let wanted = bucket.copy_wanted(cx, VbId(vb), self.copier.peer(), self.copier.news());
        let present = self.streams.get(&vb).map(|copying| (copying.term, copying.takes_over));
        match (wanted, present) {
            (Some(wanted), Some(present)) if present == (wanted.term, wanted.takes_over) => {
                self.touched.insert(vb);
                return;
            }
            _ => self.close_stream(vb),
        }
        self.forget_retry(vb);
        // What is not promised on disk yet will be news.
        let Some(wanted) = wanted.filter(|wanted| wanted.is_promised) else { return };
        let position = bucket.copy_position(cx, VbId(vb));
        let takeover = if wanted.takes_over { stream_request::flags::TAKEOVER } else { 0 };
        let request = StreamRequest {
            flags: stream_request::flags::ACTIVE_ONLY | takeover,
            start: position.start,
            end: position.end,
            uuid: position.uuid,
            snapshot_start: position.snapshot.0,
            snapshot_end: position.snapshot.1,
            term: Some(wanted.term),
            ..StreamRequest::default()
        };
        self.opaques += 1;
        let (opaque, extras, value) = (self.opaques, request.extras(), request.value());
        let asked = Asked { vbucket: vb, opaque, extras: &extras, value: &value, key: &[] };
        self.ask(Opcode::DCP_STREAM_REQ, &asked);
        let (term, start, takes_over) = (wanted.term, position.start, wanted.takes_over);
        self.streams.insert(vb, Copying { term, opaque, start, is_begun: false, told: 0, takes_over });
    }

    fn take_stream_response(
        &mut self,
        opaque: u32,
        status: Status,
        value: &[u8],
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        // The answer to one that was closed meanwhile means nothing.
        let Some((&vb, copying)) = self.streams.iter_mut().find(|(_, copying)| copying.opaque == opaque)
        else {
            return Ok(());
        };
        let (bucket, peer) = (Arc::clone(self.copier.bucket()), Arc::clone(self.copier.peer()));
        let (term, start) = (copying.term, copying.start);
        match status {
            Status::SUCCESS => {
                let (entries, _) = value.as_chunks::<16>();
                let number =
                    |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
                let log: Vec<(u64, u64)> =
                    entries.iter().map(|entry| (number(&entry[..8]), number(&entry[8..]))).collect();
                match bucket.copy_begun(cx, VbId(vb), CopyOf { term, peer: &peer }, &log) {
                    Ok(()) => copying.is_begun = true,
                    Err(NotCopied::Broken(why)) => self.break_off(vb, why.to_owned(), cx),
                    // There is news.
                    Err(NotCopied::Role | NotCopied::Later) => self.close_stream(vb),
                }
                self.touched.insert(vb);
            }
            Status::ROLLBACK => {
                self.streams.remove(&vb);
                if start == 0 {
                    let why = "it is to roll back, and has nothing";
                    self.break_off(vb, why.to_owned(), cx);
                } else if bucket.copy_anew(cx, VbId(vb), CopyOf { term, peer: &peer }).is_ok() {
                    // Otherwise its role has changed, and there is news.
                    self.look_at(vb, cx);
                }
            }
            Status::ERANGE => {
                self.streams.remove(&vb);
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
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        let present = self.streams.get(&vb).filter(|it| it.opaque == request.header.opaque && it.is_begun);
        let Some(copying) = present else { return Ok(()) };
        let (term, takes_over) = (copying.term, copying.takes_over);
        let (bucket, peer) = (Arc::clone(self.copier.bucket()), Arc::clone(self.copier.peer()));
        let foreign = match message {
            Message::StreamEnd(_) => {
                self.streams.remove(&vb);
                self.retry(vb, cx);
                return Ok(());
            }
            Message::SetVBucketState(state) => {
                let goes_on = takes_over && take_over(&bucket, (vb, term, &peer), u32::from(*state), cx);
                if goes_on {
                    self.answer(request);
                } else {
                    self.close_stream(vb);
                    self.has_news = true;
                }
                return Ok(());
            }
            Message::OutOfOrder(_) => return Err("it sends what is in no order".to_owned().into()),
            Message::Noop => return Ok(()),
            _ => foreign(message, cx)?,
        };
        self.check_collection(&foreign)?;
        match bucket.copy(cx, VbId(vb), CopyOf { term, peer: &peer }, &foreign) {
            Ok(()) => {
                self.touched.insert(vb);
                self.note_use();
                if !self.refusals.is_empty() {
                    self.forget_retry(vb);
                    self.refusals.remove(&vb);
                }
                Ok(())
            }
            Err(NotCopied::Role) => {
                // There is news.
                self.close_stream(vb);
                self.has_news = true;
                Ok(())
            }
            Err(NotCopied::Later) => Err(Stop::Later),
            Err(NotCopied::Broken(why)) => Err(Stop::Broken(why.to_owned())),
        }
    }

    /// Keeps account of the collections that the other node has. A document of one of these that is not here would be
    /// lost: collections were dropped here that are still there.
    fn check_collection(&mut self, foreign: &Foreign<'_>) -> Result<(), Stop> {
        match foreign {
            Foreign::System { uid, change, .. } if *uid > self.collections.1 => {
                let (ids, at) = &mut self.collections;
                *at = *uid;
                match change {
                    ForeignChange::CreateCollection { id, .. } => drop(ids.insert(*id)),
                    ForeignChange::DropCollection { id, .. } => drop(ids.remove(id)),
                    ForeignChange::CreateScope { .. } | ForeignChange::DropScope { .. } => {}
                }
                Ok(())
            }
            Foreign::Version(version) => {
                let id = collection_id::split(version.stored_key).map_or(0, |(id, _)| id);
                if id == 0 || self.copier.bucket().has_collection(id) || !self.collections.0.contains(&id) {
                    return Ok(());
                }
                let why = "was dropped here, and is still there";
                Err(Stop::Broken(format!("collection {id:#x} {why}: see docs/replication.md")))
            }
            _ => Ok(()),
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

/// Returns what a message says.
fn foreign<'a>(message: &Message<'a>, cx: &NodeContext) -> Result<Foreign<'a>, Stop> {
    let text = |name: &'a [u8]| std::str::from_utf8(name).map_err(|_| "a name is no text".to_owned());
    Ok(match *message {
        Message::Marker(marker) => Foreign::Snapshot { start: marker.start, end: marker.end },
        Message::Mutation(mutation) => Foreign::Version(version(&mutation, VersionKind::Document, 0)),
        Message::Prepare(Prepare { mutation, is_deletion, level }) => {
            let kind = if is_deletion { VersionKind::PrepareDeletion } else { VersionKind::Prepare };
            Foreign::Version(version(&mutation, kind, level))
        }
        Message::Deletion(deletion) => deleted(&deletion, VersionKind::Deletion, cx),
        Message::Expiration(deletion) => deleted(&deletion, VersionKind::Expiration, cx),
        Message::Commit(end) => {
            Foreign::Commit { prepared: end.prepared, seqno: end.seqno, stored_key: end.key }
        }
        Message::Abort(end) => {
            Foreign::Abort { prepared: end.prepared, seqno: end.seqno, stored_key: end.key }
        }
        Message::SeqnoAdvanced(seqno) => Foreign::Advanced(seqno),
        Message::SystemEvent(event) => {
            let change = match event.event {
                Told::CreateScope { id, name } => ForeignChange::CreateScope { id, name: text(name)? },
                Told::CreateCollection { scope, id, max_ttl, name } => {
                    // 0: none, whatever the bucket's is.
                    let max_ttl_s = match max_ttl {
                        None => 0,
                        Some(0) => -1,
                        Some(seconds) => i32::try_from(seconds).unwrap_or(i32::MAX),
                    };
                    ForeignChange::CreateCollection { scope, id, name: text(name)?, max_ttl_s }
                }
                Told::DropScope { id } => ForeignChange::DropScope { id },
                Told::DropCollection { scope, id } => ForeignChange::DropCollection { scope, id },
            };
            Foreign::System { seqno: event.seqno, uid: event.manifest, change }
        }
        Message::OutOfOrder(_) | Message::SetVBucketState(_) | Message::StreamEnd(_) | Message::Noop => {
            return Err("a message is no change".to_owned().into());
        }
    })
}

fn version<'a>(mutation: &Mutation<'a>, kind: VersionKind, level: u8) -> Version<'a> {
    let Mutation { seqno, rev, cas, flags, expiry, datatype, key, value, .. } = *mutation;
    let value = VersionValue::Bytes(value);
    Version {
        kind,
        seqno,
        rev,
        cas,
        flags,
        expiry,
        datatype,
        level,
        committed: false,
        stored_key: key,
        value,
    }
}

fn deleted<'a>(deletion: &Deletion<'a>, kind: VersionKind, cx: &NodeContext) -> Foreign<'a> {
    let Deletion { seqno, rev, cas, deleted_s, datatype, key, value } = *deletion;
    let (value, expiry) = (VersionValue::Bytes(value), deleted_s.unwrap_or(cx.now.unix_s));
    let (flags, level, committed) = (0, 0, false);
    Foreign::Version(Version {
        kind,
        seqno,
        rev,
        cas,
        flags,
        expiry,
        datatype,
        level,
        committed,
        stored_key: key,
        value,
    })
}
