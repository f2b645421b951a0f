//! The slot protocol under every interleaving: a thread that peeks at index memory ahead of the lock, and one that
//! replaces it; the bitmaps of slabs and the lists they are in. Run with `RUSTFLAGS="--cfg loom" cargo test -p memory
//! --test slot_protocol --release`.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use memory::{ItemHeap, Location, Quiescence, SlabFigures, SlabHeap, Tenant, TenantCache, Victim};

const OLD: usize = 1;
const NEW: usize = 2;

/// A block that must not be read once it is freed.
struct World {
    quiescence: Quiescence,
    /// Which block the root points to.
    root: AtomicUsize,
    freed: AtomicBool,
}

#[test]
fn a_peeked_block_is_not_freed_before_the_peeker_leaves() {
    loom::model(|| {
        let world = Arc::new(World {
            quiescence: Quiescence::new(2),
            root: AtomicUsize::new(OLD),
            freed: AtomicBool::new(false),
        });
        let peeker = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.quiescence.enter(1);
                if world.root.load(Ordering::Acquire) == OLD {
                    assert!(!world.freed.load(Ordering::Relaxed), "peeked at a freed block");
                }
                world.quiescence.leave(1);
            })
        };
        world.root.store(NEW, Ordering::Release);
        let stamp = world.quiescence.stamp();
        if world.quiescence.has_passed(stamp) {
            world.freed.store(true, Ordering::Relaxed);
        }
        peeker.join().unwrap();
    });
}

#[test]
fn a_peeker_that_comes_again_does_not_hold_up_the_replacer() {
    loom::model(|| {
        let world = Arc::new(World {
            quiescence: Quiescence::new(2),
            root: AtomicUsize::new(OLD),
            freed: AtomicBool::new(false),
        });
        let peeker = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                for _ in 0..2 {
                    world.quiescence.enter(1);
                    if world.root.load(Ordering::Acquire) == OLD {
                        assert!(!world.freed.load(Ordering::Relaxed), "peeked at a freed block");
                    }
                    world.quiescence.leave(1);
                }
            })
        };
        world.root.store(NEW, Ordering::Release);
        let stamp = world.quiescence.stamp();
        if world.quiescence.has_passed(stamp) {
            world.freed.store(true, Ordering::Relaxed);
        }
        peeker.join().unwrap();
        assert!(world.quiescence.has_passed(stamp), "nobody is inside any more");
    });
}

/// A mover, by the rule of the heap: read the owner of a slot, take that vBucket's lock, check again, then move.
#[test]
fn a_mover_never_touches_a_slot_that_was_freed_and_reused_by_another_vbucket() {
    loom::model(|| {
        // One slot of the heap; its owner is written under the owner's lock. Two vBuckets.
        let owner = Arc::new(AtomicUsize::new(0));
        let locks = Arc::new([Mutex::new(Some(10usize)), Mutex::new(None::<usize>)]);
        let mover = {
            let (owner, locks) = (Arc::clone(&owner), Arc::clone(&locks));
            thread::spawn(move || {
                let seen = owner.load(Ordering::Acquire);
                if seen < 2 {
                    let mut item = locks[seen].lock().unwrap();
                    if owner.load(Ordering::Acquire) == seen {
                        // Still this vBucket's: its item is there, and may be moved.
                        *item = Some(item.expect("a slot whose owner holds no item") + 1);
                    }
                }
            })
        };
        // Meanwhile vBucket 0 frees its item, and vBucket 1 stores one into the same slot.
        {
            let mut item = locks[0].lock().unwrap();
            owner.store(2, Ordering::Release);
            *item = None;
        }
        {
            let mut item = locks[1].lock().unwrap();
            *item = Some(20);
            owner.store(1, Ordering::Release);
        }
        mover.join().unwrap();
        assert!(locks[0].lock().unwrap().is_none());
    });
}

/// A slot size of which a slab's first pages hold two.
const HALF: usize = 7400;

/// A tenant with a slab of two slots, both in use.
fn full_slab() -> (std::sync::Arc<Tenant>, TenantCache, Location, Location) {
    let tenant = Tenant::new(2, 1 << 30).unwrap();
    let mut cache = tenant.cache(0);
    let heap = SlabHeap::new(std::sync::Arc::clone(&tenant));
    let (one, other) =
        (heap.allocate(&mut cache, HALF, 1).unwrap(), heap.allocate(&mut cache, HALF, 2).unwrap());
    assert_eq!(tenant.slab_figures().slab_bytes, 16 << 10);
    (tenant, cache, one, other)
}

/// Frees a slot from a second thread.
fn free_beside(tenant: &std::sync::Arc<Tenant>, location: Location) -> thread::JoinHandle<()> {
    let tenant = std::sync::Arc::clone(tenant);
    thread::spawn(move || {
        let mut cache = tenant.cache(1);
        free(&tenant, &mut cache, location);
        tenant.rest(&mut cache);
    })
}

fn free(tenant: &std::sync::Arc<Tenant>, cache: &mut TenantCache, location: Location) {
    // SAFETY: a slot in use, freed once.
    unsafe { SlabHeap::new(std::sync::Arc::clone(tenant)).free(cache, location, HALF) }
}

#[test]
fn a_slab_whose_slots_are_freed_at_once_goes_back_once() {
    loom::model(|| {
        let (tenant, mut cache, one, other) = full_slab();
        let beside = free_beside(&tenant, one);
        free(&tenant, &mut cache, other);
        beside.join().unwrap();
        assert_eq!(tenant.slab_figures(), SlabFigures::default());
    });
}

#[test]
fn a_slot_is_reused_only_after_it_was_freed_and_its_slab_stays_while_it_is_used() {
    loom::model(|| {
        let (tenant, mut cache, one, other) = full_slab();
        let beside = free_beside(&tenant, one);
        let third = SlabHeap::new(std::sync::Arc::clone(&tenant)).allocate(&mut cache, HALF, 3).unwrap();
        assert_ne!(third, other);
        beside.join().unwrap();
        assert!(tenant.slab_figures().slot_bytes == 2 * third.capacity(HALF) as u64);
        free(&tenant, &mut cache, other);
        free(&tenant, &mut cache, third);
        tenant.rest(&mut cache);
        assert_eq!(tenant.slab_figures(), SlabFigures::default());
    });
}

#[test]
fn a_victim_outlives_its_slots_and_goes_back_once() {
    loom::model(|| {
        let (tenant, mut cache, one, other) = full_slab();
        free(&tenant, &mut cache, one);
        // The emptied slot is of the same size as those of a second slab, which makes the first worth emptying.
        let heap = SlabHeap::new(std::sync::Arc::clone(&tenant));
        let more =
            [heap.allocate(&mut cache, HALF, 1), heap.allocate(&mut cache, HALF, 1)].map(Option::unwrap);
        tenant.rest(&mut cache);
        free(&tenant, &mut cache, more[1]);
        let beside = free_beside(&tenant, other);
        if let Some(victim) = Victim::choose(&tenant, 0) {
            for (location, owner) in victim.occupied() {
                let _ = victim.holds(location, owner);
            }
        }
        beside.join().unwrap();
        free(&tenant, &mut cache, more[0]);
        tenant.rest(&mut cache);
        assert_eq!(tenant.slab_figures(), SlabFigures::default());
    });
}
