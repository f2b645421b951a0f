//! A bucket: a tenant with its arena and budget, its vBuckets, and the operations on its keys.

pub(crate) mod attention;
mod audit;
mod budget;
pub mod collections;
pub mod compressor;
pub mod consumers;
pub mod copying;
pub mod defragmenter;
mod durable_writes;
mod eviction;
mod flush_all;
pub mod follow;
mod histories;
mod inactive;
mod journal;
mod observed;
mod operations;
mod roles;
pub mod scan;
pub mod watch;
mod work;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use memory::backend::ArenaFigures;
use memory::{Gauge, Heap, LargeBlock, Quiescence, Shards, SizeClass, Tenant};
use rapidhash::v3::RapidSecrets;
use wire::snappy;

use crate::class_counters::{self, ClassCounter, ClassCounters};
use crate::client_memory::Share;
use crate::collections::{Collections, Keep, Manifest};
use crate::doorbell::Doorbell;
use crate::index::{self, Dead, DirtySet, Hand, Locked, Memory, Resources, VBucket};
use crate::lock_order::{Ranked, rank};
use crate::peers::Peers;
use crate::prefixes::Prefixes;
use crate::rendered_map::RenderedMap;
use crate::settings::{BucketSettings, Compression};
use crate::storage::{self, Persistence};
use crate::sync_writes::{Lateness, SyncWrites};
use crate::thread_context::Held;
use crate::{
    Document, Entry, Key, KvError, Labels, LargeItem, LeastDurability, Meter, Mutated, PinnedValue, Place,
    Resolution, ThreadContext, Unavailable, VbId,
};

pub use audit::{Audited, Auditing};
pub use budget::Ahead;
use compressor::Compressor;
use defragmenter::Defragmenter;
pub use defragmenter::DefragmenterFigures;
use eviction::Sweeper;
use inactive::Inactive;
pub use observed::Observed;
pub use operations::Arithmetic;
pub(crate) use operations::{count_entry, mutate_entry};
use watch::{Lookup, Watchers};
pub use work::WorkFigures;

/// State of a vBucket as `OBSERVE_SEQNO` and stats show it.
#[derive(Debug, Clone, Copy)]
pub struct VbInfo {
    /// History id.
    pub uuid: u64,
    /// Highest seqno assigned.
    pub high_seqno: u64,
    /// Highest CAS assigned.
    pub max_cas: u64,
    /// Items, including expired ones that are not reclaimed yet.
    pub items: u64,
    /// Everything up to this seqno is on disk; 0 in an ephemeral bucket.
    pub persisted_seqno: u64,
}

/// Breakdown of a bucket's memory. Exact: bytes are counted where they are allocated.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemoryFigures {
    /// Key and value bytes of all items.
    pub payload: u64,
    /// Item headers and optional words.
    pub metadata: u64,
    /// Index lines, directories, seqno slots, expiry entries.
    pub index: u64,
    /// Blocks, slots and index as allocated, rounded up to their size classes.
    pub allocated: u64,
    /// Slabs, used or not.
    pub slabs: u64,
    /// Slots in use: a part of `allocated`.
    pub slots: u64,
    /// Large items being received, and connection buffers charged to the bucket.
    pub in_flight: u64,
    /// Resident pages of the bucket's arena; if the allocator does not report them, the figure compared with the
    /// budget.
    pub resident: u64,
    /// Budget in bytes.
    pub budget: u64,
    /// Number of items.
    pub items: u64,
    /// Number of compressed values in memory.
    pub compressed: u64,
    /// Bytes of the compressed values: a part of `payload`.
    pub compressed_bytes: u64,
    /// Length of the compressed values when inflated.
    pub inflated_bytes: u64,
}

pub(crate) const LONGEST_NUMBER: usize = 20;

