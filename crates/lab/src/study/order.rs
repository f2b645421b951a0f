//! The order of the runs: rounds of all variants, each in a random order. What changes on the machine meanwhile
//! hits all variants alike.

use crate::random::Random;

/// One run: a variant, by index, in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The round, from 0 on.
    pub round: usize,
    /// The variant.
    pub variant: usize,
}

/// All runs in order.
pub fn turns(rounds: usize, variants: usize, seed: u64) -> Vec<Turn> {
    let mut random = Random::new(seed);
    let mut turns = Vec::with_capacity(rounds * variants);
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..variants).collect();
        random.shuffle(&mut order);
        turns.extend(order.into_iter().map(|variant| Turn { round, variant }));
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_has_every_variant_once_and_the_seed_decides_the_order() {
        let all = turns(50, 4, 9);
        assert_eq!(all, turns(50, 4, 9));
        assert_ne!(all, turns(50, 4, 10));
        let mut first = [0; 4];
        for round in all.chunks(4) {
            let mut variants: Vec<_> = round.iter().map(|turn| turn.variant).collect();
            first[variants[0]] += 1;
            variants.sort_unstable();
            assert_eq!(variants, [0, 1, 2, 3]);
        }
        assert!(first.iter().all(|&count| count >= 5), "{first:?}");
    }
}
