//! Durable writes that have to wait, through sessions: which answers are sent, when, and in which order.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use std::collections::BTreeMap;
use std::sync::Arc;

use client::{Answer, Client, Frame, frame, store_extras};
use kv::{Bucket, VbId};
use proptest::prelude::*;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const ADD: u8 = 0x02;
const DELETE: u8 = 0x04;
const INCREMENT: u8 = 0x05;
const QUIT: u8 = 0x07;
const GETQ: u8 = 0x09;
const NOOP: u8 = 0x0a;
const APPEND: u8 = 0x0e;
const STAT: u8 = 0x10;
const SETQ: u8 = 0x11;
const TOUCH: u8 = 0x1c;
const SET_VBUCKET: u8 = 0x3d;
const GET_VBUCKET: u8 = 0x3e;
const DEL_VBUCKET: u8 = 0x3f;
const HELLO: u8 = 0x1f;

const ENOENT: u16 = 0x01;
const EXISTS: u16 = 0x02;
const NOT_MY_VBUCKET: u16 = 0x07;
const IMPOSSIBLE: u16 = 0xa1;
const IN_PROGRESS: u16 = 0xa2;
const RE_COMMIT: u16 = 0xa4;
const AMBIGUOUS: u16 = 0xa3;

/// MutationSeqno, Xerror, SelectBucket, JSON, Collections.
const IN_ORDER: [u16; 5] = [0x04, 0x07, 0x08, 0x0b, 0x12];
const UNORDERED: [u16; 6] = [0x04, 0x07, 0x08, 0x0b, 0x12, 0x0e];

const ACTIVE: [u8; 1] = [1];
const ABSENT: &[u8] = br#"{"topology":[["us","absent"]]}"#;
const ALONE: &[u8] = br#"{"topology":[["us"]]}"#;

fn vb_of(key: &str) -> u16 {
    (crc32fast::hash(key.as_bytes()) >> 16) as u16 & 0x3ff
}

/// Two clients on different threads; every vBucket has an absent replica.
fn two(features: &[u16]) -> (Client, Client) {
    let mut client = Client::couchbase();
    client.open_bucket(features);
    let mut other = client.beside(1);
    other.open_bucket(&IN_ORDER);
    for vb in 0..1024 {
        set_vbucket(&mut other, vb, ABSENT);
    }
    (client, other)
}

fn set_vbucket(client: &mut Client, vb: u16, value: &[u8]) {
    assert_eq!(client.ask(frame(SET_VBUCKET).vbucket(vb).extras(&ACTIVE).value(value)).status, 0);
}

fn on(opcode: u8, key: &str) -> Frame {
    frame(opcode).key(format!("\0{key}").as_bytes()).vbucket(vb_of(key))
}

fn get(key: &str) -> Frame {
    on(GET, key)
}

fn set(key: &str, value: &[u8]) -> Frame {
    on(SET, key).extras(&store_extras(0, 0)).value(value)
}

/// Level majority with this timeout in ms.
fn durably(frame: Frame, timeout_ms: u16) -> Frame {
    let [high, low] = timeout_ms.to_be_bytes();
    frame.framing(&[0x13, 1, high, low])
}

fn bucket(client: &Client) -> Arc<Bucket> {
    client.node.bucket("default").unwrap()
}

/// Acknowledges everything in the key's vBucket on behalf of the absent replica.
fn acknowledge(by: &mut Client, key: &str) {
    let bucket = bucket(by);
    bucket.acknowledge(&mut by.cx, VbId(vb_of(key)), "absent", u64::MAX >> 1, 0);
}

fn statuses(answers: &[Answer]) -> Vec<(u32, u16)> {
    answers.iter().map(|answer| (answer.opaque, answer.status)).collect()
}

fn statistic(client: &mut Client, group: &str, name: &str) -> String {
    let answers = client.ask_all(&[frame(STAT).key(group.as_bytes())]);
    let found = answers.iter().find(|answer| answer.key == name.as_bytes());
    String::from_utf8(found.unwrap_or_else(|| panic!("no statistic {name}")).body.clone()).unwrap()
}

