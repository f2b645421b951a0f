//! Compressed values: how each client sees them after every operation, and that only Snappy is accepted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;
#[path = "../../kv/tests/numbers/mod.rs"]
mod numbers;

use std::sync::Arc;

use client::{Answer, Client, Frame, frame, persistent, store_extras};
use journal::SimulatedDisk;
use kv::defragmenter::Demand;
use kv::{BucketSettings, Compression, PersistenceSettings};
use numbers::numbers;
use proptest::prelude::*;
use sessions::Port;
use wire::snappy::Compressor;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const ADD: u8 = 0x02;
const REPLACE: u8 = 0x03;
const DELETE: u8 = 0x04;
const INCREMENT: u8 = 0x05;
const APPEND: u8 = 0x0e;
const PREPEND: u8 = 0x0f;
const TOUCH: u8 = 0x1c;
const GAT: u8 = 0x1d;
const HELLO: u8 = 0x1f;
const GET_LOCKED: u8 = 0x94;
const UNLOCK: u8 = 0x95;
const GET_META: u8 = 0xa0;

const SNAPPY: u16 = 0x0a;
/// MutationSeqno, Xerror, SelectBucket, JSON, Collections.
const USUAL: [u16; 5] = [0x04, 0x07, 0x08, 0x0b, 0x12];
const WITH_SNAPPY: [u16; 6] = [0x04, 0x07, 0x08, SNAPPY, 0x0b, 0x12];

const EINVAL: u16 = 4;
const E2BIG: u16 = 3;
const ENOMEM: u16 = 0x82;
const ETMPFAIL: u16 = 0x86;
const JSON: u8 = 1;
const COMPRESSED: u8 = 2;
/// A level that requires persistence on the active node, and the usual time.
const PERSISTED: [u8; 2] = [0x11, 2];

fn block(value: &[u8]) -> Vec<u8> {
    Compressor::default().compress(value).unwrap().to_vec()
}

/// Text that compresses to about a sixth.
fn text(len: usize) -> Vec<u8> {
    (0..)
        .flat_map(|n: u32| format!("{{\"line\":{},\"text\":\"...........\"}},", n % 97).into_bytes())
        .take(len)
        .collect()
}

fn on(opcode: u8, key: &str) -> Frame {
    let vbucket = (crc32fast::hash(key.as_bytes()) >> 16) as u16 & 0x3ff;
    frame(opcode).key(format!("\0{key}").as_bytes()).vbucket(vbucket)
}

fn stored(opcode: u8, key: &str, value: &[u8], datatype: u8) -> Frame {
    on(opcode, key).extras(&store_extras(0x0200_0000, 0)).value(value).datatype(datatype)
}

/// Clients of one node: one that accepts compressed values, one that does not, one on the memcached port.
struct Doors {
    snappy: Client,
    plain: Client,
    memcached: Client,
}

impl Doors {
    fn with(compression: Compression) -> Self {
        let settings = BucketSettings {
            memory_bytes: 256 << 20,
            compression,
            persistence: PersistenceSettings { flush_interval_ms: 0, ..Default::default() },
            ..Default::default()
        };
        Self::of(Client::before(Port::Couchbase, settings))
    }

    fn of(mut snappy: Client) -> Self {
        let mut plain = snappy.beside(1);
        let memcached = Client::of(Arc::clone(&snappy.node), Port::Memcached);
        snappy.open_bucket(&WITH_SNAPPY);
        plain.open_bucket(&USUAL);
        Self { snappy, plain, memcached: on_thread(memcached, 2) }
    }

    fn set(&mut self, key: &str, value: &[u8]) -> Answer {
        let answer = self.snappy.ask(stored(SET, key, &block(value), JSON | COMPRESSED));
        assert_eq!(answer.status, 0, "{answer:?}");
        answer
    }

