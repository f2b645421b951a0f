//! Couchbase KV through a session: bytes in, bytes out, no sockets.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::{Answer, Client, Frame, frame, store_extras};
use kv::{BucketSettings, Eviction};
use sessions::Port;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const ADD: u8 = 0x02;
const DELETE: u8 = 0x04;
const INCREMENT: u8 = 0x05;
const NOOP: u8 = 0x0a;
const APPEND: u8 = 0x0e;
const STAT: u8 = 0x10;
const TOUCH: u8 = 0x1c;
const GAT: u8 = 0x1d;
const SET_VBUCKET: u8 = 0x3d;
const DEL_VBUCKET: u8 = 0x3f;
const HELLO: u8 = 0x1f;
const SASL_AUTH: u8 = 0x21;
const SELECT_BUCKET: u8 = 0x89;
const OBSERVE_SEQNO: u8 = 0x91;
const SEQNO_PERSISTENCE: u8 = 0xb7;
const GET_LOCKED: u8 = 0x94;
const UNLOCK: u8 = 0x95;
const GET_FAILOVER_LOG: u8 = 0x96;
const GET_META: u8 = 0xa0;
const GET_CLUSTER_CONFIG: u8 = 0xb5;
const GET_COLLECTION_ID: u8 = 0xbb;
const GET_ERROR_MAP: u8 = 0xfe;

/// MutationSeqno, Xerror, SelectBucket, JSON, Collections: what the SDKs use, without server durations.
const USUAL: [u16; 5] = [0x04, 0x07, 0x08, 0x0b, 0x12];

fn hello(client: &mut Client, features: &[u16]) -> Vec<u16> {
    let body: Vec<u8> = features.iter().flat_map(|feature| feature.to_be_bytes()).collect();
    let answer = client.ask(frame(HELLO).key(b"{\"a\":\"test\"}").value(&body));
    assert_eq!(answer.status, 0);
    answer.body.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect()
}

fn log_in(client: &mut Client) {
    let answer = client.ask(frame(SASL_AUTH).key(b"PLAIN").value(b"\0Administrator\0password"));
    assert_eq!(answer.status, 0);
}

/// A client with these features, logged in, on the bucket `default`.
fn ready(features: &[u16]) -> Client {
    let mut client = Client::couchbase();
    client.open_bucket(features);
    client
}

/// A request about a document of the default collection, with its vBucket.
fn on(opcode: u8, key: &str) -> Frame {
    let vbucket = (crc32fast::hash(key.as_bytes()) >> 16) as u16 & 0x3ff;
    frame(opcode).key(format!("\0{key}").as_bytes()).vbucket(vbucket)
}

fn set(key: &str, value: &[u8]) -> Frame {
    on(SET, key).extras(&store_extras(0x0200_0000, 0)).value(value).datatype(1)
}

fn context(answer: &Answer) -> String {
    assert_eq!(answer.datatype, 1, "{answer:?}");
    answer.json()["error"]["context"].as_str().unwrap().to_owned()
}

#[test]
fn hello_grants_what_works_and_nothing_else() {
    let mut client = Client::couchbase();
    let asked: Vec<u16> = (0..0x22).collect();
    let mut granted = hello(&mut client, &asked);
    granted.sort_unstable();
    assert_eq!(
        granted,
        [
            0x03, 0x04, 0x06, 0x07, 0x08, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12, 0x14, 0x15,
            0x17, 0x18, 0x19, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x21
        ]
    );
    // The user documentation says the same, and does not contradict it elsewhere.
    let page = include_str!("../../../docs/couchbase-kv.md");
    let section = page.split("## Features HELLO grants").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<(u16, &str)> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| 0x")?.split_once(" | "))
        .map(|(code, rest)| (u16::from_str_radix(code, 16).unwrap(), rest.split(' ').next().unwrap()))
        .collect();
    assert_eq!(rows.iter().map(|(code, _)| *code).collect::<Vec<_>>(), granted);
    let refused = section.lines().find(|line| line.starts_with("Not granted")).unwrap();
    let words: Vec<&str> = refused.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    assert_eq!(rows.iter().find(|(_, name)| words.contains(name)), None, "{refused}");
    assert_eq!(client.ask(frame(HELLO).value(b"odd")).status, 4);
}

#[test]
fn a_new_map_is_told_once_to_who_asked_for_it() {
    const FULL: u16 = 0x0d;
    const BRIEF: u16 = 0x1f;
    let mut client = Client::couchbase();
    for feature in [FULL, BRIEF] {
        let answer = client.ask(frame(HELLO).value(&feature.to_be_bytes()));
        assert_eq!((answer.status, answer.body.is_empty()), (4, true), "without Duplex");
    }
    for (feature, has_map) in [(FULL, true), (BRIEF, false)] {
        let mut client = Client::couchbase();
        hello(&mut client, &[0x0b, 0x0c, feature]);
        client.node.note_map_change();
        assert_eq!(client.messages(), b"", "who has not logged in learns nothing");
        client.open_bucket(&[0x0b, 0x0c, feature]);
        let revision = client.node.map_revision() + 2;
        client.node.note_map_change();
        client.node.note_map_change();
        let told = client.messages();
        let (header, body) = told.split_at(24);
        assert_eq!(header[..6], [0x82, 0x01, 0, 7, 16, u8::from(has_map)], "however much has changed");
        assert_eq!(u32::from_be_bytes(header[8..12].try_into().unwrap()) as usize, body.len());
        assert_eq!(body[8..16], revision.to_be_bytes());
        assert_eq!(body[16..23], *b"default");
        if has_map {
            let map: serde_json::Value = serde_json::from_slice(&body[23..]).unwrap();
            assert_eq!((map["rev"].as_u64(), map["name"].as_str()), (Some(revision), Some("default")));
        } else {
            assert_eq!(body.len(), 23);
        }
        assert_eq!(client.messages(), b"");
        // It need not be answered; and it may be.
        let answer = [&[0x83, 0x01][..], &[0; 22]].concat();
        assert_eq!(client.send(&answer), []);
        assert_eq!(client.ask(frame(NOOP)).status, 0);
        // From now on it is told nothing.
        hello(&mut client, &[0x0b]);
        client.node.note_map_change();
        assert_eq!(client.messages(), b"");
    }
}

