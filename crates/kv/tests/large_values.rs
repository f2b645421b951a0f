//! Large values on their way into item memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::Client;
use kv::session::Port;
use kv::users::Users;
use kv::{BucketSettings, Limits, Node, NodeSettings};
use std::sync::Arc;

const VALUE: usize = 100_000;

/// Sends what the session wants to have straight in item memory.
fn fill(client: &mut Client, bytes: usize) {
    let mut left = bytes;
    while left > 0
        && let Some(sink) = client.session.sink()
    {
        let count = sink.len().min(left);
        sink[..count].fill(b'v');
        client.session.filled(count);
        left -= count;
    }
}

#[test]
fn a_bucket_that_was_made_anew_does_not_get_the_old_ones_value() {
    let settings = NodeSettings { threads: 8, shutdown_command: false, version: "test".into(), seed: 7 };
    let node = Node::new(settings, Limits::default());
    node.set_users(Users::new([1; 32]));
    let bucket = || BucketSettings { memory_bytes: 64 << 20, vbuckets: 1, ..BucketSettings::default() };
    node.create_bucket("default", bucket()).unwrap();
    let mut client = Client::of(Arc::clone(&node), Port::Memcached);
    assert_eq!(client.send_raw(format!("set big 0 0 {VALUE}\r\n").as_bytes()), b"");
    fill(&mut client, VALUE / 2);
    node.delete_bucket("default").unwrap();
    let made = node.create_bucket("default", bucket()).unwrap();
    fill(&mut client, VALUE);
    let answer = client.send_raw(b"\r\n");
    assert!(answer.starts_with(b"SERVER_ERROR"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(client.send_raw(b"get big\r\n"), b"END\r\n");
    assert_eq!((made.memory().payload, made.memory().in_flight), (0, 0));
    assert_eq!(client.send_raw(b"set small 0 0 1\r\nx\r\n"), b"STORED\r\n");
}
