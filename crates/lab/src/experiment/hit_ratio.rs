//! Hit ratios of caches with equal resident memory: whose memory is spent on the right items?
//!
//! ```text
//!   start with a limit ── fill with the least popular items ── resident = target? ──no──> correct the limit, again
//!        ── warm up ── measure, resident size sampled meanwhile ── resident = target? ──no──> correct the limit, again
//! ```
//! A limit means something different to each server; resident memory is comparable. So the experiment searches for the
//! limit with which each server's resident size is the target while the trace runs. The traces are the same for all,
//! request by request.

use super::{Bench, Common, progress_bar};
use crate::client::{figure, statistics};
use crate::look_aside::{LookAside, Tally};
use crate::process;
use crate::report::{Goal, Report, Table, bytes, count, short};
use crate::statistics::{Spread, median};
use crate::subject::{Kind, Server, Start, Subject};
use crate::trace::{Pattern, Trace, Zipf};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use std::collections::HashMap;

const KEY_BYTES: usize = 24;
/// Total size of all keys and values, as a multiple of the memory.
const UNIVERSE: f64 = 4.0;
/// Requests before the measured ones, and measured requests, as multiples of the number of items.
const WARM_UP: f64 = 1.5;
const MEASURED: f64 = 1.0;
/// Number of times the resident size is read while a trace is measured.
const SLICES: u64 = 20;
/// Largest relative deviation of the resident size from the target, after the fill and during the measurement.
const FILL_TOLERANCE: f64 = 0.01;
const TOLERANCE: f64 = 0.02;
/// Starts within which a limit must be found.
const ATTEMPTS_MAX: usize = 8;
const FIRST_SEED: u64 = 1;

/// A trace, and the values requested.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    exponent: f64,
    pattern: Pattern,
    value_sizes: &'static [usize],
    in_quick: bool,
    /// Whether a persistent bucket takes part. It keeps all keys in memory, which is negligible only beside large
    /// values.
    persistent: bool,
}

const CASES: [Case; 8] = [
    Case::new("zipf-0.8", 0.8, Pattern::Steady),
    Case { in_quick: true, ..Case::new("zipf-0.99", 0.99, Pattern::Steady) },
    Case::new("zipf-1.2", 1.2, Pattern::Steady),
    Case { value_sizes: &[64, 128, 256, 512, 1024], ..Case::new("sizes", 0.99, Pattern::Steady) },
    Case { in_quick: true, ..Case::new("scans", 0.99, Pattern::Scans(20)) },
    Case::new("drift", 0.99, Pattern::Drift(5)),
    Case { value_sizes: &[1024], persistent: true, ..Case::new("1-kib", 0.99, Pattern::Steady) },
    Case { value_sizes: &[1024], persistent: true, ..Case::new("1-kib-scans", 0.99, Pattern::Scans(20)) },
];

impl Case {
    const fn new(name: &'static str, exponent: f64, pattern: Pattern) -> Self {
        Self { name, exponent, pattern, value_sizes: &[256], in_quick: false, persistent: false }
    }

    fn parse(text: &str) -> Result<Self, String> {
        CASES
            .into_iter()
            .find(|case| case.name == text)
            .ok_or_else(|| format!("`{text}` is none of {}", CASES.map(|case| case.name).join(", ")))
    }

    fn payload_bytes(&self) -> u64 {
        let values: usize = self.value_sizes.iter().sum();
        (KEY_BYTES + values / self.value_sizes.len()) as u64
    }

    /// Number of distinct items requested.
    fn universe(&self, target_bytes: u64) -> u32 {
        (target_bytes as f64 * UNIVERSE / self.payload_bytes() as f64) as u32
    }
}

/// Options of `lab hit-ratio`.
#[derive(Args, Debug)]
#[command(after_help = "Example: dormouse lab hit-ratio --quick --cases scans --peers redis")]
pub struct HitRatioArgs {
    #[command(flatten)]
    common: Common,
    /// Traces: zipf-0.8, zipf-0.99, zipf-1.2, sizes, scans, drift, 1-kib, 1-kib-scans [default: zipf-0.99 and scans if
    /// quick, else all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Case::parse)]
    cases: Vec<Case>,
    /// Resident memory of each server, MiB [default: 128 quick, 512 full]
    #[arg(long, value_name = "MIB")]
    resident: Option<u64>,
    /// Number of runs, each with a different random seed [default: 1 quick, 3 full]
    #[arg(long)]
    seeds: Option<u64>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A server with a policy.
#[derive(Clone)]
struct Contestant<'a> {
    subject: &'a Subject,
    name: String,
    eviction: Option<&'static str>,
    persistent: bool,
}

