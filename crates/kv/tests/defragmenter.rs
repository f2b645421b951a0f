//! What the defragmenter recovers, by the allocator's own figures: after a random half was deleted, after sizes have
//! changed, and under appending and rewriting. And that it rests when there is nothing to gain.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![cfg(feature = "alloc-jemalloc")]

use std::sync::Arc;

use kv::defragmenter::Demand;
use kv::{
    Bucket, BucketSettings, Expiry, HeapChoice, Key, Limits, Meter, Mutation, Node, NodeContext,
    NodeSettings, Now, Store, StoreKind, Value,
};

const START_S: u32 = 1_800_000_000;

struct World {
    cx: NodeContext,
    bucket: Arc<Bucket>,
    random: u64,
    /// Resident sizes seen.
    resident: Vec<u64>,
}

impl World {
    fn new(vbuckets: u16, item_heap: HeapChoice) -> Self {
        let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed: 7 };
        let node = Node::new(settings, Limits::default());
        let settings =
            BucketSettings { vbuckets, memory_bytes: 4 << 30, item_heap, ..BucketSettings::default() };
        let bucket = node.create_bucket("b", settings).unwrap();
        let mut cx = NodeContext::new(node, 0);
        cx.now = Now { unix_s: START_S, unix_ns: u64::from(START_S) * 1_000_000_000, mono_us: 0 };
        Self { cx, bucket, random: 1, resident: Vec::new() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.random ^ (self.random >> 29)) * u128::from(bound)) >> 64) as u64
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        let at = self.bucket.locate(Key::plain(key.as_bytes()));
        let value = Value::Bytes(value);
        let store = Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value, new_cas: 0 };
        let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
        self.bucket.mutate(&mut self.cx, Key::plain(key.as_bytes()), at, mutation).unwrap();
        self.cx.end_batch();
    }

    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let at = self.bucket.locate(Key::plain(key.as_bytes()));
        let seen = |document: Option<kv::Document<'_>>| document.map(|document| document.value().to_vec());
        self.bucket.read(&mut self.cx, Key::plain(key.as_bytes()), at, seen).unwrap()
    }

    fn remove(&mut self, key: &str) {
        let at = self.bucket.locate(Key::plain(key.as_bytes()));
        self.bucket.remove(&mut self.cx, Key::plain(key.as_bytes()), at, 0).unwrap();
        self.cx.end_batch();
    }

    /// What the pager's thread does when its doorbell rings. Returns true if the defragmenter wants another turn.
    fn page(&mut self) -> bool {
        self.cx.rest();
        self.cx.rest();
        kv::pager::turn(&mut self.cx);
        self.resident.push(self.bucket.memory().resident);
        kv::pager::defragment(&mut self.cx, &mut Demand::default()).rest_us.is_some()
    }

    /// Pages until nothing is due any more. Returns the number of turns.
    fn page_until_quiet(&mut self) -> usize {
        for turns in 0..100_000 {
            // Free pages are given back some seconds after much was freed.
            self.cx.now.unix_s += 5;
            if !self.page() && !self.page() {
                return turns;
            }
        }
        panic!("it never comes to an end");
    }

    /// Resident bytes over bytes in use, the latter without what size classes add.
    fn ratio(&self) -> f64 {
        let figures = self.bucket.memory();
        figures.resident as f64 / (figures.payload + figures.metadata + figures.index) as f64
    }
}

/// Runs it with either heap.
fn both(run: impl Fn(HeapChoice)) {
    for heap in [HeapChoice::Block, HeapChoice::Slab] {
        eprintln!("{heap:?}");
        run(heap);
    }
}

#[test]
fn after_a_random_half_was_deleted_its_pages_come_back() {
    both(after_a_random_half_was_deleted_its_pages_come_back_in);
}

fn after_a_random_half_was_deleted_its_pages_come_back_in(heap: HeapChoice) {
    const ITEMS: u64 = 60_000;
    let mut world = World::new(64, heap);
    let length = |number: u64| 500 + (number * 7919 % 1200) as usize;
    for number in 0..ITEMS {
        world.set(&format!("key-{number}"), &vec![number as u8; length(number)]);
    }
    let (full, gone): (f64, Vec<u64>) = (world.ratio(), (0..ITEMS).filter(|_| world.below(2) == 0).collect());
    for number in &gone {
        world.remove(&format!("key-{number}"));
    }
    let half = world.ratio();
    world.page_until_quiet();
    let after = world.ratio();
    let moved = world.bucket.meter(Meter::DefragmentedItems);
    eprintln!("resident over used: {full:.3} full, {half:.3} half, {after:.3} after {moved} moves");
    assert!(half > 1.6, "nothing to do: {half}");
    assert!(after < 1.15, "{after} is left of {half}");
    assert!(moved < ITEMS, "{moved} items moved of {}", ITEMS / 2);
    world.bucket.audit(&mut world.cx).unwrap();
    let mut gone = gone.into_iter().peekable();
    for number in 0..ITEMS {
        let expected = gone.next_if_eq(&number).is_none().then(|| vec![number as u8; length(number)]);
        assert_eq!(world.get(&format!("key-{number}")), expected);
    }
}

