//! `lab paper`: experiments E1 to E6 in one go, and the tables of the public reports beside the new figures.
//!
//! ```text
//! parts ──> one process each, its JSON and its text kept ──> tables (reference, here, verdict) ──> page
//! ```
//!
//! A part whose JSON is there is not run again, so an interrupted run goes on where it was.

mod page;
mod parts;
mod tables;
mod verdict;

use crate::machine::{self, Machine};
use crate::os;
use crate::programs;
use crate::study::report::minutes;
use anyhow::{Context, Result, bail};
use clap::Args;
use parts::Part;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// How often a part's process is polled, and how often a line says that it is still running.
const POLL: Duration = Duration::from_millis(200);
const STILL_RUNNING: Duration = Duration::from_secs(30);

/// Options of `lab paper`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  dormouse lab paper --quick
  PATH=$PWD/.venv/bin:$PATH dormouse lab paper --quick   with the Valkey that tests/install.sh installs
  dormouse lab paper --only e2,e4 --output /tmp/paper

An interrupted run goes on where it was when it is started again.")]
pub struct PaperArgs {
    /// Smaller sizes: under 15 minutes
    #[arg(long)]
    quick: bool,
    /// Experiments: e1 to e6
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["e1", "e2", "e3", "e4", "e5", "e6"])]
    only: Vec<String>,
    /// Directory of results and reports
    #[arg(long, value_name = "DIR", default_value = "paper.results")]
    output: PathBuf,
    /// Dormouse program to run instead of the one beside this one
    #[arg(long, value_name = "PROGRAM")]
    dormouse: Option<PathBuf>,
    /// Forget results that are there already
    #[arg(long)]
    fresh: bool,
}

/// What was measured, and where.
#[derive(Debug, Serialize)]
pub(crate) struct Paper {
    quick: bool,
    /// Seconds since 1970.
    started_s: u64,
    command: String,
    /// With its commit and features.
    version: String,
    machine: Machine,
    /// What is to be said first: that other programs used the machine before the first part.
    busy: Option<String>,
    /// Parts that failed, with the reason.
    failed: BTreeMap<&'static str, String>,
    tables: Vec<tables::Comparison>,
    /// Text of each part, by its title.
    #[serde(skip)]
    texts: Vec<(String, String)>,
}

/// Runs what is missing and writes the reports.
pub fn run(arguments: &PaperArgs) -> Result<()> {
    let dormouse = programs::dormouse(arguments.dormouse.as_deref())?;
    let machine = Machine::read()?;
    let directory = &arguments.output;
    let wanted =
        |part: &&Part| arguments.only.is_empty() || arguments.only.iter().any(|e| e == part.experiment);
    let parts: Vec<&Part> = parts::ALL.iter().filter(wanted).collect();
    prepare(arguments, &parts, &dormouse)?;
    let started_s = crate::study::record::now_s();
    let mut failed = BTreeMap::new();
    let mut missing: Vec<&Part> =
        parts.iter().copied().filter(|part| !part.json(directory).exists()).collect();
    let cores = os::allowed_cores()?;
    let busy = if missing.is_empty() { None } else { machine::look_around(&cores) };
    say(&format!(
        "{} of {} parts to run, about {} minutes",
        missing.len(),
        parts.len(),
        estimated(&missing, arguments.quick)
    ));
    while !missing.is_empty() {
        let part = missing.remove(0);
        let (begun, left) = (Instant::now(), estimated(&missing, arguments.quick));
        if let Err(error) = run_part(part, arguments, &dormouse) {
            say(&format!("{}: FAILED: {error:#}", part.name));
            failed.insert(part.name, format!("{error:#}"));
            continue;
        }
        say(&format!("{}: done in {}; about {left} minutes left", part.name, minutes(begun.elapsed())));
    }
    let mut found = BTreeMap::new();
    let mut texts = Vec::new();
    for part in parts.into_iter().filter(|part| part.json(directory).exists()) {
        match part.read(directory) {
            Ok((json, text)) => {
                found.insert(part.name, json);
                texts.push((format!("{}: {}", part.experiment.to_uppercase(), part.title), text));
            }
            Err(error) => drop(failed.insert(part.name, format!("{error:#}"))),
        }
    }
    let version = whole_version(&dormouse);
    let paper = Paper {
        quick: arguments.quick,
        started_s,
        command: std::env::args().collect::<Vec<_>>().join(" "),
        version,
        machine,
        busy,
        failed,
        tables: tables::all(&found),
        texts,
    };
    page::write(&paper, directory)?;
    if paper.failed.is_empty() {
        return Ok(());
    }
    bail!("{} failed; the report has the others", paper.failed.keys().copied().collect::<Vec<_>>().join(", "))
}

