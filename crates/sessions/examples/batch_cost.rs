//! Measures the cost of a batch of binary GETs and SETs without sockets: `cargo run --release -p sessions --example
//! batch_cost`. Prints nanoseconds of CPU per request, by stage. Arguments: items, requests per batch, reads in per
//! cent, item heap.
#![allow(clippy::expect_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use kv::{BucketSettings, HeapChoice, Limits, Node, NodeContext, NodeSettings, Now};
use sessions::{Batch, Output, Peer, Port, Session};

fn frame(out: &mut Vec<u8>, number: u64, is_set: bool, value: &[u8]) {
    let key = format!("{number:024}");
    let extras = if is_set { 8 } else { 0 };
    let body = extras + 24 + if is_set { value.len() } else { 0 };
    out.extend([0x80, u8::from(is_set), 0, 24, extras as u8, 0, 0, 0]);
    out.extend((body as u32).to_be_bytes());
    out.extend([0; 12]);
    out.extend(vec![0; extras]);
    out.extend(key.as_bytes());
    if is_set {
        out.extend(value);
    }
}

fn main() {
    let argument = |index: usize, default: u64| {
        std::env::args().nth(index).map_or(default, |a| a.parse().expect("a number"))
    };
    let (items, depth, reads) = (argument(1, 1_000_000), argument(2, 64) as usize, argument(3, 20));
    let settings = NodeSettings { threads: 2, shutdown_command: false, version: "bench".into(), seed: 7 };
    let node = Node::new(settings, Limits::default());
    let item_heap =
        std::env::args().nth(4).map_or(HeapChoice::Auto, |name| HeapChoice::of_name(&name).expect("a heap"));
    let settings = BucketSettings { memory_bytes: 16 << 30, item_heap, ..BucketSettings::default() };
    let bucket = node.create_bucket("default", settings).expect("a bucket");
    let mut cx = NodeContext::new(Arc::clone(&node), 0);
    cx.now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_us: 0 };
    let peer = Peer::local(Port::Memcached, Some(Arc::clone(&bucket)), 1 << 20);
    let mut session = Session::new(peer, &Limits::default());
    let mut out = Output::with_capacity(1 << 20);
    let value = [b'x'; 256];
    let mut input = Vec::new();
    let mut stages = [0u128; 3];
    let mut run = |input: &[u8], cx: &mut NodeContext, stages: &mut [u128; 3]| {
        node.quiescence().enter(0);
        let mut consumed = 0;
        while consumed < input.len() {
            let start = Instant::now();
            let mut batch = Batch::new();
            consumed += session.parse(&input[consumed..], 0, usize::MAX, cx, &mut batch).consumed;
            let parsed = Instant::now();
            batch.prefetch_index(|_| Some(&bucket));
            for index in 0..batch.len() {
                batch.prefetch_ahead(index, |_| Some(&bucket));
                session.execute(batch.get(index).expect("in the batch"), cx, &mut out);
            }
            stages[0] += (parsed - start).as_nanos();
            stages[1] += parsed.elapsed().as_nanos();
            stages[2] += batch.len() as u128;
        }
        out.clear();
        node.quiescence().leave(0);
        cx.end_batch();
    };
    for number in 0..items {
        frame(&mut input, number, true, &value);
        if input.len() > 60_000 {
            run(&input, &mut cx, &mut stages);
            input.clear();
        }
    }
    run(&input, &mut cx, &mut stages);
    let figures = bucket.memory();
    println!(
        "{figures:?}: {:.1} bytes per item over payload",
        figures.resident as f64 / items as f64 - 280.0
    );
    let mut random = 88_172_645_463_325_252u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut inputs = Vec::new();
    for _ in 0..2000 {
        let mut input = Vec::new();
        for _ in 0..depth {
            let is_set = next() % 100 >= reads;
            frame(&mut input, next() % items, is_set, &value);
        }
        inputs.push(input);
    }
    let mut received = Vec::new();
    for round in 0..8 {
        stages = [0; 3];
        for input in &inputs {
            // As after a read by the kernel: the request's bytes are in the cache when they are parsed.
            received.clear();
            received.extend_from_slice(input);
            run(&received, &mut cx, &mut stages);
        }
        let requests = stages[2] as f64;
        println!(
            "round {round}: parse {:.0} ns, execute {:.0} ns per request",
            stages[0] as f64 / requests,
            stages[1] as f64 / requests
        );
    }
    let figures = bucket.memory();
    println!(
        "{figures:?}: {:.1} bytes per item over payload",
        figures.resident as f64 / items as f64 - 280.0
    );
}
