//! Tables and goals of the experiment.
//!
//! Every ratio compares with the stock allocator that is best for that case and figure, not with a fixed one.

use super::case::Case;
use super::run::Sample;
use crate::ovsdb::subject::{Kind, Subject};
use crate::report::{Goal, Report, Table, bytes, short};
use crate::statistics::Spread;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeSet;

/// Highest allowed CPU per transaction, as a fraction of the best stock allocator's.
const CPU_GOALS: [(Case, f64); 12] = [
    (Case::Update1, 0.40),
    (Case::Update2, 0.40),
    (Case::Insert, 0.40),
    (Case::Update1Mon, 0.60),
    (Case::Update2Mon, 0.60),
    (Case::InsertMon, 0.60),
    (Case::Update1Pipe, 0.20),
    (Case::Update2Pipe, 0.20),
    (Case::InsertPipe, 0.20),
    (Case::Queue, 0.25),
    (Case::SizeOne, 0.16),
    (Case::Monitors100, 0.75),
];
/// Highest allowed resident memory at the end, likewise.
const END_GOALS: [(Case, f64); 2] = [(Case::Update2, 0.25), (Case::Insert, 0.25)];
/// Highest allowed peak of resident memory, likewise.
const PEAK_GOALS: [(Case, f64); 3] = [(Case::SizeOne, 0.25), (Case::SizeEach, 0.25), (Case::Dump100, 0.125)];
/// Longest time a start on a large file may take, likewise.
const STARTUP_GOAL: f64 = 1.0 / 6.0;
/// Longest time a compaction may hold a transaction.
const HOLD_MS_MAX: f64 = 5.0;
/// Memory that may be retained after a table was deleted.
const KEPT_BYTES_MAX: f64 = 20e6;
/// Cases in which builds with different allocators are compared, and how much they may differ.
const SPREAD_CASES: [Case; 5] = [Case::Update1, Case::Update2, Case::Insert, Case::Queue, Case::SizeOne];
const CPU_SPREAD_PERCENT_MAX: f64 = 5.0;
const RESIDENT_SPREAD_PERCENT_MAX: f64 = 10.0;
/// A core counts as saturated from this fraction of its time on.
const EXHAUSTED: f64 = 0.9;
/// Figures are unreliable if other processes used this many cores or more.
const FOREIGN_CORES_MAX: f64 = 0.1;

/// All samples of a case on a subject, summarised.
#[derive(Clone, Debug, Serialize)]
struct Point {
    case: Case,
    subject: String,
    kind: Kind,
    cpu_ns_per_unit: Spread,
    wall_s: f64,
    units_per_s: f64,
    server_share: f64,
    driver_share: f64,
    /// Whose core was saturated.
    limit: &'static str,
    foreign_cores: f64,
    start_bytes: f64,
    end_bytes: f64,
    peak_bytes: f64,
    file_bytes: f64,
    samples: Vec<Sample>,
}

impl Point {
    fn of(case: Case, subject: &Subject, samples: &[Sample]) -> Option<Self> {
        let own: Vec<Sample> = samples
            .iter()
            .filter(|sample| sample.case == case && sample.subject == subject.program.name)
            .cloned()
            .collect();
        let spread =
            |figure: &dyn Fn(&Sample) -> f64| Spread::of(&own.iter().map(figure).collect::<Vec<_>>());
        let median = |figure: &dyn Fn(&Sample) -> f64| spread(figure).map(|spread| spread.median);
        let wall_ns = |sample: &Sample| sample.wall_ns.max(1) as f64;
        let server_share = median(&|sample| sample.cpu_ns as f64 / wall_ns(sample))?;
        let driver_share = median(&|sample| sample.driver_cpu_ns as f64 / wall_ns(sample))?;
        Some(Self {
            case,
            subject: subject.program.name.clone(),
            kind: subject.kind,
            cpu_ns_per_unit: spread(&Sample::cpu_ns_per_unit)?,
            wall_s: median(&|sample| sample.wall_ns as f64 / 1e9)?,
            units_per_s: median(&|sample| sample.units as f64 * 1e9 / wall_ns(sample))?,
            server_share,
            driver_share,
            limit: limit(server_share, driver_share),
            foreign_cores: median(&|sample| sample.foreign_cores)?,
            start_bytes: median(&|sample| sample.start.resident_bytes as f64)?,
            end_bytes: median(&|sample| sample.end.resident_bytes as f64)?,
            peak_bytes: median(&|sample| sample.end.peak_bytes as f64)?,
            file_bytes: median(&|sample| sample.file_bytes as f64)?,
            samples: own,
        })
    }