#[test]
fn a_prepared_write_is_seen_by_nobody_until_the_majority_has_it() {
    let (mut client, mut other) = two(&IN_ORDER);
    assert_eq!(other.ask(set("k", b"old")).status, 0);
    assert_eq!(client.ask_all(&[durably(set("k", b"new"), 5_000).opaque(7)]), []);
    assert_eq!(other.ask(get("k")).body, b"old");
    for write in [set("k", b"x"), on(DELETE, "k"), on(APPEND, "k").value(b"x"), durably(set("k", b"x"), 100)]
    {
        assert_eq!(other.ask(write).status, IN_PROGRESS);
    }
    assert_eq!(statistic(&mut other, "durability-monitor", "num_tracked"), "1");
    acknowledge(&mut other, "k");
    let answers = client.letters();
    assert_eq!(statuses(&answers), [(7, 0)]);
    let document = other.ask(get("k"));
    assert_eq!((document.body.as_slice(), document.cas), (&b"new"[..], answers[0].cas));
    // The token names the commit.
    let seqno = u64::from_be_bytes(answers[0].extras[8..16].try_into().unwrap());
    assert_eq!(bucket(&other).vb_info(VbId(vb_of("k"))).unwrap().high_seqno, seqno);
    assert_eq!(other.ask(set("k", b"free")).status, 0);
    assert_eq!(statistic(&mut other, "durability-monitor", "num_tracked"), "0");
}

#[test]
fn an_overdue_write_is_ambiguous_at_its_deadline_and_gone_afterwards() {
    let (mut client, mut other) = two(&IN_ORDER);
    assert_eq!(client.ask_all(&[durably(set("k", b"new"), 250)]), []);
    assert_eq!(client.pass_ms(249), []);
    let answers = client.pass_ms(1);
    assert_eq!(statuses(&answers), [(0, AMBIGUOUS)]);
    assert!(answers[0].json()["error"]["context"].is_string());
    assert_eq!(client.pass_ms(100_000), []);
    assert_eq!(other.ask(get("k")).status, ENOENT);
    assert_eq!(other.ask(set("k", b"free")).status, 0);
    assert_eq!(statistic(&mut other, "durability-monitor", "sync_writes_aborted"), "1");
    assert_eq!(statistic(&mut other, "durability-monitor", "timeout_late_us_le_250"), "1");
}

#[test]
fn without_a_timeout_it_is_thirty_seconds() {
    let (mut client, _) = two(&IN_ORDER);
    assert_eq!(client.ask_all(&[set("k", b"v").framing(&[0x11, 1])]), []);
    assert_eq!(client.pass_ms(29_999), []);
    assert_eq!(statuses(&client.pass_ms(1)), [(0, AMBIGUOUS)]);
}

