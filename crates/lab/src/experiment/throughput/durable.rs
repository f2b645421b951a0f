//! Durable writes: how close group commit comes to what the disk allows.
//!
//! ```text
//!   disk x clients   syncs per second of appends as long as a whole group, times the clients: all of them in each group
//!   floor            a server that does nothing but group commit, driven alike: what is allowed
//!   dormouse, redis  the subjects, each on files of its own in the same directory
//! ```
//! All servers run at the same time and are driven in turn, in short slices, each preceded by a slice of the disk
//! alone: a disk's speed changes from one second to the next.

use super::{SHAPE, ThroughputArgs, WARM_UP};
use crate::client::{figure, statistics};
use crate::driver::{Driver, Items, Plan};
use crate::experiment::{Bench, Window, measure, memory_for, progress_bar, window_length};
use crate::protocol::{Dialect, Level, Protocol};
use crate::report::{Goal, Report, Table, count, short};
use crate::statistics::{Spread, median};
use crate::storage::{self, Scratch, sync_rate};
use crate::subject::{Kind, Server, Start, Subject};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Items that are overwritten repeatedly.
const ITEMS: u32 = 100_000;
/// Approximate bytes that a log needs per item beyond key and value: the disk's own rate is measured with appends of
/// that length.
const RECORD_OVERHEAD_BYTES: usize = 40;
/// Slices of a window: subjects and the disk alone take turns this often.
const SLICES: u32 = 10;
/// The disk's own rate is measured before each slice, for the slice's length divided by this.
const PROBE_SHARE: u32 = 3;
/// Fraction of what group commit on the disk allows that must be reached.
const SHARE_MIN: f64 = 0.9;

/// One window of one subject.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    subject: Kind,
    clients: usize,
    #[serde(flatten)]
    window: Window,
    latency_p50_us: u64,
    latency_p99_us: u64,
    /// The disk's own rate around this window.
    syncs_per_second: f64,
    /// Writes per commit, if the subject reports it.
    group: Option<f64>,
}

/// Result of a subject with this number of clients.
#[derive(Clone, Debug, Serialize)]
struct Point {
    subject: Kind,
    clients: usize,
    per_second: Spread,
    per_cpu_second: f64,
    latency_p50_us: f64,
    latency_p99_us: f64,
    syncs_per_second: f64,
    /// Fraction of the disk's own rate times the clients.
    of_disk: f64,
    group: Option<f64>,
    foreign_cores: f64,
}

/// Runs it.
pub(super) fn run(arguments: &ThroughputArgs, level: Level) -> Result<Report> {
    let quick = arguments.common.quick;
    let mut bench = Bench::set_up(&arguments.common, true)?;
    bench.subjects.retain(|subject| subject.kind != Kind::Memcached);
    for subject in bench.subjects.iter_mut().filter(|subject| subject.kind == Kind::Dormouse) {
        subject.protocol = Protocol::Couchbase;
    }
    ensure!(!bench.subjects.is_empty(), "nothing to measure: none of the subjects keeps anything");
    let mut report = bench.report("throughput, durable", &arguments.common)?;
    let window = window_length(arguments.window_ms, quick, 1500, 5000);
    let starts = arguments.starts.unwrap_or(if quick { 2 } else { 5 }).max(1);
    let scratch = Scratch::new(arguments.directory.as_deref())?;
    report.settings.push(format!(
        "durable writes only: dormouse {}, redis and valkey appendfsync always, floor syncs each wake-up",
        level.name()
    ));
    report.settings.push(format!(
        "{}-byte keys, {}-byte random values, {} items, one write at a time per client; {starts} starts, windows of \
        {} ms; on {}",
        SHAPE.key_bytes,
        SHAPE.value_bytes,
        count(ITEMS),
        window.as_millis(),
        storage::file_system(&scratch.path)
    ));
    let bar = progress_bar(u64::from(starts) * arguments.clients.len() as u64);
    let mut samples = Vec::new();
    for start in 0..starts {
        let mut turns = bench
            .subjects
            .iter()
            .map(|subject| Turn::start(&bench, subject, level, &arguments.clients, &scratch.path))
            .collect::<Result<Vec<_>>>()?;
        let first = start as usize % turns.len();
        turns.rotate_left(first);
        for &clients in &arguments.clients {
            bar.set_message(format!("{clients} clients"));
            samples.extend(take_turns(&mut turns, clients, window)?);
            bar.inc(1);
        }
        turns.into_iter().try_for_each(|turn| turn.server.stop())?;
    }
    bar.finish_and_clear();
    let of = |clients: usize| bench.subjects.iter().map(move |subject| (clients, subject.kind));
    let points: Vec<Point> = arguments
        .clients
        .iter()
        .flat_map(|&clients| of(clients))
        .filter_map(|(clients, kind)| summarise(clients, kind, &samples))
        .collect();
    fill(&mut report, &points, level)?;
    report.data("level", &level)?;
    report.data("samples", &samples)?;
    report.with_json(arguments.common.json.as_deref())
}

