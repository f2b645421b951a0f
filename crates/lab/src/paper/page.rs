//! The reports of `lab paper`: one HTML file without outside resources, the same as Markdown, and its figures as JSON.

use super::Paper;
use super::tables::Comparison;
use crate::study::html;
use crate::study::report::{Table, plain, ticks};
use crate::study::svg::escaped;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

const TITLE: &str = "The reports' tables, measured again";

/// Writes all three, and says where.
pub fn write(paper: &Paper, directory: &Path) -> Result<()> {
    let markdown = markdown(paper)?;
    let json = serde_json::to_string_pretty(paper)? + "\n";
    for (name, text) in [("paper.md", &markdown), ("paper.html", &page(paper)?), ("paper.json", &json)] {
        // A full disk leaves the former report as it was.
        let (unfinished, path) = (directory.join(format!("{name}.unfinished")), directory.join(name));
        let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &path));
        written.with_context(|| format!("writing {}", path.display()))?;
    }
    let files = format!("\n{0}/paper.html, {0}/paper.md, {0}/paper.json\n", directory.display());
    io::stdout().write_all((summary(paper)? + &files).as_bytes()).context("printing the tables")
}

fn summary(paper: &Paper) -> Result<String> {
    let mut text = String::new();
    for table in &paper.tables {
        let mut shown = crate::report::Table::new(heading(table), &table.heads);
        table.rows.iter().for_each(|row| shown.row(row.clone()));
        shown.render(&mut text);
        writeln!(text, "{}", table.note)?;
    }
    Ok(text)
}

fn heading(table: &Comparison) -> String {
    format!("{}: {}", table.experiment.to_uppercase(), table.title)
}

fn markdown(paper: &Paper) -> Result<String> {
    let mut text = format!("# {TITLE}\n\n");
    for line in paper.circumstances() {
        writeln!(text, "* {}", plain(&line))?;
    }
    for (part, why) in &paper.failed {
        writeln!(text, "* {part} FAILED: {}", plain(why))?;
    }
    for table in &paper.tables {
        writeln!(text, "\n## {}\n", plain(&heading(table)))?;
        let mut shown = Table::new(&table.heads);
        table.rows.iter().for_each(|row| shown.row(row.clone()));
        shown.render(&mut text)?;
        writeln!(text, "\n{}", plain(table.note))?;
    }
    for (title, printed) in &paper.texts {
        let fence = ticks(printed, 3);
        writeln!(text, "\n## {}, all figures\n\n{fence}text\n{}\n{fence}", plain(title), printed.trim())?;
    }
    Ok(text)
}

fn page(paper: &Paper) -> Result<String> {
    let mut text = html::head(TITLE);
    text.push_str("<ul>\n");
    for line in paper.circumstances() {
        writeln!(text, "<li>{}</li>", escaped(&line))?;
    }
    for (part, why) in &paper.failed {
        writeln!(text, "<li class=\"bad\">{part} failed: {}</li>", escaped(why))?;
    }
    text.push_str("</ul>\n");
    for table in &paper.tables {
        let heading = escaped(&heading(table));
        writeln!(
            text,
            "<h2>{heading}</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{heading}\">\n<table>"
        )?;
        text.push_str("<thead><tr>");
        for head in &table.heads {
            write!(text, "<th scope=\"col\">{}</th>", escaped(head))?;
        }
        text.push_str("</tr></thead>\n<tbody>\n");
        for row in &table.rows {
            text.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let cell = escaped(cell);
                match column {
                    0 => write!(text, "<th scope=\"row\">{cell}</th>")?,
                    _ if column + 1 == row.len() => write!(text, "<td class=\"words\">{cell}</td>")?,
                    _ => write!(text, "<td>{cell}</td>")?,
                }
            }
            text.push_str("</tr>\n");
        }
        writeln!(text, "</tbody>\n</table>\n</div>\n<p>{}</p>", escaped(table.note))?;
    }
    for (title, printed) in &paper.texts {
        writeln!(
            text,
            "<details>\n<summary>{}, all figures</summary>\n<pre tabindex=\"0\">{}</pre>\n</details>",
            escaped(title),
            escaped(printed.trim())
        )?;
    }
    text.push_str(html::END);
    Ok(text)
}