#[test]
fn the_development_user_stays_on_loopback() {
    let mut client = Client::couchbase();
    client.session.peer.loopback = false;
    assert_eq!(client.ask(frame(SASL_AUTH).key(b"PLAIN").value(b"\0Administrator\0password")).status, 0x20);
}

#[test]
fn the_handshake_may_come_in_one_packet() {
    let mut client = Client::couchbase();
    let features: Vec<u8> = USUAL.iter().flat_map(|feature| feature.to_be_bytes()).collect();
    let answers = client.ask_all(&[
        frame(HELLO).value(&features),
        frame(GET_ERROR_MAP).value(&[0, 1]),
        frame(0x20),
        frame(SASL_AUTH).key(b"PLAIN").value(b"\0Administrator\0password"),
        frame(SELECT_BUCKET).key(b"default"),
        frame(GET_CLUSTER_CONFIG),
        set("a", b"1"),
        on(GET, "a"),
    ]);
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [0; 8]);
    assert_eq!(answers[2].body, b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN");
    assert_eq!(answers[7].body, b"1");
}

#[test]
fn stages_before_the_data() {
    let mut client = Client::couchbase();
    hello(&mut client, &USUAL);
    let answer = client.ask(on(GET, "a"));
    assert_eq!((answer.status, context(&answer).as_str()), (0x24, "Log in first"));
    assert_eq!(client.ask(frame(0x7f)).status, 0x81);
    log_in(&mut client);
    assert_eq!(client.ask(on(GET, "a")).status, 0x08);
    assert_eq!(client.ask(frame(SELECT_BUCKET).key(b"none")).status, 0x24);
    assert_eq!(client.ask(frame(SELECT_BUCKET).key(b"default")).status, 0);
    assert_eq!(client.ask(on(GET, "a")).status, 0x01);
}

#[test]
fn error_map_in_both_versions() {
    let mut client = Client::couchbase();
    for version in [1u8, 2, 9] {
        let map = client.ask(frame(GET_ERROR_MAP).value(&[0, version])).json();
        assert_eq!(map["version"], version.min(2));
        assert_eq!(map["errors"]["9"]["name"], "LOCKED");
    }
    assert_eq!(client.ask(frame(GET_ERROR_MAP).value(&[0, 0])).status, 4);
}

#[test]
fn cluster_and_bucket_level_maps() {
    let mut client = Client::couchbase();
    hello(&mut client, &USUAL);
    log_in(&mut client);
    let cluster = client.ask(frame(GET_CLUSTER_CONFIG)).json();
    assert!(cluster["nodesExt"][0]["thisNode"].as_bool().unwrap() && cluster.get("name").is_none());
    client.ask(frame(SELECT_BUCKET).key(b"default"));
    let answer = client.ask(frame(GET_CLUSTER_CONFIG));
    let bucket = answer.json();
    assert_eq!((answer.datatype, bucket["name"].as_str()), (1, Some("default")));
    assert_eq!(bucket["vBucketServerMap"]["vBucketMap"].as_array().unwrap().len(), 1024);
    assert_eq!(bucket["vBucketServerMap"]["numReplicas"], 0);
    assert_eq!(bucket["nodeLocator"], "vbucket");
    // The JVM SDKs take a bucket with "couchapi" for a persistent one.
    let capabilities = bucket["bucketCapabilities"].as_array().unwrap();
    assert_eq!(
        (bucket["bucketType"].as_str(), capabilities.contains(&"couchapi".into())),
        (Some("ephemeral"), false)
    );
    let rev = bucket["rev"].as_i64().unwrap();
    for (known, is_sent) in [(rev - 1, true), (rev, false), (rev + 1, false)] {
        let extras = [bucket["revEpoch"].as_i64().unwrap().to_be_bytes(), known.to_be_bytes()].concat();
        let answer = client.ask(frame(GET_CLUSTER_CONFIG).extras(&extras));
        assert_eq!((answer.status, !answer.body.is_empty()), (0, is_sent));
    }
    assert_eq!(client.ask(frame(GET_CLUSTER_CONFIG).extras(&[0; 7])).status, 4);
}

#[test]
fn documents_carry_flags_datatype_and_mutation_tokens() {
    let mut client = ready(&USUAL);
    let first = client.ask(set("a", b"{\"a\":1}"));
    let second = client.ask(set("a", b"{\"a\":2}"));
    assert_eq!((first.extras.len(), second.extras.len()), (16, 16));
    assert_eq!(first.extras[..8], second.extras[..8], "one history");
    assert!(first.extras[8..] < second.extras[8..] && first.cas < second.cas);
    let read = client.ask(on(GET, "a"));
    assert_eq!((read.datatype, read.cas, read.extras.as_slice()), (1, second.cas, &[2, 0, 0, 0][..]));
    let removed = client.ask(on(DELETE, "a"));
    assert_eq!((removed.status, removed.extras.len()), (0, 16));
    assert_eq!(client.ask(on(GET, "a")).status, 1);
}

#[test]
fn without_features_answers_are_plain() {
    let mut client = ready(&[]);
    let vbucket = (crc32fast::hash(b"a") >> 16) as u16 & 0x3ff;
    let plain = |opcode| frame(opcode).key(b"a").vbucket(vbucket);
    assert_eq!(client.ask(plain(SET).extras(&store_extras(0, 0)).value(b"x")).extras.len(), 0);
    assert_eq!(
        client.ask(plain(SET).extras(&store_extras(0, 0)).datatype(1)).status,
        4,
        "JSON was not granted"
    );
    let locked = client.ask(plain(GET_LOCKED));
    assert_eq!(locked.status, 0);
    let refused = client.ask(plain(SET).extras(&store_extras(0, 0)));
    assert_eq!((refused.status, refused.body.len()), (0x86, 0), "LOCKED is unknown without XERROR");
}

