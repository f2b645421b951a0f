//! `lab recommend`: which variant to run, why, and how to deploy it.
//!
//! A variant that is beaten in speed and memory alike is out; the others are the front. The recommendation is the one
//! of the front with least memory among those that give up at most a few per cent of the fastest one's speed.

use super::analysis::signed;
use super::figures::{self, Better, RESIDENT};
use super::file::{HugePages, Study, VariantSpec};
use super::record::Record;
use super::results::{Results, VariantResults};
use crate::{allocator, debian};
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

/// Options of `lab recommend`.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  dormouse lab recommend valkey.results --give-up 5")]
pub struct RecommendArgs {
    /// Directory of an experiment's runs, or its runs.jsonl
    results: PathBuf,
    /// Speed that may be given up for memory, in per cent of the fastest variant's
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0)]
    give_up: f64,
}

/// A variant as a point.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    variant: usize,
    /// Larger is faster.
    speed: f64,
    bytes: f64,
}

/// Prints the recommendation.
pub fn recommend(arguments: &RecommendArgs) -> Result<()> {
    ensure!(
        (0.0..100.0).contains(&arguments.give_up),
        "--give-up = {}: 0 to 99 are allowed",
        arguments.give_up
    );
    let (head, runs) = Record::read(&arguments.results)?;
    let study = Study::parse(&head.file, &head.name)?;
    let results = Results::of(head, &runs)?;
    let text = text(&study, &results, arguments.give_up)?;
    io::stdout().write_all(text.as_bytes()).context("printing the recommendation")
}

fn text(study: &Study, results: &Results, give_up: f64) -> Result<String> {
    let points = points(results);
    let front = front(&points);
    let chosen = choose(&front, give_up).context("no variant has figures to choose by")?;
    let variant = results.variants.get(chosen.variant).context("its variants are not those of its file")?;
    let mut text = results.busy().map(|words| words + "\n").unwrap_or_default();
    text += &paragraph(results, variant, &front, give_up);
    text.extend(results.quick().map(|quick| quick + "\n"));
    let advised = match is_better(results, variant) {
        true => Some(&variant.variant.name),
        // What runs today, unless that was not measured.
        false => results.missing_baseline.is_some().then_some(&results.baseline),
    };
    if let Some(advised) = advised {
        let spec = study.variants.iter().find(|spec| spec.name == *advised);
        deployment(study, spec.context("its variants are not those of its file")?, &mut text)?;
    }
    Ok(text)
}

fn points(results: &Results) -> Vec<Point> {
    let speed = results.speed();
    let is_more_better = figures::known(speed).is_some_and(|figure| figure.better == Better::More);
    let point = |(variant, found): (usize, &VariantResults)| {
        let median =
            |name: &str| found.figures.get(name).map(|spread| spread.median).filter(|median| *median > 0.0);
        let speed = median(speed)?;
        Some(Point {
            variant,
            speed: if is_more_better { speed } else { 1.0 / speed },
            bytes: median(RESIDENT)?,
        })
    };
    results.variants.iter().enumerate().filter_map(point).collect()
}

/// The points that no other beats in both, the fastest first.
fn front(points: &[Point]) -> Vec<Point> {
    let beats = |a: &Point, b: &Point| {
        a.speed >= b.speed && a.bytes <= b.bytes && (a.speed > b.speed || a.bytes < b.bytes)
    };
    let mut front: Vec<Point> =
        points.iter().filter(|point| !points.iter().any(|other| beats(other, point))).copied().collect();
    front.sort_by(|a, b| b.speed.total_cmp(&a.speed));
    front
}

fn choose(front: &[Point], give_up: f64) -> Option<Point> {
    let least_speed = front.first()?.speed * (1.0 - give_up / 100.0);
    let fast = front.iter().filter(|point| point.speed >= least_speed);
    fast.min_by(|a, b| a.bytes.total_cmp(&b.bytes)).copied()
}

fn paragraph(results: &Results, chosen: &VariantResults, front: &[Point], give_up: f64) -> String {
    let (name, speed) = (&chosen.variant.name, figures::title(results.speed()));
    let others: Vec<_> = front
        .iter()
        .filter_map(|point| results.variants.get(point.variant))
        .map(|variant| variant.variant.name.as_str())
        .filter(|other| other != name)
        .collect();
    let others = match others.is_empty() {
        true => format!("No other variant is faster or smaller than {name}"),
        false => format!("Faster but larger than {name}, or smaller but slower: {}", others.join(", ")),
    };
    let stay = match &results.missing_baseline {
        Some(missing) => format!("No run of {missing} succeeded. Of those that ran: take"),
        None => "Stay with".to_owned(),
    };
    if *name == results.baseline {
        return format!(
            "{stay} {name}: of the variants within {give_up} % of the fastest by {speed}, {name} needs the least \
             memory. {others}.\n"
        );
    }
    let said = |figure: &str| {
        let found = chosen.comparisons.get(figure)?;
        let real = if found.is_real { "real" } else { "not shown to be real by these runs" };
        Some(format!("{} {} ({real})", signed(found.ratio), figures::title(figure)))
    };
    let changes: Vec<_> = [results.speed(), RESIDENT].into_iter().filter_map(said).collect();
    let advice = if is_better(results, chosen) {
        format!("Run {name}")
    } else {
        format!(
            "{stay} {}: nothing is shown to be better. The best of the others is {name}",
            results.baseline
        )
    };
    format!(
        "{advice}: {} compared with {}. Of the variants within {give_up} % of the fastest by {speed}, {name} needs \
         the least memory. {others}.\n",
        changes.join(", "),
        results.baseline
    )
}