    /// Median of a figure of the case.
    fn figure(&self, name: &str) -> Option<f64> {
        let own: Vec<f64> =
            self.samples.iter().filter_map(|sample| sample.figures.get(name).copied()).collect();
        Spread::of(&own).map(|spread| spread.median)
    }

    fn figure_text(&self, name: &str, scale: f64) -> String {
        self.figure(name).map_or("-".to_owned(), |value| short(value / scale))
    }

    fn figure_bytes(&self, name: &str) -> String {
        self.figure(name).map_or("-".to_owned(), |value| bytes(value as u64))
    }
}

fn limit(server_share: f64, driver_share: f64) -> &'static str {
    match server_share.max(driver_share) {
        most if most < EXHAUSTED => "neither",
        _ if server_share >= driver_share => "server",
        _ => "load",
    }
}

/// Lowest value of a figure among the stock servers of a case.
fn best_stock(points: &[Point], case: Case, figure: impl Fn(&Point) -> f64) -> Option<f64> {
    points
        .iter()
        .filter(|point| point.case == case && point.kind == Kind::Stock)
        .map(figure)
        .min_by(f64::total_cmp)
}

/// Adds everything to a report.
pub fn fill(report: &mut Report, cases: &[Case], subjects: &[Subject], samples: &[Sample]) -> Result<()> {
    let points: Vec<Point> = cases
        .iter()
        .flat_map(|&case| subjects.iter().filter_map(move |subject| Point::of(case, subject, samples)))
        .collect();
    work_table(report, &points);
    size_table(report, &points);
    stall_table(report, &points);
    startup_table(report, &points);
    delete_table(report, &points);
    notes(report, &points);
    judge(report, &points);
    report.data("points", &points)
}

fn ratio_text(own: f64, best: Option<f64>) -> String {
    best.map_or("-".to_owned(), |best| format!("{:.2}", own / best.max(1e-9)))
}

fn work_table(report: &mut Report, points: &[Point]) {
    let mut table = Table::new(
        "CPU of the server per transaction (queue: per request; size: per row; dump100: per client), and memory: \
        medians",
        &[
            "server",
            "case",
            "us",
            "[lowest .. highest]",
            "x best stock",
            "wall s",
            "per s",
            "server core",
            "load core",
            "limit",
            "others",
            "RSS at end",
            "x",
            "peak RSS",
            "x",
            "file",
        ],
    );
    let shown = |point: &&Point| !matches!(point.case, Case::Compaction | Case::Startup | Case::DeleteAll);
    for point in points.iter().filter(shown) {
        let stock = |figure: fn(&Point) -> f64| best_stock(points, point.case, figure);
        let cpu = &point.cpu_ns_per_unit;
        table.row(vec![
            point.subject.clone(),
            point.case.name().to_owned(),
            short(cpu.median / 1e3),
            format!("[{} .. {}]", short(cpu.low / 1e3), short(cpu.high / 1e3)),
            ratio_text(cpu.median, stock(|point| point.cpu_ns_per_unit.median)),
            short(point.wall_s),
            short(point.units_per_s),
            format!("{:.2}", point.server_share),
            format!("{:.2}", point.driver_share),
            point.limit.to_owned(),
            format!("{:.2}", point.foreign_cores),
            bytes(point.end_bytes as u64),
            ratio_text(point.end_bytes, stock(|point| point.end_bytes)),
            bytes(point.peak_bytes as u64),
            ratio_text(point.peak_bytes, stock(|point| point.peak_bytes)),
            bytes(point.file_bytes as u64),
        ]);
    }
    push(report, table);
}

