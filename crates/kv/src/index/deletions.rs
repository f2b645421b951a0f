//! Deletions that can be looked up: with a tombstone in the table, or, once that is flushed and freed, by what is
//! noted of it here.
//!
//! ```text
//!   block    first and last time, s | up to 46 entries, in the order of their seqnos
//!   entry    hash 5 | seqno 6 | CAS 8 | revision 3                                    22 bytes
//! ```
//! A note is read only for a key that the table does not have, and the newest one counts: so a key that is stored again
//! costs nothing here. The oldest blocks go when they are older than the bucket's `tombstone_age_s`, or when the
//! vBucket has more notes than its part of the budget allows. A note names its key by 40 bits of a hash with secret
//! seeds: of 10^9 look-ups of keys that never were, in a vBucket with 1000 notes, about one meets another key's note.

use memory::{Tenant, TenantCache, TenantVec};

use super::item::{Header, Kind};
use super::vbucket::Locked;
use crate::Key;

/// Entries of a block: 1 KiB of them.
const BLOCK_ENTRIES: usize = 46;
/// A block spans at most this part of the age, so that its first entries do not go much later than they may.
const BLOCKS_PER_AGE: u32 = 8;
/// A bucket's notes take at most this part of its budget; and a look-up reads at most so many.
const BUDGET_PART: u64 = 32;
const ENTRIES_MOST: u64 = 16 << 10;
/// A tombstone in the table of an ephemeral bucket that nobody follows is counted as this many bytes.
const TOMBSTONE_BYTES: u64 = 96;

/// A deletion, as it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// Its CAS.
    pub cas: u64,
    /// Its seqno.
    pub seqno: u64,
    /// Its revision.
    pub rev: u64,
}

#[derive(Clone, Copy)]
struct Entry([u8; 22]);

const _: () = assert!(size_of::<Entry>() == 22 && BLOCK_ENTRIES * size_of::<Entry>() <= 1024);

impl Entry {
    /// Returns `None` for a revision that has no room.
    fn new(hash: u64, deletion: &Deletion) -> Option<Self> {
        let (hash, seqno) = (mark_of(hash).to_le_bytes(), deletion.seqno.to_le_bytes());
        let (cas, rev) = (deletion.cas.to_le_bytes(), deletion.rev.to_le_bytes());
        if rev[3..] != [0; 5] || seqno[6..] != [0; 2] {
            return None;
        }
        let mut bytes = [0; 22];
        bytes[..5].copy_from_slice(&hash[..5]);
        bytes[5..11].copy_from_slice(&seqno[..6]);
        bytes[11..19].copy_from_slice(&cas);
        bytes[19..].copy_from_slice(&rev[..3]);
        Some(Self(bytes))
    }

    fn number<const FROM: usize, const LEN: usize>(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..LEN].copy_from_slice(&self.0[FROM..FROM + LEN]);
        u64::from_le_bytes(bytes)
    }

    fn mark(&self) -> u64 {
        self.number::<0, 5>()
    }

    fn deletion(&self) -> Deletion {
        Deletion { seqno: self.number::<5, 6>(), cas: self.number::<11, 8>(), rev: self.number::<19, 3>() }
    }
}

/// What an entry has of a key's hash.
fn mark_of(hash: u64) -> u64 {
    hash >> 24
}

struct Block {
    first_s: u32,
    last_s: u32,
    entries: TenantVec<Entry>,
}

/// What is noted of a vBucket's flushed deletions, oldest first.
#[derive(Default)]
pub(super) struct Deletions {
    blocks: TenantVec<Block>,
    len: u32,
}

impl Deletions {
    /// Notes a deletion made at `at_s`. Without memory it is not noted.
    fn push(&mut self, entry: Entry, at_s: u32, age_s: u32, tenant: &Tenant, cache: &mut TenantCache) {
        let is_open = |block: &&mut Block| {
            block.entries.as_slice().len() < BLOCK_ENTRIES
                && at_s.saturating_sub(block.first_s) <= age_s / BLOCKS_PER_AGE
        };
        if self.blocks.as_mut_slice().last_mut().filter(is_open).is_none() {
            let block = Block { first_s: at_s, last_s: at_s, entries: TenantVec::new() };
            if !self.blocks.push(tenant, cache, block) {
                return;
            }
        }
        let Some(block) = self.blocks.as_mut_slice().last_mut() else { return };
        block.last_s = block.last_s.max(at_s);
        let capacity = block.entries.capacity();
        let has_room = block.entries.as_slice().len() < capacity
            || block.entries.resize(tenant, cache, (2 * capacity + 1).min(BLOCK_ENTRIES));
        if has_room && block.entries.push(tenant, cache, entry) {
            self.len += 1;
        }
    }