#[test]
fn another_chain_commits_what_is_pending() {
    let (mut client, mut other) = two(&IN_ORDER);
    let writes = [
        durably(on(ADD, "a").extras(&store_extras(0, 0)).value(b"1"), 9_000).opaque(1),
        durably(
            on(INCREMENT, "n").extras(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 41, 0, 0, 0, 0]),
            9_000,
        )
        .opaque(2),
    ];
    assert_eq!(client.ask_all(&writes), []);
    set_vbucket(&mut other, vb_of("n"), ALONE);
    assert_eq!(client.letters(), [], "the answer before it waits still");
    set_vbucket(&mut other, vb_of("a"), br#"{"topology":null}"#);
    let answers = client.letters();
    assert_eq!(statuses(&answers), [(1, 0), (2, 0)]);
    assert_eq!(answers[1].body, 41u64.to_be_bytes());
    // With a single node, nothing has to wait.
    assert_eq!(client.ask(durably(on(DELETE, "a"), 9_000)).status, 0);
    assert_eq!(statistic(&mut other, "durability-monitor", "sync_writes_prepared"), "2");
    set_vbucket(&mut other, vb_of("n"), br#"{"topology":[["us",null]]}"#);
    assert_eq!(client.ask(durably(on(DELETE, "n"), 9_000)).status, IMPOSSIBLE);
    assert_eq!(client.ask(on(DELETE, "n")).status, 0);
}

#[test]
fn every_kind_of_write_can_be_durable() {
    let (mut client, mut other) = two(&IN_ORDER);
    for key in ["set", "append", "delete", "large"] {
        assert_eq!(other.ask(set(key, b"old")).status, 0);
    }
    let large = vec![b'x'; 100_000];
    let writes = [
        durably(set("set", b"new"), 9_000).opaque(1),
        durably(on(APPEND, "append").value(b"+"), 9_000).opaque(2),
        durably(on(DELETE, "delete"), 9_000).opaque(3),
        durably(set("large", &large), 9_000).opaque(4),
        durably(on(SETQ, "quiet").extras(&store_extras(0, 0)).value(b"q"), 9_000).opaque(5),
        durably(on(ADD, "set").extras(&store_extras(0, 0)).value(b"q"), 9_000).opaque(6),
        durably(on(TOUCH, "set").extras(&[0, 0, 0, 9]), 9_000).opaque(7),
    ];
    let bytes: Vec<u8> = writes.iter().flat_map(Frame::bytes).collect();
    let (first, rest) = bytes.split_at(bytes.len() - 60_000);
    assert_eq!(client.send(first), []);
    for half in rest.chunks(30_000) {
        // A large value is read into its sink.
        let mut from = half;
        while let Some(sink) = client.session.sink() {
            let count = sink.len().min(from.len());
            sink[..count].copy_from_slice(&from[..count]);
            client.session.filled(count);
            from = &from[count..];
            if from.is_empty() {
                break;
            }
        }
        assert_eq!(client.send(from), []);
    }
    for key in ["set", "append", "delete", "large", "quiet"] {
        acknowledge(&mut other, key);
    }
    assert_eq!(statuses(&client.letters()), [(1, 0), (2, 0), (3, 0), (4, 0), (6, EXISTS), (7, 4)]);
    assert_eq!(other.ask(get("set")).body, b"new");
    assert_eq!(other.ask(get("append")).body, b"old+");
    assert_eq!(other.ask(get("delete")).status, ENOENT);
    assert_eq!(other.ask(get("large")).body, large);
    assert_eq!(other.ask(get("quiet")).body, b"q");
}

#[test]
fn answers_wait_in_order_but_requests_on_other_keys_do_not() {
    let (mut client, mut other) = two(&IN_ORDER);
    assert_eq!(other.ask(set("a", b"old")).status, 0);
    let requests = [
        durably(set("a", b"new"), 9_000).opaque(1),
        set("b", b"b1").opaque(2),
        get("a").opaque(3),
        get("b").opaque(4),
        on(APPEND, "a").value(b"+").opaque(5),
        frame(NOOP).opaque(6),
    ];
    assert_eq!(client.ask_all(&requests), []);
    assert_eq!(other.ask(get("b")).body, b"b1", "executed at once");
    assert_eq!(other.ask(get("a")).body, b"old");
    acknowledge(&mut other, "a");
    let answers = client.letters();
    assert_eq!(statuses(&answers), [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)]);
    assert_eq!((answers[2].body.as_slice(), answers[3].body.as_slice()), (&b"new"[..], &b"b1"[..]));
    assert_eq!(other.ask(get("a")).body, b"new+");
    assert!(!client.session.has_waits());
}

#[test]
fn durable_writes_of_one_key_follow_one_another() {
    let (mut client, mut other) = two(&IN_ORDER);
    let writes: Vec<Frame> =
        (1..=5).map(|number| durably(set("k", &[number]), 9_000).opaque(number.into())).collect();
    assert_eq!(client.ask_all(&writes), []);
    for number in 1..=5 {
        acknowledge(&mut other, "k");
        set_vbucket(&mut other, vb_of("k"), ALONE);
        set_vbucket(&mut other, vb_of("k"), ABSENT);
        if !client.session.has_waits() {
            break;
        }
        let answers = client.letters();
        assert!(!answers.is_empty(), "round {number}");
        assert!(answers.iter().all(|answer| answer.status == 0));
    }
    assert_eq!(other.ask(get("k")).body, [5]);
}

