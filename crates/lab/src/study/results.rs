//! The results of an experiment: each variant's figures beside the baseline's, and what they say in words.

use super::analysis::{Comparison, compare, signed};
use super::figures::{self, Better, CPU, FOREIGN, PER_CPU_SECOND, PROCESSES, RATE, RESIDENT};
use super::file::{REPEATS_LEAST, Study};
use super::record::{Head, Run, Variant};
use crate::machine;
use crate::report::short;
use crate::statistics::{Spread, median};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;

/// Seed of the draws that intervals are made from: a report can be made again from its runs.
const SEED: u64 = 1;

/// All of it.
#[derive(Debug, Serialize)]
pub struct Results {
    /// The experiment.
    pub head: Head,
    /// What it is about.
    pub about: String,
    /// Name of the variant that the others are compared with.
    pub baseline: String,
    /// The one that the file names instead, if no run of it succeeded and another one's did.
    pub missing_baseline: Option<String>,
    /// What `--quick` changed about the load.
    pub shortened: Vec<String>,
    /// The variants in the file's order.
    pub variants: Vec<VariantResults>,
}

/// What the runs of one variant show.
#[derive(Debug, Serialize)]
pub struct VariantResults {
    /// How it was run.
    #[serde(flatten)]
    pub variant: Variant,
    /// Figures by name.
    pub figures: BTreeMap<String, Spread>,
    /// Comparisons with the baseline by the figure's name.
    pub comparisons: BTreeMap<String, Comparison>,
    /// Its successful runs.
    pub runs: Vec<Run>,
    /// Why the others failed.
    pub failures: Vec<String>,
}

impl Results {
    /// Evaluates the runs of an experiment.
    pub fn of(head: Head, runs: &[Run]) -> Result<Self> {
        let mut study = Study::parse(&head.file, &head.name)?;
        let wanted = study.variants.get(study.baseline()).map(|variant| variant.name.clone());
        let wanted = wanted.unwrap_or_default();
        let has_run = |name: &str| !successful(runs, name).is_empty();
        let first = head.variants.iter().map(|variant| &variant.name).find(|name| has_run(name));
        let (baseline, missing_baseline) = match first {
            Some(first) if !has_run(&wanted) => (first.clone(), Some(wanted)),
            _ => (wanted, None),
        };
        let base = successful(runs, &baseline);
        let variants = head.variants.iter().map(|variant| {
            let own = successful(runs, &variant.name);
            let comparisons = if variant.name == baseline { BTreeMap::new() } else { compared(&base, &own) };
            // What succeeded later is healed.
            let is_healed = |run: &Run| own.iter().any(|other| other.round == run.round);
            let failed = runs.iter().filter(|run| run.variant == variant.name && !is_healed(run));
            let failures = failed.filter_map(|run| run.failed.clone()).collect();
            let variant = variant.clone();
            VariantResults { figures: spreads(&own), comparisons, failures, runs: own, variant }
        });
        let variants = variants.collect();
        let shortened = if head.is_quick() { super::shorten(&mut study) } else { Vec::new() };
        Ok(Self { head, about: study.about, baseline, missing_baseline, shortened, variants })
    }

    /// The variant that the others are compared with.
    pub fn base(&self) -> Option<&VariantResults> {
        self.variants.iter().find(|variant| variant.variant.name == self.baseline)
    }

    /// The names of the figures that there are, in the order of reports.
    pub fn figure_names(&self) -> Vec<&str> {
        let names = self.variants.iter().flat_map(|variant| variant.figures.keys().map(String::as_str));
        figures::in_order(names)
    }

