//! One case on one server.

use super::case::{Case, Sizes, Table, Transactions as Workload};
use super::stall;
use crate::experiment::Site;
use crate::machine::BusyReading;
use crate::os;
use crate::ovsdb::control::Control;
use crate::ovsdb::driver::{Driver, Outcome};
use crate::ovsdb::queue::{self, Queue};
use crate::ovsdb::script::{Drain, Single, Subscribe, Transactions};
use crate::ovsdb::subject::{Kind, Server, Subject};
use crate::ovsdb::template::{COUNTERS, FIRST_ID, Template, UuidText, digits};
use crate::process::Memory;
use crate::random::Random;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes kept of a message that arrives in pieces, if its content is not examined.
const KEEP_BYTES: usize = 16 * 1024;
/// Sessions with replicas in the `-mon` cases of one worker.
const REPLICAS: usize = 10;
/// A server that used no CPU for this long is idle; and the longest wait for that.
const IDLE: Duration = Duration::from_millis(20);
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Minimum bytes per row in a replica's first message.
const ROW_BYTES_MIN: usize = 100;

/// Results of one case on one start of a server.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The workload.
    pub case: Case,
    /// Name of the server.
    pub subject: String,
    /// Number of transactions, requests or rows, by which CPU is divided.
    pub units: u64,
    /// Length of the measured part.
    pub wall_ns: u64,
    /// CPU time of the server in it.
    pub cpu_ns: u64,
    /// CPU time of the load in it.
    pub driver_cpu_ns: u64,
    /// Bytes the load received in it.
    pub received_bytes: u64,
    /// Cores that other processes used meanwhile.
    pub foreign_cores: f64,
    /// Memory of the empty server.
    pub start: Memory,
    /// Memory at the end, at rest.
    pub end: Memory,
    /// Length of the database file at the end.
    pub file_bytes: u64,
    /// Further figures of the case, by name.
    pub figures: BTreeMap<String, f64>,
}

/// A sample whose server is still running.
pub struct Completed {
    /// What was measured so far.
    pub sample: Sample,
    /// What the server must hold.
    pub expected: Expected,
    /// If a restart is still to be measured, the row to read after it.
    pub restart: Option<UuidText>,
}

/// What a server must hold at the end.
pub struct Expected {
    /// Rows of the table, if the server keeps any.
    pub rows: Option<usize>,
}

impl Expected {
    /// Compares it with the server.
    pub fn check(&self, server: &Server) -> Result<()> {
        if let Some(rows) = self.rows {
            let found = Control::new(&server.socket)?.count("Test")?;
            ensure!(found == rows, "the table holds {found} rows and must hold {rows}");
        }
        Ok(())
    }
}

impl Sample {
    fn new(case: Case, subject: &Subject, server: &Server) -> Result<Self> {
        Ok(Self {
            case,
            subject: subject.program.name.clone(),
            units: 0,
            wall_ns: 0,
            cpu_ns: 0,
            driver_cpu_ns: 0,
            received_bytes: 0,
            foreign_cores: 0.0,
            start: server.memory()?,
            end: Memory::default(),
            file_bytes: 0,
            figures: BTreeMap::new(),
        })
    }

    /// Runs `work` and adds its measurements; it consists of `units` units.
    fn measure(
        &mut self,
        server: &mut Server,
        units: u64,
        work: impl FnOnce() -> Result<Outcome>,
    ) -> Result<Outcome> {
        let busy = BusyReading::take();
        let before = os::process_cpu_ns(server.pid)?;
        let outcome = work()?;
        let cpu_ns = cpu_ns_when_idle(server.pid)? - before;
        server.ensure_alive()?;
        self.units += units;
        self.wall_ns += outcome.wall_ns;
        self.cpu_ns += cpu_ns;
        self.driver_cpu_ns += outcome.driver_cpu_ns;
        self.received_bytes += outcome.received_bytes;
        self.foreign_cores = self.foreign_cores.max(busy.foreign_cores(cpu_ns + outcome.driver_cpu_ns));
        Ok(outcome)
    }

