//! `dormouse journal compact`: the engine's own compaction, without a server around it.

use super::{Progress, bytes_below, name_of};
use crate::{data_dir, machine};
use anyhow::{Context as _, bail};
use journal::log::Buffer;
use journal::{AnyDisk, RealDisk};
use kv::persistence::{FLUSHERS, Flusher, load_next};
use kv::{BucketKind, BucketSettings, Limits, Node, NodeContext, NodeSettings};
use std::path::Path;

pub fn run(directory: &Path) -> anyhow::Result<()> {
    let name = name_of(directory)?;
    let _lock = data_dir::lock_around(directory)?;
    let before_bytes = bytes_below(directory);
    let settings = NodeSettings {
        threads: 1,
        shutdown_command: false,
        version: env!("CARGO_PKG_VERSION").into(),
        seed: u64::from_le_bytes(machine::random()?),
    };
    let node = Node::new(settings, Limits::default());
    let settings = BucketSettings {
        kind: BucketKind::Persistent,
        // Values that do not fit stay on disk.
        memory_bytes: machine::memory_bytes().context("the machine's memory cannot be read")? / 2,
        ..BucketSettings::default()
    };
    let bucket = node.open_bucket(&name, settings, AnyDisk::Real(RealDisk::default()), directory)?;
    let persistence = bucket.persistence().context("the bucket is not persistent")?;
    let clock = net::Clock::start();
    let (mut cx, mut buffer) = (NodeContext::new(node, 0), Buffer::default());
    let mut progress = Progress::new("reading");
    cx.now = clock.now();
    while load_next(&mut cx, &mut buffer) {
        let warm_up = persistence.warm_up();
        progress.show(warm_up.segments_done, warm_up.segments);
    }
    drop((progress, buffer));
    let damaged = persistence.damaged().count();
    if damaged > 0 {
        bail!(
            "{}: {damaged} vBuckets are damaged, and nothing was compacted; `dormouse journal verify` says where",
            directory.display()
        );
    }
    let mut flushers: Vec<Flusher> = (0..FLUSHERS).map(|index| Flusher::new(index, Buffer::BYTES)).collect();
    for flusher in &mut flushers {
        // A turn that is due at once has more of the same work; one that is due later would return a buffer or retry.
        while flusher.turn(&mut cx, &mut || clock.now()).is_some_and(|due_ms| due_ms <= cx.now.mono_ms()) {}
    }
    for trouble in persistence.take_troubles() {
        crate::print_error(format_args!("{trouble}"));
    }
    if let Some(flusher) = flushers.first_mut() {
        kv::persistence::close_journal(&bucket, &mut cx, flusher)?;
    }
    let after_bytes = bytes_below(directory);
    crate::print(&format!("{}: {} bytes before, {} now\n", directory.display(), before_bytes, after_bytes))
}
