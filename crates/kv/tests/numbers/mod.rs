//! Numbers that look random, the same ones for the same seed.

/// Xorshift; the seed is not 0.
pub fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let next = |number: &u64| {
        let mut number = *number;
        number ^= number << 13;
        number ^= number >> 7;
        Some(number ^ number << 17)
    };
    std::iter::successors(next(&seed), next)
}
