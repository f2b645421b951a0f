//! E4: the cost of one flush of a persistent bucket: additional memory, CPU, time.
//!
//! Each flush runs in a process of its own (`trial`), on one core. Its peak, and the memory that an item costs while it
//! is dirty, are counted at each allocator call; CPU is measured in further processes that do not count. The reference
//! figures are shown beside ours; machines differ, so compare shapes, not absolute times.

pub mod trial;

use super::{CoreArgs, Site, progress_bar};
use crate::os;
use crate::programs;
use crate::reference::FLUSHES;
use crate::report::{Goal, Report, Table, count, parse_count, short};
use crate::statistics::Spread;
use crate::storage::{self, Scratch};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use trial::{FlushMemory, Flushed, Mode};

const COUNTS: [u32; 4] = [1, 100, 10_000, 1_000_000];
const QUICK_COUNTS: [u32; 4] = [1, 100, 10_000, 100_000];
const VALUES_BYTES: [usize; 2] = [1, 256];

/// Highest allowed peak of a flush of one item, beyond the buffer.
const ONE_ITEM_BYTES_MAX: f64 = 16e3;
/// Highest allowed peak per item: for 10,000 items beyond the buffer, and for 1,000,000 in all.
const BEYOND_BUFFER_MAX: f64 = 32.0;
const IN_ALL_MAX: f64 = 16.0;
/// Most bytes that a dirty item may cost above a clean one.
const DIRTY_BYTES_MAX: f64 = 16.0;
/// Fewest items per CPU second.
const RATE_MIN: f64 = 1.5e6;
/// Rates and per-item figures are judged from this many items on: then enough of them share a block of a table.
const JUDGED_FROM: u32 = 10_000;

/// Options of `lab flush`.
#[derive(Args, Debug)]
pub struct FlushArgs {
    /// At most 100,000 items and fewer repetitions
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Another build of this program, to measure its engine instead
    #[arg(long, value_name = "PROGRAM")]
    lab: Option<PathBuf>,
    /// Items per flush [default: 1,100,10k and 1M, quick 100k]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    items: Vec<u32>,
    /// Flushes measured for each line [default: 3 quick, 7 full]
    #[arg(long)]
    repetitions: Option<u32>,
    /// Where the bucket's directory is created; should be on the disk to be measured [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Core of the flush (default: the first this process may use)
    #[arg(long, value_name = "CORE")]
    server_core: Option<usize>,
}

/// One line of the tables.
#[derive(Clone, Debug, Serialize)]
struct Line {
    mode: Mode,
    value_bytes: usize,
    items: u32,
    memory: FlushMemory,
    /// Items per second of CPU.
    per_cpu_second: Spread,
    wall_ms: Spread,
    /// Bytes of journal per item.
    written_per_item: f64,
}

impl Line {
    fn beyond_buffer(&self) -> f64 {
        (self.memory.peak_bytes - self.memory.buffer_bytes) as f64
    }

    fn per_item(&self, bytes: f64) -> f64 {
        bytes / f64::from(self.items)
    }

    fn dirty_per_item(&self) -> f64 {
        // The entries in the journal's tables after the flush add to the cost of a clean item; the bucket's own
        // accounts do not include them.
        self.per_item(self.memory.dirty_bytes.max(self.memory.dirty_accounted_bytes) as f64)
    }
}

