//! Values that are only on disk: requests that need one wait for it, and no others do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use client::persistent::{self, eject, fetch, flush};
use client::{Client, Frame, frame, store_extras};
use journal::SimulatedDisk;
use sessions::Port;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const GETQ: u8 = 0x09;
const NOOP: u8 = 0x0a;
const APPEND: u8 = 0x0e;
const TOUCH: u8 = 0x1c;
const GET_META: u8 = 0xa0;
const UNORDERED: u16 = 0x0e;
const ENOENT: u16 = 0x01;
const EINTERNAL: u16 = 0x84;
const ETMPFAIL: u16 = 0x86;

fn client(disk: &SimulatedDisk, port: Port) -> Client {
    Client::of(persistent::node(disk, 1), port)
}

fn couchbase(features: &[u16]) -> Client {
    let mut client = client(&SimulatedDisk::new(), Port::Couchbase);
    client.open_bucket(features);
    client
}

fn memcached() -> Client {
    client(&SimulatedDisk::new(), Port::Memcached)
}

fn set(key: &str, value: &str) -> Frame {
    frame(SET).key(key.as_bytes()).extras(&store_extras(0, 0)).value(value.as_bytes())
}

fn on(opcode: u8, key: &str) -> Frame {
    frame(opcode).key(key.as_bytes())
}

#[test]
fn in_order_the_answers_wait_and_the_requests_do_not() {
    let mut client = couchbase(&[]);
    let large = "x".repeat(50_000);
    for (key, value) in [("a", "value a"), ("b", "value b"), ("large", &large)] {
        client.send(&set(key, value).bytes());
    }
    let mut item = Vec::new();
    // The large value arrives in pieces.
    while let Some(sink) = client.session.sink() {
        let count = sink.len();
        sink.copy_from_slice(&large.as_bytes()[..count]);
        client.session.filled(count);
        item.extend(client.send(&[]));
    }
    eject(&client);
    let requests = [
        on(GET, "a").opaque(1),
        on(GET_META, "a").opaque(2),
        set("c", "c").opaque(3),
        on(APPEND, "a").value(b"+").opaque(4),
        on(GET, "c").opaque(5),
        on(GET, "large").opaque(6),
        on(TOUCH, "b").extras(&[0, 0, 0, 0]).opaque(7),
        on(GET, "missing").opaque(8),
        on(GET, "a").opaque(9),
    ];
    assert_eq!(client.ask_all(&requests), []);
    let mut other = client.beside(1);
    other.open_bucket(&[]);
    assert_eq!(other.ask(on(GET, "c")).body, b"c", "executed at once");
    let mut answers = Vec::new();
    for _ in 0..10 {
        fetch(&client);
        answers.extend(client.letters());
        if !client.session.has_waits() {
            break;
        }
    }
    let found: Vec<_> = answers.iter().map(|answer| (answer.opaque, answer.status)).collect();
    assert_eq!(found, [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, ENOENT), (9, 0)]);
    assert_eq!(answers[0].body, b"value a");
    assert_eq!(answers[5].body, large.as_bytes());
    assert_eq!(answers[8].body, b"value a+");
}

#[test]
fn unordered_only_the_fetched_value_waits() {
    let mut client = couchbase(&[UNORDERED]);
    client.ask(set("a", "value a"));
    eject(&client);
    let answers = client.ask_all(&[on(GET, "a").opaque(1), on(GET, "missing").opaque(2)]);
    assert_eq!((answers.len(), answers[0].opaque), (1, 2));
    fetch(&client);
    let answers = client.letters();
    assert_eq!((answers.len(), answers[0].opaque, answers[0].body.as_slice()), (1, 1, &b"value a"[..]));
    assert_eq!(client.ask(on(GET, "a")).body, b"value a");
}

