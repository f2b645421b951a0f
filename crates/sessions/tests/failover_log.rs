//! GET_FAILOVER_LOG of a persistent bucket: a crash begins another history, a clean stop does not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::persistent::{self, flush};
use client::{Client, frame, store_extras};
use journal::{SimulatedDisk, Survival};
use kv::persistence::Flusher;
use sessions::Port;

const SET: u8 = 0x01;
const GET_FAILOVER_LOG: u8 = 0x96;
const ETMPFAIL: u16 = 0x86;
const MUTATION_SEQNO: u16 = 0x04;

fn client(disk: &SimulatedDisk) -> Client {
    let mut client = Client::of(persistent::node(disk, 2), Port::Couchbase);
    client.open_bucket(&[MUTATION_SEQNO]);
    client
}

/// Makes a change in this vBucket; returns its history and seqno.
fn change(client: &mut Client, vb: u16) -> (u64, u64) {
    let answer = client.ask(frame(SET).key(b"k").vbucket(vb).extras(&store_extras(0, 0)).value(b"v"));
    assert_eq!(answer.status, 0);
    let number = |at: usize| u64::from_be_bytes(answer.extras[at..at + 8].try_into().unwrap());
    (number(0), number(8))
}

/// The failover log, newest first.
fn log(client: &mut Client, vb: u16) -> Vec<(u64, u64)> {
    let answer = client.ask(frame(GET_FAILOVER_LOG).vbucket(vb));
    assert_eq!((answer.status, answer.body.len() % 16), (0, 0));
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    answer.body.chunks(16).map(|entry| (number(&entry[..8]), number(&entry[8..]))).collect()
}

#[test]
fn every_crash_begins_another_history() {
    let disk = SimulatedDisk::new();
    let mut expected = Vec::new();
    for round in 0..4 {
        let mut client = client(&disk);
        if round > 0 {
            let answer = client.ask(frame(GET_FAILOVER_LOG));
            assert_eq!(answer.status, ETMPFAIL, "it is not read in yet");
        }
        flush(&client);
        let began_at = log(&mut client, 0)[0].1;
        let (history, seqno) = change(&mut client, 0);
        expected.insert(0, (history, began_at));
        assert_eq!(log(&mut client, 0), expected);
        assert_eq!(log(&mut client, 1).len(), 1, "nothing was ever written to it");
        flush(&client);
        assert_eq!(log(&mut client, 0), expected);
        assert_eq!(change(&mut client, 0), (history, seqno + 1), "this one is lost");
        drop(client);
        disk.crash(Survival::Synced);
        let next = self::client(&disk);
        flush(&next);
        drop(next);
        disk.crash(Survival::Synced);
        // Two crashes in a row: the one in between has changed nothing, but its history is on disk.
        let mut after = self::client(&disk);
        flush(&after);
        let found = log(&mut after, 0);
        assert!(found.ends_with(&expected) && found.len() > expected.len(), "{found:?} after {expected:?}");
        assert!(found[..found.len() - expected.len()].iter().all(|(_, began_at)| *began_at == seqno));
        expected = found;
        drop(after);
        disk.crash(Survival::Synced);
    }
}

#[test]
fn a_clean_stop_goes_on_with_the_same_history() {
    let disk = SimulatedDisk::new();
    let mut first = client(&disk);
    flush(&first);
    let (history, seqno) = change(&mut first, 0);
    let bucket = first.node.bucket("default").unwrap();
    kv::persistence::close_journal(&bucket, &mut persistent::cx(&first), &mut Flusher::new(0, 1 << 20))
        .unwrap();
    drop((bucket, first));
    let mut second = client(&disk);
    flush(&second);
    assert_eq!(log(&mut second, 0), [(history, 0)]);
    assert_eq!(change(&mut second, 0), (history, seqno + 1));
}
