//! The binary request parser and Couchbase KV's decoding of a request: no input panics, a frame's parts tile it, and
//! every prefix of the input is either incomplete or gives the same result as the whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Parsed;
use wire::binary::{HEADER_LEN, Limits, parse};
use wire::couchbase::{FrameInfos, collection_id, feature};

fuzz_target!(|input: &[u8]| {
    let limits = Limits { frame_bytes: 1 << 20 };
    let whole = parse(input, &limits);
    for end in (0..input.len()).rev().take(64).chain(0..input.len().min(64)) {
        match parse(&input[..end], &limits) {
            Parsed::Incomplete { need } => assert!(need > end),
            decided => assert_eq!(decided, whole),
        }
    }
    let Parsed::Request { head, body, trailer, command } = whole else { return };
    assert_eq!(trailer, 0);
    assert_eq!(head + body, HEADER_LEN + command.header.body_len as usize);
    assert_eq!(head, HEADER_LEN + command.framing.len() + command.extras.len() + command.key.len());
    let _ = FrameInfos::parse(command.framing);
    if let Some((id, key)) = collection_id::split(command.key) {
        let mut again = Vec::new();
        collection_id::encode(id, &mut again);
        again.extend(key);
        assert_eq!(again, command.key, "only the canonical encoding is taken");
    }
    if let Some(value) = input.get(head..)
        && let Some(features) = feature::requested(value)
    {
        assert_eq!(features.count() * 2, value.len());
    }
});
