//! E5: the stock `ovsdb-server` under three allocators, compared with Dormouse.
//!
//! ```text
//! for each case, for each start:   every subject in turn (the turn rotates), each on a new database
//!     start ── fill ── [measured: load, and until every replica has heard of all of it] ── rest ── memory ── check ── end
//! ```
//!
//! Servers of one round rest side by side, as far as memory allows. In full runs, those whose memory after a rest of
//! exactly ten seconds is a goal rest alone.

mod case;
mod findings;
mod run;
mod stall;

use super::{BuildArgs, Progress, SETTLE, Site, SiteArgs, progress_bar, settle};
use crate::machine;
use crate::ovsdb::subject::{Server, Subject};
use crate::report::Report;
use anyhow::{Context, Result, bail, ensure};
use case::{Case, Sizes};
use clap::Args;
use run::{Completed, Sample};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// Memory that must remain for another server beside those that rest.
const SPARE_MEMORY_BYTES: u64 = 4 << 30;
/// Rest if resident sizes are only printed.
const SHORT_REST: Duration = Duration::from_secs(1);

/// Options of `lab ovsdb`.
#[derive(Args, Debug)]
pub struct OvsdbArgs {
    /// Smaller counts, one start each
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Peers to run beside Dormouse, each NAME or NAME=PROGRAM; those not installed are left out
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "stock,stock-jemalloc,stock-tcmalloc,floor"
    )]
    peers: Vec<String>,
    /// Cases, each a name or a prefix and a star, such as update1* [default: all; quick without size-*-mon]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    #[command(flatten)]
    builds: BuildArgs,
    /// Starts of each server in each case [default: 1 quick, 3 full]
    #[arg(long)]
    starts: Option<usize>,
    #[command(flatten)]
    site: SiteArgs,
}

/// Runs the experiment.
pub fn run(arguments: &OvsdbArgs) -> Result<Report> {
    let subjects = subjects(arguments)?;
    let cases = Case::choose(&arguments.cases, arguments.quick)?;
    let sizes = Sizes::new(arguments.quick, arguments.builds.scale()?);
    let site = arguments.site.set_up()?;
    let mut report = report(arguments, &site, &subjects, &sizes)?;
    let starts = arguments.starts.unwrap_or(if arguments.quick { 1 } else { 3 }).max(1);
    let bar = progress_bar((cases.len() * starts * subjects.len()) as u64);
    let mut samples = Vec::new();
    for &case in &cases {
        for start in 0..starts {
            let round = Round { case, start, site: &site, sizes: &sizes, quick: arguments.quick, bar: &bar };
            round.run(&subjects, &mut samples)?;
        }
    }
    bar.finish_and_clear();
    findings::fill(&mut report, &cases, &subjects, &samples)?;
    report.with_json(arguments.json.as_deref())
}

fn subjects(arguments: &OvsdbArgs) -> Result<Vec<Subject>> {
    let mut subjects = arguments.builds.subjects(Subject::dormouse, Subject::with_allocator)?;
    for peer in arguments.peers.iter().filter(|peer| *peer != "none") {
        subjects.extend(Subject::peer(peer)?);
    }
    for (index, subject) in subjects.iter().enumerate() {
        let before = subjects.get(..index).unwrap_or_default();
        if before.iter().any(|other| other.program.name == subject.program.name) {
            bail!("two servers are named {}: tell them apart by NAME=PROGRAM", subject.program.name);
        }
    }
    ensure!(!subjects.is_empty(), "nothing to measure: no peer of {:?} is installed", arguments.peers);
    Ok(subjects)
}

fn report(arguments: &OvsdbArgs, site: &Site, subjects: &[Subject], sizes: &Sizes) -> Result<Report> {
    let mut report = Report { experiment: "ovsdb", settings: site.settings(), ..Report::default() };
    for subject in subjects {
        let preload = subject
            .program
            .preload
            .as_ref()
            .map(|library| format!(" under {}", library.display()))
            .unwrap_or_default();
        report.settings.push(format!(
            "{}: {} ({}{preload})",
            subject.program.name,
            subject.program.version,
            subject.program.path.display()
        ));
    }
    report.settings.push(sizes.to_string());
    report.settings.push(
        "Unix sockets; CPU is user and system time of the whole server; replicas are kept by the workers' own sessions"
            .to_owned(),
    );
    report.note_this_build(arguments.builds.measures_this());
    site.data(&mut report, arguments.quick)?;
    report.data("sizes", sizes)?;
    report.data("subjects", &subjects)?;
    Ok(report)
}

/// One case, run once with every subject.
struct Round<'a> {
    case: Case,
    start: usize,
    site: &'a Site,
    sizes: &'a Sizes,
    quick: bool,
    bar: &'a Progress,
}

/// A server whose load is over.
struct Resting<'a> {
    subject: &'a Subject,
    server: Server,
    completed: Completed,
}

impl Round<'_> {
    fn run(&self, subjects: &[Subject], samples: &mut Vec<Sample>) -> Result<()> {
        let mut resting = Vec::new();
        for turn in 0..subjects.len() {
            let Some(subject) = subjects.get((turn + self.start) % subjects.len()) else { continue };
            if !self.case.is_for(subject.kind) {
                self.bar.inc(1);
                continue;
            }
            self.bar.set_message(format!("{}: {}", self.case.name(), subject.program.name));
            let mut server = subject.start(self.site.placement)?;
            let completed = run::run(self.case, subject, &mut server, self.sizes)
                .with_context(|| format!("{} on {}", self.case.name(), subject.program.name))?;
            resting.push(Resting { subject, server, completed });
            let rests_alone = self.case == Case::DeleteAll && !self.quick;
            if rests_alone || machine::available_bytes() < SPARE_MEMORY_BYTES {
                self.rest(&mut resting, samples)?;
            }
            self.bar.inc(1);
        }
        self.rest(&mut resting, samples)
    }

    /// Lets servers come to rest, reads their memory, checks what they hold, and ends them.
    fn rest(&self, resting: &mut Vec<Resting>, samples: &mut Vec<Sample>) -> Result<()> {
        if resting.is_empty() {
            return Ok(());
        }
        if self.case == Case::Startup {
            settle(self.bar, SETTLE);
            for Resting { subject, server, completed } in resting.iter_mut() {
                self.bar.set_message(format!("restarting {}", subject.program.name));
                let row = completed.restart.as_ref().context("no row to read after a restart")?;
                run::restart(&mut completed.sample, subject, server, self.site, row)?;
            }
        }
        if self.case.judges_memory_at_rest() || !self.quick {
            settle(self.bar, SETTLE);
        } else {
            thread::sleep(SHORT_REST);
        }
        for Resting { mut server, completed, .. } in resting.drain(..) {
            let mut sample = completed.sample;
            server.ensure_alive()?;
            sample.end = server.memory()?;
            sample.file_bytes = server.file_bytes();
            completed
                .expected
                .check(&server)
                .with_context(|| format!("{} on {}", self.case.name(), sample.subject))?;
            server.end()?;
            samples.push(sample);
        }
        Ok(())
    }
}
