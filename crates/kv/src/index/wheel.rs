//! When the memory of expired items comes back: coarse time windows per vBucket.
//!
//! ```text
//!   list    start s | width s | entries: 32 bits of a key's hash each
//!   width   32 s up to half an hour ahead, 1024 s up to 18 hours, 32768 s beyond; 1 s up to a minute ahead, if exact
//! ```
//! An item has at least one entry at or before its expiry (its mark `EXPIRY_QUEUED`), found again by its hash: an entry
//! refers to no memory. When a narrow window has passed, each of its entries is looked up; what has expired is freed,
//! what was given a later expiry is entered again. A wide window is taken apart into narrower ones when it starts.
//! So the cost is per expiring item, never per living one, and an expired item is gone at most one narrow window late.
//! While somebody follows the vBucket, the wheel is *exact*: it takes narrow windows apart, too, and what expires is
//! gone in that second.

use memory::{Tenant, TenantCache, TenantVec};

use super::table::HashPart;

const WIDTHS_S: [u32; 4] = [1, 32, 1024, 32768];
/// Place of the narrow width.
const NARROW: usize = 1;
/// A width is used up to this many windows ahead.
const WINDOWS: u32 = 64;

struct List {
    start_s: u32,
    width_s: u32,
    entries: TenantVec<HashPart>,
}

impl List {
    /// When it must be processed: a narrow one when it has passed, one that is taken apart when it starts.
    fn due_s(&self, is_exact: bool) -> u32 {
        match self.width_s == WIDTHS_S[NARROW] && !is_exact {
            true => self.start_s.saturating_add(self.width_s),
            false => self.start_s,
        }
    }
}

/// The windows of one vBucket, in no order; there are a few dozen at most.
#[derive(Default)]
pub(crate) struct ExpiryWheel {
    lists: TenantVec<List>,
    is_exact: bool,
}

impl ExpiryWheel {
    /// Sets whether what expires is to be gone in that second.
    pub(super) fn set_exact(&mut self, is_exact: bool) {
        self.is_exact = is_exact;
    }

    /// Enters an item. Returns when its list is due; `None` if there is no memory.
    pub(crate) fn enter(
        &mut self,
        part: HashPart,
        expiry_s: u32,
        now_s: u32,
        tenant: &Tenant,
        cache: &mut TenantCache,
    ) -> Option<u32> {
        let ahead_s = expiry_s.saturating_sub(now_s);
        let is_exact = self.is_exact;
        let mut widths_s = WIDTHS_S.into_iter().skip(if is_exact { 0 } else { NARROW });
        let width_s =
            widths_s.find(|width_s| ahead_s / width_s < WINDOWS).unwrap_or(WIDTHS_S[WIDTHS_S.len() - 1]);
        let start_s = expiry_s - expiry_s % width_s;
        let lists = self.lists.as_mut_slice();
        if let Some(list) = lists.iter_mut().find(|list| (list.start_s, list.width_s) == (start_s, width_s)) {
            if list.entries.as_slice().len() == list.entries.capacity() {
                deduplicate(&mut list.entries);
            }
            return list.entries.push(tenant, cache, part).then(|| list.due_s(is_exact));
        }
        let mut entries = TenantVec::new();
        if !self.lists.reserve(tenant, cache) || !entries.push(tenant, cache, part) {
            return None;
        }
        let list = List { start_s, width_s, entries };
        let due_s = list.due_s(is_exact);
        self.lists.push(tenant, cache, list).then_some(due_s)
    }

    /// Returns when the next list is due, in unix seconds.
    pub(crate) fn due_s(&self) -> Option<u32> {
        self.lists.as_slice().iter().map(|list| list.due_s(self.is_exact)).min()
    }

    /// Takes up to `limit` entries out of the lists that are due.
    pub(crate) fn take_due(
        &mut self,
        now_s: u32,
        limit: usize,
        tenant: &Tenant,
        cache: &mut TenantCache,
        taken: &mut Vec<HashPart>,
    ) {
        while taken.len() < limit {
            let is_due = |list: &List| list.due_s(self.is_exact) <= now_s;
            let Some(at) = self.lists.as_slice().iter().position(is_due) else {
                return;
            };
            let list = &mut self.lists.as_mut_slice()[at];
            let len = list.entries.as_slice().len();
            let keep = len.saturating_sub(limit - taken.len());
            taken.extend_from_slice(&list.entries.as_slice()[keep..]);
            list.entries.truncate(keep);
            if keep == 0 {
                list.entries.clear(tenant, cache);
                self.lists.remove(at);
            }
        }
    }

    /// Returns the bytes of its blocks, as the accounts count them.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let lists = self.lists.as_slice().iter();
        lists.map(|list| list.entries.allocated_bytes()).sum::<u64>() + self.lists.allocated_bytes()
    }

    /// Frees all memory.
    pub(crate) fn clear(&mut self, tenant: &Tenant, cache: &mut TenantCache) {
        for list in self.lists.as_mut_slice() {
            list.entries.clear(tenant, cache);
        }
        self.lists.clear(tenant, cache);
    }
}

/// Removes repeated entries of a full list, so that touching the same keys again and again cannot make it grow.
fn deduplicate(entries: &mut TenantVec<HashPart>) {
    let slice = entries.as_mut_slice();
    slice.sort_unstable();
    let mut kept = 0;
    for at in 0..slice.len() {
        if at == 0 || slice[at] != slice[at - 1] {
            slice[kept] = slice[at];
            kept += 1;
        }
    }
    entries.truncate(kept);
}