    /// The figure that says how fast a variant is.
    pub fn speed(&self) -> &'static str {
        let there = self.figure_names();
        [PER_CPU_SECOND, RATE].into_iter().find(|name| there.contains(name)).unwrap_or(CPU)
    }

    /// What the reader must know first: that other programs used the machine.
    pub fn busy(&self) -> Option<String> {
        busy(&self.head, self.variants.iter().flat_map(|variant| &variant.runs))
    }

    /// The verdict: one paragraph.
    pub fn verdict(&self) -> String {
        let first = self.busy().map(|words| words + " ").unwrap_or_default();
        first + &self.comparison_in_words()
    }

    fn comparison_in_words(&self) -> String {
        let speed = self.speed();
        let mut sentences = Vec::new();
        for variant in self.variants.iter().filter(|variant| variant.variant.name != self.baseline) {
            if let Some(lacks) = &variant.variant.lacks {
                sentences.push(format!("{} was not run: {lacks}.", variant.variant.name));
                continue;
            }
            sentences.push(variant.summary(&[speed, RESIDENT]));
        }
        let counts = || self.variants.iter().map(|variant| variant.runs.len()).filter(|runs| *runs > 0);
        let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
        let runs = if least == most { most.to_string() } else { format!("{least} to {most}") };
        if sentences.is_empty() {
            return format!("{} was run {runs} times.", self.baseline);
        }
        if let Some(missing) = &self.missing_baseline {
            sentences.push(format!(
                "The experiment compares with {missing}; since no run of it succeeded, {} stands in.",
                self.baseline
            ));
        }
        if least < REPEATS_LEAST {
            sentences.push(format!("Fewer than {REPEATS_LEAST} runs of each cannot show a difference."));
        }
        sentences.extend(self.quick());
        format!("Compared with {}, over {runs} runs of each: {}", self.baseline, sentences.join(" "))
    }

    /// What the reader of a quick run must know.
    pub fn quick(&self) -> Option<String> {
        let changes = self.shortened.join(" and ");
        (!changes.is_empty())
            .then(|| format!("These were quick runs, with {changes}: do not decide by them."))
    }

    /// The command that runs it again.
    pub fn again(&self) -> String {
        let options =
            if self.head.options.is_empty() { String::new() } else { format!(" {}", self.head.options) };
        let file = if self.head.name.contains(' ') {
            format!("'{}.toml'", self.head.name)
        } else {
            format!("{}.toml", self.head.name)
        };
        let runs = self.variants.iter().flat_map(|variant| &variant.runs);
        let repeats = runs.map(|run| run.round + 1).max().unwrap_or(1);
        format!("dormouse lab run {file}{options} --repeats {repeats} --seed {}", self.head.seed)
    }

    /// The machine, the order, and what is peculiar about the figures: a line each.
    pub fn circumstances(&self) -> Vec<String> {
        let (head, machine) = (&self.head, &self.head.machine);
        let first = format!("{} at the start", machine.in_words());
        let second =
            format!("huge pages: {}; lab {}; order of seed {}", machine.huge_pages, head.lab, head.seed);
        let has_several =
            |variant: &&VariantResults| variant.figures.get(PROCESSES).is_some_and(|count| count.high > 1.0);
        let several: Vec<_> = self.variants.iter().filter(has_several).collect();
        let names =
            several.iter().map(|variant| variant.variant.name.as_str()).collect::<Vec<_>>().join(", ");
        let third = "of several processes, the resident memory is the sum of their proportional sizes (PSS), in which \
                     what they share counts once";
        let third = (!several.is_empty()).then(|| format!("{third}: {names}"));
        [first, second].into_iter().chain(third).collect()
    }

    /// What was left out, failed, or was left behind.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for variant in &self.variants {
            let name = &variant.variant.name;
            problems
                .extend(variant.variant.lacks.iter().map(|lacks| format!("{name} was left out: {lacks}")));
            problems.extend(variant.failures.iter().map(|failure| format!("{name} failed: {failure}")));
            let left: Vec<_> =
                variant.runs.iter().flat_map(|run| &run.measured.left_behind).cloned().collect();
            if !left.is_empty() {
                problems.push(format!(
                    "{name} left {} processes behind, which were killed: {}",
                    left.len(),
                    left.join(", ")
                ));
            }
        }
        problems
    }

    /// A sentence for each comparison that matters.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        for variant in &self.variants {
            for name in [self.speed(), RESIDENT] {
                if let Some(comparison) = variant.comparisons.get(name) {
                    let runs = variant.runs.len();
                    sentences.push(comparison.sentence(&variant.variant.name, name, &self.baseline, runs));
                }
            }
        }
        sentences
    }
}

