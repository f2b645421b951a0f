//! The heap and the tenant's arrays against models: what was written is read back, nothing overlaps, and the accounts
//! equal the sum of what is held.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::sync::Arc;

use memory::{Gauge, Heap, HeapChoice, ItemHeap, Location, Tenant, TenantVec};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Allocate(usize),
    Free(usize),
    Choose(HeapChoice),
    Rest,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![24usize..400, 400usize..40_000].prop_map(Step::Allocate),
        3 => any::<usize>().prop_map(Step::Free),
        1 => prop_oneof![Just(HeapChoice::Auto), Just(HeapChoice::Slab), Just(HeapChoice::Block)]
            .prop_map(Step::Choose),
        1 => Just(Step::Rest),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn items_hold_what_was_written_wherever_they_lie(steps in proptest::collection::vec(step(), 1..400)) {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut cache = tenant.cache(0);
        let heap = Heap::new(Arc::clone(&tenant), HeapChoice::Auto);
        let mut held: Vec<(Location, usize, u8)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let fill = number as u8;
            match step {
                Step::Allocate(size) => {
                    let location = heap.allocate(&mut cache, size, 7).unwrap();
                    prop_assert!(location.is_slab() == (size <= 32 << 10 && heap.choice() == HeapChoice::Slab));
                    prop_assert_eq!(Location::from_bits(location.bits()), Some(location));
                    // SAFETY: fresh memory of `size` bytes.
                    unsafe { heap.address(location).write_bytes(fill, size) };
                    held.push((location, size, fill));
                }
                Step::Free(choice) if !held.is_empty() => {
                    let (location, size, fill) = held.swap_remove(choice % held.len());
                    // SAFETY: a held item of `size` bytes, freed once.
                    unsafe {
                        let bytes = std::slice::from_raw_parts(heap.address(location).as_ptr(), size);
                        prop_assert!(bytes.iter().all(|byte| *byte == fill), "an item was written over");
                        heap.free(&mut cache, location, size);
                    }
                }
                Step::Free(_) => {}
                Step::Choose(choice) => heap.choose(choice),
                Step::Rest => tenant.rest(&mut cache),
            }
            let expected: usize = held.iter().map(|(location, size, _)| location.footprint(*size)).sum();
            prop_assert_eq!(tenant.gauge(Gauge::Items), expected as u64);
        }
        tenant.publish(&mut cache);
        let expected: usize = held.iter().map(|(location, size, _)| location.footprint(*size)).sum();
        prop_assert_eq!(tenant.used(), expected as u64 + tenant.gauge(Gauge::Index));
    }

    #[test]
    fn arrays_agree_with_vectors(steps in proptest::collection::vec((0u8..8, any::<u32>()), 1..600)) {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut cache = tenant.cache(0);
        let (mut array, mut model) = (TenantVec::new(), Vec::new());
        for (choice, value) in steps {
            match choice {
                0 if !model.is_empty() => {
                    let at = value as usize % model.len();
                    model.remove(at);
                    array.remove(at);
                }
                1 => {
                    model.truncate(value as usize % 200);
                    array.truncate(value as usize % 200);
                }
                2 => prop_assert!(array.resize(&tenant, &mut cache, value as usize % 100)),
                3 if value % 16 == 0 => {
                    model.clear();
                    array.clear(&tenant, &mut cache);
                }
                _ => {
                    model.push(value);
                    prop_assert!(array.push(&tenant, &mut cache, value));
                }
            }
            prop_assert_eq!(array.as_slice(), model.as_slice());
            prop_assert!(array.capacity() >= model.len());
        }
        array.clear(&tenant, &mut cache);
        prop_assert_eq!(tenant.gauge(Gauge::Index), 0);
    }
}

