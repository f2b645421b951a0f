//! Time from a start until the data of a persistent bucket is served, compared with merely reading the same files.
//!
//! ```text
//!   load ── all on disk? ── stop ── [ forget cached files ── read them ── forget ── start ── all served? ── stop ] x repetitions
//! ```
//! The server may use both cores here, and has two workers: warm-up is parallel, and there is no load beside it.

use super::{Bench, Common, load, memory_for, progress_bar, verify, wait_until_flushed};
use crate::client::{figure, statistics};
use crate::os;
use crate::process;
use crate::protocol::{Dialect, Shape};
use crate::report::{Goal, Report, Table, bytes, count, parse_count, short};
use crate::statistics::Spread;
use crate::storage::{self, Scratch, drop_page_cache, files_below, read_through};
use crate::subject::{Kind, Start, Subject};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const SHAPE: Shape = Shape { key_bytes: 24, value_bytes: 256 };
const QUICK_ITEMS: u32 = 500_000;
const ITEMS: u32 = 5_000_000;
const WORKERS: usize = 2;
/// Highest allowed time, as a multiple of reading the files.
const RATIO_MAX: f64 = 3.0;
/// Interval at which the warm-up is polled.
const POLL: Duration = Duration::from_millis(5);
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(600);

/// Options of `lab warmup`.
#[derive(Args, Debug)]
pub struct WarmupArgs {
    #[command(flatten)]
    common: Common,
    /// Items of 24 + 256 bytes [default: 500k quick, 5M full]
    #[arg(long, value_parser = parse_count)]
    items: Option<u32>,
    /// Starts measured [default: 2 quick, 3 full]
    #[arg(long)]
    repetitions: Option<u32>,
    /// Where the bucket's files are kept; should be on the disk to be measured [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// One start.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    file_bytes: u64,
    read_seconds: f64,
    /// From the start of the process until everything is served.
    warm_seconds: f64,
    /// User and system time until then.
    cpu_seconds: f64,
    records: u64,
    resident_bytes: u64,
}

impl Sample {
    fn per_gb(&self, seconds: f64) -> f64 {
        seconds * 1e9 / self.file_bytes.max(1) as f64
    }
}

/// Runs the experiment.
pub fn run(arguments: &WarmupArgs) -> Result<Report> {
    let quick = arguments.common.quick;
    let mut bench = Bench::set_up(&arguments.common, false)?;
    bench.subjects.retain(|subject| subject.kind == Kind::Dormouse);
    let subject = bench.subjects.first().context("nothing to measure: peers have no warm-up of this kind")?;
    let mut report = bench.report("warmup", &arguments.common)?;
    let items = arguments.items.unwrap_or(if quick { QUICK_ITEMS } else { ITEMS });
    let repetitions = arguments.repetitions.unwrap_or(if quick { 2 } else { 3 }).max(1);
    let data = Scratch::new(arguments.directory.as_deref())?;
    report.settings.push(format!(
        "{} items of {} + {} bytes on {}; here the server has {WORKERS} workers on both cores",
        count(items),
        SHAPE.key_bytes,
        SHAPE.value_bytes,
        storage::file_system(&data.path)
    ));
    let bar = progress_bar(u64::from(repetitions) + 1);
    bar.set_message(format!("loading {}", count(items)));
    let dialect = Dialect::new(subject.protocol, SHAPE, 1)?;
    let mut start = Start::new(bench.both_cores(), memory_for(items, SHAPE));
    start.workers = WORKERS;
    start.durable = true;
    start.data = Some(data.path.clone());
    let server = subject.start(&start)?;
    load(&server.target, &dialect, 0, items)?;
    wait_until_flushed(&server)?;
    server.stop()?;
    bar.inc(1);
    let (mut samples, mut how) = (Vec::new(), "");
    for _ in 0..repetitions {
        let (sample, forgotten) = measure(subject, &start, &dialect, &data.path, items)?;
        samples.push(sample);
        how = forgotten;
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.settings.push(format!("before each reading and each start: {how}"));
    fill(&mut report, &samples)?;
    report.with_json(arguments.common.json.as_deref())
}

fn measure(
    subject: &Subject,
    start: &Start,
    dialect: &Dialect,
    data: &Path,
    items: u32,
) -> Result<(Sample, &'static str)> {
    let files = files_below(data)?;
    drop_page_cache(&files)?;
    let (file_bytes, read) = read_through(&files)?;
    let how = drop_page_cache(&files)?;
    let began = Instant::now();
    let server = subject.start(start)?;
    let address = server.memcached.context("a server without a memcached port")?;
    let warm = loop {
        let figures = statistics(address, "warmup")?;
        let state = figures.get("ep_warmup_state").context("the server does not report its warm-up state")?;
        if state == "done" {
            break figures;
        }
        ensure!(began.elapsed() < WARM_UP_TIMEOUT, "the warm-up did not finish: {figures:?}");
        thread::sleep(POLL);
    };
    let (warm_seconds, cpu_ns) = (began.elapsed().as_secs_f64(), os::process_cpu_ns(server.pid)?);
    ensure!(figure(&warm, "warmup_vbuckets_damaged")? == 0, "vBuckets are damaged");
    verify(&server.target, dialect, items).context("after the warm-up")?;
    let sample = Sample {
        file_bytes,
        read_seconds: read.as_secs_f64(),
        warm_seconds,
        cpu_seconds: cpu_ns as f64 / 1e9,
        records: figure(&warm, "ep_warmup_key_count")?,
        resident_bytes: process::memory(server.pid)?.resident_bytes,
    };
    server.stop()?;
    Ok((sample, how))
}

fn fill(report: &mut Report, samples: &[Sample]) -> Result<()> {
    let mut table = Table::new(
        "Warm-up beside reading the same files",
        &[
            "start",
            "files",
            "read s",
            "s per GB",
            "served after s",
            "s per GB",
            "x reading",
            "CPU s",
            "records",
            "RSS",
        ],
    );
    let mut ratios = Vec::new();
    for (number, sample) in samples.iter().enumerate() {
        let ratio = sample.warm_seconds / sample.read_seconds.max(1e-9);
        ratios.push(ratio);
        table.row(vec![
            (number + 1).to_string(),
            bytes(sample.file_bytes),
            short(sample.read_seconds),
            short(sample.per_gb(sample.read_seconds)),
            short(sample.warm_seconds),
            short(sample.per_gb(sample.warm_seconds)),
            short(ratio),
            short(sample.cpu_seconds),
            sample.records.to_string(),
            bytes(sample.resident_bytes),
        ]);
    }
    report.tables.push(table);
    let ratio = Spread::of(&ratios).context("no start was measured")?;
    report.goals.push(Goal::at_most(
        "everything served, as a multiple of reading the files",
        ratio.median,
        RATIO_MAX,
        "x",
    ));
    report.data("ratio", &ratio)?;
    report.data("samples", &samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_start_is_judged_by_its_own_reading() {
        let sample = |read_seconds: f64, warm_seconds: f64| Sample {
            file_bytes: 2_000_000_000,
            read_seconds,
            warm_seconds,
            cpu_seconds: 1.0,
            records: 1,
            resident_bytes: 1,
        };
        assert!((sample(1.0, 3.0).per_gb(3.0) - 1.5).abs() < 1e-9);
        let mut report = Report::default();
        fill(&mut report, &[sample(1.0, 4.0), sample(2.0, 5.0), sample(1.0, 2.0)]).unwrap();
        assert!(report.goals[0].met && report.goals[0].reached == "2.50x");
        fill(&mut report, &[sample(1.0, 4.0)]).unwrap();
        assert!(!report.goals[1].met);
    }
}
