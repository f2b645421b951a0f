//! The memcached binary protocol: what each opcode does. Answers are byte for byte those of memcached 1.6.
//!
//! Quiet opcodes omit the answer to a success (reads: to a miss); errors are always answered.
//!
//! COMPAT, deviations from memcached, because the frame's boundary is known and the connection can continue:
//! * after an invalid frame memcached answers `EINVAL` (or "Unknown command" where lengths contradict each other) and
//!   closes; here the answer is the same and the connection stays;
//! * after an unknown opcode with a key memcached skips the wrong number of bytes; here the frame is skipped;
//! * TOUCH and GAT with a value: memcached reads the value as the next request; here it is `EINVAL`.
//!
//! Frames on a Couchbase port are passed to [`super::couchbase`].

mod login;
mod statistics;

pub(super) use statistics::{answer as statistics, listed};

use kv::bucket::Arithmetic;
use kv::key::KEY_MAX;
use kv::prefixes::Access;
use kv::requests::Class;
use kv::watch::Attempt;
use kv::{
    Bucket, Document, Entry, Expiry, Key, KvError, Meter, Mutation, NodeContext, Place, Store, StoreKind,
};
use wire::binary::response::{done, hit};
use wire::binary::{Error, ErrorKind, Header, Magic, Opcode, Reply, Request, Status};

use super::counter::{self, Count, Counted};
use super::{Admission, At, Body, Output, Peer, Port, Refusal, couchbase, opcodes};

/// Bytes that memcached counts for an item besides key, value and flags: header 48, CAS 8, the key's NUL, and `\r\n`.
const ITEM_OVERHEAD: usize = 48 + 8 + 1 + 2;
/// Bytes that memcached counts for flags other than 0.
const FLAGS_LEN: usize = 4;
/// memcached stores values of about this length and above in several chunks.
const CHUNKED_VALUE: usize = 512 << 10;

const GAT_EXTRAS: usize = 4;
const COUNTER_EXTRAS: usize = 20;
/// Expiry of a counter request that must not create the counter.
const COUNTER_MUST_EXIST: u32 = 0xffff_ffff;

/// The document key of a request, for placement before execution; `None` if it has none or an invalid one.
#[inline]
pub fn key<'a>(peer: &Peer, request: &Request<'a>) -> Option<Key<'a>> {
    if peer.port == Port::Couchbase {
        return couchbase::key(peer, request);
    }
    let has_key = opcodes::has_memcached_key(request.header.opcode);
    (has_key && is_key(request.key)).then_some(Key::plain(request.key))
}

/// What a request does, for the record of requests.
pub(super) fn class(peer: &Peer, request: &Request<'_>) -> Class {
    match key(peer, request) {
        Some(_) => opcodes::class(request.header.opcode),
        None => Class::Other,
    }
}

#[inline]
fn is_key(key: &[u8]) -> bool {
    !key.is_empty() && key.len() <= KEY_MAX
}

/// Decides what to do with a body before any of it is received.
#[inline]
pub fn admit<'a>(peer: &Peer, request: &Request<'a>, body: usize) -> Admission<'a> {
    if peer.port == Port::Couchbase {
        return couchbase::admit(peer, request, body);
    }
    if peer.must_log_in() {
        return login::admit(request);
    }
    let Some(store) = StoreRequest::of(request) else { return Admission::Inline };
    let flags_len = if store.flags == 0 { 0 } else { FLAGS_LEN };
    if ITEM_OVERHEAD + request.key.len() + flags_len + body > peer.value_limit {
        return Admission::Refuse(Refusal::TooBig);
    }
    Admission::Store(Key::plain(request.key))
}

/// A well-formed store request.
struct StoreRequest {
    kind: StoreKind,
    flags: u32,
    exptime: u32,
}

