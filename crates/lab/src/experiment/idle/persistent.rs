//! Idle persistent buckets: 30 and 1000 of them, in both timeout modes, per thread as `top -H` shows it.
//!
//! ```text
//!   start ── rest ── resident size ── write a few items, wait until they are on disk ── rest ── silence
//! ```
//! The flusher has worked before the silence, so a flusher that keeps waking up is detected.

use super::{Examined, Findings, ITEMS, IdleArgs, SHAPE, Silence, listen};
use crate::client::Client;
use crate::experiment::{Bench, Progress, SETTLE, settle, wait_until_flushed};
use crate::process;
use crate::protocol::Dialect;
use crate::reference::IDLE;
use crate::report::{Goal, Report, Table, bytes};
use crate::strace::total;
use crate::subject::{Kind, Start, Subject};
use anyhow::{Context, Result};
use serde::Serialize;
use std::time::Duration;

const BUCKETS: [usize; 2] = [30, 1000];
const BUCKET_BYTES: u64 = 8 << 20;
/// Memory beyond the buckets' budgets.
const SPARE_BYTES: u64 = 1 << 30;

/// A flusher's buffer is freed some seconds after its last use; then the allocator's decay begins.
const BUFFER_KEPT: Duration = Duration::from_secs(4);

/// Highest allowed CPU in % of a core of an event-driven server, by number of buckets.
const CPU_PERCENT_MAX: [(usize, f64); 2] = [(30, 0.05), (1000, 0.1)];
/// Highest allowed resident bytes of 30 empty buckets.
const RESIDENT_MAX: f64 = 50e6;

/// A server in silence.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Quiet {
    buckets: usize,
    polls: bool,
    empty_bytes: u64,
    silence: Silence,
}

fn mode(polls: bool) -> &'static str {
    if polls { "polling" } else { "event-driven" }
}

/// Watches both numbers of buckets at once, but one mode after the other: polling servers disturb each other.
pub(super) fn examine(
    bench: &Bench,
    subject: &Subject,
    arguments: &IdleArgs,
    silence: Duration,
    bar: &Progress,
) -> Result<Vec<Quiet>> {
    let mut found = Vec::new();
    for polls in [false, true] {
        let mut examined = Vec::new();
        for buckets in BUCKETS {
            bar.set_message(format!("{buckets} persistent buckets, {}", mode(polls)));
            examined.push(
                start(bench, subject, arguments, buckets, polls)
                    .with_context(|| format!("{buckets} persistent buckets, {}", mode(polls)))?,
            );
        }
        settle(bar, SETTLE);
        for one in &mut examined {
            one.findings.empty_bytes = process::memory(one.server.pid)?.resident_bytes;
            let mut client = Client::new(&one.server.target, one.dialect.clone())?;
            (0..ITEMS).try_for_each(|item| client.set(item))?;
            wait_until_flushed(&one.server)?;
        }
        settle(bar, SETTLE + BUFFER_KEPT);
        bar.set_message(format!("silence, {}", mode(polls)));
        listen(&mut examined, 0, silence)?;
        for one in examined {
            one.server.stop()?;
            let Findings { buckets, empty_bytes, silences, .. } = one.findings;
            let silence = silences.into_iter().next().context("no silence was measured")?;
            found.push(Quiet { buckets, polls, empty_bytes, silence });
        }
        bar.inc(1);
    }
    Ok(found)
}

fn start<'a>(
    bench: &Bench,
    subject: &'a Subject,
    arguments: &IdleArgs,
    buckets: usize,
    polls: bool,
) -> Result<Examined<'a>> {
    let mut start = Start::new(bench.placement, buckets as u64 * BUCKET_BYTES + SPARE_BYTES);
    start.bucket_bytes = BUCKET_BYTES;
    start.further_buckets = buckets - 1;
    start.durable = true;
    start.polls = polls;
    start.parent.clone_from(&arguments.directory);
    Ok(Examined {
        subject,
        server: subject.start(&start)?,
        dialect: Dialect::new(subject.protocol, SHAPE, 1)?,
        client: None,
        idle: None,
        resident_before: 0,
        findings: Findings::new(Kind::Dormouse, buckets),
    })
}

