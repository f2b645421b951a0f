//! Plain writes to a persistent bucket, compared with an ephemeral one: the cost of persistence when no client waits
//! for it.
//!
//! A window ends when everything it wrote is on disk, so it includes the CPU and the time that the flusher spends after
//! the last request. Requests divided by that time is the rate that the disk sustains.

use super::{SHAPE, ThroughputArgs, WARM_UP};
use crate::client::figure;
use crate::driver::{Driver, Items, Plan, Until};
use crate::experiment::{Bench, load, progress_bar, start_for, verify, wait_until_flushed, window_length};
use crate::machine::BusyReading;
use crate::os;
use crate::protocol::Dialect;
use crate::report::{Goal, Report, Table, count, short};
use crate::statistics::{Spread, median};
use crate::storage::{self, Scratch};
use crate::subject::{Kind, Server, Subject};
use anyhow::{Context, Result};
use serde::Serialize;
use std::time::{Duration, Instant};

const QUICK_ITEMS: u32 = 200_000;
const ITEMS: u32 = 1_000_000;
/// Depth, and the fraction of the ephemeral bucket's figure that must be reached.
const GOALS: [(usize, f64); 2] = [(1, 0.85), (16, 0.60)];

/// One window.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    persistent: bool,
    reads_percent: u32,
    depth: usize,
    per_cpu_second: f64,
    /// During the requests.
    per_second: f64,
    /// Until everything was on disk.
    sustained_per_second: f64,
    drain_ms: f64,
    /// Written to the journal until everything was on disk.
    written_mb_per_second: f64,
    commits_per_second: f64,
    /// Items written to the journal per client write; below 1 if keys were written twice between flushes.
    written_share: f64,
    foreign_cores: f64,
}

