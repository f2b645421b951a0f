//! `lab run`: an experiment that a file describes. Any server, under any allocator, with any load.
//!
//! ```text
//! file ──> variants x rounds, in a random order ──> one run each (`one`) ──> record (`record`, JSON lines)
//!                                                                                  │
//!                 verdict, tables, Markdown, JSON (`report`) <── analysis <── results
//! ```

mod analysis;
mod builtin;
mod command;
pub mod compare;
mod figures;
mod file;
pub mod html;
pub mod names;
mod one;
mod order;
mod plots;
pub mod recommend;
pub mod record;
pub mod report;
mod results;
mod settings;
mod subject;
pub mod svg;
pub mod text;
mod tree;
mod workload;

use crate::machine::{self, HugePageMode, Machine};
use crate::os;
use crate::report::count;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use file::{REPEATS_LEAST, Study};
use indicatif::ProgressBar;
use one::Bench;
use order::Turn;
use record::{Head, Record, Run, Variant, now_s};
use results::Results;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use subject::Launch;

/// A variant whose runs fail so often in a row is given up.
const FAILURES_MAX: usize = 2;
/// Lengths of quick runs.
const QUICK_LENGTH: Duration = Duration::from_secs(2);
const QUICK_PAUSE: Duration = Duration::from_millis(500);
const QUICK_ITEMS: u32 = 50_000;
/// The option that asks for them.
const QUICK: &str = "--quick";

/// Options of `lab run`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  dormouse lab run examples/lab/valkey.toml
  dormouse lab run examples/lab/postgresql.toml --quick --results /tmp/pg
  dormouse lab run my.toml --check

An interrupted experiment goes on where it was when it is started again.")]
pub struct RunArgs {
    /// The experiment file; docs/lab-run.md (of a package: /usr/share/doc/dormouse/lab-run.md) describes it
    file: PathBuf,
    /// Directory of runs and reports (default: the experiment's name with `.results`)
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Five short runs of each variant with few items, whatever the file says
    #[arg(long)]
    quick: bool,
    /// Runs of each variant, in place of the file's
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    repeats: Option<u16>,
    /// Determines the order of the runs and the load's random numbers, in place of the file's
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Forget runs that are there already
    #[arg(long)]
    fresh: bool,
    /// Check the file, print what would be run, and run nothing
    #[arg(long)]
    check: bool,
}

/// Options of `lab report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Directory of an experiment's runs, or its runs.jsonl
    results: PathBuf,
}

/// Makes an experiment's reports again from its runs.
pub fn report_again(arguments: &ReportArgs) -> Result<()> {
    let (head, runs) = Record::read(&arguments.results)?;
    let results = Results::of(head, &runs)?;
    let directory = match arguments.results.is_dir() {
        true => arguments.results.clone(),
        false => arguments.results.parent().map(PathBuf::from).unwrap_or_default(),
    };
    report::write(&results, &directory)
}

/// Runs an experiment and writes its reports.
pub fn run(arguments: &RunArgs) -> Result<()> {
    let (mut study, text) = Study::read(&arguments.file)?;
    let options = arguments.apply(&mut study);
    study.check().with_context(|| format!("{}", arguments.file.display()))?;
    let seed = arguments.seed.or(study.seed).unwrap_or(1);
    let huge_pages = study.sets_huge_page_mode().then(HugePageMode::keep);
    let launch = |variant| {
        let launch = Launch::new(&study, variant)?;
        if let (Some(_), Some(Err(error))) = (launch.huge_page_mode(), &huge_pages) {
            bail!("the system's huge page mode cannot be set: {error:#}");
        }
        Ok(launch)
    };
    let launches: Vec<Result<Launch>> = study.variants.iter().map(launch).collect();
    let variants = described(&study, &launches);
    if arguments.check {
        report::print_plan(&study, &variants, seed)?;
    }
    if let Some(Err(error)) = launches.get(study.baseline()) {
        bail!("the baseline cannot be run: {error:#}");
    }
    if arguments.check {
        return Ok(());
    }
    let name = study.name.clone();
    let directory = arguments
        .results
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("{}.results", name.replace(' ', "-"))));
    if arguments.fresh {
        Record::remove(&directory)?;
    }
    let head = Head::new(&name, text, options, seed, Machine::read()?, variants);
    let mut record = Record::open(&directory, head)?;
    // Before the load gets a core for itself.
    let all_cores = os::allowed_cores()?;
    let cores = cores(&study)?;
    os::raise_open_files()?;
    let bench = Bench {
        cores: &cores,
        all_cores: &all_cores,
        huge_pages: huge_pages.as_ref().and_then(|kept| kept.as_ref().ok()),
    };
    all_runs(&study, &launches, &bench, seed, &mut record)?;
    report::write(&Results::of(record.head.clone(), &record.runs)?, &directory)
}

