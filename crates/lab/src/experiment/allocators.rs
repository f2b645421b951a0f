//! The allocator matrix of E1: metadata_thp x background threads x the system's huge pages, on Dormouse.
//!
//! ```text
//! round    every cell once, in an order of its own:   start, load, rest, windows of 80 % SET and 20 % GET, rest, memory
//! effect   pairs of starts of one round that differ in one setting only      (see `effect`)
//! ```
//!
//! Two starts of one setting differ by more than the reference's settings did. So a setting is judged by pairs of
//! starts and a confidence interval.

mod effect;

use super::{
    CoreArgs, Progress, SETTLE, Site, load, measure_until, memory_for, progress_bar, settle, verify,
    wait_until_flushed,
};
use crate::client::{figure, statistics};
use crate::driver::{Driver, Items, Plan};
use crate::machine::{self, HugePageMode};
use crate::process;
use crate::protocol::{Dialect, Protocol, Shape};
use crate::random::Random;
use crate::report::{Report, Table, bytes, count, parse_count, short};
use crate::statistics::{Interval, median};
use crate::storage::{self, Scratch};
use crate::subject::{Start, Subject};
use anyhow::{Context, Result, ensure};
use clap::Args;
use effect::Effect;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// As in E1.
const SHAPE: Shape = Shape { key_bytes: 20, value_bytes: 256 };
const CONNECTIONS: usize = 50;
const DEPTH: usize = 1000;
const READS: f64 = 0.2;
const WARM_UP: Duration = Duration::from_millis(300);
/// Confidence of the cells' intervals; that of the effects is chosen so that all of them hold together.
const CONFIDENCE: f64 = 0.95;

/// No huge pages, either in the whole system or for the process.
const NEVER: &str = "never";
/// Huge pages for memory that requests them, as the item memory of a large bucket does; the only mode in which jemalloc
/// requests them for its bookkeeping.
const ON_ADVICE: &str = "madvise";

/// Options of `lab allocators`.
#[derive(Args, Debug)]
#[command(after_help = "Example, as root, so that the system's huge page mode can be set:\n  \
    dormouse lab allocators --quick --json allocators.json\n\n\
    The previous mode is restored at the end, and when the run is interrupted. Without the privilege the server is \
    started with and without PR_SET_THP_DISABLE instead, and the report says so.")]
pub struct AllocatorsArgs {
    /// List the allocators that can be preloaded into other servers, and how to get those that this machine lacks
    #[arg(long)]
    pub list: bool,
    /// Fewer items and starts; metadata_thp disabled and always, huge pages never and on madvise: about six minutes
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Dormouse program to run instead of this one; must be built with jemalloc
    #[arg(long, value_name = "PROGRAM")]
    dormouse: Option<PathBuf>,
    /// Items [default: 500k quick, 1M full]
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    items: Option<u32>,
    /// Starts of each cell, at least 2 [default: 3 quick, 5 full]
    #[arg(long)]
    starts: Option<u32>,
    /// Measured windows per start [default: 2 quick, 3 full]
    #[arg(long)]
    windows: Option<u32>,
    /// Length of a window in milliseconds [default: 1000 quick, 1500 full]
    #[arg(long)]
    window_ms: Option<u64>,
    /// Use a persistent bucket instead of an ephemeral one; a window then ends when everything it wrote is on disk
    #[arg(long)]
    persistent: bool,
    /// Where --persistent keeps its files; should be on the disk to be measured [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    cores: CoreArgs,
}

/// One combination of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Cell {
    metadata_thp: &'static str,
    background_thread: &'static str,
    huge_pages: &'static str,
}

/// Result of one start of one cell.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    #[serde(flatten)]
    cell: Cell,
    round: u32,
    /// Operations per second of server CPU: median of the windows.
    per_cpu_second: f64,
    /// At rest after the windows.
    memory: process::Memory,
    /// Huge pages that jemalloc requested for its bookkeeping.
    metadata_huge_pages: u64,
    server_share: f64,
    driver_share: f64,
    foreign_cores: f64,
}

/// How huge pages are enabled and disabled.
enum Means {
    /// For the whole system.
    System(HugePageMode),
    /// For the server's process, if the system's mode cannot be set.
    Process,
}

impl Means {
    fn levels(&self, quick: bool) -> Result<Vec<&'static str>> {
        Ok(match self {
            Self::System(_) if quick => vec![NEVER, ON_ADVICE],
            Self::System(_) => vec![NEVER, ON_ADVICE, "always"],
            Self::Process => {
                let mode = machine::huge_page_mode().context("the system reports no huge page mode")?;
                ensure!(mode != NEVER, "huge pages are off in the system and cannot be enabled here");
                vec![NEVER, mode]
            }
        })
    }

    /// Whose setting it is, for reports.
    fn name(&self) -> &'static str {
        match self {
            Self::System(_) => "system's huge pages",
            Self::Process => "huge pages of the process",
        }
    }
}

