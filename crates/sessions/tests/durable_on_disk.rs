//! Persistent durability levels, on a simulated disk: answered by the flush that covers them, and preserved across a
//! power cut.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::persistent::{self, flush};
use client::{Client, Frame, frame, store_extras};
use journal::{SimulatedDisk, Survival};
use kv::VbId;
use kv::persistence::FLUSHERS;
use sessions::Port;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const IN_PROGRESS: u16 = 0xa2;
const AMBIGUOUS: u16 = 0xa3;

fn client(disk: &SimulatedDisk) -> Client {
    let mut client = Client::of(persistent::node(disk, 16), Port::Couchbase);
    client.open_bucket(&[]);
    client
}

fn set(vb: u16, key: &str, value: &str) -> Frame {
    frame(SET).key(key.as_bytes()).vbucket(vb).extras(&store_extras(0, 0)).value(value.as_bytes())
}

fn durably(frame: Frame, level: u8) -> Frame {
    frame.framing(&[0x13, level, 0x10, 0])
}

fn get(vb: u16, key: &str) -> Frame {
    frame(GET).key(key.as_bytes()).vbucket(vb)
}

#[test]
fn a_level_that_persists_is_answered_by_the_flush_that_covers_it() {
    let mut client = client(&SimulatedDisk::new());
    flush(&client);
    assert_eq!(client.ask(durably(set(1, "majority", "v"), 1)).status, 0, "alone, memory is the majority");
    for level in [2, 3] {
        let key = format!("key-{level}");
        assert_eq!(client.ask_all(&[durably(set(2, &key, "v"), level)]), []);
        assert_eq!(client.letters(), []);
        flush(&client);
        let answers = client.letters();
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].status, 0);
        assert_eq!(client.ask(get(2, &key)).body, b"v");
    }
}

#[test]
fn many_writes_share_a_flush_and_a_power_cut_takes_none_of_them() {
    let disk = SimulatedDisk::new();
    let mut client = client(&disk);
    let writes: Vec<Frame> =
        (0..200).map(|n| durably(set(n % 16, &format!("key-{n}"), "v"), 3).opaque(n.into())).collect();
    assert_eq!(client.ask_all(&writes), []);
    let bucket = client.node.bucket("default").unwrap();
    let before = bucket.persistence_figures(&mut client.cx).unwrap().commits;
    flush(&client);
    let after = bucket.persistence_figures(&mut client.cx).unwrap().commits;
    assert!(after - before <= FLUSHERS as u64, "{} commits", after - before);
    let answers = client.letters();
    assert_eq!(answers.len(), 200);
    assert!(answers.iter().enumerate().all(|(at, answer)| answer.status == 0 && answer.opaque == at as u32));
    drop((bucket, client));
    disk.crash(Survival::Synced);
    // Only the prepares are on disk; they are committed again, and were never aborted.
    let mut client = self::client(&disk);
    flush(&client);
    let bucket = client.node.bucket("default").unwrap();
    for vb in 0..16 {
        bucket.adopt_prepares(&mut client.cx, VbId(vb));
    }
    for n in 0..200u16 {
        assert_eq!(client.ask(get(n % 16, &format!("key-{n}"))).body, b"v", "key-{n}");
    }
}

#[test]
fn without_a_flush_it_is_ambiguous_and_its_key_is_taken_until_then() {
    let mut client = client(&SimulatedDisk::new());
    assert_eq!(client.ask_all(&[durably(set(1, "k", "v"), 3)]), []);
    let mut other = client.beside(1);
    other.open_bucket(&[]);
    assert_eq!(other.ask(set(1, "k", "x")).status, IN_PROGRESS);
    let answers = client.pass_ms(0x1000);
    assert_eq!((answers.len(), answers[0].status), (1, AMBIGUOUS));
    assert_eq!(other.ask(set(1, "k", "x")).status, 0);
    flush(&client);
    assert_eq!(other.ask(get(1, "k")).body, b"x");
}