    /// CPU time of the server per unit.
    pub fn cpu_ns_per_unit(&self) -> f64 {
        self.cpu_ns as f64 / self.units.max(1) as f64
    }

    /// Adds a figure.
    pub fn figure(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }
}

/// CPU time of a process once it has finished work deferred until after its answers.
fn cpu_ns_when_idle(pid: u32) -> Result<u64> {
    let deadline = Instant::now() + IDLE_MAX;
    let mut cpu_ns = os::process_cpu_ns(pid)?;
    loop {
        thread::sleep(IDLE);
        let later_ns = os::process_cpu_ns(pid)?;
        if later_ns == cpu_ns || Instant::now() > deadline {
            return Ok(later_ns);
        }
        cpu_ns = later_ns;
    }
}

/// Runs a case on a server that serves an empty database.
pub fn run(case: Case, subject: &Subject, server: &mut Server, sizes: &Sizes) -> Result<Completed> {
    let mut restart = None;
    let mut sample = Sample::new(case, subject, server)?;
    let rows = match case {
        Case::Queue => queue(&mut sample, server, sizes)?,
        Case::SizeOne => size_in_one(&mut sample, server, sizes, 0)?,
        Case::SizeOneMon => size_in_one(&mut sample, server, sizes, REPLICAS)?,
        Case::SizeEach => size_each(&mut sample, server, sizes, 0)?,
        Case::SizeEachMon => size_each(&mut sample, server, sizes, REPLICAS)?,
        Case::Dump100 => dump(&mut sample, server, sizes)?,
        Case::Monitors100 => fan_out(&mut sample, subject, server, sizes)?,
        Case::Compaction => {
            let rows = Control::new(&server.socket)?.fill(sizes.huge_rows, 1)?;
            stall::compaction(&mut sample, subject, server, &rows, sizes.quiet_ms)?;
            rows.len()
        }
        Case::Startup => {
            let rows = Control::new(&server.socket)?.fill(sizes.huge_rows, 1)?;
            restart = rows.last().copied();
            rows.len()
        }
        Case::DeleteAll => delete_all(&mut sample, server, sizes)?,
        _ => {
            let workload = case.transactions().context("a case of transactions")?;
            transactions(&mut sample, subject, server, sizes, workload)?
        }
    };
    let rows = (subject.kind != Kind::Floor).then_some(rows);
    Ok(Completed { sample, expected: Expected { rows }, restart })
}

/// Fills the table; the floor keeps nothing, so its rows are made up.
fn fill(subject: &Subject, server: &Server, rows: usize) -> Result<Vec<UuidText>> {
    if subject.kind == Kind::Floor {
        return Ok(vec![*b"831191a0-7526-4139-8017-6b48dd6d6822"; rows]);
    }
    Control::new(&server.socket)?.fill(rows, 1)
}

fn transactions(
    sample: &mut Sample,
    subject: &Subject,
    server: &mut Server,
    sizes: &Sizes,
    workload: Workload,
) -> Result<usize> {
    let (template, rows) = match workload.table {
        Table::Small => (Template::update(), fill(subject, server, sizes.small_rows)?),
        Table::Large => (Template::update(), fill(subject, server, sizes.large_rows)?),
        Table::Empty => (Template::insert(), Vec::new()),
    };
    let mut driver = Driver::new(&server.socket, sizes.workers, KEEP_BYTES)?;
    let replicas = 0..if workload.replicas { sizes.workers } else { 0 };
    driver.run(&mut Subscribe::new(replicas.clone()))?;
    let window = if workload.pipelined { sizes.in_flight } else { 1 };
    let mut load = Transactions::new(&template, &rows, sizes.workers, sizes.transactions_each, window);
    let units = sizes.workers as u64 * sizes.transactions_each;
    sample.measure(server, units, || {
        let mut outcome = driver.run(&mut load)?;
        if workload.replicas {
            outcome += driver.run(&mut Drain::new(replicas.clone()))?;
        }
        Ok(outcome)
    })?;
    sample.figure("notifications", load.notifications as f64);
    let inserted = if workload.table == Table::Empty { units as usize } else { 0 };
    Ok(rows.len() + inserted + usize::from(workload.replicas))
}