impl StoreRequest {
    #[inline]
    fn of(request: &Request<'_>) -> Option<Self> {
        if !is_key(request.key) || request.header.magic != Magic::REQUEST {
            return None;
        }
        let kind = match request.header.opcode {
            Opcode::SET | Opcode::SETQ => StoreKind::Set,
            Opcode::ADD | Opcode::ADDQ => StoreKind::Add,
            Opcode::REPLACE | Opcode::REPLACEQ => StoreKind::Replace,
            Opcode::APPEND | Opcode::APPENDQ => StoreKind::Append,
            Opcode::PREPEND | Opcode::PREPENDQ => StoreKind::Prepend,
            _ => return None,
        };
        match (kind, request.extras) {
            (StoreKind::Append | StoreKind::Prepend, []) => Some(Self { kind, flags: 0, exptime: 0 }),
            (StoreKind::Append | StoreKind::Prepend, _) => None,
            (_, &[f0, f1, f2, f3, e0, e1, e2, e3]) => Some(Self {
                kind,
                flags: u32::from_be_bytes([f0, f1, f2, f3]),
                exptime: u32::from_be_bytes([e0, e1, e2, e3]),
            }),
            _ => None,
        }
    }
}

/// Executes one request. An error concerns its document: nothing was changed, and the partial answer must be taken
/// back.
#[inline]
pub fn execute(
    peer: &mut Peer,
    request: &Request<'_>,
    at: At,
    body: Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    if peer.port == Port::Couchbase {
        return couchbase::execute(peer, request, at, body, cx, out);
    }
    if peer.close {
        return Ok(());
    }
    if peer.must_log_in() && !opcodes::is_allowed_before_login(request.header.opcode) {
        peer.close = true;
        return answered_error(&request.header, Status::AUTH_ERROR, out);
    }
    if request.header.magic != Magic::REQUEST || request.key.len() > KEY_MAX {
        return answered_error(&request.header, Status::EINVAL, out);
    }
    let Some(bucket) = peer.bucket.as_deref() else {
        return answered_error(&request.header, Status::NO_BUCKET, out);
    };
    if !opcodes::has_memcached_key(request.header.opcode) {
        if !cx.may_take_long && opcodes::takes_long(request.header.opcode) {
            return Err(KvError::TakesLong);
        }
        execute_other(peer, request, &body, cx, out);
        return Ok(());
    }
    let key = Key::plain(request.key);
    let place = at.unwrap_or_else(|| bucket.locate(key));
    let operation = Operation { bucket, request, key, place, has_value: !is_empty(&body) };
    match request.header.opcode {
        Opcode::GET | Opcode::GETQ | Opcode::GETK | Opcode::GETKQ => operation.get(cx, out),
        Opcode::DELETE | Opcode::DELETEQ => operation.delete(cx, out),
        Opcode::INCREMENT | Opcode::INCREMENTQ | Opcode::DECREMENT | Opcode::DECREMENTQ => {
            operation.count(cx, out)
        }
        Opcode::TOUCH | Opcode::GAT | Opcode::GATQ | Opcode::GATK | Opcode::GATKQ => operation.touch(cx, out),
        Opcode::SET
        | Opcode::SETQ
        | Opcode::ADD
        | Opcode::ADDQ
        | Opcode::REPLACE
        | Opcode::REPLACEQ
        | Opcode::APPEND
        | Opcode::APPENDQ
        | Opcode::PREPEND
        | Opcode::PREPENDQ => operation.store(peer.value_limit, body, cx, out),
        _ => answered_error(&request.header, Status::UNKNOWN_COMMAND, out),
    }
}

/// Executes requests that do not concern a single key.
#[cold]
fn execute_other(
    peer: &mut Peer,
    request: &Request<'_>,
    body: &Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) {
    let header = &request.header;
    let is_bare = header.body_len == 0;
    match header.opcode {
        Opcode::NOOP if is_bare => out.bytes(&done(header, 0)),
        Opcode::VERSION if is_bare => {
            let version = &cx.node.settings().version;
            out.bytes(Reply::to(header, Status::SUCCESS).head(&[], 0, version.len()).as_bytes());
            out.bytes(version.as_bytes());
        }
        Opcode::QUIT | Opcode::QUITQ if is_bare => {
            if header.opcode == Opcode::QUIT {
                out.bytes(&done(header, 0));
            }
            peer.quit();
        }
        Opcode::FLUSH | Opcode::FLUSHQ => flush(peer, request, body, cx, out),
        Opcode::STAT if request.extras.is_empty() && is_empty(body) => {
            let known =
                peer.bucket.as_deref().is_some_and(|bucket| statistics(bucket, peer, request, cx, out));
            if !known {
                answer_error(header, Status::KEY_ENOENT, out);
            }
        }
        Opcode::SASL_LIST_MECHS | Opcode::SASL_AUTH | Opcode::SASL_STEP if peer.login_required => {
            login::execute(peer, request, body, cx, out);
        }
        Opcode::NOOP | Opcode::VERSION | Opcode::QUIT | Opcode::QUITQ | Opcode::STAT => {
            answer_error(header, Status::EINVAL, out);
        }
        _ => answer_error(header, Status::UNKNOWN_COMMAND, out),
    }
}

