//! A bucket that threads use side by side: writers, each with keys of its own, and one that peeks ahead of the locks.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use kv::{Bucket, BucketSettings, HeapChoice, Key, Limits, Node, NodeContext, NodeSettings, Now};

pub const WRITERS: usize = 2;
/// Number of the thread that peeks.
pub const PEEKER: usize = WRITERS;

/// Creates a node for this many threads, with a bucket of two vBuckets.
pub fn node(threads: usize, item_heap: HeapChoice) -> (Arc<Node>, Arc<Bucket>) {
    let settings = NodeSettings { threads, shutdown_command: false, version: "test".into(), seed: 7 };
    let node = Node::new(settings, Limits::default());
    let settings = BucketSettings { vbuckets: 2, item_heap, ..BucketSettings::default() };
    let bucket = node.create_bucket("b", settings).unwrap();
    (node, bucket)
}

pub fn context(node: &Arc<Node>, thread: usize) -> NodeContext {
    let mut cx = NodeContext::new(Arc::clone(node), thread);
    cx.now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_us: 0 };
    cx
}

pub fn key(writer: usize, number: usize) -> String {
    format!("{writer}:{number}")
}

/// Peeks at the writers' keys until it is done. Returns how often.
pub fn peek(
    node: &Arc<Node>,
    bucket: &Arc<Bucket>,
    done: &Arc<AtomicBool>,
    keys: usize,
) -> JoinHandle<usize> {
    let (node, bucket, done) = (Arc::clone(node), Arc::clone(bucket), Arc::clone(done));
    thread::spawn(move || {
        let mut batches = 0;
        while !done.load(Ordering::Relaxed) {
            node.quiescence().enter(PEEKER);
            for number in 0..64 {
                let text = key(number % WRITERS, (batches * 61 + number) % keys);
                let at = bucket.locate(Key::plain(text.as_bytes()));
                bucket.prefetch_vbucket(at);
                bucket.prefetch_directory(at);
                bucket.prefetch_line(at);
                bucket.prefetch_item(at, 384);
            }
            node.quiescence().leave(PEEKER);
            batches += 1;
        }
        batches
    })
}

/// Runs the writers to their end, each on a thread of its own.
pub fn write_all(
    node: &Arc<Node>,
    bucket: &Arc<Bucket>,
    write: fn(&Bucket, &mut NodeContext, usize),
) -> Vec<NodeContext> {
    let spawn = |writer| {
        let (node, bucket) = (Arc::clone(node), Arc::clone(bucket));
        thread::spawn(move || {
            let mut cx = context(&node, writer);
            write(&bucket, &mut cx, writer);
            cx
        })
    };
    let writers: Vec<_> = (0..WRITERS).map(spawn).collect();
    writers.into_iter().map(|writer| writer.join().unwrap()).collect()
}
