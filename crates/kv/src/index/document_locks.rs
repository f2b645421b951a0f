//! Locked documents (GET_LOCKED): a side table, since most vBuckets never have one.
//!
//! ```text
//!   cells   a power of two of them, at most three quarters in use; a lock lies in the first free cell behind that of its hash
//! ```
//! While a vBucket has any lock, every read or change of a document looks here: a probe or two, however many locks
//! there are. The hash is the bucket's, so clients cannot choose documents whose locks collide. An expired lock is
//! removed with its document, at the latest when the table would grow; so there are never more locks than documents.

use memory::{Tenant, TenantCache, TenantVec};
use rapidhash::v3::RapidSecrets;

use super::hashing::hash_stored;
use super::vbucket::Locked;
use crate::KvError;
use crate::VbState;

/// The cells of one cache line.
const CELLS_LEAST: usize = 4;
/// A table with more cells, of which fewer than an eighth are in use, shrinks.
const CELLS_KEPT: usize = 64;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct DocumentLock {
    /// Seqno of the locked item, which does not change while it is locked. 0: the cell is free.
    seqno: u64,
    until_s: u32,
}

/// The locks of a vBucket. All zero means none.
#[derive(Default)]
pub(super) struct DocumentLocks {
    cells: TenantVec<DocumentLock>,
    used: u32,
}

impl DocumentLocks {
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.cells.allocated_bytes()
    }

    pub(super) fn clear(&mut self, tenant: &Tenant, cache: &mut TenantCache) {
        self.cells.clear(tenant, cache);
        self.used = 0;
    }

    /// Returns the cell of a lock, or the free one where it would go, and how many others were probed; `None` without
    /// cells.
    fn look_up(&self, seqno: u64, secrets: &RapidSecrets) -> Option<(usize, usize)> {
        debug_assert!(seqno != 0);
        let cells = self.cells.as_slice();
        let mask = cells.len().checked_sub(1)?;
        let home = home(seqno, secrets);
        (0..cells.len()).find_map(|steps| {
            let at = home.wrapping_add(steps) & mask;
            let found = cells[at].seqno;
            (found == seqno || found == 0).then_some((at, steps))
        })
    }

    fn until_s(&self, seqno: u64, secrets: &RapidSecrets) -> Option<u32> {
        let (at, _) = self.look_up(seqno, secrets)?;
        let cell = self.cells.as_slice().get(at)?;
        (cell.seqno == seqno).then_some(cell.until_s)
    }

    /// Returns how many cells one more lock needs, if there are too few.
    fn wants_cells(&self, now_s: u32) -> Option<usize> {
        let cells = self.cells.as_slice();
        if (self.used as usize + 1) * 4 <= cells.len() * 3 {
            return None;
        }
        let living = cells.iter().filter(|cell| cell.seqno != 0 && cell.until_s > now_s).count();
        Some(((living + 1) * 2).next_power_of_two().max(CELLS_LEAST))
    }

    /// Moves the unexpired locks into this many cells, of which they take at most three quarters. Returns false, with
    /// nothing changed, if there is no memory.
    fn rebuild(
        &mut self,
        count: usize,
        now_s: u32,
        secrets: &RapidSecrets,
        tenant: &Tenant,
        cache: &mut TenantCache,
    ) -> bool {
        let mut rebuilt = Self::default();
        if !rebuilt.cells.resize(tenant, cache, count) {
            return false;
        }
        for _ in 0..count {
            let _has_room = rebuilt.cells.push(tenant, cache, DocumentLock::default());
        }
        for lock in self.cells.as_slice().iter().filter(|lock| lock.seqno != 0 && lock.until_s > now_s) {
            rebuilt.put(*lock, secrets);
        }
        std::mem::replace(self, rebuilt).clear(tenant, cache);
        true
    }

    /// Adds a lock, for which there is room, or overwrites it.
    fn put(&mut self, lock: DocumentLock, secrets: &RapidSecrets) {
        let Some((at, _)) = self.look_up(lock.seqno, secrets) else { return };
        let cell = &mut self.cells.as_mut_slice()[at];
        self.used += u32::from(cell.seqno == 0);
        *cell = lock;
    }

    /// Removes a lock; those behind it move up. Returns true if there was one.
    fn take(&mut self, seqno: u64, secrets: &RapidSecrets) -> bool {
        let Some((mut hole, _)) = self.look_up(seqno, secrets) else { return false };
        let cells = self.cells.as_mut_slice();
        if cells[hole].seqno != seqno {
            return false;
        }
        let mask = cells.len() - 1;
        let mut at = (hole + 1) & mask;
        while cells[at].seqno != 0 {
            // It must not move ahead of its home cell.
            let from_home = at.wrapping_sub(home(cells[at].seqno, secrets)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                cells[hole] = cells[at];
                hole = at;
            }
            at = (at + 1) & mask;
        }
        cells[hole] = DocumentLock::default();
        self.used -= 1;
        true
    }
}

fn home(seqno: u64, secrets: &RapidSecrets) -> usize {
    hash_stored(&seqno.to_le_bytes(), secrets) as usize
}

