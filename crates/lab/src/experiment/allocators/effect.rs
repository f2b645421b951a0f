//! The effect of a setting, estimated from pairs of starts.
//!
//! A pair is two starts of one round whose cells differ in that setting only: effects common to the round cancel. Each
//! pair gives the logarithm of a ratio. The mean of these is the effect, and Student's t-distribution gives its
//! interval; no start is in two pairs of one effect, so the pairs are independent. With this many intervals one would
//! miss by chance, so each is made wide enough that all of them hold together in 95 of 100 runs (Bonferroni).
//!
//! jemalloc requests huge pages for its bookkeeping only if the system's mode is `madvise`. In the other modes
//! metadata_thp has no effect. It is judged there as well, as a placebo: if that shows an effect, the run was
//! disturbed.

use super::{CONFIDENCE, Cell, ON_ADVICE, Sample};
use crate::report::Table;
use crate::statistics::Interval;
use serde::Serialize;

/// Number of figures judged for each effect: throughput and resident size.
const FIGURES: usize = 2;
/// Bound on the noise between two starts of one setting in 95 of 100 cases, in standard deviations of one start.
const TWO_STARTS: f64 = 1.96 * std::f64::consts::SQRT_2;
/// Largest difference between two settings in the reference, of one run each (E1).
const REFERENCE_PERCENT: f64 = 1.2;

/// The effect of one setting compared with another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Effect {
    name: String,
    /// It cannot have an effect.
    placebo: bool,
    pairs: usize,
    /// Change of operations per second of server CPU, in per cent.
    throughput: Interval,
    /// Change of the resident size, in per cent.
    resident: Interval,
}

struct Contrast {
    name: String,
    placebo: bool,
    /// The changed cell, if this cell takes part.
    changed: Box<dyn Fn(Cell) -> Option<Cell>>,
}

