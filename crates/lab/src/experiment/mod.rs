//! Shared by all experiments: options, the choice of subjects and cores, loading and measuring.

pub mod allocators;
pub mod flush;
pub mod fragmentation;
pub mod hit_ratio;
pub mod idle;
pub mod latency;
pub mod overhead;
pub mod ovsdb;
pub mod streams;
pub mod syscalls;
pub mod throughput;
pub mod warmup;

use crate::client::{Client, Target, figure, statistics};
use crate::driver::{Driver, Items, Plan, Until};
use crate::machine::{self, BusyReading, Cores, HugePageMode, Machine};
use crate::os::{self, Placement};
use crate::protocol::{Dialect, Protocol, Shape};
use crate::random::Random;
use crate::report::Report;
use crate::subject::{Kind, Server, Start, Subject};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use serde::Serialize;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Nice value of servers and load alike, so that a busy machine disturbs both less.
const NICE: i32 = -10;
/// Connections and batch of a load phase: enough to keep any server busy.
const LOAD_CONNECTIONS: usize = 8;
const LOAD_DEPTH: usize = 64;
/// Items read back in full after a load.
const VERIFIED_ITEMS: u64 = 2_000;
/// Two decay periods of the allocator: memory figures are read after this pause.
pub const SETTLE: Duration = Duration::from_secs(10);
/// Longest wait for a bucket to be flushed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval at which the number of unflushed items is polled.
const FLUSH_POLL: Duration = Duration::from_millis(20);

/// Protocol the load speaks to Dormouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProtocolChoice {
    /// memcached's binary protocol
    Memcached,
    /// memcached's text protocol
    MemcachedText,
    /// Couchbase's key-value protocol
    Couchbase,
}

/// Options of every experiment.
#[derive(Args, Debug)]
pub struct Common {
    /// Smaller sizes and fewer repetitions: under two minutes
    #[arg(long)]
    pub quick: bool,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Peers to run beside Dormouse, each NAME or NAME=PROGRAM; those not installed are left out. dormouse-slab and
    /// dormouse-block are Dormouse with this item heap
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "memcached,redis,valkey,floor")]
    pub peers: Vec<String>,
    /// Dormouse program to run instead of this one
    #[arg(long, value_name = "PROGRAM")]
    pub dormouse: Option<PathBuf>,
    /// Run the peers only
    #[arg(long)]
    pub without_dormouse: bool,
    /// Further argument for `dormouse serve` (repeatable)
    #[arg(long = "serve-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub serve_args: Vec<String>,
    /// Protocol the load speaks to Dormouse
    #[arg(long, value_enum, default_value = "memcached")]
    pub protocol: ProtocolChoice,
    #[command(flatten)]
    pub site: SiteArgs,
}

/// Where an experiment runs.
#[derive(Args, Debug)]
pub struct SiteArgs {
    /// Set the system's huge page mode for this run, and restore it at the end, however the run ends (needs a
    /// privilege)
    #[arg(long, value_name = "MODE", value_parser = ["always", "madvise", "never"])]
    pub huge_pages: Option<String>,
    #[command(flatten)]
    pub cores: CoreArgs,
}

impl SiteArgs {
    /// Sets up the site.
    pub fn set_up(&self) -> Result<Site> {
        Site::set_up(&self.cores, self.huge_pages.as_deref())
    }
}

/// The two cores.
#[derive(Args, Debug, Default)]
pub struct CoreArgs {
    /// Core of the server (default: the first this process may use)
    #[arg(long, value_name = "CORE")]
    pub server_core: Option<usize>,
    /// Core of the load (default: one that shares no hardware with the server's)
    #[arg(long, value_name = "CORE")]
    pub driver_core: Option<usize>,
}

/// Options of experiments that compare builds of Dormouse.
#[derive(Args, Debug)]
pub struct BuildArgs {
    /// Dormouse program to run instead of this one, PROGRAM or NAME=PROGRAM (repeatable: builds with other allocators)
    #[arg(long, value_name = "PROGRAM")]
    pub dormouse: Vec<String>,
    /// Run each Dormouse that uses the system's malloc also with these in its place, as NAME-jemalloc and so on, by
    /// LD_PRELOAD: jemalloc, tcmalloc, mimalloc; those not installed are left out
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub preload: Vec<String>,
    /// Run the peers only
    #[arg(long)]
    pub without_dormouse: bool,
    /// Multiplies the counts of items, transactions and rows
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub scale: f64,
}