impl Paper {
    /// Machine and versions.
    fn circumstances(&self) -> Vec<String> {
        let machine = &self.machine;
        let lines = [
            format!("{} at the start", machine.in_words()),
            format!("huge pages: {}; {}", machine.huge_pages, self.version),
            format!("{} run: {}", if self.quick { "quick" } else { "full" }, self.command),
        ];
        self.busy.iter().cloned().chain(lines).collect()
    }
}

/// Version, commit and features of a program, on one line.
fn whole_version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let is_ours = |line: &str| ["commit", "features"].iter().any(|word| line.starts_with(word));
    let lines = text.lines().enumerate().filter(|(number, line)| *number == 0 || is_ours(line));
    let words = lines.map(|(_, line)| line.split_whitespace().collect::<Vec<_>>().join(" "));
    words.collect::<Vec<_>>().join("; ")
}

/// Minutes that these parts take.
fn estimated(parts: &[&Part], quick: bool) -> u64 {
    parts.iter().map(|part| part.seconds(quick)).sum::<u64>().div_ceil(60)
}

/// The directory, without results of other programs or sizes.
fn prepare(arguments: &PaperArgs, parts: &[&Part], dormouse: &Path) -> Result<()> {
    let directory = &arguments.output;
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    let made_by = directory.join("made-by");
    if arguments.fresh {
        for part in parts {
            let _it_may_be_missing = fs::remove_file(part.json(directory));
        }
        if !parts::ALL.iter().any(|part| part.json(directory).exists()) {
            let _it_may_be_missing = fs::remove_file(&made_by);
        }
    }
    let now =
        format!("quick={}\n{}{}", arguments.quick, version_of(dormouse)?, version_of(&programs::this()?)?);
    match fs::read_to_string(&made_by) {
        Ok(then) if then != now => {
            bail!(
                "{} has results of other programs or another size: name another directory with --output, or forget \
                 them with --fresh",
                directory.display()
            )
        }
        Ok(_) => Ok(()),
        Err(_) => fs::write(&made_by, now).with_context(|| made_by.display().to_string()),
    }
}

/// A program's file, with its size and the second of its last change.
fn version_of(program: &Path) -> Result<String> {
    let about = fs::metadata(program).with_context(|| program.display().to_string())?;
    let changed_s = about.modified()?.duration_since(UNIX_EPOCH)?.as_secs();
    Ok(format!("{} {} {changed_s}\n", program.display(), about.len()))
}

fn run_part(part: &Part, arguments: &PaperArgs, dormouse: &Path) -> Result<()> {
    let directory = &arguments.output;
    let unfinished = directory.join(format!("{}.unfinished", part.name));
    let errors = directory.join(format!("{}.errors", part.name));
    let mut command = Command::new(programs::this()?);
    command.args(part.arguments(arguments.quick)).arg("--json").arg(&unfinished);
    if part.measures_dormouse {
        command.arg("--dormouse").arg(dormouse);
    }
    command.stdin(Stdio::null()).stdout(create(&part.text(directory))?).stderr(create(&errors)?);
    os::end_with_lab(&mut command);
    let begun = Instant::now();
    let mut last_line = begun;
    say(&format!("{}: {}; about {} minutes", part.name, part.title, estimated(&[part], arguments.quick)));
    let mut child = command.spawn().context("starting the experiment")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if last_line.elapsed() >= STILL_RUNNING {
            last_line = Instant::now();
            let said = crate::study::text::said(&errors);
            let step = said.lines().last().unwrap_or("nothing said yet");
            say(&format!("{}: {} so far: {step}", part.name, minutes(begun.elapsed())));
        }
        thread::sleep(POLL);
    };
    if !status.success() {
        bail!("{status}: {}", crate::study::text::said(&errors));
    }
    fs::rename(&unfinished, part.json(directory)).context("its results")?;
    // Only its progress.
    let _ = fs::remove_file(errors);
    Ok(())
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("creating {}", path.display()))
}

fn say(line: &str) {
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "{line}");
}