#[test]
fn unordered_answers_leave_as_they_come() {
    let (mut client, mut other) = two(&UNORDERED);
    assert_eq!(other.ask(set("a", b"old")).status, 0);
    let requests = [
        durably(set("a", b"new"), 9_000).opaque(1),
        durably(set("c", b"new"), 9_000).opaque(2),
        set("b", b"b1").opaque(3),
        get("a").opaque(4),
        set("a", b"x").opaque(5),
    ];
    let answers = client.ask_all(&requests);
    assert_eq!(statuses(&answers), [(3, 0), (4, 0), (5, IN_PROGRESS)]);
    assert_eq!(answers[1].body, b"old");
    acknowledge(&mut other, "c");
    assert_eq!(statuses(&client.letters()), [(2, 0)]);
    assert_eq!(client.ask(get("c")).body, b"new");
    acknowledge(&mut other, "a");
    assert_eq!(statuses(&client.letters()), [(1, 0)]);
}

#[test]
fn the_answer_to_a_noop_ends_a_quiet_batch() {
    for features in [&IN_ORDER[..], &UNORDERED[..]] {
        let (mut client, mut other) = two(features);
        assert_eq!(other.ask(set("c", b"old")).status, 0);
        let quietly = |key: &str, value: &[u8]| on(SETQ, key).extras(&store_extras(0, 0)).value(value);
        let requests = [
            durably(quietly("a", b"1"), 500).opaque(1),
            durably(quietly("b", b"1"), 9_000).opaque(2),
            on(GETQ, "b").opaque(3),
            on(GETQ, "missing").opaque(4),
            frame(NOOP).opaque(5),
            on(GETQ, "c").opaque(6),
            set("d", b"1").opaque(7),
        ];
        assert_eq!(client.ask_all(&requests), [], "they are neither misses nor done yet");
        acknowledge(&mut other, "b");
        let mut answers = client.letters();
        answers.extend(client.pass_ms(500));
        answers.sort_by_key(|answer| if answer.opaque < 5 { 0 } else { answer.opaque });
        let expected = if features == IN_ORDER { [(1, AMBIGUOUS), (3, 0)] } else { [(3, 0), (1, AMBIGUOUS)] };
        assert_eq!(statuses(&answers)[..2], expected);
        assert_eq!(statuses(&answers)[2..], [(5, 0), (6, 0), (7, 0)]);
        assert_eq!(other.ask(get("d")).body, b"1");
    }
}

#[test]
fn nothing_overtakes_a_quiet_request() {
    let (mut client, mut other) = two(&UNORDERED);
    let quiet = durably(on(SETQ, "a").extras(&store_extras(0, 0)).value(b"1"), 300);
    let requests = [quiet.opaque(1), on(GETQ, "b").opaque(2), get("b").opaque(3), set("b", b"1").opaque(4)];
    assert_eq!(client.ask_all(&requests), []);
    assert_eq!(other.ask(get("b")).status, ENOENT);
    assert_eq!(statuses(&client.pass_ms(300)), [(1, AMBIGUOUS), (3, ENOENT), (4, 0)]);
    // A quiet request itself may overtake others that have their own answers.
    let requests = [durably(set("c", b"1"), 9_000).opaque(5), on(GETQ, "b").opaque(6), get("c").opaque(7)];
    assert_eq!(statuses(&client.ask_all(&requests)), [(6, 0), (7, ENOENT)]);
    acknowledge(&mut other, "c");
    assert_eq!(statuses(&client.letters()), [(5, 0)]);
}