#[test]
fn conditions() {
    let mut client = ready(&USUAL);
    let stored = client.ask(set("a", b"1"));
    assert_eq!(client.ask(on(ADD, "a").extras(&store_extras(0, 0))).status, 2);
    assert_eq!(client.ask(on(ADD, "b").extras(&store_extras(0, 0)).cas(5)).status, 4);
    assert_eq!(client.ask(set("a", b"2").cas(stored.cas + 1)).status, 2);
    assert_eq!(client.ask(set("b", b"2").cas(1)).status, 1);
    assert_eq!(client.ask(on(0x03, "b").extras(&store_extras(0, 0))).status, 1);
    assert_eq!(client.ask(on(APPEND, "b").value(b"x")).status, 5);
    assert_eq!(client.ask(on(APPEND, "a").value(b"x").cas(stored.cas)).status, 0);
    assert_eq!(client.ask(on(GET, "a")).body, b"1x");
    assert_eq!(client.ask(on(DELETE, "a").cas(1)).status, 2);
}

#[test]
fn counters() {
    let mut client = ready(&USUAL);
    let extras = |delta: u64, initial: u64, exptime: u32| {
        [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &exptime.to_be_bytes()].concat()
    };
    assert_eq!(client.ask(on(INCREMENT, "n").extras(&extras(1, 5, 0xffff_ffff))).status, 1);
    let created = client.ask(on(INCREMENT, "n").extras(&extras(1, 10, 0)));
    assert_eq!((created.body.as_slice(), created.extras.len()), (&10u64.to_be_bytes()[..], 16));
    assert_eq!(client.ask(on(0x06, "n").extras(&extras(1, 0, 0))).body, 9u64.to_be_bytes());
    assert_eq!(client.ask(on(GET, "n")).body, b"9", "no padding");
    client.ask(set("s", b"\"text\""));
    assert_eq!(client.ask(on(INCREMENT, "s").extras(&extras(1, 0, 0))).status, 6);
    assert_eq!(client.ask(on(INCREMENT, "s").extras(&[0; 8])).status, 4);
}

#[test]
fn a_locked_document() {
    let mut client = ready(&USUAL);
    let stored = client.ask(set("a", b"1"));
    assert_eq!(client.ask(on(UNLOCK, "a").cas(stored.cas)).status, 0x0e);
    let locked = client.ask(on(GET_LOCKED, "a").extras(&5u32.to_be_bytes()));
    assert_eq!((locked.status, locked.body.as_slice()), (0, &b"1"[..]));
    assert_ne!(locked.cas, stored.cas);
    assert_eq!(client.ask(on(GET, "a")).cas, u64::MAX, "the CAS is masked");
    for request in [set("a", b"2"), on(DELETE, "a"), on(GET_LOCKED, "a"), on(TOUCH, "a").extras(&[0; 4])] {
        assert_eq!(client.ask(request).status, 9);
    }
    assert_eq!(client.ask(on(UNLOCK, "a")).status, 4);
    assert_eq!(client.ask(on(UNLOCK, "a").cas(1)).status, 9);
    assert_eq!(client.ask(set("a", b"2").cas(locked.cas)).status, 0, "the lock's CAS writes and unlocks");
    assert_eq!(client.ask(set("a", b"3")).status, 0);
    // 15 s by default, and for times above 30 s.
    for extras in [&[][..], &31u32.to_be_bytes()] {
        assert_eq!(client.ask(on(GET_LOCKED, "a").extras(extras)).status, 0);
        client.pass_s(14);
        assert_eq!(client.ask(set("a", b"4")).status, 9);
        client.pass_s(2);
        assert_eq!(client.ask(set("a", b"4")).status, 0);
    }
    assert_eq!(client.ask(on(UNLOCK, "none").cas(1)).status, 1);
}

#[test]
fn expiry_touch_and_preserve_ttl() {
    let mut client = ready(&USUAL);
    let expiry_of = |client: &mut Client| {
        let meta = client.ask(on(GET_META, "a").extras(&[2]));
        u32::from_be_bytes(meta.extras[8..12].try_into().unwrap())
    };
    client.ask(on(SET, "a").extras(&store_extras(0, 100)).value(b"1"));
    let first = expiry_of(&mut client);
    assert_eq!(first, client.cx.now.unix_s + 100);
    assert_eq!(client.ask(on(SET, "a").framing(&[0x50]).extras(&store_extras(0, 0)).value(b"2")).status, 0);
    assert_eq!(client.ask(on(SET, "a").framing(&[0x50]).extras(&store_extras(0, 7)).value(b"2")).status, 0);
    assert_eq!(expiry_of(&mut client), first);
    let touched = client.ask(on(GAT, "a").extras(&50u32.to_be_bytes()));
    assert_eq!(touched.body, b"2");
    assert_eq!(client.ask(on(GET, "a")).cas, touched.cas);
    assert_eq!(client.ask(on(TOUCH, "a").extras(&60u32.to_be_bytes())).extras.len(), 16);
    client.pass_s(61);
    assert_eq!(client.ask(on(GET, "a")).status, 1);
    // A new document takes the expiry that came with preserve-TTL.
    client.ask(on(SET, "a").framing(&[0x50]).extras(&store_extras(0, 7)).value(b"2"));
    assert_eq!(expiry_of(&mut client), client.cx.now.unix_s + 7);
}