    /// Forgets the oldest block while `is_old` says so.
    fn forget(
        &mut self,
        tenant: &Tenant,
        cache: &mut TenantCache,
        is_old: impl Fn(u32, &[Entry], u32) -> bool,
    ) {
        let mut gone = 0;
        for block in self.blocks.as_mut_slice() {
            if !is_old(self.len, block.entries.as_slice(), block.last_s) {
                break;
            }
            self.len -= block.entries.as_slice().len() as u32;
            block.entries.clear(tenant, cache);
            gone += 1;
        }
        (0..gone).for_each(|_| self.blocks.remove(0));
        if self.blocks.as_slice().is_empty() {
            self.blocks.clear(tenant, cache);
        }
    }

    fn find(&self, hash: u64, since_s: u32) -> Option<Deletion> {
        let blocks = self.blocks.as_slice().iter().rev().take_while(|block| block.last_s >= since_s);
        let mut entries = blocks.flat_map(|block| block.entries.as_slice().iter().rev());
        entries.find(|entry| entry.mark() == mark_of(hash)).map(Entry::deletion)
    }

    /// Returns the bytes of its blocks, as the accounts count them.
    pub(super) fn allocated_bytes(&self) -> u64 {
        let blocks = self.blocks.as_slice().iter();
        blocks.map(|block| block.entries.allocated_bytes()).sum::<u64>() + self.blocks.allocated_bytes()
    }
}

