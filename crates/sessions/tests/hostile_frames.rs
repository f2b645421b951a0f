//! Frames of any shape, on both kinds of port: no panic, every answer is a well-formed frame, and the connection stays
//! open unless it was asked to close.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::{Client, Frame, frame, store_extras};
use kv::Outcome;
use proptest::prelude::*;
use sessions::Output;
use wire::Parsed;
use wire::binary::{Limits, parse};
use wire::dcp::Message;
use wire::snappy::Compressor;

const QUITS: [u8; 2] = [0x07, 0x17];

fn bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..len)
}

fn block(value: &[u8]) -> Vec<u8> {
    Compressor::default().compress(value).unwrap().to_vec()
}

fn extras() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(vec![]),
        bytes(24),
        any::<[u8; 4]>().prop_map(Vec::from),
        any::<[u8; 8]>().prop_map(Vec::from),
        any::<[u8; 20]>().prop_map(Vec::from)
    ]
}

fn framing() -> impl Strategy<Value = Option<Vec<u8>>> {
    let known = prop_oneof![Just(vec![0x11, 1]), Just(vec![0x13, 1, 0, 9]), Just(vec![0x50]), Just(vec![0])];
    prop_oneof![4 => Just(None), 1 => known.prop_map(Some), 1 => bytes(12).prop_map(Some)]
}

prop_compose! {
    fn any_frame()(
        opcode in prop_oneof![any::<u8>(), 0u8..0x25],
        framing in framing(),
        extras in extras(),
        key in prop_oneof![Just(b"\0key".to_vec()), Just(b"\0other".to_vec()), bytes(8), bytes(300)],
        value in prop_oneof![
            Just(b"12".to_vec()),
            bytes(64),
            Just(vec![b'x'; 40_000]),
            Just(block(&[b'x'; 300])),
            Just(block(&[b'x'; 300_000])),
        ],
        header in (0u8..8, prop_oneof![Just(0u16), any::<u16>()], prop_oneof![Just(0u64), any::<u64>()]),
    ) -> Frame {
        let (datatype, vbucket, cas) = header;
        let built = frame(opcode).extras(&extras).value(&value).datatype(datatype).vbucket(vbucket).cas(cas);
        match framing {
            Some(framing) => built.framing(&framing).key(key.get(..255).unwrap_or(&key)),
            None => built.key(&key),
        }
    }
}

fn bombard(mut client: Client, frames: &[Frame]) {
    for frame in frames.iter().filter(|frame| !QUITS.contains(&frame.bytes()[1])) {
        // Decoding the answers checks their lengths.
        client.send(&frame.bytes());
        assert!(!client.is_closed(), "closed by {:x?}", &frame.bytes()[..24]);
    }
    assert_eq!(client.ask(frame(0x0a)).status, 0);
}

/// Names and values of settings of a connection for streams.
fn setting() -> impl Strategy<Value = (&'static str, &'static str)> {
    let names = [
        "enable_noop",
        "connection_buffer_size",
        "enable_expiry_opcode",
        "enable_stream_id",
        "enable_sync_writes",
        "consumer_name",
        "force_value_compression",
        "max_marker_version",
        "send_stream_end_on_client_close_stream",
        "unknown",
    ];
    let values = ["true", "false", "0", "1", "500", "2.0", "x", ""];
    (proptest::sample::select(names.to_vec()), proptest::sample::select(values.to_vec()))
}

