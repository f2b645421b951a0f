//! The operations on documents.

use kv::users::roles::Rights;
use kv::{
    Bucket, Compression, Durability, Entry, Expiry, Key, KvError, Meter, Mutation, NodeContext, Place, Store,
    StoreKind, Unavailable, Written,
};
use wire::binary::{Opcode, Request, Status};
use wire::couchbase::{Feature, FrameInfos};

use super::super::access::Access;
use super::super::{Body, Output, binary, opcodes};
use super::answer::Answer;
use super::incoming::{self, Compressed};
use super::{json, subdocument};

/// Lock time of GET_LOCKED if the client gives none, or more than [`LOCK_MAX_S`].
const LOCK_DEFAULT_S: u32 = 15;
/// Maximum lock time of GET_LOCKED.
const LOCK_MAX_S: u32 = 30;

/// A request whose key names a document that may be on this node.
pub(super) struct Operation<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) key: Key<'a>,
    pub(super) place: Place,
    pub(super) value_limit: usize,
    /// The durability that the change must reach; `None`: no requirement.
    pub(super) durability: Option<Durability>,
    pub(super) answer: &'a Answer,
    pub(super) request: &'a Request<'a>,
    pub(super) infos: &'a FrameInfos,
    /// Whether a value came with it.
    pub(super) has_value: bool,
    /// What the user may do.
    pub(super) access: &'a Access,
}

/// The result of executing a request.
pub(super) enum Executed {
    /// It has been answered, if it gets an answer.
    Answered,
    /// Its answer waits for a letter.
    Waits(Waiting),
}

/// What the answer to a change will say, once it is durable.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) status: Status,
    pub(super) value: Box<[u8]>,
}