#[test]
fn a_noop_says_that_a_value_which_was_not_sent_is_not_there() {
    let mut client = couchbase(&[UNORDERED]);
    client.ask_all(&[set("a", "value a"), set("b", "value b")]);
    eject(&client);
    let requests = [
        on(GETQ, "a").opaque(1),
        on(GETQ, "missing").opaque(2),
        on(GETQ, "b").opaque(3),
        frame(NOOP).opaque(4),
    ];
    assert_eq!(client.ask_all(&requests), []);
    fetch(&client);
    let answers = client.letters();
    let found: Vec<_> = answers.iter().map(|answer| (answer.opaque, answer.body.as_slice())).collect();
    assert_eq!(found, [(1, &b"value a"[..]), (3, b"value b"), (4, b"")]);
}

fn fetched(client: &Client) -> u64 {
    let bucket = client.node.bucket("default").unwrap();
    bucket.persistence_figures(&mut persistent::cx(client)).unwrap().fetched
}

#[test]
fn many_who_ask_for_one_value_share_one_read() {
    for features in [&[][..], &[UNORDERED]] {
        let mut client = couchbase(features);
        client.ask_all(&[set("a", "value a"), set("b", "value b")]);
        eject(&client);
        let mut others: Vec<Client> = (1..6).map(|thread| client.beside(thread)).collect();
        for (other, opaque) in others.iter_mut().zip(0..) {
            other.open_bucket(features);
            let gets = (0..20).map(|at| on(GET, if at % 2 == 0 { "a" } else { "b" }).opaque(opaque + at));
            assert_eq!(other.ask_all(&gets.collect::<Vec<_>>()), []);
        }
        // A request that modifies the value needs it too; one that replaces it does not.
        client.send(&on(APPEND, "a").value(b"+").bytes());
        fetch(&client);
        assert_eq!(client.letters()[0].status, 0);
        for other in &mut others {
            let answers = other.letters();
            assert_eq!(answers.len(), 20);
            assert!(answers.iter().all(|answer| answer.body.starts_with(b"value ")));
            assert!(!other.session.has_waits());
        }
        assert_eq!(fetched(&client), 2, "each value once");
    }
}

#[test]
fn one_read_that_fails_is_told_to_all_who_wait_for_it() {
    let disk = SimulatedDisk::new();
    let mut client = client(&disk, Port::Couchbase);
    client.open_bucket(&[]);
    client.ask(set("a", "value a"));
    eject(&client);
    let mut other = client.beside(1);
    other.open_bucket(&[]);
    for asker in [&mut client, &mut other] {
        assert_eq!(asker.send(&on(GET, "a").bytes()), []);
    }
    let place_in = |path: PathBuf| {
        let offset = disk.read(&path)?.windows(7).position(|window| window == b"value a")?;
        Some((path, offset))
    };
    let (segment, offset) = disk.names().into_iter().find_map(place_in).unwrap();
    assert!(disk.flip(&segment, offset, 0));
    fetch(&client);
    for asker in [&mut client, &mut other] {
        let answers = asker.letters();
        assert_eq!((answers.len(), answers[0].status), (1, EINTERNAL));
    }
    // The next request starts another fetch.
    assert!(disk.flip(&segment, offset, 0));
    assert_eq!(other.send(&on(GET, "a").bytes()), []);
    fetch(&client);
    assert_eq!(other.letters()[0].body, b"value a");
}

#[test]
fn threads_that_ask_while_it_is_read_wait_for_the_same_read() {
    const KEYS: u64 = 8;
    const ROUNDS: u64 = 60;
    let mut client = couchbase(&[]);
    for key in 0..KEYS {
        client.ask(set(&format!("key-{key}"), "a value that is worth ejecting"));
    }
    let mut others: Vec<Client> = (1..5).map(|thread| client.beside(thread)).collect();
    others.iter_mut().for_each(|other| other.open_bucket(&[]));
    for round in 1..=ROUNDS {
        client.pass_s(1);
        eject(&client);
        let answered = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (client, answered, askers) = (&client, &answered, others.len());
            for other in &mut others {
                scope.spawn(move || {
                    let mut found = 0;
                    for key in 0..KEYS {
                        found += other.send(&on(GET, &format!("key-{key}")).bytes()).len();
                    }
                    while other.session.has_waits() {
                        found += other.letters().len();
                        std::thread::yield_now();
                    }
                    assert_eq!(found as u64, KEYS);
                    answered.fetch_add(1, SeqCst);
                });
            }
            while answered.load(SeqCst) < askers {
                fetch(client);
            }
        });
        assert_eq!(fetched(&client), KEYS * round);
    }
}

