//! Large values in transit into item memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use std::sync::Arc;

use client::{Client, frame, store_extras};
use kv::users::Users;
use kv::{Bucket, BucketSettings, Eviction, Limits, Node, NodeSettings};
use sessions::Port;

const VALUE: usize = 100_000;

/// Fills the session's sink in item memory.
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

/// A node with a bucket of 64 MiB.
fn node(eviction: Eviction) -> (Arc<Node>, Arc<Bucket>) {
    let settings = NodeSettings { threads: 8, shutdown_command: false, version: "test".into(), seed: 7 };
    let node = Node::new(settings, Limits::default());
    node.set_users(Users::new([1; 32]));
    let bucket = BucketSettings { memory_bytes: 64 << 20, vbuckets: 16, eviction, ..Default::default() };
    let bucket = node.create_bucket("default", bucket).unwrap();
    (node, bucket)
}

/// A client that has announced a value and thereby used up the reservation for values that have not arrived.
fn announcer(node: &Arc<Node>) -> Client {
    let mut client = Client::of(Arc::clone(node), Port::Memcached);
    assert_eq!(client.send_raw(b"set announced 0 0 1000000\r\n"), b"");
    client
}

const SET: u8 = 0x01;
const MIB: u64 = 1 << 20;

#[test]
fn announced_values_evict_nothing_and_hold_up_nobody() {
    const DOCUMENTS: u64 = 40_000;
    let (node, bucket) = node(Eviction::AutoDelete);
    let mut writer = Client::of(Arc::clone(&node), Port::Memcached);
    let body = "v".repeat(1000);
    for number in 0..DOCUMENTS {
        let request = format!("set document-{number} 0 0 1000 noreply\r\n{body}\r\n");
        assert_eq!(writer.send_raw(request.as_bytes()), b"");
    }
    assert_eq!(bucket.accounts().items, DOCUMENTS);
    let mut announcing = Vec::new();
    for number in 0..120 {
        let mut client = Client::of(Arc::clone(&node), Port::Memcached);
        let head = match number % 3 {
            0 => b"set k 0 0 1000000\r\n".to_vec(),
            1 => b"ms k 1000000\r\n".to_vec(),
            _ => {
                let mut frame = frame(SET).key(b"k").extras(&store_extras(0, 0)).bytes();
                frame[8..12].copy_from_slice(&1_000_009_u32.to_be_bytes());
                frame
            }
        };
        assert_eq!(client.send_raw(&head), b"");
        announcing.push(client);
    }
    assert!(bucket.accounts().in_flight <= MIB, "{} bytes", bucket.accounts().in_flight);
    for number in 0..100 {
        let request = format!("set later-{number} 0 0 1000\r\n{body}\r\n");
        assert_eq!(writer.send_raw(request.as_bytes()), b"STORED\r\n");
    }
    assert_eq!(bucket.accounts().items, DOCUMENTS + 100);
    drop(announcing);
    assert_eq!(bucket.accounts().in_flight, 0);
}