impl RunArgs {
    /// Changes the experiment as the options say. Returns what they say, which its record is known by.
    fn apply(&self, study: &mut Study) -> String {
        if self.quick {
            shorten(study);
        }
        if let Some(repeats) = self.repeats {
            study.repeats = usize::from(repeats);
        }
        String::from(if self.quick { QUICK } else { "" })
    }
}

/// Makes an experiment a quick one. Returns what differs in its load, in words.
fn shorten(study: &mut Study) -> Vec<String> {
    study.repeats = REPEATS_LEAST;
    let workload = &mut study.workload;
    let mut changes = Vec::new();
    let is_own = workload.builtin.is_some();
    if is_own && workload.items > QUICK_ITEMS {
        changes.push(format!("{} items in place of {}", count(QUICK_ITEMS), count(workload.items)));
    }
    if is_own && workload.length > QUICK_LENGTH {
        let [quick, full] = [QUICK_LENGTH, workload.length].map(|length| length.as_secs_f64());
        changes.push(format!("{quick} s of load in place of {full} s"));
    }
    workload.items = workload.items.min(QUICK_ITEMS);
    workload.length = workload.length.min(QUICK_LENGTH);
    workload.warm_up = workload.warm_up.min(QUICK_PAUSE);
    workload.settle = workload.settle.min(QUICK_PAUSE);
    changes
}

fn described(study: &Study, launches: &[Result<Launch>]) -> Vec<Variant> {
    let one = |(variant, launch): (&file::VariantSpec, &Result<Launch>)| match launch {
        Ok(launch) => Variant {
            name: variant.name.clone(),
            command: launch.command_line(),
            version: launch.version(),
            library: launch.library(),
            lacks: None,
        },
        Err(error) => Variant {
            name: variant.name.clone(),
            command: String::new(),
            version: None,
            library: None,
            lacks: Some(format!("{error:#}")),
        },
    };
    study.variants.iter().zip(launches).map(one).collect()
}

/// The cores of the subject. A load of the lab's own gets one for itself.
fn cores(study: &Study) -> Result<Vec<usize>> {
    let allowed = os::allowed_cores()?;
    if study.workload.builtin.is_none() || allowed.len() < 2 {
        return Ok(allowed);
    }
    let driver = machine::choose_cores(None, None)?.driver;
    os::pin_thread(driver)?;
    Ok(allowed.into_iter().filter(|&core| core != driver).collect())
}

