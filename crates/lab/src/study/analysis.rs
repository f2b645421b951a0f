//! What the runs show: medians, ratios to the baseline with their intervals, and whether a difference is real.
//!
//! * The interval of a ratio is a bootstrap: runs of both are drawn with replacement, and the ratio of the medians is
//!   taken each time. The middle 99 % of these ratios are the interval.
//! * A difference is called real if the labels "baseline" and "variant" matter: among all ways to deal them out anew,
//!   or 20,000 random ones, at most 1 % put the mean ranks as far apart as they are. That holds whatever the figures'
//!   distribution is, also for five runs, where an interval is too narrow; and a few runs that were disturbed do not
//!   hide what the others show.
//! * The number of runs that would show 1 % follows from how much the figures scatter.

use super::figures;
use crate::random::Random;
use crate::statistics::median;
use serde::{Deserialize, Serialize};

/// Ratios that are drawn for an interval.
const DRAWS: usize = 4_000;
/// Deals that are tried if there are too many to try them all.
const DEALS: usize = 20_000;
/// The probability of calling a difference real where there is none; the interval leaves out as much.
pub const ERROR: f64 = 0.01;
/// The difference whose number of runs is given.
const SMALL_DIFFERENCE: f64 = 0.01;
/// Quantiles of the normal distribution: of `ERROR` on both sides, and of a power of 80 %.
const NORMAL: (f64, f64) = (2.5758, 0.8416);

/// A variant's figure beside the baseline's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Ratio of the medians.
    pub ratio: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// The probability of a difference as large as this one if there is none.
    pub probability: f64,
    /// Whether the difference is real.
    pub is_real: bool,
    /// Runs of each variant that would show a difference of 1 % four times out of five; `None` if the figures do not
    /// scatter.
    pub runs_for_one_per_cent: Option<u64>,
}

/// Compares two groups of figures that are not negative. `None` if the baseline's are none or mostly 0.
pub fn compare(baseline: &[f64], variant: &[f64], seed: u64) -> Option<Comparison> {
    let ratio = ratio(baseline, variant)?;
    let mut random = Random::new(seed);
    let (low, high) = interval(baseline, variant, &mut random)?;
    let (probability, is_higher) = probability(baseline, variant, &mut random);
    // A difference that the ranks and the medians see in opposite directions has no direction.
    let is_real = probability <= ERROR && if is_higher { ratio > 1.0 } else { ratio < 1.0 };
    let runs_for_one_per_cent = runs_needed(baseline, variant);
    Some(Comparison { ratio, low, high, probability, is_real, runs_for_one_per_cent })
}

fn ratio(baseline: &[f64], variant: &[f64]) -> Option<f64> {
    let (baseline, variant) = (median(baseline)?, median(variant)?);
    (baseline > 0.0 && variant >= 0.0).then(|| variant / baseline)
}

fn interval(baseline: &[f64], variant: &[f64], random: &mut Random) -> Option<(f64, f64)> {
    let mut draw = |figures: &[f64]| -> Vec<f64> {
        let count = u32::try_from(figures.len()).unwrap_or(u32::MAX);
        let one = |_| figures.get(Random::below(random.next(), count) as usize).copied();
        (0..count).filter_map(one).collect()
    };
    let mut ratios: Vec<f64> = (0..DRAWS).filter_map(|_| ratio(&draw(baseline), &draw(variant))).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |part: f64| ratios.get(((ratios.len().max(1) - 1) as f64 * part).round() as usize).copied();
    Some((at(ERROR / 2.0)?, at(1.0 - ERROR / 2.0)?))
}

/// The part of the deals whose difference is at least as large as that of these two groups, and whether the variant's
/// ranks are the higher ones.
fn probability(baseline: &[f64], variant: &[f64], random: &mut Random) -> (f64, bool) {
    let mut all = ranks(&[baseline, variant].concat());
    let count = baseline.len();
    let (measured, is_higher) = (difference(&all, count).abs(), difference(&all, count) > 0.0);
    // Rounding must not tell apart what is equal.
    let is_as_large = |all: &[f64]| difference(all, count).abs() >= measured - 1e-12;
    let deals = binomial(all.len(), count);
    let (mut large, mut tried) = (0usize, 0usize);
    if deals <= DEALS {
        each_choice(all.len(), count, |chosen| {
            let mut first = Vec::with_capacity(all.len());
            let mut second = Vec::with_capacity(all.len());
            for (index, figure) in all.iter().enumerate() {
                if chosen.contains(&index) { first.push(*figure) } else { second.push(*figure) }
            }
            first.append(&mut second);
            large += usize::from(is_as_large(&first));
            tried += 1;
        });
        return (large as f64 / tried.max(1) as f64, is_higher);
    }
    for _ in 0..DEALS {
        random.shuffle(&mut all);
        large += usize::from(is_as_large(&all));
        tried += 1;
    }
    ((large + 1) as f64 / (tried + 1) as f64, is_higher)
}