#[test]
fn a_touch_with_the_expiry_it_has_changes_nothing() {
    let mut client = ready(&USUAL);
    let expiry = store_extras(0, 100);
    let stored = client.ask(on(SET, "a").extras(&expiry).value(b"1"));
    let again = 100u32.to_be_bytes();
    let touched = client.ask(on(TOUCH, "a").extras(&again));
    assert_eq!((touched.cas, &touched.extras), (stored.cas, &stored.extras));
    assert_eq!(client.ask(on(GAT, "a").extras(&again)).cas, stored.cas);
    client.pass_s(1);
    let touched = client.ask(on(TOUCH, "a").extras(&again));
    assert!(touched.cas > stored.cas && touched.extras != stored.extras);
    // Times that memcached takes for negative ones are in the future here.
    assert_eq!(client.ask(on(TOUCH, "a").extras(&0xffff_fffeu32.to_be_bytes())).status, 0);
    assert_eq!(client.ask(on(GET, "a")).status, 0);
}

#[test]
fn durability_on_a_node_alone() {
    // Neither flexible framing nor sync replication was negotiated, but pillowfight sends it anyway.
    let mut client = ready(&USUAL);
    for (framing, status) in [
        (&[0x13u8, 1, 0x11, 0x94][..], 0),
        (&[0x11, 1], 0),
        (&[0x00, 0x11, 1], 0),
        (&[0x11, 2], 0xa0),
        (&[0x11, 3], 0xa0),
        (&[0x11, 0], 4),
        (&[0x11, 9], 4),
        (&[0x13, 1, 0, 0], 4),
        (&[0x13, 1, 0xff, 0xff], 4),
        (&[0x12, 1, 0], 4),
        (&[0x13, 1], 4),
        (&[0x30], 0x80),
        (&[0x41, b'x'], 0x83),
    ] {
        let request = on(SET, "a").extras(&store_extras(0, 0)).value(b"v").framing(framing);
        assert_eq!(client.ask(request).status, status, "{framing:x?}");
    }
    assert_eq!(client.ask(on(GET, "a").framing(&[0x11, 1])).status, 4);
}

#[test]
fn server_durations_are_flexible_answers() {
    let mut client = ready(&[0x07, 0x0b, 0x0f, 0x12]);
    client.cx.clock_ns = Some(|| 1_700_000_000 * 1_000_000_000 + 5_000_000);
    let answer = client.ask(set("a", b"1"));
    // 5 ms: (2 * 5000) ^ (1 / 1.74) = 198.
    assert_eq!(answer.framing, [0x02, 0, 198]);
    let read = client.ask(on(GET, "a"));
    assert_eq!((read.framing.len(), read.body.as_slice()), (3, &b"1"[..]));
    assert_eq!(client.ask(on(GET, "none")).framing.len(), 3);
}

#[test]
fn not_my_vbucket_carries_the_map_once_to_those_who_asked() {
    let mut client = ready(&USUAL);
    for _ in 0..2 {
        let answer = client.ask(on(GET, "a").vbucket(1024));
        assert_eq!((answer.status, answer.json()["name"].as_str()), (7, Some("default")));
    }
    let mut client = ready(&[0x07, 0x12, 0x1e]);
    assert!(!client.ask(on(GET, "a").vbucket(1024)).body.is_empty());
    assert!(client.ask(on(GET, "a").vbucket(1024)).body.is_empty());
    // A new revision is sent, and once.
    client.node.note_map_change();
    assert!(!client.ask(on(GET, "a").vbucket(1024)).body.is_empty());
    assert!(client.ask(on(GET, "a").vbucket(1024)).body.is_empty());
}

#[test]
fn the_map_of_a_bucket_is_sent_after_the_one_without() {
    let mut client = Client::couchbase();
    hello(&mut client, &[0x07, 0x12, 0x1e]);
    log_in(&mut client);
    assert!(client.ask(frame(GET_CLUSTER_CONFIG)).json().get("name").is_none());
    client.ask(frame(SELECT_BUCKET).key(b"default"));
    assert_eq!(client.ask(on(GET, "a").vbucket(1024)).json()["name"], "default");
    assert!(client.ask(on(GET, "a").vbucket(1024)).body.is_empty());
}

#[test]
fn the_vbucket_a_client_names_is_honoured() {
    let mut client = ready(&USUAL);
    client.ask(set("a", b"1").vbucket(3));
    assert_eq!(client.ask(on(GET, "a").vbucket(3)).status, 0);
    assert_eq!(client.ask(on(GET, "a").vbucket(4)).status, 1);
}

#[test]
fn limits_are_answered_and_the_connection_lives() {
    let mut client = ready(&USUAL);
    assert_eq!(client.ask(set("big", &vec![b'x'; (20 << 20) + 1])).status, 3);
    assert_eq!(client.ask(set("big", &vec![b'x'; 20 << 20])).status, 0);
    assert_eq!(client.ask(on(GET, "big")).body.len(), 20 << 20);
    assert_eq!(client.ask(on(APPEND, "big").value(b"x")).status, 3);
    assert_eq!(client.ask(frame(SET).key(&[0; 252]).extras(&store_extras(0, 0))).status, 3);
    assert_eq!(client.ask(frame(GET).key(&[0; 400])).status, 3);
    assert_eq!(client.ask(set("huge", &vec![b'x'; (30 << 20) + 1])).status, 3);
    let mut contradictory = on(GET, "key").bytes();
    contradictory[11] = 1;
    contradictory.truncate(25);
    let answers = client.send(&contradictory);
    assert_eq!(context(&answers[0]), "Extras and key are longer than the body");
    assert_eq!(client.ask(frame(NOOP)).status, 0);
}

/// The uid of a new bucket's manifest, and the id of the default scope or collection.
const NEW_MANIFEST_DEFAULT: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];

