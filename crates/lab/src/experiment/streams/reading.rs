//! What it costs to stream everything, from memory and from disk, and what a consumer that stalls costs.

use super::follower::Follower;
use super::{Run, SHAPE, Sizes, couchbase, per_second, rates};
use crate::client::Target;
use crate::driver::{Driver, Items, Plan};
use crate::experiment::{SETTLE, load, measure, start_for, wait_until_flushed};
use crate::os;
use crate::process;
use crate::protocol::Dialect;
use crate::report::{Goal, Report, Table, bytes, count, short};
use crate::statistics::Spread;
use crate::storage::{Scratch, drop_page_cache, files_below, read_through};
use crate::subject::Server;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::net::Shutdown;
use std::path::Path;
use std::thread;
use std::time::Instant;

const CONNECTIONS: usize = 50;
const DEPTH: usize = 64;
/// Streams of each start.
const PASSES: u32 = 3;
/// What a stalled consumer may leave unacknowledged.
const BUFFER_BYTES: u32 = 1 << 20;
/// Beside its buffer: a piece of the journal, and what a message is longer.
const BESIDE_BYTES: f64 = (512 << 10) as f64;
const MIB: f64 = (1 << 20) as f64;

/// Streamed items per second of server CPU, beside GETs.
pub(super) fn from_memory(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let Run { bench, subject, sizes, bar } = *run;
    let (mut gets, mut first, mut again) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ratios_first, mut ratios_again) = (Vec::new(), Vec::new());
    for start in 1..=sizes.starts {
        bar.set_message(format!("memory, start {start} of {}", sizes.starts));
        let mut server = subject.start(&start_for(bench, sizes.items, SHAPE))?;
        let target = couchbase(&server)?;
        let dialect = Dialect::new(target.protocol, SHAPE, 1)?;
        load(&target, &dialect, 0, sizes.items)?;
        let mut driver = Driver::new(&target, dialect, CONNECTIONS, 1)?;
        let plan = Plan { items: Items::Uniform(sizes.items), reads: 1.0, depth: DEPTH };
        for pass in 0..PASSES {
            let window = measure(&mut driver, &mut server, plan, sizes.window)?;
            let (per_cpu_second, _) = stream_all(&server, sizes.items)?;
            gets.push(window.per_cpu_second);
            // The first stream has the order of seqnos built, which is kept for a while.
            let (streamed, ratios) =
                if pass == 0 { (&mut first, &mut ratios_first) } else { (&mut again, &mut ratios_again) };
            streamed.push(per_cpu_second);
            ratios.push(per_cpu_second / window.per_cpu_second);
        }
        server.stop()?;
    }
    let title =
        format!("{} items of an ephemeral bucket, thousand per second of server CPU", count(sizes.items));
    let samples =
        [("GET, depth 64", &*gets), ("streamed for the first time", &first), ("streamed again", &again)];
    report.tables.push(rates(title, &samples)?);
    for (name, ratios) in [("for the first time", ratios_first), ("again", ratios_again)] {
        let ratio = Spread::of(&ratios).context("no window")?;
        let goal = format!("items streamed {name} per server CPU second, of GETs");
        report.goals.push(Goal::at_least(goal, ratio.median, 2.0, "x"));
        report.data(&format!("streamed {name}"), &ratio)?;
    }
    Ok(())
}

/// Streams everything once; returns items per second of server CPU, and the seconds it took.
fn stream_all(server: &Server, items: u32) -> Result<(f64, f64)> {
    let mut follower = Follower::connect(&couchbase(server)?, None)?;
    let (before, began) = (os::process_cpu_ns(server.pid)?, Instant::now());
    follower.follow_all(true)?;
    follower.read_to_end(|| false)?;
    let seconds = began.elapsed().as_secs_f64();
    ensure!(follower.items == u64::from(items), "{} of {items} items were streamed", follower.items);
    let cpu_ns = os::process_cpu_ns(server.pid)? - before;
    Ok((per_second(follower.items, cpu_ns), seconds))
}

#[derive(Clone, Copy, Debug, Serialize)]
struct FromDisk {
    file_bytes: u64,
    read_seconds: f64,
    stream_seconds: f64,
    per_cpu_second: f64,
}

/// Everything streamed from the journal, beside reading its files.
pub(super) fn from_disk(run: &Run<'_>, directory: Option<&Path>, report: &mut Report) -> Result<()> {
    let Run { bench, subject, sizes, bar } = *run;
    let data = Scratch::new(directory)?;
    let mut start = start_for(bench, sizes.disk_items, SHAPE);
    (start.durable, start.data) = (true, Some(data.path.clone()));
    let server = subject.start(&start)?;
    let target = couchbase(&server)?;
    bar.set_message(format!("disk, loading {}", count(sizes.disk_items)));
    load(&target, &Dialect::new(target.protocol, SHAPE, 1)?, 0, sizes.disk_items)?;
    wait_until_flushed(&server)?;
    let (mut samples, mut how) = (Vec::new(), "");
    for turn in 0..sizes.starts {
        bar.set_message(format!("disk, turn {} of {}", turn + 1, sizes.starts));
        let files = files_below(&data.path.join("buckets"))?;
        let read = || {
            let how = drop_page_cache(&files)?;
            anyhow::Ok((how, read_through(&files)?))
        };
        let stream = || {
            drop_page_cache(&files)?;
            stream_all(&server, sizes.disk_items)
        };
        // In turn: a cache below the kernel's may favour the second.
        let ((forgotten, (file_bytes, read)), (per_cpu_second, stream_seconds)) = match turn % 2 {
            0 => (read()?, stream()?),
            _ => {
                let streamed = stream()?;
                (read()?, streamed)
            }
        };
        how = forgotten;
        samples.push(FromDisk {
            file_bytes,
            read_seconds: read.as_secs_f64(),
            stream_seconds,
            per_cpu_second,
        });
    }
    server.stop()?;
    let title =
        format!("{} items of a persistent bucket, streamed from its journal", count(sizes.disk_items));
    let heads = ["turn", "files", "read s", "streamed s", "of the rate of reading", "k items/CPU s"];
    let mut table = Table::new(title, &heads);
    let mut ratios = Vec::new();
    for (number, sample) in samples.iter().enumerate() {
        let ratio = sample.read_seconds / sample.stream_seconds.max(1e-9);
        ratios.push(ratio);
        table.row(vec![
            (number + 1).to_string(),
            bytes(sample.file_bytes),
            short(sample.read_seconds),
            short(sample.stream_seconds),
            short(ratio),
            short(sample.per_cpu_second / 1e3),
        ]);
    }
    report.tables.push(table);
    report.notes.push(format!("before each reading and each stream: {how}"));
    let ratio = Spread::of(&ratios).context("no stream")?;
    report.goals.push(Goal::at_least(
        "streamed from disk, of the rate of reading the files",
        ratio.median,
        0.5,
        "x",
    ));
    report.data("disk", &samples)
}