#[test]
fn a_value_takes_no_more_than_twice_what_has_arrived() {
    let (node, bucket) = node(Eviction::AutoDelete);
    let _announcer = announcer(&node);
    let before = bucket.accounts().in_flight;
    assert!(before >= 1_000_000, "{before}");
    let value: Vec<u8> = (0..1_000_000).map(|at: u32| (at / 7) as u8).collect();
    let mut text = Client::of(Arc::clone(&node), Port::Memcached);
    assert_eq!(text.send_raw(b"set text 7 0 1000000\r\n"), b"");
    let mut binary = Client::of(Arc::clone(&node), Port::Memcached);
    let whole = frame(SET).key(b"binary").extras(&store_extras(7, 0)).value(&value).bytes();
    let (head, _) = whole.split_at(whole.len() - value.len());
    assert_eq!(binary.send_raw(head), b"");
    assert_eq!(bucket.accounts().in_flight, before, "nothing has arrived");
    for client in [&mut text, &mut binary] {
        let before = bucket.accounts().in_flight;
        for (number, part) in value.chunks(9_999).enumerate() {
            let arrived = (number * 9_999 + part.len()) as u64;
            let mut part = part;
            while let Some(sink) = client.session.sink().filter(|_| !part.is_empty()) {
                let count = sink.len().min(part.len());
                sink[..count].copy_from_slice(&part[..count]);
                client.session.filled(count);
                part = &part[count..];
            }
            let answer = client.send_raw(part);
            let held = bucket.accounts().in_flight.saturating_sub(before);
            assert!(held <= 2 * arrived + 2 * (64 << 10), "{held} bytes for {arrived}");
            assert!(answer.is_empty() || arrived == 1_000_000);
        }
    }
    assert_eq!(text.send_raw(b"\r\n"), b"STORED\r\n");
    for key in ["text", "binary"] {
        let answer = text.send_raw(format!("get {key}\r\n").as_bytes());
        let head = format!("VALUE {key} 7 1000000\r\n");
        assert!(answer.starts_with(head.as_bytes()));
        assert!(answer[head.len()..].strip_suffix(b"\r\nEND\r\n") == Some(&value), "{key}");
    }
    assert_eq!(bucket.accounts().in_flight, before);
}

#[test]
fn a_value_that_finds_no_room_half_way_is_refused_once() {
    let (node, bucket) = node(Eviction::FailNewData);
    let _announcer = announcer(&node);
    let mut client = Client::of(Arc::clone(&node), Port::Memcached);
    let mut other = Client::of(Arc::clone(&node), Port::Memcached);
    assert_eq!(client.send_raw(b"set half 0 0 1000000\r\n"), b"");
    assert_eq!(client.send_raw(&[b'h'; 100_000]), b"");
    let (body, mut number) = ("v".repeat(30_000), 0);
    while other.send_raw(format!("set filler-{number} 0 0 30000\r\n{body}\r\n").as_bytes()) == b"STORED\r\n" {
        number += 1;
    }
    let mut answers = Vec::new();
    for _ in 0..9 {
        let mut part = vec![b'h'; 100_000];
        while let Some(sink) = client.session.sink().filter(|_| !part.is_empty()) {
            let count = sink.len().min(part.len());
            client.session.filled(count);
            part.truncate(part.len() - count);
        }
        answers.extend(client.send_raw(&part));
    }
    answers.extend(client.send_raw(b"\r\nget half\r\n"));
    assert_eq!(String::from_utf8_lossy(&answers), "SERVER_ERROR out of memory storing object\r\nEND\r\n");
    assert!(bucket.accounts().in_flight < 2 * MIB);
}

#[test]
fn two_kibibytes_are_waited_for_before_a_login() {
    let mut client = Client::memcached_with_login();
    assert_eq!(client.send_raw(&[b'a'; 1500]), b"CLIENT_ERROR unauthenticated\r\n");
    assert!(client.is_closed());
    let mut client = Client::memcached_with_login();
    assert_eq!(client.send_raw(b"set login 0 0 1025\r\n"), b"CLIENT_ERROR unauthenticated\r\n");
    for mut client in [Client::memcached_with_login(), Client::couchbase()] {
        let mut head = frame(0x21).key(b"PLAIN").bytes();
        head[8..12].copy_from_slice(&4000_u32.to_be_bytes());
        let answer = client.send(&head);
        assert!(matches!(answer.as_slice(), [answer] if answer.status != 0), "{answer:?}");
    }
    let mut client = Client::couchbase();
    client.open_bucket(&[]);
    let answer = client.ask(frame(SET).key(b"k").extras(&store_extras(0, 0)).value(&[b'v'; 4000]));
    assert_eq!(answer.status, 0);
}

/// Executes requests, and returns the output as it is, not sent yet.
fn output_of(client: &mut Client, request: &[u8]) -> sessions::Output {
    let (mut batch, mut out) = (sessions::Batch::new(), sessions::Output::default());
    let progress = client.session.parse(request, 0, usize::MAX, &mut client.cx, &mut batch);
    assert_eq!(progress.consumed, request.len());
    for index in 0..batch.len() {
        client.session.execute(batch.get(index).unwrap(), &mut client.cx, &mut out);
    }
    client.run_aside(&mut out);
    client.cx.end_batch();
    out
}