#[test]
fn collections_are_the_default_one() {
    let mut client = ready(&USUAL);
    let manifest = client.ask(frame(0xba)).json();
    assert_eq!(manifest["scopes"][0]["collections"][0]["name"], "_default");
    for name in ["_default._default", ".", "_default.", "._default"] {
        let answer = client.ask(frame(GET_COLLECTION_ID).value(name.as_bytes()));
        assert_eq!((answer.status, answer.extras.as_slice()), (0, &NEW_MANIFEST_DEFAULT[..]), "{name}");
    }
    for (name, status) in [("a._default", 0x8c), ("_default.a", 0x88), ("nodot", 4), ("a.b.c", 4)] {
        assert_eq!(client.ask(frame(GET_COLLECTION_ID).value(name.as_bytes())).status, status, "{name}");
    }
    assert_eq!(client.ask(frame(0xbc).value(b"_default")).extras, NEW_MANIFEST_DEFAULT);
    assert_eq!(client.ask(frame(0xbc).value(b"other")).json()["manifest_uid"], "1");
    let unknown = client.ask(frame(GET).key(b"\x10key"));
    assert_eq!((unknown.status, unknown.json()["manifest_uid"].as_str()), (0x88, Some("1")));
    assert_eq!(client.ask(frame(GET).key(b"\x80\x00key")).status, 4);
    assert_eq!(client.ask(frame(GET).key(b"\0")).status, 4);
}

#[test]
fn meta_and_seqnos() {
    let mut client = ready(&USUAL);
    assert_eq!(client.ask(on(GET_META, "a")).status, 1);
    let stored = client.ask(set("a", b"1"));
    let meta = client.ask(on(GET_META, "a"));
    assert_eq!((meta.cas, meta.extras.len(), meta.body.len()), (stored.cas, 20, 0));
    let meta = client.ask(on(GET_META, "a").extras(&[2]));
    assert_eq!(
        (meta.extras.len(), &meta.extras[..8], meta.extras[20]),
        (21, &[0, 0, 0, 0, 2, 0, 0, 0][..], 1)
    );
    assert_eq!(client.ask(on(GET_META, "a").extras(&[3])).status, 4);

    let vbucket = (crc32fast::hash(b"a") >> 16) as u16 & 0x3ff;
    let observed = client.ask(frame(OBSERVE_SEQNO).vbucket(vbucket).value(&stored.extras[..8]));
    let expected =
        [&[0][..], &vbucket.to_be_bytes(), &stored.extras[..8], &[0; 8], &stored.extras[8..]].concat();
    assert_eq!((observed.status, observed.body), (0, expected));
    assert_eq!(client.ask(frame(OBSERVE_SEQNO).vbucket(vbucket).value(&[0; 8])).status, 1);
    assert_eq!(client.ask(frame(OBSERVE_SEQNO).vbucket(vbucket).value(&[0; 7])).status, 4);
}

#[test]
fn the_failover_log_of_a_vbucket_that_lost_nothing_has_one_entry() {
    let mut client = ready(&USUAL);
    let stored = client.ask(set("a", b"1"));
    let vbucket = (crc32fast::hash(b"a") >> 16) as u16 & 0x3ff;
    let log = client.ask(frame(GET_FAILOVER_LOG).vbucket(vbucket));
    assert_eq!((log.status, log.extras.len(), log.key.len()), (0, 0, 0));
    assert_eq!(log.body, [&stored.extras[..8], &[0; 8]].concat(), "the mutation token's history, from 0 on");
    assert_ne!(client.ask(frame(GET_FAILOVER_LOG).vbucket(vbucket ^ 1)).body, log.body);
    assert_eq!(client.ask(frame(GET_FAILOVER_LOG).vbucket(1024)).status, 7);
    for malformed in [
        frame(GET_FAILOVER_LOG).key(b"a"),
        frame(GET_FAILOVER_LOG).extras(&[0]),
        frame(GET_FAILOVER_LOG).value(b"a"),
    ] {
        assert_eq!(client.ask(malformed).status, 4);
    }
    // Changing the vBucket's state does not change its histories.
    assert_eq!(client.ask(frame(SET_VBUCKET).vbucket(vbucket).extras(&[2])).status, 0);
    assert_eq!(client.ask(frame(GET_FAILOVER_LOG).vbucket(vbucket)).body, log.body);
    let mut stranger = Client::couchbase();
    assert_eq!(stranger.ask(frame(GET_FAILOVER_LOG)).status, 0x24);
    log_in(&mut stranger);
    assert_eq!(stranger.ask(frame(GET_FAILOVER_LOG)).status, 8);
}

#[test]
fn what_is_not_there_says_so() {
    let mut client = ready(&USUAL);
    for opcode in [0x08, 0x51, 0xb9, 0x1b, 0x23] {
        assert_eq!(client.ask(frame(opcode)).status, 0x83, "{opcode:#x}");
    }
    for opcode in [0x4f, 0x7f, 0xff] {
        assert_eq!(client.ask(frame(opcode)).status, 0x81, "{opcode:#x}");
    }
    assert_eq!(client.ask(on(0x83, "a")).status, 7, "there are no replicas here");
}

#[test]
fn quiet_requests_answer_errors_and_hits_only() {
    let mut client = ready(&USUAL);
    let answers = client.ask_all(&[
        on(0x11, "a").extras(&store_extras(0, 0)).value(b"1").opaque(1),
        on(0x09, "a").opaque(2),
        on(0x09, "none").opaque(3),
        on(0x12, "a").extras(&store_extras(0, 0)).opaque(4),
        on(0x14, "a").opaque(5),
        on(0x14, "a").opaque(6),
        frame(NOOP).opaque(7),
    ]);
    let seen: Vec<_> = answers.iter().map(|answer| (answer.opaque, answer.status)).collect();
    assert_eq!(seen, [(2, 0), (4, 2), (6, 1), (7, 0)]);
}