    /// Checks that every client sees this value.
    fn all_see(&mut self, key: &str, value: &[u8]) {
        let seen = self.plain.ask(on(GET, key));
        assert_eq!((seen.status, seen.datatype & COMPRESSED), (0, 0));
        assert!(seen.body == value, "{key}: {} bytes, not {}", seen.body.len(), value.len());
        let seen = self.snappy.ask(on(GET, key));
        let inflated = if seen.datatype & COMPRESSED == 0 { seen.body.clone() } else { inflated(&seen.body) };
        assert!(seen.status == 0 && inflated == value, "{key}: {} bytes", inflated.len());
        let answer = self.memcached.send_raw(format!("gets {key}\r\n").as_bytes());
        let head = format!("VALUE {key} {} {} {}\r\n", 0x0200_0000, value.len(), seen.cas);
        let flagless = format!("VALUE {key} 0 {} {}\r\n", value.len(), seen.cas);
        let expected = |head: &str| [head.as_bytes(), value, b"\r\nEND\r\n"].concat();
        assert!(answer == expected(&head) || answer == expected(&flagless), "{key}");
        let answer = self.memcached.send_raw(format!("mg {key} s v\r\n").as_bytes());
        assert!(
            answer == [format!("VA {0} s{0}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
            "{key}"
        );
        assert!(self.binary().ask(frame(GET).key(key.as_bytes())).body == value, "{key}");
    }

    /// A client of memcached's binary protocol.
    fn binary(&self) -> Client {
        let mut binary = Client::of(Arc::clone(&self.snappy.node), Port::Memcached);
        binary.cx.now = self.snappy.cx.now;
        on_thread(binary, 3)
    }

    fn is_compressed(&mut self, key: &str) -> bool {
        let meta = self.plain.ask(on(GET_META, key).extras(&[2]));
        assert_eq!(meta.status, 0);
        meta.extras[20] & COMPRESSED != 0
    }

    /// Number of compressed values, their bytes, and these inflated, according to the accounts, which are checked
    /// against a walk.
    fn accounts(&mut self) -> (u64, u64, u64) {
        for client in [&mut self.plain, &mut self.memcached] {
            client.cx.end_batch();
            client.cx.rest();
        }
        let bucket = self.snappy.node.bucket("default").unwrap();
        let audit = bucket.audit(&mut self.snappy.cx).unwrap();
        (audit.compressed, audit.compressed_bytes, audit.inflated_bytes)
    }
}

/// Moves the client to the context of another thread.
fn on_thread(mut client: Client, thread: usize) -> Client {
    let now = client.cx.now;
    client.cx = kv::NodeContext::new(Arc::clone(&client.node), thread);
    client.cx.now = now;
    client
}

fn inflated(block: &[u8]) -> Vec<u8> {
    let mut value = vec![0; wire::snappy::check(block, 32 << 20).unwrap()];
    wire::snappy::inflate(block, &mut value);
    value
}

#[test]
fn what_arrives_compressed_is_kept_so_and_everybody_sees_it_in_his_way() {
    let mut doors = Doors::with(Compression::Passive);
    // Short; long only when inflated; long even when compressed.
    for (key, len) in [("short", 200), ("long", 100 << 10), ("longer", 1 << 20)] {
        let (value, sent) = (text(len), block(&text(len)));
        doors.set(key, &value);
        doors.all_see(key, &value);
        let seen = doors.snappy.ask(on(GET, key));
        assert!((seen.datatype, &seen.body) == (JSON | COMPRESSED, &sent));
        assert_eq!(doors.plain.ask(on(GET, key)).datatype, JSON);
        assert!(doors.is_compressed(key));
    }
    assert!(block(&text(1 << 20)).len() > 32 << 10 && block(&text(100 << 10)).len() < 32 << 10);
    let (values, bytes, inflated) = doors.accounts();
    assert_eq!((values, inflated), (3, 200 + (100 << 10) + (1 << 20)));
    assert!(bytes < inflated / 4, "{bytes}");
    for key in ["short", "long", "longer"] {
        assert_eq!(doors.plain.ask(on(DELETE, key)).status, 0);
    }
    assert_eq!(doors.accounts(), (0, 0, 0));
}

#[test]
fn only_what_was_negotiated_and_is_snappy_is_taken() {
    let mut doors = Doors::with(Compression::Passive);
    let refused = doors.plain.ask(stored(SET, "a", &block(b"value"), COMPRESSED));
    assert_eq!(refused.status, EINVAL, "not negotiated");
    let mut wrong_offset = block(&[b'x'; 1000]);
    *wrong_offset.last_mut().unwrap() = 0xff;
    let cut = &block(&text(1000))[..50];
    for opcode in [SET, ADD, REPLACE] {
        for bytes in [&b""[..], b"plain text", &wrong_offset, cut, &[0xff; 20]] {
            let refused = doors.snappy.ask(stored(opcode, "a", bytes, COMPRESSED));
            assert_eq!(refused.status, EINVAL, "{bytes:02x?}");
        }
    }
    // Seven bytes that claim to be 4 GiB, and a block that would inflate to 20 MiB and a byte.
    let limit = 20 << 20;
    for (bytes, status) in [
        (vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0, b'a'], E2BIG),
        (block(&vec![b'x'; limit + 1]), E2BIG),
        (block(&vec![b'x'; limit]), 0),
    ] {
        assert_eq!(doors.snappy.ask(stored(SET, "b", &bytes, COMPRESSED)).status, status);
    }
    assert_eq!(doors.snappy.ask(on(APPEND, "b").value(b"x")).status, E2BIG, "it is full");
    assert_eq!(doors.snappy.ask(on(GET, "a")).status, 1);
    doors.all_see_len("b", limit);
}

impl Doors {
    fn all_see_len(&mut self, key: &str, len: usize) {
        assert_eq!(self.plain.ask(on(GET, key)).body.len(), len);
    }
}

#[test]
fn every_operation_works_on_compressed_documents() {
    let mut doors = Doors::with(Compression::Passive);
    for len in [100, 20_000, 200_000] {
        let value = text(len);
        let first = doors.set("a", &value);

        let appended = doors.snappy.ask(on(APPEND, "a").value(&block(b"-end-end-end")).datatype(COMPRESSED));
        assert_eq!(appended.status, 0);
        let prepended = doors.plain.ask(on(PREPEND, "a").value(b"begin-"));
        assert_eq!(prepended.status, 0);
        doors.all_see("a", &[b"begin-", &value[..], b"-end-end-end"].concat());
        assert!(!doors.is_compressed("a"), "it was put together");

        let again = doors.set("a", &value);
        assert_eq!(doors.memcached.send_raw(b"append a 0 0 3\r\nxyz\r\n"), b"STORED\r\n");
        doors.all_see("a", &[&value[..], b"xyz"].concat());
        doors.set("a", &value);
        assert_eq!(doors.memcached.send_raw(b"ms a 3 MP\r\nxyz\r\n"), b"HD\r\n");
        doors.all_see("a", &[b"xyz", &value[..]].concat());
        assert!(first.cas < again.cas);

        let cas = doors.set("a", &value).cas;
        assert_eq!(doors.snappy.ask(stored(REPLACE, "a", b"x", 0).cas(cas + 1)).status, 2);
        assert_eq!(doors.plain.ask(on(TOUCH, "a").extras(&1000u32.to_be_bytes())).status, 0);
        assert!(doors.is_compressed("a"), "only the expiry is another");
        let got = doors.plain.ask(on(GAT, "a").extras(&0u32.to_be_bytes()));
        assert!(got.body == value && got.datatype == JSON);
        let got = doors.snappy.ask(on(GAT, "a").extras(&0u32.to_be_bytes()));
        assert!(got.body == block(&value) && got.datatype == JSON | COMPRESSED);
        let locked = doors.plain.ask(on(GET_LOCKED, "a"));
        assert!(locked.body == value);
        assert_eq!(doors.snappy.ask(stored(SET, "a", &block(b"1"), COMPRESSED)).status, 9);
        assert_eq!(doors.plain.ask(on(UNLOCK, "a").cas(locked.cas)).status, 0);
        let locked = doors.snappy.ask(on(GET_LOCKED, "a"));
        assert!(locked.body == block(&value));
        let kept = doors.snappy.ask(stored(SET, "a", &block(&value), COMPRESSED).cas(locked.cas));
        assert_eq!(kept.status, 0);
        assert_eq!(doors.memcached.send_raw(b"incr a 1\r\n").first(), Some(&b'C'), "no number");
        doors.all_see("a", &value);
    }
    // A number that a client chose to compress.
    let extras = [&5u64.to_be_bytes()[..], &0u64.to_be_bytes(), &0u32.to_be_bytes()].concat();
    for count in [37, 42] {
        doors.set("n", format!("{}", count - 5).as_bytes());
        let counted = doors.plain.ask(on(INCREMENT, "n").extras(&extras));
        assert_eq!((counted.status, counted.body), (0, u64::to_be_bytes(count).to_vec()));
    }
    doors.set("n", b"7");
    assert_eq!(doors.memcached.send_raw(b"incr n 3\r\n"), b"10\r\n");
    doors.set("n", b"7");
    assert_eq!(doors.memcached.send_raw(b"ma n D3\r\n"), b"HD\r\n");
    doors.all_see("n", b"10");
    doors.accounts();
}

#[test]
fn a_bucket_without_compression_keeps_values_inflated() {
    let mut doors = Doors::with(Compression::Off);
    for (key, len) in [("short", 200), ("long", 100 << 10), ("longer", 1 << 20)] {
        doors.set(key, &text(len));
        doors.all_see(key, &text(len));
        assert!(!doors.is_compressed(key));
        assert_eq!(doors.snappy.ask(on(GET, key)).datatype, 0, "it is not JSON, whatever was said");
    }
    assert_eq!(doors.accounts(), (0, 0, 0));
    // A HELLO after the bucket is selected is granted only what that bucket supports.
    for (compression, granted) in [(Compression::Off, false), (Compression::Passive, true)] {
        doors.snappy.node.bucket("default").unwrap().set_compression(compression);
        let answer = doors.snappy.ask(frame(HELLO).value(&SNAPPY.to_be_bytes()));
        assert_eq!(!answer.body.is_empty(), granted, "{compression:?}");
    }
}

#[test]
fn values_that_find_no_room_to_be_inflated_are_a_temporary_failure() {
    let settings = BucketSettings { memory_bytes: 16 << 20, ..Default::default() };
    let settings = BucketSettings { eviction: kv::Eviction::FailNewData, ..settings };
    let mut doors = Doors::of(Client::before(Port::Couchbase, settings));
    let value = vec![b'x'; 18 << 20];
    doors.set("bomb", &value);
    let bucket = Arc::clone(&doors.snappy.node.bucket("default").unwrap());
    let before = bucket.accounts();
    for _ in 0..3 {
        assert_eq!(doors.plain.ask(on(GET, "bomb")).status, ETMPFAIL);
        assert_eq!(doors.plain.ask(on(APPEND, "bomb").value(b"x")).status, ETMPFAIL);
        assert!(doors.memcached.send_raw(b"get bomb\r\n").starts_with(b"SERVER_ERROR out of memory"));
    }
    // A request that fails has changed nothing: no lock, no expiry, no recache winner.
    let cas = doors.snappy.ask(on(GET, "bomb")).cas;
    let soon = 1000u32.to_be_bytes();
    assert_eq!(doors.plain.ask(on(GET_LOCKED, "bomb")).status, ETMPFAIL);
    assert_eq!(doors.plain.ask(on(GAT, "bomb").extras(&soon)).status, ETMPFAIL);
    assert_eq!(doors.binary().ask(frame(GAT).key(b"bomb").extras(&soon)).status, ENOMEM);
    for command in ["gat 1000 bomb\r\n", "mg bomb v T1000 R9999\r\n"] {
        let answer = doors.memcached.send_raw(command.as_bytes());
        assert!(answer.starts_with(b"SERVER_ERROR out of memory"), "{command}");
    }
    assert_eq!(doors.memcached.send_raw(b"mg bomb t\r\n"), b"HD t-1\r\n");
    assert_eq!(doors.snappy.ask(on(GET, "bomb")).cas, cas);
    assert!(doors.snappy.ask(on(GET, "bomb")).body == block(&value));
    assert_eq!(bucket.accounts().in_flight, before.in_flight);
    doors.accounts();
}

#[test]
fn the_journal_keeps_compressed_values_and_gives_them_back() {
    let disk = SimulatedDisk::new();
    let values = [("short", text(300)), ("long", text(100 << 10)), ("longer", text(1 << 20))];
    {
        let mut doors = Doors::of(Client::of(persistent::node(&disk, 1024), Port::Couchbase));
        persistent::flush(&doors.snappy);
        for (key, value) in &values {
            doors.set(key, value);
        }
        let durable = stored(SET, "durable", &block(&text(500)), COMPRESSED).framing(&PERSISTED);
        assert_eq!(doors.snappy.send(&durable.bytes()), []);
        assert_eq!(doors.plain.ask(on(GET, "durable")).status, 1, "it is prepared only");
        persistent::flush(&doors.snappy);
        assert_eq!(doors.snappy.letters().len(), 1);
        doors.all_see("durable", &text(500));
        persistent::eject(&doors.snappy);
        assert_eq!(doors.accounts().0, 0, "none is in memory");
        for (key, value) in &values {
            let answers = doors.plain.send(&on(GET, key).bytes());
            assert_eq!(answers, [], "{key} has to be fetched");
            persistent::fetch(&doors.snappy);
            let answers = doors.plain.letters();
            assert!(answers[0].body == *value, "{key}");
            doors.all_see(key, value);
        }
        assert_eq!(doors.accounts().0, 3);
    }
    let mut doors = Doors::of(Client::of(persistent::node(&disk, 1024), Port::Couchbase));
    persistent::flush(&doors.snappy);
    for (key, value) in &values {
        doors.all_see(key, value);
        assert!(doors.is_compressed(key));
    }
    doors.all_see("durable", &text(500));
    assert_eq!(doors.accounts().0, 4);
}

/// Runs turns of the pager's thread until neither it nor the compressor has anything to do. Returns how many values
/// were compressed.
fn pager_turns(doors: &Doors, demand: &mut Demand) -> u64 {
    let bucket = doors.snappy.node.bucket("default").unwrap();
    let before = bucket.meter(kv::Meter::CompressorValues);
    let mut cx = persistent::cx(&doors.snappy);
    kv::pager::turn(&mut cx);
    // Without a clock a turn continues to the end of its pass.
    while kv::pager::compress(&mut cx, demand).is_some() {}
    bucket.meter(kv::Meter::CompressorValues) - before
}

/// Incompressible bytes.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    numbers(seed).map(|number| (number >> 32) as u8).take(len).collect()
}