fn queue(sample: &mut Sample, server: &mut Server, sizes: &Sizes) -> Result<usize> {
    let mut control = Control::new(&server.socket)?;
    let mut rows = Vec::new();
    control.insert(&queue::insert_counters(sizes.counters_rows), sizes.counters_rows, &mut rows)?;
    let sessions = sizes.workers + 1;
    let mut driver = Driver::new(&server.socket, sessions, usize::MAX)?;
    driver.run(&mut Subscribe::new(0..sessions))?;
    let mut load = Queue::new(&rows, sizes.workers, sizes.requests_each);
    let units = sizes.workers as u64 * sizes.requests_each;
    sample.measure(server, units, || {
        let mut outcome = driver.run(&mut load)?;
        outcome += driver.run(&mut Drain::new(0..sessions))?;
        Ok(outcome)
    })?;
    let last = rows.last().context("no rows of counters")?;
    let row = control.row("TestCounters", last)?;
    let pairs = row.pointer("/countersField/1").and_then(|map| map.as_array()).context("no map")?;
    let value = |key: usize| 1_000_000 + load.last_generation() * 1_000 + key as u64;
    let found = pairs
        .iter()
        .enumerate()
        .filter(|(key, pair)| pair.get(1).and_then(serde_json::Value::as_u64) == Some(value(*key)));
    ensure!(found.count() == COUNTERS, "a row does not hold the last answer's counters: {row}");
    Ok(1)
}

fn size_in_one(sample: &mut Sample, server: &mut Server, sizes: &Sizes, replicas: usize) -> Result<usize> {
    let mut driver = Driver::new(&server.socket, replicas.max(1), KEEP_BYTES)?;
    driver.run(&mut Subscribe::new(0..replicas))?;
    let mut random = Random::new(1);
    tables(sample, server, sizes, replicas, |sample, server, rows| {
        let mut request = Vec::new();
        Template::inserts(rows).write_rows(FIRST_ID, &mut random, &mut request);
        let mut load = Single::new(request);
        sample.measure(server, rows as u64, || {
            let mut outcome = driver.run(&mut load)?;
            if replicas > 0 {
                outcome += driver.run(&mut Drain::new(0..replicas))?;
            }
            Ok(outcome)
        })
    })
}

fn size_each(sample: &mut Sample, server: &mut Server, sizes: &Sizes, replicas: usize) -> Result<usize> {
    let mut driver = Driver::new(&server.socket, replicas.max(1), KEEP_BYTES)?;
    driver.run(&mut Subscribe::new(0..replicas))?;
    let template = Template::insert();
    tables(sample, server, sizes, replicas, |sample, server, rows| {
        let mut load = Transactions::new(&template, &[], 1, rows as u64, 1);
        sample.measure(server, rows as u64, || {
            let mut outcome = driver.run(&mut load)?;
            if replicas > 0 {
                outcome += driver.run(&mut Drain::new(0..replicas))?;
            }
            Ok(outcome)
        })
    })
}

