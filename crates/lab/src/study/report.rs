//! The reports: a text for the terminal, Markdown and JSON.

use super::analysis::{Comparison, signed};
use super::figures::{self, PER_CPU_SECOND, RATE, RESIDENT};
use super::file::Study;
use super::html;
use super::one::Measured;
use super::record::Variant;
use super::results::Results;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

/// Writes all reports into the directory of the runs, and prints the text.
pub fn write(results: &Results, directory: &Path) -> Result<()> {
    let markdown = markdown(results)?;
    let json = serde_json::to_string_pretty(results)? + "\n";
    let html = html::page(results)?;
    for (name, text) in [("report.html", &html), ("report.md", &markdown), ("report.json", &json)] {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    let place = directory.display();
    let text =
        format!("{markdown}\nReport: {place}/report.html (also .md and .json); runs: {place}/runs.jsonl\n");
    io::stdout().write_all(text.as_bytes()).context("printing the report")
}

/// Prints what would be run.
pub fn print_plan(study: &Study, variants: &[Variant], seed: u64) -> Result<()> {
    let mut text = format!(
        "{}: {} variants, {} runs of each, in the order of seed {seed}\n",
        study.name,
        variants.len(),
        study.repeats
    );
    for (index, variant) in variants.iter().enumerate() {
        let mark = if index == study.baseline() { " (baseline)" } else { "" };
        writeln!(text, "\n{}{mark}", variant.name)?;
        match &variant.lacks {
            Some(lacks) => writeln!(text, "  left out: {lacks}")?,
            None => writeln!(text, "  {}", variant.command)?,
        }
        for line in [&variant.version, &variant.library].into_iter().flatten() {
            writeln!(text, "  {line}")?;
        }
    }
    io::stdout().write_all(text.as_bytes()).context("printing the plan")
}

/// A run in a few words.
pub fn short_line(measured: &Measured) -> String {
    let said = |name: &str, unit: &str| {
        measured.figures.get(name).map(|value| format!("{}{unit}", figures::shown(name, *value)))
    };
    let parts = [said(RATE, "/s"), said(PER_CPU_SECOND, "/CPU s"), said(RESIDENT, " resident")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A length of time in minutes and seconds.
pub fn minutes(length: Duration) -> String {
    let seconds = length.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// A table in Markdown, whose columns line up for people who read the text.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty one.
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|&head| head.to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.into_iter().map(|cell| plain(&cell).replace('|', "\\|")).collect());
    }

    /// Appends it to a text.
    pub fn render(&self, text: &mut String) -> Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).max(3)).collect();
        for (index, row) in self.rows.iter().enumerate() {
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
                // The first column holds names, the others figures.
                if column == 0 { write!(text, "| {cell}{pad} ")? } else { write!(text, "| {pad}{cell} ")? }
            }
            text.push_str("|\n");
            if index == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let line = "-".repeat(width + 1);
                    if column == 0 { write!(text, "|{line}-")? } else { write!(text, "|{line}:")? }
                }
                text.push_str("|\n");
            }
        }
        Ok(())
    }
}

/// Text that Markdown shows as it is, on one line.
pub fn plain(text: &str) -> String {
    text.replace('\n', " ").replace('&', "&amp;").replace('<', "&lt;")
}

/// A fence or a code span's delimiter that does not occur in the text.
pub fn ticks(text: &str, least: usize) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat((longest + 1).max(least))
}

/// The whole report.
pub fn markdown(results: &Results) -> Result<String> {
    let mut text = format!("# {}\n\n", results.head.name);
    if !results.about.is_empty() {
        writeln!(text, "{}\n", plain(results.about.trim()))?;
    }
    writeln!(text, "{}\n", plain(&results.verdict()))?;
    for sentence in results.sentences() {
        writeln!(text, "* {}", plain(&sentence))?;
    }
    writeln!(
        text,
        "\n## Figures\n\nMedians over the runs; in brackets the change from {} with its 99 % interval, where",
        results.baseline
    )?;
    writeln!(text, "`*` marks a difference that is real.\n")?;
    let heads: Vec<&str> = ["figure"]
        .into_iter()
        .chain(results.variants.iter().map(|variant| variant.variant.name.as_str()))
        .collect();
    let mut table = Table::new(&heads);
    for name in results.figure_names() {
        let cell = |variant: &super::results::VariantResults| {
            let median = variant.figures.get(name).map(|spread| figures::shown(name, spread.median));
            let change =
                variant.comparisons.get(name).map(|comparison| format!(" ({})", interval(comparison)));
            median.unwrap_or_else(|| "-".to_owned()) + &change.unwrap_or_default()
        };
        table.row(
            std::iter::once(figures::title(name).to_owned())
                .chain(results.variants.iter().map(cell))
                .collect(),
        );
    }
    table.render(&mut text)?;
    threads(results, &mut text)?;
    failures(results, &mut text)?;
    how(results, &mut text)?;
    Ok(text)
}

fn interval(comparison: &Comparison) -> String {
    let mark = if comparison.is_real { " *" } else { "" };
    format!("{}, {} to {}{mark}", signed(comparison.ratio), signed(comparison.low), signed(comparison.high))
}

/// CPU time by thread: medians over the runs would mix different threads.
fn threads(results: &Results, text: &mut String) -> Result<()> {
    text.push_str("\n## CPU seconds by thread, means over the runs\n\n");
    let mut table = Table::new(&["variant", "threads"]);
    for variant in results.variants.iter().filter(|variant| !variant.runs.is_empty()) {
        table.row(vec![variant.variant.name.clone(), variant.threads()]);
    }
    table.render(text)
}

fn failures(results: &Results, text: &mut String) -> Result<()> {
    let problems = results.problems();
    if !problems.is_empty() {
        text.push_str("\n## What did not work\n\n");
    }
    for problem in problems {
        writeln!(text, "* {}", plain(&problem))?;
    }
    Ok(())
}

fn how(results: &Results, text: &mut String) -> Result<()> {
    let head = &results.head;
    writeln!(text, "\n## How it was measured\n")?;
    for line in results.circumstances() {
        writeln!(text, "* {line}")?;
    }
    for variant in results.variants.iter().filter(|variant| variant.variant.lacks.is_none()) {
        let (command, ticks) = (&variant.variant.command, ticks(&variant.variant.command, 1));
        writeln!(text, "* {}: {ticks} {command} {ticks}", plain(&variant.name_and_version()))?;
    }
    writeln!(text, "\nTo run it again, save this as `{}.toml` and call `{}`:\n", head.name, results.again())?;
    let fence = ticks(&head.file, 3);
    writeln!(text, "{fence}toml\n{}\n{fence}", head.file.trim_end())?;
    Ok(())
}