const BUDGET: u64 = 32 << 20;

fn active() -> Doors {
    let settings = BucketSettings {
        memory_bytes: BUDGET,
        vbuckets: 1024,
        compression: Compression::Active,
        ..Default::default()
    };
    Doors::of(Client::before(Port::Couchbase, settings))
}

fn used(doors: &Doors) -> u64 {
    doors.snappy.node.bucket("default").unwrap().memory().resident
}

#[test]
fn the_compressor_works_while_memory_is_short_and_rests_otherwise() {
    let mut doors = active();
    let (mut demand, mut count) = (Demand::default(), 0);
    let value = |n: usize| [format!("{n}:").as_bytes(), &text(900 + n % 300)].concat();
    while used(&doors) < BUDGET / 2 {
        for n in count..count + 500 {
            assert_eq!(doors.plain.ask(stored(SET, &format!("key{n}"), &value(n), JSON)).status, 0);
        }
        count += 500;
        assert_eq!(pager_turns(&doors, &mut demand), 0, "memory is not short");
    }
    let large = [b"[".as_slice(), &b"{\"line\":1},".repeat(30_000), b"0]"].concat();
    let mut cas = Vec::new();
    assert_eq!(doors.plain.ask(stored(SET, "large", &large, 0)).status, 0);
    while pager_turns(&doors, &mut demand) == 0 {
        assert!(used(&doors) < BUDGET / 10 * 9, "it has not begun");
        cas.clear();
        for n in count..count + 500 {
            let stored = doors.plain.ask(stored(SET, &format!("key{n}"), &value(n), JSON));
            cas.push((n, stored.cas, stored.extras));
        }
        count += 500;
    }
    let (values, bytes, inflated) = doors.accounts();
    assert!(values > 10_000 && bytes * 3 < inflated, "{values} values, {bytes} bytes of {inflated}");
    let figures = doors.snappy.node.bucket("default").unwrap().accounts();
    assert!(figures.allocated < BUDGET / 2, "{figures:?}");
    for (n, cas, token) in &cas {
        let seen = doors.snappy.ask(on(GET, &format!("key{n}")));
        assert_eq!((seen.datatype, seen.cas), (COMPRESSED, *cas), "compressed, and the same version");
        assert_eq!(doors.snappy.ask(on(TOUCH, &format!("key{n}")).extras(&[0; 4])).extras[..8], token[..8]);
    }
    assert_eq!(
        doors.snappy.ask(on(GET, "large")).datatype,
        JSON | COMPRESSED,
        "as if the client had said so"
    );
    doors.all_see("large", &large);
    for n in (0..count).step_by(97) {
        doors.all_see(&format!("key{n}"), &value(n));
    }
    // Nothing is left to do, however often it is called.
    let compressed = doors.accounts().0;
    for _ in 0..5 {
        doors.snappy.node.bucket("default").unwrap().memory();
        assert_eq!(pager_turns(&doors, &mut demand), 0);
    }
    assert_eq!(doors.accounts().0, compressed);
}

