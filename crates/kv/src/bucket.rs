//! A bucket: a tenant with its arena and budget, its vBuckets, and the operations on its keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use memory::{BlockHeap, Gauge, LargeBlock, Quiescence, Shards, Tenant};
use parking_lot::Mutex;
use rapidhash::v3::RapidSecrets;

use crate::cx::Held;
use crate::eviction::Sweeper;
use crate::index::{self, Dead, Ground, Locked, Memory, VALUE_MAX, VBucket};
use crate::node::Doorbell;
use crate::settings::{BucketSettings, Eviction};
use crate::{
    Cx, Document, Entry, Expiry, Key, KvError, LargeItem, Meter, Mutated, Mutation, Place, Store, StoreKind,
    Value, VbId,
};

/// A Couchbase counter operation; see [`Bucket::arithmetic`].
#[derive(Debug, Clone, Copy)]
pub struct Arithmetic {
    /// Amount.
    pub delta: u64,
    /// Subtract (floors at 0) instead of adding (wraps at 2^64).
    pub decrement: bool,
    /// Value of a new document; `None` = NotFound if missing.
    pub initial: Option<u64>,
    /// Expiry of a new document; an existing one keeps its own.
    pub expiry: Expiry,
    /// Required CAS; 0 = any.
    pub cas: u64,
    /// Explicit new CAS; 0 = next of the clock.
    pub new_cas: u64,
}

/// State of a vBucket as `OBSERVE_SEQNO` and stats show it.
#[derive(Debug, Clone, Copy)]
pub struct VbInfo {
    /// History id.
    pub uuid: u64,
    /// Highest seqno given out.
    pub high_seqno: u64,
    /// Highest CAS given out.
    pub max_cas: u64,
    /// Items (expired ones not yet reclaimed included).
    pub items: u64,
}

/// Where a bucket's bytes are. Exact: counted where they are allocated.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemoryFigures {
    /// Key and value bytes of all items.
    pub payload: u64,
    /// Item headers and optional words.
    pub metadata: u64,
    /// Index lines, directories, seqno slots, expiry entries.
    pub index: u64,
    /// Bytes handed out by the allocator for items and index, rounded to its classes.
    pub allocated: u64,
    /// Large items being received and connection buffers charged here.
    pub in_flight: u64,
    /// Physical pages of the bucket's arena.
    pub resident: u64,
    /// Budget in bytes.
    pub budget: u64,
    /// Number of items.
    pub items: u64,
}

/// Per-mille of the budget from which items are evicted, and down to which.
pub(crate) const HIGH_WATERMARK: u64 = 900;
pub(crate) const LOW_WATERMARK: u64 = 880;
/// Per-mille of the budget above which new data has to wait for room, or is refused.
pub(crate) const REFUSE_WATERMARK: u64 = 950;

const LONGEST_NUMBER: usize = 20;

/// A bucket. Shared by all threads.
pub struct Bucket {
    name: Arc<str>,
    uuid: String,
    settings: BucketSettings,
    gone: AtomicBool,
    /// A delayed flush_all: at this unix second; 0 = none.
    flush_at_s: AtomicU32,
    /// Earliest second at which an expiry window is due; `u32::MAX` = none.
    expiry_due_s: AtomicU32,
    /// Items were flushed and wait to be reclaimed.
    flushed: AtomicBool,
    uuid_seed: u64,
    vbucket_mask: u16,
    vbuckets: Box<[VBucket]>,
    ground: Ground,
    meters: Shards,
    pub(crate) sweeper: Mutex<Sweeper>,
    doorbell: Arc<Doorbell>,
}