struct Run<'a> {
    arguments: &'a AllocatorsArgs,
    subject: Subject,
    means: Means,
    site: Site,
    scratch: Scratch,
    dialect: Dialect,
    items: u32,
    windows: u32,
    window: Duration,
}

/// Runs the experiment.
pub fn run(arguments: &AllocatorsArgs) -> Result<Report> {
    let quick = arguments.quick;
    let means = HugePageMode::keep().map_or(Means::Process, Means::System);
    let levels = means.levels(quick)?;
    let cells = cells(if quick { &["disabled", "always"] } else { &["disabled", "auto", "always"] }, &levels);
    let starts = arguments.starts.unwrap_or(if quick { 3 } else { 5 }).max(2);
    let run = Run {
        arguments,
        subject: Subject::dormouse(arguments.dormouse.as_deref(), Protocol::MemcachedBinary, &[])?,
        means,
        site: Site::set_up(&arguments.cores, None)?,
        scratch: Scratch::new(arguments.directory.as_deref())?,
        dialect: Dialect::new(Protocol::MemcachedBinary, SHAPE, 1)?,
        items: arguments.items.unwrap_or(if quick { 500_000 } else { 1_000_000 }),
        windows: arguments.windows.unwrap_or(if quick { 2 } else { 3 }).max(1),
        window: super::window_length(arguments.window_ms, quick, 1000, 1500),
    };
    let mut report = run.report(starts)?;
    let bar = progress_bar(u64::from(starts) * cells.len() as u64);
    let mut random = Random::new(5);
    let mut samples = Vec::new();
    for round in 0..starts {
        let mut order = cells.clone();
        random.shuffle(&mut order);
        for cell in order {
            let sample = run.measure(cell, round, &bar).with_context(|| format!("measuring {cell:?}"))?;
            samples.push(sample);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let effects = effect::effects(&samples, run.means.name(), &levels);
    fill(&mut report, run.means.name(), &cells, &samples, &effects)?;
    report.with_json(arguments.json.as_deref())
}

fn cells(metadata: &[&'static str], huge_pages: &[&'static str]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &huge_pages in huge_pages {
        for &metadata_thp in metadata {
            for background_thread in ["false", "true"] {
                cells.push(Cell { metadata_thp, background_thread, huge_pages });
            }
        }
    }
    cells
}

impl Run<'_> {
    fn report(&self, starts: u32) -> Result<Report> {
        let mut report =
            Report { experiment: "allocators", settings: self.site.settings(), ..Report::default() };
        let settings = &mut report.settings;
        settings.push(format!(
            "dormouse: {} ({})",
            self.subject.program.version,
            self.subject.program.path.display()
        ));
        settings.push(match self.means {
            Means::System(_) => "huge pages: the system's mode is set for each start and restored".to_owned(),
            Means::Process => format!(
                "HUGE PAGES BY PROCESS: the system's mode may not be set here; `{NEVER}` is PR_SET_THP_DISABLE, the \
                other one is the system's"
            ),
        });
        settings.push(format!(
            "{} bucket{}, {} items of {} + {} bytes, {CONNECTIONS} connections, batches of {DEPTH}, 20 % GET, 80 % SET",
            if self.arguments.persistent { "persistent" } else { "ephemeral" },
            if self.arguments.persistent {
                format!(" on {}", storage::file_system(&self.scratch.path))
            } else {
                String::new()
            },
            count(self.items),
            SHAPE.key_bytes,
            SHAPE.value_bytes,
        ));
        settings.push(format!(
            "{starts} starts of each cell, in rounds of all cells in random order; {} windows of {} ms each, memory {} \
            s \
             later",
            self.windows,
            self.window.as_millis(),
            SETTLE.as_secs()
        ));
        report.note_this_build(self.arguments.dormouse.is_none());
        self.site.data(&mut report, self.arguments.quick)?;
        report.data("subject", &self.subject)?;
        Ok(report)
    }

    /// One start of one cell.
    fn measure(&self, cell: Cell, round: u32, bar: &Progress) -> Result<Sample> {
        bar.set_message(format!(
            "metadata_thp {}, background_thread {}, {} {}",
            cell.metadata_thp,
            cell.background_thread,
            self.means.name(),
            cell.huge_pages
        ));
        let data = Scratch::new(Some(&self.scratch.path))?;
        let mut placement = self.site.placement;
        match &self.means {
            Means::System(mode) => mode.set(cell.huge_pages)?,
            Means::Process => placement.without_huge_pages = cell.huge_pages == NEVER,
        }
        let mut start = Start::new(placement, memory_for(self.items, SHAPE));
        start.durable = self.arguments.persistent;
        start.data = Some(data.path.clone());
        start.configuration = format!(
            "[allocator]\nmetadata_thp = \"{}\"\nbackground_thread = {}\n",
            cell.metadata_thp, cell.background_thread
        );
        let mut server = self.subject.start(&start)?;
        let address = server.memcached.context("a server without a memcached port")?;
        self.ensure_in_force(cell, address)?;
        load(&server.target, &self.dialect, 0, self.items)?;
        verify(&server.target, &self.dialect, self.items)?;
        if start.durable {
            wait_until_flushed(&server)?;
        }
        let mut driver = Driver::new(&server.target, self.dialect.clone(), CONNECTIONS, 1)?;
        let plan = Plan { items: Items::Uniform(self.items), reads: READS, depth: DEPTH };
        let mut window = |length| {
            measure_until(&mut driver, &mut server, plan, length, |server| {
                if start.durable { wait_until_flushed(server).map(drop) } else { Ok(()) }
            })
        };
        window(WARM_UP)?;
        let windows = (0..self.windows).map(|_| window(self.window)).collect::<Result<Vec<_>>>()?;
        settle(bar, SETTLE);
        let memory = process::memory(server.pid)?;
        let figures = statistics(address, "allocator")?;
        verify(&server.target, &self.dialect, self.items).context("after the load")?;
        server.stop()?;
        let middle = |figure: fn(&super::Window) -> f64| {
            median(&windows.iter().map(figure).collect::<Vec<_>>()).context("no window")
        };
        Ok(Sample {
            cell,
            round,
            per_cpu_second: middle(|window| window.per_cpu_second)?,
            memory,
            metadata_huge_pages: figure(&figures, "metadata_huge_pages")?,
            server_share: middle(|window| window.server_share)?,
            driver_share: middle(|window| window.driver_share)?,
            foreign_cores: middle(|window| window.foreign_cores)?,
        })
    }

    /// Fails if the server does not have the cell's settings: a mislabelled cell would be worse than none.
    fn ensure_in_force(&self, cell: Cell, address: std::net::SocketAddr) -> Result<()> {
        let figures = statistics(address, "allocator")?;
        let system = matches!(self.means, Means::System(_)).then_some(("system_thp", cell.huge_pages));
        let wanted = [("metadata_thp", cell.metadata_thp), ("background_thread", cell.background_thread)];
        for (name, wanted) in wanted.into_iter().chain(system) {
            let found = figures.get(name).map(String::as_str);
            ensure!(found == Some(wanted), "{name} is {found:?} where {wanted:?} was set");
        }
        Ok(())
    }
}

fn fill(
    report: &mut Report,
    means: &str,
    cells: &[Cell],
    samples: &[Sample],
    effects: &[Effect],
) -> Result<()> {
    let mut table = Table::new(
        "Cells: thousand operations per second of server CPU, and memory at rest (geometric mean of the starts [95 % \
        by Student's distribution])",
        &[
            "metadata_thp",
            "background_thread",
            means,
            "kop/CPU s",
            "95 %",
            "RSS MiB",
            "95 %",
            "in huge pages",
            "bookkeeping asked for",
            "server core",
            "load core",
            "others",
        ],
    );
    for cell in cells {
        let own: Vec<&Sample> = samples.iter().filter(|sample| sample.cell == *cell).collect();
        let all = |figure: fn(&Sample) -> f64| own.iter().map(|&sample| figure(sample)).collect::<Vec<_>>();
        let middle = |figure: fn(&Sample) -> f64| median(&all(figure)).unwrap_or(f64::NAN);
        let interval = |figure| {
            let logarithms: Vec<f64> = all(figure).into_iter().map(f64::ln).collect();
            Interval::of(&logarithms, CONFIDENCE).map(|interval| interval.map(f64::exp))
        };
        let rate = interval(|sample| sample.per_cpu_second / 1e3);
        let resident = interval(|sample| sample.memory.resident_bytes as f64 / f64::from(1 << 20));
        let (Some(rate), Some(resident)) = (rate, resident) else { continue };
        let ends = |of: Interval| format!("[{} .. {}]", short(of.low), short(of.high));
        table.row(vec![
            cell.metadata_thp.to_owned(),
            cell.background_thread.to_owned(),
            cell.huge_pages.to_owned(),
            short(rate.mean),
            ends(rate),
            short(resident.mean),
            ends(resident),
            bytes(middle(|sample| sample.memory.huge_page_bytes as f64) as u64),
            format!("{:.0} pages", middle(|sample| sample.metadata_huge_pages as f64)),
            format!("{:.2}", middle(|sample| sample.server_share)),
            format!("{:.2}", middle(|sample| sample.driver_share)),
            format!("{:.2}", middle(|sample| sample.foreign_cores)),
        ]);
    }
    report.tables.push(table);
    report.tables.push(effect::table(effects));
    report.notes.push(
        "in huge pages: AnonHugePages of the server's smaps_rollup; bookkeeping: stats.metadata_thp of jemalloc; \
        medians of the starts"
            .to_owned(),
    );
    let noisiest = samples.iter().map(|sample| sample.foreign_cores).fold(0.0, f64::max);
    if noisiest > 0.1 {
        report
            .notes
            .push(format!("others used up to {noisiest:.2} cores meanwhile: repeat on a quiet machine"));
    }
    let answer = effect::answer(effects, effect::spread_of_two_starts(cells, samples));
    report.data("answer", &answer)?;
    report.notes.push(answer);
    report.data("samples", &samples)?;
    report.data("effects", &effects)
}