#[test]
fn a_deleted_bucket_is_no_bucket() {
    let mut client = ready(&USUAL);
    client.ask(set("a", b"1"));
    client.node.delete_bucket("default").unwrap();
    assert!(client.session.has_lost_bucket(), "before it asks");
    assert_eq!(client.ask(on(GET, "a")).status, 8);
    assert_eq!(client.ask(set("a", b"1")).status, 8);
    assert_eq!(client.ask(frame(SELECT_BUCKET).key(b"default")).status, 0x24);
    assert!(client.session.has_lost_bucket(), "and after it has asked");
}

#[test]
fn a_later_login_starts_over() {
    let mut client = ready(&USUAL);
    assert_eq!(client.ask(frame(SASL_AUTH).key(b"PLAIN").value(b"\0Administrator\0wrong")).status, 0x20);
    assert_eq!(client.ask(on(GET, "a")).status, 0x24);
}

/// A bucket that refuses new data: small and large values get the protocol's own "not now", and reads go on.
#[test]
fn a_full_bucket_refuses() {
    let settings = || BucketSettings {
        memory_bytes: 8 << 20,
        vbuckets: 16,
        eviction: Eviction::FailNewData,
        ..Default::default()
    };
    for (port, refusal) in [(Port::Couchbase, 0x86), (Port::Memcached, 0x82)] {
        let mut client = Client::before(port, settings());
        if port == Port::Couchbase {
            hello(&mut client, &[0x07]);
            log_in(&mut client);
            client.ask(frame(SELECT_BUCKET).key(b"default"));
        }
        let store = |client: &mut Client, key: String, len: usize| {
            let vbucket = (crc32fast::hash(key.as_bytes()) >> 16) as u16 & 0xf;
            let request = frame(SET).key(key.as_bytes()).vbucket(vbucket).extras(&store_extras(0, 0));
            client.ask(request.value(&vec![b'x'; len])).status
        };
        let statuses: Vec<u16> = (0..40_000).map(|i| store(&mut client, format!("key-{i}"), 400)).collect();
        assert_eq!(statuses[0], 0);
        assert!(statuses.iter().all(|status| [0, refusal].contains(status)), "{port:?}");
        assert_eq!(statuses[39_999], refusal, "{port:?}");
        assert_eq!(store(&mut client, "large".into(), 900_000), refusal, "{port:?}");
        let vbucket = (crc32fast::hash(b"key-0") >> 16) as u16 & 0xf;
        assert_eq!(client.ask(frame(GET).key(b"key-0").vbucket(vbucket)).body.len(), 400);
    }
}

/// `vBucket 2 | key length 2 | key`.
fn observed(vbucket: u16, key: &[u8]) -> Vec<u8> {
    [&vbucket.to_be_bytes()[..], &(key.len() as u16).to_be_bytes(), key].concat()
}

#[test]
fn observe_says_what_is_on_disk() {
    const OBSERVE: u8 = 0x92;
    let disk = journal::SimulatedDisk::new();
    for is_persistent in [false, true] {
        let mut client = match is_persistent {
            false => Client::couchbase(),
            true => Client::of(client::persistent::node(&disk, 1), sessions::Port::Couchbase),
        };
        if is_persistent {
            client::persistent::flush(&client);
        }
        client.open_bucket(&[0x07]);
        let cas = client.ask(frame(SET).key(b"a").extras(&store_extras(0, 0)).value(b"1")).cas;
        client.ask(frame(SET).key(b"gone").extras(&store_extras(0, 0)).value(b"1"));
        client.ask(frame(DELETE).key(b"gone"));
        let asked = [observed(0, b"a"), observed(0, b"none"), observed(0, b"gone")];
        let request = frame(OBSERVE).value(&asked.concat());
        let states = |a: u8, gone: u8| {
            [
                &asked[0][..],
                &[a],
                &cas.to_be_bytes(),
                &asked[1],
                &[0x80],
                &[0; 8],
                &asked[2],
                &[gone],
                &[0; 8],
            ]
            .concat()
        };
        let answer = client.ask(request.clone());
        assert_eq!((answer.status, answer.cas), (0, 0));
        assert_eq!(answer.body, states(0, if is_persistent { 0x81 } else { 0x80 }), "{is_persistent}");
        if is_persistent {
            client::persistent::flush(&client);
            assert_eq!(client.ask(request).body, states(1, 0x80));
        }
        assert_eq!(client.ask(frame(OBSERVE)).body, b"");
        assert_eq!(client.ask(frame(OBSERVE).value(&observed(0, b"a")[..4])).status, 4);
        assert_eq!(client.ask(frame(OBSERVE).value(&observed(0, b""))).status, 4);
        assert_eq!(client.ask(frame(OBSERVE).value(&observed(0, &[b'k'; 251]))).status, 3);
        assert_eq!(client.ask(frame(OBSERVE).value(&observed(0x7fff, b"a"))).status, 7);
        assert_eq!(client.ask(frame(OBSERVE).key(b"a")).status, 4);
    }
}

