//! E2: how much resident memory data takes after its sizes have changed, in both kinds of bucket, with both item heaps,
//! under several allocators, compared with memcached, Redis and Valkey.
//!
//! ```text
//! for each case, for as many servers at once as memory allows:
//!     for each step:   every server in turn:  load ── all answered? on disk? ── sample read back ─┐
//!                                                                rest of its own ── memory <──────┘
//! ```
//! Figures are bytes, so servers may rest while others on the same core are loaded; a server that defragments then gets
//! less of the core.

mod case;
mod findings;
mod load;
mod probe;

use super::{BuildArgs, Progress, SETTLE, Site, SiteArgs, progress_bar, wait_until_flushed};
use crate::machine;
use crate::protocol::Protocol;
use crate::report::Report;
use crate::subject::{Kind, Server, Start, Subject};
use anyhow::{Context, Result, bail, ensure};
use case::{Case, Sizes, Step};
use clap::{Args, ValueEnum};
use findings::Reading;
use load::Load;
use probe::Probe;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

/// Servers may take the available memory divided by this at once.
const MEMORY_SHARE: u64 = 2;
/// What a server may take of it, as a multiple of the load's peak.
const SERVER_FACTOR: u64 = 2;
/// By default Redis ignores less than 100 MB of waste.
const DEFRAGMENTING: [&str; 4] = ["--activedefrag", "yes", "--active-defrag-ignore-bytes", "4mb"];

/// Options of `lab fragmentation`.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  dormouse lab fragmentation --quick --cases append,halves --heaps slab --peers redis")]
pub struct FragmentationArgs {
    /// Smaller sizes: about ten minutes
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Cases: append, ladder, keys, switch, halves [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Item heaps of Dormouse
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "slab,block")]
    heaps: Vec<Heap>,
    /// Kinds of bucket of Dormouse
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "ephemeral,persistent"
    )]
    buckets: Vec<BucketKind>,
    /// Peers to run beside Dormouse, each NAME or NAME=PROGRAM: memcached, redis, valkey, the last two also with the
    /// suffix -defrag (activedefrag on); those not installed are left out
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "memcached,redis,redis-defrag,valkey,valkey-defrag"
    )]
    peers: Vec<String>,
    #[command(flatten)]
    builds: BuildArgs,
    /// Further argument for `dormouse serve` (repeatable)
    #[arg(long = "serve-arg", value_name = "ARG", allow_hyphen_values = true)]
    serve_args: Vec<String>,
    #[command(flatten)]
    site: SiteArgs,
}

/// Where a Dormouse keeps its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Heap {
    /// Blocks while there are few items, then slabs
    Auto,
    /// Slabs
    Slab,
    /// Each item in an allocator block of its own
    Block,
}

