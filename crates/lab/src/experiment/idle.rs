//! E3: an idle server, and one with very many connections.
//!
//! Three parts: `ephemeral` with the peers, `persistent`, and `sync-writes`, whose durable writes are never
//! acknowledged.
//!
//! ```text
//! empty     30 buckets, at rest; then further ones            resident size, per bucket
//! idle      30 buckets, no client; then 1000 connections       CPU, wake-ups and system calls per thread, RSS each
//! fairness  10,000 connections, each sending as fast as it is answered     answers per connection
//! ```
//!
//! Idle connections have been used (single requests and batches) before they fall silent, so the memory they retain is
//! counted.

mod persistent;
mod sync_writes;

use super::{Bench, Common, Progress, SETTLE, progress_bar, settle};
use crate::client::Client;
use crate::driver::{Driver, Items, Plan, Until};
use crate::machine::BusyReading;
use crate::os;
use crate::process::{self, CpuSplit, ThreadUse};
use crate::protocol::{Dialect, Shape};
use crate::report::{Goal, Report, Table, bytes, short};
use crate::statistics::Spread;
use crate::strace::{Counts, ThreadCalls, Trace, total};
use crate::subject::{Kind, Server, Start, Subject};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

const SHAPE: Shape = Shape { key_bytes: 24, value_bytes: 256 };
const ITEMS: u32 = 100;
const MEMORY_BYTES: u64 = 4 << 30;
const BUCKET_BYTES: u64 = 16 << 20;
/// Open files of the lab and of a server, other than connections.
const SPARE_FILES: u64 = 200;

const EMPTY_BYTES_MAX: f64 = 40e6;
const BUCKET_RESIDENT_MAX: f64 = 200e3;
const CONNECTION_RESIDENT_MAX: f64 = 2048.0;
const CPU_PERCENT_MAX: f64 = 0.05;

/// Options of `lab idle`.
#[derive(Args, Debug)]
pub struct IdleArgs {
    #[command(flatten)]
    common: Common,
    /// Buckets of Dormouse
    #[arg(long, default_value_t = 30)]
    buckets: usize,
    /// Buckets added to measure the cost of a further one
    #[arg(long, default_value_t = 70)]
    further_buckets: usize,
    /// Connections that stay idle
    #[arg(long, default_value_t = 1000)]
    connections: usize,
    /// Connections that are served at once
    #[arg(long, default_value_t = 10_000)]
    busy_connections: usize,
    /// Seconds of silence [default: 12 quick, 60 full]
    #[arg(long)]
    seconds: Option<u64>,
    /// Parts to run; persistent: 30 and 1000 buckets, both timeout modes; sync-writes: 10,000 pending durable writes
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "ephemeral,persistent,sync-writes"
    )]
    parts: Vec<Part>,
    /// Where persistent buckets are kept; should be on the disk to be measured [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Ephemeral,
    Persistent,
    SyncWrites,
}