impl Locked<'_> {
    /// How long deletions can be looked up, in seconds; 0: as long as their tombstones are there for another reason.
    #[inline]
    fn age_s(&self) -> u32 {
        self.memory.resources.tombstone_age_s
    }

    /// Returns true if a deletion is to leave a tombstone: somebody has to be told, or it is to be looked up.
    #[inline]
    pub(super) fn leaves_tombstones(&self) -> bool {
        self.leaves_ends() || self.age_s() > 0
    }

    /// Returns this vBucket's part of what a bucket may use for deletions, in pieces of so many bytes.
    fn part_of_budget(&self, piece: u64) -> u64 {
        let resources = self.memory.resources;
        resources.watermarks().refuse / BUDGET_PART / u64::from(resources.vbuckets.max(1)) / piece
    }

    /// Returns how many tombstones an ephemeral vBucket keeps that nobody follows, and how long; `None` if none.
    pub(super) fn kept_tombstones(&self) -> Option<(usize, u32)> {
        let age_s = self.age_s();
        (age_s > 0 && !self.is_persistent())
            .then(|| (usize::try_from(self.part_of_budget(TOMBSTONE_BYTES)).unwrap_or(usize::MAX), age_s))
    }

    /// Notes the deletion whose flushed tombstone is about to be freed.
    pub(super) fn note_deletion(&mut self, hash: u64, header: &Header) {
        let (age_s, now_s, flushed_seqno) = (self.age_s(), self.now.unix_s, self.state.flushed_seqno);
        // The expiry of a tombstone is the time of the deletion.
        let (at_s, oldest_s) = (header.expiry.min(now_s), now_s.saturating_sub(age_s));
        if age_s == 0 || at_s < oldest_s || header.seqno <= flushed_seqno {
            return;
        }
        let deletion = Deletion { cas: header.cas, seqno: header.seqno, rev: header.rev };
        let Some(entry) = Entry::new(hash, &deletion) else { return };
        let most = self.part_of_budget(size_of::<Entry>() as u64).clamp(1, ENTRIES_MOST) as u32;
        let durable = self.state.rare.get_or_insert_default().durable.get_or_insert_default();
        let (tenant, cache) = (&self.memory.resources.tenant, &mut *self.memory.cache);
        durable.deletions.forget(tenant, cache, |len, entries, last_s| {
            let is_flushed = entries.last().is_none_or(|entry| entry.deletion().seqno <= flushed_seqno);
            len >= most || last_s < oldest_s || is_flushed
        });
        durable.deletions.push(entry, at_s, age_s, tenant, cache);
    }

    /// Forgets what flush_all has removed, or, when the vBucket begins anew, everything.
    pub(super) fn forget_deletions(&mut self, is_everything: bool) {
        let flushed_seqno = self.state.flushed_seqno;
        let Some(durable) = self.state.rare.as_mut().and_then(|rare| rare.durable.as_mut()) else { return };
        let (tenant, cache) = (&self.memory.resources.tenant, &mut *self.memory.cache);
        durable.deletions.forget(tenant, cache, |_, entries, _| {
            is_everything || entries.last().is_none_or(|entry| entry.deletion().seqno <= flushed_seqno)
        });
    }

    /// Returns the deletion of a key that the table does not have.
    fn noted_deletion(&self, hash: u64) -> Option<Deletion> {
        let since_s = self.now.unix_s.saturating_sub(self.age_s());
        let found = self.durable_if_any()?.deletions.find(hash, since_s)?;
        (found.seqno > self.state.flushed_seqno).then_some(found)
    }

    /// Returns the deletion of a key, if it can be looked up.
    pub(crate) fn deletion(&self, key: Key<'_>, hash: u64) -> Option<Deletion> {
        let Some(present) = self.find(key, hash) else { return self.noted_deletion(hash) };
        let Header { kind, cas, seqno, rev, .. } = self.header(present);
        let is_deleted = kind == Kind::Tombstone && seqno > self.state.flushed_seqno;
        is_deleted.then_some(Deletion { cas, seqno, rev })
    }

    /// Returns revision and CAS of what there is of a key: a document, a shadow, or a deletion.
    pub(crate) fn version_of(&self, stored_key: &[u8], hash: u64) -> Option<(u64, u64)> {
        let Some(present) = self.find_stored(stored_key, hash) else {
            return self.noted_deletion(hash).map(|deletion| (deletion.rev, deletion.cas));
        };
        let header = self.header(present);
        (header.seqno > self.state.flushed_seqno).then_some((header.rev, header.cas))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deletion(seqno: u64) -> Deletion {
        Deletion { cas: u64::MAX - seqno, seqno, rev: seqno + 1 }
    }

    #[test]
    fn an_entry_has_what_it_was_made_of() {
        let most = Deletion { cas: u64::MAX, seqno: (1 << 48) - 1, rev: (1 << 24) - 1 };
        let entry = Entry::new(u64::MAX - 5, &most).unwrap();
        assert_eq!((entry.deletion(), entry.mark()), (most, mark_of(u64::MAX - 5)));
        assert!(Entry::new(1, &Deletion { rev: 1 << 24, ..most }).is_none());
    }

    #[test]
    fn the_newest_note_of_a_key_counts_until_it_is_old() {
        let tenant = Tenant::new(1, 64 << 20).unwrap();
        let mut cache = tenant.cache(0);
        let mut notes = Deletions::default();
        let hash = |key: u64| key << 24 | 77;
        for seqno in 1..=1000 {
            let entry = Entry::new(hash(seqno % 300), &deletion(seqno)).unwrap();
            notes.push(entry, 5000 + seqno as u32, 800, &tenant, &mut cache);
        }
        assert_eq!(notes.len, 1000);
        assert_eq!(notes.find(hash(100), 0), Some(deletion(1000)));
        assert_eq!((notes.find(hash(101), 0), notes.find(hash(300), 0)), (Some(deletion(701)), None));
        // Its block, which ends with 920, is as old as its last entry.
        assert_eq!((notes.find(hash(7), 5920), notes.find(hash(7), 5921)), (Some(deletion(907)), None));
        // The blocks go whole, the oldest first.
        notes.forget(&tenant, &mut cache, |len, _, _| len > 500);
        assert!(notes.len <= 500 && notes.len > 500 - BLOCK_ENTRIES as u32);
        assert_eq!(notes.find(hash(100), 0), Some(deletion(1000)));
        notes.forget(&tenant, &mut cache, |_, _, _| true);
        assert_eq!((notes.len, notes.allocated_bytes(), notes.find(hash(100), 0)), (0, 0, None));
    }

    #[test]
    fn a_note_costs_at_most_24_bytes() {
        let tenant = Tenant::new(1, 64 << 20).unwrap();
        let mut cache = tenant.cache(0);
        let mut notes = Deletions::default();
        for seqno in 1..=10_000 {
            let entry = Entry::new(seqno << 24, &deletion(seqno)).unwrap();
            notes.push(entry, 5000, 800, &tenant, &mut cache);
            if seqno >= 1000 {
                let bytes = notes.allocated_bytes();
                assert!(bytes <= 24 * seqno + 512, "{bytes} for {seqno}");
            }
        }
        assert!(notes.allocated_bytes() <= 24 * 10_000, "{}", notes.allocated_bytes());
        notes.forget(&tenant, &mut cache, |_, _, _| true);
    }
}
