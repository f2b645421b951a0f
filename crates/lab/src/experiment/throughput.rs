//! E1: operations per second of server CPU.
//!
//! Reads and writes of 256-byte values under uniformly random keys, a batch of `depth` requests on each of 50
//! connections. Each start of a server is loaded anew and measured at every mix and depth; a start's figure is the
//! median of its windows, a server's figure is the median of its starts.

mod durable;
mod persistent;

use super::{Bench, Common, Progress, Window, load, measure, progress_bar, start_for, verify, window_length};
use crate::certificate::Certificate;
use crate::driver::{Driver, Items, Plan};
use crate::process;
use crate::protocol::{Dialect, Level, Shape};
use crate::report::{Goal, Report, Table, bytes, count, parse_count, short};
use crate::statistics::{Spread, median};
use crate::subject::{Kind, Start, Subject};
use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

const SHAPE: Shape = Shape { key_bytes: 24, value_bytes: 256 };
/// Longest TLS record.
const TLS_RECORD_BYTES: usize = 16 << 10;
const WARM_UP: Duration = Duration::from_millis(150);
/// Goals at 1M items as multiples of the better of memcached and Redis: reads in per cent, depth, multiple.
const GOALS: [(u32, usize, f64); 6] =
    [(20, 1, 1.25), (20, 16, 4.0), (20, 64, 6.0), (80, 1, 1.2), (80, 16, 3.3), (80, 64, 5.0)];
const GOAL_ITEMS: u32 = 1_000_000;
const LARGE_ITEMS: u32 = 10_000_000;
/// Fraction of its own figure at 1M items that Dormouse must reach at 10M.
const LARGE_SHARE: f64 = 0.8;

/// Options of `lab throughput`.
#[derive(Args, Debug)]
pub struct ThroughputArgs {
    #[command(flatten)]
    common: Common,
    /// Item counts [default: 1M; full runs also 10M]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    items: Vec<u32>,
    /// Requests per batch
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16,64")]
    depths: Vec<usize>,
    /// Share of reads in per cent
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "20,80")]
    reads: Vec<u32>,
    /// Connections of the load
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Starts of each server [default: 3 quick; full 5, 3 above 2M items]
    #[arg(long)]
    starts: Option<u32>,
    /// Measured windows per start, mix and depth [default: 1 quick, 3 full]
    #[arg(long)]
    windows: Option<u32>,
    /// Length of a window in milliseconds [default: 600 quick, 1500 full; with --durability or --persistent 1500 and
    /// 5000]
    #[arg(long)]
    window_ms: Option<u64>,
    /// Measure durable writes of this level instead, compared with Redis with `appendfsync always` and the disk's own
    /// sync rate
    ///
    /// 1, 16 and 256 clients write, each one item at a time. The disk's own rate is that of appending as many bytes as
    /// the clients' items have together and syncing them, in the same directory, before each slice of a window. Times
    /// the clients, since no more can be in one group, it is a bound that no server reaches: a client's next write is
    /// sent only after its previous answer. What group commit on this disk allows is therefore measured with `floor`,
    /// which does nothing else: it appends the requests of a wake-up in one write, syncs it, and answers. Both are in
    /// the table; the goal is 0.9 of the latter.
    #[arg(long, value_enum, value_name = "LEVEL", conflicts_with = "persistent")]
    durability: Option<Level>,
    /// Clients of --durability
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16,256")]
    clients: Vec<usize>,
    /// Measure plain writes to a persistent bucket instead, compared with an ephemeral one
    #[arg(long)]
    persistent: bool,
    /// Measure everything over TLS too (Dormouse and memcached), and its cost relative to the plain figure
    ///
    /// Both servers choose TLS 1.3 with AES-256-GCM for this load. Sessions are established before a window begins.
    #[arg(long, conflicts_with_all = ["durability", "persistent"])]
    tls: bool,
    /// Where --durability and --persistent keep their files; should be on the disk to be measured [default: the
    /// system's temporary directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// One mix and depth at one number of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Setting {
    items: u32,
    reads_percent: u32,
    depth: usize,
    tls: bool,
}