/// A period of silence.
#[derive(Clone, Debug, Serialize)]
struct Silence {
    connections: usize,
    seconds: f64,
    cpu_percent: f64,
    user_ns: u64,
    system_ns: u64,
    voluntary_switches: u64,
    /// Those in the second half: one-time work, such as an allocator returning memory, is over by then.
    voluntary_switches_later: u64,
    involuntary_switches: u64,
    threads: Vec<ThreadUse>,
    /// Length of a further period under strace, and the system calls in it; `None` if strace is missing.
    traced: Option<(f64, Vec<ThreadCalls>)>,
    foreign_cores: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Fairness {
    connections: usize,
    opened_per_second: f64,
    answers: Spread,
    per_second: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Findings {
    subject: Kind,
    buckets: usize,
    empty_bytes: u64,
    /// Resident bytes of a further empty bucket.
    bucket_bytes: Option<f64>,
    connection_bytes: f64,
    silences: Vec<Silence>,
    fairness: Option<Fairness>,
}

impl Findings {
    fn new(subject: Kind, buckets: usize) -> Self {
        Self {
            subject,
            buckets,
            empty_bytes: 0,
            bucket_bytes: None,
            connection_bytes: 0.0,
            silences: Vec::new(),
            fairness: None,
        }
    }
}

/// Runs the experiment.
pub fn run(arguments: &IdleArgs) -> Result<Report> {
    let quick = arguments.common.quick;
    let bench = Bench::set_up(&arguments.common, false)?;
    let mut report = bench.report("idle", &arguments.common)?;
    let silence = Duration::from_secs(arguments.seconds.unwrap_or(if quick { 12 } else { 60 }));
    if arguments.parts.contains(&Part::Ephemeral) {
        run_ephemeral(arguments, &bench, silence, &mut report)?;
    }
    let subject = bench.subjects.iter().find(|subject| subject.kind == Kind::Dormouse);
    if let Some(subject) = subject.filter(|_| arguments.parts.contains(&Part::Persistent)) {
        let bar = progress_bar(2);
        let found = persistent::examine(&bench, subject, arguments, silence, &bar)?;
        bar.finish_and_clear();
        persistent::fill(&mut report, &found);
        report.data("persistent", &found)?;
    }
    if let Some(subject) = subject.filter(|_| arguments.parts.contains(&Part::SyncWrites)) {
        let found = sync_writes::examine(&bench, subject, arguments)?;
        sync_writes::fill(&mut report, &found);
        report.data("sync_writes", &found)?;
    }
    report.with_json(arguments.common.json.as_deref())
}

fn run_ephemeral(arguments: &IdleArgs, bench: &Bench, silence: Duration, report: &mut Report) -> Result<()> {
    let busy_connections =
        arguments.busy_connections.min(usize::try_from(os::raise_open_files()?.saturating_sub(SPARE_FILES))?);
    report.settings.push(format!(
        "{} buckets (Dormouse), {} idle connections, {} s of silence after {} s at rest, {busy_connections} \
        connections served",
        arguments.buckets,
        arguments.connections,
        silence.as_secs(),
        SETTLE.as_secs()
    ));
    let bar = progress_bar(4);
    let findings = examine(bench, arguments, silence, busy_connections, &bar)?;
    bar.finish_and_clear();
    fill(report, &findings)
}

fn start(bench: &Bench, subject: &Subject, buckets: usize, connections: usize) -> Result<Server> {
    let mut start = Start::new(bench.placement, MEMORY_BYTES);
    start.connections = connections;
    start.bucket_bytes = BUCKET_BYTES;
    start.further_buckets = buckets.saturating_sub(1);
    subject.start(&start)
}

/// A server under examination, with its open connections.
struct Examined<'a> {
    subject: &'a Subject,
    server: Server,
    dialect: Dialect,
    client: Option<Client>,
    idle: Option<Driver>,
    resident_before: u64,
    findings: Findings,
}

/// All servers are silent at the same time: idle servers do not disturb each other. The busy connections take turns.
fn examine(
    bench: &Bench,
    arguments: &IdleArgs,
    silence: Duration,
    busy_connections: usize,
    bar: &Progress,
) -> Result<Vec<Findings>> {
    let connections = arguments.connections;
    let mut examined = start_all(bench, arguments, busy_connections.max(connections), bar)?;
    bar.inc(1);
    bar.set_message("silence");
    listen(&mut examined, 0, silence)?;
    bar.inc(1);

    for one in &mut examined {
        let name = one.subject.kind.name();
        one.use_connection().with_context(|| format!("first requests to {name}"))?;
    }
    settle(bar, SETTLE);
    for one in &mut examined {
        one.resident_before = process::memory(one.server.pid)?.resident_bytes;
        let name = one.subject.kind.name();
        one.open_idle(connections).with_context(|| format!("{connections} connections to {name}"))?;
    }
    settle(bar, SETTLE);
    for one in &mut examined {
        let grown = process::memory(one.server.pid)?.resident_bytes as f64 - one.resident_before as f64;
        one.findings.connection_bytes = grown / connections.max(1) as f64;
    }
    bar.set_message(format!("silence with {connections} connections"));
    listen(&mut examined, connections, silence)?;
    bar.inc(1);

    let mut findings = Vec::new();
    for mut one in examined {
        let name = one.subject.kind.name();
        bar.set_message(format!("{name}: {busy_connections} connections"));
        one.idle = None;
        if busy_connections > 0 {
            let served = measure_fairness(&one.server, &one.dialect, busy_connections, silence / 6);
            one.findings.fairness =
                Some(served.with_context(|| format!("{busy_connections} connections to {name}"))?);
        }
        if let Some(client) = &mut one.client {
            client.verify(1).context("a connection from before the busy ones")?;
        }
        one.server.stop()?;
        findings.push(one.findings);
    }
    bar.inc(1);
    Ok(findings)
}

/// Starts all servers, and one more Dormouse with further buckets that is stopped once its size is read.
fn start_all<'a>(
    bench: &'a Bench,
    arguments: &IdleArgs,
    connections: usize,
    bar: &Progress,
) -> Result<Vec<Examined<'a>>> {
    let mut examined = Vec::new();
    let mut with_more = None;
    for subject in &bench.subjects {
        let has_buckets = subject.kind == Kind::Dormouse;
        let buckets = if has_buckets { arguments.buckets } else { 1 };
        if has_buckets && arguments.further_buckets > 0 {
            let more = buckets + arguments.further_buckets;
            with_more = Some(start(bench, subject, more, 100).context("with further buckets")?);
        }
        examined.push(Examined {
            subject,
            server: start(bench, subject, buckets, connections)?,
            dialect: Dialect::new(subject.protocol, SHAPE, 1)?,
            client: None,
            idle: None,
            resident_before: 0,
            findings: Findings::new(subject.kind, buckets),
        });
    }
    settle(bar, SETTLE);
    for one in &mut examined {
        one.findings.empty_bytes = process::memory(one.server.pid)?.resident_bytes;
        if let (Kind::Dormouse, Some(more)) = (one.subject.kind, &with_more) {
            let grown = process::memory(more.pid)?.resident_bytes as f64 - one.findings.empty_bytes as f64;
            one.findings.bucket_bytes = Some(grown / arguments.further_buckets as f64);
        }
    }
    if let Some(more) = with_more {
        more.stop()?;
    }
    Ok(examined)
}