/// Memory that a consumer costs which takes nothing, while everything is written again.
pub(super) fn stalled(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let Run { bench, subject, sizes, bar } = *run;
    let title =
        format!("A consumer that stalls, with a buffer of {}: RSS in MiB", bytes(u64::from(BUFFER_BYTES)));
    let heads =
        ["bucket", "one reads", "two read", "one reads, one stalls", "difference", "[lowest .. highest]"];
    let mut table = Table::new(title, &heads);
    for durable in [false, true] {
        let mut start = start_for(bench, sizes.items, SHAPE);
        start.durable = durable;
        let name = start.bucket_kind();
        let mut server = subject.start(&start)?;
        let target = couchbase(&server)?;
        load(&target, &Dialect::new(target.protocol, SHAPE, 1)?, 0, sizes.items)?;
        let say = |turn| bar.set_message(format!("stall, {name}, turn {turn} of {}", sizes.stalls));
        let (found, read) = beside_a_reader(&target, || compare(&server, &target, sizes, durable, say))?;
        ensure!(read > u64::from(sizes.items), "what was written again was not read");
        server.ensure_alive()?;
        server.stop()?;
        let differences: Vec<f64> =
            found.two.iter().zip(&found.stalls).map(|(two, stalls)| stalls - two).collect();
        let spreads = [&found.one, &found.two, &found.stalls, &differences];
        let spreads = spreads.map(|samples| Spread::of(samples).unwrap_or_default());
        let [one, two, stalls, difference] = &spreads;
        table.row(vec![
            name.to_owned(),
            short(one.median),
            short(two.median),
            short(stalls.median),
            short(difference.median),
            format!("[{} .. {}]", short(difference.low), short(difference.high)),
        ]);
        let bound = (f64::from(BUFFER_BYTES) + BESIDE_BYTES) / MIB;
        let goal = format!("{name}: memory of a consumer that stalls");
        report.goals.push(Goal::at_most(goal, difference.median, bound, " MiB"));
        report.data(&format!("stalled {name}"), difference)?;
    }
    report.tables.push(table);
    Ok(())
}

/// Does something while a consumer of everything reads; returns also how many items it has read.
fn beside_a_reader<T>(target: &Target, does: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let mut reader = Follower::connect(target, Some(BUFFER_BYTES))?;
    reader.follow_all(false)?;
    let hang_up = reader.hang_up()?;
    let (done, read) = thread::scope(|scope| {
        let reading = scope.spawn(move || reader.read_on().map(|()| reader.items));
        let done = does();
        let _it_may_be_closed = hang_up.shutdown(Shutdown::Both);
        (done, reading.join())
    });
    let Ok(read) = read else { bail!("the reader panicked") };
    Ok((done?, read?))
}

/// Resident MiB after everything was written again, once for each turn.
#[derive(Default)]
struct Resident {
    /// Beside one consumer that reads.
    one: Vec<f64>,
    /// Beside two of them: what streams cost by themselves is not counted.
    two: Vec<f64>,
    /// Beside one that reads, and one that takes nothing.
    stalls: Vec<f64>,
}

/// Writes everything again beside consumers that read and one that stalls, in turn.
fn compare(
    server: &Server,
    target: &Target,
    sizes: &Sizes,
    durable: bool,
    say: impl Fn(u32),
) -> Result<Resident> {
    let write_all = || -> Result<f64> {
        load(target, &Dialect::new(target.protocol, SHAPE, 1)?, 0, sizes.items)?;
        if durable {
            wait_until_flushed(server)?;
        }
        thread::sleep(SETTLE);
        Ok(process::memory(server.pid)?.resident_bytes as f64 / MIB)
    };
    // What grows with the first rewrite is not counted.
    write_all()?;
    let mut resident = Resident::default();
    for turn in 1..=sizes.stalls {
        say(turn);
        resident.one.push(write_all()?);
        resident.two.push(beside_a_reader(target, write_all)?.0);
        let mut stalled = Follower::connect(target, Some(BUFFER_BYTES))?;
        stalled.follow_all(false)?;
        resident.stalls.push(write_all()?);
        // It was there all the time.
        stalled.read_items(sizes.items.into()).context("a consumer that had stalled")?;
    }
    Ok(resident)
}
