//! E6: bytes of memory an item costs beyond its key and value.
//!
//! (resident size at rest after the load - resident size of the empty server) / items - key - value. Servers of several
//! shapes rest side by side, as far as memory allows: their resident sizes do not affect each other. The sweep grows
//! one server in twelve steps from 1M to 2M items and rests at each: this shows the worst case of tables that double.
//! Each Dormouse takes part twice, with an ephemeral bucket and with a persistent one, which is clean when measured:
//! everything is on disk.

use super::{
    Bench, Common, Progress, SETTLE, load, memory_for, progress_bar, settle, start_for, verify,
    wait_until_flushed,
};
use crate::machine;
use crate::process::{self, Memory};
use crate::protocol::{Dialect, Shape};
use crate::report::{Goal, Report, Table, bytes, count, parse_count, short};
use crate::subject::{Kind, Server, Subject};
use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SHAPES: [Shape; 6] = [
    Shape { key_bytes: 20, value_bytes: 1 },
    Shape { key_bytes: 20, value_bytes: 100 },
    Shape { key_bytes: 20, value_bytes: 256 },
    Shape { key_bytes: 20, value_bytes: 1024 },
    Shape { key_bytes: 24, value_bytes: 256 },
    Shape { key_bytes: 10, value_bytes: 32 },
];
/// Highest allowed bytes per item beyond key and value, in an ephemeral bucket and in a persistent one.
const BOUNDS: [(Shape, f64, f64); 5] = [
    (Shape { key_bytes: 20, value_bytes: 100 }, 58.0, 50.0),
    (Shape { key_bytes: 20, value_bytes: 256 }, 58.0, 50.0),
    (Shape { key_bytes: 20, value_bytes: 1024 }, 75.0, 75.0),
    (Shape { key_bytes: 24, value_bytes: 256 }, 64.0, 64.0),
    (Shape { key_bytes: 10, value_bytes: 32 }, 52.0, 44.0),
];
/// Shapes at which memcached must need more.
const BELOW_MEMCACHED: [Shape; 3] = [
    Shape { key_bytes: 20, value_bytes: 1 },
    Shape { key_bytes: 20, value_bytes: 100 },
    Shape { key_bytes: 20, value_bytes: 256 },
];
const SWEEP_FROM: u32 = 1_000_000;
const SWEEP_TO: u32 = 2_000_000;
const SWEEP_COUNTS: u32 = 12;
/// Servers may take the available memory divided by this at once.
const MEMORY_SHARE: u64 = 2;
const START_REST: Duration = Duration::from_secs(1);

/// Options of `lab overhead`.
#[derive(Args, Debug)]
pub struct OverheadArgs {
    #[command(flatten)]
    common: Common,
    /// Item counts [default: 1M; full runs also 5M]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    items: Vec<u32>,
    /// Shapes, each KEY+VALUE bytes [default: 20+1,20+100,20+256,20+1024,24+256,10+32]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_shape)]
    shapes: Vec<Shape>,
    /// Sweep twelve counts between 1M and 2M (always in full runs)
    #[arg(long)]
    sweep: bool,
    /// Only the sweep
    #[arg(long)]
    sweep_only: bool,
    /// Directory for the files of persistent buckets [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

fn parse_shape(text: &str) -> Result<Shape, String> {
    let shape = text.split_once('+').and_then(|(key, value)| {
        Some(Shape { key_bytes: key.parse().ok()?, value_bytes: value.parse().ok()? })
    });
    shape.ok_or_else(|| format!("`{text}` is not KEY+VALUE, as 24+256"))
}

fn name(shape: Shape) -> String {
    format!("{}+{}", shape.key_bytes, shape.value_bytes)
}

/// A server, and the kind of bucket that is filled.
#[derive(Clone, Copy)]
struct Case<'a> {
    subject: &'a Subject,
    persistent: bool,
}

fn cases(subjects: &[Subject]) -> Vec<Case<'_>> {
    let cases =
        |subject: &'_ Subject| [false, true].into_iter().take(1 + usize::from(subject.kind.is_dormouse()));
    subjects
        .iter()
        .flat_map(|subject| cases(subject).map(move |persistent| Case { subject, persistent }))
        .collect()
}

fn kind_name(kind: Kind, persistent: bool) -> String {
    if persistent { format!("{}, persistent", kind.name()) } else { kind.name().to_owned() }
}

