//! The memcached binary protocol through a session: bytes in, bytes out, no sockets. The expected answers are those of
//! memcached 1.6.18.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::{Answer, Client, frame, store_extras};

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const ADD: u8 = 0x02;
const REPLACE: u8 = 0x03;
const DELETE: u8 = 0x04;
const INCREMENT: u8 = 0x05;
const NOOP: u8 = 0x0a;
const GETK: u8 = 0x0c;
const APPEND: u8 = 0x0e;
const STAT: u8 = 0x10;
const TOUCH: u8 = 0x1c;
const GAT: u8 = 0x1d;
const GATK: u8 = 0x23;

fn counter(delta: u64, initial: u64, exptime: u32) -> Vec<u8> {
    [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &exptime.to_be_bytes()].concat()
}

#[test]
fn a_stored_value_is_read_with_its_flags() {
    let mut client = Client::memcached();
    let stored = client.ask(frame(SET).key(b"a").extras(&store_extras(5, 0)).value(b"val"));
    assert_eq!((stored.status, stored.body.as_slice()), (0, &b""[..]));
    assert_ne!(stored.cas, 0);
    let read = client.ask(frame(GET).key(b"a"));
    assert_eq!(
        read,
        Answer {
            opcode: GET,
            status: 0,
            cas: stored.cas,
            extras: vec![0, 0, 0, 5],
            body: b"val".to_vec(),
            ..read.clone()
        }
    );
    let with_key = client.ask(frame(GETK).key(b"a"));
    assert_eq!((with_key.key.as_slice(), with_key.body.as_slice()), (&b"a"[..], &b"val"[..]));
}

#[test]
fn errors_have_memcacheds_texts() {
    let mut client = Client::memcached();
    client.ask(frame(SET).key(b"a").extras(&store_extras(0, 0)).value(b"x"));
    for (request, status, text) in [
        (frame(GET).key(b"no"), 1, "Not found"),
        (frame(ADD).key(b"a").extras(&store_extras(0, 0)), 2, "Data exists for key."),
        (frame(REPLACE).key(b"no").extras(&store_extras(0, 0)), 1, "Not found"),
        (frame(APPEND).key(b"no").value(b"x"), 5, "Not stored."),
        (frame(SET).key(b"a").extras(&store_extras(0, 0)).cas(1), 2, "Data exists for key."),
        (frame(SET).key(b"no").extras(&store_extras(0, 0)).cas(1), 1, "Not found"),
        (frame(ADD).key(b"no").extras(&store_extras(0, 0)).cas(1), 1, "Not found"),
        (frame(DELETE).key(b"a").cas(1), 2, "Data exists for key."),
        (
            frame(INCREMENT).key(b"a").extras(&counter(1, 0, 0)),
            6,
            "Non-numeric server-side value for incr or decr",
        ),
        (frame(INCREMENT).key(b"no").extras(&counter(1, 0, 0xffff_ffff)), 1, "Not found"),
        (frame(0x50), 0x81, "Unknown command"),
        (frame(0x20), 0x81, "Unknown command"),
        (frame(GET), 4, "Invalid arguments"),
        (frame(GET).key(b"a").extras(b"1234"), 4, "Invalid arguments"),
        (frame(GET).key(&[b'k'; 251]), 4, "Invalid arguments"),
        (frame(NOOP).key(b"a"), 4, "Invalid arguments"),
        (frame(TOUCH).key(b"a").extras(&[0; 4]).value(b"x"), 4, "Invalid arguments"),
        (frame(STAT).key(b"nonsense"), 1, "Not found"),
    ] {
        let answer = client.ask(request);
        assert_eq!(
            (answer.status, String::from_utf8_lossy(&answer.body).as_ref()),
            (status, text),
            "{answer:?}"
        );
    }
    assert_eq!(client.ask(frame(NOOP)).status, 0, "the connection lives");
}

#[test]
fn a_miss_of_a_key_echoing_read_is_the_key() {
    let mut client = Client::memcached();
    for request in [frame(GETK).key(b"zz"), frame(GATK).key(b"zz").extras(&[0; 4])] {
        let answer = client.ask(request);
        assert_eq!((answer.status, answer.key.as_slice(), answer.body.len()), (1, &b"zz"[..], 0));
    }
}

#[test]
fn quiet_requests_answer_errors_and_hits_only() {
    let mut client = Client::memcached();
    let quiet = |opcode: u8| frame(opcode).opaque(u32::from(opcode));
    let answers = client.ask_all(&[
        quiet(0x11).key(b"a").extras(&store_extras(0, 0)).value(b"1"),
        quiet(0x09).key(b"a"),
        quiet(0x09).key(b"no"),
        quiet(0x0d).key(b"no"),
        quiet(0x12).key(b"a").extras(&store_extras(0, 0)),
        quiet(0x15).key(b"a").extras(&counter(1, 0, 0)),
        quiet(0x19).key(b"a").value(b"2"),
        quiet(0x1e).key(b"no").extras(&[0; 4]),
        quiet(0x24).key(b"no").extras(&[0; 4]),
        quiet(0x14).key(b"a"),
        quiet(0x14).key(b"a"),
        quiet(0x18),
        frame(NOOP).opaque(99),
    ]);
    let seen: Vec<_> = answers.iter().map(|answer| (answer.opaque, answer.status)).collect();
    assert_eq!(seen, [(0x09, 0), (0x12, 2), (0x14, 1), (99, 0)]);
}

