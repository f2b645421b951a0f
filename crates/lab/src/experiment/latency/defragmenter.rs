//! What the defragmenter costs clients: p99.9 of small reads and writes, and operations per second of server CPU, while
//! it moves items and without it.
//!
//! ```text
//! start    off: fill in random order, delete a half     off | on | off | on ...    read a sample back
//!                                                           each: probe on a schedule, then as much load as fits
//! ```
//!
//! It is switched on and off over HTTP within a start, since two starts of one server differ by more than the effect; a
//! part without it leaves the sparse slabs for the next part with it. Parts are short and many because of persistent
//! buckets: flusher and compaction take from a sixth to a half of the core's time, so two windows differ by up to a
//! half. A part with the defragmenter counts only if it moved items until the end, one without only if it moved none.
//! If its work ends early, the part and its counterpart are discarded; a start with no other parts fails.

use super::{LatencyArgs, PROBE_CONNECTIONS, PROBE_INTERVAL, SHAPE, probe, probe_priority};
use crate::client::{change_bucket, figure, statistics};
use crate::driver::{Driver, Items, Plan, Until};
use crate::experiment::{
    Bench, LOAD_CONNECTIONS, LOAD_DEPTH, Progress, Window, measure, memory_for, progress_bar, settle, verify,
    wait_until_flushed,
};
use crate::open_loop::{OpenLoopClient, Times};
use crate::protocol::{Dialect, Protocol};
use crate::report::{Goal, Report, Table, count, short};
use crate::statistics::{Spread, median};
use crate::storage::{self, Scratch};
use crate::subject::{BUCKET, Kind, Server, Start, Subject};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// 2^n items are written, and half of them deleted.
const QUICK_ITEMS_BITS: u32 = 21;
const ITEMS_BITS: u32 = 22;
const CONNECTIONS: usize = 50;
const DEPTH: usize = 16;
const READS: f64 = 0.2;
const WARM_UP: Duration = Duration::from_millis(300);
/// Longer than the pager waits before it returns freed memory.
const REST: Duration = Duration::from_secs(6);
/// Longest time from switching the defragmenter on to its first move.
const ARMED_TIMEOUT: Duration = Duration::from_secs(5);
const ARMED_LOOK: Duration = Duration::from_millis(5);
const LATENCY_RATIO_MAX: f64 = 1.5;
const THROUGHPUT_RATIO_MIN: f64 = 0.95;

/// A bucket under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Case {
    heap: Kind,
    persistent: bool,
}

const CASES: [Case; 4] = [
    Case { heap: Kind::DormouseSlab, persistent: false },
    Case { heap: Kind::DormouseSlab, persistent: true },
    Case { heap: Kind::DormouseBlock, persistent: false },
    Case { heap: Kind::DormouseBlock, persistent: true },
];

/// Measurements of one start in one state of the defragmenter.
struct Felt {
    times: Times,
    windows: Vec<Window>,
    moved: u64,
    /// Time worked, as reported by the defragmenter.
    work_us: u64,
    seconds: f64,
}

/// [`Felt`] as figures.
#[derive(Clone, Copy, Debug, Serialize)]
struct State {
    get_p999_us: f64,
    set_p999_us: f64,
    get_median_us: f64,
    set_median_us: f64,
    requests_timed: u64,
    per_cpu_second: f64,
    per_second: f64,
    foreign_cores: f64,
    parts: usize,
    items_moved: u64,
    work_us: u64,
    seconds: f64,
}

/// One start.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    #[serde(flatten)]
    case: Case,
    off: State,
    on: State,
}

struct Run {
    items: u32,
    bits: u32,
    turns: u32,
    probe: Duration,
    window: Duration,
}

