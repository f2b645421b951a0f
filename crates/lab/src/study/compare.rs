//! `lab compare A B`: the same variants in two records: two versions of a server, two machines, two days.

use super::analysis::{Comparison, compare, signed};
use super::figures;
use super::record::{Head, Record};
use super::results::{busy, successful, values};
use crate::report::Table;
use anyhow::{Context, Result, ensure};
use clap::Args;
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
    let names = |head: &Head| head.variants.iter().map(|variant| variant.name.clone()).collect::<Vec<_>>();
    let (before_names, after_names) = (names(&before_head), names(&after_head));
    let (both, alone): (Vec<_>, Vec<_>) = before_names
        .iter()
        .chain(&after_names)
        .partition(|name| before_names.contains(name) && after_names.contains(name));
    ensure!(!both.is_empty(), "the two have no variant of the same name");
    let mut text = format!("{} and {}\n", arguments.before.display(), arguments.after.display());
    if before_head.machine.is_like(&after_head.machine) {
        text +=
            "The two did not take turns: what changed on the machine between them counts as a difference.\n";
    } else {
        text += "These ran on different machines or kernels: differences may be theirs.\n";
    }
    for (path, head, runs) in
        [(&arguments.before, &before_head, &before), (&arguments.after, &after_head, &after)]
    {
        let busy = busy(head, runs.iter().filter(|run| run.failed.is_none()));
        text.extend(busy.map(|words| format!("{}: {words}\n", path.display())));
    }
    if before_head.file != after_head.file || before_head.options != after_head.options {
        text += "Their experiment files or options differ: differences may come from that.\n";
    }
    if !alone.is_empty() {
        let alone: Vec<_> = alone.into_iter().map(String::as_str).collect();
        text += &format!("Only in one of them: {}\n", alone.join(", "));
    }
    for name in before_names.iter().filter(|name| both.contains(name)) {
        let mut table =
            Table::new(name.as_str(), &["figure", "before", "after", "change", "99 % interval", ""]);
        let (own_before, own_after) = (successful(&before, name), successful(&after, name));
        let (before, after) = (values(&own_before), values(&own_after));
        for figure in figures::in_order(before.keys().copied()) {
            let (Some(before), Some(after)) = (before.get(figure), after.get(figure)) else { continue };
            if let Some(found) = compare(before, after, 1) {
                table.row(row(figure, before, after, &found));
            }
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