/// A bucket. Shared by all threads.
pub struct Bucket {
    name: Arc<str>,
    uuid: String,
    settings: BucketSettings,
    gone: AtomicBool,
    /// What every operation has to check: bits of [`attention`].
    attention: AtomicU8,
    inactive: Inactive,
    /// When a delayed flush_all is due, in unix seconds; 0 = none.
    flush_at_s: AtomicU32,
    /// Earliest second at which an expiry window is due; `u32::MAX` = none.
    expiry_due_s: AtomicU32,
    /// Bytes reserved for values that have not arrived yet.
    ahead_bytes: AtomicU64,
    /// Set while flushed items wait to be reclaimed.
    flushed: AtomicBool,
    /// Set while items of dropped collections wait to be reclaimed.
    dropped: AtomicBool,
    uuid_seed: u64,
    had_clean_end: bool,
    vbucket_mask: u16,
    vbuckets: Box<[VBucket]>,
    resources: Resources,
    /// The budget as configured; `cache_memlimit` may lower the one in force.
    configured_budget: AtomicU64,
    /// Connection buffers charged to the bucket.
    buffer_bytes: AtomicI64,
    meters: Shards,
    pub(crate) sweeper: Ranked<Sweeper, { rank::SWEEPER }>,
    pub(crate) defragmenter: Defragmenter,
    pub(crate) compressor: Compressor,
    /// A [`Compression`].
    compression: AtomicU8,
    flush_enabled: AtomicBool,
    /// A [`LeastDurability`].
    least_durability: AtomicU8,
    labels: Ranked<Labels, { rank::LABELS }>,
    doorbell: Arc<Doorbell>,
    threads: usize,
    persistence: Option<Persistence>,
    pub(crate) lateness: Lateness,
    /// `stats detail`.
    pub prefixes: Prefixes,
    /// `watch`.
    pub(crate) watchers: Watchers,
    scans: Ranked<scan::Scans, { rank::SCANS }>,
    following: follow::Following,
    /// How often roles have been set, or were read from disk.
    role_changes: AtomicU64,
    /// Highest term of a role since the start.
    highest_term: AtomicU64,
    /// The bucket's map.
    pub(crate) map: RenderedMap,
    /// See [`Bucket::undecided`].
    undecided: AtomicU32,
    /// Where copies come from.
    pub(crate) peers: Peers,
    /// History ids that are not the bucket's own, by vBucket; 0: it is. Missing while there is none.
    uuids: OnceLock<Box<[AtomicU64]>>,
    /// Keeps the collections of a bucket without a journal.
    keep_collections: Option<Keep>,
}

/// What a bucket is built on.
pub(crate) struct Foundation {
    pub(crate) slot: usize,
    pub(crate) threads: usize,
    pub(crate) quiescence: Arc<Quiescence>,
    pub(crate) doorbell: Arc<Doorbell>,
    /// The part of the budget that client memory takes away.
    pub(crate) share: Share,
    /// Secrets of the key hash.
    pub(crate) secrets: RapidSecrets,
    /// The collections of a bucket without a journal, and what keeps them.
    pub(crate) collections: Option<(Manifest, Keep)>,
}

/// Returns the secrets of a bucket's hashes.
pub(crate) fn secrets(random: u64) -> RapidSecrets {
    RapidSecrets::seed(scramble(random, 1))
}

/// Derives the public identities: the bucket's, and a seed for its vBuckets'. They must not reveal the secrets.
pub(crate) fn identities(secrets: &RapidSecrets) -> (String, u64) {
    let identity = |part: &[u8]| index::hash(Key::plain(part), secrets);
    let uuid = format!("{:016x}{:016x}", identity(b"bucket, high"), identity(b"bucket, low"));
    (uuid, identity(b"vbuckets"))
}

impl Bucket {
    /// Creates a bucket; a persistent one with its journal and the bells of its shards' flushers.
    pub(crate) fn new(
        name: &str,
        mut settings: BucketSettings,
        foundation: Foundation,
        journal: Option<(storage::Opened, Vec<Arc<Doorbell>>)>,
    ) -> Result<Self, String> {
        let Foundation { slot, threads, quiescence, doorbell, share, secrets, collections } = foundation;
        // The number after the last thread's is for the thread that drops the bucket.
        let tenant = Tenant::new(threads + 1, settings.memory_bytes).map_err(|error| error.to_string())?;
        let (mut uuid, mut uuid_seed) = identities(&secrets);
        let (mut persistence, mut dirty, mut attention) = (None, None, 0);
        let had_clean_end = journal.as_ref().is_some_and(|(opened, _)| opened.had_clean_end);
        if let Some((opened, bells)) = &journal {
            (uuid, uuid_seed) = (opened.uuid.clone(), opened.history_seed);
            settings.vbuckets = opened.vbuckets;
            dirty = Some(DirtySet::new(settings.vbuckets, bells.iter().cloned()));
        }
        let vbuckets = VBucket::table(settings.vbuckets);
        let (mut collections, keep) =
            collections.map_or_else(|| (Manifest::of_new_bucket(), None), |(m, keep)| (m, Some(keep)));
        if let Some((opened, _)) = journal {
            collections = opened.collections.clone();
            for (vbucket, runs) in vbuckets.iter().zip(&opened.runs) {
                if *runs > 0 {
                    vbucket.begin_replay(*runs);
                }
            }
            attention = if opened.is_all_open() { 0 } else { attention::GATES | attention::EJECTED };
            persistence = Some(opened.persistence);
        }
        let collections = Collections::new(collections);
        collections.set_max_ttl(settings.max_ttl_s);
        if collections.has_limits() {
            attention |= attention::TTL;
        }
        Ok(Self {
            name: name.into(),
            uuid,
            gone: AtomicBool::new(false),
            attention: AtomicU8::new(attention),
            inactive: Inactive::new(settings.vbuckets),
            flush_at_s: AtomicU32::new(0),
            expiry_due_s: AtomicU32::new(u32::MAX),
            ahead_bytes: AtomicU64::new(0),
            flushed: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            uuid_seed,
            had_clean_end,
            vbucket_mask: settings.vbuckets - 1,
            vbuckets,
            resources: Resources {
                heap: Heap::new(Arc::clone(&tenant), settings.item_heap),
                tenant,
                quiescence,
                slot,
                secrets,
                dirty,
                share,
                collections,
                vbuckets: settings.vbuckets,
                tombstone_age_s: settings.tombstone_age_s(),
                classes: ClassCounters::new(threads + 1),
            },
            configured_budget: AtomicU64::new(settings.memory_bytes),
            buffer_bytes: AtomicI64::new(0),
            meters: Shards::new(threads, Meter::COUNT),
            sweeper: Ranked::new(Sweeper::default()),
            defragmenter: Defragmenter::new(settings.defragmenter),
            compressor: Compressor::default(),
            compression: AtomicU8::new(settings.compression as u8),
            flush_enabled: AtomicBool::new(settings.flush_enabled),
            least_durability: AtomicU8::new(settings.least_durability as u8),
            labels: Ranked::new(settings.labels.clone()),
            doorbell,
            threads,
            persistence,
            lateness: Lateness::default(),
            prefixes: Prefixes::default(),
            watchers: Watchers::default(),
            scans: Ranked::default(),
            following: follow::Following::default(),
            role_changes: AtomicU64::new(0),
            highest_term: AtomicU64::new(0),
            map: RenderedMap::default(),
            undecided: AtomicU32::new(0),
            peers: Peers::default(),
            uuids: OnceLock::new(),
            keep_collections: keep,
            settings,
        })
    }