impl Examined<'_> {
    fn use_connection(&mut self) -> Result<()> {
        let mut client = Client::new(&self.server.target, self.dialect.clone())?;
        (0..ITEMS).try_for_each(|item| client.set(item))?;
        (0..ITEMS).try_for_each(|item| client.verify(item))?;
        self.client = Some(client);
        Ok(())
    }

    fn open_idle(&mut self, connections: usize) -> Result<()> {
        let mut driver = Driver::new(&self.server.target, self.dialect.clone(), connections, 1)?;
        for depth in [1, 16] {
            let plan = Plan { items: Items::Uniform(ITEMS), reads: 0.5, depth };
            driver.run(plan, Until::Requests((connections * depth) as u64), |_| {})?;
        }
        self.idle = Some(driver);
        Ok(())
    }
}

/// What the kernel had counted for a process.
struct Reading {
    cpu_ns: u64,
    split: CpuSplit,
    threads: BTreeMap<u32, ThreadUse>,
}

impl Reading {
    fn take(pid: u32) -> Result<Self> {
        Ok(Self {
            cpu_ns: os::process_cpu_ns(pid)?,
            split: process::cpu_split(pid)?,
            threads: process::threads(pid)?,
        })
    }
}

/// Watches servers that get no requests, first undisturbed and then under strace.
fn listen(examined: &mut [Examined], connections: usize, length: Duration) -> Result<()> {
    let busy = BusyReading::take();
    let start = Instant::now();
    let before = examined.iter().map(|one| Reading::take(one.server.pid)).collect::<Result<Vec<_>>>()?;
    thread::sleep(length / 2);
    let middle = examined.iter().map(|one| process::threads(one.server.pid)).collect::<Result<Vec<_>>>()?;
    thread::sleep(length / 2);
    let after = examined.iter().map(|one| Reading::take(one.server.pid)).collect::<Result<Vec<_>>>()?;
    let seconds = start.elapsed().as_secs_f64();
    let own_ns = before.iter().zip(&after).map(|(before, after)| after.cpu_ns - before.cpu_ns).sum();
    let foreign_cores = busy.foreign_cores(own_ns);

    let traces: Vec<Option<Trace>> = examined.iter().map(|one| Trace::attach(one.server.pid).ok()).collect();
    let trace_start = Instant::now();
    thread::sleep(length / 4);
    let traced_seconds = trace_start.elapsed().as_secs_f64();
    for ((((one, before), middle), after), trace) in
        examined.iter_mut().zip(before).zip(middle).zip(after).zip(traces)
    {
        one.server.ensure_alive()?;
        let threads = process::threads_between(&before.threads, &after.threads);
        let later = process::threads_between(&middle, &after.threads);
        let traced = trace.map(Trace::detach).transpose()?.map(|counts| (traced_seconds, counts));
        one.findings.silences.push(Silence {
            connections,
            seconds,
            cpu_percent: (after.cpu_ns - before.cpu_ns) as f64 / 1e7 / seconds,
            user_ns: after.split.user_ns - before.split.user_ns,
            system_ns: after.split.system_ns - before.split.system_ns,
            voluntary_switches: threads.iter().map(|thread| thread.voluntary_switches).sum(),
            voluntary_switches_later: later.iter().map(|thread| thread.voluntary_switches).sum(),
            involuntary_switches: threads.iter().map(|thread| thread.involuntary_switches).sum(),
            threads,
            traced,
            foreign_cores,
        });
    }
    Ok(())
}

/// Opens very many connections, each of which sends as fast as it is answered.
fn measure_fairness(
    server: &Server,
    dialect: &Dialect,
    connections: usize,
    length: Duration,
) -> Result<Fairness> {
    let start = Instant::now();
    let mut driver = Driver::new(&server.target, dialect.clone(), connections, 3)?;
    let opened_per_second = connections as f64 / start.elapsed().as_secs_f64();
    let plan = Plan { items: Items::Uniform(ITEMS), reads: 0.8, depth: 1 };
    let outcome = driver.run(plan, Until::Elapsed(length.max(Duration::from_secs(3))), |_| {})?;
    let answers: Vec<f64> = driver.answered_per_connection().map(|answers| answers as f64).collect();
    let mut answers = Spread::of(&answers).context("fairness without connections")?;
    answers.samples.clear();
    Ok(Fairness {
        connections,
        opened_per_second,
        answers,
        per_second: outcome.requests as f64 * 1e9 / outcome.wall_ns.max(1) as f64,
    })
}