impl Contestant<'_> {
    fn is_dormouse(&self) -> bool {
        self.subject.kind.is_dormouse()
    }
}

fn contestants(subjects: &[Subject]) -> Vec<Contestant<'_>> {
    let mut all = Vec::new();
    for subject in subjects {
        let policies: &[(Option<&'static str>, bool)] = match subject.kind {
            Kind::Redis | Kind::Valkey => &[(Some("allkeys-lru"), false), (Some("allkeys-lfu"), false)],
            Kind::Dormouse => &[(None, false), (None, true)],
            _ => &[(None, false)],
        };
        for &(eviction, persistent) in policies {
            let suffix = eviction.or(persistent.then_some("persistent"));
            let name =
                [Some(subject.kind.name()), suffix].into_iter().flatten().collect::<Vec<_>>().join(" ");
            all.push(Contestant { subject, name, eviction, persistent });
        }
    }
    all
}

/// Result of one server on one trace.
#[derive(Clone, Debug, Serialize)]
struct Point {
    case: &'static str,
    server: String,
    seed: u64,
    /// Fraction of the reads answered from memory.
    hit_ratio: f64,
    resident_bytes: f64,
    limit_bytes: u64,
    reads: u64,
    hits: u64,
    /// Hits that had to be read from disk.
    fetched: u64,
    /// Writes that were refused.
    refused: u64,
    starts: usize,
}

