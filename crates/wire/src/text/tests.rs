//! Scripts in `testdata/text` and properties of the parser.

use proptest::prelude::*;

use super::*;
use crate::testdata::{describe, run_script};

fn parse_all(input: &[u8]) -> String {
    describe(input, input.len() + 1, &Limits::default())
}

#[test]
fn commands_and_errors() {
    run_script("text", parse_all);
}

#[test]
fn login() {
    run_script("login", |input| match parse_login(input, &Limits::default()) {
        Parsed::Request { head, body, .. } => {
            let block = input.get(head..head + body).unwrap_or_default();
            match credentials(block) {
                Some((user, password)) => {
                    format!("user={} password={}\n", user.escape_ascii(), password.escape_ascii())
                }
                None => "no credentials\n".to_owned(),
            }
        }
        Parsed::Malformed { skip, error } => {
            format!("malformed skip={skip} {}\n", error.answer().escape_ascii())
        }
        other => format!("{other:?}\n"),
    });
}

#[test]
fn long_retrieval_comes_in_pieces() {
    let limits = Limits { line_bytes: 600 };
    let keys: Vec<String> = (0..500).map(|number| format!("key-{number}")).collect();
    for prefix in ["get ", "gets  ", "gat 100 "] {
        let line = format!("{prefix}{}\r\nversion\r\n", keys.join(" "));
        let mut input = line.as_bytes();
        let mut found = Vec::new();
        let mut get: Option<Get<'_>> = None;
        let mut pieces = 0;
        loop {
            let parsed = match &get {
                Some(get) => parse_get_rest(input, get, &limits),
                None => parse(input, &limits),
            };
            let Parsed::Request { head, command: Command::Get(piece), .. } = parsed else {
                panic!("{parsed:?}");
            };
            assert!(head <= limits.line_bytes);
            assert_eq!(piece.with_cas, prefix.starts_with("gets"));
            assert_eq!(piece.exptime, prefix.starts_with("gat").then_some(100));
            found.extend(piece.keys.map(|key| String::from_utf8(key.to_vec()).unwrap()));
            input = &input[head..];
            pieces += 1;
            if piece.last {
                break;
            }
            get = Some(piece);
        }
        assert_eq!(found, keys);
        assert!(pieces > 5);
        assert_eq!(input, b"version\r\n");
    }
}

#[test]
fn long_line_that_is_no_retrieval_is_fatal() {
    let limits = Limits { line_bytes: 600 };
    for line in ["set ", "mg ", "", "getx "] {
        let mut input = line.as_bytes().to_vec();
        input.resize(599, b'x');
        assert_eq!(parse(&input, &limits), Parsed::Incomplete { need: 0 });
        input.push(b'x');
        assert_eq!(parse(&input, &limits), Parsed::Fatal { error: Error::LineTooLong });
    }
    let mut endless_key = b"get a ".to_vec();
    endless_key.resize(1000, b'x');
    assert_eq!(
        parse(&endless_key, &Limits { line_bytes: 900 }),
        Parsed::Fatal { error: Error::LongLineMalformed }
    );
}

#[test]
fn first_key_is_taken_off() {
    let Parsed::Request { command: Command::Get(mut get), .. } =
        parse(b"gets a bc  d\r\n", &Limits::default())
    else {
        panic!();
    };
    let mut taken = Vec::new();
    while let Some(mut one) = get.take_first() {
        assert!(one.with_cas);
        taken.push((one.keys.next().unwrap().to_vec(), one.last));
    }
    assert_eq!(taken, [(b"a".to_vec(), false), (b"bc".to_vec(), false), (b"d".to_vec(), true)]);
    let rest = Get::continued(false, Some(1));
    let Parsed::Request { command: Command::Get(mut get), .. } =
        parse_get_rest(b" \r\n", &rest, &Limits::default())
    else {
        panic!();
    };
    let one = get.take_first().unwrap();
    assert!(one.last && one.keys.is_empty());
    assert_eq!(get.take_first(), None);
}

/// Lines that are nearly valid: words of the protocol in any order.
fn near_protocol() -> impl Strategy<Value = Vec<u8>> {
    const WORDS: &[&str] = &[
        "get",
        "gets",
        "gat",
        "gats",
        "set",
        "add",
        "append",
        "cas",
        "delete",
        "incr",
        "decr",
        "touch",
        "flush_all",
        "verbosity",
        "stats",
        "version",
        "quit",
        "cache_memlimit",
        "shutdown",
        "mg",
        "ms",
        "md",
        "ma",
        "me",
        "mn",
        "mx",
        "noreply",
        "key",
        "Zm9v",
        "0",
        "1",
        "3",
        "-1",
        "18446744073709551615",
        "99999999999999999999",
        "x",
        "b",
        "q",
        "v",
        "k",
        "O1",
        "T30",
        "N0",
        "MA",
        "MS",
        "MD",
        "C5",
        "E5",
        "D2",
        "J7",
        "F9",
        "I",
        "h",
        "l",
        "t",
        "s",
        "c",
        "f",
        "u",
        "\r\n",
        "\n",
        "\r",
        " ",
        "\t",
        "\0",
        "abc\r\n",
    ];
    let word = prop_oneof![
        12 => proptest::sample::select(WORDS).prop_map(|word| word.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..8),
        1 => (240usize..300).prop_map(|length| vec![b'k'; length]),
    ];
    proptest::collection::vec((word, any::<bool>()), 0..40).prop_map(|words| {
        let mut line = Vec::new();
        for (word, spaced) in words {
            line.extend_from_slice(&word);
            if spaced {
                line.push(b' ');
            }
        }
        line
    })
}

proptest! {
    #[test]
    fn splitting_the_input_changes_nothing(input in near_protocol(), chunk in 1usize..40, line_bytes in 1usize..800) {
        let limits = Limits { line_bytes };
        let whole = describe(&input, input.len() + 1, &limits);
        prop_assert_eq!(describe(&input, chunk, &limits), whole);
    }

    #[test]
    fn no_input_panics(input in proptest::collection::vec(any::<u8>(), 0..200)) {
        describe(&input, 200, &Limits { line_bytes: 64 });
        describe(&input, 1, &Limits::default());
        let _ = parse_login(&input, &Limits::default());
        let _ = credentials(&input);
    }

    #[test]
    fn a_request_never_claims_more_head_than_there_is(input in near_protocol()) {
        if let Parsed::Request { head, .. } = parse(&input, &Limits::default()) {
            prop_assert!(head > 0 && head <= input.len());
        }
    }
}
