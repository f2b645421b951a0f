//! The operations on documents.

use kv::{
    Bucket, Compression, Durability, Entry, Expiry, Key, KvError, Meter, Mutation, NodeContext, Place, Store,
    StoreKind, Unavailable, Written,
};
use wire::binary::{Opcode, Request, Status};
use wire::couchbase::{Feature, FrameInfos};

use super::super::{Body, Output, binary};
use super::answer::Answer;
use super::incoming::{self, Compressed};

/// How long GET_LOCKED locks when the client does not say, or asks for longer than [`LOCK_MAX_S`].
const LOCK_DEFAULT_S: u32 = 15;
/// How long GET_LOCKED locks at most.
const LOCK_MAX_S: u32 = 30;

/// What a request is about.
pub(super) struct Target<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) key: Key<'a>,
    pub(super) place: Place,
    pub(super) value_limit: usize,
    /// How durable a change shall be; `None`: as it is.
    pub(super) durability: Option<Durability>,
}

/// What has become of a request.
pub(super) enum Executed {
    /// It has its answer, if it gets one.
    Answered,
    /// Its answer waits for a letter; a counter's new number goes with it.
    Waits(Option<u64>),
}

/// Executes an opcode whose key names a document; see [`super::execute`].
#[inline]
pub(super) fn execute(
    target: &Target<'_>,
    answer: &Answer,
    request: &Request<'_>,
    infos: &FrameInfos,
    body: Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<Executed, KvError> {
    match request.header.opcode {
        Opcode::GET | Opcode::GETQ | Opcode::GETK | Opcode::GETKQ => {
            get(target, answer, request, &body, cx, out)?;
        }
        Opcode::SET | Opcode::SETQ => {
            return store(target, answer, request, infos, StoreKind::Set, body, cx, out);
        }
        Opcode::ADD | Opcode::ADDQ => {
            return store(target, answer, request, infos, StoreKind::Add, body, cx, out);
        }
        Opcode::REPLACE | Opcode::REPLACEQ => {
            return store(target, answer, request, infos, StoreKind::Replace, body, cx, out);
        }
        Opcode::APPEND | Opcode::APPENDQ => {
            return extend(target, answer, request, StoreKind::Append, body, cx, out);
        }
        Opcode::PREPEND | Opcode::PREPENDQ => {
            return extend(target, answer, request, StoreKind::Prepend, body, cx, out);
        }
        Opcode::DELETE | Opcode::DELETEQ => return delete(target, answer, request, &body, cx, out),
        Opcode::INCREMENT | Opcode::INCREMENTQ | Opcode::DECREMENT | Opcode::DECREMENTQ => {
            return count(target, answer, request, &body, cx, out);
        }
        Opcode::TOUCH | Opcode::GAT | Opcode::GATQ => touch(target, answer, request, infos, &body, cx, out)?,
        Opcode::GET_LOCKED => lock(target, answer, request, &body, cx, out)?,
        Opcode::UNLOCK_KEY => unlock(target, answer, request, &body, cx, out)?,
        _ => answer.error(Status::NOT_SUPPORTED, "The operation is not supported", out),
    }
    Ok(Executed::Answered)
}

/// Answers a change that is done or refused, unless it waits.
#[inline]
fn conclude(
    answer: &Answer,
    result: Result<Written, KvError>,
    number: Option<u64>,
    out: &mut Output,
) -> Result<Executed, KvError> {
    match KvError::set_apart(result)? {
        Ok(Written::Done(mutated)) => match number {
            None => answer.mutated(mutated, &[], out),
            Some(number) => answer.mutated(mutated, &number.to_be_bytes(), out),
        },
        Ok(Written::Pending) => return Ok(Executed::Waits(number)),
        Err(error) => refuse(answer, error, out),
    }
    Ok(Executed::Answered)
}

#[inline]
fn mutate(target: &Target<'_>, mutation: Mutation<'_>, cx: &mut NodeContext) -> Result<Written, KvError> {
    match &target.durability {
        None => target.bucket.mutate(cx, target.key, target.place, mutation).map(Written::Done),
        Some(durability) => target.bucket.mutate_durably(cx, target.key, target.place, durability, mutation),
    }
}

fn is_empty(body: &Body<'_>) -> bool {
    matches!(body, Body::Inline([]))
}

#[inline]
fn get(
    target: &Target<'_>,
    answer: &Answer,
    request: &Request<'_>,
    body: &Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    if !request.extras.is_empty() || !is_empty(body) {
        answer.error(Status::EINVAL, "The request must not have extras or a value", out);
        return Ok(());
    }
    let echo = match request.header.opcode {
        Opcode::GETK | Opcode::GETKQ => request.key,
        _ => &[],
    };
    let found = target.bucket.read(cx, target.key, target.place, |document| match document {
        Some(document) => {
            answer.document(echo, &document, document.visible_cas(), out);
            true
        }
        None => false,
    })?;
    if !found {
        miss(answer, request, out);
    }
    Ok(())
}

fn miss(answer: &Answer, request: &Request<'_>, out: &mut Output) {
    if !request.header.opcode.is_quiet() {
        answer.status(Status::KEY_ENOENT, out);
    }
}

#[expect(clippy::too_many_arguments, reason = "a leaf on the hot path: everything it takes is at hand")]
#[inline]
fn store(
    target: &Target<'_>,
    answer: &Answer,
    request: &Request<'_>,
    infos: &FrameInfos,
    kind: StoreKind,
    body: Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<Executed, KvError> {
    let &[f0, f1, f2, f3, e0, e1, e2, e3] = request.extras else {
        answer.error(Status::EINVAL, "The extras must be flags and expiry, 8 bytes", out);
        return Ok(Executed::Answered);
    };
    let header = &request.header;
    if kind == StoreKind::Add && header.cas != 0 {
        answer.error(Status::EINVAL, "ADD must not have a CAS", out);
        return Ok(Executed::Answered);
    }
    let keeps = target.bucket.compression() != Compression::Off;
    let compressed = if keeps { Compressed::Kept } else { Compressed::Inflated };
    let mut room = Vec::new();
    let incoming = incoming::value(target, answer, request, body, compressed, &mut room, cx, out);
    let Some((value, datatype)) = incoming else { return Ok(Executed::Answered) };
    let mut expiry = Expiry::from_protocol(i64::from(u32::from_be_bytes([e0, e1, e2, e3])), cx.now.unix_s);
    if infos.preserve_ttl && (expiry == Expiry::At(0) || exists(target, cx)?) {
        expiry = Expiry::Keep;
    }
    let flags = u32::from_be_bytes([f0, f1, f2, f3]);
    let store = Store { flags, expiry, datatype, value, new_cas: 0 };
    conclude(answer, mutate(target, Mutation { kind, cas: header.cas, store }, cx), None, out)
}

/// Whether the document is there. By the time it is stored it may not be: then it has no expiry.
fn exists(target: &Target<'_>, cx: &mut NodeContext) -> Result<bool, Unavailable> {
    target.bucket.with_entry(cx, target.key, target.place, |entry| {
        entry.glance();
        entry.document().is_some()
    })
}

fn extend(
    target: &Target<'_>,
    answer: &Answer,
    request: &Request<'_>,
    kind: StoreKind,
    body: Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<Executed, KvError> {
    let header = &request.header;
    if !request.extras.is_empty() {
        answer.error(Status::EINVAL, "The request must not have extras", out);
        return Ok(Executed::Answered);
    }
    let mut room = Vec::new();
    let incoming = incoming::value(target, answer, request, body, Compressed::Inflated, &mut room, cx, out);
    let Some((value, datatype)) = incoming else { return Ok(Executed::Answered) };
    let limit = target.value_limit.saturating_sub(value.len());
    let is_too_long = target.bucket.with_entry(cx, target.key, target.place, |entry| {
        entry.glance();
        entry.document().is_some_and(|document| {
            (header.cas == 0 || header.cas == document.cas()) && document.value_len() > limit
        })
    })?;
    if is_too_long {
        answer.error(Status::E2BIG, "The value would become too long", out);
        return Ok(Executed::Answered);
    }
    let store = Store { flags: 0, expiry: Expiry::Keep, datatype, value, new_cas: 0 };
    conclude(answer, mutate(target, Mutation { kind, cas: header.cas, store }, cx), None, out)
}

fn delete(
    target: &Target<'_>,
    answer: &Answer,
    request: &Request<'_>,
    body: &Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<Executed, KvError> {
    if !request.extras.is_empty() || !is_empty(body) {
        answer.error(Status::EINVAL, "The request must not have extras or a value", out);
        return Ok(Executed::Answered);
    }
    let (bucket, key, place, cas) = (target.bucket, target.key, target.place, request.header.cas);
    let result = match &target.durability {
        None => bucket.remove(cx, key, place, cas).map(Written::Done),
        Some(durability) => bucket.remove_durably(cx, key, place, durability, cas),
    };
    conclude(answer, result, None, out)
}

fn count(
    target: &Target<'_>,
    answer: &Answer,
    request: &Request<'_>,
    body: &Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<Executed, KvError> {
    let arithmetic = binary::arithmetic(request, cx.now.unix_s).filter(|_| is_empty(body));
    let Some(arithmetic) = arithmetic else {
        answer.error(Status::EINVAL, "The extras must be delta, initial value and expiry, 20 bytes", out);
        return Ok(Executed::Answered);
    };
    let (bucket, key, place) = (target.bucket, target.key, target.place);
    let result = match &target.durability {
        None => bucket
            .arithmetic(cx, key, place, arithmetic)
            .map(|(number, mutated)| (number, Written::Done(mutated))),
        Some(durability) => bucket.arithmetic_durably(cx, key, place, durability, arithmetic),
    };
    match result {
        Ok((number, written)) => conclude(answer, Ok(written), Some(number), out),
        Err(error) => conclude(answer, Err(error), None, out),
    }
}

fn touch(
    target: &Target<'_>,
    answer: &Answer,
    request: &Request<'_>,
    infos: &FrameInfos,
    body: &Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    let expiry = binary::touch_expiry(request.extras, cx.now.unix_s).filter(|_| is_empty(body));
    let Some(expiry) = expiry else {
        answer.error(Status::EINVAL, "The extras must be the expiry, 4 bytes", out);
        return Ok(());
    };
    let expiry = if infos.preserve_ttl { Expiry::Keep } else { expiry };
    let Target { bucket, key, place, .. } = *target;
    let touched = |entry: &mut Entry<'_>| {
        let document = entry.document().ok_or(KvError::NotFound)?;
        if document.is_locked() {
            return Err(KvError::Locked);
        }
        let mutated = entry.touch(expiry)?;
        entry.record_access();
        Ok(mutated)
    };
    let result = if request.header.opcode == Opcode::TOUCH {
        bucket.with_entry(cx, key, place, touched)?.map(|mutated| answer.mutated(mutated, &[], out))
    } else {
        out.with_entry(answer.takes_compressed(), (bucket, key, place), cx, |entry, out| {
            let mutated = touched(entry)?;
            let document = entry.document().ok_or(KvError::NotFound)?;
            answer.document(&[], &document, mutated.cas, out);
            Ok(())
        })?
    };
    bucket.count(cx, Meter::CmdTouch, 1);
    match result {
        Ok(()) => bucket.count(cx, Meter::TouchHits, 1),
        Err(KvError::NotFound) => {
            bucket.count(cx, Meter::TouchMisses, 1);
            miss(answer, request, out);
        }
        Err(error) => refuse(answer, error, out),
    }
    Ok(())
}

fn lock(
    target: &Target<'_>,
    answer: &Answer,
    request: &Request<'_>,
    body: &Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    let asked_s = match *request.extras {
        [] => 0,
        [b0, b1, b2, b3] => u32::from_be_bytes([b0, b1, b2, b3]),
        _ => {
            answer.error(Status::EINVAL, "The extras must be the lock's time, 4 bytes, or nothing", out);
            return Ok(());
        }
    };
    if !is_empty(body) {
        answer.error(Status::EINVAL, "The request must not have a value", out);
        return Ok(());
    }
    let lock_s = if asked_s == 0 || asked_s > LOCK_MAX_S { LOCK_DEFAULT_S } else { asked_s };
    let until_unix_s = cx.now.unix_s.saturating_add(lock_s);
    let Target { bucket, key, place, .. } = *target;
    let result = out.with_entry(answer.takes_compressed(), (bucket, key, place), cx, |entry, out| {
        let mutated = entry.lock(until_unix_s)?;
        entry.record_access();
        let document = entry.document().ok_or(KvError::NotFound)?;
        answer.document(&[], &document, mutated.cas, out);
        Ok(())
    })?;
    match result {
        Ok(()) => bucket.count(cx, Meter::Locks, 1),
        Err(error) => refuse(answer, error, out),
    }
    Ok(())
}

fn unlock(
    target: &Target<'_>,
    answer: &Answer,
    request: &Request<'_>,
    body: &Body<'_>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Result<(), KvError> {
    let cas = request.header.cas;
    if cas == 0 || !request.extras.is_empty() || !is_empty(body) {
        answer.error(Status::EINVAL, "The request must have the lock's CAS, and no extras or value", out);
        return Ok(());
    }
    let result = target.bucket.with_entry(cx, target.key, target.place, |entry| {
        let document = entry.document().ok_or(KvError::NotFound)?;
        if !document.is_locked() {
            return Err(KvError::NotLocked);
        }
        if document.cas() != cas {
            return Err(KvError::Locked);
        }
        entry.unlock()
    })?;
    match result {
        Ok(()) => answer.success(out),
        Err(error) => refuse(answer, error, out),
    }
    Ok(())
}

/// The engine's errors in Couchbase's terms. They are answered to quiet requests, too.
#[cold]
pub(super) fn refuse(answer: &Answer, error: KvError, out: &mut Output) {
    let knows_locks = answer.features().has(Feature::XERROR);
    match error {
        KvError::NotFound => answer.status(Status::KEY_ENOENT, out),
        KvError::Exists => answer.status(Status::KEY_EEXISTS, out),
        KvError::NotStored => answer.status(Status::NOT_STORED, out),
        // COMPAT: clients without XERROR know these two as a temporary failure only.
        KvError::Locked if knows_locks => answer.status(Status::LOCKED, out),
        KvError::NotLocked if knows_locks => answer.status(Status::NOT_LOCKED, out),
        KvError::Locked | KvError::NotLocked => answer.status(Status::ETMPFAIL, out),
        KvError::TooBig => answer.error(Status::E2BIG, "The value is too long", out),
        KvError::DeltaBadValue => answer.status(Status::DELTA_BADVAL, out),
        KvError::CasAhead => answer.error(Status::EINVAL, "The CAS is too far ahead of the clock", out),
        KvError::NoMemory => {
            answer.error(Status::ETMPFAIL, "The bucket's memory budget does not allow it now", out);
        }
        KvError::NotResident => answer.error(Status::ETMPFAIL, "The value is not in memory", out),
        KvError::WarmingUp => answer.error(Status::ETMPFAIL, "The vBucket is warming up", out),
        KvError::NotActive => answer.status(Status::NOT_MY_VBUCKET, out),
        KvError::ReadFailed => answer.error(Status::EINTERNAL, "The value could not be read from disk", out),
        KvError::Damaged => answer.error(Status::EINTERNAL, "The vBucket's journal is damaged", out),
        KvError::NoSpace => answer.error(Status::ETMPFAIL, "The disk is full", out),
        KvError::SyncWriteInProgress => answer.status(Status::SYNC_WRITE_IN_PROGRESS, out),
        KvError::DurabilityImpossible => {
            answer.error(Status::DURABILITY_IMPOSSIBLE, "The vBucket's chains have too few nodes", out);
        }
        KvError::BucketGone => answer.error(Status::NO_BUCKET, "The bucket is gone", out),
    }
}