/// The rank of each figure, from 1 on; equal ones have their middle rank.
fn ranks(figures: &[f64]) -> Vec<f64> {
    let rank = |figure: &f64| {
        let below = figures.iter().filter(|other| *other < figure).count();
        let equal = figures.iter().filter(|other| *other == figure).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    figures.iter().map(rank).collect()
}

/// By how much the mean rank of the others is above that of the first `count`.
fn difference(all: &[f64], count: usize) -> f64 {
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
    let (first, second) = all.split_at(count.min(all.len()));
    mean(second) - mean(first)
}

/// The number of choices of `few` out of `many`, or a number above [`DEALS`].
fn binomial(many: usize, few: usize) -> usize {
    let mut number = 1usize;
    for step in 0..few.min(many - few) {
        number = number.saturating_mul(many - step) / (step + 1);
        if number > DEALS * 1000 {
            return usize::MAX;
        }
    }
    number
}

/// Calls `f` with each choice of `few` indices below `many`, ascending.
fn each_choice(many: usize, few: usize, mut f: impl FnMut(&[usize])) {
    let mut chosen: Vec<usize> = (0..few).collect();
    loop {
        f(&chosen);
        let Some(at) =
            (0..few).rev().find(|&at| chosen.get(at).is_some_and(|&index| index < many - few + at))
        else {
            return;
        };
        let Some(first) = chosen.get(at).map(|index| index + 1) else { return };
        for (offset, index) in chosen.iter_mut().skip(at).enumerate() {
            *index = first + offset;
        }
    }
}

/// From the scatter of the logarithms within each group: their median distance from the median, which a few disturbed
/// runs do not change.
fn runs_needed(baseline: &[f64], variant: &[f64]) -> Option<u64> {
    /// Of a normal distribution, its standard deviation over this distance.
    const DEVIATION: f64 = 1.4826;
    let distances = |figures: &[f64]| {
        let middle = median(figures).unwrap_or(1.0);
        let above_0 = figures.iter().filter(|figure| **figure > 0.0);
        above_0.map(|figure| (figure / middle.max(f64::MIN_POSITIVE)).ln().abs()).collect::<Vec<_>>()
    };
    let deviation = DEVIATION * median(&[distances(baseline), distances(variant)].concat())?;
    let wanted = (NORMAL.0 + NORMAL.1) / (1.0 + SMALL_DIFFERENCE).ln();
    let runs = (2.0 * (deviation * wanted).powi(2)).ceil();
    (runs > 0.0).then_some((runs as u64).max(super::file::REPEATS_LEAST as u64))
}

impl Comparison {
    /// A plain sentence. `name`: of the variant; `runs`: of each.
    pub fn sentence(&self, name: &str, figure: &str, baseline: &str, runs: usize) -> String {
        let what = figures::title(figure);
        let needed = self.runs_for_one_per_cent.map_or(String::new(), |needed| match needed > runs as u64 {
            true => format!(" About {needed} runs of each would show a difference of 1 %."),
            false => {
                format!(" These {runs} runs of each are enough to show a difference of 1 % ({needed} are).")
            }
        });
        if self.is_real {
            return format!(
                "{name}: {} {what} than {baseline} (99 % interval {} to {}); the difference is real.{needed}",
                figures::change(figure, self.ratio),
                signed(self.low),
                signed(self.high)
            );
        }
        format!(
            "{name}: no difference from {baseline} in {what} is shown by {runs} runs of each ({}; 99 % interval {} to \
             {}).{needed}",
            signed(self.ratio),
            signed(self.low),
            signed(self.high)
        )
    }
}

/// A ratio as a change in per cent.
pub fn signed(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::figures::{CPU, RESIDENT};
    use super::*;

    /// Figures around `centre` with a scatter of one per cent.
    fn figures(random: &mut Random, count: usize, centre: f64) -> Vec<f64> {
        let uniform = |random: &mut Random| (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        // The sum of twelve has a variance of 1.
        (0..count)
            .map(|_| centre * (1.0 + 0.01 * ((0..12).map(|_| uniform(random)).sum::<f64>() - 6.0)))
            .collect()
    }

    fn compared(random: &mut Random, count: usize, factor: f64) -> Comparison {
        let (baseline, variant) = (figures(random, count, 100.0), figures(random, count, 100.0 * factor));
        compare(&baseline, &variant, 1).unwrap()
    }

    #[test]
    fn equal_variants_are_called_different_in_one_of_a_hundred_cases() {
        let mut random = Random::new(3);
        let mut wrong = |count: usize| (0..300).filter(|_| compared(&mut random, count, 1.0).is_real).count();
        // 3 are expected, and 11 occur once in ten thousand times.
        assert!(wrong(5) <= 10);
        assert!(wrong(8) <= 10);
    }

    #[test]
    fn three_per_cent_are_found_among_a_scatter_of_one() {
        let mut random = Random::new(4);
        let found: Vec<_> = (0..100).map(|_| compared(&mut random, 8, 1.03)).collect();
        assert!(found.iter().filter(|one| one.is_real).count() >= 95);
        assert!(found.iter().filter(|one| one.low < 1.03 && 1.03 < one.high).count() >= 90);
        let needed = found.iter().filter_map(|one| one.runs_for_one_per_cent).collect::<Vec<_>>();
        let middle = median(&needed.iter().map(|&needed| needed as f64).collect::<Vec<_>>()).unwrap();
        assert!((14.0..=36.0).contains(&middle), "2 (2.58 + 0.84)^2 = 23.4 by the formula: {middle}");
    }

    #[test]
    fn the_number_of_runs_it_names_shows_one_per_cent() {
        let mut random = Random::new(5);
        let found = (0..100).filter(|_| compared(&mut random, 24, 1.01).is_real).count();
        assert!((65..=95).contains(&found), "four out of five: {found}");
    }

    #[test]
    fn few_runs_show_nothing_however_far_apart() {
        assert!(!compare(&[1.0; 3], &[9.0; 3], 1).unwrap().is_real, "1 of 10 deals is as far apart");
        assert!(compare(&[1.0, 1.1, 1.2, 0.9, 1.0], &[9.0, 9.1, 8.9, 9.0, 9.2], 1).unwrap().is_real);
        assert_eq!(compare(&[], &[], 1), None);
        assert_eq!(compare(&[0.0], &[1.0], 1), None, "a ratio to nothing");
        let same = compare(&[2.0; 8], &[2.0; 8], 1).unwrap();
        assert!(!same.is_real && same.runs_for_one_per_cent.is_none());
    }

    #[test]
    fn zeros_and_groups_of_different_size_count() {
        let found = compare(&[5.0, 5.1, 5.2, 5.0, 4.9, 5.0], &[0.0; 5], 1).unwrap();
        assert!(found.is_real && found.ratio == 0.0 && found.high == 0.0);
    }

    #[test]
    fn a_difference_in_two_directions_is_none() {
        // The variant has the higher ranks and the lower median.
        let baseline: Vec<f64> = (0..30).map(|n| if n < 14 { 1.0 } else { 10.0 }).collect();
        let variant: Vec<f64> = (0..30).map(|n| if n < 2 { 1.0 } else { 9.99 + f64::from(n > 12) }).collect();
        let found = compare(&baseline, &[variant, vec![9.99; 30]].concat(), 1).unwrap();
        assert!(found.ratio < 1.0 && !found.is_real, "{found:?}");
    }

    #[test]
    fn disturbed_runs_do_not_hide_a_difference() {
        let mut random = Random::new(6);
        let mut found = 0;
        for _ in 0..100 {
            let (mut baseline, mut variant) =
                (figures(&mut random, 10, 100.0), figures(&mut random, 10, 104.0));
            // One run in ten took half as long again.
            baseline[3] *= 1.5;
            variant[7] *= 1.5;
            found += u32::from(compare(&baseline, &variant, 1).unwrap().is_real);
        }
        assert!(found >= 95, "{found}");
    }

    #[test]
    fn equal_figures_share_their_rank() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 9.0]), [2.5, 1.0, 2.5, 4.0]);
    }

    #[test]
    fn choices_are_complete() {
        let mut all = Vec::new();
        each_choice(5, 2, |chosen| all.push(chosen.to_vec()));
        assert_eq!(all.len(), binomial(5, 2));
        assert_eq!(
            (all.first().unwrap().as_slice(), all.last().unwrap().as_slice()),
            (&[0, 1][..], &[3, 4][..])
        );
        assert_eq!(binomial(10, 5), 252);
    }

    #[test]
    fn sentences_say_what_is_shown() {
        let real = Comparison {
            ratio: 0.9,
            low: 0.88,
            high: 0.93,
            probability: 0.001,
            is_real: true,
            runs_for_one_per_cent: Some(12),
        };
        assert_eq!(
            real.sentence("jemalloc", RESIDENT, "glibc", 8),
            "jemalloc: 10.0 % less resident memory than glibc (99 % interval -12.0 % to -7.0 %); the \
             difference is real. About 12 runs of each would show a difference of 1 %."
        );
        let none = Comparison { is_real: false, runs_for_one_per_cent: None, ..real };
        assert!(
            none.sentence("a", CPU, "b", 8)
                .starts_with("a: no difference from b in CPU time is shown by 8 runs")
        );
    }
}