#[test]
fn after_the_sizes_have_changed_the_old_classes_are_given_up() {
    both(after_the_sizes_have_changed_the_old_classes_are_given_up_in);
}

fn after_the_sizes_have_changed_the_old_classes_are_given_up_in(heap: HeapChoice) {
    const ITEMS: u64 = 100_000;
    let mut world = World::new(16, heap);
    for number in 0..ITEMS {
        world.set(&format!("key-{number}"), &[1; 300]);
    }
    // Every other one grows into another class: the old one is half empty, evenly.
    for number in (0..ITEMS).step_by(2) {
        world.set(&format!("key-{number}"), &[2; 700]);
    }
    let before = world.ratio();
    world.page_until_quiet();
    let after = world.ratio();
    eprintln!("resident over used: {before:.3}, then {after:.3}");
    // Threads that take slabs empty others meanwhile.
    let (least, most) = if heap == HeapChoice::Slab { (1.1, 1.05) } else { (1.2, 1.15) };
    assert!(before > least && after < most, "{before}, then {after}");
    for number in 0..ITEMS {
        let expected = if number.is_multiple_of(2) { vec![2; 700] } else { vec![1; 300] };
        assert_eq!(world.get(&format!("key-{number}")).unwrap(), expected);
    }
}

#[test]
fn at_rest_less_is_left_than_while_clients_are_served() {
    const ITEMS: u64 = 60_000;
    let mut world = World::new(16, HeapChoice::Slab);
    for number in 0..ITEMS {
        world.set(&format!("key-{number}"), &[1; 1000]);
    }
    for number in (0..ITEMS).step_by(20) {
        world.remove(&format!("key-{number}"));
    }
    world.page_until_quiet();
    let served = world.bucket.memory();
    assert_eq!(world.bucket.meter(Meter::DefragmentedItems), 0, "not worth it while clients are served");
    while world.cx.rest_for_long() {}
    world.page_until_quiet();
    let rested = world.bucket.memory();
    assert!(served.resident - rested.resident > 2 << 20, "{served:?}, then {rested:?}");
    world.bucket.audit(&mut world.cx).unwrap();
    let moved = world.bucket.meter(Meter::DefragmentedItems);
    while world.cx.rest_for_long() {}
    world.page_until_quiet();
    assert_eq!(world.bucket.meter(Meter::DefragmentedItems), moved, "there is nothing left to be gained");
}

/// The append-and-rewrite test of the lab, small: read-modify-writes that append, over working sets of 80 % of all,
/// half and a quarter. The pager works beside it, a turn for every 200 operations.
#[test]
fn appending_and_rewriting_leaves_little_waste() {
    both(appending_and_rewriting_leaves_little_waste_in);
}

fn appending_and_rewriting_leaves_little_waste_in(heap: HeapChoice) {
    const ITEMS: u64 = 40_000;
    let object = |number: u64| format!("{{\"id\":\"{number:012}\",\"text\":\"appended, and rewritten\"}},");
    let mut world = World::new(64, heap);
    for number in 0..ITEMS {
        let objects = 11 + world.below(12) as usize;
        world.set(&format!("AB_{number:012}_0"), object(number).repeat(objects).as_bytes());
    }
    let mut operations = 0u64;
    for _ in 0..5 {
        for fraction in [1, 2, 4] {
            let working_set = ITEMS / fraction * 8 / 10;
            for _ in 0..ITEMS / fraction * 3 / 4 {
                let number = world.below(working_set);
                let key = format!("AB_{number:012}_0");
                let mut value = world.get(&key).unwrap();
                value.extend_from_slice(object(number).as_bytes());
                world.set(&key, &value);
                operations += 1;
                if operations.is_multiple_of(200) {
                    world.page();
                }
            }
        }
    }
    let figures = world.bucket.memory();
    let used = figures.payload + figures.metadata + figures.index;
    let mut resident = world.resident.clone();
    resident.sort_unstable();
    let most = resident[resident.len() * 99 / 100];
    let fragmentation = 1.0 - used as f64 / most as f64;
    let moved = world.bucket.meter(Meter::DefragmentedItems);
    eprintln!(
        "fragmentation {fragmentation:.3}, at the end {:.3}; {moved} items moved, {operations} operations",
        1.0 - used as f64 / figures.resident as f64
    );
    assert!(fragmentation < 0.16, "{fragmentation}");
    world.bucket.audit(&mut world.cx).unwrap();
}