impl BuildArgs {
    /// Returns `scale` if it is in range.
    pub fn scale(&self) -> Result<f64> {
        ensure!(self.scale > 0.0 && self.scale <= 10.0, "--scale is above 0 and at most 10");
        Ok(self.scale)
    }

    /// The builds: this one if no other is named, else those named, and each with other allocators preloaded.
    pub fn subjects<S: Clone>(
        &self,
        subject: impl Fn(Option<&str>) -> Result<S>,
        preloaded: impl Fn(&S, &str) -> Result<Option<S>>,
    ) -> Result<Vec<S>> {
        if self.without_dormouse {
            return Ok(Vec::new());
        }
        let mut builds = Vec::new();
        if self.dormouse.is_empty() {
            builds.push(subject(None)?);
        }
        for given in &self.dormouse {
            builds.push(subject(Some(given))?);
        }
        let own = builds.len();
        for build in builds.clone() {
            for allocator in &self.preload {
                builds.extend(preloaded(&build, allocator)?);
            }
        }
        ensure!(
            self.preload.is_empty() || builds.len() > own,
            "--preload: no Dormouse here uses the system's malloc (built with alloc-system), or none of {} is \
             installed",
            self.preload.join(", ")
        );
        Ok(builds)
    }

    /// Returns true if this program is among those measured.
    pub fn measures_this(&self) -> bool {
        self.dormouse.is_empty() && !self.without_dormouse
    }
}

/// A site and the subjects to measure there.
pub struct Bench {
    /// What is compared; Dormouse first.
    pub subjects: Vec<Subject>,
    /// Where servers run.
    pub placement: Placement,
    site: Site,
}

/// Where servers and load run, and the machine's settings.
pub struct Site {
    /// Core and priority of servers.
    pub placement: Placement,
    cores: Cores,
    priority_refused: bool,
    machine: Machine,
    /// What is to be said first: that other programs use the machine.
    busy: Option<String>,
    _huge_pages: Option<HugePageMode>,
}

impl Site {
    /// Chooses the cores, pins the load, and sets the huge page mode where asked.
    pub fn set_up(cores: &CoreArgs, huge_pages: Option<&str>) -> Result<Self> {
        let huge_pages = huge_pages
            .map(|mode| {
                let kept = HugePageMode::keep()?;
                kept.set(mode).map(|()| kept)
            })
            .transpose()?;
        let machine = Machine::read()?;
        let busy = machine::look_around(&os::allowed_cores()?);
        let cores = machine::choose_cores(cores.server_core, cores.driver_core)?;
        os::pin_thread(cores.driver)?;
        let priority_refused = os::set_nice(NICE).is_err();
        os::raise_open_files()?;
        let placement =
            Placement { core: cores.server, further_core: None, without_huge_pages: false, nice: NICE };
        Ok(Self { placement, cores, priority_refused, machine, busy, _huge_pages: huge_pages })
    }

    /// Placement of a server that may use the load's core too.
    pub fn both_cores(&self) -> Placement {
        Placement { further_core: Some(self.cores.driver), ..self.placement }
    }

    /// What a report must state about the site.
    pub fn settings(&self) -> Vec<String> {
        let mut settings = self.machine_settings();
        settings.push(format!(
            "server on core {} with one worker, load on core {}, priority {}",
            self.cores.server,
            self.cores.driver,
            self.priority()
        ));
        settings
    }