/// Moves blocks out of sparse slabs until a pass moves none, as a defragmenter does. Most pages of a half-empty heap
/// come free, and every block keeps its bytes. The accounts count each block once.
#[cfg(feature = "alloc-jemalloc")]
#[test]
fn moving_out_of_sparse_slabs_empties_them() {
    use memory::Occupancy;
    const SIZES: [usize; 4] = [64, 300, 1000, 9000];
    let tenant = Tenant::new(1, u64::MAX).unwrap();
    let mut cache = tenant.cache(0);
    let heap = memory::BlockHeap::new(Arc::clone(&tenant));
    let place = |location: Location, size: usize, fill: u8| {
        // SAFETY: a fresh block of `size` bytes.
        unsafe { heap.address(location).write_bytes(fill, size) };
    };
    let mut held: Vec<(Location, usize, u8)> = Vec::new();
    for number in 0..40_000usize {
        let (size, fill) = (SIZES[number % SIZES.len()], number as u8);
        let location = heap.allocate(&mut cache, size, 0).unwrap();
        place(location, size, fill);
        held.push((location, size, fill));
    }
    let mut random = 7u64;
    held.retain(|(location, size, _)| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let keep = random >> 63 == 0;
        if !keep {
            // SAFETY: a held block, freed once.
            unsafe { heap.free(&mut cache, *location, *size) };
        }
        keep
    });
    tenant.rest(&mut cache);
    let items = tenant.gauge(Gauge::Items);
    tenant.purge();
    let before = tenant.measure().unwrap();
    let mut moved = 0;
    for _ in 0..8 {
        let survey = tenant.survey().unwrap();
        if survey.recoverable_bytes() < items / 32 {
            break;
        }
        for (location, size, _) in &mut held {
            let from = heap.address(*location);
            let mut slab = [Occupancy::default()];
            tenant.occupancy(&[from], &mut slab);
            if !survey.is_sparse(slab[0]) || tenant.is_in_current_slab(from) {
                continue;
            }
            let to = heap.allocate_for_move(&mut cache, *location, *size, 0).unwrap();
            // SAFETY: both blocks are ours and `size` bytes long; the old one is freed once.
            unsafe {
                heap.address(to).copy_from_nonoverlapping(from, *size);
                heap.free_moved(&mut cache, *location, *size);
            }
            *location = to;
            moved += 1;
        }
    }
    tenant.purge();
    let after = tenant.measure().unwrap();
    assert_eq!(tenant.gauge(Gauge::Items), items);
    assert!(moved > 0 && moved < 2 * held.len(), "{moved} moves of {} blocks", held.len());
    assert!(before.resident as u64 > items * 3 / 2, "{} resident for {items}", before.resident);
    assert!((after.resident as u64) < items * 11 / 10, "{} resident for {items}", after.resident);
    for (location, size, fill) in held {
        // SAFETY: a held block of `size` bytes, freed once.
        unsafe {
            let bytes = std::slice::from_raw_parts(heap.address(location).as_ptr(), size);
            assert!(bytes.iter().all(|byte| *byte == fill), "a block was written over");
            heap.free(&mut cache, location, size);
        }
    }
    assert_eq!(tenant.gauge(Gauge::Items), 0);
}

/// Resident bytes of the 2 MiB blocks that contain these addresses.
#[cfg(feature = "alloc-jemalloc")]
fn resident_bytes_around(addresses: impl Iterator<Item = usize>) -> usize {
    const BLOCK: usize = 2 << 20;
    let blocks: std::collections::BTreeSet<usize> = addresses.map(|address| address / BLOCK).collect();
    let resident = |block: usize| {
        let mut pages = [0u8; BLOCK / 4096];
        let start = std::ptr::without_provenance_mut(block * BLOCK);
        // SAFETY: queries addresses, whatever lies there, and there is a byte for each page.
        let error = unsafe { libc::mincore(start, BLOCK, pages.as_mut_ptr()) };
        assert_eq!(error, 0, "chunks are whole blocks");
        pages.iter().filter(|page| **page & 1 == 1).count() * 4096
    };
    blocks.into_iter().map(resident).sum()
}

/// Where the kernel grants huge pages, the last one begun is resident as a whole.
#[cfg(feature = "alloc-jemalloc")]
#[test]
fn what_was_never_used_is_not_resident_after_a_rest() {
    const SIZE: usize = 1000;
    for kilobytes in [20_000, 20_500, 21_000, 21_500] {
        let tenant = Tenant::new(1, u64::MAX).unwrap();
        let mut cache = tenant.cache(0);
        let heap = memory::SlabHeap::new(Arc::clone(&tenant));
        let items: Vec<Location> =
            (0..kilobytes).map(|_| heap.allocate(&mut cache, SIZE, 0).unwrap()).collect();
        for location in &items {
            // SAFETY: a fresh slot of `SIZE` bytes.
            unsafe { heap.address(*location).write_bytes(7, SIZE) };
        }
        tenant.rest(&mut cache);
        tenant.purge_at_rest();
        let resident = resident_bytes_around(items.iter().map(|it| heap.address(*it).as_ptr().addr()));
        let slabs = usize::try_from(tenant.slab_figures().slab_bytes).unwrap();
        assert!(resident < slabs + (512 << 10), "{resident} resident for {slabs} of slabs");
        for location in items {
            // SAFETY: a slot in use, freed once.
            unsafe { heap.free(&mut cache, location, SIZE) };
        }
    }
}