prop_compose! {
    /// A request for a stream that is not quite right, or right.
    fn stream_request()(
        flags in prop_oneof![Just(0u32), Just(0x04), Just(0x40), 0u32..0x200],
        seqnos in proptest::collection::vec(prop_oneof![0u64..30, Just(u64::MAX)], 5),
        is_new: bool,
        value in proptest::sample::select(&["", "{}", r#"{"sid":1}"#, r#"{"collections":["0"]}"#, r#"{"scope":"0"}"#, "["][..]),
    ) -> Frame {
        let [start, end, uuid, from, to] = seqnos[..] else { unreachable!() };
        let numbers = if is_new { [0, end, 0, 0, 0] } else { [start, end, uuid, from, to] };
        let numbers = numbers.iter().flat_map(|number| number.to_be_bytes());
        let extras: Vec<u8> = flags.to_be_bytes().into_iter().chain([0; 4]).chain(numbers).collect();
        frame(0x53).extras(&extras).value(value.as_bytes())
    }
}

fn of_streams() -> impl Strategy<Value = Frame> {
    let key = (0u8..20).prop_map(|key| vec![0, b'a' + key]);
    prop_oneof![
        6 => (key.clone(), 0usize..300).prop_map(|(key, len)| {
            frame(0x01).key(&key).extras(&store_extras(0, 0)).value(&vec![b'v'; len])
        }),
        3 => key.prop_map(|key| frame(0x04).key(&key)),
        3 => setting().prop_map(|(name, value)| frame(0x5e).key(name.as_bytes()).value(value.as_bytes())),
        4 => stream_request(),
        2 => prop_oneof![Just(None), Just(Some([0x22, 0, 1]))].prop_map(|id| match id {
            None => frame(0x52),
            Some(id) => frame(0x52).framing(&id),
        }),
        2 => (0u32..3000).prop_map(|bytes| frame(0x5d).extras(&bytes.to_be_bytes())),
        1 => (0u64..30).prop_map(|seqno| frame(0x61).extras(&seqno.to_be_bytes())),
        1 => Just(frame(0x08)),
        1 => any_frame(),
    ]
}

/// Takes what a session is to be sent. Every message must be one.
fn take_messages(client: &mut Client) {
    for _ in 0..10_000 {
        let mut letters = Vec::new();
        client.cx.take_letters(true, &mut letters);
        let mut out = Output::default();
        for (cookie, outcome) in letters {
            if outcome == Outcome::Stirred {
                client.session.note_news(cookie.ticket);
            } else {
                client.session.complete(cookie.ticket, outcome, &mut client.cx, &mut out);
            }
        }
        if !client.session.has_to_send() {
            return;
        }
        let mut out = Output::default();
        client.session.produce(1000, &mut client.cx, &mut out);
        let (plain, pinned) = out.take();
        assert!(pinned.is_empty(), "there are no long values");
        let mut rest = &plain[..];
        while !rest.is_empty() {
            let Parsed::Request { head, body, command, .. } = parse(rest, &Limits::default()) else {
                panic!("not a message: {rest:x?}")
            };
            let message = Message::decode(&command, &rest[head..head + body]);
            assert!(matches!(message, Some(Ok(_))), "{:x?}", &rest[..head]);
            rest = &rest[head + body..];
        }
    }
    panic!("it sends for ever");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn on_a_connection_for_streams(frames in proptest::collection::vec(of_streams(), 1..100)) {
        let mut client = Client::couchbase();
        client.open_bucket(&[0x06, 0x07, 0x08, 0x0a, 0x0b, 0x10, 0x11, 0x12]);
        let opened = client.ask(frame(0x50).key(b"consumer").extras(&[0, 0, 0, 0, 0, 0, 0, 5]));
        prop_assert_eq!(opened.status, 0);
        for frame in frames.iter().filter(|frame| !QUITS.contains(&frame.bytes()[1])) {
            client.send(&frame.bytes());
            prop_assert!(!client.is_closed(), "closed by {:x?}", &frame.bytes()[..24]);
            take_messages(&mut client);
        }
        prop_assert_eq!(client.ask(frame(0x0a)).status, 0);
    }

    #[test]
    fn on_a_memcached_port(frames in proptest::collection::vec(any_frame(), 1..30)) {
        bombard(Client::memcached(), &frames);
    }

    #[test]
    fn on_a_couchbase_port(frames in proptest::collection::vec(any_frame(), 1..30), features: u64, is_logged_in: bool) {
        let mut client = Client::couchbase();
        let asked: Vec<u8> = (0..34u16).filter(|code| features >> code & 1 == 1).flat_map(u16::to_be_bytes).collect();
        client.ask(frame(0x1f).value(&asked));
        if is_logged_in {
            client.session.peer.user = Some("somebody".into());
            client.session.peer.bucket = client.node.bucket("default");
        }
        bombard(client, &frames);
    }
}