impl Heap {
    fn of(self, subject: &Subject) -> Subject {
        let (kind, name) = match self {
            Self::Auto => (Kind::Dormouse, "auto"),
            Self::Slab => (Kind::DormouseSlab, "slab"),
            Self::Block => (Kind::DormouseBlock, "block"),
        };
        Subject { kind, ..subject.clone() }.named(&format!("{}-{name}", subject.program.name))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum BucketKind {
    Ephemeral,
    Persistent,
}

/// One server of the comparison.
#[derive(Clone, Debug, Serialize)]
struct Contender {
    subject: Subject,
    /// Dormouse only.
    bucket: Option<BucketKind>,
    /// Whether the goals apply to it.
    is_judged: bool,
}

/// Runs the experiment.
pub fn run(arguments: &FragmentationArgs) -> Result<Report> {
    let cases = Case::choose(&arguments.cases)?;
    let sizes = Sizes::new(arguments.quick, arguments.builds.scale()?);
    let site = arguments.site.set_up()?;
    let (contenders, notes) = contenders(arguments, &site)?;
    let mut report = report(arguments, &site, &contenders, &sizes)?;
    report.notes = notes;
    let bar = progress_bar((cases.len() * contenders.len()) as u64);
    let mut readings = Vec::new();
    for case in cases {
        let round = Round { case, site: &site, sizes: &sizes, bar: &bar };
        let each = case.peak_bytes(&sizes) * SERVER_FACTOR;
        let at_once = (machine::available_bytes() / MEMORY_SHARE / each.max(1)).max(1);
        for group in contenders.chunks(usize::try_from(at_once)?) {
            round.run(group, &mut readings)?;
        }
    }
    bar.finish_and_clear();
    findings::fill(&mut report, &readings)?;
    report.with_json(arguments.json.as_deref())
}

/// The contenders, and why any were left out.
fn contenders(arguments: &FragmentationArgs, site: &Site) -> Result<(Vec<Contender>, Vec<String>)> {
    let (mut contenders, mut notes) = (Vec::new(), Vec::new());
    let builds =
        arguments.builds.subjects(|given| build(given, &arguments.serve_args), Subject::with_allocator)?;
    for (at, build) in builds.iter().enumerate() {
        for heap in &arguments.heaps {
            for &bucket in &arguments.buckets {
                let subject = heap.of(build);
                contenders.push(Contender { subject, bucket: Some(bucket), is_judged: at == 0 });
            }
        }
    }
    for peer in arguments.peers.iter().filter(|peer| *peer != "none") {
        let Some(subject) = peer_of(peer)? else { continue };
        // Some builds lack what they need to defragment, and exit with the reason.
        match subject.extra.is_empty() || subject.start(&Start::new(site.placement, 64 << 20)).is_ok() {
            true => contenders.push(Contender { subject, bucket: None, is_judged: false }),
            false => notes
                .push(format!("{} refuses to defragment, as this program was built", subject.program.name)),
        }
    }
    for (index, Contender { subject, bucket, .. }) in contenders.iter().enumerate() {
        let before = contenders.get(..index).unwrap_or_default();
        if before
            .iter()
            .any(|other| other.subject.program.name == subject.program.name && other.bucket == *bucket)
        {
            bail!("two servers are named {}: tell them apart by NAME=PROGRAM", subject.program.name);
        }
    }
    ensure!(!contenders.is_empty(), "nothing to measure: no peer of {:?} is installed", arguments.peers);
    Ok((contenders, notes))
}

/// A build of Dormouse.
fn build(given: Option<&str>, serve_args: &[String]) -> Result<Subject> {
    let own = |program| Subject::dormouse(program, Protocol::MemcachedBinary, serve_args);
    let Some(given) = given else { return own(None) };
    let (name, program) = given.split_once('=').unwrap_or((Kind::Dormouse.name(), given));
    ensure!(Path::new(program).is_file(), "there is no program {program}");
    Ok(own(Some(Path::new(program)))?.named(name))
}

fn peer_of(text: &str) -> Result<Option<Subject>> {
    let (name, program) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
    let plain = name.trim_end_matches("-defrag");
    ensure!(
        matches!(plain, "memcached" | "redis" | "valkey") && (plain == name || plain != "memcached"),
        "unknown peer `{name}`: memcached, redis, redis-defrag, valkey, valkey-defrag or none"
    );
    let given = program.map_or_else(|| plain.to_owned(), |path| format!("{plain}={path}"));
    let extra = if plain == name { Vec::new() } else { DEFRAGMENTING.map(str::to_owned).to_vec() };
    Ok(Subject::peer(&given)?.map(|subject| Subject { extra, ..subject }.named(name)))
}

fn report(
    arguments: &FragmentationArgs,
    site: &Site,
    contenders: &[Contender],
    sizes: &Sizes,
) -> Result<Report> {
    let mut report = Report { experiment: "fragmentation", settings: site.settings(), ..Report::default() };
    let mut programs = Vec::new();
    for Contender { subject, .. } in contenders {
        let preload = subject.program.preload.as_ref().map(|library| format!(" under {}", library.display()));
        let extra =
            if subject.extra.is_empty() { String::new() } else { format!(" {}", subject.extra.join(" ")) };
        let program = subject.program.path.display();
        programs.push(format!(
            "{}: {} ({program}{}{extra})",
            subject.program.name,
            subject.program.version,
            preload.unwrap_or_default()
        ));
    }
    programs.dedup();
    report.settings.extend(programs);
    report.settings.push(sizes.to_string());
    report.note_this_build(arguments.builds.measures_this());
    site.data(&mut report, arguments.quick)?;
    report.data("sizes", sizes)?;
    report.data("contenders", &contenders)?;
    Ok(report)
}

/// One case, with servers that run side by side.
struct Round<'a> {
    case: Case,
    site: &'a Site,
    sizes: &'a Sizes,
    bar: &'a Progress,
}

/// A server and the load on it.
struct Running<'a> {
    contender: &'a Contender,
    server: Server,
    load: Load,
}

