#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet};

use super::slab::{BINS, NOBODY, WORD_SLOTS};
use super::*;
use crate::heap::{ItemHeap, SlabHeap};
use proptest::prelude::*;

/// Checks every slab's bits, owners and list, and every byte of the accounts, against what is held.
fn audit(tenant: &Tenant, held: &BTreeMap<usize, (usize, u16)>) -> Result<(), TestCaseError> {
    let Some(slabs) = tenant.slabs() else {
        prop_assert!(held.is_empty());
        return Ok(());
    };
    let lists = slabs.lock();
    let mut listed = BTreeSet::new();
    lists.for_each_listed(|bin, slab| {
        assert_eq!(usize::from(slab.proper_bin()), bin);
        assert!(listed.insert(slab.to_address()), "listed twice");
    });
    let mut found = BTreeMap::new();
    let (mut bytes, mut slots) = (0, 0);
    let mut bases = listed.clone();
    for address in held.keys() {
        let slab = slabs.map.find(*address);
        prop_assert!(slab.is_some(), "a slot outside of all slabs");
        bases.extend(slab.map(SlabPtr::to_address));
    }
    for slab in bases.into_iter().filter_map(SlabPtr::from_address) {
        prop_assert_eq!(usize::from(slab.proper_bin()) < BINS, listed.contains(&slab.to_address()));
        for page in (slab.base()..slab.base() + slab.bytes()).step_by(class::PAGE) {
            prop_assert!(slabs.map.find(page) == Some(slab));
        }
        bytes += slab.bytes();
        slots += slab.slots();
        for word in 0..slab.words() {
            for (address, owner) in slab.occupied(word) {
                prop_assert!(owner != NOBODY);
                prop_assert!(found.insert(address, (bytes_of(slab.class()), owner)).is_none());
            }
        }
        let in_use = (0..slab.words()).map(|word| slab.occupied(word).count()).sum::<usize>();
        prop_assert!(slab.is_reserved() || in_use == slab.used(), "{in_use} of {}", slab.used());
    }
    prop_assert_eq!(&found, held);
    // Neither way finds a slab all of whose slots are reserved.
    let (all_bytes, all_slots) = lists.totals();
    prop_assert!(all_bytes >= bytes && all_slots >= slots);
    prop_assert_eq!(tenant.slab_bytes(), all_bytes as u64);
    let in_slots: usize = held.values().map(|(bytes, _)| bytes).sum();
    prop_assert_eq!(tenant.gauge(Gauge::Slots), in_slots as u64);
    prop_assert_eq!(tenant.gauge(Gauge::Items), in_slots as u64);
    drop(lists);
    let walk = SlabWalk {
        slots: held.len() as u64,
        slot_bytes: in_slots as u64,
        slab_bytes: all_bytes as u64,
        bookkeeping_bytes: tenant.bookkeeping_bytes(),
    };
    prop_assert_eq!(tenant.walk_slabs(), Ok(walk));
    let classes = tenant.size_classes();
    prop_assert!(classes.is_sorted_by_key(|class| class.slot_bytes));
    prop_assert_eq!(classes.iter().map(|class| class.slab_bytes).sum::<u64>(), all_bytes as u64);
    prop_assert_eq!(classes.iter().map(|class| class.slots).sum::<u64>(), all_slots as u64);
    for class in &classes {
        let held = held.values().filter(|(bytes, _)| *bytes as u64 == class.slot_bytes).count() as u64;
        // The rest is reserved: by each thread at most a word of slots.
        let most = (held + (THREADS * WORD_SLOTS) as u64).min(class.slots);
        prop_assert!((held..=most).contains(&class.used), "{held} of {class:?}");
    }
    for (address, (_, owner)) in held {
        prop_assert_eq!(tenant.owner_of_slot(Location::of_slot(*address)), Some(*owner));
    }
    Ok(())
}

#[derive(Debug, Clone)]
enum Step {
    Allocate { thread: usize, size: usize, times: usize },
    Free { thread: usize, choice: usize, times: usize },
    Resize { thread: usize, choice: usize, size: usize },
    Rest { thread: usize },
    Empty { keep: usize },
}

const THREADS: usize = 3;
/// Miri is slow for each access.
const TIMES_MAX: usize = if cfg!(miri) { 12 } else { 200 };
const CASES: u32 = if cfg!(miri) { 4 } else { 96 };
const STEPS_MAX: usize = if cfg!(miri) { 16 } else { 80 };