impl Locked<'_> {
    /// Returns true if any document of the vBucket may be locked, or wait for a commit.
    #[inline]
    pub(crate) fn has_holds(&self) -> bool {
        self.state.rare.as_ref().is_some_and(|rare| {
            !rare.locks.is_empty()
                || rare.prepares.is_some()
                || rare.sync_writes.as_ref().is_some_and(|sync| sync.role.state != VbState::Active)
        })
    }

    /// Returns until when a document is locked, if it is.
    #[inline]
    pub(crate) fn locked_until(&self, seqno: u64) -> Option<u32> {
        let rare = self.state.rare.as_ref().filter(|rare| !rare.locks.is_empty())?;
        let until_s = rare.locks.until_s(seqno, &self.memory.resources.secrets)?;
        (until_s > self.now.unix_s).then_some(until_s)
    }

    /// Locks an item. [`KvError::NoMemory`] if the bucket has no room for a larger table.
    pub(crate) fn lock_seqno(&mut self, seqno: u64, until_s: u32) -> Result<(), KvError> {
        let now_s = self.now.unix_s;
        if let Some(count) = self.state.rare.get_or_insert_default().locks.wants_cells(now_s)
            && (!self.has_room(count * size_of::<DocumentLock>()) || !self.rebuild_locks(count))
        {
            return Err(KvError::NoMemory);
        }
        let secrets = &self.memory.resources.secrets;
        self.state.rare.get_or_insert_default().locks.put(DocumentLock { seqno, until_s }, secrets);
        Ok(())
    }

    pub(crate) fn unlock_seqno(&mut self, seqno: u64) {
        let Some(rare) = self.state.rare.as_mut().filter(|rare| !rare.locks.is_empty()) else { return };
        if !rare.locks.take(seqno, &self.memory.resources.secrets) {
            return;
        }
        let (used, count) = (rare.locks.used as usize, rare.locks.cells.as_slice().len());
        if used == 0 {
            rare.locks.clear(&self.memory.resources.tenant, self.memory.cache);
        } else if count > CELLS_KEPT && used < count / 8 {
            // Without memory, the table keeps its size.
            self.rebuild_locks(count / 4);
        }
    }

    fn rebuild_locks(&mut self, count: usize) -> bool {
        let (resources, now_s) = (self.memory.resources, self.now.unix_s);
        let locks = &mut self.state.rare.get_or_insert_default().locks;
        locks.rebuild(count, now_s, &resources.secrets, &resources.tenant, self.memory.cache)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use memory::Gauge;

    use super::*;

    struct World {
        tenant: Arc<Tenant>,
        cache: TenantCache,
        secrets: RapidSecrets,
        locks: DocumentLocks,
    }

    impl World {
        fn new() -> Self {
            let tenant = Tenant::new(1, 1 << 30).unwrap();
            let cache = tenant.cache(0);
            Self { tenant, cache, secrets: RapidSecrets::seed(7), locks: DocumentLocks::default() }
        }

        fn lock(&mut self, seqno: u64, until_s: u32, now_s: u32) {
            if let Some(count) = self.locks.wants_cells(now_s) {
                assert!(self.locks.rebuild(count, now_s, &self.secrets, &self.tenant, &mut self.cache));
            }
            self.locks.put(DocumentLock { seqno, until_s }, &self.secrets);
        }

        fn until_s(&self, seqno: u64) -> Option<u32> {
            self.locks.until_s(seqno, &self.secrets)
        }

        /// Returns the cells probed besides the first, on average.
        fn steps(&self, seqnos: impl Iterator<Item = u64>) -> f64 {
            let (mut asked, mut steps) = (0u32, 0);
            for seqno in seqnos {
                asked += 1;
                steps += self.locks.look_up(seqno, &self.secrets).unwrap().1;
            }
            steps as f64 / f64::from(asked)
        }
    }

    #[test]
    fn it_does_what_a_map_does() {
        let (mut world, mut map, mut random) = (World::new(), HashMap::new(), 1u64);
        for round in 0..40_000u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let seqno = random >> 33 & 0x1ff | 1;
            if random >> 60 < 9 {
                world.lock(seqno, round + 1, 0);
                map.insert(seqno, round + 1);
            } else {
                assert_eq!(world.locks.take(seqno, &world.secrets), map.remove(&seqno).is_some());
            }
            assert_eq!(world.locks.used as usize, map.len());
            assert_eq!(world.until_s(seqno), map.get(&seqno).copied());
        }
        for seqno in 1..=0x200 {
            assert_eq!(world.until_s(seqno), map.get(&seqno).copied(), "{seqno}");
        }
    }

    #[test]
    fn sixty_thousand_cost_a_look_or_two() {
        let mut world = World::new();
        for seqno in 1..=60_000 {
            world.lock(seqno * 64, 30, 0);
        }
        let (locked, free) =
            (world.steps((1..=60_000).map(|n| n * 64)), world.steps((1..=60_000).map(|n| n * 64 + 1)));
        assert!(locked < 2.0 && free < 8.0, "{locked} and {free}");
        assert!(world.locks.allocated_bytes() <= 60_000 * 16 * 4);
    }

    #[test]
    fn those_that_are_over_make_room_and_an_empty_table_has_no_memory() {
        let mut world = World::new();
        for seqno in 1..=100_000 {
            let now_s = seqno as u32 / 100;
            world.lock(seqno, now_s + 1, now_s);
        }
        assert!(world.locks.allocated_bytes() <= 1024 * 16, "{}", world.locks.allocated_bytes());
        assert_eq!(world.until_s(100_000), Some(1001));
        assert_eq!(world.tenant.gauge(Gauge::Index), world.locks.allocated_bytes());
        world.locks.clear(&world.tenant, &mut world.cache);
        assert_eq!(world.tenant.gauge(Gauge::Index), 0);
    }
}