impl Operation<'_> {
    /// Returns true if the user has these rights on the document's collection.
    pub(super) fn may(&self, rights: Rights) -> bool {
        self.access.allows(rights, self.key.collection)
    }

    /// Executes an opcode whose key names a document; see [`super::execute`].
    #[inline]
    pub(super) fn execute(
        &self,
        body: Body<'_>,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Result<Executed, KvError> {
        match self.request.header.opcode {
            Opcode::GET | Opcode::GETQ | Opcode::GETK | Opcode::GETKQ | Opcode::GET_REPLICA => {
                self.get(cx, out)
            }
            Opcode::GET_EX | Opcode::GET_EX_REPLICA => self.get_whole(cx, out),
            Opcode::SET | Opcode::SETQ => self.store(StoreKind::Set, body, cx, out),
            Opcode::ADD | Opcode::ADDQ => self.store(StoreKind::Add, body, cx, out),
            Opcode::REPLACE | Opcode::REPLACEQ => self.store(StoreKind::Replace, body, cx, out),
            Opcode::APPEND | Opcode::APPENDQ => self.extend(StoreKind::Append, body, cx, out),
            Opcode::PREPEND | Opcode::PREPENDQ => self.extend(StoreKind::Prepend, body, cx, out),
            Opcode::DELETE | Opcode::DELETEQ => self.delete(cx, out),
            Opcode::INCREMENT | Opcode::INCREMENTQ | Opcode::DECREMENT | Opcode::DECREMENTQ => {
                self.count(cx, out)
            }
            Opcode::TOUCH | Opcode::GAT | Opcode::GATQ => self.touch(cx, out),
            Opcode::GET_LOCKED => self.lock(cx, out),
            Opcode::UNLOCK_KEY => self.unlock(cx, out),
            opcode if opcodes::is_subdocument(opcode) => subdocument::execute(self, body, cx, out),
            _ => self.refuse(Status::NOT_SUPPORTED, "The operation is not supported", out),
        }
    }

    /// Answers that the request is malformed.
    #[cold]
    fn refuse(&self, status: Status, context: &str, out: &mut Output) -> Result<Executed, KvError> {
        self.answer.error(status, context, out);
        Ok(Executed::Answered)
    }

    /// Answers a completed or refused change, unless the answer waits.
    #[inline]
    fn conclude(
        &self,
        result: Result<Written, KvError>,
        number: Option<u64>,
        out: &mut Output,
    ) -> Result<Executed, KvError> {
        match KvError::set_apart(result)? {
            Ok(Written::Done(mutated)) => match number {
                None => self.answer.mutated(mutated, &[], out),
                Some(number) => self.answer.mutated(mutated, &number.to_be_bytes(), out),
            },
            Ok(Written::Pending) => {
                let value = number.map_or_else(Box::default, |number| number.to_be_bytes().into());
                return Ok(Executed::Waits(Waiting { status: Status::SUCCESS, value }));
            }
            Err(error) => refuse(self.answer, error, out),
        }
        Ok(Executed::Answered)
    }

    /// As [`Operation::conclude`], with what the answer is to say.
    pub(super) fn conclude_as(
        &self,
        result: Result<Written, KvError>,
        waiting: Waiting,
        out: &mut Output,
    ) -> Result<Executed, KvError> {
        match KvError::set_apart(result)? {
            Ok(Written::Done(mutated)) => {
                self.answer.mutated_as(waiting.status, mutated, &waiting.value, out);
            }
            Ok(Written::Pending) => return Ok(Executed::Waits(waiting)),
            Err(error) => refuse(self.answer, error, out),
        }
        Ok(Executed::Answered)
    }

    /// Counts a lookup.
    pub(super) fn count_retrieval(&self, cx: &NodeContext, is_hit: bool) {
        self.bucket.count(cx, if is_hit { Meter::GetHits } else { Meter::GetMisses }, 1);
    }

    #[inline]
    fn mutate(&self, mutation: Mutation<'_>, cx: &mut NodeContext) -> Result<Written, KvError> {
        match &self.durability {
            None => self.bucket.mutate(cx, self.key, self.place, mutation).map(Written::Done),
            Some(durability) => self.bucket.mutate_durably(cx, self.key, self.place, durability, mutation),
        }
    }

    #[inline]
    fn get(&self, cx: &mut NodeContext, out: &mut Output) -> Result<Executed, KvError> {
        if !self.request.extras.is_empty() || self.has_value {
            return self.refuse(Status::EINVAL, "The request must not have extras or a value", out);
        }
        let echo = match self.request.header.opcode {
            Opcode::GETK | Opcode::GETKQ => self.request.key,
            _ => &[],
        };
        let found = self.bucket.read(cx, self.key, self.place, |document| match document {
            Some(document) => {
                self.answer.document(echo, &document, document.visible_cas(), out);
                true
            }
            None => false,
        })?;
        if !found {
            self.miss(out);
        }
        Ok(Executed::Answered)
    }

    /// GET_EX: the value begins with the extended attributes, if there are any.
    fn get_whole(&self, cx: &mut NodeContext, out: &mut Output) -> Result<Executed, KvError> {
        if !self.request.extras.is_empty() || self.has_value {
            return self.refuse(Status::EINVAL, "The request must not have extras or a value", out);
        }
        let found = self.bucket.read(cx, self.key, self.place, |document| match document {
            Some(document) => {
                self.answer.whole_document(&document, out);
                true
            }
            None => false,
        })?;
        if !found {
            self.miss(out);
        }
        Ok(Executed::Answered)
    }

    fn miss(&self, out: &mut Output) {
        if !self.request.header.opcode.is_quiet() {
            self.answer.status(Status::KEY_ENOENT, out);
        }
    }

    #[inline]
    fn store(
        &self,
        kind: StoreKind,
        body: Body<'_>,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Result<Executed, KvError> {
        let &[f0, f1, f2, f3, e0, e1, e2, e3] = self.request.extras else {
            return self.refuse(Status::EINVAL, "The extras must be flags and expiry, 8 bytes", out);
        };
        let header = &self.request.header;
        if kind == StoreKind::Add && header.cas != 0 {
            return self.refuse(Status::EINVAL, "ADD must not have a CAS", out);
        }
        let keeps = self.bucket.compression() != Compression::Off;
        let compressed = if keeps { Compressed::Kept } else { Compressed::Inflated };
        let mut room = Vec::new();
        let incoming = incoming::value(self, body, compressed, &mut room, cx, out);
        let Some((value, datatype)) = incoming else { return Ok(Executed::Answered) };
        let mut expiry = Expiry::from_protocol(u32::from_be_bytes([e0, e1, e2, e3]), cx.now.unix_s);
        if self.infos.preserve_ttl && (expiry == Expiry::At(0) || self.exists(cx)?) {
            expiry = Expiry::Keep;
        }
        let flags = u32::from_be_bytes([f0, f1, f2, f3]);
        let datatype = json::of_stored(datatype, &value);
        let store = Store { flags, expiry, datatype, value, new_cas: 0 };
        self.conclude(self.mutate(Mutation { kind, cas: header.cas, store }, cx), None, out)
    }

    /// Returns true if the document exists. It may be gone by the time of the store; the new document then has no
    /// expiry.
    fn exists(&self, cx: &mut NodeContext) -> Result<bool, Unavailable> {
        self.bucket.with_entry(cx, self.key, self.place, |entry| {
            entry.glance();
            entry.document().is_some()
        })
    }

    fn extend(
        &self,
        kind: StoreKind,
        body: Body<'_>,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Result<Executed, KvError> {
        let header = &self.request.header;
        if !self.request.extras.is_empty() {
            return self.refuse(Status::EINVAL, "The request must not have extras", out);
        }
        let mut room = Vec::new();
        let incoming = incoming::value(self, body, Compressed::Inflated, &mut room, cx, out);
        let Some((value, datatype)) = incoming else { return Ok(Executed::Answered) };
        let limit = self.value_limit.saturating_sub(value.len());
        let is_too_long = self.bucket.with_entry(cx, self.key, self.place, |entry| {
            entry.glance();
            entry.document().is_some_and(|document| {
                (header.cas == 0 || header.cas == document.cas()) && document.value_len() > limit
            })
        })?;
        if is_too_long {
            return self.refuse(Status::E2BIG, "The value would become too long", out);
        }
        let store = Store { flags: 0, expiry: Expiry::Keep, datatype, value, new_cas: 0 };
        self.conclude(self.mutate(Mutation { kind, cas: header.cas, store }, cx), None, out)
    }

    fn delete(&self, cx: &mut NodeContext, out: &mut Output) -> Result<Executed, KvError> {
        if !self.request.extras.is_empty() || self.has_value {
            return self.refuse(Status::EINVAL, "The request must not have extras or a value", out);
        }
        let (bucket, key, place, cas) = (self.bucket, self.key, self.place, self.request.header.cas);
        let result = match &self.durability {
            None => bucket.remove(cx, key, place, cas).map(Written::Done),
            Some(durability) => bucket.remove_durably(cx, key, place, durability, cas),
        };
        self.conclude(result, None, out)
    }

    fn count(&self, cx: &mut NodeContext, out: &mut Output) -> Result<Executed, KvError> {
        let arithmetic = binary::arithmetic(self.request, cx.now.unix_s).filter(|_| !self.has_value);
        let Some(arithmetic) = arithmetic else {
            return self.refuse(
                Status::EINVAL,
                "The extras must be delta, initial value and expiry, 20 bytes",
                out,
            );
        };
        let (bucket, key, place) = (self.bucket, self.key, self.place);
        let result = match &self.durability {
            None => bucket
                .arithmetic(cx, key, place, arithmetic)
                .map(|(number, mutated)| (number, Written::Done(mutated))),
            Some(durability) => bucket.arithmetic_durably(cx, key, place, durability, arithmetic),
        };
        match result {
            Ok((number, written)) => self.conclude(Ok(written), Some(number), out),
            Err(error) => self.conclude(Err(error), None, out),
        }
    }

    fn touch(&self, cx: &mut NodeContext, out: &mut Output) -> Result<Executed, KvError> {
        let expiry = binary::touch_expiry(self.request.extras, cx.now.unix_s).filter(|_| !self.has_value);
        let Some(expiry) = expiry else {
            return self.refuse(Status::EINVAL, "The extras must be the expiry, 4 bytes", out);
        };
        let expiry = if self.infos.preserve_ttl { Expiry::Keep } else { expiry };
        let Self { bucket, key, place, .. } = *self;
        let touched = |entry: &mut Entry<'_>| {
            let document = entry.document().ok_or(KvError::NotFound)?;
            if document.is_locked() {
                return Err(KvError::Locked);
            }
            let cas = document.cas();
            let mut mutated = entry.touch(expiry)?;
            // A writer who may not read must not learn that it had this expiry.
            if mutated.cas == cas && !self.may(Rights::READ) {
                mutated = entry.revise(0)?;
            }
            entry.record_access();
            Ok(mutated)
        };
        let result = if self.request.header.opcode == Opcode::TOUCH {
            bucket.with_entry(cx, key, place, touched)?.map(|mutated| self.answer.mutated(mutated, &[], out))
        } else {
            out.with_entry(self.answer.takes_compressed(), (bucket, key, place), cx, |entry, out| {
                let mutated = touched(entry)?;
                let document = entry.document().ok_or(KvError::NotFound)?;
                self.answer.document(&[], &document, mutated.cas, out);
                Ok(())
            })?
        };
        match result {
            Ok(()) => bucket.count_touch(cx, true),
            Err(KvError::NotFound) => {
                bucket.count_touch(cx, false);
                self.miss(out);
            }
            Err(error) => {
                bucket.count(cx, Meter::CmdTouch, 1);
                refuse(self.answer, error, out);
            }
        }
        Ok(Executed::Answered)
    }

    fn lock(&self, cx: &mut NodeContext, out: &mut Output) -> Result<Executed, KvError> {
        let asked_s = match *self.request.extras {
            [] => 0,
            [b0, b1, b2, b3] => u32::from_be_bytes([b0, b1, b2, b3]),
            _ => {
                return self.refuse(
                    Status::EINVAL,
                    "The extras must be the lock's time, 4 bytes, or nothing",
                    out,
                );
            }
        };
        if self.has_value {
            return self.refuse(Status::EINVAL, "The request must not have a value", out);
        }
        let lock_s = if asked_s == 0 || asked_s > LOCK_MAX_S { LOCK_DEFAULT_S } else { asked_s };
        // Part of this second is over, and the lock is held for its whole time.
        let until_unix_s = cx.now.unix_s.saturating_add(lock_s + 1);
        let Self { bucket, key, place, .. } = *self;
        let result =
            out.with_entry(self.answer.takes_compressed(), (bucket, key, place), cx, |entry, out| {
                let mutated = entry.lock(until_unix_s)?;
                entry.record_access();
                let document = entry.document().ok_or(KvError::NotFound)?;
                self.answer.document(&[], &document, mutated.cas, out);
                Ok(())
            })?;
        match result {
            Ok(()) => bucket.count(cx, Meter::Locks, 1),
            Err(error) => refuse(self.answer, error, out),
        }
        Ok(Executed::Answered)
    }

    fn unlock(&self, cx: &mut NodeContext, out: &mut Output) -> Result<Executed, KvError> {
        let cas = self.request.header.cas;
        if cas == 0 || !self.request.extras.is_empty() || self.has_value {
            return self.refuse(
                Status::EINVAL,
                "The request must have the lock's CAS, and no extras or value",
                out,
            );
        }
        let result = self.bucket.with_entry(cx, self.key, self.place, |entry| {
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
            Ok(()) => self.answer.success(out),
            Err(error) => refuse(self.answer, error, out),
        }
        Ok(Executed::Answered)
    }
}