/// Runs the experiment.
pub fn run(arguments: &FlushArgs) -> Result<Report> {
    let cores = CoreArgs { server_core: arguments.server_core, ..CoreArgs::default() };
    let site = Site::set_up(&cores, None)?;
    let mut report = Report { experiment: "flush", settings: site.machine_settings(), ..Report::default() };
    site.data(&mut report, arguments.quick)?;
    let counts = match (&*arguments.items, arguments.quick) {
        ([], true) => QUICK_COUNTS.to_vec(),
        ([], false) => COUNTS.to_vec(),
        (given, _) => given.to_vec(),
    };
    let repetitions = arguments.repetitions.unwrap_or(if arguments.quick { 3 } else { 7 }).max(1);
    let program = match &arguments.lab {
        Some(program) => program.clone(),
        None => programs::this()?,
    };
    let scratch = Scratch::new(arguments.directory.as_deref())?;
    report.settings.push(format!(
        "one vBucket of a persistent bucket, in process; keys key0 to keyN-1; journal on {}, fsync included",
        storage::file_system(&scratch.path)
    ));
    report.settings.push(format!(
        "each flush in a process of its own on core {}, priority {}",
        site.placement.core,
        site.priority()
    ));
    report.settings.push(format!(
        "memory: one flush with each allocation counted; CPU and wall: medians of {repetitions} that count nothing"
    ));
    report.note_this_build(arguments.lab.is_none());
    let bar = progress_bar((counts.len() * VALUES_BYTES.len() * 2) as u64);
    let mut lines = Vec::new();
    for value_bytes in VALUES_BYTES {
        for &items in &counts {
            for mode in [Mode::Insert, Mode::Replace] {
                bar.set_message(format!("{} {} items of {value_bytes} B", mode.name(), count(items)));
                let case =
                    Case { program: &program, site: &site, scratch: &scratch.path, items, value_bytes, mode };
                lines.push(case.measure(repetitions)?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    fill(&mut report, &lines)?;
    report.with_json(arguments.json.as_deref())
}

struct Case<'a> {
    program: &'a Path,
    site: &'a Site,
    scratch: &'a Path,
    items: u32,
    value_bytes: usize,
    mode: Mode,
}

impl Case<'_> {
    fn measure(&self, repetitions: u32) -> Result<Line> {
        let counted = self.flush(true)?;
        let memory = counted.memory.context("the flush counted nothing")?;
        let timed = (0..repetitions).map(|_| self.flush(false)).collect::<Result<Vec<_>>>()?;
        let items = f64::from(self.items);
        let spread = |figure: &dyn Fn(&Flushed) -> f64| {
            Spread::of(&timed.iter().map(figure).collect::<Vec<_>>()).context("no flush was measured")
        };
        Ok(Line {
            mode: self.mode,
            value_bytes: self.value_bytes,
            items: self.items,
            memory,
            per_cpu_second: spread(&|one| items * 1e9 / one.cpu_ns.max(1) as f64)?,
            wall_ms: spread(&|one| one.wall_ns as f64 / 1e6)?,
            written_per_item: counted.written_bytes as f64 / items,
        })
    }

    fn flush(&self, count_allocations: bool) -> Result<Flushed> {
        let scratch = Scratch::new(Some(self.scratch))?;
        let mut command = Command::new(self.program);
        command.args(["flush-trial", "--items", &self.items.to_string()]);
        command.args(["--value-bytes", &self.value_bytes.to_string(), "--mode", self.mode.name()]);
        command.arg("--directory").arg(&scratch.path);
        if count_allocations {
            command.arg("--count-allocations");
        }
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        os::place(&mut command, self.site.placement);
        let output = command.output().with_context(|| format!("starting {}", self.program.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "a flush ended with {}: {}", output.status, errors.trim());
        serde_json::from_slice(&output.stdout).context("reading what a flush printed")
    }
}

fn fill(report: &mut Report, lines: &[Line]) -> Result<()> {
    let mut memory = Table::new(
        "Memory of one flush",
        &[
            "",
            "value B",
            "items",
            "peak B",
            "buffer B",
            "beyond it",
            "per item",
            "in all per item",
            "dirty B per item",
            "journal B per item",
        ],
    );
    let mut times = Table::new(
        "Time of one flush: median [lowest .. highest]",
        &["", "value B", "items", "k items per CPU s", "spread", "wall ms", "spread"],
    );
    for line in lines {
        let head = [line.mode.name().to_owned(), line.value_bytes.to_string(), count(line.items)];
        let spread = |spread: &Spread, unit: f64| {
            format!("[{} .. {}]", short(spread.low / unit), short(spread.high / unit))
        };
        memory.row(
            head.iter()
                .cloned()
                .chain([
                    line.memory.peak_bytes.to_string(),
                    line.memory.buffer_bytes.to_string(),
                    short(line.beyond_buffer()),
                    short(line.per_item(line.beyond_buffer())),
                    short(line.per_item(line.memory.peak_bytes as f64)),
                    short(line.dirty_per_item()),
                    short(line.written_per_item),
                ])
                .collect(),
        );
        times.row(
            head.into_iter()
                .chain([
                    short(line.per_cpu_second.median / 1e3),
                    spread(&line.per_cpu_second, 1e3),
                    short(line.wall_ms.median),
                    spread(&line.wall_ms, 1.0),
                ])
                .collect(),
        );
    }
    report.tables.extend([memory, times, beside_reference(lines)]);
    judge(report, lines);
    report.data("lines", &lines)
}

/// The reference's table with our figures added: insert / replace, one-byte values, including the buffer.
fn beside_reference(lines: &[Line]) -> Table {
    let mut table = Table::new(
        "Beside the reference, insert / replace, values of one byte (24 cores of 2.4 GHz there; before -> after its \
        own work)",
        &[
            "items",
            "peak B per item, reference",
            "here, buffer included",
            "here, beyond it",
            "items per CPU s, reference",
            "here",
            "wall ms, reference",
            "here",
        ],
    );
    for reference in &FLUSHES {
        let of = |mode: Mode, figure: &dyn Fn(&Line) -> f64| {
            let line = lines
                .iter()
                .find(|line| line.mode == mode && line.value_bytes == 1 && line.items == reference.items);
            line.map_or("-".to_owned(), |line| thousands(figure(line)))
        };
        let both = |figure: &dyn Fn(&Line) -> f64| {
            format!("{} / {}", of(Mode::Insert, figure), of(Mode::Replace, figure))
        };
        let pair = |[insert, replace]: [f64; 2]| format!("{} / {}", thousands(insert), thousands(replace));
        table.row(vec![
            count(reference.items),
            format!("{} -> {}", pair(reference.before), pair(reference.after)),
            both(&|line| line.per_item(line.memory.peak_bytes as f64)),
            both(&|line| line.per_item(line.beyond_buffer())),
            pair(reference.rate),
            both(&|line| line.per_cpu_second.median),
            pair(reference.wall_ms),
            both(&|line| line.wall_ms.median),
        ]);
    }
    table
}

fn thousands(value: f64) -> String {
    if value.abs() >= 10_000.0 { format!("{}k", short(value / 1e3)) } else { short(value) }
}

fn judge(report: &mut Report, lines: &[Line]) {
    let goals = &mut report.goals;
    for line in lines {
        let what = format!("{} {} of {} B", line.mode.name(), count(line.items), line.value_bytes);
        match line.items {
            1 => {
                let beyond = line.beyond_buffer() / 1e3;
                goals.push(Goal::at_most(
                    format!("{what}: peak beyond the buffer"),
                    beyond,
                    ONE_ITEM_BYTES_MAX / 1e3,
                    " kB",
                ));
            }
            10_000 => {
                let beyond = line.per_item(line.beyond_buffer());
                goals.push(Goal::at_most(
                    format!("{what}: peak per item beyond the buffer"),
                    beyond,
                    BEYOND_BUFFER_MAX,
                    " B",
                ));
            }
            1_000_000 => {
                let in_all = line.per_item(line.memory.peak_bytes as f64);
                goals.push(Goal::at_most(format!("{what}: peak per item in all"), in_all, IN_ALL_MAX, " B"));
            }
            _ => {}
        }
        if line.items >= JUDGED_FROM {
            goals.push(Goal::at_most(
                format!("{what}: dirty above clean"),
                line.dirty_per_item(),
                DIRTY_BYTES_MAX,
                " B",
            ));
            let rate = line.per_cpu_second.median / 1e6;
            goals.push(Goal::at_least(format!("{what}: items per CPU second"), rate, RATE_MIN / 1e6, " M"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(items: u32, peak_bytes: i64, dirty_bytes: i64, rate: f64) -> Line {
        Line {
            mode: Mode::Insert,
            value_bytes: 1,
            items,
            memory: FlushMemory { peak_bytes, buffer_bytes: 1 << 20, dirty_bytes, dirty_accounted_bytes: 0 },
            per_cpu_second: Spread::of(&[rate]).unwrap(),
            wall_ms: Spread::of(&[10.0]).unwrap(),
            written_per_item: 60.0,
        }
    }

    #[test]
    fn the_buffer_counts_where_it_must() {
        let lines = [
            line(1, (1 << 20) + 15_000, 64, 1e3),
            line(10_000, (1 << 20) + 330_000, 170_000, 1.6e6),
            line(1_000_000, 15_000_000, 15_000_000, 1.4e6),
        ];
        let mut report = Report::default();
        fill(&mut report, &lines).unwrap();
        let verdicts: Vec<(&str, bool)> =
            report.goals.iter().map(|goal| (goal.name.split(": ").nth(1).unwrap(), goal.met)).collect();
        assert_eq!(
            verdicts,
            [
                ("peak beyond the buffer", true),
                ("peak per item beyond the buffer", false),
                ("dirty above clean", false),
                ("items per CPU second", true),
                ("peak per item in all", true),
                ("dirty above clean", true),
                ("items per CPU second", false),
            ]
        );
    }

    #[test]
    fn what_was_not_measured_is_a_dash_beside_the_reference() {
        let mut report = Report::default();
        report.tables.push(beside_reference(&[line(100, 1 << 20, 0, 1e6)]));
        assert!(!report.tables[0].is_empty());
        assert_eq!((thousands(169_600.0), thousands(759.0)), ("170k".to_owned(), "759".to_owned()));
    }
}