fn is_empty(body: &Body<'_>) -> bool {
    matches!(body, Body::Inline([]))
}

/// Answers a retrieval with a document.
#[inline]
fn answer_hit(header: &Header, key: &[u8], document: &Document<'_>, out: &mut Output) {
    let value_len = document.value_len();
    out.bytes(&hit(header, 0, document.flags(), document.visible_cas(), key.len(), value_len));
    if !key.is_empty() {
        out.bytes(key);
    }
    out.value(document);
}

/// The key to echo, if the opcode asks for it.
#[inline]
fn echoed<'a>(request: &Request<'a>) -> &'a [u8] {
    match request.header.opcode {
        Opcode::GETK | Opcode::GETKQ | Opcode::GATK | Opcode::GATKQ => request.key,
        _ => &[],
    }
}

/// A request whose key names a document.
struct Operation<'a> {
    bucket: &'a Bucket,
    request: &'a Request<'a>,
    key: Key<'a>,
    place: Place,
    /// Whether a value came with it.
    has_value: bool,
}

impl Operation<'_> {
    #[inline]
    fn get(&self, cx: &mut NodeContext, out: &mut Output) -> Result<(), KvError> {
        let Self { bucket, request, key, place, .. } = *self;
        let header = &request.header;
        if request.key.is_empty() || !request.extras.is_empty() || self.has_value {
            return answered_error(header, Status::EINVAL, out);
        }
        let echo = echoed(request);
        let found = bucket.read(cx, key, place, |document| match document {
            Some(document) => {
                answer_hit(header, echo, &document, out);
                true
            }
            None => false,
        })?;
        bucket.prefixes.note(key.bytes, Access::Get { hit: found });
        if !found {
            answer_miss(header, echo, out);
        }
        Ok(())
    }

    #[inline]
    fn store(
        &self,
        value_limit: usize,
        body: Body<'_>,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Result<(), KvError> {
        let Self { bucket, request, key, place, .. } = *self;
        let header = &request.header;
        let Some(StoreRequest { kind, flags, exptime }) = StoreRequest::of(request) else {
            return answered_error(header, Status::EINVAL, out);
        };
        let value = body.into_value();
        let is_extension = matches!(kind, StoreKind::Append | StoreKind::Prepend);
        if is_extension {
            let limit = value_limit.saturating_sub(ITEM_OVERHEAD + key.bytes.len() + value.len());
            let is_too_long = bucket.with_entry(cx, key, place, |entry| {
                entry.glance();
                entry.document().is_some_and(|document| {
                    let flags_len = if document.flags() == 0 { 0 } else { FLAGS_LEN };
                    (header.cas == 0 || header.cas == document.cas())
                        && flags_len + document.value_len() > limit
                })
            })?;
            if is_too_long {
                return answered_error(header, Status::NOT_STORED, out);
            }
        }
        // With a CAS, ADD and REPLACE are plain compare-and-set, as in memcached.
        let kind = if header.cas != 0 && !is_extension { StoreKind::Set } else { kind };
        let expiry = Expiry::from_protocol(i64::from(exptime), cx.now.unix_s);
        let store = Store { flags, expiry, datatype: 0, value, new_cas: 0 };
        bucket.prefixes.note(key.bytes, Access::Set);
        match KvError::set_apart(bucket.mutate(cx, key, place, Mutation { kind, cas: header.cas, store }))? {
            Ok(mutated) => {
                if !header.opcode.is_quiet() {
                    out.bytes(&done(header, mutated.cas));
                }
            }
            Err(error) => {
                let is_unconditional = kind == StoreKind::Set && header.cas == 0;
                if matches!(error, KvError::NoMemory | KvError::TooBig) && is_unconditional {
                    bucket.drop_replaced(cx, key, place);
                }
                answer_error(header, status_of(error), out);
            }
        }
        Ok(())
    }

    fn delete(&self, cx: &mut NodeContext, out: &mut Output) -> Result<(), KvError> {
        let Self { bucket, request, key, place, .. } = *self;
        let header = &request.header;
        if request.key.is_empty() || !request.extras.is_empty() || self.has_value {
            return answered_error(header, Status::EINVAL, out);
        }
        bucket.prefixes.note(key.bytes, Access::Delete);
        match KvError::set_apart(bucket.remove(cx, key, place, header.cas))? {
            Ok(_) if header.opcode.is_quiet() => {}
            Ok(_) => out.bytes(&done(header, 0)),
            Err(error) => answer_error(header, status_of(error), out),
        }
        Ok(())
    }

    fn count(&self, cx: &mut NodeContext, out: &mut Output) -> Result<(), KvError> {
        let Self { bucket, request, key, place, .. } = *self;
        let header = &request.header;
        let how = arithmetic(request, cx.now.unix_s).filter(|_| !request.key.is_empty() && !self.has_value);
        let Some(how) = how else { return answered_error(header, Status::EINVAL, out) };
        let mut existed = false;
        let mut attempt = Attempt::to_count(bucket, key, how.initial.unwrap_or(0), how.expiry);
        let counted = match bucket.admit(cx, key.bytes.len() + counter::NUMBER_MAX) {
            Err(error) => Err(error),
            Ok(()) => bucket.with_entry(cx, key, place, |entry| {
                let document = entry.document();
                existed = document.is_some();
                // COMPAT: memcached checks the CAS last if it holds the item in chunks.
                if document.is_some_and(|document| document.value_len() > CHUNKED_VALUE) {
                    return Err(KvError::DeltaBadValue);
                }
                let Some(initial) = how.initial.filter(|_| !existed) else {
                    let Arithmetic { delta, decrement, cas, .. } = how;
                    return counter::count(entry, Count { delta, decrement, cas, new_cas: 0 });
                };
                let created = counter::create(entry, initial, how.expiry, 0)?;
                if let Some(attempt) = &mut attempt {
                    attempt.note(entry);
                }
                Ok(created)
            })?,
        };
        if let Some(attempt) = attempt.filter(|_| counted.is_ok() && !existed) {
            attempt.report(bucket, cx, key, Ok(()));
        }
        counter::note(bucket, cx, how.decrement, counted, !existed);
        match counted {
            Ok(_) if header.opcode.is_quiet() => {}
            Ok(Counted { number, cas, .. }) => {
                let reply = Reply { cas, ..Reply::to(header, Status::SUCCESS) };
                out.bytes(reply.head(&[], 0, size_of::<u64>()).as_bytes());
                out.bytes(&number.to_be_bytes());
            }
            Err(error) => answer_error(header, status_of(error), out),
        }
        Ok(())
    }

    fn touch(&self, cx: &mut NodeContext, out: &mut Output) -> Result<(), KvError> {
        let Self { bucket, request, key, place, .. } = *self;
        let header = &request.header;
        let expiry = touch_expiry(request.extras, cx.now.unix_s)
            .filter(|_| !request.key.is_empty() && !self.has_value);
        let Some(expiry) = expiry else { return answered_error(header, Status::EINVAL, out) };
        let echo = echoed(request);
        let mut size = 0;
        let mut touched = |entry: &mut Entry<'_>| -> Result<(), KvError> {
            size = entry.item_size();
            entry.set_expiry(expiry)?;
            entry.record_access();
            Ok(())
        };
        let result = if header.opcode == Opcode::TOUCH {
            bucket.with_entry(cx, key, place, |entry| {
                touched(entry)?;
                let document = entry.document().ok_or(KvError::NotFound)?;
                out.bytes(&hit(header, 0, document.flags(), document.visible_cas(), 0, 0));
                Ok(())
            })?
        } else {
            out.with_entry(false, (bucket, key, place), cx, |entry, out| {
                touched(entry)?;
                let document = entry.document().ok_or(KvError::NotFound)?;
                answer_hit(header, echo, &document, out);
                Ok(())
            })?
        };
        match result {
            Ok(()) => bucket.count_touch_of(cx, Some(size)),
            Err(KvError::NotFound) => {
                bucket.count_touch_of(cx, None);
                answer_miss(header, echo, out);
            }
            Err(error) => {
                bucket.count(cx, Meter::CmdTouch, 1);
                answer_error(header, status_of(error), out);
            }
        }
        Ok(())
    }
}

