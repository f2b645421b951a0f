//! System calls per request, counted by strace over a known number of requests.
//!
//! Connections are opened, set up and used before strace attaches, so only the steady state is counted. The goals apply
//! to the threads that serve (those that read or write); the calls of other threads are in the table of threads.

use super::{Bench, Common, load, progress_bar, start_for};
use crate::driver::{Driver, Items, Plan, Until};
use crate::protocol::{Dialect, Shape};
use crate::report::{Goal, Report, Table, count};
use crate::strace::{Counts, ThreadCalls, Trace, sum, total};
use crate::subject::{Kind, Subject};
use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use std::thread;
use std::time::Duration;

const SHAPE: Shape = Shape { key_bytes: 24, value_bytes: 256 };
const ITEMS: u32 = 100_000;
const READ_SHARE: f64 = 0.2;

const READS: [&str; 5] = ["read", "recvfrom", "recvmsg", "readv", "recvmmsg"];
const WRITES: [&str; 5] = ["write", "sendto", "sendmsg", "writev", "sendmmsg"];
const WAITS: [&str; 5] = ["epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "select"];
const CLOCKS: [&str; 3] = ["clock_gettime", "gettimeofday", "time"];
/// Tolerance: occasionally the kernel delivers a batch in two pieces.
const EXACT: f64 = 0.000_5;
const WAITS_PER_REQUEST_MAX: f64 = 0.2;

/// Options of `lab syscalls`.
#[derive(Args, Debug)]
pub struct SyscallsArgs {
    #[command(flatten)]
    common: Common,
    /// Requests per batch
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16,64")]
    depths: Vec<usize>,
    /// Connections of the load
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Batches counted per depth [default: 10,000 quick, 50,000 full]
    #[arg(long)]
    batches: Option<u64>,
}

#[derive(Serialize)]
struct Point {
    subject: Kind,
    depth: usize,
    requests: u64,
    threads: Vec<ThreadCalls>,
}

impl Point {
    /// The calls of the threads that serve.
    fn serving(&self) -> Counts {
        total(self.threads.iter().filter(|thread| {
            sum(&thread.calls, &READS).calls.max(sum(&thread.calls, &WRITES).calls) >= self.requests / 1000
        }))
    }

    fn per_request(&self, calls: u64) -> f64 {
        calls as f64 / self.requests.max(1) as f64
    }
}

/// Runs the experiment.
pub fn run(arguments: &SyscallsArgs) -> Result<Report> {
    let bench = Bench::set_up(&arguments.common, true)?;
    let mut report = bench.report("syscalls", &arguments.common)?;
    let batches = arguments.batches.unwrap_or(if arguments.common.quick { 10_000 } else { 50_000 });
    report.settings.push(format!(
        "strace -f, {} items of {} + {} bytes, {} connections, 20 % reads, {batches} batches per depth",
        count(ITEMS),
        SHAPE.key_bytes,
        SHAPE.value_bytes,
        arguments.connections
    ));
    let bar = progress_bar(bench.subjects.len() as u64);
    let mut points = Vec::new();
    for subject in &bench.subjects {
        bar.set_message(subject.kind.name());
        points.extend(
            trace(&bench, subject, arguments, batches)
                .with_context(|| format!("tracing {}", subject.kind.name()))?,
        );
        bar.inc(1);
    }
    bar.finish_and_clear();
    fill(&mut report, &points)?;
    report.with_json(arguments.common.json.as_deref())
}

fn trace(bench: &Bench, subject: &Subject, arguments: &SyscallsArgs, batches: u64) -> Result<Vec<Point>> {
    let server = subject.start(&start_for(bench, ITEMS, SHAPE))?;
    let dialect = Dialect::new(subject.protocol, SHAPE, 1)?;
    if subject.kind != Kind::Floor {
        load(&server.target, &dialect, 0, ITEMS)?;
    }
    let mut points = Vec::new();
    for &depth in &arguments.depths {
        let mut driver = Driver::new(&server.target, dialect.clone(), arguments.connections, 1)?;
        let plan = Plan { items: Items::Uniform(ITEMS), reads: READ_SHARE, depth };
        driver.run(plan, Until::Elapsed(Duration::from_millis(300)), |_| {})?;
        thread::sleep(Duration::from_millis(100));
        let trace = Trace::attach(server.pid)?;
        let outcome = driver.run(plan, Until::Requests(batches * depth as u64), |_| {})?;
        points.push(Point {
            subject: subject.kind,
            depth,
            requests: outcome.requests,
            threads: trace.detach()?,
        });
    }
    server.stop()?;
    Ok(points)
}

fn fill(report: &mut Report, points: &[Point]) -> Result<()> {
    let mut table = Table::new(
        "System calls per request",
        &[
            "server",
            "depth",
            "requests",
            "read",
            "failed reads",
            "write",
            "epoll_wait",
            "futex",
            "epoll_ctl",
            "clock",
            "others",
        ],
    );
    for point in points {
        let calls = &total(&point.threads);
        let per_request = |calls: u64| format!("{:.4}", point.per_request(calls));
        let groups: [&[&str]; 6] = [&READS, &WRITES, &WAITS, &["futex"], &["epoll_ctl"], &CLOCKS];
        let others: Vec<String> = calls
            .iter()
            .filter(|(name, _)| !groups.iter().any(|group| group.contains(&name.as_str())))
            .map(|(name, count)| format!("{name} {}", count.calls))
            .collect();
        table.row(vec![
            point.subject.name().to_owned(),
            point.depth.to_string(),
            point.requests.to_string(),
            per_request(sum(calls, &READS).calls),
            per_request(sum(calls, &READS).errors),
            per_request(sum(calls, &WRITES).calls),
            per_request(sum(calls, &WAITS).calls),
            sum(calls, &["futex"]).calls.to_string(),
            sum(calls, &["epoll_ctl"]).calls.to_string(),
            sum(calls, &CLOCKS).calls.to_string(),
            if others.is_empty() { "-".to_owned() } else { others.join(", ") },
        ]);
    }
    report.tables.push(table);
    report.tables.push(thread_table(points));
    report.notes.push("futex, epoll_ctl, clock and others are counts; the rest is per request".to_owned());
    report.notes.push(
        "under strace the server is slow and finds more connections ready per epoll_wait than without it"
            .to_owned(),
    );
    if let Some(point) = points.iter().find(|point| point.subject == Kind::Dormouse && point.depth == 1) {
        judge(report, point);
    }
    report.data("points", &points)
}

fn thread_table(points: &[Point]) -> Table {
    let mut table = Table::new("Calls of each thread", &["thread", "server", "depth", "calls"]);
    for point in points {
        for thread in &point.threads {
            let calls: Vec<String> =
                thread.calls.iter().map(|(name, count)| format!("{name} {}", count.calls)).collect();
            table.row(vec![
                thread.name.clone(),
                point.subject.name().to_owned(),
                point.depth.to_string(),
                calls.join(", "),
            ]);
        }
    }
    table
}

fn judge(report: &mut Report, point: &Point) {
    let calls = &point.serving();
    for (name, group) in [("read", READS), ("write", WRITES)] {
        let per_request = point.per_request(sum(calls, &group).calls);
        report.goals.push(Goal {
            name: format!("depth 1: {name}s per request"),
            wanted: "exactly 1.0".to_owned(),
            reached: format!("{per_request:.4}"),
            met: (per_request - 1.0).abs() <= EXACT,
        });
    }
    let none: [(&str, u64); 4] = [
        ("reads that return EAGAIN", sum(calls, &READS).errors),
        ("epoll_ctl calls", sum(calls, &["epoll_ctl"]).calls),
        ("futex calls", sum(calls, &["futex"]).calls),
        ("clock calls", sum(calls, &CLOCKS).calls),
    ];
    for (name, calls) in none {
        report.goals.push(Goal::at_most(format!("depth 1: {name}"), calls as f64, 0.0, ""));
    }
    let waits = point.per_request(sum(calls, &WAITS).calls);
    report.goals.push(Goal::at_most("depth 1: epoll_wait per request", waits, WAITS_PER_REQUEST_MAX, ""));
}
