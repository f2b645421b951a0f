//! A walk over all slabs of a tenant, that believes neither the lists nor the accounts: for who checks both.

use std::collections::BTreeSet;

use super::slab::{SlabPtr, notes_bytes};
use super::{Slabs, bytes_of};
use crate::heap::Location;
use crate::tenant::Tenant;

/// What lies in slabs, as their own notes say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlabWalk {
    /// Slots that somebody owns.
    pub slots: u64,
    /// Bytes of these.
    pub slot_bytes: u64,
    /// Bytes of all slabs.
    pub slab_bytes: u64,
    /// Bytes of notes and page map, as the accounts count them.
    pub bookkeeping_bytes: u64,
}

impl Tenant {
    /// Walks over all slabs while their lock is held: no slab comes or goes meanwhile, but slots do, unless nobody uses
    /// the tenant. The error says what is wrong with a slab whatever happens to its slots.
    pub fn walk_slabs(&self) -> Result<SlabWalk, String> {
        self.slabs().map_or(Ok(SlabWalk::default()), Slabs::walk)
    }

    /// The vBucket in whose use the slot of a location is: `None` if it is free, or reserved, or in no slab.
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
            // Bits are set under the lock, and cleared before `used` is lowered: asked first, it is no less than what
            // is seen after.
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