/// Answers a miss: with the key if it is echoed, else with a text. Quiet opcodes get no answer.
fn answer_miss(header: &Header, echo: &[u8], out: &mut Output) {
    if header.opcode.is_quiet() {
        return;
    }
    if echo.is_empty() {
        return answer_error(header, Status::KEY_ENOENT, out);
    }
    out.bytes(Reply::to(header, Status::KEY_ENOENT).head(&[], echo.len(), 0).as_bytes());
    out.bytes(echo);
}

/// The arguments of a counter operation.
fn counter_arguments(extras: &[u8]) -> Option<(u64, u64, u32)> {
    if extras.len() != COUNTER_EXTRAS {
        return None;
    }
    let (delta, rest) = extras.split_first_chunk()?;
    let (initial, rest) = rest.split_first_chunk()?;
    let (exptime, _) = rest.split_first_chunk()?;
    Some((u64::from_be_bytes(*delta), u64::from_be_bytes(*initial), u32::from_be_bytes(*exptime)))
}

/// The request as a counter operation of the engine.
pub(super) fn arithmetic(request: &Request<'_>, now_unix_s: u32) -> Option<Arithmetic> {
    let (delta, initial, exptime) = counter_arguments(request.extras)?;
    Some(Arithmetic {
        delta,
        decrement: matches!(request.header.opcode, Opcode::DECREMENT | Opcode::DECREMENTQ),
        initial: (exptime != COUNTER_MUST_EXIST).then_some(initial),
        expiry: Expiry::from_protocol(i64::from(exptime), now_unix_s),
        cas: request.header.cas,
        new_cas: 0,
    })
}