impl VariantResults {
    /// Its differences from the baseline in these figures, in a sentence.
    fn summary(&self, figures: &[&str]) -> String {
        let (mut real, mut others) = (Vec::new(), Vec::new());
        for name in figures {
            let Some(comparison) = self.comparisons.get(*name) else { continue };
            let title = figures::title(name);
            match comparison.is_real {
                true => real.push(format!("{} {title}", figures::change(name, comparison.ratio))),
                false => others.push(format!(
                    "{title} ({}; 99 % interval {} to {})",
                    signed(comparison.ratio),
                    signed(comparison.low),
                    signed(comparison.high)
                )),
            }
        }
        let name = &self.variant.name;
        let (real, others) = (real.join(" and "), others.join(" and "));
        match (real.is_empty(), others.is_empty()) {
            (true, true) => format!("{name} gave no figures."),
            (true, false) => format!("{name}: no difference is shown in {others}."),
            (false, true) => format!("{name} has {real}."),
            (false, false) => format!("{name} has {real}; no difference is shown in {others}."),
        }
    }

    /// Its name, with its version and its allocator's where they are known.
    pub fn name_and_version(&self) -> String {
        let known = [&self.variant.version, &self.variant.library].into_iter().flatten();
        let known = known.map(String::as_str).collect::<Vec<_>>().join("; ");
        let known = if known.is_empty() { known } else { format!(" ({known})") };
        self.variant.name.clone() + &known
    }

    /// The CPU seconds of its threads, means over the runs, in words.
    pub fn threads(&self) -> String {
        let mut sums = BTreeMap::<&str, f64>::new();
        for (name, seconds) in self.runs.iter().flat_map(|run| &run.measured.threads) {
            *sums.entry(name).or_default() += seconds / self.runs.len() as f64;
        }
        let mut sums: Vec<_> = sums.into_iter().filter(|(_, seconds)| *seconds >= 0.0005).collect();
        sums.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        sums.iter()
            .map(|(name, seconds)| format!("{name} {}", short(*seconds)))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl Comparison {
    /// Whether a real difference is an advantage; `None` if there is none, or the figure has no better direction.
    pub fn is_better(&self, name: &str) -> Option<bool> {
        let better = figures::known(name).map_or(Better::Neither, |figure| figure.better);
        match better {
            _ if !self.is_real => None,
            Better::More => Some(self.ratio > 1.0),
            Better::Less => Some(self.ratio < 1.0),
            Better::Neither => None,
        }
    }
}

/// What other programs used of the machine in most runs, in words; `None` if it was quiet.
pub fn busy<'a>(head: &Head, runs: impl Iterator<Item = &'a Run>) -> Option<String> {
    let foreign: Vec<f64> = runs.filter_map(|run| run.measured.figures.get(FOREIGN).copied()).collect();
    machine::busy_words(median(&foreign)?, head.machine.cores, "used")
}

/// The successful runs of a variant, by round.
pub fn successful(runs: &[Run], variant: &str) -> Vec<Run> {
    let is_one = |run: &&Run| run.variant == variant && run.failed.is_none();
    let mut own: Vec<Run> = runs.iter().filter(is_one).cloned().collect();
    own.sort_by_key(|run| run.round);
    own
}

fn spreads(runs: &[Run]) -> BTreeMap<String, Spread> {
    values(runs)
        .into_iter()
        .filter_map(|(name, values)| Some((name.to_owned(), Spread::of(&values)?)))
        .collect()
}

/// The values of each figure in these runs, by its name.
pub fn values(runs: &[Run]) -> BTreeMap<&str, Vec<f64>> {
    let mut by_name = BTreeMap::<&str, Vec<f64>>::new();
    for run in runs {
        for (name, value) in &run.measured.figures {
            by_name.entry(name).or_default().push(*value);
        }
    }
    by_name
}

fn compared(baseline: &[Run], own: &[Run]) -> BTreeMap<String, Comparison> {
    let base = values(baseline);
    let one = |(name, own): (&str, Vec<f64>)| Some((name.to_owned(), compare(base.get(name)?, &own, SEED)?));
    values(own).into_iter().filter_map(one).collect()
}