#[test]
fn a_shrinking_number_keeps_its_length() {
    let mut client = Client::memcached();
    client.ask(frame(SET).key(b"n").extras(&store_extras(0, 0)).value(b"10"));
    let answer = client.ask(frame(0x06).key(b"n").extras(&counter(3, 0, 0)));
    assert_eq!(answer.body, 7u64.to_be_bytes());
    assert_eq!(client.ask(frame(GET).key(b"n")).body, b"7 ");
    assert_eq!(client.ask(frame(INCREMENT).key(b"n").extras(&counter(1, 0, 0))).body, 8u64.to_be_bytes());
    assert_eq!(client.ask(frame(INCREMENT).key(b"m").extras(&counter(1, 40, 0))).body, 40u64.to_be_bytes());
}

#[test]
fn touches_answer_the_flags_and_gat_the_value() {
    let mut client = Client::memcached();
    let stored = client.ask(frame(SET).key(b"a").extras(&store_extras(9, 0)).value(b"val"));
    let touched = client.ask(frame(TOUCH).key(b"a").extras(&100u32.to_be_bytes()));
    assert_eq!(
        (touched.extras.as_slice(), touched.body.len(), touched.cas),
        (&[0, 0, 0, 9][..], 0, stored.cas)
    );
    assert_eq!(client.ask(frame(GAT).key(b"a").extras(&100u32.to_be_bytes())).body, b"val");
    client.pass_s(101);
    assert_eq!(client.ask(frame(GET).key(b"a")).status, 1);
}

/// As in memcached, where text alone has negative ones.
#[test]
fn every_expiry_is_a_time() {
    let mut client = Client::memcached();
    for expiry in [1 << 31, u32::MAX - 1, u32::MAX] {
        client.ask(frame(SET).key(b"a").extras(&store_extras(0, expiry)).value(b"v"));
        assert_eq!(client.ask(frame(GET).key(b"a")).status, 0, "{expiry}");
        client.ask(frame(TOUCH).key(b"a").extras(&expiry.to_be_bytes()));
        assert_eq!(client.ask(frame(GET).key(b"a")).status, 0, "{expiry}");
    }
}

#[test]
fn a_refused_set_removes_the_old_value() {
    let mut client = Client::memcached();
    for (opcode, survives) in [(SET, false), (REPLACE, true)] {
        client.ask(frame(SET).key(b"big").extras(&store_extras(0, 0)).value(b"v"));
        let answer =
            client.ask(frame(opcode).key(b"big").extras(&store_extras(0, 0)).value(&vec![b'v'; 1 << 20]));
        assert_eq!((answer.status, answer.body.as_slice()), (3, &b"Too large."[..]));
        assert_eq!(client.ask(frame(GET).key(b"big")).status == 0, survives);
    }
}

/// Probed with memcached: a key of 3 bytes, flags other than 0 and 0.
#[test]
fn the_largest_value_is_memcacheds() {
    let mut client = Client::memcached();
    for (flags, largest) in [(5, 1_048_510), (0, 1_048_514)] {
        for (len, status) in [(largest, 0), (largest + 1, 3)] {
            let answer =
                client.ask(frame(SET).key(b"big").extras(&store_extras(flags, 0)).value(&vec![b'v'; len]));
            assert_eq!(answer.status, status, "{len} bytes with flags {flags}");
        }
    }
}

#[test]
fn an_append_beyond_the_limit_is_not_stored() {
    let mut client = Client::memcached();
    client.ask(frame(SET).key(b"a").extras(&store_extras(0, 0)).value(&vec![b'v'; 600_000]));
    assert_eq!(client.ask(frame(APPEND).key(b"a").value(&vec![b'w'; 600_000])).status, 5);
    assert_eq!(client.ask(frame(APPEND).key(b"a").value(&vec![b'w'; 400_000])).status, 0);
    assert_eq!(client.ask(frame(GET).key(b"a")).body.len(), 1_000_000);
}

#[test]
fn malformed_frames_are_skipped_and_the_connection_lives() {
    let mut client = Client::memcached();
    let mut contradictory = frame(GET).key(b"hello").bytes();
    contradictory[11] = 4;
    contradictory.truncate(28);
    let answers =
        client.send(&[contradictory, frame(GET).key(&[b'k'; 300]).bytes(), frame(NOOP).bytes()].concat());
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [0x81, 4, 0]);
    assert!(!client.is_closed());
}

