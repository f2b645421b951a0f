//! Requests that take long: which ones leave the worker, and that their answers are as if they had not.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::{Client, frame};
use sessions::Port;

const SET: u8 = 0x01;
const GET: u8 = 0x00;
const STAT: u8 = 0x10;
const OBSERVE_SEQNO: u8 = 0x91;
const MULTI_LOOKUP: u8 = 0xd0;

fn lookup(paths: &[&str]) -> Vec<u8> {
    let spec = |path: &&str| [&[0xc5, 0, 0, path.len() as u8], path.as_bytes()].concat();
    let specs: Vec<u8> = paths.iter().flat_map(spec).collect();
    frame(MULTI_LOOKUP).key(b"array").vbucket(0).value(&specs).bytes()
}

fn with_array(numbers: usize) -> Client {
    let settings = kv::BucketSettings { memory_bytes: 64 << 20, vbuckets: 1, ..Default::default() };
    let mut client = Client::before(Port::Couchbase, settings);
    client.open_bucket(&[]);
    let array = format!("[{}7]", "1,".repeat(numbers));
    assert_eq!(
        client.ask(frame(SET).key(b"array").extras(&[0; 8]).vbucket(0).value(array.as_bytes())).status,
        0
    );
    client.aside_requests = 0;
    client
}

/// What a worker reads through for one request is document times paths.
#[test]
fn lookups_leave_the_worker_by_what_they_read() {
    let mut client = with_array(10_000);
    client.send(&lookup(&["[-1]"; 4]));
    assert_eq!(client.aside_requests, 0, "4 times 20 kB");
    client.send(&lookup(&["[-1]"; 8]));
    assert_eq!(client.aside_requests, 1, "8 times 20 kB");
}

/// A batch ends soon after a slow request, so that the worker can look at the time.
#[test]
fn few_slow_requests_are_executed_together() {
    let mut client = with_array(10);
    let get = || frame(GET).key(b"array").vbucket(0).bytes();
    let slow = [lookup(&["[0]"]), frame(OBSERVE_SEQNO).vbucket(0).value(&[0; 8]).bytes()];
    for request in slow {
        let input: Vec<u8> =
            std::iter::repeat_with(get).take(20).chain(std::iter::repeat_n(request, 60)).flatten().collect();
        let mut batch = sessions::Batch::with_slow(3);
        client.parse(&input, &mut batch);
        assert_eq!(batch.len(), 23);
        assert!(batch.is_slow());
    }
    let input = get().repeat(64);
    let mut batch = sessions::Batch::with_slow(1);
    client.parse(&input, &mut batch);
    assert_eq!(batch.len(), 64);
    assert!(!batch.is_slow());
}

/// Answers keep their order, and each request is executed once.
#[test]
fn requests_behind_a_long_one_are_answered_behind_it() {
    let mut client = with_array(15_000);
    let mut requests = lookup(&["[-1]"; 16]);
    requests.extend(frame(GET).key(b"array").vbucket(0).bytes());
    requests.extend(lookup(&["[0]"; 16]));
    requests.extend(frame(SET).key(b"other").extras(&[0; 8]).vbucket(0).value(b"1").bytes());
    let answers = client.send(&requests);
    let opcodes: Vec<u8> = answers.iter().map(|answer| answer.opcode).collect();
    assert_eq!(opcodes, [MULTI_LOOKUP, GET, MULTI_LOOKUP, SET]);
    assert_eq!(client.aside_requests, 2);
    assert!(answers[0].body.ends_with(b"7") && answers[2].body.ends_with(b"1"));
    assert!(!client.session.has_waits());
}

/// Statistics and logins do so whatever they ask for, on every port.
#[test]
fn statistics_and_logins_leave_the_worker() {
    let mut client = Client::couchbase();
    client.open_bucket(&[]);
    assert_eq!(client.aside_requests, 1, "the login");
    client.ask_all(&[frame(STAT)]);
    assert_eq!(client.aside_requests, 2);
    let mut client = Client::memcached();
    let answers = client.send_raw(b"stats\r\nset a 0 0 1\r\nx\r\nget a\r\n");
    let answers = String::from_utf8(answers).unwrap();
    assert!(
        answers.starts_with("STAT ") && answers.ends_with("END\r\nSTORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n")
    );
    assert_eq!(client.aside_requests, 1);
    let mut client = Client::memcached_with_login();
    assert_eq!(client.send_raw(b"set auth 0 0 22\r\nAdministrator password\r\n"), b"STORED\r\n");
    assert_eq!(client.aside_requests, 1);
}

/// What a request behind a long one needs is there when it is executed: streams are open.
#[test]
fn requests_behind_a_long_one_wait_for_what_it_does() {
    const DCP_OPEN: u8 = 0x50;
    const DCP_CONTROL: u8 = 0x5e;
    let mut client = with_array(1);
    let open = frame(DCP_OPEN).key(b"name").extras(&[0, 0, 0, 0, 0, 0, 0, 1]);
    let control = frame(DCP_CONTROL).key(b"enable_noop").value(b"true");
    let answers = client.ask_all(&[frame(STAT).key(b"uuid"), open, control]);
    let statuses: Vec<_> = answers.iter().map(|answer| (answer.opcode, answer.status)).collect();
    assert!(statuses.ends_with(&[(STAT, 0), (DCP_OPEN, 0), (DCP_CONTROL, 0)]), "{statuses:?}");
    assert_eq!(client.aside_requests, 2);
}