#[test]
fn what_does_not_get_smaller_stays_and_is_looked_at_once() {
    let mut doors = active();
    let bucket = doors.snappy.node.bucket("default").unwrap();
    let (mut demand, mut count) = (Demand::default(), 0);
    while used(&doors) < BUDGET / 100 * 85 {
        for n in count..count + 500u64 {
            assert_eq!(doors.plain.ask(stored(SET, &format!("key{n}"), &noise(n, 1000), 0)).status, 0);
        }
        count += 500;
        assert_eq!(pager_turns(&doors, &mut demand), 0);
    }
    assert!(!bucket.is_compressing());
    assert_eq!(doors.accounts(), (0, 0, 0));
    doors.all_see("key7", &noise(7, 1000));
    // A few more compressible values do not cause another full pass.
    for n in 0..20 {
        assert_eq!(doors.plain.ask(stored(SET, &format!("text{n}"), &text(1000), 0)).status, 0);
    }
    bucket.memory();
    assert_eq!(pager_turns(&doors, &mut demand), 0);
    // After being switched on again it starts from scratch and finds these.
    bucket.set_compression(Compression::Active);
    assert_eq!(pager_turns(&doors, &mut demand), 20);
    doors.accounts();
}

#[test]
fn in_a_persistent_bucket_the_disk_need_not_know() {
    let disk = SimulatedDisk::new();
    let values = [("a", text(500)), ("b", text(200 << 10)), ("c", noise(1, 500)), ("d", text(30 << 10))];
    {
        let mut doors = Doors::of(Client::of(persistent::node(&disk, 1024), Port::Couchbase));
        persistent::flush(&doors.snappy);
        let bucket = doors.snappy.node.bucket("default").unwrap();
        // Clean ones and dirty ones.
        for (at, (key, value)) in values.iter().enumerate() {
            assert_eq!(doors.plain.ask(stored(SET, key, value, 0)).status, 0);
            if at == 1 {
                persistent::flush(&doors.snappy);
            }
        }
        bucket.compress_everything(&mut persistent::cx(&doors.snappy));
        assert_eq!(doors.accounts().0, 3);
        for (key, value) in &values {
            doors.all_see(key, value);
        }
        persistent::eject(&doors.snappy);
        assert_eq!(doors.accounts().0, 0);
        for (at, (key, value)) in values.iter().enumerate() {
            assert_eq!(doors.plain.send(&on(GET, key).bytes()), []);
            persistent::fetch(&doors.snappy);
            assert!(doors.plain.letters()[0].body == *value, "{key}");
            doors.all_see(key, value);
            // In the state in which it was flushed: compressed if the flush came after the compression.
            assert_eq!(doors.is_compressed(key), at == 3, "{key}");
        }
        doors.accounts();
    }
    let mut doors = Doors::of(Client::of(persistent::node(&disk, 1024), Port::Couchbase));
    persistent::flush(&doors.snappy);
    for (key, value) in &values {
        doors.all_see(key, value);
    }
    doors.accounts();
}

