//! Data-driven tests: scripts of input, `----`, expected description; cases are separated by empty lines.
//!
//! In inputs `\r`, `\n`, `\0`, `\\`, `\xNN` are escapes, `{x*N}` repeats the character x, and line ends of the script
//! itself do not count. Set `REWRITE=1` to write the present results into the script.

use std::fmt::Write as _;

use crate::{
    Parsed, meta,
    text::{self, Command, Get, Limits},
};

/// Runs every case of `testdata/<name>` through `run` and compares.
pub(crate) fn run_script(name: &str, run: impl Fn(&[u8]) -> String) {
    let path = format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(&path).unwrap();
    let (mut rewritten, mut cases) = (String::new(), 0);
    for case in script.split("\n\n").filter(|case| !case.trim().is_empty()) {
        let (comment_and_input, expected) = case.trim_matches('\n').split_once("\n----").unwrap();
        let input: String = comment_and_input.lines().filter(|line| !line.starts_with('#')).collect();
        let result = run(&unescape(&input));
        if std::env::var_os("REWRITE").is_none() {
            assert_eq!(result.trim(), expected.trim(), "{name}: {input}");
        }
        let _ = write!(rewritten, "{comment_and_input}\n----\n{result}\n");
        cases += 1;
    }
    if std::env::var_os("REWRITE").is_some() {
        std::fs::write(&path, rewritten).unwrap();
    }
    assert!(cases > 0, "{name} is empty");
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        match character {
            '\\' => match rest.next() {
                Some('r') => bytes.push(b'\r'),
                Some('n') => bytes.push(b'\n'),
                Some('t') => bytes.push(b'\t'),
                Some('0') => bytes.push(0),
                Some('x') => {
                    let digits: String = rest.by_ref().take(2).collect();
                    bytes.push(u8::from_str_radix(&digits, 16).unwrap());
                }
                Some(other) => bytes.push(u8::try_from(other).unwrap()),
                None => panic!("escape at the end"),
            },
            '{' => {
                let repeat: String = rest.by_ref().take_while(|end| *end != '}').collect();
                let (what, count) = repeat.split_once('*').unwrap();
                bytes.extend_from_slice(what.repeat(count.parse().unwrap()).as_bytes());
            }
            _ => bytes.push(u8::try_from(character).unwrap()),
        }
    }
    bytes
}

/// Parses all of `input`, arriving in pieces of `chunk` bytes, and describes what was found, one line each.
pub(crate) fn describe(input: &[u8], chunk: usize, limits: &Limits) -> String {
    let mut out = String::new();
    let (mut start, mut arrived) = (0, chunk.min(input.len()));
    let mut retrieval: Option<Get<'_>> = None;
    while start < input.len() {
        let window = input.get(start..arrived).unwrap_or_default();
        let parsed = match &retrieval {
            Some(get) => text::parse_get_rest(window, get, limits),
            None => text::parse(window, limits),
        };
        match parsed {
            Parsed::Incomplete { .. } => {
                if arrived == input.len() {
                    let _ = writeln!(out, "incomplete {}", arrived - start);
                    break;
                }
                arrived = (arrived + chunk).min(input.len());
            }
            Parsed::Request { head, body, trailer, command } => {
                assert!(head > 0);
                retrieval = match command {
                    Command::Get(get) if !get.last => Some(get),
                    _ => None,
                };
                let _ = write!(out, "{}", show(&command));
                start += head;
                if trailer > 0 {
                    let end = (start + body).min(input.len());
                    let block = input.get(start..end).unwrap_or_default();
                    let trail = input.get(end..(end + trailer).min(input.len())).unwrap_or_default();
                    let _ = write!(out, " body={body}");
                    if !block.is_empty() {
                        let _ = write!(out, " {}", block.escape_ascii());
                    }
                    if trail != text::TRAILER {
                        let _ = write!(out, " bad-data-chunk");
                    }
                    start += body + trailer;
                }
                out.push('\n');
            }
            Parsed::Malformed { skip, error } => {
                retrieval = None;
                let answer = match error {
                    text::Error::Silent => "silent".to_owned(),
                    _ => error.answer().escape_ascii().to_string(),
                };
                let _ = writeln!(out, "malformed skip={skip} {answer}");
                start += skip;
            }
            Parsed::Fatal { error } => {
                let _ = writeln!(out, "fatal {}", error.answer().escape_ascii());
                break;
            }
        }
        arrived = arrived.max(start.min(input.len()));
    }
    out
}

fn show(command: &Command<'_>) -> String {
    match *command {
        Command::Get(get) => {
            let mut out = "get".to_owned();
            for key in get.keys {
                let _ = write!(out, " {}", short(key));
            }
            if get.with_cas {
                out += " with_cas";
            }
            if let Some(exptime) = get.exptime {
                let _ = write!(out, " exptime={exptime}");
            }
            if !get.last {
                out += " more";
            }
            out
        }
        Command::Store(text::Store { verb, key, flags, exptime, cas, noreply }) => format!(
            "{verb:?} {} flags={flags} exptime={exptime} cas={cas}{}",
            short(key),
            if noreply { " noreply" } else { "" }
        ),
        Command::Meta(meta::Command { verb, key, flags }) => {
            let mut out = format!("{verb:?}");
            if verb != meta::Verb::Noop {
                let _ = write!(out, " {}", short(key.decode(&mut [0; text::KEY_MAX])));
            }
            if key.is_encoded() {
                out += " (base64)";
            }
            for flag in flags.iter() {
                let _ = write!(out, " {}", flag.word.escape_ascii());
            }
            out
        }
        ref other => format!("{other:?}"),
    }
}

fn short(key: &[u8]) -> String {
    match key.len() {
        0..=40 => key.escape_ascii().to_string(),
        length => format!("<{length} bytes>"),
    }
}