#[test]
fn who_waits_for_another_chain_can_set_it() {
    let quiet = durably(on(SETQ, "q").extras(&store_extras(0, 0)).value(b"1"), 9_000);
    for features in [&IN_ORDER[..], &UNORDERED[..]] {
        let (mut client, mut other) = two(features);
        let chain = |key: &str| frame(SET_VBUCKET).vbucket(vb_of(key)).extras(&ACTIVE).value(ALONE);
        let requests = [
            durably(set("a", b"1"), 9_000).opaque(1),
            durably(set("b", b"1"), 9_000).opaque(2),
            quiet.clone().opaque(3),
            chain("q").opaque(4),
            chain("b").opaque(5),
            frame(DEL_VBUCKET).vbucket(vb_of("a")).opaque(6),
        ];
        let mut answers = client.ask_all(&requests);
        answers.extend(client.letters());
        let expected = if features == IN_ORDER {
            [(1, AMBIGUOUS), (2, 0), (4, 0), (5, 0), (6, 0)]
        } else {
            [(4, 0), (5, 0), (6, 0), (2, 0), (1, AMBIGUOUS)]
        };
        assert_eq!(statuses(&answers), expected);
        assert_eq!(other.ask(get("q")).body, b"1");
        assert_eq!(other.ask(get("b")).body, b"1");
        assert_eq!(other.ask(get("a")).status, NOT_MY_VBUCKET);
        assert!(!client.session.has_waits());
    }
}

#[test]
fn a_barrier_waits_for_all_before_it_and_holds_all_behind_it() {
    for features in [&IN_ORDER[..], &UNORDERED[..]] {
        let (mut client, mut other) = two(features);
        let barrier = |frame: Frame| frame.framing(&[0x00]);
        let requests = [
            durably(set("a", b"1"), 9_000).opaque(1),
            barrier(set("b", b"1")).opaque(2),
            set("c", b"1").opaque(3),
            frame(NOOP).opaque(4),
        ];
        assert_eq!(client.ask_all(&requests), []);
        assert_eq!(client.ask_all(&[set("d", b"1").opaque(5)]), [], "nothing is parsed behind it");
        for key in ["b", "c", "d"] {
            assert_eq!(other.ask(get(key)).status, ENOENT);
        }
        acknowledge(&mut other, "a");
        assert_eq!(statuses(&client.letters()), [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)]);
        // A barrier that itself waits.
        let durable_barrier = set("e", b"1").framing(&[0x00, 0x13, 1, 0x20, 0]);
        assert_eq!(client.ask_all(&[durable_barrier.opaque(6), get("a").opaque(7)]), []);
        acknowledge(&mut other, "e");
        assert_eq!(statuses(&client.letters()), [(6, 0), (7, 0)]);
    }
}

#[test]
fn quit_and_hello_wait_for_what_is_before_them() {
    for features in [&IN_ORDER[..], &UNORDERED[..]] {
        let (mut client, mut other) = two(features);
        let requests = [
            durably(set("a", b"1"), 9_000).opaque(1),
            // Unordered from here on; this does not affect earlier answers.
            frame(HELLO).value(&[0, 0x12, 0, 0x0e]).opaque(2),
            get("a").opaque(3),
            durably(set("b", b"1"), 9_000).opaque(4),
            frame(QUIT).opaque(5),
            get("a").opaque(6),
        ];
        assert_eq!(client.ask_all(&requests), []);
        acknowledge(&mut other, "a");
        assert_eq!(statuses(&client.letters()), [(1, 0), (2, 0), (3, 0)]);
        assert!(!client.is_closed());
        acknowledge(&mut other, "b");
        assert_eq!(statuses(&client.letters()), [(4, 0), (5, 0)]);
        assert!(client.is_closed());
    }
}

#[test]
fn a_peer_with_much_held_back_is_not_parsed_any_more() {
    let (mut client, mut other) = two(&IN_ORDER);
    assert_eq!(other.ask(set("big", &vec![b'x'; 30_000])).status, 0);
    let mut requests = vec![durably(set("a", b"1"), 60_000)];
    requests.extend((1..=200).map(|opaque| get("big").opaque(opaque)));
    assert_eq!(client.ask_all(&requests), []);
    assert!(client.session.is_stalled());
    let most = client.node.limits().output_backlog_bytes + 64 * 31_000;
    assert!(client.session.held_bytes() < most, "{}", client.session.held_bytes());
    acknowledge(&mut other, "a");
    let answers = client.letters();
    assert_eq!(answers.len(), 201);
    assert!(answers.iter().enumerate().all(|(at, answer)| answer.opaque == at as u32 && answer.status == 0));
    assert_eq!(client.session.held_bytes(), 0);
}

