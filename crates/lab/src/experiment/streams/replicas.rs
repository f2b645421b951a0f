//! Writes that another node copies: what they cost both, and how long durable ones take, beside Redis and Valkey with
//! `WAIT 1`.

use super::follower::seqnos;
use super::{Run, SHAPE, Sizes, couchbase, per_second, rates};
use crate::client::{Target, change_bucket, redis_information};
use crate::driver::{Driver, Items, Plan, Until};
use crate::experiment::{Bench, load, start_for};
use crate::os;
use crate::protocol::{Dialect, Level, Protocol};
use crate::report::{Goal, Report, Table, short};
use crate::statistics::{Spread, median};
use crate::subject::{BUCKET, Kind, Server, Subject};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 50;
const DEPTH: usize = 16;
const CLIENTS: [usize; 3] = [1, 16, 256];
/// Items that are overwritten: so many bits of their numbers.
const ITEMS_BITS: u32 = 17;
const ITEMS: u32 = 1 << ITEMS_BITS;
const POLL: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// A server, and one that copies it.
struct Pair {
    active: Server,
    replica: Server,
    dialect: Dialect,
    target: Target,
    /// Connections that ask both how far they are.
    asking: Option<[TcpStream; 2]>,
}

impl Pair {
    fn start(bench: &Bench, subject: &Subject, level: Option<Level>) -> Result<Self> {
        if !subject.kind.is_dormouse() {
            return Self::start_resp(bench, subject);
        }
        let [active, replica] = [(); 2].map(|()| subject.start(&start_for(bench, ITEMS, SHAPE)));
        let (active, replica) = (active?, replica?);
        let target = couchbase(&active)?;
        let names = [target.address, couchbase(&replica)?.address];
        let topology = format!("%5B%5B%22{}%22%2C%22{}%22%5D%5D", names[0], names[1]);
        let roles = [("state=active", &active), ("state=replica", &replica)];
        for (state, server) in roles {
            let source =
                if server.pid == replica.pid { format!("&source={}", names[0]) } else { String::new() };
            let form = format!("{state}{source}&term=1&topology={topology}");
            let console = server.console.context("a node without HTTP")?;
            change_bucket(console, &format!("{BUCKET}/vbuckets"), &form)?;
        }
        let dialect = match level {
            Some(level) => Dialect::durable(SHAPE, 1, level)?,
            None => Dialect::new(target.protocol, SHAPE, 1)?,
        };
        let asking = Some([target.connect()?, couchbase(&replica)?.connect()?]);
        let mut pair = Self { active, replica, dialect, target, asking };
        load(&pair.target, &Dialect::new(Protocol::Couchbase, SHAPE, 1)?, 0, ITEMS)?;
        pair.wait_equal()?;
        Ok(pair)
    }

    /// Redis or Valkey, whose writes are followed by `WAIT 1 0`.
    fn start_resp(bench: &Bench, subject: &Subject) -> Result<Self> {
        let start = |extra: &[&str]| {
            let extra = extra.iter().map(|&word| word.to_owned()).collect();
            Subject { extra, ..subject.clone() }.start(&start_for(bench, ITEMS, SHAPE))
        };
        let active = start(&["--repl-diskless-sync-delay", "0"])?;
        let replica = start(&["--replicaof", "127.0.0.1", &active.target.address.port().to_string()])?;
        let target = active.target.clone();
        let began = Instant::now();
        // Its replica is there, and has everything.
        while !redis_information(target.address, "replication")?
            .get("slave0")
            .is_some_and(|replica| replica.contains("state=online"))
        {
            ensure!(began.elapsed() < PATIENCE, "{} has no replica", subject.kind.name());
            thread::sleep(POLL);
        }
        let dialect = Dialect::waiting_for_a_replica(SHAPE, 1)?;
        load(&target, &dialect, 0, ITEMS)?;
        Ok(Self { active, replica, dialect, target, asking: None })
    }

    /// Waits until the replica has everything.
    fn wait_equal(&mut self) -> Result<()> {
        let Some(nodes) = &mut self.asking else { return Ok(()) };
        let began = Instant::now();
        loop {
            let [active, replica] = nodes.each_mut().map(seqnos);
            if active? == replica? {
                return Ok(());
            }
            ensure!(began.elapsed() < PATIENCE, "the replica does not catch up");
            thread::sleep(POLL);
        }
    }

    fn cpu_ns(&self) -> Result<u64> {
        Ok(os::process_cpu_ns(self.active.pid)? + os::process_cpu_ns(self.replica.pid)?)
    }

    fn stop(self) -> Result<()> {
        self.replica.stop()?;
        self.active.stop()
    }
}

