//! SASL logins with arbitrary messages: no input panics, and only the right proof is accepted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::sasl::{Channel, Exchange, Hash, Plain, ScramKeys};

fuzz_target!(|input: (Vec<u8>, Vec<u8>, u8)| {
    let (first, last, hash) = input;
    let hash = [Hash::Sha1, Hash::Sha256, Hash::Sha512][usize::from(hash % 3)];
    let _ = Plain::parse(&first);
    let keys = |_: &str| ScramKeys::impossible(hash, b"salt", 1);
    let bound = Channel { end_point: Some(b"certificate"), is_bound: true };
    for (channel, plain) in [
        (Channel::default(), &b"n,,n=user,r=client"[..]),
        (bound, b"p=tls-server-end-point,,n=user,r=client"),
    ] {
        if let Ok((exchange, challenge)) = Exchange::start(&first, channel, "server", keys) {
            assert!(challenge.starts_with(b"r="));
            assert!(exchange.finish(&last).is_err());
        }
        let Ok((exchange, _)) = Exchange::start(plain, channel, "server", keys) else {
            panic!("a plain first message is taken")
        };
        assert!(exchange.finish(&last).is_err());
    }
});