/// The answer to a lookup holds no copy of a long value, however many paths name it, and one that would be too long is
/// refused before it is made.
#[test]
fn parts_of_a_long_document_are_sent_from_where_they_lie() {
    const LONG: usize = 8 << 20;
    const MULTI_LOOKUP: u8 = 0xd0;
    const E2BIG: u16 = 0x03;
    let (node, bucket) = node(Eviction::FailNewData);
    let mut client = Client::of(Arc::clone(&node), Port::Couchbase);
    client.open_bucket(&[]);
    let key = kv::Key::plain(b"document");
    let text = format!("{{\"n\":1,\"long\":\"{}\"}}", "x".repeat(LONG));
    let mut item = bucket.prepare_large(&mut client.cx, key, text.len()).unwrap();
    item.window(0, text.len()).copy_from_slice(text.as_bytes());
    let store = kv::Store {
        flags: 0,
        expiry: kv::Expiry::At(0),
        datatype: 0,
        value: kv::Value::Large(Box::new(item)),
        new_cas: 0,
    };
    let at = bucket.locate(key);
    let mutation = kv::Mutation { kind: kv::StoreKind::Set, cas: 0, store };
    bucket.mutate(&mut client.cx, key, at, mutation).unwrap();
    client.cx.end_batch();
    let spec = |path: &str| [&[0xc5, 0, 0, path.len() as u8], path.as_bytes()].concat();
    let lookup = |paths: &[&str]| {
        let specs: Vec<u8> = paths.iter().flat_map(|path| spec(path)).collect();
        frame(MULTI_LOOKUP).key(b"document").vbucket(at.vb.0).value(&specs).bytes()
    };
    let before = bucket.accounts();

    let out = output_of(&mut client, &lookup(&["long", "n", "long"]));
    assert!(
        out.len() > 2 * LONG && out.plain().len() < 200,
        "{} bytes, {} plain",
        out.len(),
        out.plain().len()
    );
    assert_eq!((bucket.accounts().in_flight, bucket.accounts().allocated), (0, before.allocated));
    let bytes = client::bytes_of(out);
    let long = |at: usize| &bytes[at..at + LONG + 2];
    let quoted = format!("\"{}\"", "x".repeat(LONG));
    assert!(long(24 + 6) == quoted.as_bytes() && bytes.ends_with(quoted.as_bytes()));
    assert_eq!(bytes[24 + 6 + LONG + 2..][..7], [0, 0, 0, 0, 0, 1, b'1']);

    let out = output_of(&mut client, &lookup(&["long"; 16]));
    assert!(!out.has_pinned() && out.len() < 200, "{} bytes", out.len());
    let bytes = client::bytes_of(out);
    assert_eq!(u16::from_be_bytes([bytes[6], bytes[7]]), E2BIG);
}

/// Two clients that reserve at the same time see each other: the second is refused, and nothing stays counted.
#[test]
fn what_is_reserved_counts_before_it_is_allocated() {
    let (node, bucket) = node(Eviction::FailNewData);
    let mut client = Client::of(Arc::clone(&node), Port::Memcached);
    let first = bucket.reserve(&mut client.cx, 40 << 20).unwrap();
    assert_eq!(bucket.accounts().in_flight, 40 << 20);
    assert!(matches!(bucket.reserve(&mut client.cx, 40 << 20), Err(kv::KvError::NoMemory)));
    assert_eq!(bucket.accounts().in_flight, 40 << 20);
    drop(first);
    assert!(bucket.reserve(&mut client.cx, 40 << 20).is_ok());
    assert!(matches!(bucket.reserve(&mut client.cx, 64 << 20), Err(kv::KvError::NoMemory)), "never fits");
    assert_eq!(bucket.accounts().in_flight, 0);
}
