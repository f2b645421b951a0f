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
    /// Summarises samples; `None` if there are none.
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

    /// The 90th percentile of the samples.
    pub fn percentile_90(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * 9).div_ceil(10).saturating_sub(1);
        sorted.get(rank).copied().unwrap_or(self.median)
    }
}

/// A mean and its confidence interval by Student's t-distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Mean of the samples.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// The interval for independent samples; it covers the true mean with this confidence, such as 0.95. `None` for
    /// fewer than two samples.
    pub fn of(samples: &[f64], confidence: f64) -> Option<Self> {
        let count = samples.len() as f64;
        let freedom = samples.len().checked_sub(1).filter(|&freedom| freedom > 0)?;
        let mean = samples.iter().sum::<f64>() / count;
        let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / freedom as f64;
        let half = student(freedom, confidence) * (variance / count).sqrt();
        Some(Self { mean, low: mean - half, high: mean + half })
    }

    /// The same on another scale, by an increasing function.
    pub fn map(self, scale: impl Fn(f64) -> f64) -> Self {
        Self { mean: scale(self.mean), low: scale(self.low), high: scale(self.high) }
    }

    /// Returns true if the mean differs significantly from zero.
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// The bound on the absolute value of a variable of Student's t-distribution with this probability. With tan(a) = t /
/// sqrt(freedom), the angle a has a density proportional to cos(a)^(freedom - 1), which is integrated numerically here.
fn student(freedom: usize, probability: f64) -> f64 {
    const STEPS: u32 = 100_000;
    let width = std::f64::consts::FRAC_PI_2 / f64::from(STEPS);
    let density = |step: u32| ((f64::from(step) + 0.5) * width).cos().powf(freedom as f64 - 1.0);
    let wanted = (0..STEPS).map(density).sum::<f64>() * probability;
    let mut sum = 0.0;
    for step in 0..STEPS {
        let next = sum + density(step);
        if next >= wanted {
            let angle = (f64::from(step) + (wanted - sum) / (next - sum)) * width;
            return angle.tan() * (freedom as f64).sqrt();
        }
        sum = next;
    }
    f64::INFINITY
}

/// Median of samples; `None` if there are none.
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
    fn bounds_of_students_distribution() {
        for (freedom, probability, bound) in
            [(1, 0.95, 12.706), (2, 0.95, 4.303), (10, 0.95, 2.228), (30, 0.99, 2.750), (17, 0.995, 3.222)]
        {
            let found = student(freedom, probability);
            assert!((found - bound).abs() < 0.001, "{freedom} {probability}: {found}");
        }
    }

    #[test]
    fn an_interval_excludes_zero_when_its_samples_agree() {
        let agreeing = Interval::of(&[1.0, 1.1, 0.9], 0.95).unwrap();
        assert!(agreeing.excludes_zero() && (agreeing.high - agreeing.mean - 0.2484).abs() < 0.001);
        assert!(!Interval::of(&[1.0, -0.5, 0.9], 0.95).unwrap().excludes_zero());
        assert_eq!(Interval::of(&[1.0], 0.95), None);
        assert!(agreeing.map(|value| -1.0 / value).excludes_zero());
    }

    #[test]
    fn spread_keeps_the_order_of_its_samples() {
        let spread = Spread::of(&[5.0, 1.0, 9.0]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (1.0, 5.0, 9.0));
        assert_eq!(spread.samples, [5.0, 1.0, 9.0]);
        assert_eq!(spread.percentile_90(), 9.0);
    }
}