#[test]
fn statistics_of_one_document() {
    let disk = journal::SimulatedDisk::new();
    for is_persistent in [false, true] {
        let mut client = match is_persistent {
            false => Client::couchbase(),
            true => Client::of(client::persistent::node(&disk, 1), sessions::Port::Couchbase),
        };
        if is_persistent {
            client::persistent::flush(&client);
        }
        client.open_bucket(&[0x07]);
        let of = |client: &mut Client, group: &str| {
            let answers = client.send(&frame(STAT).key(format!("{group} a b 0").as_bytes()).bytes());
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let listed: Vec<_> =
                answers.iter().map(|answer| (text(&answer.key), text(&answer.body))).collect();
            (answers[0].status, listed)
        };
        assert_eq!(of(&mut client, "key").0, 1);
        let cas = client.ask(frame(SET).key(b"a b").extras(&store_extras(7, 0)).value(b"1")).cas;
        let expected = |is_dirty: &str, valid: Option<&str>| {
            let mut listed = vec![
                ("key_is_dirty".to_owned(), is_dirty.to_owned()),
                ("key_exptime".to_owned(), "0".to_owned()),
                ("key_flags".to_owned(), "7".to_owned()),
                ("key_cas".to_owned(), cas.to_string()),
                ("key_vb_state".to_owned(), "active".to_owned()),
            ];
            listed.extend(valid.map(|valid| ("key_valid".to_owned(), valid.to_owned())));
            listed.push((String::new(), String::new()));
            (0, listed)
        };
        assert_eq!(of(&mut client, "key"), expected("true", None));
        if is_persistent {
            assert_eq!(of(&mut client, "vkey"), expected("true", Some("dirty")));
            client::persistent::flush(&client);
            assert_eq!(of(&mut client, "key"), expected("false", None));
            assert_eq!(of(&mut client, "vkey"), expected("false", Some("valid")));
        } else {
            assert_eq!(of(&mut client, "vkey"), expected("true", Some("ram_but_not_disk")));
        }
        for (wrong, status) in [("key", 1), ("key a", 4), ("key a x", 4), ("key  0", 4), ("vkey a 32767", 7)]
        {
            assert_eq!(
                client.send(&frame(STAT).key(wrong.as_bytes()).bytes())[0].status,
                status,
                "{wrong:?}"
            );
        }
    }
}

#[test]
fn a_key_that_is_too_long_is_too_big() {
    for features in [&[0x07][..], &[0x07, 0x12]] {
        let mut client = Client::couchbase();
        client.open_bucket(features);
        let prefix: &[u8] = if features.len() > 1 { &[0] } else { &[] };
        for (opcode, extras) in [
            (GET, vec![]),
            (SET, store_extras(0, 0)),
            (DELETE, vec![]),
            (GET_META, vec![]),
            (TOUCH, vec![0; 4]),
        ] {
            for length in [251, 300, 3000] {
                let key = [prefix, &vec![b'k'; length]].concat();
                assert_eq!(
                    client.ask(frame(opcode).key(&key).extras(&extras)).status,
                    3,
                    "{opcode:#x}, {length}"
                );
            }
            let key = [prefix, &[b'k'; 250]].concat();
            assert_ne!(client.ask(frame(opcode).key(&key).extras(&extras)).status, 3);
        }
    }
}

#[test]
fn statistics_of_vbuckets() {
    let disk = journal::SimulatedDisk::new();
    let mut client = Client::of(client::persistent::node(&disk, 4), sessions::Port::Couchbase);
    client::persistent::flush(&client);
    client.open_bucket(&[0x07]);
    let of = |client: &mut Client, group: &str| {
        let answers = client.send(&frame(STAT).key(group.as_bytes()).bytes());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let named = answers.iter().filter(|answer| answer.status == 0 && !answer.key.is_empty());
        named.map(|answer| (text(&answer.key), text(&answer.body))).collect::<Vec<_>>()
    };
    let cas = [1, 2].map(|n: u8| {
        client.ask(frame(SET).key(&[b'0' + n]).vbucket(2).extras(&store_extras(0, 0)).value(b"1")).cas
    });
    let token = client.ask(frame(GET_FAILOVER_LOG).vbucket(2)).body;
    let uuid = u64::from_be_bytes(token[..8].try_into().unwrap());
    let seqnos = |persisted: u64| {
        [
            ("vb_2:uuid".to_owned(), uuid.to_string()),
            ("vb_2:high_seqno".to_owned(), "2".to_owned()),
            ("vb_2:abs_high_seqno".to_owned(), "2".to_owned()),
            ("vb_2:last_persisted_seqno".to_owned(), persisted.to_string()),
        ]
    };
    assert_eq!(of(&mut client, "vbucket-seqno 2"), seqnos(0));
    client::persistent::flush(&client);
    assert_eq!(of(&mut client, "vbucket-seqno 2"), seqnos(2));
    assert_eq!(of(&mut client, "vbucket-seqno").len(), 4 * 4);
    let state = ("vb_2".to_owned(), "active".to_owned());
    assert_eq!(of(&mut client, "vbucket 2"), std::slice::from_ref(&state));
    assert_eq!(of(&mut client, "vbucket").len(), 4);
    let items = ("vb_2:num_items".to_owned(), "2".to_owned());
    let details = [vec![state, items, ("vb_2:max_cas".to_owned(), cas[1].to_string())], seqnos(2).to_vec()];
    assert_eq!(of(&mut client, "vbucket-details 2"), details.concat());
    let began_at = u64::from_be_bytes(token[8..16].try_into().unwrap());
    let history = [("num_entries", 1), ("0:id", uuid), ("0:seq", began_at)];
    assert_eq!(
        of(&mut client, "failovers 2"),
        history.map(|(name, figure)| (format!("vb_2:{name}"), figure.to_string()))
    );
    for wrong in ["vbucket-seqno 4", "vbucket-seqno -1", "vbucket-seqno x", "failovers 2 2", "vbucket-"] {
        assert_eq!(client.send(&frame(STAT).key(wrong.as_bytes()).bytes())[0].status, 1, "{wrong:?}");
    }
}

