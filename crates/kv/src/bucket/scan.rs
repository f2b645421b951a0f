//! Scans: the keys of a collection in one vBucket, in order or as a random sample; and walks over whole vBuckets.
//!
//! ```text
//!   create    one walk over the vBucket, in steps under its lock: the keys that match; then sorted
//!   continue  takes the scan out, reads some of its documents, puts it back
//! ```
//! The keys are those that were there during the whole creation, and some of others. Documents are read when they are
//! sent, so they may be newer, and those that are gone by then are left out. A scan that nobody continues ends after
//! [`LIFETIME_S`]. For other users than the one who created it there is no such scan.

use std::collections::{BinaryHeap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::Bucket;
use crate::index::{self, Hand};
use crate::{Key, ThreadContext, Unavailable, VbId};

/// Maximum seconds between two calls for a scan.
const LIFETIME_S: u32 = 180;
/// Most scans of a bucket at a time.
const COUNT_MAX: usize = 4096;
/// The scans of a bucket may take this part of its budget. Of both, a user leaves as much as it has.
const BUDGET_PART: u64 = 16;

/// Groups of the index that are walked over while the vBucket's lock is held, of some 30 items each.
const GROUPS_HELD: usize = 64;
/// How often a walk begins anew because the index has grown or shrunk; then it holds the lock to its end.
const WALKS_MAX: usize = 8;
/// Groups that [`Bucket::random_key`] looks at, and keys that are enough.
const GROUPS_MAX: usize = 16 << 10;
const KEYS_DRAWN: u64 = 64;

/// Names a scan.
pub type ScanId = [u8; 16];

/// Which keys a scan visits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// Those between two bounds, in order.
    Range(Bound<Vec<u8>>, Bound<Vec<u8>>),
    /// A random sample.
    Sample {
        /// Keys in the sample.
        count: usize,
        /// The same seed selects the same keys.
        seed: u64,
    },
}

/// Why there is no such scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanError {
    /// No key matches.
    Empty,
    /// There are too many scans of the user, or of all, or their keys take too much memory.
    Busy,
    /// See there.
    Unavailable(Unavailable),
}

/// Keys in the order of a scan.
#[derive(Default)]
struct Keys {
    bytes: Vec<u8>,
    /// Start and end of each in `bytes`.
    places: Vec<(u32, u32)>,
}

impl Keys {
    fn push(&mut self, key: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        // A vBucket's keys are far below 4 GiB.
        if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(self.bytes.len())) {
            self.places.push((start, end));
        }
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let (start, end) = *self.places.get(index)?;
        self.bytes.get(start as usize..end as usize)
    }

    fn from(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        (index..self.places.len()).filter_map(|index| self.get(index))
    }

    fn sort_by_key<K: Ord>(&mut self, rank: impl Fn(&[u8]) -> K) {
        let bytes = &self.bytes;
        self.places.sort_by_cached_key(|(start, end)| rank(&bytes[*start as usize..*end as usize]));
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        let text = |(start, end): &(u32, u32)| &bytes[*start as usize..*end as usize];
        self.places.sort_unstable_by(|one, other| text(one).cmp(text(other)));
    }

    fn memory(&self) -> u64 {
        (self.bytes.capacity() + self.places.capacity() * size_of::<(u32, u32)>()) as u64
    }
}

/// A scan in progress.
pub struct Scan {
    /// The vBucket.
    pub vb: VbId,
    /// The collection.
    pub collection: u32,
    /// Whether only keys were asked for.
    pub keys_only: bool,
    keys: Keys,
    next: usize,
    until_s: u32,
}

impl Scan {
    /// Returns the next key.
    pub fn key(&self) -> Option<&[u8]> {
        self.keys.get(self.next)
    }

    /// Goes on to the key after it.
    pub fn advance(&mut self) {
        self.next += 1;
    }

    /// Returns up to `count` keys after the next one.
    pub fn ahead(&self, count: usize) -> impl Iterator<Item = &[u8]> {
        self.keys.from(self.next + 1).take(count)
    }
}

/// A scan in the list of all.
struct Entry {
    /// Its memory.
    bytes: u64,
    /// The user who created it.
    user: Arc<str>,
    /// `None` while it is being continued.
    scan: Option<Scan>,
}

/// The scans of a bucket.
#[derive(Default)]
pub(crate) struct Scans {
    by_id: HashMap<ScanId, Entry>,
    bytes: u64,
    created: u64,
}

impl Scans {
    /// Returns true if a user with another scan leaves as much to others as it has.
    fn have_room(&self, user: &str, bytes: u64, bytes_most: u64) -> bool {
        let own = self.by_id.values().filter(|entry| *entry.user == *user);
        let (count, own_bytes) = own.fold((1, bytes), |(count, sum), entry| (count + 1, sum + entry.bytes));
        self.by_id.len() + 1 + count <= COUNT_MAX && self.bytes + bytes + own_bytes <= bytes_most
    }
}

