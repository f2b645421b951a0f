//! The load of a run: one of the lab's own, or a command whose output says how fast it was.

use super::figures::{OPERATIONS, PER_CPU_SECOND, RATE};
use super::file::{OwnLoad, WorkloadSpec};
use super::subject::{Running, command_of, succeed};
use super::text::end_of;
use crate::client::{Client, Target};
use crate::driver::{Driver, Items, Plan, Until};
use crate::ovsdb::control::Control;
use crate::ovsdb::driver::Driver as OvsdbDriver;
use crate::ovsdb::script::Transactions;
use crate::ovsdb::template::{Template, UuidText};
use crate::protocol::{Dialect, Protocol, Shape};
use crate::random::Random;
use crate::subject::BUCKET;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

const LOAD_CONNECTIONS: usize = 8;
const LOAD_DEPTH: usize = 64;
/// Items that are read back before the load.
const VERIFIED_ITEMS: u32 = 500;
const LOOK: Duration = Duration::from_millis(5);
const OUTPUT: &str = "load.log";
/// Bytes kept of an OVSDB message that arrives in pieces.
const KEEP_BYTES: usize = 16 << 10;
/// Transactions of an OVSDB session between two looks at the clock.
const TRANSACTIONS: u64 = 200;

/// A load that is ready to run.
pub struct Load<'a> {
    spec: &'a WorkloadSpec,
    kind: Kind,
}

enum Kind {
    KeyValue(Box<Driver>),
    Ovsdb(Box<Ovsdb>),
    Command,
}

/// Sessions that change rows.
struct Ovsdb {
    driver: OvsdbDriver,
    template: Template,
    rows: Vec<UuidText>,
}

impl<'a> Load<'a> {
    /// Prepares the server, and warms it up.
    pub fn prepare(spec: &'a WorkloadSpec, subject: &mut Running, seed: u64) -> Result<Self> {
        for line in &spec.prepare {
            let mut command = command_of(&subject.places().fill_all(line), subject.directory())?;
            succeed(&mut command, line).context("workload.prepare")?;
        }
        let kind = match spec.builtin {
            None => return Ok(Self { spec, kind: Kind::Command }),
            Some(OwnLoad::KeyValue(protocol)) => {
                Kind::KeyValue(Box::new(fill(spec, protocol, subject, seed)?))
            }
            Some(OwnLoad::Ovsdb) => Kind::Ovsdb(Box::new(Ovsdb::new(spec, subject, seed)?)),
        };
        let mut load = Self { spec, kind };
        if !spec.warm_up.is_zero() {
            load.run_for(spec.warm_up, subject)?;
        }
        Ok(load)
    }

    /// Runs it. Returns its figures.
    pub fn run(&mut self, subject: &mut Running) -> Result<BTreeMap<String, f64>> {
        self.run_for(self.spec.length, subject)
    }

    fn run_for(&mut self, length: Duration, subject: &mut Running) -> Result<BTreeMap<String, f64>> {
        match &mut self.kind {
            Kind::KeyValue(driver) => run_items(self.spec, driver, length),
            Kind::Ovsdb(sessions) => sessions.run(self.spec, length),
            Kind::Command => run_command(self.spec, subject),
        }
    }
}

fn own_figures(requests: u64, wall_ns: u64, load_cpu_ns: u64) -> BTreeMap<String, f64> {
    let seconds = wall_ns.max(1) as f64 / 1e9;
    BTreeMap::from([
        (RATE.to_owned(), requests as f64 / seconds),
        (OPERATIONS.to_owned(), requests as f64),
        ("load_cpu_s".to_owned(), load_cpu_ns as f64 / 1e9),
    ])
}

fn run_items(spec: &WorkloadSpec, driver: &mut Driver, length: Duration) -> Result<BTreeMap<String, f64>> {
    driver.measure_latencies()?;
    let plan = Plan { items: Items::Uniform(spec.items), reads: spec.reads, depth: spec.depth };
    let outcome = driver.run(plan, Until::Elapsed(length), |_| {})?;
    let mut figures = own_figures(outcome.requests, outcome.wall_ns, outcome.driver_cpu_ns);
    if let Some(latencies) = driver.take_latencies().filter(|latencies| !latencies.is_empty()) {
        for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            figures.insert(format!("latency_{name}_us"), latencies.value_at_quantile(part) as f64);
        }
    }
    Ok(figures)
}

impl Ovsdb {
    fn new(spec: &WorkloadSpec, subject: &Running, seed: u64) -> Result<Self> {
        let socket = subject.directory().join("socket");
        let rows = Control::new(&socket)?.fill(spec.items as usize, seed).context("writing the rows")?;
        let driver = OvsdbDriver::new(&socket, spec.connections, KEEP_BYTES)?;
        Ok(Self { driver, template: Template::update(), rows })
    }

