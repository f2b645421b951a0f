//! When a bucket's memory is measured, given back, or made room in: every threshold, and the decisions as pure
//! functions of figures. [`crate::bucket`] carries them out: eviction, defragmenter, compressor.
//!
//! ```text
//!   budget ─────────────────────────────────────────────────────────────────────
//!     refuse   above it new data waits for room, which its writer makes, or is refused
//!     high     above it the pager makes room ...
//!     low      ... down to here
//! ```
//! The accounts decide when the tenant's figures are out of date ([`memory::Tenant::wants_measure`]), since that
//! depends on how they are kept.

/// Every memory threshold of the engine. Per-mille are of the budget; for the watermarks, of what clients' buffers
/// leave of it.
pub(crate) struct Policy {
    /// Above this the pager makes room, per-mille,
    high: u64,
    /// down to this, per-mille.
    low: u64,
    /// Above this new data waits for room, or is refused, per-mille.
    refuse: u64,
    /// Above this even copies of what another node has wait for room, per-mille of the budget.
    pub(crate) copies: u64,
    /// How much lower each is for a persistent bucket, whose journal and flusher need memory besides the bucket's.
    persistent_lower: u64,
    /// Waste, per-mille, above which free pages are given back before anything is evicted.
    purge_waste: u64,
    /// The same for freed slabs: their pages are resident until they are given back or used again, and before a
    /// measurement knows of them.
    purge_freed: u64,
    /// Bound on these bytes in a large bucket: whoever gives them back waits for that.
    purge_freed_most: u64,
    /// Freed slabs are considered only if this much of the budget is used, per-mille.
    nearly_full: u64,
    /// Per-mille held by sparse slabs above which evicting does not help.
    sparse_waste: u64,
    /// The compressor begins above this part of the budget, per-mille,
    pub(crate) compress_from: u64,
    /// and ends below this.
    pub(crate) compress_to: u64,
    /// When the defragmenter has work: while clients are served,
    pub(crate) serving: Gain,
    /// and once threads have come to rest: a gain lasts longer then, and nobody waits for it.
    pub(crate) at_rest: Gain,
}

/// The least gain that is worth the defragmenter's work.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gain {
    /// Armed if more than this part of what is used is wasted, per mille,
    waste_per_mille: u64,
    /// and more than this many bytes.
    waste_least: u64,
    /// A pass must be able to gain this much, and less than that left over is clean: per mille of what is used,
    worth_per_mille: u64,
    /// and this many bytes.
    worth_least: u64,
    /// Slabs are emptied if this much of their class is free, per mille.
    pub(crate) slab_free_per_mille: u32,
}

pub(crate) static POLICY: Policy = Policy {
    high: 966,
    low: 956,
    refuse: 975,
    copies: 990,
    persistent_lower: 4,
    purge_waste: 10,
    purge_freed: 8,
    purge_freed_most: 32 << 20,
    nearly_full: 900,
    sparse_waste: 30,
    compress_from: 750,
    compress_to: 700,
    serving: Gain {
        waste_per_mille: 20,
        waste_least: 4 << 20,
        worth_per_mille: 16,
        worth_least: 2 << 20,
        slab_free_per_mille: 10,
    },
    at_rest: Gain {
        waste_per_mille: 10,
        waste_least: 2 << 20,
        worth_per_mille: 5,
        worth_least: 1 << 20,
        slab_free_per_mille: 4,
    },
};

/// What `used` is compared with, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watermarks {
    /// See [`Policy`].
    pub(crate) high: u64,
    /// See [`Policy`].
    pub(crate) low: u64,
    /// See [`Policy`].
    pub(crate) refuse: u64,
}

impl Policy {
    /// Returns the watermarks for `budget`: what clients' buffers leave of a bucket's budget.
    #[inline]
    pub(crate) fn watermarks(&self, budget: u64, is_persistent: bool) -> Watermarks {
        let lower = if is_persistent { self.persistent_lower } else { 0 };
        let mark = |per_mille: u64| budget / 1000 * (per_mille - lower);
        Watermarks { high: mark(self.high), low: mark(self.low), refuse: mark(self.refuse) }
    }