/// The result of asking for a scan.
pub enum Taken {
    /// It is the caller's until [`Bucket::return_scan`] or [`Bucket::end_scan`].
    Scan(Scan),
    /// Another request continues it.
    Busy,
    /// There is none.
    Missing,
}

impl Bucket {
    /// Calls `f` with the keys of a collection in a vBucket, until it returns false; with `None` if the walk begins
    /// anew.
    fn walk_keys(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        collection: u32,
        f: &mut dyn FnMut(Option<&[u8]>) -> bool,
    ) -> Result<(), Unavailable> {
        let (mut hand, mut goes_on) = (Some(Hand::default()), true);
        let (mut groups, mut walks) = (None, 0);
        while goes_on && let Some(mut at) = hand {
            if let Some(why) = self.closed(vb) {
                return Err(why);
            }
            let locked = self.lock(cx, vb);
            if !self.has_collection(collection) {
                return Err(Unavailable::NoCollection);
            }
            if groups.replace(locked.groups()).is_some_and(|before| before != locked.groups()) {
                walks += 1;
                at = Hand::default();
                f(None);
            }
            let most = if walks < WALKS_MAX { GROUPS_HELD } else { usize::MAX };
            for _ in 0..most {
                hand = locked.keys(at, collection, &mut |key| goes_on &= f(Some(key)));
                let Some(next) = hand.filter(|_| goes_on) else { break };
                at = next;
            }
            locked.release();
        }
        Ok(())
    }

    /// Calls `f` with the size of every item in bytes (`stats sizes`).
    pub fn item_sizes(&self, cx: &mut ThreadContext, f: &mut dyn FnMut(usize)) {
        for vb in 0..self.vbuckets() {
            let mut hand = Some(Hand::default());
            while hand.is_some() {
                let locked = self.lock(cx, VbId(vb));
                for _ in 0..GROUPS_HELD {
                    hand = hand.and_then(|at| locked.sizes(at, f));
                }
                locked.release();
            }
        }
    }

    /// Returns the keys of a collection in a vBucket that are selected.
    fn keys_of(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        collection: u32,
        selection: &Selection,
        bytes_most: u64,
    ) -> Result<Keys, ScanError> {
        let secrets = &self.resources.secrets;
        let mut keys = Keys::default();
        self.walk_keys(cx, vb, collection, &mut |key| {
            let Some(key) = key else {
                keys = Keys::default();
                return true;
            };
            let is_selected = match selection {
                Selection::Range(start, end) => is_between(key, start, end),
                Selection::Sample { .. } => true,
            };
            if is_selected {
                keys.push(key);
            }
            keys.memory() <= bytes_most
        })
        .map_err(ScanError::Unavailable)?;
        if keys.memory() > bytes_most {
            return Err(ScanError::Busy);
        }
        match selection {
            Selection::Range(..) => keys.sort(),
            Selection::Sample { count, seed } => {
                keys.sort_by_key(|key| {
                    index::hash(Key::plain(key), secrets) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                });
                keys.places.truncate(*count);
            }
        }
        Ok(keys)
    }

    /// Starts a scan of a user.
    pub fn create_scan(
        &self,
        cx: &mut ThreadContext,
        user: &Arc<str>,
        (vb, collection): (VbId, u32),
        keys_only: bool,
        selection: &Selection,
    ) -> Result<ScanId, ScanError> {
        self.end_old_scans(cx.now.unix_s);
        let most = self.memory_figures().budget / BUDGET_PART;
        let keys = self.keys_of(cx, vb, collection, selection, most / 2)?;
        if keys.places.is_empty() {
            return Err(ScanError::Empty);
        }
        let until_s = cx.now.unix_s.saturating_add(LIFETIME_S);
        let scan = Scan { vb, collection, keys_only, keys, next: 0, until_s };
        let mut scans = self.scans.lock();
        if !scans.have_room(user, scan.keys.memory(), most) {
            return Err(ScanError::Busy);
        }
        scans.created += 1;
        let number = scans.created.to_be_bytes();
        let half = |part: u8| {
            let mut text = [part; 9];
            text[1..].copy_from_slice(&number);
            index::hash(Key::plain(&text), &self.resources.secrets).to_be_bytes()
        };
        let mut id = [0; 16];
        id[..8].copy_from_slice(&half(1));
        id[8..].copy_from_slice(&half(2));
        let bytes = scan.keys.memory();
        scans.bytes += bytes;
        scans.by_id.insert(id, Entry { bytes, user: Arc::clone(user), scan: Some(scan) });
        drop(scans);
        self.doorbell.ring();
        Ok(id)
    }

    /// Takes a scan of a user, to continue it.
    pub fn take_scan(&self, user: &str, id: &ScanId) -> Taken {
        match self.scans.lock().by_id.get_mut(id).filter(|entry| *entry.user == *user) {
            Some(entry) => entry.scan.take().map_or(Taken::Busy, Taken::Scan),
            None => Taken::Missing,
        }
    }