fn calls(counts: &Counts) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    counts.iter().map(|(name, count)| format!("{name} {}", count.calls)).collect::<Vec<_>>().join(", ")
}

fn fill(report: &mut Report, findings: &[Findings]) -> Result<()> {
    let mut memory = Table::new(
        "Resident memory",
        &["server", "buckets", "empty", "per further bucket", "per idle connection"],
    );
    let mut silences = Table::new(
        "Silence",
        &[
            "server",
            "idle connections",
            "% of a core",
            "wake-ups",
            "in 2nd half",
            "interrupted",
            "others",
            "system calls under strace",
        ],
    );
    let mut threads = Table::new(
        "Threads that ran",
        &["thread", "server", "idle connections", "us", "wake-ups", "interrupted"],
    );
    let mut fairness_table = Table::new(
        "Fairness: answers per connection",
        &["server", "connections", "opened/s", "least", "median", "most", "kop/s"],
    );
    for found in findings {
        let name = found.subject.name().to_owned();
        memory.row(vec![
            name.clone(),
            found.buckets.to_string(),
            bytes(found.empty_bytes),
            found.bucket_bytes.map_or("-".to_owned(), |size| format!("{size:.0} B")),
            format!("{:.0} B", found.connection_bytes),
        ]);
        for silence in &found.silences {
            silences.row(vec![
                name.clone(),
                silence.connections.to_string(),
                format!("{:.4}", silence.cpu_percent),
                silence.voluntary_switches.to_string(),
                silence.voluntary_switches_later.to_string(),
                silence.involuntary_switches.to_string(),
                format!("{:.2}", silence.foreign_cores),
                silence.traced.as_ref().map_or("-".to_owned(), |(seconds, threads)| {
                    format!("{} in {seconds:.0} s", calls(&total(threads)))
                }),
            ]);
            for thread in
                silence.threads.iter().filter(|thread| thread.run_ns > 0 || thread.voluntary_switches > 0)
            {
                threads.row(vec![
                    thread.name.clone(),
                    name.clone(),
                    silence.connections.to_string(),
                    short(thread.run_ns as f64 / 1e3),
                    thread.voluntary_switches.to_string(),
                    thread.involuntary_switches.to_string(),
                ]);
            }
        }
        if let Some(fairness) = &found.fairness {
            fairness_table.row(vec![
                name,
                fairness.connections.to_string(),
                short(fairness.opened_per_second),
                short(fairness.answers.low),
                short(fairness.answers.median),
                short(fairness.answers.high),
                short(fairness.per_second / 1e3),
            ]);
        }
    }
    report.tables.extend([memory, silences, threads, fairness_table]);
    if let Some(found) = findings.iter().find(|found| found.subject == Kind::Dormouse) {
        judge(report, found);
    }
    report.data("findings", &findings)
}

fn judge(report: &mut Report, found: &Findings) {
    let goals = &mut report.goals;
    let empty = found.empty_bytes as f64 / 1e6;
    goals.push(Goal::at_most(
        format!("{} empty buckets", found.buckets),
        empty,
        EMPTY_BYTES_MAX / 1e6,
        " MB",
    ));
    if let Some(size) = found.bucket_bytes {
        goals.push(Goal::at_most("each further bucket", size / 1e3, BUCKET_RESIDENT_MAX / 1e3, " kB"));
    }
    goals.push(Goal::at_most("idle connection", found.connection_bytes, CONNECTION_RESIDENT_MAX, " B"));
    for silence in &found.silences {
        let what = format!("silence, {} connections", silence.connections);
        goals.push(Goal::at_most(format!("{what}: CPU"), silence.cpu_percent, CPU_PERCENT_MAX, " %"));
        if let Some((_, threads)) = &silence.traced {
            let calls: u64 = total(threads).values().map(|count| count.calls).sum();
            goals.push(Goal::at_most(format!("{what}: system calls under strace"), calls as f64, 0.0, ""));
        }
        let wake_ups = silence.voluntary_switches_later as f64;
        goals.push(Goal::at_most(format!("{what}: wake-ups in its second half"), wake_ups, 0.0, ""));
    }
    if let Some(fairness) = &found.fairness {
        let name = format!("{} connections: least served of the median", fairness.connections);
        goals.push(Goal::at_least(name, fairness.answers.low / fairness.answers.median.max(1.0), 0.5, "x"));
    }
}
