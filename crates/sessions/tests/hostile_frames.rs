//! Frames of any shape, on both kinds of port: no panic, every answer is a well-formed frame, and the connection stays
//! open unless it was asked to close.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use client::{Client, Frame, frame};
use proptest::prelude::*;
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

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