/// Fills the table to each size in turn, checks it, and empties it for the next one.
fn tables(
    sample: &mut Sample,
    server: &mut Server,
    sizes: &Sizes,
    replicas: usize,
    mut fill: impl FnMut(&mut Sample, &mut Server, usize) -> Result<Outcome>,
) -> Result<usize> {
    let mut held = 0;
    for &rows in &sizes.tables {
        if held > 0 {
            let deleted = Control::new(&server.socket)?.delete_all("Test")?;
            ensure!(deleted == held as u64, "{deleted} rows deleted of {held}");
        }
        let before = sample.cpu_ns;
        let outcome = fill(sample, server, rows)?;
        sample.figure(format!("rows {rows}: wall s"), outcome.wall_ns as f64 / 1e9);
        sample.figure(format!("rows {rows}: cpu s"), (sample.cpu_ns - before) as f64 / 1e9);
        sample.figure(format!("rows {rows}: resident"), server.memory()?.resident_bytes as f64);
        held = rows + usize::from(replicas > 0);
    }
    Ok(held)
}

fn dump(sample: &mut Sample, server: &mut Server, sizes: &Sizes) -> Result<usize> {
    let rows = Control::new(&server.socket)?.fill(sizes.dump_rows, 1)?;
    let mut driver = Driver::new(&server.socket, sizes.fan_out, KEEP_BYTES)?;
    sample.figure("resident before", server.memory()?.resident_bytes as f64);
    let mut load = Subscribe::new(0..sizes.fan_out);
    sample.measure(server, sizes.fan_out as u64, || driver.run(&mut load))?;
    let least = load.lengths.iter().copied().min().unwrap_or(0);
    let most = load.lengths.iter().copied().max().unwrap_or(0);
    ensure!(least == most, "replies of {least} and of {most} bytes to the same question");
    ensure!(least >= rows.len() * ROW_BYTES_MIN, "{least} bytes cannot be {} rows", rows.len());
    sample.figure("reply bytes", least as f64);
    Ok(rows.len())
}

fn fan_out(sample: &mut Sample, subject: &Subject, server: &mut Server, sizes: &Sizes) -> Result<usize> {
    let rows = fill(subject, server, sizes.small_rows)?;
    // The first session updates rows, all others listen.
    let sessions = sizes.fan_out + 1;
    let mut driver = Driver::new(&server.socket, sessions, KEEP_BYTES)?;
    driver.run(&mut Subscribe::new(1..sessions))?;
    let template = Template::update();
    let mut load = Transactions::new(&template, &rows, 1, sizes.fan_out_updates, 1);
    sample.measure(server, sizes.fan_out_updates, || {
        let mut outcome = driver.run(&mut load)?;
        outcome += driver.run(&mut Drain::new(1..sessions))?;
        Ok(outcome)
    })?;
    sample.figure("notifications", load.notifications as f64);
    Ok(rows.len() + 1)
}

/// Restarts a resting server on its file, and reads one row.
pub fn restart(
    sample: &mut Sample,
    subject: &Subject,
    server: &mut Server,
    site: &Site,
    row: &UuidText,
) -> Result<()> {
    sample.figure("resident before", server.memory()?.resident_bytes as f64);
    let taken = server.restart(subject, site.placement)?;
    // The new process starts at zero.
    sample.cpu_ns = os::process_cpu_ns(server.pid)?;
    sample.wall_ns = u64::try_from(taken.as_nanos())?;
    sample.units = 1;
    Control::new(&server.socket)?.row("Test", row)?;
    Ok(())
}

fn delete_all(sample: &mut Sample, server: &mut Server, sizes: &Sizes) -> Result<usize> {
    let rows = Control::new(&server.socket)?.fill(sizes.huge_rows, 1)?;
    sample.figure("resident full", server.memory()?.resident_bytes as f64);
    let mut request = format!(
        r#"{{"id":@@@@@@@@@@,"method":"transact","params":["{}",{{"op":"delete","table":"Test","where":[]}}]}}"#,
        crate::ovsdb::template::DATABASE
    )
    .into_bytes();
    if let Some(hole) = request.get_mut(6..16) {
        digits(FIRST_ID, hole);
    }
    let mut driver = Driver::new(&server.socket, 1, KEEP_BYTES)?;
    sample.measure(server, rows.len() as u64, || driver.run(&mut Single::new(request)))?;
    Ok(0)
}
