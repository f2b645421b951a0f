//! What is answered about deleted documents that have left no attributes, in every kind of bucket that remembers them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::{Client, Frame, frame, persistent, store_extras};
use journal::SimulatedDisk;
use kv::BucketSettings;
use sessions::Port;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const DELETE: u8 = 0x04;
const GET_META: u8 = 0xa0;
const DEL_WITH_META: u8 = 0xa8;
const SET_WITH_META: u8 = 0xa2;
const SUBDOC_GET: u8 = 0xc5;
const SUBDOC_DICT_UPSERT: u8 = 0xc8;
const SUBDOC_DELETE: u8 = 0xc9;
const SUBDOC_MULTI_LOOKUP: u8 = 0xd0;
const SUBDOC_MULTI_MUTATION: u8 = 0xd1;
const XATTR: u8 = 4;
const MKDOC: u8 = 1;
const ADD: u8 = 2;
const ACCESS_DELETED: u8 = 4;
const CREATE_AS_DELETED: u8 = 8;
const REVIVE: u8 = 16;
const SUCCESS_DELETED: u16 = 0xcd;
const MULTI_FAILURE_DELETED: u16 = 0xd3;
const CAN_ONLY_REVIVE: u16 = 0xd6;
/// MutationSeqno, Xattr, Xerror, SelectBucket.
const FEATURES: [u16; 4] = [0x04, 0x06, 0x07, 0x08];

fn lookups(paths: &[&str]) -> Frame {
    let mut value = Vec::new();
    for path in paths {
        value.extend([SUBDOC_GET, XATTR, 0, path.len() as u8]);
        value.extend(path.as_bytes());
    }
    frame(SUBDOC_MULTI_LOOKUP).key(b"key").vbucket(VB).extras(&[ACCESS_DELETED]).value(&value)
}

fn mutation(opcode: u8, path: &str, operand: &str, flags: u8) -> Frame {
    let mut value = vec![opcode, XATTR, 0, path.len() as u8, 0, 0, 0, operand.len() as u8];
    value.extend(path.as_bytes());
    value.extend(operand.as_bytes());
    frame(SUBDOC_MULTI_MUTATION).key(b"key").vbucket(VB).extras(&[flags]).value(&value)
}

const VB: u16 = 0;

fn on(opcode: u8) -> Frame {
    frame(opcode).key(b"key").vbucket(VB)
}

type Forget = fn(&Client);

/// A client, and what makes its bucket forget everything that it need not remember.
fn clients() -> Vec<(Client, Forget)> {
    let settings = BucketSettings { vbuckets: 1, purge_age_s: 1000, ..Default::default() };
    let on_disk = || Client::of(persistent::node(&SimulatedDisk::new(), 1), Port::Couchbase);
    vec![
        (Client::before(Port::Couchbase, settings), |_| {}),
        (on_disk(), |_| {}),
        (on_disk(), persistent::flush),
    ]
}

/// Deletes the document. Returns the deletion's CAS.
fn delete(client: &mut Client) -> u64 {
    assert_eq!(client.ask(on(SET).extras(&store_extras(9, 0)).value(b"{}")).status, 0);
    let deleted = client.ask(on(DELETE));
    assert_eq!(deleted.status, 0);
    deleted.cas
}

#[test]
fn a_deletion_is_looked_up() {
    for (mut client, forget) in clients() {
        load_and_flush(&client);
        client.open_bucket(&FEATURES);
        assert_eq!(client.ask(lookups(&["$document"])).status, 1, "there was nothing");
        assert_eq!(client.ask(on(GET_META)).status, 1);
        let cas = delete(&mut client);
        forget(&client);
        let seen = client.ask(lookups(&["$document"]));
        assert_eq!((seen.status, seen.cas), (SUCCESS_DELETED, cas));
        let document: serde_json::Value = serde_json::from_slice(&seen.body[6..]).unwrap();
        assert_eq!(document["deleted"], true);
        assert_eq!(document["CAS"], format!("0x{cas:016x}"));
        assert_eq!(document["value_bytes"], 0);
        let rev: u64 = document["revid"].as_str().unwrap().parse().unwrap();
        let seen = client.ask(lookups(&["$document.CAS", "_sync"]));
        assert_eq!((seen.status, seen.cas), (MULTI_FAILURE_DELETED, cas));
        let meta = client.ask(on(GET_META).extras(&[2]));
        assert_eq!((meta.status, meta.cas, meta.extras[3], meta.extras[20]), (0, cas, 1, 0));
        assert_eq!(meta.extras[12..20], rev.to_be_bytes());
        assert!(rev >= 2);
        // Everybody else sees nothing.
        assert_eq!(client.ask(on(GET)).status, 1);
        assert_eq!(client.ask(on(DELETE)).status, 1);
        let plain = frame(SUBDOC_GET).key(b"key").vbucket(VB).extras(&[0, 1, XATTR]).value(b"a");
        assert_eq!(client.ask(plain).status, 1);
        // The time after which it may be forgotten: 1000 s, or three days.
        client.pass_s(3 * 86_400 + 5000);
        load_and_flush(&client);
        kv::pager::turn(&mut persistent::cx(&client));
        assert_eq!(client.ask(lookups(&["$document"])).status, 1);
    }
}

