//! A walk over all slabs of a tenant that trusts neither the lists nor the accounts, for checks of both.

use std::collections::BTreeSet;

use super::slab::{SlabPtr, notes_bytes};
use super::{Slabs, bytes_of};
use crate::heap::Location;
use crate::tenant::Tenant;

/// What lies in slabs, according to their own notes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlabWalk {
    /// Slots that have an owner.
    pub slots: u64,
    /// Bytes of these.
    pub slot_bytes: u64,
    /// Bytes of all slabs.
    pub slab_bytes: u64,
    /// Bytes of notes and page map, as the accounts count them.
    pub bookkeeping_bytes: u64,
}

impl Tenant {
    /// Walks over all slabs under their lock. Slabs do not come or go meanwhile, but slots do unless the tenant is
    /// idle. An error describes a slab that is wrong whatever happens to its slots.
    pub fn walk_slabs(&self) -> Result<SlabWalk, String> {
        self.slabs().map_or(Ok(SlabWalk::default()), Slabs::walk)
    }

    /// The vBucket that uses the slot of a location; `None` if the slot is free, reserved, or in no slab.
    pub fn owner_of_slot(&self, location: Location) -> Option<u16> {
        let slab = self.slabs()?.map.find(location.address())?;
        slab.owner_of(location.address())
    }
}

impl Slabs {
    fn walk(&self) -> Result<SlabWalk, String> {
        let _lists = self.lock();
        let mut walk = SlabWalk::default();
        let mut slabs = BTreeSet::new();
        walk.bookkeeping_bytes = self.map.for_each_page(|page, slab| {
            if slab.base() == page {
                slabs.insert(slab.to_address());
            }
        });
        for slab in slabs.into_iter().filter_map(SlabPtr::from_address) {
            for page in (slab.base()..slab.base() + slab.bytes()).step_by(super::class::PAGE) {
                if self.map.find(page) != Some(slab) {
                    return Err(format!(
                        "the page {page:#x} of the slab at {:#x} is not its own",
                        slab.base()
                    ));
                }
            }
            // Bits are set under the lock, and cleared before `used` is lowered: read first, it is no less than the
            // number seen after.
            let used = slab.used();
            let owned: usize = (0..slab.words()).map(|word| slab.occupied(word).count()).sum();
            if owned > used || used > slab.slots() {
                let slots = slab.slots();
                return Err(format!(
                    "the slab at {:#x}: {owned} owned of {used} used of {slots}",
                    slab.base()
                ));
            }
            walk.slots += owned as u64;
            walk.slot_bytes += (owned * bytes_of(slab.class())) as u64;
            walk.slab_bytes += slab.bytes() as u64;
            walk.bookkeeping_bytes += crate::line_footprint(notes_bytes(slab.slots())) as u64;
        }
        Ok(walk)
    }
}
