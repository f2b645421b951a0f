//! Latencies of small reads while everything is streamed from the beginning, again and again.

use super::follower::Follower;
use super::{Run, SHAPE, couchbase};
use crate::client::Target;
use crate::experiment::latency::{PROBE_CONNECTIONS, STREAM_NICE, STREAM_PIECE_BYTES, probe};
use crate::experiment::{load, start_for, wait_until_flushed};
use crate::open_loop::OpenLoopClient;
use crate::os;
use crate::protocol::Dialect;
use crate::report::{Goal, Report, Table, short};
use crate::statistics::Spread;
use anyhow::{Context, Result, bail, ensure};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

/// Highest p99 beside streams, as a multiple of that without.
const RATIO_MAX: f64 = 1.5;

/// Runs it for both kinds of bucket.
pub(super) fn run(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let Run { bench, subject, sizes, bar } = *run;
    let mut table = Table::new(
        "p99 of small GETs beside streams from the beginning, us: medians of the rounds",
        &["bucket", "alone", "beside", "[lowest .. highest]", "x alone", "items streamed"],
    );
    for durable in [false, true] {
        let mut start = start_for(bench, sizes.items, SHAPE);
        start.durable = durable;
        let name = start.bucket_kind();
        let server = subject.start(&start)?;
        let target = couchbase(&server)?;
        let dialect = Dialect::new(target.protocol, SHAPE, 1)?;
        load(&target, &dialect, 0, sizes.items)?;
        if durable {
            wait_until_flushed(&server)?;
        }
        let mut client = OpenLoopClient::new(&target, dialect, PROBE_CONNECTIONS, sizes.items)?;
        let (mut alone, mut beside, mut streamed) = (Vec::new(), Vec::new(), 0);
        for round in 1..=sizes.rounds {
            bar.set_message(format!("latency, {name}, round {round} of {}", sizes.rounds));
            alone.push(p99_us(&mut client, sizes.probe)?);
            let stop = AtomicBool::new(false);
            let (busy, streams) = thread::scope(|scope| {
                let (begins, has_begun) = channel();
                let (target, stop) = (&target, &stop);
                let streams = scope.spawn(move || stream_until(target, stop, begins));
                // If they have failed, that is told at the end.
                let _begun_or_failed = has_begun.recv();
                let busy = p99_us(&mut client, sizes.probe);
                stop.store(true, Ordering::Relaxed);
                (busy, streams.join())
            });
            let Ok(items) = streams else { bail!("the streams panicked") };
            streamed += items.context("streams beside small reads")?;
            beside.push(busy?);
        }
        server.stop()?;
        ensure!(streamed > 0, "nothing was streamed");
        let (alone, beside) =
            (Spread::of(&alone).context("no round")?, Spread::of(&beside).context("no round")?);
        let ratio = beside.median / alone.median;
        table.row(vec![
            name.to_owned(),
            short(alone.median),
            short(beside.median),
            format!("[{} .. {}]", short(beside.low), short(beside.high)),
            short(ratio),
            streamed.to_string(),
        ]);
        report.goals.push(Goal::at_most(
            format!("{name}: p99 beside a backfill, of alone"),
            ratio,
            RATIO_MAX,
            "x",
        ));
        report.data(if durable { "beside persistent" } else { "beside ephemeral" }, &beside)?;
    }
    report.tables.push(table);
    Ok(())
}

fn p99_us(client: &mut OpenLoopClient, length: Duration) -> Result<f64> {
    Ok(probe(client, length)?.gets.value_at_quantile(0.99) as f64 / 1e3)
}

/// Streams everything again and again; returns the items.
fn stream_until(target: &Target, stop: &AtomicBool, begins: Sender<()>) -> Result<u64> {
    os::set_nice(STREAM_NICE)?;
    let stops = || stop.load(Ordering::Relaxed);
    let mut items = 0;
    while !stops() {
        let mut follower = Follower::connect(target, None)?.in_pieces(STREAM_PIECE_BYTES);
        follower.follow_all(true)?;
        follower.read_items(1)?;
        let _once_is_enough = begins.send(());
        follower.read_to_end(stops)?;
        items += follower.items;
    }
    Ok(items)
}
