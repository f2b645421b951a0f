//! What an experiment reports: its settings, tables for people, JSON for programs, and its goals with "met" or
//! "missed".

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// A promised figure.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// What is measured.
    pub name: String,
    /// Bound, in words.
    pub wanted: String,
    /// Figure reached, in words.
    pub reached: String,
    /// Whether the figure is within the bound.
    pub met: bool,
}

impl Goal {
    /// A figure that must be at least `bound`.
    pub fn at_least(name: impl Into<String>, reached: f64, bound: f64, unit: &str) -> Self {
        Self::new(name, "at least", reached, bound, unit, reached >= bound)
    }

    /// A figure that must be at most `bound`.
    pub fn at_most(name: impl Into<String>, reached: f64, bound: f64, unit: &str) -> Self {
        Self::new(name, "at most", reached, bound, unit, reached <= bound)
    }

    fn new(name: impl Into<String>, words: &str, reached: f64, bound: f64, unit: &str, met: bool) -> Self {
        let wanted = format!("{words} {}{unit}", short(bound));
        Self { name: name.into(), wanted, reached: format!("{}{unit}", short(reached)), met }
    }
}

/// A table of text and figures.
#[derive(Clone, Debug, Default)]
pub struct Table {
    title: String,
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, heads: &[&str]) -> Self {
        Self {
            title: title.into(),
            heads: heads.iter().map(|&head| head.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns true if it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Appends it to a text.
    pub fn render(&self, text: &mut String) {
        let mut widths: Vec<usize> = self.heads.iter().map(|head| head.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &[String], text: &mut String| {
            let mut out = String::new();
            for (index, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
                let pad = " ".repeat(width - cell.chars().count());
                // The first column holds names, the others figures.
                let (left, right) = if index == 0 { (cell.as_str(), pad.as_str()) } else { (&*pad, &**cell) };
                out.push_str(left);
                out.push_str(right);
                out.push_str("  ");
            }
            text.push_str(out.trim_end());
            text.push('\n');
        };
        text.push('\n');
        text.push_str(&self.title);
        text.push('\n');
        line(&self.heads, text);
        line(&widths.iter().map(|&width| "-".repeat(width)).collect::<Vec<_>>(), text);
        for row in &self.rows {
            line(row, text);
        }
    }
}

/// All results of an experiment.
#[derive(Default)]
pub struct Report {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Statements printed above the tables.
    pub settings: Vec<String>,
    /// Tables for people.
    pub tables: Vec<Table>,
    /// Statements printed below the tables.
    pub notes: Vec<String>,
    /// Goals, in order.
    pub goals: Vec<Goal>,
    /// The same for programs, by name.
    pub data: Map<String, Value>,
}

impl Report {
    /// Adds machine-readable results.
    pub fn data(&mut self, name: &str, value: &impl Serialize) -> Result<()> {
        self.data.insert(name.to_owned(), serde_json::to_value(value)?);
        Ok(())
    }

    /// Adds a warning if this program is among those measured and has assertions on: its figures do not count.
    pub fn note_this_build(&mut self, is_measured: bool) {
        if cfg!(debug_assertions) && is_measured {
            self.settings
                .push("THIS BUILD HAS ASSERTIONS ON: its figures say nothing about a release".to_owned());
        }
    }

    /// Writes its JSON form, if requested.
    pub fn with_json(mut self, json: Option<&Path>) -> Result<Self> {
        if let Some(path) = json {
            self.data.insert("experiment".to_owned(), Value::from(self.experiment));
            self.data.insert("settings".to_owned(), Value::from(self.settings.clone()));
            self.data.insert("notes".to_owned(), Value::from(self.notes.clone()));
            self.data.insert("goals".to_owned(), serde_json::to_value(&self.goals)?);
            let json = serde_json::to_string_pretty(&self.data)?;
            fs::write(path, json + "\n").with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(self)
    }

    /// Prints it; with the goals of this project's own server only on request, since others do not share them.
    pub fn print(&self, goals: bool) -> Result<()> {
        let mut text = format!("\ndormouse lab {}\n", self.experiment);
        for setting in &self.settings {
            writeln!(text, "  {setting}")?;
        }
        for table in &self.tables {
            table.render(&mut text);
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            writeln!(text, "  {note}")?;
        }
        if goals && !self.goals.is_empty() {
            let mut goals = Table::new("Goals", &["goal", "wanted", "reached", ""]);
            for goal in &self.goals {
                let verdict = if goal.met { "met" } else { "MISSED" };
                goals.row(vec![
                    goal.name.clone(),
                    goal.wanted.clone(),
                    goal.reached.clone(),
                    verdict.to_owned(),
                ]);
            }
            goals.render(&mut text);
        }
        io::stdout().write_all(text.as_bytes()).context("printing the report")
    }
}

/// Formats a figure with at most four digits, so as not to suggest more precision than it has.
pub fn short(value: f64) -> String {
    let size = value.abs();
    match value {
        _ if !value.is_finite() => "-".to_owned(),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats bytes with a binary unit.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut size = value as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{} {}", short(size), UNITS.get(unit).copied().unwrap_or("B"))
}

/// Formats a count of items: 1M, 250k, 17.
pub fn count(value: u32) -> String {
    match value {
        _ if value >= 1_000_000 && value.is_multiple_of(100_000) => format!("{}M", f64::from(value) / 1e6),
        _ if value >= 1_000 && value.is_multiple_of(1_000) => format!("{}k", value / 1_000),
        _ => value.to_string(),
    }
}

/// Parses a count of items as written by `count`.
pub fn parse_count(text: &str) -> Result<u32, String> {
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1e3),
        None => text.strip_suffix(['m', 'M']).map_or((text, 1.0), |digits| (digits, 1e6)),
    };
    let value =
        digits.parse::<f64>().map_err(|_| format!("`{text}` is not a count such as 250k or 1M"))? * factor;
    if (1.0..=f64::from(crate::protocol::ITEMS_MAX)).contains(&value) {
        return Ok(value as u32);
    }
    Err(format!("`{text}`: 1 to {} are possible", count(crate::protocol::ITEMS_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_names_left_and_figures_right() {
        let mut table = Table::new("t", &["name", "n"]);
        table.row(vec!["a".to_owned(), "100".to_owned()]);
        let mut text = String::new();
        table.render(&mut text);
        assert_eq!(text, "\nt\nname    n\n----  ---\na     100\n");
    }

    #[test]
    fn counts_read_as_they_are_written() {
        for value in [17, 250_000, 1_000_000, 2_500_000, 1_090_909] {
            assert_eq!(parse_count(&count(value)), Ok(value));
        }
        assert!(parse_count("x").is_err() && parse_count("0").is_err() && parse_count("200M").is_err());
    }

    #[test]
    fn goals_compare_in_their_direction() {
        assert!(Goal::at_least("a", 1.3, 1.25, "x").met && !Goal::at_least("a", 1.2, 1.25, "x").met);
        assert!(Goal::at_most("a", 64.0, 64.0, " B").met && !Goal::at_most("a", 65.0, 64.0, " B").met);
        assert_eq!(Goal::at_most("a", 70.0, 64.0, " B").wanted, "at most 64.0 B");
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(short(1234.5), "1234");
        assert_eq!(short(0.0123), "0.012");
        assert_eq!(bytes(40 << 20), "40.0 MiB");
    }
}