fn step() -> impl Strategy<Value = Step> {
    let size = || prop_oneof![6 => 20usize..400, 3 => 400usize..4000, 1 => 4000usize..=class::SLOT_MAX];
    prop_oneof![
        4 => (0..THREADS, size(), 1..TIMES_MAX)
            .prop_map(|(thread, size, times)| Step::Allocate { thread, size, times: times.min((200 << 10) / size) }),
        3 => (0..THREADS, any::<usize>(), 1..TIMES_MAX)
            .prop_map(|(thread, choice, times)| Step::Free { thread, choice, times }),
        3 => (0..THREADS, any::<usize>(), size())
            .prop_map(|(thread, choice, size)| Step::Resize { thread, choice, size }),
        1 => (0..THREADS).prop_map(|thread| Step::Rest { thread }),
        1 => (0usize..4).prop_map(|keep| Step::Empty { keep }),
    ]
}

struct World {
    tenant: Arc<Tenant>,
    heap: SlabHeap,
    caches: Vec<TenantCache>,
    /// Location, size, owner and fill byte.
    items: Vec<(Location, usize, u16, u8)>,
    filled: u8,
}

impl World {
    fn new() -> Self {
        let tenant = Tenant::new(THREADS, 1 << 30).unwrap();
        let caches = (0..THREADS).map(|thread| tenant.cache(thread)).collect();
        Self { heap: SlabHeap::new(Arc::clone(&tenant)), tenant, caches, items: Vec::new(), filled: 0 }
    }

    fn allocate(&mut self, thread: usize, size: usize) {
        self.filled = self.filled.wrapping_add(1);
        let owner = u16::from(self.filled) * 3;
        let location = self.heap.allocate(&mut self.caches[thread], size, owner).unwrap();
        assert!(location.is_slab() && location.capacity(size) >= size);
        // SAFETY: a new slot with room for its capacity.
        unsafe { location.pointer().write_bytes(self.filled, location.capacity(size)) };
        self.items.push((location, size, owner, self.filled));
    }

    fn free(&mut self, thread: usize, choice: usize) {
        let (location, size, _, fill) = self.items.swap_remove(choice % self.items.len());
        // SAFETY: an item that is held, freed once.
        unsafe {
            let bytes = std::slice::from_raw_parts(location.pointer().as_ptr(), location.capacity(size));
            assert!(bytes.iter().all(|byte| *byte == fill), "a slot was written over");
            self.heap.free(&mut self.caches[thread], location, size);
        }
    }

    fn free_all(&mut self) {
        while !self.items.is_empty() {
            self.free(0, 0);
        }
        for cache in &mut self.caches {
            self.tenant.rest(cache);
        }
        assert_eq!(self.tenant.slab_bytes(), 0, "empty slabs go back");
        assert_eq!(self.tenant.gauge(Gauge::Items), 0);
    }

    fn held(&self) -> BTreeMap<usize, (usize, u16)> {
        let of = |(location, size, owner, _): &(Location, usize, u16, u8)| {
            (location.address(), (location.capacity(*size), *owner))
        };
        self.items.iter().map(of).collect()
    }

