//! Memcached ports and vBuckets that are not active: requests neither miss nor change anything, and nothing else is
//! affected.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use std::sync::Arc;

use client::{Client, frame, store_extras};
use kv::{Bucket, Key, Place, VbState};

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const DELETE: u8 = 0x04;
const GETQ: u8 = 0x09;
const SETQ: u8 = 0x11;
const E2BIG: u16 = 0x03;
const ETMPFAIL: u16 = 0x86;
const REFUSAL: &[u8] = b"SERVER_ERROR the vBucket is not active, try again\r\n";

fn bucket(client: &Client) -> Arc<Bucket> {
    client.node.bucket("default").unwrap()
}

fn place(client: &Client, key: &str) -> Place {
    bucket(client).locate(Key::plain(key.as_bytes()))
}

fn set_state(client: &mut Client, key: &str, state: VbState) {
    let vb = place(client, key).vb;
    bucket(client).set_vbucket(&mut client.cx, vb, state, None);
}

/// A client, with `here` = 1 in an active vBucket and `away` = 1 in one of this state.
fn world(state: VbState) -> Client {
    let mut client = Client::memcached();
    assert_eq!(client.send_raw(b"set here 0 0 1\r\n1\r\nset away 0 0 1\r\n1\r\n"), b"STORED\r\nSTORED\r\n");
    set_state(&mut client, "away", state);
    client
}

fn is_untouched(mut client: Client) -> bool {
    set_state(&mut client, "away", VbState::Active);
    client.send_raw(b"get away\r\nmg away t v\r\n") == b"VALUE away 0 1\r\n1\r\nEND\r\nVA 1 t-1\r\n1\r\n"
}

#[test]
fn text_and_meta_commands_are_refused_for_now() {
    for state in [VbState::Replica, VbState::Pending, VbState::Dead] {
        let mut client = world(state);
        for command in [
            &b"get away\r\n"[..],
            b"gets away\r\n",
            b"gat 10 away\r\n",
            b"set away 0 0 1\r\n2\r\n",
            b"add away 0 0 1\r\n2\r\n",
            b"replace away 0 0 1\r\n2\r\n",
            b"append away 0 0 1\r\n2\r\n",
            b"cas away 0 0 1 5\r\n2\r\n",
            b"incr away 1\r\n",
            b"touch away 10\r\n",
            b"delete away\r\n",
            b"mg away v q\r\n",
            b"mg YXdheQ== b v\r\n",
            b"ms away 1\r\n2\r\n",
            b"md away q\r\n",
            b"ma away\r\n",
            b"me away\r\n",
        ] {
            let text = String::from_utf8_lossy(command).into_owned();
            let answer = client.send_raw(command);
            assert_eq!(answer, REFUSAL, "{text}");
            assert!(!client.is_closed(), "{text}");
            assert_eq!(
                client.send_raw(b"get here\r\nmn\r\n"),
                b"VALUE here 0 1\r\n1\r\nEND\r\nMN\r\n",
                "{text}"
            );
        }
        assert!(is_untouched(client));
    }
}

#[test]
fn refusals_are_silent_with_noreply() {
    let mut client = world(VbState::Replica);
    for command in [
        "set away 0 0 1 noreply\r\n2\r\n",
        "cas away 0 0 1 5 noreply\r\n2\r\n",
        "append away 0 0 1 noreply\r\n2\r\n",
        "incr away 1 noreply\r\n",
        "touch away 10 noreply\r\n",
        "delete away noreply\r\n",
        &format!("set away 0 0 100000 noreply\r\n{}\r\n", "x".repeat(100_000)),
    ] {
        let answer = client.send_raw(format!("{command}mn\r\n").as_bytes());
        assert_eq!(String::from_utf8_lossy(&answer), "MN\r\n", "{:.40}", command);
    }
    assert!(is_untouched(client));
}

#[test]
fn a_retrieval_of_several_keys_ends_with_the_first_that_is_refused() {
    let mut client = world(VbState::Replica);
    let answer = client.send_raw(b"get here away here\r\n");
    assert_eq!(answer, [b"VALUE here 0 1\r\n1\r\n", REFUSAL].concat());
    assert!(client.is_closed());
}

#[test]
fn a_value_that_is_refused_for_its_length_takes_nothing_with_it() {
    let mut client = world(VbState::Replica);
    let long = "x".repeat(2 << 20);
    let answer = client.send_raw(format!("set away 0 0 {}\r\n{long}\r\n", long.len()).as_bytes());
    assert_eq!(answer, b"SERVER_ERROR object too large for cache\r\n");
    let answer = client.send_raw(format!("ms away {}\r\n{long}\r\n", long.len()).as_bytes());
    assert_eq!(answer, b"SERVER_ERROR object too large for cache\r\n");
    assert!(is_untouched(client));
    // A value that is received directly into item memory and then not stored.
    let mut client = world(VbState::Replica);
    let large = "x".repeat(100_000);
    let answer = client.send_raw(format!("set away 0 0 {}\r\n{large}\r\n", large.len()).as_bytes());
    assert_eq!(answer, REFUSAL);
    assert!(is_untouched(client));
}

#[test]
fn binary_requests_fail_for_now() {
    let mut client = Client::memcached();
    let on = |opcode, key: &str| frame(opcode).key(key.as_bytes());
    let set = |opcode, key, value: &[u8]| on(opcode, key).extras(&store_extras(0, 0)).value(value);
    for key in ["here", "away"] {
        assert_eq!(client.ask(set(SET, key, b"1")).status, 0);
    }
    set_state(&mut client, "away", VbState::Dead);
    let requests = [
        on(GET, "away"),
        on(GETQ, "away"),
        set(SET, "away", b"2"),
        set(SETQ, "away", b"2"),
        on(DELETE, "away"),
    ];
    for request in requests {
        assert_eq!(client.ask(request).status, ETMPFAIL);
        assert_eq!(client.ask(on(GET, "here")).body, b"1");
    }
    assert_eq!(client.ask(set(SET, "away", &vec![b'x'; 2 << 20])).status, E2BIG);
    set_state(&mut client, "away", VbState::Active);
    assert_eq!(client.ask(on(GET, "away")).body, b"1");
}

#[test]
fn flush_all_is_about_what_no_other_node_decides() {
    for (state, left) in [
        (VbState::Replica, &b"VALUE away 0 1\r\n1\r\nEND\r\n"[..]),
        (VbState::Pending, b"VALUE away 0 1\r\n1\r\nEND\r\n"),
        (VbState::Dead, b"END\r\n"),
    ] {
        let mut client = world(state);
        assert_eq!(client.send_raw(b"flush_all\r\n"), b"OK\r\n");
        set_state(&mut client, "away", VbState::Active);
        assert_eq!(client.send_raw(b"get here away\r\n"), left, "{state:?}");
    }
}