/// One start of one subject.
struct Turn {
    subject: Kind,
    server: Server,
    dialect: Dialect,
    /// Directory of its files; the disk's own rate is measured in the same directory.
    data: Scratch,
}

impl Turn {
    fn start(
        bench: &Bench,
        subject: &Subject,
        level: Level,
        clients: &[usize],
        scratch: &Path,
    ) -> Result<Self> {
        let data = Scratch::new(Some(scratch))?;
        let mut start = Start::new(bench.placement, memory_for(ITEMS, SHAPE));
        start.durable = true;
        start.data = Some(data.path.clone());
        start.connections = clients.iter().copied().max().unwrap_or(1) + 8;
        let dialect = match subject.kind {
            Kind::Dormouse => Dialect::durable(SHAPE, 1, level)?,
            _ => Dialect::new(subject.protocol, SHAPE, 1)?,
        };
        Ok(Self { subject: subject.kind, server: subject.start(&start)?, dialect, data })
    }
}

/// Runs all subjects in turn in short slices, each preceded by a slice of the disk alone: the speed of a shared disk
/// changes from one second to the next. Returns one sample per subject.
fn take_turns(turns: &mut [Turn], clients: usize, window: Duration) -> Result<Vec<Sample>> {
    let group_bytes = clients * (SHAPE.key_bytes + SHAPE.value_bytes + RECORD_OVERHEAD_BYTES);
    let plan = Plan { items: Items::Apart(ITEMS), reads: 0.0, depth: 1 };
    let mut drivers = Vec::new();
    for turn in turns.iter_mut() {
        let mut driver = Driver::new(&turn.server.target, turn.dialect.clone(), clients, clients as u64)?;
        driver.measure_latencies()?;
        measure(&mut driver, &mut turn.server, plan, WARM_UP)
            .with_context(|| format!("measuring {}", turn.subject.name()))?;
        driver.take_latencies();
        drivers.push((driver, commits(&turn.server)?, Vec::new(), Vec::new()));
    }
    for _ in 0..SLICES {
        for (turn, (driver, _, windows, syncs)) in turns.iter_mut().zip(&mut drivers) {
            syncs.push(sync_rate(&turn.data.path, group_bytes, window / SLICES / PROBE_SHARE)?.per_second);
            let taken = measure(driver, &mut turn.server, plan, window / SLICES)
                .with_context(|| format!("measuring {}", turn.subject.name()))?;
            windows.push(taken);
        }
    }
    let mut samples = Vec::new();
    for (turn, (mut driver, commits_before, windows, syncs)) in turns.iter_mut().zip(drivers) {
        let commits_after = commits(&turn.server)?;
        let latencies = driver.take_latencies().context("latencies were not measured")?;
        let window = mean_of(&windows);
        samples.push(Sample {
            subject: turn.subject,
            clients,
            latency_p50_us: latencies.value_at_quantile(0.5),
            latency_p99_us: latencies.value_at_quantile(0.99),
            syncs_per_second: syncs.iter().sum::<f64>() / syncs.len().max(1) as f64,
            group: commits_before
                .zip(commits_after)
                .map(|(before, after)| window.requests as f64 / (after - before).max(1) as f64),
            window,
        });
    }
    Ok(samples)
}

/// Combines slices of equal length into one window.
fn mean_of(slices: &[Window]) -> Window {
    let mean =
        |figure: &dyn Fn(&Window) -> f64| slices.iter().map(figure).sum::<f64>() / slices.len().max(1) as f64;
    let requests: u64 = slices.iter().map(|slice| slice.requests).sum();
    let cpu_seconds: f64 = slices.iter().map(|slice| slice.requests as f64 / slice.per_cpu_second).sum();
    Window {
        requests,
        per_cpu_second: requests as f64 / cpu_seconds,
        per_second: mean(&|slice| slice.per_second),
        server_share: mean(&|slice| slice.server_share),
        driver_share: mean(&|slice| slice.driver_share),
        foreign_cores: mean(&|slice| slice.foreign_cores),
    }
}

/// Number of commits of Dormouse's journals.
fn commits(server: &Server) -> Result<Option<u64>> {
    let Some(address) = server.memcached else { return Ok(None) };
    Ok(Some(figure(&statistics(address, "persistence")?, "journal_commits")?))
}

