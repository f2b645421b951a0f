//! DCP in both directions: no input panics, what is decoded is encoded to a message that is decoded to the same, and
//! requests for streams are either understood or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Parsed;
use wire::binary::{Limits, parse};
use wire::dcp::{Message, Open, StreamRequest};

fuzz_target!(|input: &[u8]| {
    let limits = Limits { frame_bytes: 1 << 20 };
    let Parsed::Request { head, body, command, .. } = parse(input, &limits) else { return };
    let Some(value) = input.get(head..head + body) else { return };
    let _ = Open::decode(command.extras, command.key);
    let _ = StreamRequest::decode(command.extras, value);
    let Some(Ok((place, message))) = Message::decode(&command, value) else { return };
    let mut again = Vec::new();
    message.encode(&place, &mut again);
    let Parsed::Request { head, body, command, .. } = parse(&again, &limits) else {
        panic!("not a request: {again:x?}")
    };
    assert_eq!(again.len(), head + body);
    assert_eq!(Message::decode(&command, &again[head..]), Some(Ok((place, message))));
});
