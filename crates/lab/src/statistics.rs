//! Medians and spreads of repeated measurements.

use serde::Serialize;

/// Median and extremes of a set of samples.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Spread {
    /// Middle sample (mean of the two middle ones for an even count).
    pub median: f64,
    /// Smallest sample.
    pub low: f64,
    /// Largest sample.
    pub high: f64,
    /// The samples in the order they were taken.
    pub samples: Vec<f64>,
}

impl Spread {
    /// Summarises samples; `None` where there are none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: median_of_sorted(&sorted)?,
            low: *sorted.first()?,
            high: *sorted.last()?,
            samples: samples.to_vec(),
        })
    }

    /// Sample below which nine tenths of the samples lie.
    pub fn percentile_90(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * 9).div_ceil(10).saturating_sub(1);
        sorted.get(rank).copied().unwrap_or(self.median)
    }
}

/// Median of samples; `None` where there are none.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some((upper + *sorted.get(middle.checked_sub(1)?)?) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert!(Spread::of(&[]).is_none());
    }

    #[test]
    fn spread_keeps_the_order_of_its_samples() {
        let spread = Spread::of(&[5.0, 1.0, 9.0]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (1.0, 5.0, 9.0));
        assert_eq!(spread.samples, [5.0, 1.0, 9.0]);
        assert_eq!(spread.percentile_90(), 9.0);
    }
}
