//! One flush, in a process of its own: nothing else allocates there, and nothing is left over from an earlier flush.
//!
//! ```text
//!   [write N items, flush]  replace only
//!   write N items ── note ── one turn of the flusher ── all persisted? ── figures as a line of JSON
//!                    └ allocated bytes    └ peak, CPU of this thread, wall
//! ```
//! The process has one thread, so its CPU clock and its allocations are the flush's own. Kernel time of fsync is
//! included.

use crate::allocations;
use crate::os;
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use journal::log::Buffer;
use journal::{AnyDisk, RealDisk};
use kv::persistence::Flusher;
use kv::{
    Bucket, BucketKind, BucketSettings, Expiry, Key, Limits, Mutation, Node, NodeContext, NodeSettings, Now,
    PersistenceSettings, Store, StoreKind, Value, VbId,
};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Budget of the bucket: large enough that nothing is ejected.
const MEMORY_BYTES: u64 = 64 << 30;
/// Writes per batch, as in a worker.
const BATCH: u32 = 64;

/// Whether the items existed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// New items, in an empty vBucket.
    Insert,
    /// Overwrites of items that are already on disk.
    Replace,
}

impl Mode {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Replace => "replace",
        }
    }
}

/// One flush.
#[derive(Args, Debug)]
pub struct TrialArgs {
    /// Items of the flush
    #[arg(long)]
    items: u32,
    /// Bytes of each value
    #[arg(long)]
    value_bytes: usize,
    /// Whether the items existed before
    #[arg(long, value_enum)]
    mode: Mode,
    /// Directory of the bucket; must not hold a bucket yet
    #[arg(long)]
    directory: PathBuf,
    /// Count allocations, which slows the flush down
    #[arg(long)]
    count_allocations: bool,
}

/// Cost of one flush.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Flushed {
    /// CPU time of the flush, fsync included.
    pub cpu_ns: u64,
    /// Its wall time.
    pub wall_ns: u64,
    /// Bytes written to the journal.
    pub written_bytes: u64,
    /// If allocations were counted.
    pub memory: Option<FlushMemory>,
}

/// Memory of one flush.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FlushMemory {
    /// Peak of allocated bytes above those before the flush, including the flusher's buffer.
    pub peak_bytes: i64,
    /// The flusher's buffer.
    pub buffer_bytes: i64,
    /// Allocated before the flush, less allocated after it without a flusher: the cost of being dirty.
    pub dirty_bytes: i64,
    /// The same according to the bucket's own accounts (items and index only).
    pub dirty_accounted_bytes: i64,
}

struct World {
    cx: NodeContext,
    bucket: Arc<Bucket>,
    start: Instant,
}

impl World {
    fn new(directory: &std::path::Path) -> Result<Self> {
        let settings = NodeSettings {
            threads: 1,
            shutdown_command: false,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seed: u64::from(std::process::id()),
        };
        let node = Node::new(settings, Limits::default());
        let settings = BucketSettings {
            kind: BucketKind::Persistent,
            memory_bytes: MEMORY_BYTES,
            persistence: PersistenceSettings { flush_interval_ms: 0, ..PersistenceSettings::default() },
            ..BucketSettings::default()
        };
        let disk = AnyDisk::Real(RealDisk::new(None));
        let bucket = node.open_bucket("flush", settings, disk, directory)?;
        Ok(Self { cx: NodeContext::new(node, 0), bucket, start: Instant::now() })
    }

    fn now(start: Instant) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            unix_s: u32::try_from(wall.as_secs()).unwrap_or(u32::MAX),
            unix_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
            mono_us: u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX),
        }
    }

    /// Writes `key0` and so on, all in one vBucket.
    fn write(&mut self, items: u32, value: &[u8]) -> Result<()> {
        let mut name = String::new();
        for item in 0..items {
            if item % BATCH == 0 {
                self.cx.now = Self::now(self.start);
            }
            name.clear();
            write!(name, "key{item}")?;
            let key = Key::plain(name.as_bytes());
            let at = self.bucket.locate_in(key, VbId(0));
            let store = Store {
                flags: 0,
                expiry: Expiry::At(0),
                datatype: 0,
                value: Value::Bytes(value),
                new_cas: 0,
            };
            let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
            self.bucket.mutate(&mut self.cx, key, at, mutation)?;
            if item % BATCH == BATCH - 1 {
                self.cx.end_batch();
            }
        }
        self.cx.end_batch();
        Ok(())
    }

    fn flush(&mut self, flusher: &mut Flusher) {
        let start = self.start;
        flusher.turn(&mut self.cx, &mut || Self::now(start));
    }

    fn figures(&mut self) -> Result<kv::persistence::PersistenceFigures> {
        self.bucket.persistence_figures(&mut self.cx).context("the bucket has no journal")
    }
}

/// Runs one flush and prints its figures.
pub fn run(arguments: &TrialArgs) -> Result<()> {
    if arguments.count_allocations {
        allocations::start()?;
    }
    let mut world = World::new(&arguments.directory)?;
    let mut value = vec![b'a'; arguments.value_bytes];
    if arguments.mode == Mode::Replace {
        world.write(arguments.items, &value)?;
        world.flush(&mut Flusher::new(0, Buffer::BYTES));
        ensure!(world.figures()?.unflushed_items == 0, "the items to be replaced were not flushed");
        value.fill(b'b');
    }
    world.write(arguments.items, &value)?;
    let before = world.figures()?;
    ensure!(
        before.unflushed_items == u64::from(arguments.items),
        "{} items are dirty, not {}",
        before.unflushed_items,
        arguments.items
    );
    let noted_accounts = world.bucket.accounts().allocated;
    let noted_bytes = allocations::allocated_bytes();
    allocations::forget_peak();
    let mut flusher = Flusher::new(0, Buffer::BYTES);
    let (start, cpu_before) = (Instant::now(), os::thread_cpu_ns()?);
    world.flush(&mut flusher);
    let (cpu_ns, wall) = (os::thread_cpu_ns()? - cpu_before, start.elapsed());
    let peak_bytes = allocations::peak_bytes() - noted_bytes;
    let with_buffer = allocations::allocated_bytes();
    drop(flusher);
    let after_bytes = allocations::allocated_bytes();
    let after = world.figures()?;
    ensure!(after.unflushed_items == 0, "{} items were not flushed", after.unflushed_items);
    let persisted = after.persisted_items - before.persisted_items;
    ensure!(persisted == u64::from(arguments.items), "{persisted} items were written");
    let memory = arguments.count_allocations.then(|| FlushMemory {
        peak_bytes,
        buffer_bytes: with_buffer - after_bytes,
        dirty_bytes: noted_bytes - after_bytes,
        dirty_accounted_bytes: noted_accounts as i64 - world.bucket.accounts().allocated as i64,
    });
    let flushed = Flushed {
        cpu_ns,
        wall_ns: u64::try_from(wall.as_nanos())?,
        written_bytes: after.written_bytes - before.written_bytes,
        memory,
    };
    let line = serde_json::to_string(&flushed)? + "\n";
    io::stdout().write_all(line.as_bytes()).context("printing the figures")
}