impl Bucket {
    pub(crate) fn new(
        name: &str,
        settings: BucketSettings,
        slot: usize,
        threads: usize,
        quiescence: Arc<Quiescence>,
        doorbell: Arc<Doorbell>,
        random: u64,
    ) -> Result<Self, String> {
        let tenant = Tenant::new(threads, settings.memory_bytes).map_err(|error| error.to_string())?;
        let vbuckets = VBucket::table(settings.vbuckets);
        // The identities are public: they must not tell the secrets they are made from.
        let secrets = RapidSecrets::seed(scramble(random, 1));
        let identity = |part: &[u8]| index::hash(Key::plain(part), &secrets);
        Ok(Self {
            name: name.into(),
            uuid: format!("{:016x}{:016x}", identity(b"bucket, high"), identity(b"bucket, low")),
            gone: AtomicBool::new(false),
            flush_at_s: AtomicU32::new(0),
            expiry_due_s: AtomicU32::new(u32::MAX),
            flushed: AtomicBool::new(false),
            uuid_seed: identity(b"vbuckets"),
            vbucket_mask: settings.vbuckets - 1,
            vbuckets,
            ground: Ground { heap: BlockHeap::new(Arc::clone(&tenant)), tenant, quiescence, slot, secrets },
            meters: Shards::new(threads, Meter::COUNT),
            sweeper: Mutex::new(Sweeper::default()),
            doorbell,
            settings,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Its identity, 32 hex digits.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }
    /// What it was created with.
    pub fn settings(&self) -> &BucketSettings {
        &self.settings
    }
    /// Whether it has been deleted from its node: operations answer [`KvError::BucketGone`].
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Relaxed);
    }
    pub(crate) fn slot(&self) -> usize {
        self.ground.slot
    }
    pub(crate) fn tenant(&self) -> &Arc<Tenant> {
        &self.ground.tenant
    }
    /// Number of vBuckets, a power of two.
    pub fn vbuckets(&self) -> u16 {
        self.settings.vbuckets
    }

    /// The place of a key: CRC32 vBucket and index hash.
    #[inline]
    pub fn locate(&self, key: Key<'_>) -> Place {
        let crc = crc32fast::hash(key.bytes);
        self.locate_in(key, VbId((crc >> 16) as u16 & 0x7fff & self.vbucket_mask))
    }

    /// The place of a key whose vBucket the client named (Couchbase). The caller checks the range.
    #[inline]
    pub fn locate_in(&self, key: Key<'_>, vb: VbId) -> Place {
        debug_assert!(vb.0 <= self.vbucket_mask);
        Place { vb: VbId(vb.0 & self.vbucket_mask), hash: index::hash(key, &self.ground.secrets) }
    }

    /// Starts loading the vBucket of a place.
    #[inline]
    pub fn prefetch_vbucket(&self, at: Place) {
        self.vbucket(at.vb).prefetch();
    }

    /// Starts loading the vBucket's directory. As [`Bucket::prefetch_line`].
    #[inline]
    pub fn prefetch_directory(&self, at: Place) {
        self.vbucket(at.vb).prefetch_directory();
    }

    /// Starts loading the index line of a place. Between [`Quiescence::enter`] and `leave` of the calling thread.
    #[inline]
    pub fn prefetch_line(&self, at: Place) {
        self.vbucket(at.vb).prefetch_line(at.hash);
    }

    /// Starts loading the item of a place, `bytes` of it. As [`Bucket::prefetch_line`].
    #[inline]
    pub fn prefetch_item(&self, at: Place, bytes: usize) {
        self.vbucket(at.vb).prefetch_item(&self.ground.heap, at.hash, bytes);
    }

    #[inline]
    fn vbucket(&self, vb: VbId) -> &VBucket {
        &self.vbuckets[usize::from(vb.0 & self.vbucket_mask)]
    }

    /// State of a vBucket; `None` if out of range.
    pub fn vb_info(&self, vb: VbId) -> Option<VbInfo> {
        let snapshot = self.vbuckets.get(usize::from(vb.0))?.snapshot();
        Some(VbInfo {
            uuid: self.vb_uuid(vb),
            high_seqno: snapshot.high_seqno,
            max_cas: snapshot.max_cas,
            items: u64::from(snapshot.items),
        })
    }

    #[inline]
    fn vb_uuid(&self, vb: VbId) -> u64 {
        scramble(self.uuid_seed, u64::from(vb.0)) >> 16
    }

    /// Locks a vBucket for the calling thread.
    #[inline(always)]
    pub(crate) fn lock<'c>(&'c self, cx: &'c mut Cx, vb: VbId) -> Locked<'c> {
        if cx.caches.get(self.slot()).is_none_or(Option::is_none) {
            self.open_cache(cx);
        }
        let Some(Some(held)) = cx.caches.get_mut(self.slot()) else { unreachable!("opened above") };
        held.used = true;
        let (cache, retired) = (&mut held.cache, &mut cx.retired);
        self.vbucket(vb).lock(Memory { ground: &self.ground, cache, retired, owner: vb.0 }, &cx.now)
    }