fn summarise(clients: usize, subject: Kind, samples: &[Sample]) -> Option<Point> {
    let own: Vec<&Sample> =
        samples.iter().filter(|sample| sample.clients == clients && sample.subject == subject).collect();
    let all = |figure: &dyn Fn(&Sample) -> f64| own.iter().map(|sample| figure(sample)).collect::<Vec<_>>();
    let middle = |figure: &dyn Fn(&Sample) -> f64| median(&all(figure));
    Some(Point {
        subject,
        clients,
        per_second: Spread::of(&all(&|sample| sample.window.per_second))?,
        per_cpu_second: middle(&|sample| sample.window.per_cpu_second)?,
        latency_p50_us: middle(&|sample| sample.latency_p50_us as f64)?,
        latency_p99_us: middle(&|sample| sample.latency_p99_us as f64)?,
        syncs_per_second: middle(&|sample| sample.syncs_per_second)?,
        of_disk: middle(&|sample| sample.window.per_second / (sample.syncs_per_second * clients as f64))?,
        group: median(&own.iter().filter_map(|sample| sample.group).collect::<Vec<_>>()),
        foreign_cores: middle(&|sample| sample.window.foreign_cores)?,
    })
}

fn fill(report: &mut Report, points: &[Point], level: Level) -> Result<()> {
    let mut table = Table::new(
        "Durable writes: medians of the starts [lowest .. highest]",
        &[
            "server",
            "clients",
            "writes/s",
            "starts",
            "p50 ms",
            "p99 ms",
            "per commit",
            "disk's syncs/s",
            "of disk x clients",
            "of floor",
            "kop/CPU s",
            "others",
        ],
    );
    let rate = |kind: Kind, clients: usize| {
        let found = points.iter().find(|point| point.subject == kind && point.clients == clients);
        found.map(|point| point.per_second.median)
    };
    for point in points {
        let of_floor = rate(Kind::Floor, point.clients).map(|floor| point.per_second.median / floor);
        table.row(vec![
            point.subject.name().to_owned(),
            point.clients.to_string(),
            short(point.per_second.median),
            format!("[{} .. {}]", short(point.per_second.low), short(point.per_second.high)),
            short(point.latency_p50_us / 1e3),
            short(point.latency_p99_us / 1e3),
            point.group.map_or("-".to_owned(), short),
            short(point.syncs_per_second),
            short(point.of_disk),
            of_floor.map_or("-".to_owned(), short),
            short(point.per_cpu_second / 1e3),
            short(point.foreign_cores),
        ]);
        if let (Kind::Dormouse, Some(share)) = (point.subject, of_floor)
            && level != Level::Majority
        {
            let name = format!("{} clients: of what group commit over this disk allows", point.clients);
            report.goals.push(Goal::at_least(name, share, SHARE_MIN, "x"));
        }
    }
    report.tables.push(table);
    report.notes.push(
        "disk x clients: appends of a whole group's length and nothing else, all clients in each group; floor: a \
        server that only does \
         group commit, which is what is allowed"
            .to_owned(),
    );
    if level == Level::Majority {
        report.notes.push(
            "majority waits for no disk where the chain is this node alone: it is not judged".to_owned(),
        );
    }
    report.data("points", &points)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(subject: Kind, clients: usize, per_second: f64) -> Sample {
        let window = Window {
            requests: 1,
            per_cpu_second: 1.0,
            per_second,
            server_share: 0.1,
            driver_share: 0.1,
            foreign_cores: 0.0,
        };
        Sample {
            subject,
            clients,
            window,
            latency_p50_us: 100,
            latency_p99_us: 200,
            syncs_per_second: 1000.0,
            group: None,
        }
    }

    #[test]
    fn slices_make_one_window() {
        let slice = |per_second: f64, requests: u64, per_cpu_second: f64| Window {
            requests,
            per_cpu_second,
            ..sample(Kind::Dormouse, 1, per_second).window
        };
        let window = mean_of(&[slice(100.0, 10, 10.0), slice(300.0, 30, 10.0)]);
        assert_eq!((window.requests, window.per_second, window.per_cpu_second), (40, 200.0, 10.0));
    }

    #[test]
    fn the_floor_is_what_is_allowed() {
        let samples = [
            sample(Kind::Dormouse, 16, 8000.0),
            sample(Kind::Dormouse, 16, 9000.0),
            sample(Kind::Floor, 16, 10_000.0),
            sample(Kind::Dormouse, 1, 950.0),
            sample(Kind::Floor, 1, 900.0),
        ];
        let points: Vec<Point> =
            [(16, Kind::Dormouse), (16, Kind::Floor), (1, Kind::Dormouse), (1, Kind::Floor)]
                .into_iter()
                .filter_map(|(clients, kind)| summarise(clients, kind, &samples))
                .collect();
        assert!((points[0].of_disk - 8500.0 / 16_000.0).abs() < 1e-9);
        let mut report = Report::default();
        fill(&mut report, &points, Level::PersistToMajority).unwrap();
        let verdicts: Vec<bool> = report.goals.iter().map(|goal| goal.met).collect();
        assert_eq!(verdicts, [false, true]);
        let mut report = Report::default();
        fill(&mut report, &points, Level::Majority).unwrap();
        assert!(report.goals.is_empty() && report.notes.len() == 2);
        assert!(summarise(256, Kind::Dormouse, &samples).is_none());
    }
}