/// Adds a table unless it is empty.
fn push(report: &mut Report, table: Table) {
    if !table.is_empty() {
        report.tables.push(table);
    }
}

fn size_table(report: &mut Report, points: &[Point]) {
    let mut table =
        Table::new("Size, table by table", &["server", "case", "rows", "us per row", "wall s", "RSS"]);
    for point in points {
        let rows: BTreeSet<u64> = point
            .samples
            .iter()
            .flat_map(|sample| sample.figures.keys())
            .filter_map(|name| name.strip_prefix("rows ")?.split_once(':')?.0.parse().ok())
            .collect();
        for rows in rows {
            table.row(vec![
                point.subject.clone(),
                point.case.name().to_owned(),
                rows.to_string(),
                point.figure_text(&format!("rows {rows}: cpu s"), rows as f64 / 1e6),
                point.figure_text(&format!("rows {rows}: wall s"), 1.0),
                point.figure_bytes(&format!("rows {rows}: resident")),
            ]);
        }
    }
    push(report, table);
}

fn stall_table(report: &mut Report, points: &[Point]) {
    let mut table = Table::new(
        "Compaction: latencies of a client that updates a row per millisecond, in ms, alone and beside it",
        &[
            "server",
            "median",
            "p99.9",
            "worst",
            "beside: median",
            "p99.9",
            "worst",
            "compaction s",
            "own longest hold",
        ],
    );
    for point in points.iter().filter(|point| point.case == Case::Compaction) {
        let ms = |name: &str| point.figure_text(name, 1e3);
        table.row(vec![
            point.subject.clone(),
            ms("quiet median us"),
            ms("quiet p99.9 us"),
            ms("quiet worst us"),
            ms("beside median us"),
            ms("beside p99.9 us"),
            ms("beside worst us"),
            point.figure_text("compaction s", 1.0),
            ms("own longest hold us"),
        ]);
    }
    push(report, table);
}

fn startup_table(report: &mut Report, points: &[Point]) {
    let mut table = Table::new(
        "Start on a large file, to the first answer",
        &[
            "server",
            "s",
            "x best stock",
            "CPU s",
            "RSS before the restart",
            "RSS after it",
            "peak RSS",
            "file",
        ],
    );
    for point in points.iter().filter(|point| point.case == Case::Startup) {
        table.row(vec![
            point.subject.clone(),
            short(point.wall_s),
            ratio_text(point.wall_s, best_stock(points, Case::Startup, |point| point.wall_s)),
            short(point.cpu_ns_per_unit.median / 1e9),
            point.figure_bytes("resident before"),
            bytes(point.end_bytes as u64),
            bytes(point.peak_bytes as u64),
            bytes(point.file_bytes as u64),
        ]);
    }
    push(report, table);
}

fn delete_table(report: &mut Report, points: &[Point]) {
    let mut table = Table::new(
        "Deleting everything: resident size",
        &["server", "empty", "full", "10 s after", "kept", "CPU s", "wall s"],
    );
    for point in points.iter().filter(|point| point.case == Case::DeleteAll) {
        table.row(vec![
            point.subject.clone(),
            bytes(point.start_bytes as u64),
            point.figure_bytes("resident full"),
            bytes(point.end_bytes as u64),
            bytes((point.end_bytes - point.start_bytes).max(0.0) as u64),
            short(point.wall_s * point.server_share),
            short(point.wall_s),
        ]);
    }
    push(report, table);
}