    /// The priority of what is measured, as text.
    pub fn priority(&self) -> &'static str {
        match (self.priority_refused, self.machine.autogroup) {
            (true, _) => "ordinary (raising it was refused)",
            (false, true) => "raised (within its session: autogroup is on)",
            (false, false) => "raised",
        }
    }

    /// What a report must state about the machine.
    pub fn machine_settings(&self) -> Vec<String> {
        let machine = &self.machine;
        let pages = format!(
            "huge pages: {}; TCP congestion control: {}",
            machine.huge_pages, machine.congestion_control
        );
        self.busy.iter().cloned().chain([machine.in_words(), pages]).collect()
    }

    /// The same for programs.
    pub fn data(&self, report: &mut Report, quick: bool) -> Result<()> {
        report.data("machine", &self.machine)?;
        report.data("cores", &self.cores)?;
        report.data("busy", &self.busy)?;
        report.data("quick", &quick)
    }
}

impl Bench {
    /// Pins the load, and finds the subjects. `floor`: whether the transport's own cost is meaningful here.
    pub fn set_up(common: &Common, floor: bool) -> Result<Self> {
        let mut subjects = Vec::new();
        if !common.without_dormouse {
            let protocol = match common.protocol {
                ProtocolChoice::Memcached => Protocol::MemcachedBinary,
                ProtocolChoice::MemcachedText => Protocol::MemcachedText,
                ProtocolChoice::Couchbase => Protocol::Couchbase,
            };
            subjects.push(Subject::dormouse(common.dormouse.as_deref(), protocol, &common.serve_args)?);
        }
        for peer in common.peers.iter().filter(|peer| *peer != "none") {
            subjects.extend(Subject::peer(peer)?);
        }
        if !floor {
            subjects.retain(|subject| subject.kind != Kind::Floor);
        }
        for (index, subject) in subjects.iter().enumerate() {
            let before = subjects.get(..index).unwrap_or_default();
            if before.iter().any(|other| other.kind == subject.kind) {
                bail!(
                    "{} is named twice among the peers: compare two programs in two runs",
                    subject.kind.name()
                );
            }
        }
        if subjects.is_empty() {
            bail!("nothing to measure: no peer of {:?} is installed", common.peers);
        }
        let site = common.site.set_up()?;
        Ok(Self { subjects, placement: site.placement, site })
    }

    /// Placement of a server that may use both cores.
    pub fn both_cores(&self) -> Placement {
        self.site.both_cores()
    }

    /// A report that states the settings.
    pub fn report(&self, experiment: &'static str, common: &Common) -> Result<Report> {
        let mut settings = self.site.settings();
        for subject in &self.subjects {
            settings.push(format!(
                "{}: {} ({})",
                subject.kind.name(),
                subject.program.version,
                subject.program.path.display()
            ));
        }
        let mut report = Report { experiment, settings, ..Report::default() };
        report.note_this_build(!common.without_dormouse && common.dormouse.is_none());
        self.site.data(&mut report, common.quick)?;
        report.data("subjects", &self.subjects)?;
        Ok(report)
    }
}

