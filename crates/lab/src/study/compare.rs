//! `lab compare A B`: the same variants in two records: two versions of a server, two machines, two days.

use super::analysis::{Comparison, compare, signed};
use super::figures::{self, FIGURES};
use super::record::{Record, Run};
use crate::report::Table;
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

/// Options of `lab compare`.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  dormouse lab compare before.results after.results")]
pub struct CompareArgs {
    /// Directory of the runs that are compared with
    before: PathBuf,
    /// Directory of the runs that are compared
    after: PathBuf,
}

/// Prints the comparison.
pub fn run(arguments: &CompareArgs) -> Result<()> {
    let (before_head, before) = Record::read(&arguments.before)?;
    let (after_head, after) = Record::read(&arguments.after)?;
    let names: Vec<_> = before_head
        .variants
        .iter()
        .map(|variant| variant.name.as_str())
        .filter(|name| after_head.variants.iter().any(|variant| variant.name == *name))
        .collect();
    ensure!(!names.is_empty(), "the two have no variant of the same name");
    let mut text = format!("{} and {}\n", arguments.before.display(), arguments.after.display());
    if before_head.machine.processor != after_head.machine.processor {
        text += "These ran on different machines: differences may be the machines'.\n";
    } else {
        text +=
            "The two did not take turns: what changed on the machine between them counts as a difference.\n";
    }
    for name in names {
        let mut table = Table::new(name, &["figure", "before", "after", "change", "99 % interval", ""]);
        let (a, b) = (figures_of(&before, name), figures_of(&after, name));
        for figure in FIGURES.iter().map(|figure| figure.name) {
            let (Some(before), Some(after)) = (a.get(figure), b.get(figure)) else { continue };
            let pairs: Vec<_> = before.iter().copied().zip(after.iter().copied()).collect();
            let Some(found) = compare(&pairs, 1) else { continue };
            table.row(row(figure, before, after, &found));
        }
        table.render(&mut text);
    }
    io::stdout().write_all(text.as_bytes()).context("printing the comparison")
}

fn row(figure: &str, before: &[f64], after: &[f64], found: &Comparison) -> Vec<String> {
    let median = |values: &[f64]| {
        crate::statistics::median(values).map_or("-".to_owned(), |value| figures::shown(figure, value))
    };
    let verdict = match found.is_better(figure) {
        Some(true) => "better",
        Some(false) => "worse",
        None if found.is_real => "differs",
        None => "no difference shown",
    };
    vec![
        figures::title(figure).to_owned(),
        median(before),
        median(after),
        signed(found.ratio),
        format!("{} to {}", signed(found.low), signed(found.high)),
        verdict.to_owned(),
    ]
}

fn figures_of<'a>(runs: &'a [Run], variant: &str) -> BTreeMap<&'a str, Vec<f64>> {
    let mut figures = BTreeMap::<&str, Vec<f64>>::new();
    for run in runs.iter().filter(|run| run.variant == variant && run.failed.is_none()) {
        for (name, value) in &run.measured.figures {
            figures.entry(name).or_default().push(*value);
        }
    }
    figures
}