#[test]
fn memcached_ports_stay_in_order() {
    let mut client = memcached();
    for key in ["a", "b", "n"] {
        client.send_raw(format!("set {key} 5 0 18\r\n{:<18}\r\n", 41).as_bytes());
    }
    eject(&client);
    client.send_raw(b"set here 0 0 1\r\nx\r\n");
    let script =
        b"get a here b missing\r\nincr n 1\r\nappend a 0 0 1\r\n!\r\nmg b v f\r\nset b 0 0 1\r\ny\r\n\
        get a\r\nmg Yg== b v\r\nversion\r\ntouch here 0\r\n";
    assert_eq!(client.send_raw(script), b"");
    let mut answers = Vec::new();
    for _ in 0..10 {
        fetch(&client);
        answers.extend(client.letters_raw());
        if !client.session.has_waits() {
            break;
        }
    }
    let text = String::from_utf8(answers).unwrap();
    let value = format!("{:<18}", 41);
    let expected = format!(
        "VALUE a 5 18\r\n{value}\r\nVALUE here 0 1\r\nx\r\nVALUE b 5 18\r\n{value}\r\nEND\r\n42\r\nSTORED\r\n\
         VA 18 f5\r\n{value}\r\nSTORED\r\nVALUE a 5 19\r\n{value}!\r\nEND\r\nVA 1\r\ny\r\nVERSION test\r\nTOUCHED\r\n"
    );
    assert_eq!(text, expected);
}

#[test]
fn a_vbucket_that_is_not_read_in_yet_says_try_again() {
    let disk = SimulatedDisk::new();
    let mut first = client(&disk, Port::Couchbase);
    first.open_bucket(&[]);
    first.ask(set("a", "value a"));
    flush(&first);
    drop(first);
    let mut client = client(&disk, Port::Couchbase);
    client.open_bucket(&[]);
    assert_eq!(client.ask(on(GET, "a")).status, ETMPFAIL);
    assert_eq!(client.ask(set("a", "x")).status, ETMPFAIL);
    let mut text = Client::of(Arc::clone(&client.node), Port::Memcached);
    assert!(text.send_raw(b"get a\r\n").starts_with(b"SERVER_ERROR"));
    assert!(text.send_raw(b"set a 0 0 1\r\nx\r\n").starts_with(b"SERVER_ERROR"));
    assert!(!text.is_closed());
    flush(&client);
    assert_eq!(client.ask(on(GET, "a")).body, b"value a");
}

#[test]
fn what_comes_behind_a_quit_is_not_executed() {
    let mut client = memcached();
    client.send_raw(b"set a 0 0 7\r\nvalue a\r\nset b 0 0 1\r\nx\r\n");
    eject(&client);
    assert_eq!(client.send_raw(b"get a\r\nquit\r\nset c 0 0 1\r\ny\r\n"), b"");
    for _ in 0..4 {
        fetch(&client);
    }
    assert_eq!(client.letters_raw(), b"VALUE a 0 7\r\nvalue a\r\nEND\r\n");
    assert!(client.is_closed() && !client.session.has_waits());
    let mut other = Client::of(Arc::clone(&client.node), Port::Memcached);
    assert_eq!(other.send_raw(b"get c\r\n"), b"END\r\n");
}

#[test]
fn an_end_that_comes_behind_a_waiting_answer_waits_for_it() {
    let mut client = memcached();
    client.send_raw(b"set a 0 0 7\r\nvalue a\r\n");
    eject(&client);
    let endless = [b"get a\r\n".as_slice(), &[b'x'; 70_000]].concat();
    assert_eq!(client.send_raw(&endless), b"");
    assert!(client.session.peer.close && client.session.has_waits());
    fetch(&client);
    let text = String::from_utf8(client.letters_raw()).unwrap();
    assert!(text.starts_with("VALUE a 0 7\r\nvalue a\r\nEND\r\n") && text.len() > 30, "{text}");
}