/// A progress bar of `steps` steps, drawn only on a terminal.
pub fn drawn_bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {wide_msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// What a person sees of a built-in experiment meanwhile: a bar on a terminal, and lines in a log.
pub struct Progress {
    bar: ProgressBar,
    /// When the last line was written, if there is no terminal.
    said: Cell<Option<Instant>>,
}

/// Lines in a log are at least as far apart.
const LINES_APART: Duration = Duration::from_secs(5);

/// The progress of an experiment of `steps` steps.
pub fn progress_bar(steps: u64) -> Progress {
    Progress { bar: drawn_bar(steps), said: Cell::new(None) }
}

impl Progress {
    /// Says what is done now.
    pub fn set_message(&self, message: impl Into<Cow<'static, str>>) {
        self.bar.set_message(message);
        if self.bar.is_hidden() && self.said.get().is_none_or(|said| said.elapsed() >= LINES_APART) {
            self.said.set(Some(Instant::now()));
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let elapsed = HumanDuration(self.bar.elapsed());
            // Nobody may be listening.
            let _ = writeln!(std::io::stderr(), "[{done}/{all}] {}, {elapsed:#}", self.bar.message());
        }
    }

    /// Counts steps.
    pub fn inc(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Takes the bar off the terminal.
    pub fn finish_and_clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// A budget that holds this many items in any server without eviction.
pub fn memory_for(items: u32, shape: Shape) -> u64 {
    let items_bytes = u64::from(items) * (shape.payload_bytes() + 200);
    items_bytes + items_bytes / 2 + (512 << 20)
}

/// Writes items `from..to` once each.
pub fn load(target: &Target, dialect: &Dialect, from: u32, to: u32) -> Result<()> {
    if from >= to {
        return Ok(());
    }
    let mut driver = Driver::new(target, dialect.clone(), LOAD_CONNECTIONS, 1)?;
    let plan = Plan { items: Items::Sequence(from, to), reads: 0.0, depth: LOAD_DEPTH };
    driver.run(plan, Until::End, |_| {}).context("loading items")?;
    Ok(())
}

/// Reads a sample of the items back and compares every byte.
pub fn verify(target: &Target, dialect: &Dialect, items: u32) -> Result<()> {
    let mut client = Client::new(target, dialect.clone())?;
    let mut random = Random::new(7);
    for _ in 0..VERIFIED_ITEMS.min(u64::from(items)) {
        client.verify(Random::below(random.next(), items)).context("reading an item back")?;
    }
    Ok(())
}

/// One measured window.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Window {
    /// Requests answered.
    pub requests: u64,
    /// Requests per second of server CPU (user and system, all threads).
    pub per_cpu_second: f64,
    /// Requests per second.
    pub per_second: f64,
    /// Fraction of its core that the server used.
    pub server_share: f64,
    /// Fraction of its core that the load used.
    pub driver_share: f64,
    /// Cores that other processes used meanwhile.
    pub foreign_cores: f64,
}

/// Runs a load for a while and relates it to the CPU time the server used for it.
pub fn measure(driver: &mut Driver, server: &mut Server, plan: Plan, length: Duration) -> Result<Window> {
    measure_until(driver, server, plan, length, |_| Ok(()))
}

/// As [`measure`], including the CPU time that the server uses until `finish` has returned.
pub fn measure_until(
    driver: &mut Driver,
    server: &mut Server,
    plan: Plan,
    length: Duration,
    finish: impl FnOnce(&Server) -> Result<()>,
) -> Result<Window> {
    let busy = BusyReading::take();
    let before = os::process_cpu_ns(server.pid)?;
    let outcome = driver.run(plan, Until::Elapsed(length), |_| {})?;
    finish(server)?;
    server.ensure_alive()?;
    let cpu_ns = (os::process_cpu_ns(server.pid)? - before).max(1);
    let wall_ns = outcome.wall_ns.max(1) as f64;
    Ok(Window {
        requests: outcome.requests,
        per_cpu_second: outcome.requests as f64 * 1e9 / cpu_ns as f64,
        per_second: outcome.requests as f64 * 1e9 / wall_ns,
        server_share: cpu_ns as f64 / wall_ns,
        driver_share: outcome.driver_cpu_ns as f64 / wall_ns,
        foreign_cores: busy.foreign_cores(cpu_ns + outcome.driver_cpu_ns),
    })
}

/// Length of the windows, several of which are measured for one figure.
fn window_length(given_ms: Option<u64>, quick: bool, quick_ms: u64, full_ms: u64) -> Duration {
    Duration::from_millis(given_ms.unwrap_or(if quick { quick_ms } else { full_ms }))
}

/// Waits until a persistent bucket has nothing left to write; returns its figures then.
pub fn wait_until_flushed(server: &Server) -> Result<BTreeMap<String, String>> {
    let address = server.memcached.context("a server without a memcached port")?;
    let start = Instant::now();
    loop {
        let figures = statistics(address, "persistence")?;
        let waiting = figure(&figures, "unflushed_items")?;
        if waiting == 0 {
            return Ok(figures);
        }
        ensure!(start.elapsed() < FLUSH_TIMEOUT, "{waiting} items are still not written");
        thread::sleep(FLUSH_POLL);
    }
}

/// Pauses and shows that in the bar.
pub fn settle(bar: &Progress, length: Duration) {
    bar.set_message(format!("settling {} s", length.as_secs()));
    thread::sleep(length);
}

/// Start options for items of one shape.
pub fn start_for(bench: &Bench, items: u32, shape: Shape) -> Start {
    let mut start = Start::new(bench.placement, memory_for(items, shape));
    start.value_bytes = shape.value_bytes;
    start
}