#[test]
fn however_fast_keys_grow_what_slabs_have_free_is_bounded_without_the_pager() {
    const ITEMS: u64 = 60_000;
    let mut world = World::new(64, HeapChoice::Slab);
    let mut lengths = vec![100_usize; ITEMS as usize];
    let mut most = 0;
    for operation in 0..ITEMS * 12 {
        let number = world.below(ITEMS);
        let length = &mut lengths[number as usize];
        *length += 60;
        let length = *length;
        world.set(&format!("key-{number}"), &vec![number as u8; length]);
        if operation % 256 == 0 {
            let figures = world.bucket.memory();
            let free = figures.slabs - figures.slots;
            most = most.max(free.saturating_sub((figures.slots / 8).max(4 << 20)));
        }
    }
    eprintln!(
        "{most} bytes above the bound at most, {} items moved",
        world.bucket.meter(Meter::DefragmentedItems)
    );
    assert!(most < 2 << 20, "{most}");
    for number in 0..ITEMS {
        assert_eq!(
            world.get(&format!("key-{number}")).unwrap_or_default(),
            match lengths[number as usize] {
                100 => Vec::new(),
                length => vec![number as u8; length],
            }
        );
    }
}

/// Items stored while the bucket changes over from blocks to slabs: nothing is moved for it, and a block stays one
/// until it is rewritten.
#[test]
fn a_bucket_that_grows_goes_over_to_slabs_without_moving() {
    const ITEMS: u64 = 40_000;
    let mut world = World::new(16, HeapChoice::Auto);
    let slots = |world: &World| world.bucket.memory().slots;
    let mut blocks = 0;
    for number in 0..ITEMS {
        world.set(&format!("key-{number}"), &[number as u8; 300]);
        if number % 500 == 499 && slots(&world) == 0 {
            blocks = number + 1;
        }
    }
    assert!((5_000..15_000).contains(&blocks), "{blocks}");
    assert_eq!(world.bucket.meter(Meter::DefragmentedItems), 0);
    let before = slots(&world);
    for number in 0..blocks {
        world.set(&format!("key-{number}"), &[number as u8; 500]);
    }
    assert!(slots(&world) >= before + blocks * 500, "what is written anew is a slot");
    for number in 0..ITEMS {
        let length = if number < blocks { 500 } else { 300 };
        assert_eq!(world.get(&format!("key-{number}")).unwrap(), vec![number as u8; length]);
    }
    world.bucket.audit(&mut world.cx).unwrap();
}

#[test]
fn a_clean_bucket_and_a_small_one_do_not_arm_it() {
    both(a_clean_bucket_and_a_small_one_do_not_arm_it_in);
}

fn a_clean_bucket_and_a_small_one_do_not_arm_it_in(heap: HeapChoice) {
    let mut world = World::new(16, heap);
    for number in 0..50_000 {
        world.set(&format!("key-{number}"), &[1; 400]);
    }
    assert!(!world.page());
    for number in 0..50_000 {
        world.remove(&format!("key-{number}"));
    }
    world.page_until_quiet();
    for number in 0..2_000 {
        world.set(&format!("key-{number}"), &[1; 400]);
    }
    for number in (0..2_000).filter(|number| number % 3 != 0) {
        world.remove(&format!("key-{number}"));
    }
    assert_eq!(world.page_until_quiet(), 0);
    assert_eq!(world.bucket.meter(Meter::DefragmentedItems), 0);
}

#[test]
fn switched_off_it_moves_nothing_and_switched_on_it_begins() {
    both(switched_off_it_moves_nothing_and_switched_on_it_begins_in);
}

fn switched_off_it_moves_nothing_and_switched_on_it_begins_in(heap: HeapChoice) {
    const ITEMS: u64 = 50_000;
    let mut world = World::new(16, heap);
    world.bucket.set_defragmenter(false);
    for number in 0..ITEMS {
        world.set(&format!("key-{number}"), &[1; 1000]);
    }
    for number in 0..ITEMS {
        if world.below(2) == 0 {
            world.remove(&format!("key-{number}"));
        }
    }
    world.page_until_quiet();
    assert!(!world.bucket.defragmenter().is_on);
    assert_eq!(world.bucket.meter(Meter::DefragmentedItems), 0);
    let before = world.ratio();
    world.bucket.set_defragmenter(true);
    assert!(world.page(), "it is armed");
    assert!(world.bucket.defragmenter().is_armed);
    world.page_until_quiet();
    assert!(world.bucket.meter(Meter::DefragmentedItems) > 0);
    assert!(!world.bucket.defragmenter().is_armed);
    assert!(world.ratio() < before * 0.8, "{} of {before}", world.ratio());
}
