//! A store that is refused because its value is too long, or because there is no memory for it, leaves the old document
//! as it was. Only an unconditional set removes it, and never in a persistent bucket.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::{Client, frame, persistent, store_extras};
use journal::SimulatedDisk;
use kv::{BucketSettings, Eviction};
use sessions::Port;

const MEMORY_BYTES: u64 = 64 << 20;

/// A request that overwrites the key `k` with a value of this length.
struct Attempt {
    name: &'static str,
    request: fn(usize) -> Vec<u8>,
    /// Whether it stores unconditionally.
    is_unconditional: bool,
}

fn text(head: &str, length: usize) -> Vec<u8> {
    [head.replace("LENGTH", &length.to_string()).as_bytes(), b"\r\n", &vec![b'v'; length], b"\r\n"].concat()
}

fn binary(opcode: u8, cas: u64, length: usize) -> Vec<u8> {
    let is_extension = matches!(opcode, 0x0e | 0x0f | 0x19 | 0x1a);
    let extras = if is_extension { vec![] } else { store_extras(0, 0) };
    frame(opcode).key(b"k").extras(&extras).cas(cas).value(&vec![b'v'; length]).bytes()
}

macro_rules! attempts {
    ($($name:literal $is_unconditional:literal $request:expr;)*) => {
        &[$(Attempt { name: $name, request: $request, is_unconditional: $is_unconditional }),*]
    };
}

const TEXT: &[Attempt] = attempts! {
    "set" true |length| text("set k 0 0 LENGTH", length);
    "set, noreply" true |length| text("set k 0 0 LENGTH noreply", length);
    "add" false |length| text("add k 0 0 LENGTH", length);
    "add, noreply" false |length| text("add k 0 0 LENGTH noreply", length);
    "replace" false |length| text("replace k 0 0 LENGTH", length);
    "append" false |length| text("append k 0 0 LENGTH", length);
    "append, noreply" false |length| text("append k 0 0 LENGTH noreply", length);
    "prepend" false |length| text("prepend k 0 0 LENGTH", length);
    "cas" false |length| text("cas k 0 0 LENGTH 1", length);
    "cas, noreply" false |length| text("cas k 0 0 LENGTH 1 noreply", length);
    "ms" true |length| text("ms k LENGTH", length);
    "ms, quiet" true |length| text("ms k LENGTH q", length);
    "ms, base64" true |length| text("ms aw== LENGTH b", length);
    "ms, mode set" true |length| text("ms k LENGTH MS", length);
    "ms, mode add" false |length| text("ms k LENGTH ME", length);
    "ms, mode add, quiet, base64" false |length| text("ms aw== LENGTH b q ME", length);
    "ms, mode replace" false |length| text("ms k LENGTH MR", length);
    "ms, mode append" false |length| text("ms k LENGTH MA", length);
    "ms, mode append, making it" false |length| text("ms k LENGTH MA N0", length);
    "ms, mode prepend" false |length| text("ms k LENGTH MP", length);
    "ms, another version" false |length| text("ms k LENGTH C1", length);
    "ms, another version, invalidating" false |length| text("ms k LENGTH C1 I", length);
    "ms, another version, quiet" false |length| text("ms k LENGTH q C1", length);
};

const BINARY: &[Attempt] = attempts! {
    "SET" true |length| binary(0x01, 0, length);
    "SETQ" true |length| binary(0x11, 0, length);
    "SET, another version" false |length| binary(0x01, 1, length);
    "SETQ, another version" false |length| binary(0x11, 1, length);
    "ADD" false |length| binary(0x02, 0, length);
    "ADDQ" false |length| binary(0x12, 0, length);
    "ADD, another version" false |length| binary(0x02, 1, length);
    "REPLACE" false |length| binary(0x03, 0, length);
    "REPLACEQ" false |length| binary(0x13, 0, length);
    "REPLACE, another version" false |length| binary(0x03, 1, length);
    "APPEND" false |length| binary(0x0e, 0, length);
    "APPENDQ" false |length| binary(0x19, 0, length);
    "PREPEND" false |length| binary(0x0f, 0, length);
    "PREPENDQ" false |length| binary(0x1a, 0, length);
};

/// Without memory left: a value that arrives with its request, and one that is received into item memory. With enough
/// memory: one that is too long.
const CASES: [(usize, bool); 3] = [(100, true), (40_000, true), (2 << 20, false)];

/// Tries every request, each on its own document, and compares what is left with what is allowed.
fn try_all(new: impl Fn() -> Client, may_drop: bool) {
    for (attempts, is_text) in [(TEXT, true), (BINARY, false)] {
        let mut client = new();
        let bucket = client.node.bucket("default").unwrap();
        let mut reader = client.beside(1);
        for Attempt { name, request, is_unconditional } in attempts {
            for (length, without_memory) in CASES {
                assert_eq!(reader.send_raw(b"set k 5 0 3\r\nold\r\n"), b"STORED\r\n");
                if without_memory {
                    bucket.set_budget(1);
                }
                let answer = client.send_raw(&request(length));
                bucket.set_budget(MEMORY_BYTES);
                let case = format!("{name}, {length} bytes");
                if is_text {
                    let is_silent = name.contains("noreply");
                    assert!(answer.starts_with(b"SERVER_ERROR") || is_silent, "{case}: {answer:?}");
                } else {
                    assert!(answer[6] != 0 || answer[7] != 0, "{case}: {answer:?}");
                }
                let left = reader.send_raw(b"get k\r\n");
                let expected: &[u8] = match may_drop && *is_unconditional {
                    true => b"END\r\n",
                    false => b"VALUE k 5 3\r\nold\r\nEND\r\n",
                };
                assert_eq!(left.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{case}");
            }
        }
    }
}

fn without_eviction() -> Client {
    let settings = BucketSettings {
        memory_bytes: MEMORY_BYTES,
        eviction: Eviction::FailNewData,
        ..BucketSettings::default()
    };
    Client::before(Port::Memcached, settings)
}

#[test]
fn only_an_unconditional_set_takes_the_old_document_with_it() {
    try_all(without_eviction, true);
}

#[test]
fn nothing_does_in_a_persistent_bucket() {
    let disk = SimulatedDisk::new();
    try_all(
        || {
            let client = Client::of(persistent::node(&disk, 4), Port::Memcached);
            persistent::flush(&client);
            client
        },
        false,
    );
}

/// A failed set must not release a lock, over any protocol.
#[test]
fn a_locked_document_stays() {
    let client = without_eviction();
    let mut text = client.beside(1);
    assert_eq!(text.send_raw(b"set k 5 0 3\r\nold\r\n"), b"STORED\r\n");
    client.node.users().add_development_user();
    let mut couchbase = Client::of(client.node.clone(), Port::Couchbase);
    couchbase.open_bucket(&[]);
    let vb = client.node.bucket("default").unwrap().locate(kv::Key::plain(b"k")).vb.0;
    assert_eq!(couchbase.ask(frame(0x94).key(b"k").vbucket(vb)).status, 0);
    for attempt in TEXT {
        text.send_raw(&(attempt.request)(2 << 20));
        assert_eq!(text.send_raw(b"get k\r\n"), b"VALUE k 5 3\r\nold\r\nEND\r\n", "{}", attempt.name);
    }
    assert_eq!(couchbase.ask(frame(0x94).key(b"k").vbucket(vb)).status, 0x86);
}