#[derive(Debug, Clone)]
enum Step {
    Compressed(Vec<u8>),
    Plain(Vec<u8>),
    Append(Vec<u8>, bool),
    Prepend(Vec<u8>),
    Touch,
    Delete,
    Mode(Compression),
    CompressAll,
    Defragment,
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = (prop::collection::vec(any::<u8>(), 0..60), prop_oneof![9 => 1..30usize, 1 => 1..3000usize]);
    prop::collection::vec(piece, 0..6)
        .prop_map(|pieces| pieces.iter().flat_map(|(bytes, times)| bytes.repeat(*times)).collect())
}

fn steps() -> impl Strategy<Value = Vec<(u8, Step)>> {
    let mode = prop::sample::select(vec![Compression::Off, Compression::Passive]);
    let step = prop_oneof![
        4 => pieces().prop_map(Step::Compressed),
        2 => pieces().prop_map(Step::Plain),
        2 => (pieces(), any::<bool>()).prop_map(|(piece, compressed)| Step::Append(piece, compressed)),
        1 => pieces().prop_map(Step::Prepend),
        1 => Just(Step::Touch),
        1 => Just(Step::Delete),
        1 => mode.prop_map(Step::Mode),
        2 => Just(Step::CompressAll),
        1 => Just(Step::Defragment),
    ];
    prop::collection::vec((0..3u8, step), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_value_by_any_way_is_what_it_was(steps in steps()) {
        let mut doors = Doors::with(Compression::Passive);
        let mut model = std::collections::BTreeMap::<u8, Vec<u8>>::new();
        for (number, step) in steps {
            let key = format!("key{number}");
            let (frame, expected) = match step {
                Step::Mode(compression) => {
                    doors.snappy.node.bucket("default").unwrap().set_compression(compression);
                    continue;
                }
                Step::CompressAll => {
                    let bucket = doors.snappy.node.bucket("default").unwrap();
                    bucket.compress_everything(&mut doors.snappy.cx);
                    continue;
                }
                Step::Defragment => {
                    let bucket = doors.snappy.node.bucket("default").unwrap();
                    let mut mover = kv::defragmenter::Mover::of_everything();
                    while mover.slice(&bucket, &mut doors.snappy.cx) {}
                    continue;
                }
                Step::Compressed(value) => (stored(SET, &key, &block(&value), COMPRESSED), Some(value)),
                Step::Plain(value) => (stored(SET, &key, &value, 0), Some(value)),
                Step::Append(piece, compressed) => {
                    let sent = if compressed { block(&piece) } else { piece.clone() };
                    let frame = on(APPEND, &key).value(&sent).datatype(if compressed { COMPRESSED } else { 0 });
                    (frame, model.get(&number).map(|old| [&old[..], &piece].concat()))
                }
                Step::Prepend(piece) => {
                    let expected = model.get(&number).map(|old| [&piece[..], old].concat());
                    (on(PREPEND, &key).value(&piece), expected)
                }
                Step::Touch => (on(TOUCH, &key).extras(&1000u32.to_be_bytes()), model.get(&number).cloned()),
                Step::Delete => (on(DELETE, &key), None),
            };
            doors.snappy.ask(frame);
            match expected {
                Some(value) => {
                    doors.all_see(&key, &value);
                    model.insert(number, value);
                }
                None => drop(model.remove(&number)),
            }
        }
        doors.accounts();
    }
}