/// Maps the engine's errors to Couchbase's statuses. Quiet requests get them too.
#[cold]
pub(super) fn refuse(answer: &Answer, error: KvError, out: &mut Output) {
    let knows_locks = answer.features().has(Feature::XERROR);
    match error {
        KvError::NotFound => answer.status(Status::KEY_ENOENT, out),
        KvError::Exists => answer.status(Status::KEY_EEXISTS, out),
        KvError::NotStored => answer.status(Status::NOT_STORED, out),
        // COMPAT: clients without XERROR know these two only as a temporary failure.
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
        KvError::TakesLong => answer.error(Status::ETMPFAIL, "The request takes long", out),
        KvError::WarmingUp => answer.error(Status::ETMPFAIL, "The vBucket is warming up", out),
        KvError::NotActive => answer.status(Status::NOT_MY_VBUCKET, out),
        KvError::ReadFailed => answer.error(Status::EINTERNAL, "The value could not be read from disk", out),
        KvError::Damaged => answer.error(Status::EINTERNAL, "The vBucket's journal is damaged", out),
        KvError::NoSpace => answer.error(Status::ETMPFAIL, "The disk is full", out),
        KvError::SyncWriteInProgress => answer.status(Status::SYNC_WRITE_IN_PROGRESS, out),
        KvError::ReCommit => answer.status(Status::SYNC_WRITE_RE_COMMIT_IN_PROGRESS, out),
        KvError::DurabilityImpossible => {
            answer.error(Status::DURABILITY_IMPOSSIBLE, "The vBucket's chains have too few nodes", out);
        }
        KvError::NoCollection => answer.status(Status::UNKNOWN_COLLECTION, out),
        KvError::BucketGone => answer.error(Status::NO_BUCKET, "The bucket is gone", out),
    }
}