fn all_runs(
    study: &Study,
    launches: &[Result<Launch>],
    bench: &Bench<'_>,
    seed: u64,
    record: &mut Record,
) -> Result<()> {
    let turns = order::turns(study.repeats, study.variants.len(), seed);
    let is_wanted = |turn: &Turn, record: &Record| {
        let name = study.variants.get(turn.variant).map_or("", |variant| &variant.name);
        matches!(launches.get(turn.variant), Some(Ok(_))) && !record.has(name, turn.round)
    };
    let wanted: Vec<Turn> = turns.into_iter().filter(|turn| is_wanted(turn, record)).collect();
    if !wanted.is_empty() {
        // The reports say what was used during the runs.
        machine::look_around(bench.all_cores);
    }
    let progress = Progress::new(wanted.len(), seed);
    for variant in record.head.variants.iter().filter(|variant| variant.lacks.is_some()) {
        let lacks = variant.lacks.as_deref().unwrap_or_default();
        progress.say(&format!("{}: left out: {lacks}", variant.name));
    }
    let mut failures = vec![0; study.variants.len()];
    for turn in wanted {
        let (Some(variant), Some(Ok(launch))) =
            (study.variants.get(turn.variant), launches.get(turn.variant))
        else {
            continue;
        };
        let failed = failures.get_mut(turn.variant).context("a variant")?;
        if *failed >= FAILURES_MAX {
            progress.skipped(&variant.name, turn.round, study.repeats);
            continue;
        }
        progress.begins(&variant.name, turn.round);
        let (started_s, start) = (now_s(), Instant::now());
        let outcome = one::run(study, launch, bench, seed.wrapping_add(turn.round as u64));
        *failed = if outcome.is_err() { *failed + 1 } else { 0 };
        let run = Run {
            variant: variant.name.clone(),
            round: turn.round,
            started_s,
            took_s: start.elapsed().as_secs_f64(),
            failed: outcome.as_ref().err().map(|error| format!("{error:#}")),
            measured: outcome.unwrap_or_default(),
        };
        progress.ended(&run, study.repeats);
        if *failed >= FAILURES_MAX {
            progress.say(&format!("{}: given up after {FAILURES_MAX} failures in a row", variant.name));
        }
        record.add(run)?;
    }
    progress.bar.finish_and_clear();
    ensure!(
        record.runs.iter().any(|run| run.failed.is_none()),
        "no run succeeded; the last one failed with: {}",
        record.runs.iter().rev().find_map(|run| run.failed.as_deref()).unwrap_or("nothing")
    );
    Ok(())
}

/// What a person sees meanwhile: a bar on a terminal, and a line for each run.
struct Progress {
    bar: ProgressBar,
    start: Instant,
}

impl Progress {
    fn new(runs: usize, seed: u64) -> Self {
        let bar = crate::experiment::drawn_bar(runs as u64);
        let progress = Self { bar, start: Instant::now() };
        progress.say(&format!("{runs} runs, in the order of seed {seed}"));
        progress
    }

    /// Prints a line, whether or not there is a terminal.
    fn say(&self, line: &str) {
        // Nobody may be listening.
        let _ = self.bar.suspend(|| writeln!(std::io::stderr(), "{line}"));
    }

    fn begins(&self, variant: &str, round: usize) {
        self.bar.set_message(format!("{variant}, round {}", round + 1));
    }

    /// Counts one run more. Returns how many there were, and how many there will be.
    fn counted(&self) -> (u64, u64) {
        self.bar.inc(1);
        (self.bar.position(), self.bar.length().unwrap_or(0))
    }

    fn skipped(&self, variant: &str, round: usize, rounds: usize) {
        let (done, all) = self.counted();
        self.say(&format!("[{done}/{all}] {variant}, round {} of {rounds}: not run, given up", round + 1));
    }

    fn ended(&self, run: &Run, rounds: usize) {
        let (done, all) = self.counted();
        let left = self.start.elapsed().div_f64(done.max(1) as f64).mul_f64((all - done) as f64);
        let said = match &run.failed {
            Some(why) => format!("FAILED: {why}"),
            None => report::short_line(&run.measured),
        };
        self.say(&format!(
            "[{done}/{all}] {}, round {} of {rounds}: {said}, {:.1} s; about {} left",
            run.variant,
            run.round + 1,
            run.took_s,
            report::minutes(left)
        ));
    }
}