/// Tables and goals.
pub(super) fn fill(report: &mut Report, found: &[Quiet]) {
    let mut quiets = Table::new(
        "Persistent buckets of 1024 vBuckets, idle: beside the reference (a machine of its own)",
        &[
            "",
            "buckets",
            "mode",
            "% of a core",
            "busiest thread %",
            "wake-ups",
            "in 2nd half",
            "system calls",
            "empty RSS",
        ],
    );
    let mut threads = Table::new(
        "Threads, as top -H shows them",
        &["thread", "buckets", "mode", "% of a core", "wake-ups", "interrupted"],
    );
    for reference in &IDLE {
        let dash = || "-".to_owned();
        quiets.row(vec![
            "reference".to_owned(),
            "30".to_owned(),
            mode(reference.polls).to_owned(),
            reference.cpu_percent.to_string(),
            reference.busiest.to_owned(),
            dash(),
            dash(),
            dash(),
            format!("about {}", bytes(reference.resident_bytes)),
        ]);
    }
    for one in found {
        let silence = &one.silence;
        let percent = |run_ns: u64| run_ns as f64 / 1e7 / silence.seconds;
        let busiest = silence.threads.iter().map(|thread| thread.run_ns).max().unwrap_or(0);
        let calls = silence.traced.as_ref().map(|(seconds, threads)| (seconds, traced_calls(threads)));
        quiets.row(vec![
            "dormouse".to_owned(),
            one.buckets.to_string(),
            mode(one.polls).to_owned(),
            format!("{:.4}", silence.cpu_percent),
            format!("{:.4}", percent(busiest)),
            silence.voluntary_switches.to_string(),
            silence.voluntary_switches_later.to_string(),
            calls.map_or("-".to_owned(), |(seconds, calls)| format!("{calls} in {seconds:.0} s")),
            bytes(one.empty_bytes),
        ]);
        for thread in &silence.threads {
            threads.row(vec![
                thread.name.clone(),
                one.buckets.to_string(),
                mode(one.polls).to_owned(),
                format!("{:.4}", percent(thread.run_ns)),
                thread.voluntary_switches.to_string(),
                thread.involuntary_switches.to_string(),
            ]);
        }
        judge(&mut report.goals, one);
    }
    report.tables.extend([quiets, threads]);
}

fn traced_calls(threads: &[crate::strace::ThreadCalls]) -> u64 {
    total(threads).values().map(|count| count.calls).sum()
}

/// Judges the event-driven mode; polling has no goals, it is measured to show its cost.
fn judge(goals: &mut Vec<Goal>, one: &Quiet) {
    if one.polls {
        return;
    }
    let what = format!("{} persistent buckets, event-driven", one.buckets);
    if let Some((_, most)) = CPU_PERCENT_MAX.iter().find(|(buckets, _)| *buckets == one.buckets) {
        goals.push(Goal::at_most(format!("{what}: CPU"), one.silence.cpu_percent, *most, " %"));
    }
    let wake_ups = one.silence.voluntary_switches_later as f64;
    goals.push(Goal::at_most(format!("{what}: wake-ups in the second half"), wake_ups, 0.0, ""));
    if let Some((_, threads)) = &one.silence.traced {
        goals.push(Goal::at_most(
            format!("{what}: system calls under strace"),
            traced_calls(threads) as f64,
            0.0,
            "",
        ));
    }
    if one.buckets == 30 {
        goals.push(Goal::at_most(
            format!("{what}: RSS empty"),
            one.empty_bytes as f64 / 1e6,
            RESIDENT_MAX / 1e6,
            " MB",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ThreadUse;

    fn quiet(polls: bool, cpu_percent: f64, wake_ups_later: u64) -> Quiet {
        let thread =
            ThreadUse { name: "dm:durability".to_owned(), run_ns: 30_000_000, ..ThreadUse::default() };
        Quiet {
            buckets: 30,
            polls,
            empty_bytes: 30_000_000,
            silence: Silence {
                connections: 0,
                seconds: 60.0,
                cpu_percent,
                user_ns: 0,
                system_ns: 0,
                voluntary_switches: 9,
                voluntary_switches_later: wake_ups_later,
                involuntary_switches: 0,
                threads: vec![thread],
                traced: None,
                foreign_cores: 0.0,
            },
        }
    }

    #[test]
    fn only_the_event_driven_mode_is_judged() {
        let mut report = Report::default();
        fill(&mut report, &[quiet(false, 0.04, 1), quiet(true, 9.0, 400)]);
        let verdicts: Vec<bool> = report.goals.iter().map(|goal| goal.met).collect();
        assert_eq!(verdicts, [true, false, true]);
        assert_eq!(report.tables.len(), 2);
    }
}