/// Plain writes per second of CPU of all nodes, with a replica and without. Each item is written once in a window: what
/// is written again before it was sent would not be copied.
pub(super) fn plain(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let Run { bench, subject, sizes, bar } = *run;
    let plan = Plan { items: Items::Shuffled(ITEMS_BITS), reads: 0.0, depth: DEPTH };
    let (mut alone, mut copied, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for start in 1..=sizes.starts {
        bar.set_message(format!("replica, start {start} of {}", sizes.starts));
        let single = subject.start(&start_for(bench, ITEMS, SHAPE))?;
        let target = couchbase(&single)?;
        let dialect = Dialect::new(target.protocol, SHAPE, 1)?;
        load(&target, &dialect, 0, ITEMS)?;
        let mut driver = Driver::new(&target, dialect, CONNECTIONS, 1)?;
        let mut pair = Pair::start(bench, subject, None)?;
        let mut driver_of_pair = Driver::new(&pair.target, pair.dialect.clone(), CONNECTIONS, 1)?;
        for _ in 0..sizes.windows {
            let before = os::process_cpu_ns(single.pid)?;
            let outcome = driver.run(plan, Until::End, |_| {})?;
            let without = per_second(outcome.requests, os::process_cpu_ns(single.pid)? - before);
            let before = pair.cpu_ns()?;
            let outcome = driver_of_pair.run(plan, Until::End, |_| {})?;
            pair.wait_equal()?;
            let with = per_second(outcome.requests, pair.cpu_ns()? - before);
            alone.push(without);
            copied.push(with);
            ratios.push(with / without);
        }
        pair.stop()?;
        single.stop()?;
    }
    let title = format!("Plain writes, depth {DEPTH}: thousand per second of CPU of all nodes");
    report.tables.push(rates(title, &[("one node", &alone), ("with a replica on another", &copied)])?);
    let ratio = Spread::of(&ratios).context("no window")?;
    let goal = "plain writes with a replica, per CPU second of both, of those without";
    report.goals.push(Goal::at_least(goal, ratio.median, 0.6, "x"));
    report.data("replica", &ratio)
}

#[derive(Clone, Debug, Serialize)]
struct Sample {
    subject: Kind,
    clients: usize,
    per_second: f64,
    per_cpu_second: f64,
    p50_us: u64,
    p99_us: u64,
}

/// Writes that are answered when the replica has them.
pub(super) fn durable(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let Run { bench, sizes, bar, .. } = *run;
    let is_in = |subject: &&Subject| matches!(subject.kind, Kind::Dormouse | Kind::Redis | Kind::Valkey);
    let subjects: Vec<&Subject> = bench.subjects.iter().filter(is_in).collect();
    let mut samples = Vec::new();
    for start in 0..sizes.starts as usize {
        let mut pairs = subjects
            .iter()
            .map(|subject| Ok((subject.kind, Pair::start(bench, subject, Some(Level::Majority))?)))
            .collect::<Result<Vec<_>>>()?;
        let first = start % pairs.len().max(1);
        pairs.rotate_left(first);
        for clients in CLIENTS {
            for (subject, pair) in &pairs {
                bar.set_message(format!(
                    "durable, {}, {clients} clients, start {}",
                    subject.name(),
                    start + 1
                ));
                samples.push(write_durably(*subject, pair, clients, sizes)?);
            }
        }
        pairs.into_iter().try_for_each(|(_, pair)| pair.stop())?;
    }
    let mut table = Table::new(
        "Writes that are answered when a replica has them: medians of the starts",
        &["server", "clients", "writes/s", "p50 us", "p99 us", "kop/s of CPU of both"],
    );
    for clients in CLIENTS {
        for subject in &subjects {
            let own: Vec<&Sample> = samples
                .iter()
                .filter(|sample| sample.clients == clients && sample.subject == subject.kind)
                .collect();
            let middle = |figure: &dyn Fn(&Sample) -> f64| {
                median(&own.iter().map(|sample| figure(sample)).collect::<Vec<_>>()).unwrap_or(f64::NAN)
            };
            table.row(vec![
                subject.kind.name().to_owned(),
                clients.to_string(),
                short(middle(&|sample| sample.per_second)),
                short(middle(&|sample| sample.p50_us as f64)),
                short(middle(&|sample| sample.p99_us as f64)),
                short(middle(&|sample| sample.per_cpu_second / 1e3)),
            ]);
        }
    }
    report.tables.push(table);
    report.notes.push(
        "durable writes: dormouse at level majority of two nodes; redis and valkey SET, then WAIT 1 0, two \
         commands for each write; nothing on disk; all servers run all the time, and one pair is driven at a time"
            .to_owned(),
    );
    report.data("durable", &samples)
}

fn write_durably(subject: Kind, pair: &Pair, clients: usize, sizes: &Sizes) -> Result<Sample> {
    let plan = Plan { items: Items::Apart(ITEMS), reads: 0.0, depth: 1 };
    let mut driver = Driver::new(&pair.target, pair.dialect.clone(), clients, clients as u64)?;
    driver.measure_latencies()?;
    driver.run(plan, Until::Elapsed(sizes.window / 4), |_| {})?;
    driver.take_latencies();
    let before = pair.cpu_ns()?;
    let outcome = driver.run(plan, Until::Elapsed(sizes.window * 2), |_| {})?;
    let spent = pair.cpu_ns()? - before;
    let latencies = driver.take_latencies().context("latencies were not measured")?;
    Ok(Sample {
        subject,
        clients,
        per_second: per_second(outcome.requests, outcome.wall_ns),
        per_cpu_second: per_second(outcome.requests, spent),
        p50_us: latencies.value_at_quantile(0.5),
        p99_us: latencies.value_at_quantile(0.99),
    })
}