    /// Returns a scan that has more keys. It may have been ended meanwhile.
    pub fn return_scan(&self, id: &ScanId, mut scan: Scan, now_s: u32) {
        scan.until_s = now_s.saturating_add(LIFETIME_S);
        if let Some(entry) = self.scans.lock().by_id.get_mut(id) {
            entry.scan = Some(scan);
        }
    }

    /// Ends a scan of a user, also one that was taken. Returns true if there was one.
    pub fn end_scan(&self, user: &str, id: &ScanId) -> bool {
        let mut scans = self.scans.lock();
        if scans.by_id.get(id).is_none_or(|entry| *entry.user != *user) {
            return false;
        }
        scans.bytes -= scans.by_id.remove(id).map_or(0, |entry| entry.bytes);
        true
    }

    /// Returns the next document that a scan of a user will read: its collection and key.
    pub fn scan_next(&self, user: &str, id: &ScanId) -> Option<(u32, Box<[u8]>)> {
        let scans = self.scans.lock();
        let entry = scans.by_id.get(id).filter(|entry| *entry.user == *user)?;
        let scan = entry.scan.as_ref().filter(|scan| !scan.keys_only)?;
        Some((scan.collection, scan.key()?.into()))
    }

    /// Ends the scans that nobody has continued for long.
    pub(crate) fn end_old_scans(&self, now_s: u32) {
        let mut scans = self.scans.lock();
        let mut freed = 0;
        scans.by_id.retain(|_, entry| match &entry.scan {
            Some(old) if old.until_s <= now_s => {
                freed += entry.bytes;
                false
            }
            _ => true,
        });
        scans.bytes -= freed;
    }

    /// Returns when the first scan is to be ended, in unix seconds.
    pub(crate) fn scans_due_s(&self) -> Option<u32> {
        self.scans
            .lock()
            .by_id
            .values()
            .filter_map(|entry| entry.scan.as_ref())
            .map(|scan| scan.until_s)
            .min()
    }

    /// Returns the first `count` keys of a collection in a vBucket from `start` on, in order.
    pub fn keys_from(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        start: Key<'_>,
        count: usize,
    ) -> Result<Vec<Vec<u8>>, Unavailable> {
        let mut first = BinaryHeap::with_capacity(count);
        self.walk_keys(cx, vb, start.collection, &mut |key| {
            let Some(key) = key else {
                first.clear();
                return true;
            };
            if key < start.bytes || count == 0 {
                return true;
            }
            if first.len() < count {
                first.push(key.to_vec());
            } else if let Some(mut last) = first.peek_mut()
                && key < last.as_slice()
            {
                *last = key.to_vec();
            }
            true
        })?;
        Ok(first.into_sorted_vec())
    }

    /// Returns the key of some document of a collection, and its vBucket; `None` if it has none, or none was met in
    /// [`GROUPS_MAX`] groups of the index. Each call begins at another place.
    pub fn random_key(&self, cx: &mut ThreadContext, collection: u32) -> Option<(VbId, Vec<u8>)> {
        if self.collection_items(collection) == 0 {
            return None;
        }
        let ticket = cx.ticket() ^ cx.now.unix_ns;
        let random = index::hash(Key::plain(&ticket.to_be_bytes()), &self.resources.secrets);
        let first = random as u16;
        let mut groups = 0;
        for vb in (0..self.vbuckets()).map(|step| VbId(first.wrapping_add(step) & self.vbucket_mask)) {
            if self.closed(vb).is_some() {
                continue;
            }
            let (mut seen, mut chosen) = (0, None);
            let first = self.lock(cx, vb).hand_at(random >> 16);
            let (mut at, mut is_around) = (first, false);
            while groups < GROUPS_MAX && seen < KEYS_DRAWN && !(is_around && at >= first) {
                groups += 1;
                // Each key that is met takes the place of the last one with falling probability.
                let next = self.lock(cx, vb).keys(at, collection, &mut |key| {
                    seen += 1;
                    let draw = index::hash(Key::plain(key), &self.resources.secrets) ^ random;
                    if draw.wrapping_mul(0x9e37_79b9_7f4a_7c15).is_multiple_of(seen) {
                        chosen = Some(key.to_vec());
                    }
                });
                is_around |= next.is_none();
                at = next.unwrap_or_default();
            }
            if let Some(key) = chosen {
                return Some((vb, key));
            }
        }
        None
    }
}

fn is_between(key: &[u8], start: &Bound<Vec<u8>>, end: &Bound<Vec<u8>>) -> bool {
    let is_after_start = match start {
        Bound::Included(start) => key >= start.as_slice(),
        Bound::Excluded(start) => key > start.as_slice(),
        Bound::Unbounded => true,
    };
    is_after_start
        && match end {
            Bound::Included(end) => key <= end.as_slice(),
            Bound::Excluded(end) => key < end.as_slice(),
            Bound::Unbounded => true,
        }
}