/// One server at one number of items.
#[derive(Clone, Debug, Serialize)]
struct Point {
    subject: Kind,
    persistent: bool,
    shape: Shape,
    items: u32,
    sweep: bool,
    /// Bytes per item beyond key and value.
    overhead_bytes: f64,
    empty: Memory,
    loaded: Memory,
}

/// A server that is being filled.
struct Filling<'a> {
    case: Case<'a>,
    shape: Shape,
    dialect: Dialect,
    server: Server,
    empty: Memory,
    loaded_items: u32,
}

impl Filling<'_> {
    fn fill_to(&mut self, items: u32) -> Result<()> {
        load(&self.server.target, &self.dialect, self.loaded_items, items)
            .and_then(|()| verify(&self.server.target, &self.dialect, items))
            .with_context(|| format!("{} with {}", self.name(), name(self.shape)))?;
        self.loaded_items = items;
        Ok(())
    }

    fn name(&self) -> String {
        kind_name(self.case.subject.kind, self.case.persistent)
    }

    fn point(&self, sweep: bool) -> Result<Point> {
        let loaded = process::memory(self.server.pid)?;
        let grown = loaded.resident_bytes as f64 - self.empty.resident_bytes as f64;
        Ok(Point {
            subject: self.case.subject.kind,
            persistent: self.case.persistent,
            shape: self.shape,
            items: self.loaded_items,
            sweep,
            overhead_bytes: grown / f64::from(self.loaded_items) - self.shape.payload_bytes() as f64,
            empty: self.empty,
            loaded,
        })
    }
}

