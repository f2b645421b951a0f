//! The report as one HTML file without outside resources: for a phone, in the dark, and for a screen reader too. What
//! the plots show is in the tables as well.

use super::analysis::signed;
use super::figures::{self, RESIDENT};
use super::plots;
use super::results::{Results, VariantResults};
use super::svg::{SERIES, escaped};
use anyhow::Result;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub fn page(results: &Results) -> Result<String> {
    let mut text = head(&results.head.name);
    if !results.about.is_empty() {
        writeln!(text, "<p>{}</p>", escaped(results.about.trim()))?;
    }
    writeln!(text, "<p class=\"verdict\">{}</p>", escaped(&results.verdict()))?;
    list(&mut text, results.sentences().iter().map(|sentence| escaped(sentence)))?;
    all_plots(&mut text, results)?;
    figure_table(&mut text, results)?;
    thread_table(&mut text, results)?;
    problems(&mut text, results)?;
    how(&mut text, results)?;
    text.push_str(END);
    Ok(text)
}

/// The beginning of a page.
pub fn head(title: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    )
}

/// The end of a page.
pub const END: &str = "</main>\n</body>\n</html>\n";

fn list(text: &mut String, items: impl Iterator<Item = String>) -> Result<()> {
    let items: Vec<_> = items.collect();
    if !items.is_empty() {
        writeln!(text, "<ul>\n<li>{}</li>\n</ul>", items.join("</li>\n<li>"))?;
    }
    Ok(())
}

fn all_plots(text: &mut String, results: &Results) -> Result<()> {
    text.push_str("<h2>Plots</h2>\n<div class=\"plots\">\n");
    let ran = plots::that_ran(results).into_iter();
    let variants: Vec<_> = ran.map(|(number, variant)| (number, variant.variant.name.clone())).collect();
    let threads: Vec<_> = plots::busiest_threads(results).into_iter().enumerate().collect();
    let speed = results.speed();
    let all = [
        (figures::title(speed), plots::runs(results, speed)?, None),
        (figures::title(RESIDENT), plots::runs(results, RESIDENT)?, None),
        ("resident memory over time", plots::resident(results)?, Some(&variants)),
        ("latency", plots::latencies(results)?, Some(&variants)),
        ("CPU time by thread", plots::threads(results)?, Some(&threads)),
    ];
    for (title, plot, names) in all {
        let Some(plot) = plot else { continue };
        write!(text, "<figure>\n<figcaption>{}</figcaption>\n{plot}", escaped(title))?;
        if let Some(names) = names {
            text.push_str("<ul class=\"key\">");
            for (number, name) in names {
                let series = number % SERIES;
                write!(
                    text,
                    "<li><span style=\"background:var(--s{series})\"></span>{}</li>",
                    escaped(name)
                )?;
            }
            text.push_str("</ul>\n");
        }
        text.push_str("</figure>\n");
    }
    text.push_str(
        "</div>\n<p>A dot is a run, the bar the median of its variant, and the line under it the 99 % \
                   interval of the difference from the baseline.</p>\n",
    );
    Ok(())
}

fn figure_table(text: &mut String, results: &Results) -> Result<()> {
    writeln!(
        text,
        "<h2>Figures</h2>\n<p>Medians over the runs, and the change from {} with its 99 % interval. A change in \
         bold is real.</p>\n<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Figures\">\n<table>",
        escaped(&results.baseline)
    )?;
    text.push_str("<thead><tr><th scope=\"col\">figure</th>");
    for variant in &results.variants {
        write!(text, "<th scope=\"col\">{}</th>", escaped(&variant.variant.name))?;
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for name in results.figure_names() {
        write!(text, "<tr><th scope=\"row\">{}</th>", escaped(figures::title(name)))?;
        for variant in &results.variants {
            write!(text, "<td>{}</td>", cell(variant, name))?;
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table>\n</div>\n");
    Ok(())
}

fn thread_table(text: &mut String, results: &Results) -> Result<()> {
    text.push_str(
        "<h2>CPU seconds by thread</h2>\n<p>Means over the runs.</p>\n\
         <div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"CPU seconds by thread\">\n<table>\n<tbody>\n",
    );
    for variant in results.variants.iter().filter(|variant| !variant.runs.is_empty()) {
        let (name, threads) = (escaped(&variant.variant.name), escaped(&variant.threads()));
        writeln!(text, "<tr><th scope=\"row\">{name}</th><td>{threads}</td></tr>")?;
    }
    text.push_str("</tbody>\n</table>\n</div>\n");
    Ok(())
}

fn cell(variant: &VariantResults, name: &str) -> String {
    let Some(spread) = variant.figures.get(name) else { return "-".to_owned() };
    let median = escaped(&figures::shown(name, spread.median));
    let Some(found) = variant.comparisons.get(name) else { return median };
    let change = signed(found.ratio);
    let change = match found.is_better(name) {
        Some(true) => format!("<b class=\"good\">{change}</b>"),
        Some(false) => format!("<b class=\"bad\">{change}</b>"),
        None if found.is_real => format!("<b>{change}</b>"),
        None => change,
    };
    format!("{median}<small>{change} ({} to {})</small>", signed(found.low), signed(found.high))
}

fn problems(text: &mut String, results: &Results) -> Result<()> {
    let problems = results.problems();
    if !problems.is_empty() {
        text.push_str("<h2>What did not work</h2>\n");
        list(text, problems.iter().map(|problem| escaped(problem)))?;
    }
    Ok(())
}

fn how(text: &mut String, results: &Results) -> Result<()> {
    let head = &results.head;
    text.push_str("<h2>How it was measured</h2>\n");
    let ran = results.variants.iter().filter(|variant| variant.variant.lacks.is_none());
    let commands = ran.map(|variant| {
        let command = escaped(&variant.variant.command);
        format!("{}: <code>{command}</code>", escaped(&variant.name_and_version()))
    });
    list(text, results.circumstances().iter().map(|line| escaped(line)).chain(commands))?;
    writeln!(
        text,
        "<p>To run it again, save this as <code>{0}.toml</code> and call <code>{1}</code>:</p>\n\
         <pre tabindex=\"0\">{2}</pre>",
        escaped(&head.name),
        escaped(&results.again()),
        escaped(head.file.trim_end())
    )?;
    Ok(())
}
