//! Cache traces: which item is requested next.
//!
//! ```text
//!   items   0 ............ universe ............ new ones without end
//!           requested by Zipf's law, 0 the most   a scan requests each once
//! ```

use crate::random::Random;

/// Requests after which a pattern repeats.
const PERIOD: u64 = 100_000;

/// What disturbs Zipf's law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Nothing: popularity is constant.
    Steady,
    /// The last n per cent of each period go through new items, one after the other.
    Scans(u64),
    /// After each period, the least popular n per mille of the universe become the most popular items.
    Drift(u32),
}

/// Items by Zipf's law: item `n` is requested with a probability proportional to 1 / (n + 1)^exponent. A draw takes
/// constant time for any number of items (Walker's alias method).
pub struct Zipf {
    /// For each column, the share of its own item as a fraction of 2^32, and the item that the rest belongs to.
    columns: Vec<(u32, u32)>,
}

impl Zipf {
    /// The law over `items` items.
    pub fn new(items: u32, exponent: f64) -> Self {
        let mut weights: Vec<f64> = (0..items).map(|item| (f64::from(item) + 1.0).powf(-exponent)).collect();
        let scale = f64::from(items) / weights.iter().sum::<f64>();
        weights.iter_mut().for_each(|weight| *weight *= scale);
        let mut columns: Vec<(u32, u32)> = (0..items).map(|item| (u32::MAX, item)).collect();
        let (mut poor, mut rich): (Vec<usize>, Vec<usize>) =
            (0..weights.len()).partition(|&at| weights.get(at).is_some_and(|&weight| weight < 1.0));
        while let (Some(&giver), Some(taker)) = (rich.last(), poor.pop()) {
            let own = weights.get(taker).copied().unwrap_or(1.0);
            if let Some(column) = columns.get_mut(taker) {
                *column = ((own * f64::from(u32::MAX)) as u32, giver as u32);
            }
            let Some(left) = weights.get_mut(giver) else { break };
            *left -= 1.0 - own;
            if *left < 1.0 {
                rich.pop();
                poor.push(giver);
            }
        }
        Self { columns }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let column = Random::below(random.next(), self.columns.len() as u32);
        match self.columns.get(column as usize) {
            Some(&(own, other)) if (random.next() >> 32) as u32 > own => other,
            _ => column,
        }
    }
}

/// An endless sequence of requests, determined by the seed.
pub struct Trace<'z> {
    zipf: &'z Zipf,
    pattern: Pattern,
    random: Random,
    made: u64,
    /// The next new item.
    scanned: u32,
}

impl<'z> Trace<'z> {
    /// A trace over the law's items.
    pub fn new(zipf: &'z Zipf, pattern: Pattern, seed: u64) -> Self {
        let scanned = zipf.columns.len() as u32;
        Self { zipf, pattern, random: Random::new(seed), made: 0, scanned }
    }

    /// The item requested next.
    pub fn next(&mut self) -> u32 {
        let (period, within) = (self.made / PERIOD, self.made % PERIOD);
        self.made += 1;
        let universe = self.zipf.columns.len() as u32;
        match self.pattern {
            Pattern::Scans(percent) if within >= PERIOD / 100 * (100 - percent) => {
                self.scanned += 1;
                self.scanned - 1
            }
            Pattern::Drift(per_mille) => {
                let moved = period * u64::from(universe) / 1000 * u64::from(per_mille);
                let back = (moved % u64::from(universe)) as u32;
                (self.zipf.draw(&mut self.random) + (universe - back)) % universe
            }
            _ => self.zipf.draw(&mut self.random),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(zipf: &Zipf, draws: u32) -> Vec<f64> {
        let mut random = Random::new(3);
        let mut counts = vec![0.0; zipf.columns.len()];
        (0..draws).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1.0);
        counts
    }

    #[test]
    fn items_are_drawn_by_the_law() {
        for exponent in [0.5, 0.99, 1.2] {
            let items = 50;
            let total: f64 = (1..=items).map(|n| f64::from(n).powf(-exponent)).sum();
            let draws = 400_000;
            for (item, count) in counts(&Zipf::new(items, exponent), draws).into_iter().enumerate() {
                let expected = f64::from(draws) * (item as f64 + 1.0).powf(-exponent) / total;
                let spread = 5.0 * expected.sqrt();
                assert!((count - expected).abs() < spread, "{exponent} {item}: {count} of {expected}");
            }
        }
    }

    #[test]
    fn a_scan_asks_for_each_new_item_once() {
        let zipf = Zipf::new(1000, 0.99);
        let mut trace = Trace::new(&zipf, Pattern::Scans(20), 1);
        let new: Vec<u32> = (0..2 * PERIOD).map(|_| trace.next()).filter(|&item| item >= 1000).collect();
        assert_eq!(new, (1000..1000 + PERIOD as u32 / 5 * 2).collect::<Vec<_>>());
    }

    #[test]
    fn drift_makes_the_least_popular_the_most_popular() {
        let zipf = Zipf::new(1000, 1.2);
        let mut trace = Trace::new(&zipf, Pattern::Drift(10), 1);
        let mut most = |from: u32| {
            let asked: Vec<u32> = (0..PERIOD).map(|_| trace.next()).collect();
            asked.iter().filter(|&&item| item == from).count()
        };
        assert!(most(0) > PERIOD as usize / 10);
        assert!(most(990) > PERIOD as usize / 10);
    }
}