fn notes(report: &mut Report, points: &[Point]) {
    if points.iter().any(|point| point.foreign_cores > FOREIGN_CORES_MAX) {
        report.notes.push(format!(
            "OTHERS USED MORE THAN {FOREIGN_CORES_MAX} CORES IN SOME CASES: repeat them on a quiet machine"
        ));
    }
    let limited: Vec<String> = points
        .iter()
        .filter(|point| point.limit == "load")
        .map(|point| format!("{} on {}", point.case.name(), point.subject))
        .collect();
    if !limited.is_empty() {
        report.notes.push(format!("the load was the limit of wall time, not of CPU: {}", limited.join(", ")));
    }
}

fn judge(report: &mut Report, points: &[Point]) {
    let Some(first) = points.iter().find(|point| point.kind == Kind::Dormouse) else { return };
    let own = |case: Case| points.iter().find(|point| point.case == case && point.subject == first.subject);
    let mut goals = Vec::new();
    let mut part = |cases: &[(Case, f64)], what: &str, figure: &dyn Fn(&Point) -> f64| {
        for &(case, bound) in cases {
            if let (Some(point), Some(best)) = (own(case), best_stock(points, case, figure)) {
                let reached = figure(point) / best.max(1e-9);
                goals.push(Goal::at_most(format!("{}: {what}", case.name()), reached, bound, "x best stock"));
            }
        }
    };
    part(&CPU_GOALS, "CPU", &|point| point.cpu_ns_per_unit.median);
    part(&END_GOALS, "RSS at the end", &|point| point.end_bytes);
    part(&PEAK_GOALS, "peak RSS", &|point| point.peak_bytes);
    part(&[(Case::Startup, STARTUP_GOAL)], "time to the first answer", &|point| point.wall_s);
    if let Some(point) = own(Case::Startup)
        && let Some(before) = point.figure("resident before")
    {
        let name = "startup: RSS after the restart, at most that before";
        goals.push(Goal::at_most(name, point.end_bytes / 1e6, before / 1e6, " MB"));
    }
    if let Some(point) = own(Case::Compaction) {
        let hold = point.figure("own longest hold us").unwrap_or(f64::NAN);
        goals.push(Goal::at_most(
            "compaction: longest hold, by its own clock",
            hold / 1e3,
            HOLD_MS_MAX,
            " ms",
        ));
    }
    if let Some(point) = own(Case::DeleteAll) {
        let kept = (point.end_bytes - point.start_bytes) / 1e6;
        goals.push(Goal::at_most(
            "delete-all: RSS above that of the start",
            kept,
            KEPT_BYTES_MAX / 1e6,
            " MB",
        ));
    }
    report.goals.extend(goals);
    judge_allocators(report, points);
}

/// Judges how much builds of Dormouse with different allocators differ.
fn judge_allocators(report: &mut Report, points: &[Point]) {
    for case in SPREAD_CASES {
        let figures = |figure: fn(&Point) -> f64| -> Vec<f64> {
            points
                .iter()
                .filter(|point| point.case == case && point.kind == Kind::Dormouse)
                .map(figure)
                .collect()
        };
        let name = case.name();
        if let Some(percent) = spread_percent(&figures(|point| point.cpu_ns_per_unit.median)) {
            let goal = format!("{name}: spread of CPU between allocators");
            report.goals.push(Goal::at_most(goal, percent, CPU_SPREAD_PERCENT_MAX, " %"));
        }
        if let Some(percent) = spread_percent(&figures(|point| point.end_bytes)) {
            let goal = format!("{name}: spread of RSS between allocators");
            report.goals.push(Goal::at_most(goal, percent, RESIDENT_SPREAD_PERCENT_MAX, " %"));
        }
    }
}

