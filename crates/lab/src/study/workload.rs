//! The load of a run: one of the lab's own, or a command whose output says how fast it was.

use super::figures::{LOAD_CPU, OPERATIONS, PER_CPU_SECOND, RATE};
use super::file::{OwnLoad, WorkloadSpec};
use super::subject::Running;
use super::text::{last, said};
use crate::client::Target;
use crate::driver::{Driver, Items, Plan, Until};
use crate::experiment::{load, verify};
use crate::open_loop::OpenLoopClient;
use crate::os;
use crate::ovsdb::control::Control;
use crate::ovsdb::driver::Driver as OvsdbDriver;
use crate::ovsdb::script::Transactions;
use crate::ovsdb::template::{Template, UuidText};
use crate::protocol::{Dialect, Protocol, Shape};
use crate::subject::BUCKET;
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The end of a command's output in which figures are found.
const OUTPUT_MAX: u64 = 16 << 20;
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
    /// At a rate of its own.
    Timed(Box<OpenLoopClient>),
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
            run_beside(subject, line, "prepare", spec.timeout).context("workload.prepare")?;
        }
        let kind = match spec.builtin {
            None => return Ok(Self { spec, kind: Kind::Command }),
            Some(OwnLoad::KeyValue(protocol)) => fill(spec, protocol, subject, seed)?,
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
            Kind::Timed(client) => run_timed(self.spec, client, length),
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
        (LOAD_CPU.to_owned(), load_cpu_ns as f64 / 1e9),
    ])
}

fn run_items(spec: &WorkloadSpec, driver: &mut Driver, length: Duration) -> Result<BTreeMap<String, f64>> {
    driver.measure_latencies()?;
    let plan = Plan { items: Items::Uniform(spec.items), reads: spec.reads, depth: spec.depth };
    let outcome = driver.run(plan, Until::Elapsed(length), |_| {})?;
    let mut figures = own_figures(outcome.requests, outcome.wall_ns, outcome.driver_cpu_ns);
    if let Some(latencies) = driver.take_latencies() {
        add_latencies(&mut figures, &latencies, 1.0);
    }
    Ok(figures)
}

/// Sends requests when they are due. Each is timed from then on, so a stall is charged to all that it delays.
fn run_timed(
    spec: &WorkloadSpec,
    client: &mut OpenLoopClient,
    length: Duration,
) -> Result<BTreeMap<String, f64>> {
    let rate = spec.requests_per_second.unwrap_or(1).max(1);
    let (start, cpu_ns) = (Instant::now(), os::thread_cpu_ns()?);
    let mut times = client.probe(Duration::from_secs(1) / rate, length)?;
    let wall_ns = u64::try_from(start.elapsed().as_nanos())?;
    let mut figures =
        own_figures(times.gets.len() + times.sets.len(), wall_ns, os::thread_cpu_ns()? - cpu_ns);
    times.gets.add(&times.sets)?;
    add_latencies(&mut figures, &times.gets, 1000.0);
    Ok(figures)
}

/// Latencies of a histogram with so many units in a microsecond.
fn add_latencies(figures: &mut BTreeMap<String, f64>, latencies: &Histogram<u64>, units: f64) {
    if latencies.is_empty() {
        return;
    }
    for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
        figures.insert(format!("latency_{name}_us"), latencies.value_at_quantile(part) as f64 / units);
    }
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
fn fill(spec: &WorkloadSpec, protocol: Protocol, subject: &Running, seed: u64) -> Result<Kind> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, subject.port));
    let target = Target { address, protocol, bucket: BUCKET.to_owned(), tls: None };
    let shape = Shape { key_bytes: spec.key_bytes, value_bytes: spec.value_bytes };
    let dialect = Dialect::new(protocol, shape, seed)?;
    load(&target, &dialect, 0, spec.items)?;
    verify(&target, &dialect, spec.items)?;
    if spec.requests_per_second.is_some() {
        let mut client = OpenLoopClient::new(&target, dialect, spec.connections, spec.items)?;
        client.set_reads(spec.reads);
        return Ok(Kind::Timed(Box::new(client)));
    }
    Ok(Kind::KeyValue(Box::new(Driver::new(&target, dialect, spec.connections, seed)?)))
}

/// Runs a command while the subject lives. Returns the file of its output.
fn run_beside(subject: &mut Running, line: &[String], log: &str, timeout: Duration) -> Result<PathBuf> {
    let surroundings = subject.surroundings(log);
    let words = subject.places().fill_all(line);
    surroundings.run(&words, timeout, || subject.ensure_alive())?;
    Ok(surroundings.log)
}

fn run_command(spec: &WorkloadSpec, subject: &mut Running) -> Result<BTreeMap<String, f64>> {
    let log = run_beside(subject, &spec.command, "load", spec.timeout).context("workload.command")?;
    let text = last(&log, OUTPUT_MAX);
    let mut figures = BTreeMap::new();
    let rate = spec.rate.iter().map(|pattern| (RATE, pattern));
    let operations = spec.operations.iter().map(|pattern| (OPERATIONS, pattern));
    let others = spec.figures.iter().map(|(name, pattern)| (name.as_str(), pattern));
    for (name, pattern) in rate.chain(operations).chain(others) {
        let found = find(name, pattern, &text).with_context(|| format!("it said: {}", said(&log)))?;
        figures.insert(name.to_owned(), found);
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