/// Returns true if its advantage over the baseline is real.
fn is_better(results: &Results, variant: &VariantResults) -> bool {
    let mut figures = [results.speed(), RESIDENT].into_iter();
    figures.any(|name| variant.comparisons.get(name).and_then(|found| found.is_better(name)) == Some(true))
}

/// A value between double quotes, with a backslash before these characters. Control characters are not in it.
fn quoted(value: &str, escaped: &[char]) -> String {
    value.chars().flat_map(|c| escaped.contains(&c).then_some('\\').into_iter().chain([c])).collect()
}

fn deployment(study: &Study, spec: &VariantSpec, text: &mut String) -> Result<()> {
    let mut variables = study.subject.environment.clone();
    let mut package = None;
    if let Some(name) = &spec.allocator {
        match allocator::find(name) {
            Ok(library) => {
                let preload = library.as_ref().map(|path| path.to_string_lossy().into_owned());
                variables.extend(preload.map(|path| ("LD_PRELOAD".to_owned(), path)));
                let file = library.and_then(|path| fs::canonicalize(path).ok());
                package = file.and_then(|file| debian::package_of(&file)).map(|found| found.name);
            }
            Err(error) => writeln!(text, "\nOn this machine {error:#}.")?,
        }
    }
    variables.extend(spec.environment.clone());
    let cores: Vec<_> = spec.cores.iter().map(ToString::to_string).collect();
    if !variables.is_empty() || !cores.is_empty() {
        writeln!(
            text,
            "\n# /etc/systemd/system/UNIT.service.d/allocator.conf, then: systemctl daemon-reload\n[Service]"
        )?;
        for (name, value) in &variables {
            // systemd has specifiers too.
            let value = quoted(value, &['\\', '"']).replace('%', "%%");
            writeln!(text, "Environment=\"{name}={value}\"")?;
        }
        if !cores.is_empty() {
            writeln!(text, "CPUAffinity={}", cores.join(" "))?;
        }
    }
    if !variables.is_empty() {
        writeln!(text, "\n# as an environment file")?;
        for (name, value) in &variables {
            writeln!(text, "{name}=\"{}\"", quoted(value, &['\\', '"', '$', '`']))?;
        }
        writeln!(text, "\n# in a Dockerfile")?;
        if let Some(package) = package {
            writeln!(text, "RUN apt-get update && apt-get install -y --no-install-recommends {package}")?;
        }
        for (name, value) in &variables {
            writeln!(text, "ENV {name}=\"{}\"", quoted(value, &['\\', '"', '$']))?;
        }
    }
    match spec.huge_pages {
        Some(HugePages::Denied) => {
            writeln!(
                text,
                "\nThe process must call prctl(PR_SET_THP_DISABLE, 1) before it starts the server."
            )?;
        }
        Some(pages) => {
            if let Some(mode) = pages.mode() {
                writeln!(text, "\n# /etc/tmpfiles.d/huge-pages.conf, for the whole system")?;
                writeln!(text, "w /sys/kernel/mm/transparent_hugepage/enabled - - - - {mode}")?;
            }
        }
        None => {}
    }
    if !spec.arguments.is_empty() {
        writeln!(text, "\nFurther arguments of the server: {}", spec.arguments.join(" "))?;
    }
    for (name, content) in &spec.files {
        writeln!(text, "\n# {name}\n{}", content.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn point(variant: usize, speed: f64, bytes: f64) -> Point {
        Point { variant, speed, bytes }
    }

    #[test]
    fn the_front_has_what_nothing_beats() {
        let points =
            [point(0, 100.0, 50.0), point(1, 99.0, 40.0), point(2, 90.0, 30.0), point(3, 89.0, 45.0)];
        let front = front(&points);
        assert_eq!(front.iter().map(|point| point.variant).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(choose(&front, 2.0).unwrap().variant, 1);
        assert_eq!(choose(&front, 0.5).unwrap().variant, 0);
        assert_eq!(choose(&front, 10.0).unwrap().variant, 2);
        assert_eq!(choose(&[], 2.0), None);
    }

    #[test]
    fn a_deployment_names_variables_cores_and_pages() {
        let spec = VariantSpec {
            environment: BTreeMap::from([("MALLOC_CONF".to_owned(), "a:\"b\",100%".to_owned())]),
            huge_pages: Some(HugePages::Never),
            cores: vec![0, 2],
            ..VariantSpec::default()
        };
        let mut text = String::new();
        let study =
            "[subject]\nbuiltin = 'redis'\nenvironment = { OWN = '$x' }\n[workload]\nbuiltin = 'resp'\n";
        deployment(&Study::parse(study, "x").unwrap(), &spec, &mut text).unwrap();
        let unit = "Environment=\"MALLOC_CONF=a:\\\"b\\\",100%%\"\nEnvironment=\"OWN=$x\"\nCPUAffinity=0 2\n";
        assert!(text.contains(unit), "{text}");
        assert!(text.contains("\nOWN=\"\\$x\"\n") && text.contains("\nENV OWN=\"\\$x\"\n"), "{text}");
        assert!(text.contains("transparent_hugepage/enabled - - - - never\n"), "{text}");
    }
}
