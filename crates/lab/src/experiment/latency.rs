//! Tail latency of small reads (and, with the defragmenter, of writes), alone and beside one connection that
//! continuously writes and reads 20 MiB values.
//!
//! ```text
//! load core    client (real-time): a GET every 200 us, timed             server core
//!              stream (lower priority): SET 20 MiB, GET 20 MiB, ...
//! ```
//!
//! The client sends on a schedule (see `client`). Both share the load's core; the stream works in small pieces at a
//! lower priority, so the client waits for at most one of them.

mod defragmenter;

use super::{Bench, Common, load, progress_bar};
use crate::client::Target;
use crate::open_loop::{OpenLoopClient, Times, histogram};
use crate::os;
use crate::protocol::{Dialect, Shape, describe};
use crate::report::{Goal, Report, Table, count, short};
use crate::statistics::Spread;
use crate::subject::{Kind, Start, Subject};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SHAPE: Shape = Shape { key_bytes: 24, value_bytes: 256 };
const LARGE: Shape = Shape { key_bytes: 24, value_bytes: 20 << 20 };
const ITEMS: u32 = 100_000;
/// First of the large items, which are overwritten in turn; numbered above the small ones.
const LARGE_FIRST: u32 = 90_000_000;
const LARGE_ITEMS: u32 = 4;
const MEMORY_BYTES: u64 = 4 << 30;
pub(super) const PROBE_CONNECTIONS: usize = 50;
const PROBE_INTERVAL: Duration = Duration::from_micros(200);
/// Bytes that the stream passes to the kernel at once, which bounds how long the client waits for its core.
pub(super) const STREAM_PIECE_BYTES: usize = 16 * 1024;
/// Below the load's priority, so that the stream yields to the client if real-time priority is refused.
pub(super) const STREAM_NICE: i32 = 0;
const RATIO_MAX: f64 = 3.0;