/// Runs the experiment.
pub fn run(arguments: &OverheadArgs) -> Result<Report> {
    let quick = arguments.common.quick;
    let bench = Bench::set_up(&arguments.common, false)?;
    let mut report = bench.report("overhead", &arguments.common)?;
    let shapes = if arguments.shapes.is_empty() { SHAPES.to_vec() } else { arguments.shapes.clone() };
    let items = match (&*arguments.items, quick) {
        _ if arguments.sweep_only => vec![],
        ([], true) => vec![1_000_000],
        ([], false) => vec![1_000_000, 5_000_000],
        (given, _) => given.to_vec(),
    };
    report.settings.push(format!(
        "fresh loads, resident size of smaps_rollup after {} s at rest, less that of the empty server; persistent \
        buckets rest from when \
         all is on disk",
        SETTLE.as_secs()
    ));
    let cases = cases(&bench.subjects);
    let directory = arguments.directory.as_deref();
    let mut points = Vec::new();
    let sweep = arguments.sweep || arguments.sweep_only || !quick;
    let all: Vec<(Shape, Case<'_>)> =
        shapes.iter().flat_map(|&shape| cases.iter().map(move |&case| (shape, case))).collect();
    let bar = progress_bar(((items.len() + usize::from(sweep)) * all.len()) as u64);
    for &items in &items {
        for group in groups(&all, items, machine::available_bytes()) {
            points.extend(fill_group(&bench, directory, group, &[items], &bar)?);
        }
    }
    if sweep {
        let counts = sweep_counts();
        for group in groups(&all, SWEEP_TO, machine::available_bytes()) {
            points.extend(fill_group(&bench, directory, group, &counts, &bar)?);
        }
    }
    bar.finish_and_clear();
    fill_report(&mut report, &points, &shapes)?;
    report.with_json(arguments.common.json.as_deref())
}

fn sweep_counts() -> Vec<u32> {
    let steps = u64::from(SWEEP_COUNTS - 1);
    let span = u64::from(SWEEP_TO - SWEEP_FROM);
    (0..=steps).map(|step| SWEEP_FROM + (span * step / steps) as u32).collect()
}

/// Groups of servers that may run side by side in so much memory.
fn groups<T>(all: &[(Shape, T)], items: u32, available_bytes: u64) -> Vec<&[(Shape, T)]> {
    let limit = available_bytes / MEMORY_SHARE;
    let mut groups = Vec::new();
    let mut rest = all;
    while !rest.is_empty() {
        let mut taken = 0;
        let fits = |one: &&(Shape, T)| {
            taken += memory_for(items, one.0) / 3 * 2;
            taken <= limit
        };
        let fitting = rest.iter().take_while(fits).count().max(1);
        let (group, later) = rest.split_at(fitting);
        groups.push(group);
        rest = later;
    }
    groups
}

fn fill_group(
    bench: &Bench,
    directory: Option<&Path>,
    group: &[(Shape, Case<'_>)],
    counts: &[u32],
    bar: &Progress,
) -> Result<Vec<Point>> {
    let most = counts.iter().copied().max().unwrap_or(0);
    let mut fillings = Vec::new();
    for &(shape, case) in group {
        let mut start = start_for(bench, most, shape);
        start.durable = case.persistent;
        start.parent = directory.map(Path::to_owned);
        let server = case.subject.start(&start)?;
        let dialect = Dialect::new(case.subject.protocol, shape, 1)?;
        let empty = Memory::default();
        fillings.push(Filling { case, shape, dialect, server, empty, loaded_items: 0 });
    }
    std::thread::sleep(START_REST);
    for filling in &mut fillings {
        filling.empty = process::memory(filling.server.pid)?;
    }
    let mut points = Vec::new();
    for &items in counts {
        for filling in &mut fillings {
            bar.set_message(format!("{}: {} items of {}", filling.name(), count(items), name(filling.shape)));
            filling.fill_to(items)?;
        }
        for filling in fillings.iter().filter(|filling| filling.case.persistent) {
            wait_until_flushed(&filling.server)?;
        }
        settle(bar, SETTLE);
        for filling in &fillings {
            points.push(filling.point(counts.len() > 1)?);
        }
    }
    for filling in fillings {
        filling.server.stop()?;
    }
    bar.inc(group.len() as u64);
    Ok(points)
}

fn fill_report(report: &mut Report, points: &[Point], shapes: &[Shape]) -> Result<()> {
    let mut table = Table::new(
        "Bytes per item beyond key and value",
        &["server", "key+value", "items", "bytes", "RSS", "peak RSS", "empty", "RSS / payload", "huge pages"],
    );
    let of_shape = |sweep: bool| {
        shapes.iter().flat_map(move |&shape| {
            points.iter().filter(move |point| point.shape == shape && point.sweep == sweep)
        })
    };
    for point in of_shape(false) {
        let payload = u64::from(point.items) * point.shape.payload_bytes();
        table.row(vec![
            kind_name(point.subject, point.persistent),
            name(point.shape),
            count(point.items),
            short(point.overhead_bytes),
            bytes(point.loaded.resident_bytes),
            bytes(point.loaded.peak_bytes),
            bytes(point.empty.resident_bytes),
            format!("{:.2}", point.loaded.resident_bytes as f64 / payload as f64),
            bytes(point.loaded.huge_page_bytes),
        ]);
    }
    if of_shape(false).next().is_some() {
        report.tables.push(table);
    }
    if of_shape(true).next().is_some() {
        report.tables.push(sweep_table(points, shapes));
    }
    judge(report, points);
    report.data("points", &points)
}

fn sweep_table(points: &[Point], shapes: &[Shape]) -> Table {
    let mut table = Table::new(
        format!("The same at {SWEEP_COUNTS} counts between {} and {}", count(SWEEP_FROM), count(SWEEP_TO)),
        &["server", "key+value", "worst", "at items", "best", "at items"],
    );
    let mut kinds = Vec::new();
    for point in points {
        if !kinds.contains(&(point.subject, point.persistent)) {
            kinds.push((point.subject, point.persistent));
        }
    }
    for &shape in shapes {
        for &(kind, persistent) in &kinds {
            let own = || {
                points.iter().filter(|point| {
                    point.sweep
                        && point.shape == shape
                        && (point.subject, point.persistent) == (kind, persistent)
                })
            };
            let order = |one: &&Point, other: &&Point| one.overhead_bytes.total_cmp(&other.overhead_bytes);
            if let (Some(worst), Some(best)) = (own().max_by(order), own().min_by(order)) {
                table.row(vec![
                    kind_name(kind, persistent),
                    name(shape),
                    short(worst.overhead_bytes),
                    worst.items.to_string(),
                    short(best.overhead_bytes),
                    best.items.to_string(),
                ]);
            }
        }
    }
    table
}

fn judge(report: &mut Report, points: &[Point]) {
    for sweep in [false, true] {
        let own =
            || points.iter().filter(move |point| point.sweep == sweep && point.subject == Kind::Dormouse);
        let mut counts: Vec<u32> = own().map(|point| point.items).collect();
        counts.sort_unstable();
        counts.dedup();
        // A sweep is judged by its worst count, a plain load by each count.
        let sets: Vec<Vec<u32>> =
            if sweep { vec![counts] } else { counts.into_iter().map(|items| vec![items]).collect() };
        for set in sets.iter().filter(|set| !set.is_empty()) {
            let at = match **set {
                [items] => count(items),
                _ => format!("worst of {} counts", set.len()),
            };
            let in_set = |shape: Shape, persistent: bool| {
                own().filter(move |point| {
                    (point.shape, point.persistent) == (shape, persistent) && set.contains(&point.items)
                })
            };
            for (shape, ephemeral_bound, persistent_bound) in BOUNDS {
                for (persistent, bound) in [(false, ephemeral_bound), (true, persistent_bound)] {
                    let bytes = in_set(shape, persistent).map(|point| point.overhead_bytes);
                    if let Some(worst) = bytes.max_by(f64::total_cmp) {
                        let kind = if persistent { "persistent" } else { "ephemeral" };
                        let goal = format!("{} at {at}, {kind}", name(shape));
                        report.goals.push(Goal::at_most(goal, worst, bound, " B"));
                    }
                }
            }
            for shape in BELOW_MEMCACHED {
                let nearest = in_set(shape, false)
                    .filter_map(|point| Some((point.overhead_bytes, memcached_at(points, point)?)))
                    .max_by(|one, other| (one.0 - one.1).total_cmp(&(other.0 - other.1)));
                if let Some((reached, memcached)) = nearest {
                    let goal = format!("{} at {at}, below memcached", name(shape));
                    report.goals.push(Goal::at_most(goal, reached, memcached, " B"));
                }
            }
        }
    }
}

fn memcached_at(points: &[Point], like: &Point) -> Option<f64> {
    points
        .iter()
        .find(|point| {
            point.subject == Kind::Memcached
                && (point.shape, point.items, point.sweep) == (like.shape, like.items, like.sweep)
        })
        .map(|point| point.overhead_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(subject: Kind, items: u32, sweep: bool, overhead_bytes: f64) -> Point {
        let shape = BELOW_MEMCACHED[0];
        Point {
            subject,
            persistent: false,
            shape,
            items,
            sweep,
            overhead_bytes,
            empty: Memory::default(),
            loaded: Memory::default(),
        }
    }

    #[test]
    fn sweep_covers_both_ends() {
        let counts = sweep_counts();
        assert_eq!(counts.len(), 12);
        assert_eq!((counts[0], counts[11]), (1_000_000, 2_000_000));
        assert!(counts.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_sweep_is_judged_where_the_peer_is_nearest() {
        let points = [
            point(Kind::Dormouse, 1_000_000, true, 70.0),
            point(Kind::Memcached, 1_000_000, true, 90.0),
            point(Kind::Dormouse, 1_500_000, true, 60.0),
            point(Kind::Memcached, 1_500_000, true, 59.0),
        ];
        let mut report = Report::default();
        judge(&mut report, &points);
        assert_eq!(report.goals.len(), 1);
        assert!(!report.goals[0].met);
        assert_eq!(report.goals[0].reached, "60.0 B");
    }

    #[test]
    fn each_kind_of_bucket_has_its_own_bound() {
        let (shape, ephemeral, persistent) = BOUNDS[0];
        assert!(persistent < ephemeral);
        let point = Point { shape, ..point(Kind::Dormouse, 1_000_000, false, ephemeral) };
        let mut report = Report::default();
        judge(&mut report, &[point.clone(), Point { persistent: true, ..point }]);
        assert_eq!(report.goals.iter().map(|goal| goal.met).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn servers_that_do_not_fit_side_by_side_run_in_turn() {
        let all: Vec<(Shape, usize)> =
            SHAPES.iter().flat_map(|&shape| (0..5).map(move |n| (shape, n))).collect();
        for items in [1_000_000, 5_000_000, 50_000_000] {
            let found = groups(&all, items, 22 << 30);
            assert_eq!(found.concat(), all);
            for group in found.iter().filter(|group| group.len() > 1) {
                let needed: u64 = group.iter().map(|(shape, _)| memory_for(items, *shape) / 3 * 2).sum();
                assert!(needed <= 11 << 30, "{items} items: {} servers", group.len());
            }
        }
        let largest = SHAPES.iter().max_by_key(|shape| shape.payload_bytes()).unwrap();
        assert_eq!(groups(&[(*largest, 0), (*largest, 1)], 5_000_000, 22 << 30).len(), 2);
    }
}
