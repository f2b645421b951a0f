//! Change streams and replicas: what is streamed per second of server CPU, from memory and from disk; what replicas
//! cost writes; latencies of durable writes and beside a backfill; memory of a consumer that stalls.

mod beside;
mod follower;
mod reading;
mod replicas;

use super::{Bench, Common, Progress, progress_bar, window_length};
use crate::client::Target;
use crate::protocol::Shape;
use crate::report::{Report, Table, count, short};
use crate::statistics::Spread;
use crate::subject::{Kind, Server, Subject};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

const SHAPE: Shape = Shape { key_bytes: 24, value_bytes: 256 };

/// Options of `lab streams`.
#[derive(Args, Debug)]
pub struct StreamsArgs {
    #[command(flatten)]
    common: Common,
    /// What to measure
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "memory,disk,replica,durable,latency,stall"
    )]
    parts: Vec<Part>,
    /// Where files of persistent buckets are kept; should be on a disk [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Streamed items per second of server CPU, beside GETs
    Memory,
    /// Streams from the journal, beside reading its files
    Disk,
    /// Plain writes with a replica and without, per second of CPU of all nodes
    Replica,
    /// Durable writes to two nodes, beside Redis and Valkey with WAIT 1
    Durable,
    /// Latencies of small reads beside streams from the beginning
    Latency,
    /// Memory of a consumer that takes nothing
    Stall,
}

/// What every part is given.
struct Run<'a> {
    bench: &'a Bench,
    /// Dormouse.
    subject: &'a Subject,
    sizes: &'a Sizes,
    bar: &'a Progress,
}

/// How much is done.
struct Sizes {
    items: u32,
    disk_items: u32,
    starts: u32,
    /// Windows of each start.
    windows: u32,
    window: Duration,
    /// Rounds of latencies, and their length.
    rounds: u32,
    probe: Duration,
    /// How often a consumer stalls.
    stalls: u32,
}

/// Runs the experiment.
pub fn run(arguments: &StreamsArgs) -> Result<Report> {
    let quick = arguments.common.quick;
    let bench = Bench::set_up(&arguments.common, false)?;
    let mut report = bench.report("streams", &arguments.common)?;
    let sizes = Sizes {
        items: if quick { 300_000 } else { 1_000_000 },
        disk_items: if quick { 500_000 } else { 5_000_000 },
        starts: if quick { 2 } else { 5 },
        windows: if quick { 2 } else { 4 },
        window: window_length(None, quick, 600, 1500),
        rounds: if quick { 3 } else { 8 },
        probe: Duration::from_secs(if quick { 2 } else { 5 }),
        stalls: if quick { 1 } else { 5 },
    };
    report.settings.push(format!(
        "{} items of {} + {} bytes ({} on disk), {} starts; replicas share the core of their active",
        count(sizes.items),
        SHAPE.key_bytes,
        SHAPE.value_bytes,
        count(sizes.disk_items),
        sizes.starts
    ));
    let subject = bench.subjects.iter().find(|subject| subject.kind == Kind::Dormouse);
    let subject = subject.context("nothing to measure: only Dormouse has streams")?;
    let directory = arguments.directory.as_deref();
    let bar = progress_bar(arguments.parts.len() as u64);
    let run = Run { bench: &bench, subject, sizes: &sizes, bar: &bar };
    for part in &arguments.parts {
        let name = part.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        match part {
            Part::Memory => reading::from_memory(&run, &mut report),
            Part::Disk => reading::from_disk(&run, directory, &mut report),
            Part::Replica => replicas::plain(&run, &mut report),
            Part::Durable => replicas::durable(&run, &mut report),
            Part::Latency => beside::run(&run, &mut report),
            Part::Stall => reading::stalled(&run, &mut report),
        }
        .with_context(|| format!("measuring {name}"))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.with_json(arguments.common.json.as_deref())
}

/// A table of rates in thousands, each by its name.
fn rates(title: String, samples: &[(&str, &[f64])]) -> Result<Table> {
    let mut table = Table::new(title, &["", "median", "[lowest .. highest]"]);
    for (name, samples) in samples {
        let spread = Spread::of(samples).context("no window")?;
        let range = format!("[{} .. {}]", short(spread.low / 1e3), short(spread.high / 1e3));
        table.row(vec![(*name).to_owned(), short(spread.median / 1e3), range]);
    }
    Ok(table)
}

/// What was done per second of so much time.
fn per_second(count: u64, time_ns: u64) -> f64 {
    count as f64 * 1e9 / time_ns.max(1) as f64
}

/// Where a node speaks the Couchbase protocol.
fn couchbase(server: &Server) -> Result<Target> {
    server.couchbase.clone().context("a server without a Couchbase port")
}
