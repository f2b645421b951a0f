//! The block heap and the tenant's arrays against models: what was written is read back, nothing overlaps, and the accounts
//! equal the sum of what is held.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::sync::Arc;

use memory::{BlockHeap, Gauge, ItemHeap, Location, Tenant, TenantVec, size_class};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Allocate(usize),
    Free(usize),
    Rest,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![24usize..400, 400usize..40_000].prop_map(Step::Allocate),
        3 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Rest),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn blocks_hold_what_was_written(steps in proptest::collection::vec(step(), 1..400)) {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut cache = tenant.cache(0);
        let heap = BlockHeap::new(Arc::clone(&tenant));
        let mut held: Vec<(Location, usize, u8)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let fill = number as u8;
            match step {
                Step::Allocate(size) => {
                    let location = heap.allocate(&mut cache, size, 7).unwrap();
                    prop_assert!(!location.is_slab());
                    prop_assert_eq!(Location::from_bits(location.bits()), Some(location));
                    // SAFETY: a fresh block of `size` bytes.
                    unsafe { heap.address(location).write_bytes(fill, size) };
                    held.push((location, size, fill));
                }
                Step::Free(choice) if !held.is_empty() => {
                    let (location, size, fill) = held.swap_remove(choice % held.len());
                    // SAFETY: a held block of `size` bytes, freed once.
                    unsafe {
                        let bytes = std::slice::from_raw_parts(heap.address(location).as_ptr(), size);
                        prop_assert!(bytes.iter().all(|byte| *byte == fill), "a block was written over");
                        heap.free(&mut cache, location, size);
                    }
                }
                Step::Free(_) => {}
                Step::Rest => tenant.rest(&mut cache),
            }
            let expected: usize = held.iter().map(|(_, size, _)| size_class(*size)).sum();
            prop_assert_eq!(tenant.gauge(Gauge::Items), expected as u64);
        }
        tenant.publish(&mut cache);
        let expected: usize = held.iter().map(|(_, size, _)| size_class(*size)).sum();
        prop_assert_eq!(tenant.used(), expected as u64);
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