#[test]
fn a_seqno_is_waited_for_until_it_is_on_disk() {
    let wait = |vb: u16, seqno: u64| frame(SEQNO_PERSISTENCE).vbucket(vb).extras(&seqno.to_be_bytes());
    let seen = |answers: &[Answer]| answers.iter().map(|it| (it.opaque, it.status)).collect::<Vec<_>>();
    let store = |client: &mut Client| {
        let set = frame(SET).key(b"a").vbucket(2).extras(&store_extras(0, 0)).value(b"1");
        let stored = client.ask(set);
        assert_eq!(stored.status, 0);
        u64::from_be_bytes(stored.extras[8..16].try_into().unwrap())
    };
    for features in [[0x04, 0x07].as_slice(), &[0x04, 0x07, 0x0e]] {
        let disk = journal::SimulatedDisk::new();
        let mut client = Client::of(client::persistent::node(&disk, 4), sessions::Port::Couchbase);
        client::persistent::flush(&client);
        client.open_bucket(features);
        let is_ordered = features.len() == 2;
        assert_eq!(client.ask(wait(2, 0)).status, 0);
        let first = store(&mut client);
        let script = [wait(2, first).opaque(1), frame(GET).key(b"a").vbucket(2).opaque(2)];
        let at_once = client.ask_all(&script);
        assert_eq!(seen(&at_once), if is_ordered { vec![] } else { vec![(2, 0)] });
        // A later seqno, and one of another vBucket.
        let (second, other) = (wait(2, first + 1).opaque(3), wait(1, 1).opaque(4));
        assert_eq!(seen(&client.ask_all(&[second, other])), []);
        assert_eq!(seen(&client.letters()), []);
        client::persistent::flush(&client);
        assert_eq!(seen(&client.letters()), if is_ordered { vec![(1, 0), (2, 0)] } else { vec![(1, 0)] });
        // By another session: this one's answer is held back behind those that wait.
        let mut operator = client.beside(1);
        operator.open_bucket(&[0x04, 0x07]);
        store(&mut operator);
        client::persistent::flush(&client);
        assert_eq!(seen(&client.letters()), [(3, 0)]);
        // What does not come is not waited for longer than 30 s.
        assert_eq!(seen(&client.pass_ms(25_000)), []);
        assert_eq!(seen(&client.pass_ms(5_100)), [(4, 0x86)]);
        assert_eq!(client.ask(wait(2, first)).status, 0, "it is there already");
        // Nor what cannot come any more.
        assert_eq!(seen(&client.ask_all(&[wait(2, 1 << 40).opaque(5), wait(3, 1).opaque(6)])), []);
        assert_eq!(operator.ask(frame(DEL_VBUCKET).vbucket(2)).status, 0);
        assert_eq!(seen(&client.letters()), [(5, 0x86)]);
        for (wrong, status) in [
            (wait(2, 1), 7),
            (wait(4, 1), 7),
            (frame(SEQNO_PERSISTENCE).vbucket(1).extras(&[0; 7]), 4),
            (frame(SEQNO_PERSISTENCE).vbucket(1), 4),
            (wait(1, 1).key(b"a"), 4),
            (wait(1, 1).value(b"1"), 4),
        ] {
            assert_eq!(operator.ask(wrong).status, status);
        }
        client.node.delete_bucket("default").unwrap();
        assert_eq!(seen(&client.letters()), [(6, 0x86)]);
        assert_eq!(client.ask(wait(1, 0)).status, 8);
    }
    assert_eq!(ready(&USUAL).ask(wait(0, 0)).status, 0x83, "nothing of an ephemeral bucket is on disk");
}

#[test]
fn waits_for_seqnos_end_in_every_timeout_mode() {
    use kv::TimeoutMode::{EventDriven, Polling};
    for [at_first, later] in [[Polling, Polling], [Polling, EventDriven], [EventDriven, Polling]] {
        let disk = journal::SimulatedDisk::new();
        let mut client = Client::of(client::persistent::node(&disk, 4), sessions::Port::Couchbase);
        client::persistent::flush(&client);
        client.open_bucket(&[0x07, 0x0e]);
        client.node.set_timeout_mode(at_first);
        let wait = |n: u32| frame(SEQNO_PERSISTENCE).extras(&[0, 0, 1, 0, 0, 0, 0, 0]).opaque(n);
        assert_eq!(client.ask_all(&[wait(1)]), []);
        client.pass_ms(1_000);
        client.node.set_timeout_mode(later);
        assert_eq!(client.ask_all(&[wait(2)]), []);
        let mut seen = Vec::new();
        for _ in 0..62 {
            kv::polling::poll(&mut client.cx);
            seen.extend(client.pass_ms(500).iter().map(|it| (it.opaque, it.status)));
        }
        kv::polling::poll(&mut client.cx);
        seen.extend(client.letters().iter().map(|it| (it.opaque, it.status)));
        assert_eq!(seen, [(1, 0x86), (2, 0x86)], "{at_first:?}, then {later:?}");
        assert!(!kv::polling::poll(&mut client.cx), "nothing is left");
    }
}

#[test]
fn tools_find_the_groups_that_they_ask_for() {
    let mut client = ready(&USUAL);
    assert_eq!(client.ask(set("k", b"{}")).status, 0);
    let mut group = |name: &str| {
        let answers = client.send(&frame(STAT).key(name.as_bytes()).bytes());
        let (last, list) = answers.split_last().unwrap();
        assert!(last.status == 0 && last.key.is_empty() && last.body.is_empty(), "{name}: {last:?}");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        list.iter().map(|one| (text(&one.key), text(&one.body))).collect::<std::collections::BTreeMap<_, _>>()
    };
    let all = group("");
    for (name, value) in [
        ("curr_items_tot", "1"),
        ("vb_active_num", "1024"),
        ("ep_bucket_type", "ephemeral"),
        ("ep_tmp_oom_errors", "0"),
    ] {
        assert_eq!(all[name], value, "{name}");
    }
    assert_eq!(all["ep_kv_size"], group("memory")["payload"]);
    let config = group("config");
    assert_eq!((config["ep_max_ttl_s"].as_str(), config["ep_flush_enabled"].as_str()), ("0", "false"));
    assert_eq!(group("uuid").len(), 1);
    assert_eq!(group("hash 5")["vb_5:counted"], "0");
    assert_eq!(group("dcp")["ep_dcp_count"], "0");
    assert_eq!(group("diskinfo")["ep_db_file_size"], "0");
    for name in ["checkpoint", "tasks", "timings", "kvtimings", "workload"] {
        assert!(group(name).is_empty(), "{name}");
    }
    assert_eq!(client.ask(frame(STAT).key(b"nothing")).status, 1);
}