    /// Returns the journal of a persistent bucket.
    #[inline]
    pub fn persistence(&self) -> Option<&Persistence> {
        self.persistence.as_ref()
    }

    pub(crate) fn dirty(&self) -> Option<&DirtySet> {
        self.resources.dirty.as_ref()
    }

    /// Returns the bucket's name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Returns the bucket's UUID, 32 hex digits.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }
    /// Returns the settings it was created with.
    pub fn settings(&self) -> &BucketSettings {
        &self.settings
    }
    /// Returns true if the bucket has been deleted from its node; operations then fail with [`KvError::BucketGone`].
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Relaxed);
    }
    /// Returns the compression mode.
    #[inline]
    pub fn compression(&self) -> Compression {
        Compression::of_number(self.compression.load(Relaxed))
    }
    /// Sets the compression mode. Stored values stay as they are.
    pub fn set_compression(&self, compression: Compression) {
        self.compression.store(compression as u8, Relaxed);
        self.restart_compressor();
    }
    /// Returns true if the bucket may be emptied over HTTP. Client commands do not depend on this.
    pub fn flush_enabled(&self) -> bool {
        self.flush_enabled.load(Relaxed)
    }
    /// Sets whether the bucket may be emptied over HTTP.
    pub fn set_flush_enabled(&self, is_enabled: bool) {
        self.flush_enabled.store(is_enabled, Relaxed);
    }
    /// Returns the least durability of writes.
    #[inline]
    pub fn least_durability(&self) -> LeastDurability {
        LeastDurability::of_number(self.least_durability.load(Relaxed))
    }
    /// Sets the least durability of writes.
    pub fn set_least_durability(&self, least: LeastDurability) {
        self.least_durability.store(least as u8, Relaxed);
    }
    /// Returns how conflicts with versions from elsewhere are resolved.
    pub fn resolution(&self) -> Resolution {
        match self.settings().labels.conflict_resolution {
            "seqno" => Resolution::Revision,
            _ => Resolution::Time,
        }
    }
    /// Returns what is stored without any effect.
    pub fn labels(&self) -> Labels {
        self.labels.lock().clone()
    }
    /// Sets what is stored without any effect.
    pub fn set_labels(&self, labels: Labels) {
        *self.labels.lock() = labels;
    }
    /// Returns the number of its place in the node, which no other bucket ever has.
    pub fn slot(&self) -> usize {
        self.resources.slot
    }
    pub(crate) fn tenant(&self) -> &Arc<Tenant> {
        &self.resources.tenant
    }
    /// Number of vBuckets, a power of two.
    pub fn vbuckets(&self) -> u16 {
        self.settings.vbuckets
    }

    /// Returns the place of a key: CRC32 vBucket and index hash.
    #[inline]
    pub fn locate(&self, key: Key<'_>) -> Place {
        let crc = crc32fast::hash(key.bytes);
        self.locate_in(key, VbId((crc >> 16) as u16 & 0x7fff & self.vbucket_mask))
    }

    /// Returns the place of a key whose vBucket the client named (Couchbase). The caller checks the range.
    #[inline]
    pub fn locate_in(&self, key: Key<'_>, vb: VbId) -> Place {
        debug_assert!(vb.0 <= self.vbucket_mask);
        Place { vb: VbId(vb.0 & self.vbucket_mask), hash: index::hash(key, &self.resources.secrets) }
    }

    /// Returns the place of a key with its collection's prefix. The caller checks the vBucket's range.
    #[inline]
    pub fn locate_stored(&self, stored_key: &[u8], vb: VbId) -> Place {
        Place {
            vb: VbId(vb.0 & self.vbucket_mask),
            hash: index::hash_stored(stored_key, &self.resources.secrets),
        }
    }

    /// Starts loading the vBucket of a place.
    #[inline]
    pub fn prefetch_vbucket(&self, at: Place) {
        self.vbucket(at.vb).prefetch();
    }

    /// Starts loading the vBucket's directory. Restricted like [`Bucket::prefetch_line`].
    #[inline]
    pub fn prefetch_directory(&self, at: Place) {
        self.vbucket(at.vb).prefetch_directory();
    }

    /// Starts loading the index line of a place. Allowed between [`Quiescence::enter`] and `leave` of the calling
    /// thread.
    #[inline]
    pub fn prefetch_line(&self, at: Place) {
        self.vbucket(at.vb).prefetch_line(at.hash);
    }

    /// Starts loading the item of a place, `bytes` of it. Restricted like [`Bucket::prefetch_line`].
    #[inline]
    pub fn prefetch_item(&self, at: Place, bytes: usize) {
        self.vbucket(at.vb).prefetch_item(&self.resources.heap, at.hash, bytes);
    }

    #[inline]
    fn vbucket(&self, vb: VbId) -> &VBucket {
        &self.vbuckets[usize::from(vb.0 & self.vbucket_mask)]
    }

    /// Returns true if this node serves the vBucket of this number.
    #[inline]
    pub fn serves(&self, vb: u16) -> bool {
        vb < self.vbuckets() && (self.serves_all() || !self.inactive.has(VbId(vb)))
    }

    /// Returns true if this node serves every vBucket.
    #[inline]
    pub fn serves_all(&self) -> bool {
        self.inactive.is_empty()
    }

    /// Calls `f` with the SyncWrites of a vBucket, if it has any.
    pub(crate) fn with_sync_writes(&self, vb: VbId, f: impl FnOnce(&mut SyncWrites)) {
        self.vbucket(vb).with_sync_writes(f);
    }

    /// State of a vBucket; `None` if out of range.
    pub fn vb_info(&self, vb: VbId) -> Option<VbInfo> {
        let snapshot = self.vbuckets.get(usize::from(vb.0))?.snapshot();
        Some(VbInfo {
            uuid: self.vb_uuid(vb),
            high_seqno: snapshot.high_seqno,
            max_cas: snapshot.max_cas,
            items: u64::from(snapshot.items),
            persisted_seqno: snapshot.persisted_seqno,
        })
    }

    /// Makes the next flush of this vBucket due at once, because somebody waits for it.
    pub(crate) fn hurry(&self, vb: VbId) {
        if let (Some(persistence), Some(dirty)) = (&self.persistence, self.dirty())
            && persistence.hurry(vb)
        {
            dirty.ring(vb.0);
        }
    }

    /// Returns why a vBucket is not served, or `None` if it is.
    pub fn closed(&self, vb: VbId) -> Option<Unavailable> {
        self.persistence.as_ref().and_then(|persistence| persistence.closed(vb))
    }

    /// Returns the nodes to which a connection is missing, each with the number of attempts to make one since the last
    /// that was of use.
    pub fn missing_peers(&self) -> Vec<(Arc<str>, u32)> {
        if self.is_gone() { Vec::new() } else { self.peers.missing() }
    }

    /// Notes an attempt to connect to a node.
    pub fn note_attempt(&self, peer: &str) {
        self.peers.note_attempt(peer, false);
    }

    /// Notes why a connection to a node is of no use. Returns true if that is news.
    pub fn note_trouble(&self, peer: &str, why: &str) -> bool {
        self.peers.note_trouble(peer, why)
    }

    /// Locks a vBucket for the calling thread.
    #[inline(always)]
    pub(crate) fn lock<'c>(&'c self, cx: &'c mut ThreadContext, vb: VbId) -> Locked<'c> {
        let at = self.cache_in(cx);
        let held = cx.caches.at(at);
        held.used = true;
        let (cache, retired, calls) = (&mut held.cache, &mut cx.retired, &mut cx.calls);
        let memory = Memory { resources: &self.resources, cache, retired, calls, owner: vb.0 };
        self.vbucket(vb).lock(memory, &cx.now)
    }

    /// Makes the calling thread bypass its cache when it allocates and frees, or stop doing so.
    pub(crate) fn go_direct(&self, cx: &mut ThreadContext, direct: bool) {
        let at = self.cache_in(cx);
        self.resources.tenant.go_direct(&mut cx.caches.at(at).cache, direct);
    }

    pub(crate) fn ring_pager(&self) {
        self.doorbell.ring();
    }

    /// Returns the index of the calling thread's access to the bucket's memory.
    #[inline]
    fn cache_in(&self, cx: &mut ThreadContext) -> usize {
        cx.caches.find(self.slot()).unwrap_or_else(|| self.open_cache(cx))
    }

    #[cold]
    fn open_cache(&self, cx: &mut ThreadContext) -> usize {
        let tenant = Arc::clone(&self.resources.tenant);
        let cache = tenant.cache(cx.thread);
        cx.caches.insert(Held { slot: self.slot(), tenant, cache, used: true, rested: false })
    }

    /// GET: calls `f` with the live document under the lock, then marks it accessed. Counts hits and misses. After an
    /// error, the caller must discard what `f` made of the document.
    #[inline]
    pub fn read<R>(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        f: impl FnOnce(Option<Document<'_>>) -> R,
    ) -> Result<R, Unavailable> {
        let attention = self.attention.load(Relaxed);
        if attention & (attention::FLUSH | attention::GATES) != 0 {
            self.attend(cx, at.vb)?;
        }
        let thread = cx.thread;
        let mut locked = self.lock(cx, at.vb);
        if !self.resources.collections.has(key.collection) {
            return Err(Unavailable::NoCollection);
        }
        if attention & attention::ADOPTED != 0 && locked.is_adopted(at.hash) {
            return Err(Unavailable::ReCommit);
        }
        let (mut dead, mut seen) = (None, None);
        if attention & attention::WATCHED != 0 {
            seen = Some(Lookup::before(&mut locked, key, at.hash));
        }
        let result = match locked.look_up(key, at.hash) {
            Ok(present) => {
                let result = f(Some(Document::new(&locked, &present)));
                locked.record_access(present);
                if locked.has_missed() {
                    drop(locked);
                    return Err(self.note_missed());
                }
                let weight = class_counters::weight(self.meters.next(thread, Meter::GetHits as usize));
                if weight > 0 {
                    let size = Document::new(&locked, &present).item_size();
                    self.count_weighed(thread, size, ClassCounter::GetHits, weight);
                }
                result
            }
            Err(why) => {
                self.meters.add(thread, Meter::GetMisses as usize, 1);
                dead = why;
                f(None)
            }
        };
        let armed_s = locked.armed_s();
        drop(locked);
        self.expiry_entered(armed_s);
        if let Some(dead) = dead {
            self.count_dead(cx, dead);
        }
        if let Some(seen) = seen {
            self.report_lookup(cx, key, seen);
        }
        Ok(result)
    }

    /// Commits the prepare with this seqno: it becomes the current version of its key. [`KvError::NotFound`] if there
    /// is none; after [`KvError::NoMemory`] it stays prepared.
    pub fn commit(&self, cx: &mut ThreadContext, vb: VbId, prepare_seqno: u64) -> Result<Mutated, KvError> {
        let mut locked = self.lock(cx, vb);
        let ended = locked.commit(prepare_seqno)?;
        let armed_s = locked.armed_s();
        drop(locked);
        self.expiry_entered(armed_s);
        Ok(Mutated { cas: ended.cas, seqno: ended.seqno, vb_uuid: self.vb_uuid(vb) })
    }

    /// Aborts the prepare with this seqno. [`KvError::NotFound`] if there is none.
    pub fn abort(&self, cx: &mut ThreadContext, vb: VbId, prepare_seqno: u64) -> Result<Mutated, KvError> {
        let ended = self.lock(cx, vb).abort(prepare_seqno)?;
        Ok(Mutated { cas: ended.cas, seqno: ended.seqno, vb_uuid: self.vb_uuid(vb) })
    }

    /// Returns the pending prepares of a vBucket in seqno order: (seqno, durability level).
    pub fn prepared(&self, cx: &mut ThreadContext, vb: VbId) -> Vec<(u64, u8)> {
        self.lock(cx, vb).all_prepared().iter().map(|prepared| (prepared.seqno, prepared.level)).collect()
    }

    /// Runs `f` on one key under one hold of the vBucket's lock: the basis of all other commands. An error means that
    /// `f` was not called, or that it met a value which is on disk only, and changed nothing.
    #[inline(always)]
    pub fn with_entry<R>(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        f: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Unavailable> {
        let attention = self.attention.load(Relaxed);
        if attention & (attention::FLUSH | attention::GATES) != 0 {
            self.attend(cx, at.vb)?;
        }
        let (uuid, may_take_long) = (self.vb_uuid(at.vb), cx.may_take_long);
        let mut locked = self.lock(cx, at.vb);
        if !self.resources.collections.has(key.collection) {
            return Err(Unavailable::NoCollection);
        }
        if attention & attention::ADOPTED != 0 && locked.is_adopted(at.hash) {
            return Err(Unavailable::ReCommit);
        }
        let mut seen = None;
        if attention & attention::WATCHED != 0 {
            seen = Some(Lookup::before(&mut locked, key, at.hash));
        }
        let mut entry = Entry::new(locked, key, at.hash, uuid, may_take_long);
        let result = f(&mut entry);
        let (armed_s, missed, is_glance) = (entry.armed_s(), entry.has_missed(), entry.is_glance());
        let dead = entry.met_dead();
        drop(entry);
        self.expiry_entered(armed_s);
        if missed {
            return Err(self.note_missed());
        }
        if let Some(dead) = dead {
            self.count_dead(cx, dead);
        }
        if let Some(seen) = seen
            && !is_glance
        {
            self.report_lookup(cx, key, seen);
        }
        Ok(result)
    }

    /// Notes that an expiry window due at `due_s` was entered (`u32::MAX`: none).
    #[inline]
    pub(crate) fn expiry_entered(&self, due_s: u32) {
        if due_s != u32::MAX && due_s < self.expiry_due_s.load(Relaxed) {
            self.arm_expiry(due_s);
        }
    }

    /// Allocates memory for a large value (over [`crate::LARGE_VALUE`]) within the budget. The caller fills it before
    /// storing it.
    pub fn prepare_large(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        value_len: usize,
    ) -> Result<LargeItem, KvError> {
        self.take_large(cx, index::large_value_offset(index::stored_key_len(key)), value_len)
    }

    /// As [`Bucket::prepare_large`], for a key that has its collection id already.
    pub(crate) fn prepare_stored(
        &self,
        cx: &mut ThreadContext,
        stored_key_len: usize,
        value_len: usize,
    ) -> Result<LargeItem, KvError> {
        self.take_large(cx, index::large_value_offset(stored_key_len), value_len)
    }

    /// Copies a large value into memory with room for `value_len` bytes, within the budget.
    pub fn grow_large(
        &self,
        cx: &mut ThreadContext,
        item: &LargeItem,
        value_len: usize,
    ) -> Result<LargeItem, KvError> {
        // For a moment both exist.
        let mut grown = self.take_large(cx, item.value_offset, value_len)?;
        let bytes = item.bytes();
        grown.window(0, bytes.len()).copy_from_slice(bytes);
        Ok(grown)
    }

    /// Allocates memory for a large value without checking the budget.
    pub(crate) fn new_large_item(
        &self,
        cx: &mut ThreadContext,
        stored_key_len: usize,
        value_len: usize,
    ) -> Result<LargeItem, KvError> {
        let value_offset = index::large_value_offset(stored_key_len);
        let at = self.cache_in(cx);
        let held = cx.caches.at(at);
        held.used = true;
        let block = LargeBlock::new(&self.resources.tenant, &mut held.cache, value_offset + value_len)
            .ok_or(KvError::NoMemory)?;
        // Publish the allocation, so that the next thread to ask for memory sees it.
        held.tenant.publish(&mut held.cache);
        Ok(LargeItem { block, value_offset })
    }

    fn take_large(
        &self,
        cx: &mut ThreadContext,
        value_offset: usize,
        value_len: usize,
    ) -> Result<LargeItem, KvError> {
        if value_offset + value_len > index::VALUE_MAX {
            return Err(KvError::TooBig);
        }
        let size = value_offset + value_len;
        let reservation = self.reserve(cx, memory::item_footprint(size))?;
        let block = LargeBlock::within(reservation, size).ok_or(KvError::NoMemory)?;
        // Before its pages are touched.
        self.make_pages_room(0);
        Ok(LargeItem { block, value_offset })
    }

    /// Reserves room within the budget for a long compressed value, to be inflated for a client that takes none
    /// compressed.
    pub fn reserve_inflated(
        &self,
        cx: &mut ThreadContext,
        inflated_len: usize,
    ) -> Result<LargeItem, KvError> {
        self.prepare_large(cx, Key::plain(&[]), inflated_len)
    }

    /// Inflates a long value into the room reserved for it, where it stays until it is sent.
    pub fn inflate_large(block: &[u8], room: LargeItem) -> PinnedValue {
        let mut copy = room;
        snappy::inflate(block, copy.window(0, usize::MAX));
        PinnedValue::new(copy.into_pin())
    }

    /// Starts or stops keeping the items of every vBucket in seqno order, for callers that read them in that order.
    /// After [`KvError::NoMemory`] nobody may rely on the order.
    pub fn keep_seqno_order(&self, cx: &mut ThreadContext, keep: bool) -> Result<(), KvError> {
        (0..self.vbuckets()).try_for_each(|vb| self.lock(cx, VbId(vb)).keep_order(keep))
    }

    /// Calls `f` with seqno and CAS of every item of a vBucket in seqno order. Returns false if the order is not kept.
    pub fn in_seqno_order(&self, cx: &mut ThreadContext, vb: VbId, f: &mut dyn FnMut(u64, u64)) -> bool {
        self.lock(cx, vb).in_order(&mut |seqno, header| f(seqno, header.cas))
    }

    #[cold]
    fn arm_expiry(&self, due_s: u32) {
        if self.expiry_due_s.fetch_min(due_s, Relaxed) > due_s {
            self.doorbell.ring();
        }
    }

    /// Returns when the next expiry window is due, in unix seconds.
    pub(crate) fn expiry_due_s(&self) -> Option<u32> {
        Some(self.expiry_due_s.load(Relaxed)).filter(|at| *at != u32::MAX)
    }

    /// Recomputes when the next window is due. Windows entered meanwhile are not missed.
    pub(crate) fn rearm_expiry(&self) {
        self.expiry_due_s.store(u32::MAX, Relaxed);
        let due_s = self.vbuckets.iter().filter_map(VBucket::expiry_due_s).min();
        self.expiry_due_s.fetch_min(due_s.unwrap_or(u32::MAX), Relaxed);
    }

    /// Counts a lookup that met a document which is no longer to be seen.
    #[cold]
    fn count_dead(&self, cx: &ThreadContext, dead: Dead) {
        match dead {
            Dead::Expired => self.count(cx, Meter::GetExpired, 1),
            Dead::Flushed => self.count(cx, Meter::GetFlushed, 1),
            Dead::Deleted => {}
        }
    }

    /// Counts an event of an item of this size in its class.
    pub fn count_in_class(&self, cx: &ThreadContext, size: usize, counter: ClassCounter) {
        self.resources.classes.count(cx.thread, size, counter, 1);
    }

    /// The same for one of many events that stands for `weight` of them.
    #[cold]
    fn count_weighed(&self, thread: usize, size: usize, counter: ClassCounter, weight: u64) {
        self.resources.classes.count(thread, size, counter, weight);
    }

    /// Counts a store of an item of this size.
    #[inline]
    fn count_set(&self, cx: &ThreadContext, size: usize) {
        let weight = class_counters::weight(self.meters.next(cx.thread, Meter::CmdSet as usize));
        if weight > 0 {
            self.count_weighed(cx.thread, size, ClassCounter::CmdSet, weight);
        }
    }

    /// Counts a retrieval that found an item of this size, or none.
    pub fn count_get(&self, cx: &ThreadContext, found: Option<usize>) {
        let Some(size) = found else { return self.count(cx, Meter::GetMisses, 1) };
        let weight = class_counters::weight(self.meters.next(cx.thread, Meter::GetHits as usize));
        if weight > 0 {
            self.count_weighed(cx.thread, size, ClassCounter::GetHits, weight);
        }
    }

    /// Returns what was counted by size class.
    pub fn class_counters(&self) -> &ClassCounters {
        &self.resources.classes
    }

    /// Counts an event in this thread's shard of the meters. Retrievals are counted by their outcome.
    #[inline]
    pub fn count(&self, cx: &ThreadContext, meter: Meter, n: u64) {
        debug_assert!(meter != Meter::CmdGet);
        self.meters.add(cx.thread, meter as usize, n.cast_signed());
    }

    /// Returns the sum of a meter over all threads.
    pub fn meter(&self, meter: Meter) -> u64 {
        match meter {
            Meter::CmdGet => self.meter(Meter::GetHits) + self.meter(Meter::GetMisses),
            _ => self.meters.sum(meter as usize),
        }
    }

    /// Resets the meters to zero (`stats reset`).
    pub fn reset_meters(&self) {
        for meter in Meter::ALL.iter().filter(|meter| **meter != Meter::CmdGet) {
            self.meters.add_shared(*meter as usize, -self.meter(*meter).cast_signed());
        }
        self.resources.classes.reset();
        self.prefixes.reset();
    }

    /// Returns the bucket's memory figures, with resident memory measured now. For those who ask: the budget does not
    /// take note of it.
    pub fn memory(&self) -> MemoryFigures {
        memory::backend::refresh();
        self.memory_refreshed()
    }

    /// The same with the allocator's figures as they were last refreshed: for many buckets, one refresh is enough.
    pub fn memory_refreshed(&self) -> MemoryFigures {
        let accounts = self.accounts();
        let resident = self.pages().map_or(accounts.resident, |pages| pages.resident as u64);
        MemoryFigures { resident, ..accounts }
    }

    /// Returns the allocator's view of the bucket's memory: names and bytes. If the allocator does not tell tenants
    /// apart, returns what the bucket is charged for.
    pub fn arena_figures(&self) -> Vec<(&'static str, u64)> {
        let tenant = &self.resources.tenant;
        let charged = ("charged_bytes", tenant.used());
        memory::backend::refresh();
        let Some(figures) = self.pages() else { return vec![charged] };
        vec![
            charged,
            ("allocated_bytes", figures.allocated as u64),
            ("active_bytes", figures.active as u64),
            ("dirty_bytes", figures.dirty as u64),
            ("resident_bytes", figures.resident as u64),
        ]
    }

    /// Returns the physical memory of the bucket's arena, by the kernel. Takes some milliseconds for each GiB. `None`
    /// where buckets have no pages of their own.
    pub fn resident_bytes(&self) -> Option<u64> {
        self.resources.tenant.resident_bytes()
    }

    /// Returns what the allocator knew of the bucket's pages when it was last asked to refresh its figures.
    pub fn pages(&self) -> Option<ArenaFigures> {
        self.resources.tenant.arena_figures()
    }

    /// Returns the bytes of connection buffers that the bucket is charged for: a part of `in_flight`.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes.load(Relaxed).max(0).cast_unsigned()
    }

    /// Returns the bucket's accounts without a measurement: `resident` is the figure compared with the budget.
    pub fn accounts(&self) -> MemoryFigures {
        let gauge = |gauge| self.resources.tenant.gauge(gauge);
        let slabs = self.resources.tenant.slab_figures();
        let index = gauge(Gauge::Index) + gauge(Gauge::Retired);
        MemoryFigures {
            payload: gauge(Gauge::Payload),
            metadata: gauge(Gauge::Metadata),
            index,
            allocated: gauge(Gauge::Items) + index,
            slabs: slabs.slab_bytes,
            slots: slabs.slot_bytes,
            in_flight: gauge(Gauge::InFlight),
            resident: self.resources.tenant.used(),
            budget: self.resources.tenant.budget(),
            items: gauge(Gauge::Count),
            compressed: gauge(Gauge::CompressedCount),
            compressed_bytes: gauge(Gauge::Compressed),
            inflated_bytes: gauge(Gauge::Inflated),
        }
    }

    /// Returns the sizes of items' slots, and how many are used. Takes some milliseconds for each GiB.
    pub fn size_classes(&self) -> Vec<SizeClass> {
        self.resources.tenant.size_classes()
    }

    /// Calls `f` with key and document of each living document in one group of a vBucket's index. Returns where to
    /// continue.
    pub fn list(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        hand: Hand,
        f: &mut dyn FnMut(Key<'_>, &Document<'_>),
    ) -> Result<Option<Hand>, Unavailable> {
        if self.attention.load(Relaxed) & (attention::FLUSH | attention::GATES) != 0 {
            self.attend(cx, vb)?;
        }
        Ok(self.lock(cx, vb).list(hand, f))
    }

    /// Returns the number of groups of a vBucket's index.
    pub fn index_groups(&self, cx: &mut ThreadContext, vb: VbId) -> u64 {
        self.lock(cx, vb).groups()
    }

    /// Calls `f` with size and idle seconds of each item of at most `groups` groups of each vBucket's index.
    pub fn sample(&self, cx: &mut ThreadContext, groups: usize, f: &mut dyn FnMut(usize, u32)) {
        for vb in 0..self.vbuckets() {
            let mut hand = Some(Hand::default());
            for _ in 0..groups {
                let Some(at) = hand else { break };
                hand = self.lock(cx, VbId(vb)).measure(at, f);
            }
        }
    }
}

impl Drop for Bucket {
    /// Frees item by item what does not go with the arena. Runs where the last reference is dropped, in time
    /// proportional to the number of items.
    fn drop(&mut self) {
        if memory::backend::ARENA_GOES_AS_A_WHOLE {
            return;
        }
        let tenant = &self.resources.tenant;
        let mut cache = tenant.cache(self.threads);
        for vbucket in &mut self.vbuckets {
            vbucket.end(&self.resources, &mut cache);
        }
        tenant.rest(&mut cache);
    }
}

/// Mixes a seed and a number into 64 bits (splitmix64).
pub(crate) fn scramble(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
