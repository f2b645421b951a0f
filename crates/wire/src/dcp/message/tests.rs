use super::*;
use crate::Parsed;
use crate::binary::{Limits, parse};
use proptest::prelude::*;

fn decoded(bytes: &[u8]) -> Result<(Place, Message<'_>), Malformed> {
    let Parsed::Request { head, body, command, .. } = parse(bytes, &Limits::default()) else {
        panic!("not a request: {bytes:x?}")
    };
    assert_eq!(head + body, bytes.len());
    Message::decode(&command, &bytes[head..]).expect("a message")
}

fn encoded(place: &Place, message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(place, &mut bytes);
    bytes
}

/// The bytes of the protocol's documents.
#[test]
fn messages_are_as_documented() {
    let place = Place { vbucket: 0x210, opaque: 0x1210, stream_id: None };
    let mutation = Mutation { seqno: 4, rev: 1, key: b"hello", value: b"world", ..Mutation::default() };
    let bytes = encoded(&place, &Message::Mutation(mutation));
    let head = [0x80, 0x57, 0, 5, 0x1f, 0, 2, 0x10, 0, 0, 0, 0x29, 0, 0, 0x12, 0x10];
    assert_eq!(bytes[..16], head);
    assert_eq!(bytes[24..40], [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(bytes[40..55], [0; 15]);
    assert_eq!(&bytes[55..], b"helloworld");

    // The scope comes first, as in the definition and unlike in the example there.

    let event = Event::CreateCollection { scope: 0, id: 8, max_ttl: Some(72000), name: b"mycollection" };
    let bytes = encoded(&place, &Message::SystemEvent(SystemEvent { seqno: 4, manifest: 2, event }));
    assert_eq!(bytes.len(), 69);
    assert_eq!(bytes[..12], [0x80, 0x5f, 0, 0x0c, 0x0d, 0, 2, 0x10, 0, 0, 0, 0x2d]);
    assert_eq!(bytes[24..37], [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 1]);
    assert_eq!(bytes[49..], [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0x19, 0x40][..]);
}

#[test]
fn a_stream_id_is_a_frame_info() {
    let place = Place { vbucket: 1, opaque: 2, stream_id: Some(0x102) };
    let bytes = encoded(&place, &Message::SeqnoAdvanced(7));
    assert_eq!(bytes[..6], [0x08, 0x64, 3, 0, 8, 0]);
    assert_eq!(bytes[24..27], [0x22, 1, 2]);
    assert_eq!(decoded(&bytes), Ok((place, Message::SeqnoAdvanced(7))));
}

fn mutations() -> impl Strategy<Value = Mutation<'static>> {
    let numbers = any::<(u64, u64, u64, u32, u32, u32, u8)>();
    let (keys, values) = (
        prop::sample::select(vec![&b"k"[..], b"key", &[0; 250]]),
        prop::sample::select(vec![&b""[..], b"v", &[7; 3000]]),
    );
    (numbers, keys, values).prop_map(|((seqno, rev, cas, flags, expiry, lock_time, datatype), key, value)| {
        Mutation { seqno, rev, cas, flags, expiry, lock_time, datatype, key, value }
    })
}

fn messages() -> impl Strategy<Value = Message<'static>> {
    let deletion = |mutation: Mutation<'static>, deleted_s| {
        let Mutation { seqno, rev, cas, datatype, key, value, .. } = mutation;
        Deletion { seqno, rev, cas, deleted_s, datatype, key, value }
    };
    let marker = |(start, length, kind): (u64, u32, u32), form, seqnos: (u64, u64, u64, u64)| {
        let mut seqnos =
            Seqnos { visible: seqnos.0, completed: seqnos.1, purged: seqnos.2, prepared: seqnos.3 };
        if form < MarkerForm::V22 {
            (seqnos.purged, seqnos.prepared) = (0, 0);
        }
        if form < MarkerForm::V2 {
            seqnos = Seqnos::default();
        }
        Marker { start, end: start.saturating_add(length.into()), kind, form, seqnos }
    };
    let event = prop_oneof![
        any::<(u32, u32, Option<u32>)>().prop_map(|(scope, id, max_ttl)| Event::CreateCollection {
            scope,
            id,
            max_ttl,
            name: b"name"
        }),
        any::<(u32, u32)>().prop_map(|(scope, id)| Event::DropCollection { scope, id }),
        any::<u32>().prop_map(|id| Event::CreateScope { id, name: b"name" }),
        any::<u32>().prop_map(|id| Event::DropScope { id }),
    ];
    prop_oneof![
        mutations().prop_map(Message::Mutation),
        (mutations(), any::<Option<u32>>()).prop_map(move |(m, at)| Message::Deletion(deletion(m, at))),
        (mutations(), any::<u32>()).prop_map(move |(m, at)| Message::Expiration(deletion(m, Some(at)))),
        (mutations(), any::<bool>(), 1..=3u8).prop_map(|(mutation, is_deletion, level)| {
            Message::Prepare(Prepare { mutation, is_deletion, level })
        }),
        any::<(u64, u64)>().prop_map(|(prepared, seqno)| Message::Commit(End { prepared, seqno, key: b"k" })),
        any::<(u64, u64)>().prop_map(|(prepared, seqno)| Message::Abort(End { prepared, seqno, key: b"k" })),
        (any::<(u64, u64)>(), event).prop_map(|((seqno, manifest), event)| Message::SystemEvent(
            SystemEvent { seqno, manifest, event }
        )),
        (
            any::<(u64, u32, u32)>(),
            prop::sample::select(&[MarkerForm::V1, MarkerForm::V2, MarkerForm::V22]),
            any::<(u64, u64, u64, u64)>()
        )
            .prop_map(move |(range, form, seqnos)| Message::Marker(marker(range, form, seqnos))),
        any::<u64>().prop_map(Message::SeqnoAdvanced),
        any::<bool>().prop_map(Message::OutOfOrder),
        (1..=4u8).prop_map(Message::SetVBucketState),
        (0..=8u32).prop_map(|number| Message::StreamEnd(EndReason::of(number).unwrap())),
        Just(Message::Noop),
    ]
}

proptest! {
    #[test]
    fn messages_survive_encoding(
        message in messages(),
        vbucket in any::<u16>(),
        opaque in any::<u32>(),
        stream_id in any::<Option<u16>>(),
    ) {
        let place = Place { vbucket, opaque, stream_id };
        let bytes = encoded(&place, &message);
        prop_assert_eq!(decoded(&bytes), Ok((place, message)));
    }

    #[test]
    fn no_input_panics(
        opcode in 0x50..0x68u8,
        extras in prop::collection::vec(any::<u8>(), 0..50),
        key in prop::collection::vec(any::<u8>(), 0..20),
        value in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let header = Header {
            magic: Magic::REQUEST,
            opcode: Opcode(opcode),
            framing_len: 0,
            key_len: key.len() as u16,
            extras_len: extras.len() as u8,
            datatype: 0,
            vbucket: 0,
            body_len: (extras.len() + key.len() + value.len()) as u32,
            opaque: 0,
            cas: 0,
        };
        let request = Request { header, framing: &[], extras: &extras, key: &key };
        if let Some(Ok((place, message))) = Message::decode(&request, &value) {
            let bytes = encoded(&place, &message);
            prop_assert_eq!(decoded(&bytes), Ok((place, message)));
        }
    }
}