/// Options of `lab latency`.
#[derive(Args, Debug)]
pub struct LatencyArgs {
    #[command(flatten)]
    common: Common,
    /// Measure while the defragmenter works instead, on both item heaps and in both kinds of bucket
    #[arg(long)]
    defragmenter: bool,
    /// Where --defragmenter keeps files of persistent buckets; should be on a disk [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Rounds of "alone" and "beside" in turn [default: 2 quick, 5 full]; starts of each kind of bucket with
    /// --defragmenter [default: 1 quick, 5 full]
    #[arg(long)]
    rounds: Option<u32>,
    /// Seconds of each [default: 6 quick, 15 full; with --defragmenter 2 and 4, and half as long of load]
    #[arg(long)]
    seconds: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
struct Quantiles {
    requests: u64,
    median_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Findings {
    subject: Kind,
    alone: Quantiles,
    beside: Quantiles,
    p999_us_alone: Spread,
    p999_us_beside: Spread,
    ratio: f64,
    stream_mib_per_second: f64,
    stream_values: u64,
}

/// Runs the experiment.
pub fn run(arguments: &LatencyArgs) -> Result<Report> {
    if arguments.defragmenter {
        return defragmenter::run(arguments);
    }
    let quick = arguments.common.quick;
    let bench = Bench::set_up(&arguments.common, false)?;
    let mut report = bench.report("latency", &arguments.common)?;
    let rounds = arguments.rounds.unwrap_or(if quick { 2 } else { 5 }).max(1);
    let length = Duration::from_secs(arguments.seconds.unwrap_or(if quick { 6 } else { 15 }));
    report.settings.push(format!(
        "{} items of {} + {} bytes; a GET every {} us over {PROBE_CONNECTIONS} connections; {rounds} rounds of {} s \
        alone and beside the stream; client at {} priority",
        count(ITEMS),
        SHAPE.key_bytes,
        SHAPE.value_bytes,
        PROBE_INTERVAL.as_micros(),
        length.as_secs(),
        probe_priority(),
    ));
    let bar = progress_bar(bench.subjects.len() as u64 * u64::from(rounds));
    let mut findings = Vec::new();
    for subject in &bench.subjects {
        bar.set_message(subject.kind.name());
        let found = examine(&bench, subject, rounds, length, || bar.inc(1))
            .with_context(|| format!("examining {}", subject.kind.name()))?;
        findings.push(found);
    }
    bar.finish_and_clear();
    fill(&mut report, &findings)?;
    report.with_json(arguments.common.json.as_deref())
}

fn examine(
    bench: &Bench,
    subject: &Subject,
    rounds: u32,
    length: Duration,
    mut round_done: impl FnMut(),
) -> Result<Findings> {
    let mut start = Start::new(bench.placement, MEMORY_BYTES);
    start.value_bytes_max = LARGE.value_bytes;
    let server = subject.start(&start)?;
    let dialect = Dialect::new(subject.protocol, SHAPE, 1)?;
    load(&server.target, &dialect, 0, ITEMS)?;
    // Dormouse takes values of 20 MiB on its Couchbase port.
    let large_target = server.couchbase.clone().unwrap_or_else(|| server.target.clone());
    let large = Dialect::new(large_target.protocol, LARGE, 2)?;
    let mut client = OpenLoopClient::new(&server.target, dialect, PROBE_CONNECTIONS, ITEMS)?;
    let (mut alone, mut beside) = (histogram()?, histogram()?);
    let (mut p999_alone, mut p999_beside) = (Vec::new(), Vec::new());
    let (mut stream_bytes, mut stream_values, mut stream_time) = (0, 0, Duration::ZERO);
    for _ in 0..rounds {
        let quiet = probe(&mut client, length)?.gets;
        p999_alone.push(quiet.value_at_quantile(0.999) as f64 / 1e3);
        alone.add(&quiet)?;

        let stop = AtomicBool::new(false);
        let stream_start = Instant::now();
        let (busy, stream) = thread::scope(|scope| {
            let stream = scope.spawn(|| stream(&large_target, &large, &stop));
            thread::sleep(Duration::from_millis(200));
            let busy = probe(&mut client, length);
            stop.store(true, Ordering::Relaxed);
            (busy, stream.join())
        });
        let Ok(stream) = stream else { bail!("the stream panicked") };
        let (moved, values) = stream.context("the stream of large values")?;
        let busy = busy?.gets;
        ensure!(values > 0, "not one large value went through beside the small reads");
        p999_beside.push(busy.value_at_quantile(0.999) as f64 / 1e3);
        beside.add(&busy)?;
        stream_time += stream_start.elapsed();
        stream_bytes += moved;
        stream_values += values;
        round_done();
    }
    server.stop()?;
    let p999_us_alone = Spread::of(&p999_alone).context("no round")?;
    let p999_us_beside = Spread::of(&p999_beside).context("no round")?;
    Ok(Findings {
        subject: subject.kind,
        alone: quantiles(&alone),
        beside: quantiles(&beside),
        ratio: p999_us_beside.median / p999_us_alone.median,
        p999_us_alone,
        p999_us_beside,
        stream_mib_per_second: stream_bytes as f64 / f64::from(1 << 20) / stream_time.as_secs_f64(),
        stream_values,
    })
}

fn quantiles(histogram: &Histogram<u64>) -> Quantiles {
    let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Quantiles {
        requests: histogram.len(),
        median_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: histogram.max() as f64 / 1e3,
    }
}

fn probe_priority() -> &'static str {
    if os::set_realtime().is_ok() && os::set_ordinary().is_ok() {
        "real-time"
    } else {
        "ordinary (real-time was refused: expect noise)"
    }
}

/// Probes at real-time priority if that is allowed.
pub(super) fn probe(client: &mut OpenLoopClient, length: Duration) -> Result<Times> {
    let _without_the_privilege_it_is_noisier = os::set_realtime();
    let result = client.probe(PROBE_INTERVAL, length);
    let _back_to_where_it_was = os::set_ordinary();
    result
}

/// Writes and reads large values until `stop` is set; returns the bytes and the number of values transferred.
fn stream(target: &Target, dialect: &Dialect, stop: &AtomicBool) -> Result<(u64, u64)> {
    os::set_nice(STREAM_NICE)?;
    let mut connection = target.connect()?;
    let mut request = Vec::new();
    let mut piece = vec![0; STREAM_PIECE_BYTES];
    let (mut moved, mut values) = (0, 0);
    for number in (0..).map(|turn| LARGE_FIRST + turn % LARGE_ITEMS) {
        for template in [&dialect.set, &dialect.get] {
            if stop.load(Ordering::Relaxed) {
                return Ok((moved, values));
            }
            request.clear();
            template.write(number, &mut request);
            for part in request.chunks(STREAM_PIECE_BYTES) {
                connection.write_all(part)?;
            }
            let answer = &template.answer;
            let mut seen = 0;
            while seen < answer.length {
                let room = piece.len().min(answer.length - seen);
                let taken = connection.read(piece.get_mut(..room).unwrap_or_default())?;
                ensure!(taken > 0, "the server closed the connection");
                let due = answer.prefix.get(seen..).unwrap_or_default();
                let known = due.len().min(taken);
                let got = piece.get(..taken).unwrap_or_default();
                ensure!(got.get(..known) == due.get(..known), "unexpected {}", describe(got));
                seen += taken;
            }
            moved += dialect.shape.value_bytes as u64;
            values += 1;
        }
    }
    Ok((moved, values))
}

fn fill(report: &mut Report, findings: &[Findings]) -> Result<()> {
    let mut table = Table::new(
        "Microseconds per small GET (p99.9 of a server: median of its rounds)",
        &["server", "", "requests", "median", "p99", "p99.9", "[lowest .. highest]", "max", "stream MiB/s"],
    );
    for found in findings {
        let rows = [
            ("alone", &found.alone, &found.p999_us_alone, "-".to_owned()),
            ("beside", &found.beside, &found.p999_us_beside, short(found.stream_mib_per_second)),
        ];
        for (when, quantiles, p999, stream) in rows {
            table.row(vec![
                found.subject.name().to_owned(),
                when.to_owned(),
                quantiles.requests.to_string(),
                short(quantiles.median_us),
                short(quantiles.p99_us),
                short(p999.median),
                format!("[{} .. {}]", short(p999.low), short(p999.high)),
                short(quantiles.max_us),
                stream,
            ]);
        }
        report.notes.push(format!(
            "{}: p99.9 beside the stream is {} times that alone",
            found.subject.name(),
            short(found.ratio)
        ));
        if found.subject == Kind::Dormouse {
            report.goals.push(Goal::at_most(
                "p99.9 beside 20 MiB values, of alone",
                found.ratio,
                RATIO_MAX,
                "x",
            ));
        }
    }
    report.tables.push(table);
    report.data("findings", &findings)
}