    #[cold]
    fn open_cache(&self, cx: &mut Cx) {
        if cx.caches.len() <= self.slot() {
            cx.caches.resize_with(self.slot() + 1, || None);
        }
        let cache = self.ground.tenant.cache(cx.thread);
        cx.caches[self.slot()] = Some(Held { tenant: Arc::clone(&self.ground.tenant), cache, used: true });
    }

    /// GET: calls `f` with the live document under the lock, then marks it accessed. Counts hits and misses.
    #[inline]
    pub fn read<R>(
        &self,
        cx: &mut Cx,
        key: Key<'_>,
        at: Place,
        f: impl FnOnce(Option<Document<'_>>) -> R,
    ) -> R {
        if self.flush_at_s.load(Relaxed) != 0 {
            self.flush_when_due(cx);
        }
        let mut locked = self.lock(cx, at.vb);
        let (mut outcome, mut dead) = (Meter::GetMisses, None);
        let result = match locked.look_up(key, at.hash) {
            Ok(present) => {
                outcome = Meter::GetHits;
                let result = f(Some(Document::new(&locked, &present)));
                locked.record_access(present);
                result
            }
            Err(why) => {
                dead = why;
                f(None)
            }
        };
        drop(locked);
        self.count(cx, Meter::CmdGet, 1);
        self.count(cx, outcome, 1);
        match dead {
            None => {}
            Some(Dead::Expired) => self.count(cx, Meter::GetExpired, 1),
            Some(Dead::Flushed) => self.count(cx, Meter::GetFlushed, 1),
        }
        result
    }

    /// SET, ADD, REPLACE, APPEND, PREPEND, CAS: one conditional store. Locked documents: [`KvError::Locked`] unless the
    /// CAS is the lock's (which also unlocks).
    #[inline(always)]
    pub fn mutate(
        &self,
        cx: &mut Cx,
        key: Key<'_>,
        at: Place,
        mutation: Mutation<'_>,
    ) -> Result<Mutated, KvError> {
        if let Mutation { kind: StoreKind::Set, cas: 0, store } = &mutation
            && let Store { expiry: Expiry::At(0), value: Value::Bytes(value), new_cas: 0, .. } = store
            && let Some(mutated) = self.overwrite(cx, key, at, store.flags, store.datatype, value)
        {
            return Ok(mutated);
        }
        self.mutate_any(cx, key, at, mutation)
    }

    /// The commonest mutation: a plain SET of another value of much the same size over a small document, without a condition or an
    /// expiry. Its arguments stay in registers; `None`, with nothing changed: it is something else.
    #[inline(always)]
    fn overwrite(
        &self,
        cx: &mut Cx,
        key: Key<'_>,
        at: Place,
        flags: u32,
        datatype: u8,
        value: &[u8],
    ) -> Option<Mutated> {
        self.admit(cx, key.bytes.len() + value.len()).ok()?;
        if self.flush_at_s.load(Relaxed) != 0 {
            return None;
        }
        let mut locked = self.lock(cx, at.vb);
        let present = locked.live(key, at.hash)?;
        let (cas, seqno) = locked.overwrite(present, 0, datatype, flags, value)?;
        drop(locked);
        self.count(cx, Meter::CmdSet, 1);
        self.count(cx, Meter::TotalItems, 1);
        Some(Mutated { cas, seqno, vb_uuid: self.vb_uuid(at.vb) })
    }

    fn mutate_any(
        &self,
        cx: &mut Cx,
        key: Key<'_>,
        at: Place,
        mutation: Mutation<'_>,
    ) -> Result<Mutated, KvError> {
        let added = key.bytes.len() + mutation.store.value.len();
        let result = match self.admit(cx, added) {
            Ok(()) => self.with_entry(cx, key, at, |entry| {
                mutate_entry(entry, &mutation.kind, mutation.cas, mutation.store)
            }),
            Err(error) => Err(error),
        };
        self.count(cx, Meter::CmdSet, 1);
        match result {
            Ok(_) => {
                self.count(cx, Meter::TotalItems, 1);
                if mutation.cas != 0 {
                    self.count(cx, Meter::CasHits, 1);
                }
            }
            Err(error) => self.count_failed_store(cx, mutation.cas != 0, error),
        }
        result
    }

    fn count_failed_store(&self, cx: &Cx, with_cas: bool, error: KvError) {
        match error {
            KvError::NoMemory => self.count(cx, Meter::StoreNoMemory, 1),
            KvError::TooBig => self.count(cx, Meter::StoreTooLarge, 1),
            KvError::NotFound if with_cas => self.count(cx, Meter::CasMisses, 1),
            KvError::Exists if with_cas => self.count(cx, Meter::CasBadval, 1),
            _ => {}
        }
    }

    /// DELETE; `cas` 0 = any.
    pub fn remove(&self, cx: &mut Cx, key: Key<'_>, at: Place, cas: u64) -> Result<Mutated, KvError> {
        let result = self.with_entry(cx, key, at, |entry| {
            check_version(entry, cas)?;
            entry.remove()
        });
        match result {
            Ok(_) => self.count(cx, Meter::DeleteHits, 1),
            Err(KvError::NotFound) => self.count(cx, Meter::DeleteMisses, 1),
            Err(_) => {}
        }
        result
    }

    /// INCR/DECR; gives the new number.
    pub fn arithmetic(
        &self,
        cx: &mut Cx,
        key: Key<'_>,
        at: Place,
        how: Arithmetic,
    ) -> Result<(u64, Mutated), KvError> {
        self.admit(cx, key.bytes.len() + LONGEST_NUMBER)?;
        let mut existed = false;
        let result = self.with_entry(cx, key, at, |entry| {
            existed = entry.document().is_some();
            count_entry(entry, &how)
        });
        let (hits, misses) = if how.decrement {
            (Meter::DecrHits, Meter::DecrMisses)
        } else {
            (Meter::IncrHits, Meter::IncrMisses)
        };
        if !existed {
            self.count(cx, misses, 1);
        } else if result.is_ok() {
            self.count(cx, hits, 1);
        }
        result
    }

    /// Anything else a command does to one key under one hold of the vBucket's lock.
    #[inline(always)]
    pub fn with_entry<R>(
        &self,
        cx: &mut Cx,
        key: Key<'_>,
        at: Place,
        f: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> R {
        if self.flush_at_s.load(Relaxed) != 0 {
            self.flush_when_due(cx);
        }
        let uuid = self.vb_uuid(at.vb);
        let locked = self.lock(cx, at.vb);
        let mut entry = Entry::new(locked, key, at.hash, uuid);
        let result = f(&mut entry);
        let armed_s = entry.armed_s();
        drop(entry);
        if armed_s != u32::MAX && armed_s < self.expiry_due_s.load(Relaxed) {
            self.arm_expiry(armed_s);
        }
        result
    }

    /// Makes sure that `bytes` more may be taken: evicts, or refuses with [`KvError::NoMemory`].
    #[inline]
    pub fn admit(&self, cx: &mut Cx, bytes: usize) -> Result<(), KvError> {
        if bytes > VALUE_MAX {
            return Err(KvError::TooBig);
        }
        if self.is_gone() {
            return Err(KvError::BucketGone);
        }
        let (used, budget) = (self.ground.tenant.used() + bytes as u64, self.ground.tenant.budget());
        if used <= budget / 1000 * HIGH_WATERMARK && !self.ground.tenant.wants_measure() {
            return Ok(());
        }
        self.admit_under_pressure(cx, bytes as u64)
    }

    #[cold]
    fn admit_under_pressure(&self, cx: &mut Cx, bytes: u64) -> Result<(), KvError> {
        if self.settings.eviction == Eviction::AutoDelete || self.ground.tenant.wants_measure() {
            self.doorbell.ring();
        }
        let limit = self.ground.tenant.budget() / 1000 * REFUSE_WATERMARK;
        if self.ground.tenant.used() + bytes <= limit {
            return Ok(());
        }
        if self.settings.eviction == Eviction::AutoDelete && bytes < limit {
            self.make_room(cx, limit - bytes);
            if self.ground.tenant.used() + bytes <= limit {
                return Ok(());
            }
        }
        Err(KvError::NoMemory)
    }

    /// Memory for a large value (over [`crate::session::LARGE_VALUE`]), within the budget: to be filled before it is stored.
    pub fn prepare_large(&self, cx: &mut Cx, key: Key<'_>, value_len: usize) -> Result<LargeItem, KvError> {
        self.admit(cx, key.bytes.len() + value_len)?;
        let value_offset = index::large_value_offset(index::stored_key_len(key));
        if cx.caches.get(self.slot()).is_none_or(Option::is_none) {
            self.open_cache(cx);
        }
        let Some(Some(held)) = cx.caches.get_mut(self.slot()) else { return Err(KvError::NoMemory) };
        held.used = true;
        let block = LargeBlock::new(&self.ground.tenant, &mut held.cache, value_offset + value_len)
            .ok_or(KvError::NoMemory)?;
        // Reserved means visible to everybody who asks for memory next.
        held.tenant.publish(&mut held.cache);
        Ok(LargeItem { block, value_offset })
    }

    /// Charges (or with a negative number, releases) a connection's buffers to the bucket.
    pub fn charge_buffers(&self, bytes: i64) {
        self.ground.tenant.count_shared(Gauge::InFlight, bytes);
    }

    /// Keeps the items of every vBucket in the order of their seqnos, for who reads them so; or no longer.
    /// [`KvError::NoMemory`] if there is no room for it: then nobody may rely on it.
    pub fn keep_seqno_order(&self, cx: &mut Cx, keep: bool) -> Result<(), KvError> {
        (0..self.vbuckets()).try_for_each(|vb| self.lock(cx, VbId(vb)).keep_order(keep))
    }

    /// Calls `f` with seqno and CAS of every item of a vBucket in the order of the seqnos; `false` if it is not kept.
    pub fn in_seqno_order(&self, cx: &mut Cx, vb: VbId, f: &mut dyn FnMut(u64, u64)) -> bool {
        self.lock(cx, vb).in_order(&mut |seqno, header| f(seqno, header.cas))
    }

    /// flush_all: everything stored until now (`at_unix_s` 0), or until that time comes, is gone. Replaces a delayed flush.
    pub fn flush(&self, cx: &mut Cx, at_unix_s: u32) {
        self.count(cx, Meter::CmdFlush, 1);
        if at_unix_s > cx.now.unix_s {
            self.flush_at_s.store(at_unix_s, Relaxed);
            self.doorbell.ring();
        } else {
            self.flush_at_s.store(0, Relaxed);
            self.flush_now();
        }
    }

    #[cold]
    pub(crate) fn flush_when_due(&self, cx: &Cx) {
        let at_s = self.flush_at_s.load(Relaxed);
        if at_s != 0
            && at_s <= cx.now.unix_s
            && self.flush_at_s.compare_exchange(at_s, 0, Relaxed, Relaxed).is_ok()
        {
            self.flush_now();
        }
    }

    fn flush_now(&self) {
        let mut any = false;
        for vbucket in &self.vbuckets {
            any |= vbucket.flush();
        }
        if any {
            self.flushed.store(true, Relaxed);
            self.doorbell.ring();
        }
    }

    /// When a delayed flush is due, in unix seconds.
    pub(crate) fn flush_due_s(&self) -> Option<u32> {
        Some(self.flush_at_s.load(Relaxed)).filter(|at| *at != 0)
    }

    pub(crate) fn take_flushed(&self) -> bool {
        self.flushed.swap(false, Relaxed)
    }

    #[cold]
    fn arm_expiry(&self, due_s: u32) {
        if self.expiry_due_s.fetch_min(due_s, Relaxed) > due_s {
            self.doorbell.ring();
        }
    }

    /// When the next expiry window is due, in unix seconds.
    pub(crate) fn expiry_due_s(&self) -> Option<u32> {
        Some(self.expiry_due_s.load(Relaxed)).filter(|at| *at != u32::MAX)
    }

    /// Finds out anew when the next window is due. Windows entered meanwhile are not missed.
    pub(crate) fn rearm_expiry(&self) {
        self.expiry_due_s.store(u32::MAX, Relaxed);
        let due_s = self.vbuckets.iter().filter_map(VBucket::expiry_due_s).min();
        self.expiry_due_s.fetch_min(due_s.unwrap_or(u32::MAX), Relaxed);
    }

    /// Counts an event in this thread's shard of the meters.
    #[inline]
    pub fn count(&self, cx: &Cx, meter: Meter, n: u64) {
        self.meters.add(cx.thread, meter as usize, n.cast_signed());
    }

    /// Sum of a meter over all threads.
    pub fn meter(&self, meter: Meter) -> u64 {
        self.meters.sum(meter as usize)
    }

    /// Sets the meters back to zero (`stats reset`).
    pub fn reset_meters(&self) {
        for meter in Meter::ALL {
            self.meters.add_shared(*meter as usize, -self.meter(*meter).cast_signed());
        }
    }

    /// The bucket's memory figures; measures resident memory now.
    pub fn memory(&self) -> MemoryFigures {
        let resident = self.ground.tenant.measure().resident as u64;
        MemoryFigures { resident, ..self.accounts() }
    }

    /// The bucket's accounts without a measurement: `resident` is what the budget is held against.
    pub fn accounts(&self) -> MemoryFigures {
        let gauge = |gauge| self.ground.tenant.gauge(gauge);
        MemoryFigures {
            payload: gauge(Gauge::Payload),
            metadata: gauge(Gauge::Metadata),
            index: gauge(Gauge::Index),
            allocated: gauge(Gauge::Items) + gauge(Gauge::Index),
            in_flight: gauge(Gauge::InFlight),
            resident: self.ground.tenant.used(),
            budget: self.ground.tenant.budget(),
            items: gauge(Gauge::Count),
        }
    }

    /// Changes the budget at run time (`cache_memlimit`).
    pub fn set_budget(&self, bytes: u64) {
        self.ground.tenant.set_budget(bytes);
        self.doorbell.ring();
    }

    /// Calls `f` with the size of every item in bytes, locking one vBucket at a time (`stats sizes`).
    pub fn item_sizes(&self, cx: &mut Cx, f: &mut dyn FnMut(usize)) {
        for vb in 0..self.vbuckets() {
            self.lock(cx, VbId(vb)).sizes(f);
        }
    }
}

/// A document's version must be `cas` (0 = any), and its lock, if any, the caller's.
#[inline(always)]
fn check_version(entry: &Entry<'_>, cas: u64) -> Result<(), KvError> {
    if cas == 0 && !entry.may_be_locked() {
        return if entry.exists() { Ok(()) } else { Err(KvError::NotFound) };
    }
    let Some(document) = entry.document() else { return Err(KvError::NotFound) };
    if document.is_locked() {
        return if document.cas() == cas { Ok(()) } else { Err(KvError::Locked) };
    }
    if cas != 0 && document.cas() != cas { Err(KvError::Exists) } else { Ok(()) }
}

#[inline(always)]
fn mutate_entry(
    entry: &mut Entry<'_>,
    kind: &StoreKind,
    cas: u64,
    store: Store<'_>,
) -> Result<Mutated, KvError> {
    let version = check_version(entry, cas);
    match kind {
        StoreKind::Set => match version {
            Err(KvError::NotFound) if cas == 0 => entry.store(store),
            Ok(()) => entry.store(store),
            Err(error) => Err(error),
        },
        StoreKind::Add => match version {
            Err(KvError::NotFound) => entry.store(store),
            Err(KvError::Locked) => Err(KvError::Locked),
            _ => Err(KvError::Exists),
        },
        StoreKind::Replace => version.and_then(|()| entry.store(store)),
        StoreKind::Append | StoreKind::Prepend => match version {
            Err(KvError::NotFound) => Err(KvError::NotStored),
            Err(error) => Err(error),
            Ok(()) => entry.extend(&store.value, *kind == StoreKind::Prepend, store.new_cas),
        },
    }
}

fn count_entry(entry: &mut Entry<'_>, how: &Arithmetic) -> Result<(u64, Mutated), KvError> {
    match check_version(entry, how.cas) {
        Err(KvError::NotFound) => {
            let number = how.initial.ok_or(KvError::NotFound)?;
            let text = number.to_string();
            let value = Value::Bytes(text.as_bytes());
            let store = Store { flags: 0, expiry: how.expiry, datatype: 0, value, new_cas: how.new_cas };
            return entry.store(store).map(|mutated| (number, mutated));
        }
        other => other?,
    }
    let Some(document) = entry.document() else { return Err(KvError::NotFound) };
    let old = parse_number(document.value()).ok_or(KvError::DeltaBadValue)?;
    let number = if how.decrement { old.saturating_sub(how.delta) } else { old.wrapping_add(how.delta) };
    let (flags, text) = (document.flags(), number.to_string());
    let value = Value::Bytes(text.as_bytes());
    let store = Store { flags, expiry: Expiry::Keep, datatype: 0, value, new_cas: how.new_cas };
    entry.store(store).map(|mutated| (number, mutated))
}

/// A counter's number: decimal digits, trailing spaces allowed, at most 20 characters.
fn parse_number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= LONGEST_NUMBER)?;
    let digits = text.trim_end_matches(' ');
    if digits.starts_with('+') { None } else { digits.parse().ok() }
}

/// Mixes a seed and a number into 64 bits (splitmix64).
fn scramble(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