#[test]
fn a_vbucket_that_is_not_active_is_not_served() {
    let (mut client, mut other) = two(&IN_ORDER);
    assert_eq!(other.ask(set("k", b"v")).status, 0);
    assert_eq!(client.ask_all(&[durably(set("j", b"v"), 9_000)]), []);
    for key in ["k", "j"] {
        let replica = frame(SET_VBUCKET).vbucket(vb_of(key)).extras(&[0, 0, 0, 2]);
        assert_eq!(other.ask(replica).status, 0);
        assert_eq!(other.ask(frame(GET_VBUCKET).vbucket(vb_of(key))).body, [0, 0, 0, 2]);
    }
    assert_eq!(statuses(&client.letters()), [(0, AMBIGUOUS)], "another node ends it");
    assert_eq!(other.ask(get("k")).status, NOT_MY_VBUCKET);
    assert_eq!(other.ask(set("k", b"x")).status, NOT_MY_VBUCKET);
    assert_eq!(statistic(&mut other, "vbucket", &format!("vb_{}", vb_of("k"))), "replica");
    assert_eq!(other.ask(get("served")).status, ENOENT);
    for key in ["k", "j"] {
        set_vbucket(&mut other, vb_of(key), b"");
    }
    assert_eq!(other.ask(get("k")).body, b"v");
    // Inherited writes never time out, and are committed once the chain allows it.
    assert_eq!(client.pass_ms(100_000), []);
    // They may have been committed before: nobody sees what was there then.
    assert_eq!(other.ask(set("j", b"x")).status, RE_COMMIT);
    assert_eq!(other.ask(get("j")).status, RE_COMMIT);
    acknowledge(&mut other, "j");
    assert_eq!(other.ask(get("j")).body, b"v");
}