fn contrasts(samples: &[Sample], means: &str, levels: &[&'static str]) -> Vec<Contrast> {
    let mut contrasts: Vec<Contrast> = Vec::new();
    for level in ["auto", "always"] {
        if !samples.iter().any(|sample| sample.cell.metadata_thp == level) {
            continue;
        }
        for placebo in [false, true] {
            let place = if placebo { "not on madvise" } else { "on madvise" };
            contrasts.push(Contrast {
                name: format!("metadata_thp {level} over disabled, {means} {place}"),
                placebo,
                changed: Box::new(move |cell| {
                    let takes_part =
                        cell.metadata_thp == "disabled" && (cell.huge_pages != ON_ADVICE) == placebo;
                    takes_part.then_some(Cell { metadata_thp: level, ..cell })
                }),
            });
        }
    }
    contrasts.push(Contrast {
        name: "background_thread true over false".to_owned(),
        placebo: false,
        changed: Box::new(|cell| {
            (cell.background_thread == "false").then_some(Cell { background_thread: "true", ..cell })
        }),
    });
    for (&from, &to) in levels.iter().zip(levels.iter().skip(1)) {
        contrasts.push(Contrast {
            name: format!("{means} {to} over {from}"),
            placebo: false,
            changed: Box::new(move |cell| {
                (cell.huge_pages == from).then_some(Cell { huge_pages: to, ..cell })
            }),
        });
    }
    contrasts
}

/// The effects of all settings.
pub(super) fn effects(samples: &[Sample], means: &str, levels: &[&'static str]) -> Vec<Effect> {
    let contrasts = contrasts(samples, means, levels);
    let confidence = 1.0 - (1.0 - CONFIDENCE) / (FIGURES * contrasts.len()) as f64;
    let effect = |contrast: &Contrast| {
        let pairs: Vec<(&Sample, &Sample)> = samples
            .iter()
            .filter_map(|from| {
                let cell = (contrast.changed)(from.cell)?;
                let to = samples.iter().find(|to| to.cell == cell && to.round == from.round)?;
                Some((from, to))
            })
            .collect();
        let interval = |figure: fn(&Sample) -> f64| {
            let ratios: Vec<f64> = pairs.iter().map(|(from, to)| (figure(to) / figure(from)).ln()).collect();
            Interval::of(&ratios, confidence).map(|interval| interval.map(|ratio| ratio.exp_m1() * 100.0))
        };
        Some(Effect {
            name: contrast.name.clone(),
            placebo: contrast.placebo,
            pairs: pairs.len(),
            throughput: interval(|sample| sample.per_cpu_second)?,
            resident: interval(|sample| sample.memory.resident_bytes as f64)?,
        })
    };
    contrasts.iter().filter_map(effect).collect()
}

/// By how many per cent two starts of one setting may differ in 95 of 100 cases.
pub(super) fn spread_of_two_starts(cells: &[Cell], samples: &[Sample]) -> f64 {
    let (mut squares, mut freedom) = (0.0, 0.0);
    for cell in cells {
        let own: Vec<f64> = samples
            .iter()
            .filter(|sample| sample.cell == *cell)
            .map(|sample| sample.per_cpu_second.ln())
            .collect();
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        squares += own.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        freedom += own.len() as f64 - 1.0;
    }
    ((squares / freedom).sqrt() * TWO_STARTS).exp_m1() * 100.0
}

fn percent(interval: Interval) -> String {
    format!("{:+.1} % [{:+.1} .. {:+.1}]", interval.mean, interval.low, interval.high)
}

fn verdict(effect: &Effect) -> &'static str {
    match (effect.throughput.excludes_zero(), effect.resident.excludes_zero()) {
        (true, true) => "both",
        (true, false) => "throughput",
        (false, true) => "RSS",
        (false, false) => "noise",
    }
}

/// The effects as a table.
pub(super) fn table(effects: &[Effect]) -> Table {
    let mut table = Table::new(
        "Effects: mean over pairs of starts that differ in nothing else, [95 % for all intervals together]",
        &["setting", "pairs", "operations per CPU second", "RSS", "differs from zero"],
    );
    for effect in effects {
        let placebo = if effect.placebo { " (placebo)" } else { "" };
        table.row(vec![
            format!("{}{placebo}", effect.name),
            effect.pairs.to_string(),
            percent(effect.throughput),
            percent(effect.resident),
            verdict(effect).to_owned(),
        ]);
    }
    table
}

/// The answer in one sentence, and a second sentence if the first is not reliable.
pub(super) fn answer(effects: &[Effect], two_starts_percent: f64) -> String {
    let (placebos, real): (Vec<&Effect>, Vec<&Effect>) = effects.iter().partition(|effect| effect.placebo);
    let (significant, noise): (Vec<&Effect>, Vec<&Effect>) =
        real.into_iter().partition(|effect| verdict(effect) != "noise");
    let worth = |effect: &&Effect| {
        effect.throughput.low > 0.0 || (effect.resident.high < 0.0 && effect.throughput.high >= 0.0)
    };
    let (gains, losses): (Vec<&Effect>, Vec<&Effect>) = significant.into_iter().partition(worth);
    let list = |effects: &[&Effect]| {
        let one = |effect: &&Effect| {
            let figures = [("operations per CPU second", effect.throughput), ("RSS", effect.resident)];
            let significant = figures.iter().filter(|(_, interval)| interval.excludes_zero());
            let significant: Vec<String> =
                significant.map(|(name, interval)| format!("{} {name}", percent(*interval))).collect();
            format!("{} ({})", effect.name, significant.join(", "))
        };
        effects.iter().map(one).collect::<Vec<_>>().join("; ")
    };
    let mut parts = vec![if gains.is_empty() {
        "no setting was shown to gain anything".to_owned()
    } else {
        format!("worth switching on: {}", list(&gains))
    }];
    if !losses.is_empty() {
        parts.push(format!("shown to cost and not to gain: {}", list(&losses)));
    }
    if !noise.is_empty() {
        let ends =
            noise.iter().flat_map(|effect| [effect.throughput.low.abs(), effect.throughput.high.abs()]);
        let names: Vec<&str> = noise.iter().map(|effect| &*effect.name).collect();
        parts.push(format!(
            "indistinguishable from zero: {} (operations per CPU second within {:.1} % at most)",
            names.join(", "),
            ends.fold(0.0, f64::max)
        ));
    }
    let more_or_less = if two_starts_percent > REFERENCE_PERCENT { "noise" } else { "more than noise" };
    parts.push(format!(
        "two starts of one setting differ by up to {two_starts_percent:.1} %, so the reference's 0.05 to \
        {REFERENCE_PERCENT} % of one run \
         each would be {more_or_less} here"
    ));
    let mut answer = format!("Answer: {}.", parts.join("; "));
    if placebos.iter().any(|effect| verdict(effect) != "noise") {
        answer +=
            " But a setting that can do nothing has shown an effect too: the run was disturbed, repeat it.";
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Memory;

    /// Three rounds of eight cells; the round's speed and half a per cent of noise are factors on a cell's figures.
    fn samples(rate: impl Fn(Cell) -> f64, resident: impl Fn(Cell) -> f64) -> Vec<Sample> {
        let cells = super::super::cells(&["disabled", "always"], &["never", "madvise"]);
        let mut noise = crate::random::Random::new(3);
        let mut samples = Vec::new();
        for round in 0..3 {
            for &cell in &cells {
                let mut noisy = |value: f64| value * (0.995 + noise.next() as f64 / u64::MAX as f64 / 100.0);
                samples.push(Sample {
                    cell,
                    round,
                    per_cpu_second: noisy(rate(cell)) * (1.0 + f64::from(round) / 10.0),
                    memory: Memory { resident_bytes: noisy(resident(cell)) as u64, ..Memory::default() },
                    metadata_huge_pages: 0,
                    server_share: 1.0,
                    driver_share: 0.5,
                    foreign_cores: 0.0,
                });
            }
        }
        samples
    }

    fn named<'a>(effects: &'a [Effect], name: &str) -> &'a Effect {
        effects.iter().find(|effect| effect.name.starts_with(name)).unwrap()
    }

    #[test]
    fn an_effect_is_told_from_noise_although_rounds_differ_by_more() {
        let samples = samples(
            |cell| if cell.huge_pages == "never" { 1e6 } else { 1.1e6 },
            |cell| if cell.background_thread == "true" { 97e6 } else { 100e6 },
        );
        let effects = effects(&samples, "huge pages", &["never", "madvise"]);
        assert_eq!(effects.len(), 4);
        let huge_pages = named(&effects, "huge pages");
        assert_eq!((huge_pages.pairs, verdict(huge_pages)), (12, "throughput"));
        assert!(huge_pages.throughput.low < 10.0 && huge_pages.throughput.high > 10.0);
        let background = named(&effects, "background_thread");
        assert_eq!((background.pairs, verdict(background)), (12, "RSS"));
        assert!(background.resident.low < -3.0 && background.resident.high > -3.0);
        for effect in effects.iter().filter(|effect| effect.name.starts_with("metadata_thp")) {
            assert_eq!((effect.pairs, verdict(effect)), (6, "noise"));
        }
        let answer = answer(&effects, 2.0);
        let (worth, noise) = answer.split_once("; indistinguishable from zero: ").unwrap();
        assert!(
            worth.starts_with("Answer: worth switching on: ")
                && worth.contains("huge pages madvise over never")
        );
        assert!(worth.contains("background_thread true over false (-"), "{answer}");
        assert!(noise.starts_with("metadata_thp always over disabled, huge pages on madvise ("), "{answer}");
        assert!(!answer.contains("disturbed") && answer.contains("would be noise here"), "{answer}");
    }

    #[test]
    fn a_placebo_with_an_effect_is_admitted() {
        let samples = samples(|cell| if cell.metadata_thp == "always" { 0.8e6 } else { 1e6 }, |_| 100e6);
        let effects = effects(&samples, "huge pages", &["never", "madvise"]);
        let answer = answer(&effects, 0.9);
        assert!(
            answer.starts_with(
                "Answer: no setting was shown to gain anything; shown to cost and not to gain: "
            )
        );
        assert!(
            answer.contains("would be more than noise here") && answer.ends_with("repeat it."),
            "{answer}"
        );
    }

    #[test]
    fn two_starts_differ_by_what_their_cells_show() {
        let cell = super::super::cells(&["auto"], &["never"])[0];
        let mut samples = samples(|_| 1e6, |_| 1e8);
        samples.truncate(2);
        for (sample, rate) in samples.iter_mut().zip([1e6, 1e6 * 1.02]) {
            *sample = Sample { cell, per_cpu_second: rate, ..sample.clone() };
        }
        // A standard deviation of 1.4 %.
        assert!((spread_of_two_starts(&[cell], &samples) - 3.96).abs() < 0.1);
    }
}