/// How far the maximum is above the minimum, in per cent; `None` for fewer than two figures.
fn spread_percent(figures: &[f64]) -> Option<f64> {
    let spread = Spread::of(figures).filter(|_| figures.len() > 1)?;
    Some((spread.high / spread.low.max(1e-9) - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Memory;
    use crate::programs::Program;
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    fn subject(name: &str, kind: Kind) -> Subject {
        let (name, path, version) = (name.to_owned(), PathBuf::new(), String::new());
        Subject { program: Program { name, path, preload: None, version }, kind }
    }

    fn sample(case: Case, subject: &str, cpu_ns: u64, resident_mb: u64) -> Sample {
        let memory = |mb: u64| Memory { resident_bytes: mb << 20, peak_bytes: mb << 20, ..Memory::default() };
        Sample {
            case,
            subject: subject.to_owned(),
            units: 10,
            wall_ns: 1000,
            cpu_ns,
            driver_cpu_ns: 100,
            received_bytes: 0,
            foreign_cores: 0.0,
            start: memory(5),
            end: memory(resident_mb),
            file_bytes: 1,
            figures: BTreeMap::new(),
        }
    }

    fn goals(samples: &[Sample], cases: &[Case]) -> Vec<(String, String, bool)> {
        let subjects = [
            subject("dormouse", Kind::Dormouse),
            subject("system", Kind::Dormouse),
            subject("stock", Kind::Stock),
            subject("stock-jemalloc", Kind::Stock),
            subject("floor", Kind::Floor),
        ];
        let mut report = Report::default();
        fill(&mut report, cases, &subjects, samples).unwrap();
        report.goals.into_iter().map(|goal| (goal.name, goal.reached, goal.met)).collect()
    }

    #[test]
    fn each_figure_is_compared_with_the_best_allocator_for_it() {
        let samples = [
            sample(Case::Update2, "dormouse", 300, 30),
            sample(Case::Update2, "stock", 1000, 100),
            sample(Case::Update2, "stock-jemalloc", 500, 200),
            sample(Case::Update2, "floor", 1, 1),
        ];
        let goals = goals(&samples, &[Case::Update2]);
        assert_eq!(goals[0], ("update2: CPU".to_owned(), "0.600x best stock".to_owned(), false));
        assert_eq!(goals[1], ("update2: RSS at the end".to_owned(), "0.300x best stock".to_owned(), false));
        assert_eq!(goals.len(), 2);
    }

    #[test]
    fn the_median_of_the_starts_is_judged() {
        let samples = [
            sample(Case::Update1, "dormouse", 100, 1),
            sample(Case::Update1, "dormouse", 9000, 1),
            sample(Case::Update1, "dormouse", 120, 1),
            sample(Case::Update1, "stock", 400, 1),
        ];
        let goals = goals(&samples, &[Case::Update1]);
        assert_eq!(goals, [("update1: CPU".to_owned(), "0.300x best stock".to_owned(), true)]);
    }

    #[test]
    fn builds_with_other_allocators_are_compared_with_each_other() {
        let samples = [sample(Case::Update1, "dormouse", 100, 10), sample(Case::Update1, "system", 104, 12)];
        let goals = goals(&samples, &[Case::Update1]);
        assert_eq!(goals.len(), 2);
        assert!(goals[0].2 && goals[0].1.starts_with("4.00"), "{goals:?}");
        assert!(!goals[1].2 && goals[1].1.starts_with("20.0"), "{goals:?}");
    }

    #[test]
    fn what_is_kept_of_a_deleted_table_and_how_long_a_compaction_holds() {
        let mut stalled = sample(Case::Compaction, "dormouse", 1, 1);
        stalled.figure("own longest hold us", 6000.0);
        let deleted = sample(Case::DeleteAll, "dormouse", 1, 15);
        let goals = goals(&[stalled, deleted], &[Case::Compaction, Case::DeleteAll]);
        assert_eq!(goals[0].1, "6.00 ms");
        assert!(!goals[0].2 && goals[1].2);
        let silent = [sample(Case::Compaction, "dormouse", 1, 1)];
        assert!(!self::goals(&silent, &[Case::Compaction])[0].2, "who does not tell misses the goal");
    }

    #[test]
    fn whose_core_was_used_up() {
        assert_eq!((limit(0.5, 0.8), limit(0.95, 0.2), limit(0.91, 0.99)), ("neither", "server", "load"));
    }
}