/// The expiry of TOUCH and GAT.
pub(super) fn touch_expiry(extras: &[u8], now_unix_s: u32) -> Option<Expiry> {
    let exptime: [u8; GAT_EXTRAS] = extras.try_into().ok()?;
    Some(Expiry::from_protocol(i64::from(u32::from_be_bytes(exptime)), now_unix_s))
}

fn flush(peer: &Peer, request: &Request<'_>, body: &Body<'_>, cx: &mut NodeContext, out: &mut Output) {
    let header = &request.header;
    let at_unix_s = match *request.extras {
        [] => 0,
        [b0, b1, b2, b3] => {
            let exptime = u32::from_be_bytes([b0, b1, b2, b3]);
            match Expiry::from_protocol(i64::from(exptime), cx.now.unix_s) {
                Expiry::At(at) if at > cx.now.unix_s => at,
                _ => 0,
            }
        }
        _ => return answer_error(header, Status::EINVAL, out),
    };
    if !request.key.is_empty() || !is_empty(body) {
        return answer_error(header, Status::EINVAL, out);
    }
    if !peer.rules.flush_all {
        return answer_error(header, Status::AUTH_ERROR, out);
    }
    if let Some(bucket) = peer.bucket.as_deref()
        && let Err(error) = bucket.flush(cx, at_unix_s)
    {
        return answer_error(header, status_of(error), out);
    }
    if header.opcode == Opcode::FLUSH {
        out.bytes(&done(header, 0));
    }
}