#[test]
fn an_unknown_magic_closes() {
    let mut client = Client::memcached();
    assert_eq!(client.send(&frame(NOOP).bytes()).len(), 1);
    assert_eq!(client.send(&[0x81; 24]).len(), 0);
    assert!(client.is_closed());
}

#[test]
fn nothing_is_answered_behind_quit() {
    let mut client = Client::memcached();
    let answers = client.ask_all(&[frame(0x07), frame(NOOP)]);
    assert_eq!(answers.len(), 1);
    assert!(client.is_closed());
    let mut client = Client::memcached();
    assert_eq!(client.ask_all(&[frame(0x17), frame(NOOP)]).len(), 0);
    assert!(client.is_closed());
}

#[test]
fn a_demanded_login_is_plain() {
    let mut client = Client::memcached_with_login();
    assert_eq!(client.ask(frame(0x20)).body, b"PLAIN");
    assert_eq!(client.ask(frame(0x0b)).status, 0, "VERSION is free");
    let wrong = client.ask(frame(0x21).key(b"PLAIN").value(b"\0Administrator\0wrong"));
    assert_eq!((wrong.status, wrong.body.as_slice()), (0x20, &b"Auth failure."[..]));
    let right = client.ask(frame(0x21).key(b"PLAIN").value(b"\0Administrator\0password"));
    assert_eq!((right.status, right.body.as_slice()), (0, &b"Authenticated"[..]));
    assert_eq!(client.ask(frame(GET).key(b"a")).status, 1);

    let mut client = Client::memcached_with_login();
    assert_eq!(client.ask(frame(GET).key(b"a")).status, 0x20);
    assert!(client.is_closed());
}

#[test]
fn a_flush_hides_what_was_stored_before_and_a_delayed_one_waits() {
    let mut client = Client::memcached();
    let set = || frame(SET).key(b"a").extras(&store_extras(0, 0)).value(b"v");
    client.ask(set());
    assert_eq!(client.ask(frame(0x08)).status, 0);
    assert_eq!(client.ask(frame(GET).key(b"a")).status, 1);
    client.ask(set());
    assert_eq!(client.ask(frame(0x08).extras(&10u32.to_be_bytes())).status, 0);
    assert_eq!(client.ask(frame(GET).key(b"a")).status, 0);
    client.pass_s(11);
    assert_eq!(client.ask(frame(GET).key(b"a")).status, 1);
}

#[test]
fn statistics_end_with_an_empty_answer() {
    let mut client = Client::memcached();
    for group in ["", "settings", "items", "memory", "reset"] {
        let answers = client.ask_all(&[frame(STAT).key(group.as_bytes())]);
        let (last, rest) = answers.split_last().unwrap();
        assert!(last.key.is_empty() && last.body.is_empty(), "{group}");
        assert!(rest.iter().all(|answer| !answer.key.is_empty() && answer.status == 0), "{group}");
    }
}

/// The same bytes produce the same answers wherever they are split.
#[test]
fn input_may_be_cut_at_any_byte() {
    let script: Vec<u8> = [
        frame(SET).key(b"a").extras(&store_extras(1, 0)).value(b"value").bytes(),
        frame(0x09).key(b"a").bytes(),
        frame(GET).key(&[b'k'; 300]).bytes(),
        frame(DELETE).key(b"a").bytes(),
        frame(NOOP).bytes(),
    ]
    .concat();
    let statuses = |answers: &[Answer]| answers.iter().map(|a| (a.opcode, a.status)).collect::<Vec<_>>();
    let whole = statuses(&Client::memcached().send(&script));
    for cut in 1..script.len() {
        let mut client = Client::memcached();
        let mut answers = client.send(&script[..cut]);
        answers.extend(client.send(&script[cut..]));
        assert_eq!(statuses(&answers), whole, "cut at {cut}");
    }
}

/// With extras of a length that none of them takes: what has an executor refuses them as invalid.
#[test]
fn every_opcode_that_names_a_document_is_executed() {
    const EINVAL: u16 = 0x04;
    const NOT_MY_VBUCKET: u16 = 0x07;
    const SUBDOC_INVALID_COMBO: u16 = 0xcb;
    let rows = include_str!("../../../docs/opcodes.md").lines().filter_map(|line| line.strip_prefix("| 0x"));
    let mut executed = 0;
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let opcode = u8::from_str_radix(cells[0], 16).unwrap();
        let request = frame(opcode).key(b"k").extras(&[9]);
        if matches!(cells[2], "both" | "memcached") {
            assert_eq!(Client::memcached().ask(request.clone()).status, EINVAL, "{row}");
            executed += 1;
        }
        if matches!(cells[2], "both" | "Couchbase") {
            let mut client = Client::couchbase();
            client.open_bucket(&[]);
            let status = client.ask(request).status;
            assert!(matches!(status, EINVAL | NOT_MY_VBUCKET | SUBDOC_INVALID_COMBO), "{row}: {status:#x}");
            executed += 1;
        }
    }
    assert!(executed > 50, "{executed}");
}