    /// Moves what a victim holds, except the first `keep` items.
    fn empty(&mut self, keep: usize, free_per_mille: u32) {
        let Some(victim) = Victim::choose(&self.tenant, free_per_mille) else { return };
        let occupied: Vec<(Location, u16)> = victim.occupied().collect();
        assert_eq!(occupied.len(), victim.used());
        for (from, owner) in occupied.into_iter().skip(keep) {
            assert!(victim.holds(from, owner) && !victim.holds(from, owner + 1));
            let at = self.items.iter().position(|item| item.0 == from).unwrap();
            let size = self.items[at].1;
            let to = self.heap.allocate(&mut self.caches[0], size, owner).unwrap();
            // SAFETY: two slots of one class; the old one is held, and freed once.
            unsafe {
                to.pointer().copy_from_nonoverlapping(from.pointer(), to.capacity(size));
                self.heap.free(&mut self.caches[0], from, size);
            }
            assert!(victim.occupied().all(|(location, _)| location != to), "moved into the victim");
            assert!(!victim.holds(from, owner));
            self.items[at].0 = to;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn slots_hold_what_was_written_and_are_accounted_for(steps in proptest::collection::vec(step(), 1..STEPS_MAX)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Allocate { thread, size, times } => (0..times).for_each(|_| world.allocate(thread, size)),
                Step::Free { thread, choice, times } => {
                    for number in 0..times.min(world.items.len()) {
                        world.free(thread, choice.wrapping_add(number * 7));
                    }
                }
                Step::Resize { thread, choice, size } if !world.items.is_empty() => {
                    world.allocate(thread, size);
                    world.free(thread, choice);
                }
                Step::Resize { .. } => {}
                Step::Rest { thread } => world.tenant.rest(&mut world.caches[thread]),
                Step::Empty { keep } => world.empty(keep, 50),
            }
            audit(&world.tenant, &world.held())?;
        }
        world.free_all();
        audit(&world.tenant, &world.held())?;
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes too many items")]
fn the_fullest_slab_is_used_first_and_the_emptiest_goes() {
    let mut world = World::new();
    (0..20_000).for_each(|_| world.allocate(0, 1000));
    world.tenant.rest(&mut world.caches[0]);
    let full = world.tenant.slab_figures();
    assert!(full.slab_bytes - full.slot_bytes < full.slab_bytes / 40, "{full:?}");
    let mut random = 1u64;
    let mut free_half = |world: &mut World| {
        for _ in 0..world.items.len() / 2 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            world.free(1, (random >> 33) as usize);
        }
    };
    free_half(&mut world);
    let sparse = world.tenant.slab_figures();
    assert!(sparse.slab_bytes > sparse.slot_bytes * 18 / 10, "{sparse:?}");
    let mut victims = 0;
    while Victim::choose(&world.tenant, 50).is_some() {
        world.empty(0, 50);
        victims += 1;
        assert!(victims < 1000);
    }
    world.tenant.rest(&mut world.caches[0]);
    let dense = world.tenant.slab_figures();
    assert_eq!(dense.slot_bytes, sparse.slot_bytes);
    assert!(dense.slab_bytes < dense.slot_bytes * 108 / 100, "{dense:?} after {victims} victims");
}

/// A class that has shrunk has large slabs, and the next one is small. If all the large ones are full, there is nothing
/// to gain.
#[test]
fn emptying_comes_to_an_end() {
    let mut world = World::new();
    (0..800).for_each(|_| world.allocate(0, 1100));
    world.items.reverse();
    for last in (400..800).rev() {
        world.free(0, last);
    }
    let slabs = world.tenant.slab_figures().slab_bytes;
    while world.tenant.slab_figures().slab_bytes <= slabs {
        world.allocate(0, 1100);
    }
    for turns in 0.. {
        world.tenant.rest(&mut world.caches[0]);
        if Victim::choose(&world.tenant, 10).is_none() {
            break;
        }
        world.empty(0, 10);
        assert!(turns < 10, "{:?}", world.tenant.slab_figures());
    }
    world.free_all();
}

#[test]
#[cfg_attr(miri, ignore = "takes too many items")]
fn many_threads_and_classes_keep_little_of_a_small_tenant() {
    const MANY: usize = 8;
    let tenant = Tenant::new(MANY, 1 << 30).unwrap();
    let heap = SlabHeap::new(Arc::clone(&tenant));
    let mut caches: Vec<TenantCache> = (0..MANY).map(|thread| tenant.cache(thread)).collect();
    for (number, size) in (0..4000).zip((40..2000).step_by(4).cycle()) {
        heap.allocate(&mut caches[number % MANY], size, 0).unwrap();
    }
    let figures = tenant.slab_figures();
    let classes = (40..2000).map(class_of).collect::<BTreeSet<_>>().len() as u64;
    assert!(figures.slab_bytes < figures.slot_bytes + classes * (20 << 10), "{figures:?}");
}

#[test]
#[cfg_attr(miri, ignore = "takes too many items")]
fn what_slabs_have_free_is_used_only_beyond_a_part_of_the_budget() {
    let budget = 64 << 20;
    let tenant = Tenant::new(1, budget).unwrap();
    let heap = SlabHeap::new(Arc::clone(&tenant));
    let mut cache = tenant.cache(0);
    let locations: Vec<Location> = (0..100_000).map(|_| heap.allocate(&mut cache, 300, 0).unwrap()).collect();
    tenant.publish(&mut cache);
    let full = tenant.used();
    assert_eq!(full, tenant.gauge(Gauge::Items) + tenant.gauge(Gauge::Index));
    for location in locations.iter().step_by(2) {
        // SAFETY: allocated above with this size.
        unsafe { heap.free(&mut cache, *location, 300) }
    }
    tenant.publish(&mut cache);
    let figures = tenant.slab_figures();
    let slack = figures.slab_bytes - figures.slot_bytes;
    assert_eq!(
        tenant.used(),
        tenant.gauge(Gauge::Items) + tenant.gauge(Gauge::Index) + slack
            - budget / crate::tenant::SLACK_FRACTION.cast_unsigned(),
        "{figures:?}"
    );
}

#[test]
fn who_sees_a_slot_free_sees_that_something_changed() {
    let tenant = Tenant::new(2, 1 << 30).unwrap();
    let heap = SlabHeap::new(Arc::clone(&tenant));
    let [mut allocates, mut frees] = [0, 1].map(|thread| tenant.cache(thread));
    let location = heap.allocate(&mut allocates, 500, 0).unwrap();
    tenant.rest(&mut allocates);
    let walk = tenant.slabs().unwrap().lock();
    let before = tenant.gauge(Gauge::Changes);
    std::thread::scope(|scope| {
        // Its slab is freed with it, so the thread waits for the walk.
        // SAFETY: an item that is held, freed once.
        scope.spawn(|| unsafe { heap.free(&mut frees, location, 500) });
        while tenant.owner_of_slot(location).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(tenant.gauge(Gauge::Changes), before + 1);
        assert!(tenant.gauge(Gauge::Slots) > 0, "not counted yet");
        drop(walk);
    });
    assert_eq!((tenant.gauge(Gauge::Slots), tenant.slab_bytes()), (0, 0));
}

#[test]
fn threads_that_free_for_one_another_lose_nothing() {
    const OPERATIONS: usize = if cfg!(miri) { 400 } else { 60_000 };
    let tenant = Tenant::new(THREADS, 1 << 30).unwrap();
    let queues: Vec<parking_lot::Mutex<Vec<(Location, usize)>>> =
        (0..THREADS).map(|_| parking_lot::Mutex::default()).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (tenant, queues) = (&tenant, &queues);
            scope.spawn(move || {
                let heap = SlabHeap::new(Arc::clone(tenant));
                let mut cache = tenant.cache(thread);
                let mut random = thread as u64 + 1;
                for _ in 0..OPERATIONS {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let queue = &queues[(random >> 40) as usize % THREADS];
                    if random >> 63 == 0 {
                        let size = 100 + (random >> 50) as usize % 300 * 10;
                        let location = heap.allocate(&mut cache, size, thread as u16).unwrap();
                        // SAFETY: a new slot of this size.
                        unsafe { location.pointer().write_bytes(location.address() as u8 >> 3, size) };
                        queue.lock().push((location, size));
                    } else if let Some((location, size)) = { queue.lock().pop() } {
                        // SAFETY: a held slot, freed once.
                        unsafe {
                            let bytes = std::slice::from_raw_parts(location.pointer().as_ptr(), size);
                            assert!(bytes.iter().all(|byte| *byte == location.address() as u8 >> 3));
                            heap.free(&mut cache, location, size);
                        }
                    }
                    if random >> 50 & 0xfff == 0 {
                        drop(Victim::choose(tenant, 100));
                    }
                }
                tenant.rest(&mut cache);
            });
        }
    });
    let mut cache = tenant.cache(0);
    let held: usize = queues
        .iter()
        .map(|queue| queue.lock().iter().map(|(at, size)| at.capacity(*size)).sum::<usize>())
        .sum();
    assert_eq!(tenant.gauge(Gauge::Slots), held as u64);
    let heap = SlabHeap::new(Arc::clone(&tenant));
    for (location, size) in queues.iter().flat_map(|queue| std::mem::take(&mut *queue.lock())) {
        // SAFETY: a held slot, freed once.
        unsafe { heap.free(&mut cache, location, size) }
    }
    tenant.rest(&mut cache);
    assert_eq!((tenant.slab_bytes(), tenant.gauge(Gauge::Items)), (0, 0));
}