    /// Returns true if slabs have been freed whose pages are worth giving back.
    pub(crate) fn has_many_freed_slabs(&self, budget: u64, freed_slabs: u64) -> bool {
        freed_slabs > (budget / 1000 * self.purge_freed).min(self.purge_freed_most)
    }
}

impl Gain {
    /// Returns true if this much waste is reason enough to look for sparse slabs.
    pub(crate) fn is_wasteful(&self, used: u64, wasted: u64) -> bool {
        wasted > (used / 1000 * self.waste_per_mille).max(self.waste_least)
    }

    /// Returns the least gain worth a pass.
    pub(crate) fn worth_bytes(&self, used: u64) -> u64 {
        (used / 1000 * self.worth_per_mille).max(self.worth_least)
    }
}

/// What is known of a bucket's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    /// The whole budget.
    pub(crate) budget: u64,
    pub(crate) watermarks: Watermarks,
    /// What is compared with the watermarks.
    pub(crate) used: u64,
    /// The part of `used` in pages that hold nothing, as last measured.
    pub(crate) waste: u64,
    /// Slabs freed since pages were last given back.
    pub(crate) freed_slabs: u64,
    /// So much has changed since the last measurement that the waste may differ.
    pub(crate) wants_measure: bool,
    /// Documents, or values, may be evicted.
    pub(crate) may_evict: bool,
}

impl Figures {
    /// Above this much waste free pages are given back before anything is evicted.
    pub(crate) fn worth_purging(&self) -> u64 {
        self.budget / 1000 * POLICY.purge_waste
    }
}

/// What the pager has done since it began to look at a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) measured: bool,
    pub(crate) purged: bool,
}

/// What the pager does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing: resident memory is within the watermarks.
    Rest,
    /// Measure what is wasted.
    Measure,
    /// Give free pages back.
    Purge,
    /// Empty slabs down to `target`; nothing may be evicted.
    EmptySlabs { target: u64 },
    /// Evict down to `target`.
    Evict { target: u64 },
}

/// Returns the pager's next step for a bucket.
pub(crate) fn decide(figures: &Figures, done: Done) -> Action {
    let Figures { budget, watermarks: Watermarks { high, low, .. }, used, waste, freed_slabs, .. } = *figures;
    let mark = |per_mille: u64| budget / 1000 * per_mille;
    if !done.measured {
        return if used <= high && !figures.wants_measure { Action::Rest } else { Action::Measure };
    }
    let has_freed = POLICY.has_many_freed_slabs(budget, freed_slabs) && used > mark(POLICY.nearly_full);
    let is_wasteful = used > high && waste > figures.worth_purging();
    if !done.purged && (has_freed || is_wasteful) {
        return Action::Purge;
    }
    match figures.may_evict {
        _ if used <= high => Action::Rest,
        false => Action::EmptySlabs { target: low },
        true => Action::Evict { target: low },
    }
}

/// Returns true if eviction has left sparse slabs, so that more of it would empty the bucket: the defragmenter has to
/// come first.
pub(crate) fn left_sparse_slabs(used_before: u64, after: &Figures) -> bool {
    let was_fruitless = after.used > u64::midpoint(used_before, after.watermarks.low);
    was_fruitless && after.waste > after.budget / 1000 * POLICY.sparse_waste
}

/// The decision about new data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// There is room.
    Granted,
    /// Free pages take the room: they are given back before anything is evicted.
    Purge,
    /// Its writer makes room, down to `target`, then asks again.
    MakeRoom { target: u64 },
    /// There is no room.
    Refused,
}

/// Decides whether `bytes` more may be taken.
pub(crate) fn admit(figures: &Figures, bytes: u64, has_purged: bool) -> Admission {
    let refuse = figures.watermarks.refuse;
    if figures.used + bytes <= refuse {
        Admission::Granted
    } else if !figures.may_evict || bytes >= refuse {
        Admission::Refused
    } else if !has_purged && figures.waste > figures.worth_purging() {
        Admission::Purge
    } else {
        Admission::MakeRoom { target: refuse - bytes }
    }
}

#[cfg(test)]
mod tests;
