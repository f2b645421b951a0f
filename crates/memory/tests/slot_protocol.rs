//! The slot protocol under every interleaving: a thread that peeks at index memory ahead of the lock, and one that replaces
//! it. Run with `RUSTFLAGS="--cfg loom" cargo test -p memory --test slot_protocol --release`.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use memory::Quiescence;

const OLD: usize = 1;
const NEW: usize = 2;

/// A block that must not be looked at once it is freed.
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

/// A mover, by the rule of the heap: read the owner of a slot, take that vBucket's lock, look again, then move.
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