/// Runs it.
pub(super) fn run(arguments: &LatencyArgs) -> Result<Report> {
    let quick = arguments.common.quick;
    let mut bench = Bench::set_up(&arguments.common, false)?;
    bench.subjects.retain(|subject| subject.kind == Kind::Dormouse);
    let subject = bench.subjects.first().context("nothing to measure: peers have no such switch")?.clone();
    let mut report = bench.report("latency, defragmenter", &arguments.common)?;
    let starts = arguments.rounds.unwrap_or(if quick { 1 } else { 5 }).max(1);
    let bits = if quick { QUICK_ITEMS_BITS } else { ITEMS_BITS };
    let seconds = Duration::from_secs(arguments.seconds.unwrap_or(if quick { 2 } else { 4 }).max(1));
    let turns = if quick { 4 } else { 8 };
    let part = 2 * seconds / turns;
    let run = Run { items: 1 << bits, bits, turns, probe: part, window: part };
    let scratch = Scratch::new(arguments.directory.as_deref())?;
    report.settings.push(format!(
        "{} items of {} + {} bytes in random order, a random half of them deleted; {starts} starts of each bucket; {} \
        times without and \
         with the defragmenter in each, {} ms of probes and {} ms of load each; files on {}",
        count(run.items),
        SHAPE.key_bytes,
        SHAPE.value_bytes,
        run.turns,
        run.probe.as_millis(),
        run.window.as_millis(),
        storage::file_system(&scratch.path)
    ));
    report.settings.push(format!(
        "probes: a GET or a SET in turn every {} us over {PROBE_CONNECTIONS} connections, client at {} priority; load: \
        {CONNECTIONS} \
         connections, batches of {DEPTH}, 20 % GET, 80 % SET",
        PROBE_INTERVAL.as_micros(),
        probe_priority()
    ));
    let bar = progress_bar(u64::from(starts) * CASES.len() as u64);
    let mut samples = Vec::new();
    for turn in 0..starts {
        for case in CASES {
            let name = case.name();
            let data = Scratch::new(Some(&scratch.path))?;
            let subject = Subject { kind: case.heap, ..subject.clone() };
            let mut start = Start::new(bench.placement, memory_for(run.items, SHAPE));
            start.durable = case.persistent;
            start.data = Some(data.path.clone());
            bar.set_message(name.clone());
            let mut server = subject.start(&start)?;
            let (off, on) = run
                .examine(&subject, &mut server, case.persistent, turn % 2 == 1, &bar)
                .with_context(|| format!("examining {name}"))?;
            server.stop()?;
            samples.push(Sample { case, off, on });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    fill(&mut report, &samples)?;
    report.with_json(arguments.common.json.as_deref())
}

impl Case {
    fn name(self) -> String {
        let heap = if self.heap == Kind::DormouseSlab { "slab" } else { "block" };
        format!("{heap} {}", if self.persistent { "persistent" } else { "ephemeral" })
    }
}

impl Run {
    /// Measures without and with the defragmenter; with `on_first`, it begins with the latter.
    fn examine(
        &self,
        subject: &Subject,
        server: &mut Server,
        persistent: bool,
        on_first: bool,
        bar: &Progress,
    ) -> Result<(State, State)> {
        let console = server.console.context("a server without an HTTP port")?;
        let memcached = server.memcached.context("a server without a memcached port")?;
        change_bucket(console, BUCKET, "defragmenter=off")?;
        let dialect = Dialect::new(subject.protocol, SHAPE, 1)?;
        let kept = self.items / 2;
        let mut fill = Driver::new(&server.target, dialect.clone(), LOAD_CONNECTIONS, 1)?;
        let plan = Plan { items: Items::Shuffled(self.bits), reads: 0.0, depth: LOAD_DEPTH };
        fill.run(plan, Until::End, |_| {}).context("filling")?;
        let target = crate::client::Target {
            address: memcached,
            protocol: Protocol::MemcachedBinary,
            bucket: BUCKET.to_owned(),
            tls: None,
        };
        let mut deleter = Driver::new(&target, Dialect::deleting(SHAPE, 1)?, LOAD_CONNECTIONS, 1)?;
        let plan = Plan { items: Items::Sequence(kept, self.items), reads: 0.0, depth: LOAD_DEPTH };
        deleter.run(plan, Until::End, |_| {}).context("deleting a half")?;
        if persistent {
            wait_until_flushed(server)?;
        }
        settle(bar, REST);
        let mut client = OpenLoopClient::new(&server.target, dialect.clone(), PROBE_CONNECTIONS, kept)?;
        client.set_reads(0.5);
        let mut driver = Driver::new(&server.target, dialect.clone(), CONNECTIONS, 1)?;
        let plan = Plan { items: Items::Uniform(kept), reads: READS, depth: DEPTH };
        measure(&mut driver, server, plan, WARM_UP)?;
        let mut load = Load { console, memcached, server, client, driver, plan };
        let (mut off, mut on) = (Felt::nothing()?, Felt::nothing()?);
        for turn in 0..self.turns {
            bar.set_message(format!("off and on, {} of {}", turn + 1, self.turns));
            let Some((without, with)) = self.turn(&mut load, on_first)? else { break };
            off.add(without)?;
            on.add(with)?;
        }
        ensure!(on.moved > 0, "the defragmenter had nothing to do, or too little for one part");
        verify(&server.target, &dialect, kept).context("after items were moved")?;
        Ok((off.state()?, on.state()?))
    }
}

/// The server and the load of each part.
struct Load<'a> {
    console: SocketAddr,
    memcached: SocketAddr,
    server: &'a mut Server,
    client: OpenLoopClient,
    driver: Driver,
    plan: Plan,
}

impl Run {
    /// One part without the defragmenter and one with it; `None` if it did not have enough to do.
    fn turn(&self, load: &mut Load<'_>, on_first: bool) -> Result<Option<(Felt, Felt)>> {
        let (mut off, mut on) = (Felt::nothing()?, Felt::nothing()?);
        for is_on in [on_first, !on_first] {
            let felt = if is_on { &mut on } else { &mut off };
            let works = switch(load.console, load.memcached, is_on)?
                && felt.part(load.memcached, is_on, |felt| {
                    felt.times = probe(&mut load.client, self.probe)?;
                    Ok(())
                })?
                && felt.part(load.memcached, is_on, |felt| {
                    felt.windows.push(measure(&mut load.driver, load.server, load.plan, self.window)?);
                    Ok(())
                })?;
            if !works {
                return Ok(None);
            }
        }
        Ok(Some((off, on)))
    }
}

/// Switches the defragmenter, and waits until it has moved something; returns false if it does not.
fn switch(console: SocketAddr, memcached: SocketAddr, is_on: bool) -> Result<bool> {
    // A request for `stats memory` makes the server measure memory, which the defragmenter goes by.
    statistics(memcached, "memory")?;
    change_bucket(console, BUCKET, if is_on { "defragmenter=on" } else { "defragmenter=off" })?;
    let (since, before) = (Instant::now(), moved(memcached)?);
    while is_on && moved(memcached)? == before {
        if since.elapsed() > ARMED_TIMEOUT {
            return Ok(false);
        }
        thread::sleep(ARMED_LOOK);
    }
    Ok(true)
}

/// Items it has moved so far.
fn moved(memcached: SocketAddr) -> Result<u64> {
    figure(&statistics(memcached, "defragmenter")?, "defragmented_items")
}

impl Felt {
    fn nothing() -> Result<Self> {
        Ok(Self { times: Times::new()?, windows: Vec::new(), moved: 0, work_us: 0, seconds: 0.0 })
    }

    /// Runs `work` while the defragmenter is on or off; returns false if it finished before the end.
    fn part(
        &mut self,
        memcached: SocketAddr,
        is_on: bool,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<bool> {
        let (since, before) = (Instant::now(), statistics(memcached, "defragmenter")?);
        work(self)?;
        let figures = statistics(memcached, "defragmenter")?;
        self.seconds += since.elapsed().as_secs_f64();
        let grown = |name| anyhow::Ok(figure(&figures, name)? - figure(&before, name)?);
        let moved = grown("defragmented_items")?;
        self.moved += moved;
        self.work_us += grown("defragmenting_us")?;
        let state = figures.get("state").context("the defragmenter does not report its state")?;
        if is_on && state == "disarmed" {
            return Ok(false);
        }
        let wanted = if is_on { "armed" } else { "off" };
        ensure!(
            state == wanted && (moved > 0) == is_on,
            "the defragmenter should have been {wanted}, but was {state}, with {moved} items moved"
        );
        Ok(true)
    }

    fn add(&mut self, other: Self) -> Result<()> {
        self.times.gets.add(&other.times.gets)?;
        self.times.sets.add(&other.times.sets)?;
        self.windows.extend(other.windows);
        self.moved += other.moved;
        self.work_us += other.work_us;
        self.seconds += other.seconds;
        Ok(())
    }

    fn state(&self) -> Result<State> {
        let middle = |figure: fn(&Window) -> f64| {
            median(&self.windows.iter().map(figure).collect::<Vec<_>>()).context("no window")
        };
        let at = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        Ok(State {
            get_p999_us: at(&self.times.gets, 0.999),
            set_p999_us: at(&self.times.sets, 0.999),
            get_median_us: at(&self.times.gets, 0.5),
            set_median_us: at(&self.times.sets, 0.5),
            requests_timed: self.times.gets.len() + self.times.sets.len(),
            per_cpu_second: middle(|window| window.per_cpu_second)?,
            per_second: middle(|window| window.per_second)?,
            foreign_cores: middle(|window| window.foreign_cores)?,
            parts: self.windows.len(),
            items_moved: self.moved,
            work_us: self.work_us,
            seconds: self.seconds,
        })
    }
}

fn fill(report: &mut Report, samples: &[Sample]) -> Result<()> {
    let mut table = Table::new(
        "Beside the defragmenter: medians of the starts",
        &[
            "bucket",
            "defragmenter",
            "GET median us",
            "p99.9",
            "SET median us",
            "p99.9",
            "kop/CPU s",
            "kop/s",
            "parts",
            "items moved",
            "per second",
            "at work",
            "others",
        ],
    );
    let mut ratios = Table::new(
        "With the defragmenter, of without: median of the starts [lowest .. highest]",
        &["bucket", "GET p99.9", "", "SET p99.9", "", "op/CPU s", "", "op/s", ""],
    );
    for case in CASES {
        let own: Vec<&Sample> = samples.iter().filter(|sample| sample.case == case).collect();
        for is_on in [false, true] {
            let state = |sample: &Sample| if is_on { sample.on } else { sample.off };
            let middle = |figure: fn(&State) -> f64| {
                median(&own.iter().map(|sample| figure(&state(sample))).collect::<Vec<_>>())
                    .unwrap_or(f64::NAN)
            };
            table.row(vec![
                case.name(),
                if is_on { "on" } else { "off" }.to_owned(),
                short(middle(|state| state.get_median_us)),
                short(middle(|state| state.get_p999_us)),
                short(middle(|state| state.set_median_us)),
                short(middle(|state| state.set_p999_us)),
                short(middle(|state| state.per_cpu_second / 1e3)),
                short(middle(|state| state.per_second / 1e3)),
                format!("{:.0}", middle(|state| state.parts as f64)),
                format!("{:.0}", middle(|state| state.items_moved as f64)),
                format!("{:.0}", middle(|state| state.items_moved as f64 / state.seconds)),
                format!("{:.1} %", middle(|state| state.work_us as f64 / state.seconds / 1e4)),
                short(middle(|state| state.foreign_cores)),
            ]);
        }
        let figures: [fn(&State) -> f64; 4] = [
            |state| state.get_p999_us,
            |state| state.set_p999_us,
            |state| state.per_cpu_second,
            |state| state.per_second,
        ];
        let mut row = vec![case.name()];
        for (number, figure) in figures.into_iter().enumerate() {
            let of_starts: Vec<f64> =
                own.iter().map(|sample| figure(&sample.on) / figure(&sample.off)).collect();
            let Some(ratio) = Spread::of(&of_starts) else { continue };
            row.push(format!("{:.3}x", ratio.median));
            row.push(format!("[{:.3} .. {:.3}]", ratio.low, ratio.high));
            let name = case.name();
            match number {
                0 | 1 => {
                    let request = if number == 0 { "GET" } else { "SET" };
                    let name = format!("{name}: p99.9 of {request}, of without");
                    report.goals.push(Goal::at_most(name, ratio.median, LATENCY_RATIO_MAX, "x"));
                }
                2 => {
                    let name = format!("{name}: operations per CPU second, of without");
                    report.goals.push(Goal::at_least(name, ratio.median, THROUGHPUT_RATIO_MIN, "x"));
                }
                _ => {}
            }
        }
        ratios.row(row);
    }
    report.tables.push(table);
    report.tables.push(ratios);
    let noisiest = samples
        .iter()
        .flat_map(|sample| [sample.off.foreign_cores, sample.on.foreign_cores])
        .fold(0.0, f64::max);
    if noisiest > 0.1 {
        report
            .notes
            .push(format!("others used up to {noisiest:.2} cores meanwhile: repeat on a quiet machine"));
    }
    report.data("samples", &samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_judged_by_the_middle_start() {
        let state = State {
            get_p999_us: 100.0,
            set_p999_us: 100.0,
            get_median_us: 20.0,
            set_median_us: 20.0,
            requests_timed: 1,
            per_cpu_second: 1e6,
            per_second: 1e6,
            foreign_cores: 0.0,
            parts: 1,
            items_moved: 0,
            work_us: 0,
            seconds: 1.0,
        };
        let on = |get_p999_us, per_cpu_second| State { get_p999_us, per_cpu_second, items_moved: 7, ..state };
        let sample = |on| Sample { case: CASES[0], off: state, on };
        let samples = [sample(on(140.0, 0.96e6)), sample(on(900.0, 0.94e6)), sample(on(130.0, 0.9e6))];
        let mut report = Report::default();
        fill(&mut report, &samples).unwrap();
        let verdicts: Vec<(&str, bool)> =
            report.goals.iter().map(|goal| (goal.reached.as_str(), goal.met)).collect();
        assert_eq!(verdicts, [("1.40x", true), ("1.00x", true), ("0.940x", false)]);
    }
}