#[test]
fn a_deleted_vbucket_is_dead_and_empty() {
    let (mut client, mut other) = two(&IN_ORDER);
    assert_eq!(other.ask(set("k", b"v")).status, 0);
    let same = (0..).map(|n| format!("j{n}")).find(|key| vb_of(key) == vb_of("k")).unwrap();
    assert_eq!(client.ask_all(&[durably(set(&same, b"v"), 9_000)]), []);
    assert_eq!(other.ask(frame(DEL_VBUCKET).vbucket(vb_of("k"))).status, 0);
    assert_eq!(statuses(&client.letters()), [(0, AMBIGUOUS)]);
    assert_eq!(other.ask(get("k")).status, NOT_MY_VBUCKET);
    set_vbucket(&mut other, vb_of("k"), b"");
    assert_eq!(other.ask(get("k")).status, ENOENT);
    assert_eq!(other.ask(get(&same)).status, ENOENT);
    assert_eq!(other.ask(set(&same, b"v")).status, 0);
    for malformed in [
        frame(SET_VBUCKET),
        frame(SET_VBUCKET).extras(&[5]),
        frame(SET_VBUCKET).extras(&ACTIVE).value(b"[]"),
        frame(SET_VBUCKET).extras(&ACTIVE).value(br#"{"topology":[]}"#),
        frame(SET_VBUCKET).extras(&ACTIVE).value(br#"{"topologie":[]}"#),
    ] {
        assert_eq!(other.ask(malformed).status, 4);
    }
    assert_eq!(other.ask(frame(GET_VBUCKET).vbucket(1024)).status, NOT_MY_VBUCKET);
}

#[test]
fn deleting_the_bucket_answers_those_who_wait() {
    let (mut client, other) = two(&UNORDERED);
    assert_eq!(client.ask_all(&[durably(set("k", b"v"), 9_000)]), []);
    other.node.delete_bucket("default").unwrap();
    assert_eq!(statuses(&client.letters()), [(0, AMBIGUOUS)]);
}

#[test]
fn ten_thousand_pending_writes_are_each_answered_once_and_never_early() {
    let (client, mut other) = two(&UNORDERED);
    let mut clients: Vec<Client> = (2..6).map(|thread| client.beside(thread)).collect();
    clients.iter_mut().for_each(|client| client.open_bucket(&UNORDERED));
    let mut deadlines = BTreeMap::new();
    for number in 0..10_000u32 {
        // Deadlines decrease and increase again, and some coincide.
        let timeout = 1 + (number.wrapping_mul(2_654_435_761) >> 20) as u16 % 3000;
        let write = durably(set(&format!("key-{number}"), b"v"), timeout).opaque(number);
        assert_eq!(clients[number as usize % 4].ask_all(&[write]), []);
        deadlines.insert(number, u64::from(timeout));
    }
    let mut answered = BTreeMap::new();
    for now_ms in 1..=3001u64 {
        if now_ms == 1500 {
            // A tenth of the vBuckets get their replica.
            for vb in 0..102 {
                let bucket = bucket(&other);
                bucket.acknowledge(&mut other.cx, VbId(vb), "absent", u64::MAX >> 1, 0);
            }
        }
        // A letter from another thread's alarm may arrive in the same millisecond, after this thread has checked.
        let mut answers: Vec<Answer> = clients.iter_mut().flat_map(|client| client.pass_ms(1)).collect();
        answers.extend(clients.iter_mut().flat_map(Client::letters));
        for answer in answers {
            assert!(answered.insert(answer.opaque, (answer.status, now_ms)).is_none(), "answered twice");
        }
    }
    assert_eq!(answered.len(), 10_000);
    for (number, (status, at_ms)) in answered {
        let is_acknowledged = vb_of(&format!("key-{number}")) < 102;
        if status == AMBIGUOUS {
            assert_eq!(at_ms, deadlines[&number], "write {number}");
            assert!(!is_acknowledged || at_ms <= 1500);
        } else {
            assert_eq!((status, at_ms, is_acknowledged), (0, 1500, true), "write {number}");
        }
    }
    assert!(clients.iter().all(|client| !client.session.has_waits()));
    assert_eq!(statistic(&mut other, "durability-monitor", "num_tracked"), "0");
}

// ---- any pipeline, against executing it one request after the other
// --------------------------------------------------

#[derive(Debug, Clone)]
enum Step {
    Request { key: u8, kind: u8, durable: bool, barrier: bool, quiet: bool },
    Acknowledge(u8),
    Noop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0u8..4, 0u8..4, any::<bool>(), prop::bool::weighted(0.05), prop::bool::weighted(0.3)).prop_map(
            |(key, kind, durable, barrier, quiet)| Step::Request { key, kind, durable, barrier, quiet }
        ),
        2 => (0u8..4).prop_map(Step::Acknowledge),
        1 => Just(Step::Noop),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// With answers in order, a client sees what it would have seen had each request waited for the one before it.
    #[test]
    fn in_order_means_as_if_one_after_the_other(steps in steps()) {
        let (mut client, mut other) = two(&IN_ORDER);
        let (mut model, mut expected, mut seen) = (BTreeMap::<u8, Vec<u8>>::new(), Vec::new(), Vec::new());
        for (number, step) in steps.into_iter().enumerate() {
            let opaque = number as u32;
            match step {
                Step::Request { key, kind, durable, barrier, quiet: _ } => {
                    let (name, text) = (format!("key-{key}"), format!("{number},"));
                    let (frame, status, body) = match kind {
                        0 => {
                            let body = model.get(&key).cloned();
                            (get(&name), if body.is_some() { 0 } else { ENOENT }, body.unwrap_or_default())
                        }
                        1 => {
                            model.insert(key, text.clone().into_bytes());
                            (set(&name, text.as_bytes()), 0, Vec::new())
                        }
                        2 => {
                            let status = match model.get_mut(&key) {
                                Some(value) => { value.extend(text.as_bytes()); 0 }
                                None => 5,
                            };
                            (on(APPEND, &name).value(text.as_bytes()), status, Vec::new())
                        }
                        _ => (on(DELETE, &name), if model.remove(&key).is_some() { 0 } else { ENOENT }, Vec::new()),
                    };
                    let frame = match (durable && kind != 0, barrier) {
                        (true, true) => frame.framing(&[0x00, 0x13, 1, 0x70, 0]),
                        (true, false) => durably(frame, 60_000),
                        (false, true) => frame.framing(&[0x00]),
                        (false, false) => frame,
                    };
                    expected.push((opaque, status, body));
                    seen.extend(client.ask_all(&[frame.opaque(opaque)]));
                }
                Step::Acknowledge(key) => {
                    let name = format!("key-{key}");
                    set_vbucket(&mut other, vb_of(&name), ALONE);
                    set_vbucket(&mut other, vb_of(&name), ABSENT);
                    seen.extend(client.letters());
                }
                Step::Noop => {
                    expected.push((opaque, 0, Vec::new()));
                    seen.extend(client.ask_all(&[frame(NOOP).opaque(opaque)]));
                }
            }
        }
        for vb in (0..4).map(|key| vb_of(&format!("key-{key}"))) {
            set_vbucket(&mut other, vb, ALONE);
        }
        seen.extend(client.letters());
        let seen: Vec<_> = seen.into_iter().map(|answer| {
            let body = if answer.opcode == GET && answer.status == 0 { answer.body } else { Vec::new() };
            (answer.opaque, answer.status, body)
        }).collect();
        prop_assert_eq!(seen, expected);
        prop_assert!(!client.session.has_waits());
    }

    /// If answers may overtake, each request is still answered once, nothing overtakes a quiet one, and a NOOP is
    /// answered after everything before it and before everything after it.
    #[test]
    fn unordered_answers_tell_what_quiet_requests_came_to(steps in steps()) {
        let (mut client, mut other) = two(&UNORDERED);
        let (mut asked, mut seen) = (BTreeMap::new(), Vec::new());
        for (number, step) in (0u32..).zip(steps) {
            match step {
                Step::Request { key, kind, durable, barrier: _, quiet } => {
                    let opcode = match (kind, quiet) {
                        (0, false) => GET,
                        (0, true) => GETQ,
                        (_, false) => SET,
                        (_, true) => SETQ,
                    };
                    let frame = on(opcode, &format!("key-{key}")).opaque(number);
                    let frame = if kind == 0 { frame } else { frame.extras(&store_extras(0, 0)).value(b"v") };
                    // Some end at their deadline.
                    let timeout_ms = if kind == 1 { 300 } else { 60_000 };
                    let frame = if durable && kind != 0 { durably(frame, timeout_ms) } else { frame };
                    asked.insert(number, opcode);
                    seen.extend(client.ask_all(&[frame]));
                }
                Step::Acknowledge(key) => {
                    acknowledge(&mut other, &format!("key-{key}"));
                    seen.extend(client.letters());
                    seen.extend(client.pass_ms(100));
                }
                Step::Noop => {
                    asked.insert(number, NOOP);
                    seen.extend(client.ask_all(&[frame(NOOP).opaque(number)]));
                }
            }
        }
        for vb in (0..4).map(|key| vb_of(&format!("key-{key}"))) {
            set_vbucket(&mut other, vb, ALONE);
        }
        seen.extend(client.letters());
        prop_assert!(!client.session.has_waits());
        let answered: Vec<u32> = seen.iter().map(|answer| answer.opaque).collect();
        for (number, opcode) in &asked {
            let times = answered.iter().filter(|answer| *answer == number).count();
            prop_assert!(times == 1 || times == 0 && matches!(*opcode, GETQ | SETQ), "{} {:?}", number, answered);
        }
        for (at, number) in answered.iter().enumerate() {
            let later = &answered[at + 1..];
            let is_quiet = |number: &u32| matches!(asked[number], GETQ | SETQ);
            prop_assert!(
                is_quiet(number) || !later.iter().any(|late| late < number && is_quiet(late)),
                "{} overtakes a quiet one: {:?}", number, answered
            );
            if asked[number] == NOOP {
                prop_assert!(answered[..at].iter().all(|early| early < number), "{:?}", answered);
                prop_assert!(later.iter().all(|late| late > number), "{:?}", answered);
            }
        }
    }
}