/// Result of one subject at one setting.
#[derive(Clone, Debug, Serialize)]
struct Point {
    subject: Kind,
    #[serde(flatten)]
    setting: Setting,
    /// Operations per second of server CPU, one sample per start.
    per_cpu_second: Spread,
    /// Operations per second, one sample per window.
    per_second: Spread,
    per_second_percentile_90: f64,
    server_share: f64,
    driver_share: f64,
    foreign_cores: f64,
    /// Whose core was the bottleneck.
    limit: &'static str,
    resident_bytes: u64,
    huge_page_bytes: u64,
}

struct Sample {
    subject: Kind,
    setting: Setting,
    windows: Vec<Window>,
    memory: process::Memory,
}

/// Runs the experiment.
pub fn run(arguments: &ThroughputArgs) -> Result<Report> {
    if let Some(level) = arguments.durability {
        return durable::run(arguments, level);
    }
    if arguments.persistent {
        return persistent::run(arguments);
    }
    let quick = arguments.common.quick;
    let bench = Bench::set_up(&arguments.common, true)?;
    let mut report = bench.report("throughput", &arguments.common)?;
    let items = match (&*arguments.items, quick) {
        ([], true) => vec![GOAL_ITEMS],
        ([], false) => vec![GOAL_ITEMS, LARGE_ITEMS],
        (given, _) => given.to_vec(),
    };
    let windows = arguments.windows.unwrap_or(if quick { 1 } else { 3 });
    let window = window_length(arguments.window_ms, quick, 600, 1500);
    let starts_of =
        |items: u32| arguments.starts.unwrap_or(if quick || items > 2_000_000 { 3 } else { 5 }).max(1);
    report.settings.push(format!(
        "{}-byte keys, {}-byte random values, {} connections, {windows} windows of {} ms per start, mix and depth",
        SHAPE.key_bytes,
        SHAPE.value_bytes,
        arguments.connections,
        window.as_millis()
    ));
    let certificate = arguments.tls.then(Certificate::new).transpose()?.map(Rc::new);
    let steps: usize = items.iter().map(|&items| starts_of(items) as usize * bench.subjects.len()).sum();
    let bar = progress_bar(steps as u64);
    let mut samples = Vec::new();
    for &items in &items {
        for start in 0..starts_of(items) {
            let turn = start as usize % bench.subjects.len();
            let (later, first) = bench.subjects.split_at(turn);
            for subject in first.iter().chain(later) {
                let settings = settings(items, arguments);
                let start = Start { certificate: certificate.clone(), ..start_for(&bench, items, SHAPE) };
                let taken = turn_of(subject, &start, &settings, arguments.connections, windows, window, &bar)
                    .with_context(|| format!("measuring {}", subject.kind.name()))?;
                samples.extend(taken);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let points: Vec<Point> = items
        .iter()
        .flat_map(|&items| settings(items, arguments))
        .flat_map(|setting| bench.subjects.iter().map(move |subject| (setting, subject.kind)))
        .filter_map(|(setting, kind)| summarise(setting, kind, &samples))
        .collect();
    fill(&mut report, &points)?;
    report.with_json(arguments.common.json.as_deref())
}

fn settings(items: u32, arguments: &ThroughputArgs) -> Vec<Setting> {
    let transports = if arguments.tls { &[false, true][..] } else { &[false] };
    let mut settings = Vec::new();
    for &reads_percent in &arguments.reads {
        for &depth in &arguments.depths {
            settings.extend(transports.iter().map(|&tls| Setting { items, reads_percent, depth, tls }));
        }
    }
    settings
}

/// One start of one server, measured at all settings.
fn turn_of(
    subject: &Subject,
    start: &Start,
    settings: &[Setting],
    connections: usize,
    windows: u32,
    window: Duration,
    bar: &Progress,
) -> Result<Vec<Sample>> {
    let items = settings.first().map_or(0, |setting| setting.items);
    let name = subject.kind.name();
    let dialect = Dialect::new(subject.protocol, SHAPE, 1)?;
    let mut server = subject.start(start)?;
    if subject.kind != Kind::Floor {
        bar.set_message(format!("{name}: loading {}", count(items)));
        load(&server.target, &dialect, 0, items)?;
        verify(&server.target, &dialect, items)?;
    }
    let mut samples = Vec::new();
    for &setting in settings {
        let (target, over) = match &server.tls {
            Some(_) if setting.tls && !is_answered_over_tls(subject.kind, setting.depth) => continue,
            Some(target) if setting.tls => (target, " over TLS"),
            None if setting.tls => continue,
            _ => (&server.target, ""),
        };
        bar.set_message(format!(
            "{name}: {} items, {} % reads, depth {}{over}",
            count(items),
            setting.reads_percent,
            setting.depth
        ));
        let seed = u64::from(setting.reads_percent) << 32 | setting.depth as u64;
        let mut driver = Driver::new(target, dialect.clone(), connections, seed)?;
        let reads = f64::from(setting.reads_percent) / 100.0;
        let plan = Plan { items: Items::Uniform(items), reads, depth: setting.depth };
        measure(&mut driver, &mut server, plan, WARM_UP)?;
        let windows = (0..windows)
            .map(|_| measure(&mut driver, &mut server, plan, window))
            .collect::<Result<Vec<_>>>()?;
        samples.push(Sample {
            subject: subject.kind,
            setting,
            windows,
            memory: process::memory(server.pid)?,
        });
    }
    if subject.kind != Kind::Floor {
        verify(&server.target, &dialect, items).context("after the load")?;
    }
    server.stop()?;
    Ok(samples)
}

/// False for memcached with batches that may be longer than a TLS record: memcached (1.6.18) waits for its socket while
/// OpenSSL holds the rest of the batch, and never answers.
fn is_answered_over_tls(kind: Kind, depth: usize) -> bool {
    kind != Kind::Memcached || depth * (SHAPE.key_bytes + SHAPE.value_bytes) < TLS_RECORD_BYTES
}

fn summarise(setting: Setting, subject: Kind, samples: &[Sample]) -> Option<Point> {
    let own: Vec<&Sample> =
        samples.iter().filter(|sample| sample.subject == subject && sample.setting == setting).collect();
    let windows: Vec<&Window> = own.iter().flat_map(|sample| &sample.windows).collect();
    let median_of =
        |field: fn(&Window) -> f64| median(&windows.iter().map(|window| field(window)).collect::<Vec<_>>());
    let starts: Vec<f64> = own
        .iter()
        .filter_map(|sample| {
            median(&sample.windows.iter().map(|window| window.per_cpu_second).collect::<Vec<_>>())
        })
        .collect();
    let per_second = Spread::of(&windows.iter().map(|window| window.per_second).collect::<Vec<_>>())?;
    let (server_share, driver_share) =
        (median_of(|window| window.server_share)?, median_of(|window| window.driver_share)?);
    let memory = own.last()?.memory;
    Some(Point {
        subject,
        setting,
        per_cpu_second: Spread::of(&starts)?,
        per_second_percentile_90: per_second.percentile_90(),
        per_second,
        server_share,
        driver_share,
        foreign_cores: median_of(|window| window.foreign_cores)?,
        limit: if server_share.max(driver_share) < 0.9 {
            "neither"
        } else if server_share >= driver_share {
            "server"
        } else {
            "load"
        },
        resident_bytes: memory.resident_bytes,
        huge_page_bytes: memory.huge_page_bytes,
    })
}

fn figure(points: &[Point], kind: Kind, setting: Setting) -> Option<f64> {
    let point = points.iter().find(|point| point.subject == kind && point.setting == setting)?;
    Some(point.per_cpu_second.median)
}

/// The better of memcached and Redis.
fn best_peer(points: &[Point], setting: Setting) -> Option<f64> {
    [Kind::Memcached, Kind::Redis]
        .into_iter()
        .filter_map(|kind| figure(points, kind, setting))
        .max_by(f64::total_cmp)
}

fn fill(report: &mut Report, points: &[Point]) -> Result<()> {
    let mut table = Table::new(
        "Thousand operations per second of server CPU: median of the starts [lowest .. highest]",
        &[
            "server",
            "items",
            "reads",
            "depth",
            "TLS",
            "kop/CPU s",
            "starts",
            "of plain",
            "x best peer",
            "of floor",
            "kop/s",
            "server core",
            "load core",
            "limit",
            "others",
            "RSS",
            "huge pages",
        ],
    );
    for point in points {
        let setting = point.setting;
        let own = point.per_cpu_second.median;
        let ratio = |other: Option<f64>| other.map(|other| own / other);
        let of_peer = ratio(best_peer(points, setting));
        let plain = Setting { tls: false, ..setting };
        let of_plain = ratio(figure(points, point.subject, plain)).filter(|_| setting.tls);
        let of_floor = ratio(figure(points, Kind::Floor, setting));
        table.row(vec![
            point.subject.name().to_owned(),
            count(setting.items),
            format!("{} %", setting.reads_percent),
            setting.depth.to_string(),
            if setting.tls { "1.3" } else { "-" }.to_owned(),
            short(own / 1e3),
            format!(
                "[{} .. {}]",
                short(point.per_cpu_second.low / 1e3),
                short(point.per_cpu_second.high / 1e3)
            ),
            of_plain.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            of_peer.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            of_floor.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            short(point.per_second.median / 1e3),
            format!("{:.2}", point.server_share),
            format!("{:.2}", point.driver_share),
            point.limit.to_owned(),
            format!("{:.2}", point.foreign_cores),
            bytes(point.resident_bytes),
            bytes(point.huge_page_bytes),
        ]);
    }
    report.tables.push(table);
    for (reads_percent, depth, wanted) in GOALS {
        let setting = Setting { items: GOAL_ITEMS, reads_percent, depth, tls: false };
        if let (Some(own), Some(peer)) = (figure(points, Kind::Dormouse, setting), best_peer(points, setting))
        {
            let name = format!("{reads_percent}/{} depth {depth}, of the best peer", 100 - reads_percent);
            report.goals.push(Goal::at_least(name, own / peer, wanted, "x"));
        }
        let large = Setting { items: LARGE_ITEMS, ..setting };
        if let (Some(own), Some(at_large)) =
            (figure(points, Kind::Dormouse, setting), figure(points, Kind::Dormouse, large))
        {
            let name = format!("{reads_percent}/{} depth {depth}, 10M items of 1M", 100 - reads_percent);
            report.goals.push(Goal::at_least(name, at_large / own, LARGE_SHARE, "x"));
        }
    }
    if points
        .iter()
        .any(|point| point.setting.tls && !is_answered_over_tls(Kind::Memcached, point.setting.depth))
    {
        report.notes.push(
            "memcached does not answer batches that are longer than a record of TLS: left out".to_owned(),
        );
    }
    if let Some(noisiest) = points.iter().map(|point| point.foreign_cores).max_by(f64::total_cmp)
        && noisiest > 0.1
    {
        report
            .notes
            .push(format!("others used up to {noisiest:.2} cores meanwhile: repeat on a quiet machine"));
    }
    report.data("points", &points)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(per_cpu_second: f64) -> Window {
        Window {
            requests: 1,
            per_cpu_second,
            per_second: per_cpu_second,
            server_share: 0.97,
            driver_share: 0.5,
            foreign_cores: 0.0,
        }
    }

    #[test]
    fn the_median_of_starts_is_taken_over_medians_of_windows() {
        let setting = Setting { items: GOAL_ITEMS, reads_percent: 20, depth: 16, tls: false };
        let samples: Vec<Sample> =
            [(Kind::Dormouse, [40.0, 41.0, 90.0]), (Kind::Dormouse, [44.0, 45.0, 1.0])]
                .into_iter()
                .map(|(subject, figures)| Sample {
                    subject,
                    setting,
                    windows: figures.map(window).to_vec(),
                    memory: process::Memory::default(),
                })
                .collect();
        let point = summarise(setting, Kind::Dormouse, &samples).unwrap();
        assert_eq!(point.per_cpu_second.samples, [41.0, 44.0]);
        assert_eq!(point.per_cpu_second.median, 42.5);
        assert_eq!(point.limit, "server");
    }

    #[test]
    fn goals_are_judged_against_the_better_peer() {
        let setting = Setting { items: GOAL_ITEMS, reads_percent: 20, depth: 16, tls: false };
        let samples: Vec<Sample> =
            [(Kind::Dormouse, 41.0), (Kind::Memcached, 9.0), (Kind::Redis, 10.0), (Kind::Valkey, 20.0)]
                .into_iter()
                .map(|(subject, figure)| Sample {
                    subject,
                    setting,
                    windows: vec![window(figure)],
                    memory: process::Memory::default(),
                })
                .collect();
        let points: Vec<Point> = [Kind::Dormouse, Kind::Memcached, Kind::Redis, Kind::Valkey]
            .into_iter()
            .filter_map(|kind| summarise(setting, kind, &samples))
            .collect();
        let mut report = Report::default();
        fill(&mut report, &points).unwrap();
        assert_eq!(report.goals.len(), 1);
        assert!(report.goals[0].met && report.goals[0].reached == "4.10x");
    }
}
