//! Which sizes the slots of a tenant have, and how many of each are used.

use super::{Slabs, bytes_of, class::CLASSES};
use crate::tenant::Tenant;

/// Slots of one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SizeClass {
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Slots that hold items or that a thread has reserved.
    pub used: u64,
    /// All slots.
    pub slots: u64,
    /// The slabs that they are cut from.
    pub slabs: u64,
    /// Bytes of these.
    pub slab_bytes: u64,
}

impl Tenant {
    /// The size classes that have slabs, smallest first. Walks over all slabs, but holds their lock only for 2 MiB of
    /// them at a time, so slabs that come or go meanwhile may be missed.
    pub fn size_classes(&self) -> Vec<SizeClass> {
        self.slabs().map_or_else(Vec::new, Slabs::size_classes)
    }
}

impl Slabs {
    fn size_classes(&self) -> Vec<SizeClass> {
        let mut classes = [SizeClass::default(); CLASSES];
        let lists = self.lock();
        let regions = self.map.regions();
        drop(lists);
        for region in regions {
            let _lists = self.lock();
            self.map.for_each_page_of(region, &mut |page, slab| {
                if slab.base() == page {
                    let class = &mut classes[slab.class()];
                    class.slot_bytes = bytes_of(slab.class()) as u64;
                    class.used += slab.used() as u64;
                    class.slots += slab.slots() as u64;
                    class.slabs += 1;
                    class.slab_bytes += slab.bytes() as u64;
                }
            });
        }
        classes.into_iter().filter(|class| class.slabs > 0).collect()
    }
}