/// Runs it.
pub(super) fn run(arguments: &ThroughputArgs) -> Result<Report> {
    let quick = arguments.common.quick;
    let mut bench = Bench::set_up(&arguments.common, false)?;
    bench.subjects.retain(|subject| subject.kind == Kind::Dormouse);
    let subject = bench
        .subjects
        .first()
        .context("nothing to measure: this compares two kinds of Dormouse's buckets")?;
    let mut report = bench.report("throughput, persistent", &arguments.common)?;
    let items = arguments.items.first().copied().unwrap_or(if quick { QUICK_ITEMS } else { ITEMS });
    let starts = arguments.starts.unwrap_or(if quick { 2 } else { 5 }).max(1);
    let window = window_length(arguments.window_ms, quick, 1500, 5000);
    let scratch = Scratch::new(arguments.directory.as_deref())?;
    report.settings.push(format!(
        "{}-byte keys, {}-byte random values, {} items, {} connections; {starts} starts of each, windows of {} ms and \
        until all is on \
         disk; on {}",
        SHAPE.key_bytes,
        SHAPE.value_bytes,
        count(items),
        arguments.connections,
        window.as_millis(),
        storage::file_system(&scratch.path)
    ));
    let bar = progress_bar(u64::from(starts) * 2);
    let mut samples = Vec::new();
    for start in 0..starts {
        for turn in 0..2 {
            let persistent = (start + turn) % 2 == 1;
            let name = if persistent { "persistent" } else { "ephemeral" };
            bar.set_message(format!("{name} bucket"));
            let data = Scratch::new(Some(&scratch.path))?;
            let mut options = start_for(&bench, items, SHAPE);
            options.durable = persistent;
            options.data = Some(data.path.clone());
            let mut server = subject.start(&options)?;
            samples.extend(
                measure_all(arguments, subject, &mut server, items, persistent, window)
                    .with_context(|| format!("measuring a {name} bucket"))?,
            );
            server.stop()?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    fill(&mut report, &samples)?;
    report.with_json(arguments.common.json.as_deref())
}

fn measure_all(
    arguments: &ThroughputArgs,
    subject: &Subject,
    server: &mut Server,
    items: u32,
    persistent: bool,
    window: Duration,
) -> Result<Vec<Sample>> {
    let dialect = Dialect::new(subject.protocol, SHAPE, 1)?;
    load(&server.target, &dialect, 0, items)?;
    let mut samples = Vec::new();
    for &reads_percent in &arguments.reads {
        for &depth in &arguments.depths {
            let mut driver =
                Driver::new(&server.target, dialect.clone(), arguments.connections, depth as u64)?;
            let reads = f64::from(reads_percent) / 100.0;
            let plan = Plan { items: Items::Uniform(items), reads, depth };
            driver.run(plan, Until::Elapsed(WARM_UP), |_| {})?;
            let before = if persistent { Some(wait_until_flushed(server)?) } else { None };
            let busy = BusyReading::take();
            let (start, cpu_before) = (Instant::now(), os::process_cpu_ns(server.pid)?);
            let outcome = driver.run(plan, Until::Elapsed(window), |_| {})?;
            let drain = Instant::now();
            let after = if persistent { Some(wait_until_flushed(server)?) } else { None };
            let (drain, wall) = (drain.elapsed(), start.elapsed().as_secs_f64());
            let cpu_ns = (os::process_cpu_ns(server.pid)? - cpu_before).max(1);
            server.ensure_alive()?;
            let requests = outcome.requests as f64;
            let grown = |name: &str| match (&before, &after) {
                (Some(before), Some(after)) => {
                    Ok(figure(after, name)?.saturating_sub(figure(before, name)?) as f64)
                }
                _ => anyhow::Ok(0.0),
            };
            samples.push(Sample {
                persistent,
                reads_percent,
                depth,
                per_cpu_second: requests * 1e9 / cpu_ns as f64,
                per_second: requests * 1e9 / outcome.wall_ns.max(1) as f64,
                sustained_per_second: requests / wall,
                drain_ms: drain.as_secs_f64() * 1e3,
                written_mb_per_second: grown("journal_written_bytes")? / wall / 1e6,
                commits_per_second: grown("journal_commits")? / wall,
                written_share: grown("persisted_items")? / (requests * (1.0 - reads)).max(1.0),
                foreign_cores: busy.foreign_cores(cpu_ns + outcome.driver_cpu_ns),
            });
        }
    }
    verify(&server.target, &dialect, items).context("after the load")?;
    Ok(samples)
}

fn fill(report: &mut Report, samples: &[Sample]) -> Result<()> {
    let mut table = Table::new(
        "Thousand operations per second of server CPU: median of the starts [lowest .. highest]",
        &[
            "bucket",
            "reads",
            "depth",
            "kop/CPU s",
            "starts",
            "of ephemeral",
            "kop/s",
            "kop/s sustained",
            "until on disk ms",
            "journal MB/s",
            "commits/s",
            "written",
            "others",
        ],
    );
    let mut settings: Vec<(u32, usize)> =
        samples.iter().map(|sample| (sample.reads_percent, sample.depth)).collect();
    settings.sort_unstable();
    settings.dedup();
    for (reads_percent, depth) in settings {
        let mut ephemeral = None;
        for persistent in [false, true] {
            let own: Vec<&Sample> = samples
                .iter()
                .filter(|sample| {
                    (sample.persistent, sample.reads_percent, sample.depth)
                        == (persistent, reads_percent, depth)
                })
                .collect();
            let all =
                |figure: &dyn Fn(&Sample) -> f64| own.iter().map(|sample| figure(sample)).collect::<Vec<_>>();
            let middle = |figure: &dyn Fn(&Sample) -> f64| median(&all(figure)).unwrap_or(f64::NAN);
            let Some(rate) = Spread::of(&all(&|sample| sample.per_cpu_second)) else { continue };
            let share = ephemeral.map(|ephemeral: f64| rate.median / ephemeral);
            let only_persistent = |words: String| if persistent { words } else { "-".to_owned() };
            table.row(vec![
                if persistent { "persistent" } else { "ephemeral" }.to_owned(),
                format!("{reads_percent} %"),
                depth.to_string(),
                short(rate.median / 1e3),
                format!("[{} .. {}]", short(rate.low / 1e3), short(rate.high / 1e3)),
                share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
                short(middle(&|sample| sample.per_second / 1e3)),
                short(middle(&|sample| sample.sustained_per_second / 1e3)),
                only_persistent(short(middle(&|sample| sample.drain_ms))),
                only_persistent(short(middle(&|sample| sample.written_mb_per_second))),
                only_persistent(short(middle(&|sample| sample.commits_per_second))),
                only_persistent(short(middle(&|sample| sample.written_share))),
                short(middle(&|sample| sample.foreign_cores)),
            ]);
            if persistent {
                let goal = GOALS.iter().find(|(at, _)| *at == depth);
                if let (Some(share), Some((_, wanted))) = (share, goal) {
                    let name = format!(
                        "{reads_percent}/{} depth {depth}, of an ephemeral bucket",
                        100 - reads_percent
                    );
                    report.goals.push(Goal::at_least(name, share, *wanted, "x"));
                }
            } else {
                ephemeral = Some(rate.median);
            }
        }
    }
    report.tables.push(table);
    report.data("samples", &samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(persistent: bool, depth: usize, per_cpu_second: f64) -> Sample {
        Sample {
            persistent,
            reads_percent: 20,
            depth,
            per_cpu_second,
            per_second: 1.0,
            sustained_per_second: 1.0,
            drain_ms: 1.0,
            written_mb_per_second: 1.0,
            commits_per_second: 1.0,
            written_share: 1.0,
            foreign_cores: 0.0,
        }
    }

    #[test]
    fn shares_are_those_of_the_same_depth() {
        let samples = [
            sample(true, 1, 90.0),
            sample(false, 1, 100.0),
            sample(false, 16, 500.0),
            sample(true, 16, 290.0),
            sample(true, 64, 1.0),
            sample(false, 64, 9.0),
        ];
        let mut report = Report::default();
        fill(&mut report, &samples).unwrap();
        let verdicts: Vec<(&str, bool)> =
            report.goals.iter().map(|goal| (goal.reached.as_str(), goal.met)).collect();
        assert_eq!(verdicts, [("0.900x", true), ("0.580x", false)]);
    }
}
