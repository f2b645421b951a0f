//! The parser of the text and meta protocols: no input panics, the parts of a line lie within it, and every prefix of
//! the input is either incomplete or gives the same result as the whole. The first two bytes choose the maximum line
//! length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Parsed;
use wire::meta;
use wire::text::{
    Command, Error, Get, KEY_MAX, LENGTH_MAX, Limits, credentials, parse, parse_get_rest, parse_login,
};

fuzz_target!(|input: &[u8]| {
    let Some((limit, input)) = input.split_first_chunk::<2>() else { return };
    let limits = Limits { line_bytes: usize::from(u16::from_le_bytes(*limit)) };
    let whole = parse(input, &limits);
    for end in (0..input.len()).rev().take(64).chain(0..input.len().min(64)) {
        match parse(&input[..end], &limits) {
            Parsed::Incomplete { .. } => {}
            decided => assert_eq!(decided, whole),
        }
    }
    let _ = parse_login(input, &limits);
    let _ = credentials(input);

    let mut rest = input;
    let mut retrieval: Option<Get<'_>> = None;
    while !rest.is_empty() {
        let parsed = match &retrieval {
            Some(get) => parse_get_rest(rest, get, &limits),
            None => parse(rest, &limits),
        };
        let done = match parsed {
            Parsed::Incomplete { .. } | Parsed::Fatal { .. } => break,
            Parsed::Malformed { skip, error } => {
                assert!(skip > 0 && !error.is_fatal());
                assert!(error == Error::Silent || error.answer().ends_with(b"\r\n"));
                retrieval = None;
                skip
            }
            Parsed::Request { head, body, trailer, command } => {
                assert!(head > 0 && head <= rest.len() && body <= LENGTH_MAX);
                check(&command);
                retrieval = match command {
                    Command::Get(get) if !get.last => Some(get),
                    _ => None,
                };
                head + body + trailer
            }
        };
        rest = rest.get(done..).unwrap_or_default();
    }
});

fn check(command: &Command<'_>) {
    match *command {
        Command::Get(mut get) => {
            let keys: Vec<&[u8]> = get.keys.collect();
            assert!(keys.iter().all(|key| !key.is_empty() && key.len() <= KEY_MAX));
            let mut taken = 0;
            while let Some(one) = get.take_first() {
                match keys.get(taken) {
                    Some(key) => assert_eq!(one.single_key(), *key),
                    None => assert!(one.last && one.single_key().is_empty()),
                }
                taken += 1;
            }
            assert!(taken >= keys.len() && taken <= keys.len() + 1);
        }
        Command::Store(store) => assert!(!store.key.is_empty() && store.key.len() <= KEY_MAX),
        Command::Meta(meta) => {
            let mut buffer: meta::KeyBuffer = [0; KEY_MAX];
            let key = meta.key.decode(&mut buffer);
            assert_eq!(key.is_empty(), meta.verb == meta::Verb::Noop);
            assert_eq!(key.len(), meta.key.length());
            for flag in meta.flags.iter() {
                assert!(meta.flags.has(flag.letter));
            }
            for letter in [b'C', b'D', b'E', b'J'] {
                assert_eq!(meta.flags.number(letter).is_some(), meta.flags.has(letter));
            }
            for letter in [b'N', b'R', b'T'] {
                assert_eq!(meta.flags.exptime(letter).is_some(), meta.flags.has(letter));
            }
        }
        _ => {}
    }
}