/// If the bucket is persistent.
fn load_and_flush(client: &Client) {
    if client.node.bucket("default").unwrap().persistence().is_some() {
        persistent::flush(client);
    }
}

#[test]
fn a_deletion_is_revived_and_replaced_by_its_cas() {
    for (mut client, forget) in clients() {
        load_and_flush(&client);
        client.open_bucket(&FEATURES);
        let cas = delete(&mut client);
        forget(&client);
        let stage = |flags| mutation(SUBDOC_DICT_UPSERT, "txn", "1", flags);
        // It is there: nothing is created in its place by those who do not name it.
        assert_eq!(client.ask(stage(ADD | CREATE_AS_DELETED)).status, 2);
        assert_eq!(client.ask(stage(ADD | CREATE_AS_DELETED | ACCESS_DELETED)).status, 2);
        assert_eq!(client.ask(stage(REVIVE | ACCESS_DELETED).cas(cas + 1)).status, 2);
        assert_eq!(client.ask(stage(ACCESS_DELETED).cas(cas + 1)).status, 2);
        let revived = client.ask(stage(REVIVE | ACCESS_DELETED).cas(cas));
        assert_eq!(revived.status, 0);
        assert_eq!(client.ask(on(GET)).body, b"{}");
        // Of a living document a wrong CAS is told first.
        assert_eq!(client.ask(stage(REVIVE | ACCESS_DELETED).cas(cas)).status, 2);
        assert_eq!(client.ask(stage(REVIVE | ACCESS_DELETED)).status, CAN_ONLY_REVIVE);
        assert_eq!(client.ask(stage(REVIVE | ACCESS_DELETED).cas(revived.cas)).status, CAN_ONLY_REVIVE);
        // Attributes are added to a deletion, and the last one that goes leaves a deletion.
        let cas = delete(&mut client);
        forget(&client);
        let staged = client.ask(stage(ACCESS_DELETED).cas(cas));
        assert_eq!(staged.status, SUCCESS_DELETED);
        let removed = client.ask(mutation(SUBDOC_DELETE, "txn", "", ACCESS_DELETED));
        assert_eq!(removed.status, SUCCESS_DELETED);
        forget(&client);
        let seen = client.ask(lookups(&["txn"]));
        assert_eq!((seen.status, seen.cas), (MULTI_FAILURE_DELETED, removed.cas));
        assert!(removed.cas > staged.cas && staged.cas > cas);
        assert_eq!(client.ask(stage(MKDOC)).status, 0, "who does not look for deletions replaces it");
    }
}

#[test]
fn versions_from_elsewhere_lose_to_newer_deletions() {
    for (mut client, forget) in clients() {
        load_and_flush(&client);
        client.open_bucket(&FEATURES);
        let meta = |opcode, rev: u64, cas: u64| {
            let extras = [&[0; 8][..], &rev.to_be_bytes(), &cas.to_be_bytes()].concat();
            on(opcode).extras(&extras)
        };
        let now = client.cx.now.unix_ns;
        assert_eq!(client.ask(meta(DEL_WITH_META, 9, now)).status, 0);
        forget(&client);
        assert_eq!(client.ask(meta(SET_WITH_META, 8, now + 1).value(b"x")).status, 2, "fewer revisions");
        assert_eq!(client.ask(meta(SET_WITH_META, 9, now).value(b"x")).status, 2, "the same");
        assert_eq!(client.ask(meta(SET_WITH_META, 10, now + 1).value(b"x")).status, 0);
    }
}