    /// Each session sends a number of transactions, again and again until the time is over.
    fn run(&mut self, spec: &WorkloadSpec, length: Duration) -> Result<BTreeMap<String, f64>> {
        let (start, mut transactions, mut load_cpu_ns) = (Instant::now(), 0, 0);
        while start.elapsed() < length {
            let mut script = Transactions::new(
                &self.template,
                &self.rows,
                spec.connections,
                TRANSACTIONS.max(spec.depth as u64),
                spec.depth as u64,
            );
            load_cpu_ns += self.driver.run(&mut script)?.driver_cpu_ns;
            transactions += spec.connections as u64 * TRANSACTIONS.max(spec.depth as u64);
        }
        Ok(own_figures(transactions, u64::try_from(start.elapsed().as_nanos())?, load_cpu_ns))
    }
}

/// Relates operations to time and CPU time, if the load counts them.
pub fn relate(figures: &mut BTreeMap<String, f64>, wall_s: f64, cpu_s: f64) {
    let Some(operations) = figures.get(OPERATIONS).copied() else { return };
    figures.entry(RATE.to_owned()).or_insert(operations / wall_s);
    if cpu_s > 0.0 {
        figures.insert(PER_CPU_SECOND.to_owned(), operations / cpu_s);
    }
}

/// Writes all items, reads some back, and opens the load's connections.
fn fill(spec: &WorkloadSpec, protocol: Protocol, subject: &Running, seed: u64) -> Result<Driver> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, subject.port));
    let target = Target { address, protocol, bucket: BUCKET.to_owned(), tls: None };
    let shape = Shape { key_bytes: spec.key_bytes, value_bytes: spec.value_bytes };
    let dialect = Dialect::new(protocol, shape, seed)?;
    let mut loader = Driver::new(&target, dialect.clone(), LOAD_CONNECTIONS, seed)?;
    let plan = Plan { items: Items::Sequence(0, spec.items), reads: 0.0, depth: LOAD_DEPTH };
    loader.run(plan, Until::End, |_| {}).context("writing the items")?;
    let mut client = Client::new(&target, dialect.clone())?;
    let mut random = Random::new(seed);
    for _ in 0..VERIFIED_ITEMS.min(spec.items) {
        client.verify(Random::below(random.next(), spec.items)).context("reading an item back")?;
    }
    Driver::new(&target, dialect, spec.connections, seed)
}

fn run_command(spec: &WorkloadSpec, subject: &mut Running) -> Result<BTreeMap<String, f64>> {
    let line = subject.places().fill_all(&spec.command);
    let path = subject.directory().join(OUTPUT);
    let log = File::create(&path)?;
    let mut command = command_of(&line, subject.directory())?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = command.spawn().with_context(|| format!("starting the load {line:?}"))?;
    let deadline = Instant::now() + spec.timeout;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let ended = subject.ensure_alive();
        let is_late = Instant::now() > deadline;
        if ended.is_err() || is_late {
            let _it_may_have_ended = child.kill();
            child.wait()?;
            ended?;
            bail!("the load {line:?} has not ended after {} s", spec.timeout.as_secs_f64());
        }
        thread::sleep(LOOK);
    };
    let bytes = fs::read(&path)?;
    let (text, end) = (String::from_utf8_lossy(&bytes), end_of(&bytes));
    ensure!(status.success(), "the load {line:?} ended with {status}; it said: {end}");
    let mut figures = BTreeMap::new();
    let rate = spec.rate.iter().map(|pattern| (RATE, pattern));
    let operations = spec.operations.iter().map(|pattern| (OPERATIONS, pattern));
    for (name, pattern) in
        rate.chain(operations).chain(spec.figures.iter().map(|(name, pattern)| (name.as_str(), pattern)))
    {
        figures
            .insert(name.to_owned(), find(name, pattern, &text).with_context(|| format!("it said: {end}"))?);
    }
    Ok(figures)
}

/// The last match's first group as a number. Thousands may be separated by commas.
fn find(name: &str, pattern: &regex::Regex, text: &str) -> Result<f64> {
    let found = pattern.captures_iter(text).last().and_then(|groups| groups.get(1));
    let found = found.with_context(|| format!("workload.{name}: the output has no match of `{pattern}`"))?;
    let number =
        found.as_str().replace(',', "").trim().parse::<f64>().ok().filter(|number| number.is_finite());
    number.with_context(|| {
        format!("workload.{name}: `{}`, which `{pattern}` found, is no number", found.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::Regex;

    #[test]
    fn figures_are_the_last_match() {
        let pattern = Regex::new(r"tps = ([\d.,]+)").unwrap();
        assert_eq!(find("rate", &pattern, "tps = 1\nx\ntps = 12,345.5\n").unwrap(), 12_345.5);
        let error = find("rate", &pattern, "none").unwrap_err().to_string();
        assert_eq!(error, r"workload.rate: the output has no match of `tps = ([\d.,]+)`");
        assert!(
            find("rate", &Regex::new("(x)").unwrap(), "x").unwrap_err().to_string().contains("is no number")
        );
    }
}