/// Answers a request whose body is refused.
pub fn refuse(
    peer: &mut Peer,
    request: &Request<'_>,
    refusal: Refusal,
    cx: &mut NodeContext,
    out: &mut Output,
) {
    if peer.port == Port::Couchbase {
        return couchbase::refuse(peer, request, refusal, cx, out);
    }
    let header = &request.header;
    if peer.must_log_in() {
        answer_error(header, Status::AUTH_ERROR, out);
        peer.close = true;
        return;
    }
    let Some(store) = StoreRequest::of(request) else {
        let is_known = key(peer, request).is_some() || header.opcode.0 <= Opcode::PREPENDQ.0;
        return answer_error(header, if is_known { Status::EINVAL } else { Status::UNKNOWN_COMMAND }, out);
    };
    let (status, meter) = match refusal {
        Refusal::TooBig | Refusal::BadTrailer => (Status::E2BIG, Meter::StoreTooLarge),
        Refusal::NoMemory | Refusal::NotAllowed => (Status::ENOMEM, Meter::StoreNoMemory),
    };
    if let Some(bucket) = peer.bucket.as_deref() {
        bucket.count(cx, meter, 1);
        let key = Key::plain(request.key);
        let place = bucket.locate(key);
        let expiry = Expiry::from_protocol(i64::from(store.exptime), cx.now.unix_s);
        if let Some(attempt) = Attempt::new(bucket, store.kind.name(header.cas), key, 0, expiry) {
            let why = if status == Status::E2BIG { KvError::TooBig } else { KvError::NoMemory };
            attempt.report(bucket, cx, key, Err(why));
        }
        if store.kind == StoreKind::Set && header.cas == 0 {
            bucket.drop_replaced(cx, key, place);
        }
    }
    answer_error(header, status, out);
}

/// Answers a request that could not be executed.
pub(super) fn fail(peer: &Peer, request: &Request<'_>, error: KvError, cx: &NodeContext, out: &mut Output) {
    if peer.port == Port::Couchbase {
        return couchbase::fail(peer, request, error, cx, out);
    }
    answer_error(&request.header, status_of(error), out);
}

/// Answers a frame that cannot be executed.
pub fn error(peer: &mut Peer, error: &Error, cx: &mut NodeContext, out: &mut Output) {
    if peer.port == Port::Couchbase {
        return couchbase::error(peer, error, cx, out);
    }
    if peer.close {
        return;
    }
    match error.kind {
        ErrorKind::Magic => peer.close = true,
        ErrorKind::Lengths => answer_error(&error.header, Status::UNKNOWN_COMMAND, out),
        ErrorKind::KeyTooLong => answer_error(&error.header, Status::EINVAL, out),
        ErrorKind::FrameTooBig => answer_error(&error.header, Status::E2BIG, out),
    }
}

/// An error with memcached's text as its body.
#[cold]
pub(super) fn answer_error(header: &Header, status: Status, out: &mut Output) {
    let text = status.memcached_text();
    out.bytes(Reply::to(header, status).head(&[], 0, text.len()).as_bytes());
    out.bytes(text.as_bytes());
}

/// As [`answer_error`], as the last expression of an executor.
#[cold]
#[expect(clippy::unnecessary_wraps, reason = "the result type of an executor")]
fn answered_error(header: &Header, status: Status, out: &mut Output) -> Result<(), KvError> {
    answer_error(header, status, out);
    Ok(())
}

/// Maps the engine's errors to memcached's statuses.
fn status_of(error: KvError) -> Status {
    match error {
        KvError::NotFound => Status::KEY_ENOENT,
        // memcached has no document locks: to its clients a locked document is one with a different CAS.
        KvError::Exists | KvError::Locked => Status::KEY_EEXISTS,
        KvError::NotStored | KvError::NotLocked => Status::NOT_STORED,
        KvError::TooBig => Status::E2BIG,
        KvError::DeltaBadValue => Status::DELTA_BADVAL,
        KvError::CasAhead => Status::EINVAL,
        KvError::NoMemory => Status::ENOMEM,
        KvError::NotResident
        | KvError::TakesLong
        | KvError::WarmingUp
        | KvError::NotActive
        | KvError::NoSpace => Status::ETMPFAIL,
        KvError::Damaged | KvError::ReadFailed => Status::EINTERNAL,
        KvError::SyncWriteInProgress => Status::SYNC_WRITE_IN_PROGRESS,
        KvError::ReCommit => Status::SYNC_WRITE_RE_COMMIT_IN_PROGRESS,
        KvError::DurabilityImpossible => Status::DURABILITY_IMPOSSIBLE,
        KvError::BucketGone => Status::NO_BUCKET,
        // Memcached ports have the default collection only.
        KvError::NoCollection => Status::UNKNOWN_COLLECTION,
    }
}