impl Round<'_> {
    fn run(&self, contenders: &[Contender], readings: &mut Vec<Reading>) -> Result<()> {
        let mut running = Vec::new();
        for contender in contenders {
            let mut start = Start::new(self.site.placement, self.case.budget_bytes(self.sizes));
            start.durable = contender.bucket == Some(BucketKind::Persistent);
            let server = contender.subject.start(&start)?;
            let load = Load::new(&server, self.case.content())?;
            running.push(Running { contender, server, load });
        }
        for step in self.case.steps() {
            let mut resting: Vec<JoinHandle<Result<Reading>>> = Vec::new();
            for one in &mut running {
                let name = &one.contender.subject.program.name;
                self.bar.set_message(format!("{}, {}: {name}", self.case.name(), step.name));
                resting.push(
                    self.apply(*step, one)
                        .with_context(|| format!("{}, {}: {name}", self.case.name(), step.name))?,
                );
            }
            self.bar.set_message(format!("{}, {}: resting", self.case.name(), step.name));
            for reading in resting {
                readings.push(reading.join().map_err(|_| anyhow::anyhow!("a reading failed"))??);
            }
        }
        for one in running {
            one.server.stop()?;
            self.bar.inc(1);
        }
        Ok(())
    }

    /// Performs a step; memory is read later, after its rest.
    fn apply(&self, step: Step, running: &mut Running<'_>) -> Result<JoinHandle<Result<Reading>>> {
        let Running { contender, server, load } = running;
        step.run(load, self.sizes)?;
        server.ensure_alive()?;
        if contender.bucket == Some(BucketKind::Persistent) {
            wait_until_flushed(server)?;
        }
        let probe = Probe::new(contender.subject.kind, server);
        let case = self.case;
        let (contender, payload_bytes, items) = ((*contender).clone(), load.payload_bytes, load.count);
        let running_bytes = load.resident_p99();
        Ok(thread::spawn(move || {
            thread::sleep(step.rest);
            let found = probe.ask()?;
            Ok(Reading { case, step: step.name, contender, items, payload_bytes, running_bytes, found })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_by_name() {
        assert!(peer_of("oracle").is_err());
        assert!(peer_of("memcached-defrag").is_err());
        assert!(peer_of("redis-defrag=/nonexistent/redis-server").is_err());
        let this = std::env::current_exe().unwrap();
        let peer = peer_of(&format!("redis-defrag={}", this.display())).unwrap().unwrap();
        assert_eq!(
            (peer.program.name.as_str(), peer.kind, peer.extra.len()),
            ("redis-defrag", Kind::Redis, 4)
        );
    }

    #[test]
    fn a_heap_is_in_the_name() {
        let this = std::env::current_exe().unwrap();
        let subject = Subject::dormouse(Some(&this), Protocol::MemcachedBinary, &[]).unwrap();
        let slab = Heap::Slab.of(&subject);
        assert_eq!((slab.program.name.as_str(), slab.kind), ("dormouse-slab", Kind::DormouseSlab));
    }
}
