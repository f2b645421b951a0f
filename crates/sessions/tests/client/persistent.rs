//! A node with one persistent bucket on a simulated disk. Its threads run when the test says so.

use std::path::Path;
use std::sync::Arc;

use journal::log::Buffer;
use journal::{AnyDisk, SimulatedDisk};
use kv::persistence::{FETCHERS, FLUSHERS, Fetcher, Flusher};
use kv::users::Users;
use kv::{BucketSettings, Limits, Node, NodeContext, NodeSettings, PersistenceSettings};

use super::Client;

const MEMORY_BYTES: u64 = 256 << 20;

/// A node with the bucket `default`, created or opened from the disk.
pub fn node(disk: &SimulatedDisk, vbuckets: u16) -> Arc<Node> {
    // Each start has another seed, as in reality.
    let seed = 7 + disk.operations();
    let settings = NodeSettings { threads: 8, shutdown_command: false, version: "test".into(), seed };
    let node = Node::new(settings, Limits::default());
    node.set_users(Users::new([1; 32]));
    let settings = BucketSettings {
        memory_bytes: MEMORY_BYTES,
        vbuckets,
        persistence: PersistenceSettings { flush_interval_ms: 0, ..PersistenceSettings::default() },
        ..BucketSettings::default()
    };
    node.open_bucket("default", settings, AnyDisk::Simulated(disk.clone()), Path::new("/b")).unwrap();
    node
}

/// The context for all of the node's other threads.
pub fn cx(client: &Client) -> NodeContext {
    let mut cx = NodeContext::new(Arc::clone(&client.node), 7);
    cx.now = client.cx.now;
    cx
}

/// Runs the threads that load journals and the flushers.
pub fn flush(client: &Client) {
    let mut cx = cx(client);
    while kv::persistence::load_next(&mut cx, &mut Buffer::new(1 << 20)) {}
    for index in 0..FLUSHERS {
        Flusher::new(index, 1 << 20).turn(&mut cx, &mut || client.cx.now);
    }
}

/// Flushes and ejects all values. Works again only after a second of the client's clock.
pub fn eject(client: &Client) {
    flush(client);
    let bucket = client.node.bucket("default").unwrap();
    let mut cx = cx(client);
    bucket.set_budget(1);
    for _ in 0..4 {
        kv::pager::turn(&mut cx);
    }
    bucket.set_budget(MEMORY_BYTES);
    assert!(bucket.persistence_figures(&mut cx).unwrap().ejected_items > 0);
}

/// Runs the threads that fetch ejected values.
pub fn fetch(client: &Client) {
    let mut cx = cx(client);
    for index in 0..FETCHERS {
        Fetcher::new(index).turn(&mut cx, &mut || client.cx.now);
    }
}