/// Runs the experiment.
pub fn run(arguments: &HitRatioArgs) -> Result<Report> {
    let quick = arguments.common.quick;
    let bench = Bench::set_up(&arguments.common, false)?;
    let mut report = bench.report("hit-ratio", &arguments.common)?;
    let cases: Vec<Case> = match &*arguments.cases {
        [] => CASES.into_iter().filter(|case| case.in_quick || !quick).collect(),
        given => given.to_vec(),
    };
    let target_bytes = arguments.resident.unwrap_or(if quick { 128 } else { 512 }) << 20;
    let seeds = arguments.seeds.unwrap_or(if quick { 1 } else { 3 });
    let contestants = contestants(&bench.subjects);
    report.settings.push(format!(
        "{} resident each, within {} %; keys of {KEY_BYTES} bytes; the items together are {UNIVERSE} times the \
        memory; {seeds} seeds",
        bytes(target_bytes),
        TOLERANCE * 100.0
    ));
    report.settings.push(format!(
        "requests before the measured ones {WARM_UP} per item, measured {MEASURED} per item; a miss is followed by a \
        write"
    ));
    let mut points = Vec::new();
    let mut limits = HashMap::new();
    let bar = progress_bar(cases.len() as u64 * seeds * contestants.len() as u64);
    for case in &cases {
        let zipf = Zipf::new(case.universe(target_bytes), case.exponent);
        for seed in FIRST_SEED..FIRST_SEED + seeds {
            for contestant in contestants.iter().filter(|one| case.persistent || !one.persistent) {
                bar.set_message(format!("{}: {}", case.name, contestant.name));
                let limit = limits.entry((case.name, contestant.name.clone())).or_insert(target_bytes);
                let trial = Trial { bench: &bench, contestant, case, zipf: &zipf, seed, target_bytes };
                let point = trial.run(limit);
                points.push(point.with_context(|| format!("{} on {}", contestant.name, case.name))?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    for case in &cases {
        add_tables(&mut report, case, &points, &contestants, target_bytes);
    }
    report.data("points", &points)?;
    report.with_json(arguments.common.json.as_deref())
}

/// One server, one trace, one seed.
struct Trial<'a> {
    bench: &'a Bench,
    contestant: &'a Contestant<'a>,
    case: &'a Case,
    zipf: &'a Zipf,
    seed: u64,
    target_bytes: u64,
}

impl Trial<'_> {
    /// Runs until the resident size is on target, and stores the limit that achieved it.
    fn run(&self, limit: &mut u64) -> Result<Point> {
        for starts in 1.. {
            let mut server = self.start(*limit)?;
            let empty = resident(&server)?;
            let mut client = LookAside::new(&server.target, KEY_BYTES, self.case.value_sizes, self.seed)?;
            self.fill(&mut client)?;
            let filled = resident(&server)?;
            if starts < ATTEMPTS_MAX && !self.is_near(filled, FILL_TOLERANCE) && self.seed == FIRST_SEED {
                *limit = self.corrected(*limit, empty, filled)?;
                continue;
            }
            let mut point = self.measure(&mut server, &mut client)?;
            (point.limit_bytes, point.starts) = (*limit, starts);
            if starts < ATTEMPTS_MAX && !self.is_near(point.resident_bytes, TOLERANCE) {
                *limit = self.corrected(*limit, empty, point.resident_bytes)?;
                continue;
            }
            server.stop()?;
            return Ok(point);
        }
        unreachable!("the last attempt counts")
    }

    fn start(&self, limit: u64) -> Result<Server> {
        let mut start = Start::new(self.bench.placement, limit);
        start.durable = self.contestant.persistent;
        start.eviction = self.contestant.eviction;
        self.contestant.subject.start(&start)
    }

    fn is_near(&self, resident_bytes: f64, tolerance: f64) -> bool {
        (resident_bytes / self.target_bytes as f64 - 1.0).abs() <= tolerance
    }

    /// A corrected limit: what exceeds the empty server's size is proportional to the limit.
    fn corrected(&self, limit: u64, empty: f64, reached: f64) -> Result<u64> {
        ensure!(empty < self.target_bytes as f64, "it already takes {} when empty", bytes(empty as u64));
        ensure!(reached > empty, "it has not grown");
        Ok((limit as f64 * (self.target_bytes as f64 - empty) / (reached - empty)) as u64)
    }

    /// Writes the least popular items until the memory is certainly full.
    fn fill(&self, client: &mut LookAside) -> Result<()> {
        let universe = self.case.universe(self.target_bytes);
        let items = (self.target_bytes / self.case.payload_bytes()) as u32;
        let mut item = universe - items.min(universe);
        client.run(u64::from(items), || {
            item += 1;
            item - 1
        })?;
        Ok(())
    }

    fn measure(&self, server: &mut Server, client: &mut LookAside) -> Result<Point> {
        let mut trace = Trace::new(self.zipf, self.case.pattern, self.seed);
        let requests = |multiple| (f64::from(self.case.universe(self.target_bytes)) * multiple) as u64;
        client.run(requests(WARM_UP), || trace.next())?;
        let fetched_before = self.fetched(server)?;
        let (mut tally, mut resident_bytes) = (Tally::default(), 0.0);
        for _ in 0..SLICES {
            tally += client.run(requests(MEASURED) / SLICES, || trace.next())?;
            resident_bytes += resident(server)? / SLICES as f64;
        }
        server.ensure_alive()?;
        let fetched = self.fetched(server)? - fetched_before;
        Ok(Point {
            case: self.case.name,
            server: self.contestant.name.clone(),
            seed: self.seed,
            hit_ratio: tally.hits.saturating_sub(fetched) as f64 / tally.reads as f64,
            resident_bytes,
            limit_bytes: 0,
            reads: tally.reads,
            hits: tally.hits,
            fetched,
            refused: tally.refused,
            starts: 0,
        })
    }

    /// Values read from disk so far.
    fn fetched(&self, server: &Server) -> Result<u64> {
        if !self.contestant.persistent {
            return Ok(0);
        }
        let address = server.memcached.context("a server without a memcached port")?;
        figure(&statistics(address, "persistence")?, "fetched_values")
    }
}

fn resident(server: &Server) -> Result<f64> {
    Ok(process::memory(server.pid)?.resident_bytes as f64)
}

fn add_tables(
    report: &mut Report,
    case: &Case,
    points: &[Point],
    contestants: &[Contestant<'_>],
    target_bytes: u64,
) {
    let of =
        |name: &str| points.iter().filter(|point| point.case == case.name && point.server == name).collect();
    let rows: Vec<(&Contestant<'_>, Vec<&Point>, Spread)> = contestants
        .iter()
        .filter_map(|contestant| {
            let own: Vec<&Point> = of(&contestant.name);
            let ratios: Vec<f64> = own.iter().map(|point| point.hit_ratio * 100.0).collect();
            Some((contestant, own, Spread::of(&ratios)?))
        })
        .collect();
    let best = rows
        .iter()
        .filter(|(contestant, ..)| !contestant.is_dormouse())
        .max_by(|(.., one), (.., other)| one.median.total_cmp(&other.median))
        .map(|(contestant, _, ratio)| (contestant.name.clone(), ratio.median));
    let mut table = Table::new(
        format!(
            "{}: {} items of {KEY_BYTES} + {:?} bytes",
            case.name,
            count(case.universe(target_bytes)),
            case.value_sizes
        ),
        &["server", "hit ratio %", "low", "high", "over best peer", "RSS", "limit", "fetched", "refused"],
    );
    for (contestant, own, ratio) in &rows {
        let middle = |of: fn(&Point) -> f64| {
            median(&own.iter().map(|point| of(point)).collect::<Vec<_>>()).unwrap_or_default()
        };
        let over = best.as_ref().map_or(f64::NAN, |(_, best)| ratio.median - best);
        table.row(vec![
            contestant.name.clone(),
            format!("{:.2}", ratio.median),
            format!("{:.2}", ratio.low),
            format!("{:.2}", ratio.high),
            format!("{over:+.2}"),
            bytes(middle(|point| point.resident_bytes) as u64),
            bytes(middle(|point| point.limit_bytes as f64) as u64),
            short(middle(|point| point.fetched as f64)),
            short(middle(|point| point.refused as f64)),
        ]);
    }
    report.tables.push(table);
    let missed = |point: &Point| (point.resident_bytes / target_bytes as f64 - 1.0).abs() * 100.0;
    let worst =
        rows.iter().flat_map(|(_, own, _)| own.iter().map(|point| missed(point))).max_by(f64::total_cmp);
    if let Some(worst) = worst {
        let name = format!("{}: resident memory off the target", case.name);
        report.goals.push(Goal::at_most(name, worst, TOLERANCE * 100.0, " %"));
    }
    for (contestant, _, ratio) in rows.iter().filter(|(contestant, ..)| contestant.is_dormouse()) {
        if let Some((peer, best)) = &best {
            let name = format!("{}: hit ratio of {}, as good as {peer}", case.name, contestant.name);
            report.goals.push(Goal::at_least(name, ratio.median, *best, " %"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(server: &str, seed: u64, hit_ratio: f64) -> Point {
        Point {
            case: CASES[1].name,
            server: server.to_owned(),
            seed,
            hit_ratio,
            resident_bytes: 1000.0,
            limit_bytes: 900,
            reads: 100,
            hits: 0,
            fetched: 0,
            refused: 0,
            starts: 1,
        }
    }

    #[test]
    fn judged_against_the_best_policy_of_any_peer() {
        let subjects: Vec<Subject> = [Kind::Dormouse, Kind::Redis]
            .into_iter()
            .map(|kind| {
                let mut subject = Subject::peer("floor").unwrap().unwrap();
                subject.kind = kind;
                subject
            })
            .collect();
        let contestants = contestants(&subjects);
        let names: Vec<&str> = contestants.iter().map(|contestant| &*contestant.name).collect();
        assert_eq!(names, ["dormouse", "dormouse persistent", "redis allkeys-lru", "redis allkeys-lfu"]);
        let points = [
            point("dormouse", 1, 0.70),
            point("dormouse", 2, 0.72),
            point("redis allkeys-lru", 1, 0.60),
            point("redis allkeys-lfu", 1, 0.715),
        ];
        let mut report = Report::default();
        add_tables(&mut report, &CASES[1], &points, &contestants, 1010);
        let verdicts: Vec<(bool, &str)> =
            report.goals.iter().map(|goal| (goal.met, goal.reached.as_str())).collect();
        assert_eq!(verdicts, [(true, "0.990 %"), (false, "71.0 %")]);
    }
}
