//! Replays `testdata/text` and `testdata/meta` through a session. The expected answers are memcached 1.6.45's, taken
//! from the server itself, except where a case is headed `Dormouse:`.
//!
//! Each line of a case is sent after the answers to the one before; `+N` lets N seconds pass; `{x*N}` repeats x;
//! `{cas}` is the last CAS an answer showed. CAS values, which differ, are compared as `CAS`.

use std::fmt::Write as _;
use std::sync::Arc;

use kv::users::{Reach, Users};
use kv::{Bucket, BucketSettings, Limits, Node, NodeContext, NodeSettings, Now};

use crate::{Batch, Output, Peer, Port, Session};

const START_S: u32 = 1_800_000_000;

struct Client {
    session: Session,
    cx: NodeContext,
    /// Input not yet consumed.
    input: Vec<u8>,
    chunk: usize,
    bucket: Arc<Bucket>,
    seconds: u32,
}

impl Client {
    fn new(chunk: usize, login_required: bool) -> Self {
        let settings =
            NodeSettings { threads: 1, shutdown_command: false, version: "1.6.45".to_owned(), seed: 42 };
        let limits = Limits::default();
        let node = Node::new(settings, limits.clone());
        let users = Users::new([1; 32]);
        if login_required {
            users.set("foo", b"bar", Reach::Anywhere);
        }
        node.set_users(users);
        let bucket = node
            .create_bucket("default", BucketSettings { memory_bytes: 256 << 20, ..Default::default() })
            .unwrap();
        let bucket_in_use = Some(Arc::clone(&bucket));
        let peer = Peer {
            login_required,
            ..Peer::local(Port::Memcached, bucket_in_use, limits.memcached_item_bytes)
        };
        let session = Session::new(peer, &limits);
        let mut client =
            Self { session, cx: NodeContext::new(node, 0), input: Vec::new(), chunk, bucket, seconds: 0 };
        client.pass(0);
        client
    }

    fn pass(&mut self, seconds: u32) {
        self.seconds += seconds;
        let unix_s = START_S + self.seconds;
        self.cx.now = Now {
            unix_s,
            unix_ns: u64::from(unix_s) * 1_000_000_000,
            mono_us: u64::from(self.seconds) * 1_000_000,
        };
    }

    /// Sends bytes in chunks and returns the answers, with `<closed>` at the end if the session closed.
    fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        // Long values need not be cut into more than a few thousand pieces.
        for chunk in bytes.chunks(self.chunk.max(bytes.len() / 2000)) {
            if self.session.peer.close {
                break;
            }
            let mut chunk = chunk;
            while let Some(sink) = self.session.sink() {
                let fits = sink.len().min(chunk.len());
                if fits == 0 {
                    break;
                }
                sink[..fits].copy_from_slice(&chunk[..fits]);
                self.session.filled(fits);
                chunk = &chunk[fits..];
            }
            self.input.extend_from_slice(chunk);
            self.run(&mut answers);
        }
        if self.session.peer.close {
            answers.extend_from_slice(b"<closed>");
        }
        answers
    }

    fn run(&mut self, answers: &mut Vec<u8>) {
        let input = std::mem::take(&mut self.input);
        let mut start = 0;
        loop {
            let mut batch = Batch::new();
            let quiescence = Arc::clone(self.cx.node.quiescence());
            quiescence.enter(0);
            let progress = self.session.parse(&input[start..], 7, usize::MAX, &mut self.cx, &mut batch);
            let mut out = Output::default();
            for index in 0..batch.len() {
                if self.session.peer.close {
                    break;
                }
                self.session.execute(batch.get(index).unwrap(), &mut self.cx, &mut out);
            }
            quiescence.leave(0);
            self.cx.end_batch();
            flatten(&mut out, answers);
            start += progress.consumed;
            if self.session.peer.close || progress.need.is_some() {
                break;
            }
        }
        self.input = input[start..].to_vec();
    }
}

fn flatten(out: &mut Output, answers: &mut Vec<u8>) {
    let (bytes, pinned) = out.take();
    let mut done = 0;
    for (at, value) in pinned {
        answers.extend_from_slice(&bytes[done..at]);
        answers.extend_from_slice(&value);
        done = at;
    }
    answers.extend_from_slice(&bytes[done..]);
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        match character {
            '\\' => match rest.next().unwrap() {
                'r' => bytes.push(b'\r'),
                'n' => bytes.push(b'\n'),
                't' => bytes.push(b'\t'),
                'x' => {
                    let digits: String = rest.by_ref().take(2).collect();
                    bytes.push(u8::from_str_radix(&digits, 16).unwrap());
                }
                other => bytes.push(u8::try_from(other).unwrap()),
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

/// The answers as the scripts show them, and the last CAS among them.
fn show(answers: &[u8], cas: &mut String) -> String {
    let mut shown = String::new();
    for line in answers.split_inclusive(|byte| *byte == b'\n') {
        let text = line.escape_ascii().to_string().replace("\\'", "'").replace("\\\"", "\"");
        let (body, end) = match text.strip_suffix("\\r\\n") {
            Some(body) => (body, "\\r\\n\n"),
            None => (text.as_str(), ""),
        };
        let words: Vec<String> = body.split(' ').map(str::to_owned).collect();
        let status = words.first().cloned().unwrap_or_default();
        let count = words.len();
        for (index, word) in words.into_iter().enumerate() {
            if index > 0 {
                shown.push(' ');
            }
            let number = match status.as_str() {
                "VALUE" if count == 5 && index == 4 => Some(("", word.as_str())),
                "HD" | "VA" | "EX" | "NF" | "NS" if index > 0 => {
                    word.strip_prefix('c').map(|number| ("c", number))
                }
                "ME" => word.strip_prefix("cas=").map(|number| ("cas=", number)),
                _ => None,
            };
            let number = number.filter(|(_, number)| *number != "0" && number.parse::<u64>().is_ok());
            match number {
                Some((label, number)) => {
                    *cas = number.to_owned();
                    let _ = write!(shown, "{label}CAS");
                }
                None if status == "ME" && word.starts_with("size=") => shown.push_str("size=N"),
                None => shown.push_str(&word),
            }
        }
        shown.push_str(end);
    }
    shown
}

fn run_script(name: &str, chunk: usize) {
    let path = format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(path).unwrap();
    let mut cases = 0;
    for case in script.split("\n\n").filter(|case| !case.trim().is_empty()) {
        let (lines, expected) = case.trim_matches('\n').split_once("\n----").unwrap();
        let mut client = Client::new(chunk, false);
        let (mut shown, mut cas) = (String::new(), "0".to_owned());
        for line in lines.lines().filter(|line| !line.starts_with('#')) {
            if let Some(seconds) = line.strip_prefix('+') {
                client.pass(seconds.parse().unwrap());
                continue;
            }
            let answers = client.send(&unescape(&line.replace("{cas}", &cas)));
            shown += &show(&answers, &mut cas);
        }
        assert_eq!(shown.trim(), expected.trim(), "{name}, in chunks of {chunk}:\n{lines}");
        cases += 1;
    }
    assert!(cases > 0, "{name} is empty");
}

#[test]
fn text_answers_are_those_of_memcached() {
    for chunk in [1 << 20, 40_000, 7] {
        run_script("text", chunk);
    }
}

#[test]
fn meta_answers_are_those_of_memcached() {
    for chunk in [1 << 20, 40_000, 7] {
        run_script("meta", chunk);
    }
}

#[test]
fn what_differs_from_memcached_on_purpose() {
    for chunk in [1 << 20, 40_000, 7] {
        run_script("differences", chunk);
    }
}

#[test]
fn a_login_is_demanded_first() {
    let mut client = Client::new(5, true);
    assert_eq!(client.send(b"get a\r\nmn\r\n"), b"CLIENT_ERROR unauthenticated\r\n".repeat(2));
    assert_eq!(client.send(b"set x 0 0 7\r\nfoo baz\r\n"), b"CLIENT_ERROR authentication failure\r\n");
    assert_eq!(client.send(b"set x 0 0 3\r\nfoo\r\n"), b"CLIENT_ERROR bad authentication token format\r\n");
    assert_eq!(client.send(b"set x 0 0 7\r\nfoo bar  "), b"CLIENT_ERROR bad command line termination\r\n");
    assert_eq!(client.send(b"set x 0 0 7\r\nfoo bar\r\nget x\r\n"), b"STORED\r\nEND\r\n");
}

#[test]
fn a_large_login_is_swallowed() {
    let mut client = Client::new(100, true);
    let mut input = b"set x 0 0 5000\r\n".to_vec();
    input.resize(input.len() + 5000, b'x');
    input.extend_from_slice(b"\r\nset x 0 0 7\r\nfoo bar\r\n");
    assert_eq!(client.send(&input), b"CLIENT_ERROR unauthenticated\r\nSTORED\r\n");
}

#[test]
fn expired_and_flushed_documents_are_gone_to_the_second() {
    let mut client = Client::new(1000, false);
    assert_eq!(
        client.send(b"set a 0 10 1\r\nx\r\nset b 0 0 1\r\ny\r\nflush_all 20\r\n"),
        b"STORED\r\nSTORED\r\nOK\r\n"
    );
    client.pass(9);
    assert_eq!(client.send(b"get a\r\nmg b t\r\n"), b"VALUE a 0 1\r\nx\r\nEND\r\nHD t-1\r\n");
    client.pass(1);
    assert_eq!(client.send(b"get a b\r\n"), b"VALUE b 0 1\r\ny\r\nEND\r\n");
    client.pass(10);
    assert_eq!(
        client.send(b"get b\r\nadd b 0 0 1\r\nz\r\nget b\r\n"),
        b"END\r\nSTORED\r\nVALUE b 0 1\r\nz\r\nEND\r\n"
    );
}

#[test]
fn shutdown_is_for_nodes_that_allow_it_and_quit_closes() {
    let mut client = Client::new(1000, false);
    assert_eq!(
        client.send(b"shutdown\r\nquit\r\nget a\r\n"),
        b"SERVER_ERROR: shutdown not enabled\r\n<closed>"
    );
}

#[test]
fn an_http_request_closes_before_anything_behind_it() {
    for request in ["GET / HTTP/1.1", "POST /set HTTP/1.1", "PUT / HTTP/1.0", "  OPTIONS * HTTP/1.1 "] {
        let mut client = Client::new(1000, false);
        let answers =
            client.send(format!("mn\r\n{request}\r\nHost: x\r\n\r\nset a 0 0 1\r\nx\r\n").as_bytes());
        assert_eq!(answers, b"MN\r\n<closed>", "{request}");
        assert_eq!(client.bucket.meter(kv::Meter::CmdSet), 0);
        let mut client = Client::new(7, true);
        let answers = client.send(format!("{request}\r\nset x 0 0 7\r\nfoo bar\r\n").as_bytes());
        assert_eq!(answers, b"<closed>", "{request}, before a login");
    }
    let mut client = Client::new(1000, false);
    assert_eq!(client.send(b"GET /\r\nget / HTTP/1.1\r\n"), b"ERROR\r\nEND\r\n");
    // A browser takes any word for a method.
    for method in ["gets", "mn", "touch", "set", "watch"] {
        let mut client = Client::new(1000, false);
        let request = format!("{method} /x HTTP/1.1\r\nhost: a\r\n\r\nset a 0 0 1\r\nx\r\n");
        let answers = client.send(request.as_bytes());
        assert!(answers.ends_with(b"<closed>"), "{method}: {:?}", String::from_utf8_lossy(&answers));
        assert_eq!(client.bucket.meter(kv::Meter::CmdSet), 0, "{method}");
    }
}

#[test]
fn noreply_is_silent_when_memory_is_short_and_q_is_not() {
    let mut client = Client::new(1 << 20, false);
    client.send(b"set n 0 0 20\r\n18446744073709551615\r\nset a 0 0 1\r\nx\r\n");
    let long = "x".repeat(100_000);
    client.bucket.set_budget(1);
    for command in [
        "set b 0 0 1 noreply\r\nx\r\n",
        "add b 0 0 1 noreply\r\nx\r\n",
        "append a 0 0 1 noreply\r\nx\r\n",
        "cas a 0 0 1 1 noreply\r\nx\r\n",
        "incr n 1 noreply\r\n",
        &format!("set b 0 0 100000 noreply\r\n{long}\r\n"),
    ] {
        let answers = client.send(format!("{command}mn\r\n").as_bytes());
        assert_eq!(String::from_utf8_lossy(&answers), "MN\r\n", "{:.30}", command);
    }
    assert_eq!(client.send(b"ms b 1 q\r\nx\r\n"), b"SERVER_ERROR out of memory storing object\r\n");
    assert_eq!(client.send(b"set b 0 0 1\r\nx\r\n"), b"SERVER_ERROR out of memory storing object\r\n");
}

#[test]
fn cache_memlimit_stays_within_the_configured_memory() {
    let mut client = Client::new(1000, false);
    let budget = |client: &Client| client.bucket.accounts().budget >> 20;
    assert_eq!(client.send(b"cache_memlimit 64\r\n"), b"OK\r\n");
    assert_eq!(budget(&client), 64);
    assert_eq!(
        client.send(b"cache_memlimit 257\r\ncache_memlimit 1000000 noreply\r\n"),
        b"MEMLIMIT_ADJUST_FAILED the bucket is configured with 256m\r\n"
    );
    assert_eq!(budget(&client), 64);
    assert_eq!(client.send(b"cache_memlimit 256\r\n"), b"OK\r\n");
    assert_eq!(budget(&client), 256);
    client.bucket.set_budget(100 << 20);
    assert!(client.send(b"cache_memlimit 256\r\n").starts_with(b"MEMLIMIT_ADJUST_FAILED"));
}

#[test]
fn keys_are_listed_beside_other_requests() {
    let mut client = Client::new(1 << 20, false);
    client.send(
        b"set a 0 0 1\r\nx\r\nset bb 3 100 5\r\nhello\r\nms 4pi94pi6IGE= 3 b\r\nxyz\r\n\
          set gone 0 -1 1\r\nx\r\n",
    );
    client.send(format!("set large 0 0 1000\r\n{}\r\nget a\r\n", "x".repeat(1000)).as_bytes());
    let list = |client: &mut Client, command: &str| {
        let answer = String::from_utf8(client.send(format!("{command}\r\nmn\r\n").as_bytes())).unwrap();
        let mut lines: Vec<String> = answer.lines().map(str::to_owned).collect();
        assert_eq!(lines.pop().as_deref(), Some("MN"), "{command}");
        let end = lines.pop().unwrap();
        let is_begun = command.starts_with("lru_crawler") && matches!(end.as_str(), "END" | "EN");
        if is_begun {
            assert_eq!(lines.remove(0), "OK", "{command}");
        }
        lines.sort();
        (lines, end)
    };
    let (lines, end) = list(&mut client, "lru_crawler metadump all");
    assert_eq!((lines.len(), end.as_str()), (4, "END"), "{lines:?}");
    let shown = |start: &str| lines.iter().find(|line| line.starts_with(start)).unwrap().clone();
    assert!(shown("key=a ").starts_with(&format!("key=a exp=-1 la={START_S} cas=")), "{lines:?}");
    assert!(shown("key=a ").contains(" fetch=yes cls=1 size="), "{lines:?}");
    assert!(shown("key=bb ").starts_with(&format!("key=bb exp={} la=", START_S + 100)), "{lines:?}");
    assert!(shown("key=a ").ends_with(" flags=0 ") && shown("key=bb ").ends_with(" flags=3 "), "{lines:?}");
    assert!(shown("key=%E2%98%BD%E2%98%BA%20a ").contains(" fetch=no "), "{lines:?}");
    assert_eq!(list(&mut client, "lru_crawler metadump hash").0, lines);
    assert_eq!(list(&mut client, "lru_crawler metadump 9,10").0.len(), 1);
    let (lines, end) = list(&mut client, "lru_crawler mgdump all");
    assert_eq!(end, "EN");
    assert_eq!(lines, ["mg 4pi94pi6IGE= b", "mg a", "mg bb", "mg large"]);
    let (lines, _) = list(&mut client, "stats cachedump 1 0");
    assert_eq!(lines, ["ITEM a [1 b; 0 s]".to_owned(), format!("ITEM bb [5 b; {} s]", START_S + 100)]);
    assert_eq!(list(&mut client, "stats cachedump 1 1").0.len(), 1);
    let others: usize =
        (2..64).map(|class| list(&mut client, &format!("stats cachedump {class} 0")).0.len()).sum();
    assert_eq!(others, 1);
    for (command, answer) in [
        ("stats cachedump", "CLIENT_ERROR bad command line"),
        ("stats cachedump 1", "CLIENT_ERROR bad command line"),
        ("stats cachedump x 0", "CLIENT_ERROR bad command line format"),
        ("stats cachedump 64 0", "CLIENT_ERROR Illegal slab id"),
        ("stats cachedump 0 0", "END"),
        ("lru_crawler metadump", "ERROR"),
        ("lru_crawler metadump x", "BADCLASS invalid class id"),
        ("lru_crawler metadump 99", "BADCLASS invalid class id"),
        ("lru_crawler mgdump all x", "ERROR"),
        ("lru_crawler foo", "ERROR"),
    ] {
        assert_eq!(list(&mut client, command), (vec![], answer.to_owned()), "{command}");
    }
}

#[test]
fn a_long_list_comes_in_slices_and_whole() {
    let mut client = Client::new(1 << 20, false);
    for number in 0..20_000 {
        client.send(format!("set key-{number} 0 0 1 noreply\r\nx\r\n").as_bytes());
    }
    let input = b"lru_crawler mgdump all\r\nmn\r\n";
    let (mut start, mut slices, mut answers) = (0, 0, Vec::new());
    loop {
        let mut batch = Batch::new();
        let progress = client.session.parse(&input[start..], 7, usize::MAX, &mut client.cx, &mut batch);
        let mut out = Output::default();
        for index in 0..batch.len() {
            client.session.execute(batch.get(index).unwrap(), &mut client.cx, &mut out);
        }
        start += progress.consumed;
        assert!(out.len() < 64 << 10, "a slice of {} bytes", out.len());
        slices += 1;
        flatten(&mut out, &mut answers);
        if progress.need.is_some() {
            break;
        }
        assert!(client.session.has_filled() || start < input.len() || answers.ends_with(b"EN\r\n"));
    }
    let answers = String::from_utf8(answers).unwrap();
    assert!(answers.ends_with("EN\r\nMN\r\n") && slices > 10, "{slices} slices");
    let mut keys: Vec<&str> = answers.lines().filter_map(|line| line.strip_prefix("mg ")).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 20_000);
}

#[test]
fn size_classes_are_those_of_the_items() {
    let mut client = Client::new(1 << 20, false);
    let value = "x".repeat(1000);
    for number in 0..30_000 {
        let value = if number % 3 == 0 { &value } else { "x" };
        client.send(format!("set key-{number} 0 0 {} noreply\r\n{value}\r\n", value.len()).as_bytes());
        if number == 899 {
            let items = String::from_utf8(client.send(b"stats items\r\n")).unwrap();
            assert!(items.contains("STAT items:1:number 600\r\n"), "{items}");
            assert!(items.contains("STAT items:10:number 300\r\n"), "{items}");
            let slabs = String::from_utf8(client.send(b"stats slabs\r\n")).unwrap();
            for line in ["1:chunk_size 64", "1:total_pages 1", "10:chunk_size 1536", "active_slabs 2"] {
                assert!(slabs.contains(&format!("STAT {line}\r\n")), "{line} is not in\n{slabs}");
            }
        }
    }
    let items = String::from_utf8(client.send(b"stats items\r\n")).unwrap();
    let number = |class: u32| -> u64 {
        let line = items.lines().find_map(|line| line.strip_prefix(&format!("STAT items:{class}:number ")));
        line.unwrap_or_else(|| panic!("{items}")).parse().unwrap()
    };
    let (small, large) = (number(1), number(10));
    assert!((29_990..=30_000).contains(&(small + large)), "{small} and {large}");
    assert!((9_000..11_000).contains(&large), "{small} and {large}");
}

#[test]
fn what_nobody_read_is_counted_when_it_goes() {
    let mut client = Client::new(1 << 20, false);
    client.send(b"set a 0 10 1\r\nx\r\nset b 0 10 1\r\nx\r\nset c 0 0 1\r\nx\r\nget a\r\n");
    client.pass(1000);
    kv::pager::turn(&mut client.cx);
    let stats = String::from_utf8(client.send(b"stats\r\n")).unwrap();
    for line in [
        "reclaimed 2",
        "expired_unfetched 1",
        "evicted_unfetched 0",
        "accepting_conns 1",
        "listen_disabled_num 0",
    ] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{line} is not in\n{stats}");
    }
}

#[test]
fn prefixes_are_counted_while_that_is_on() {
    let mut client = Client::new(1000, false);
    let work = "set a:b 0 0 1\r\nx\r\nget a:b\r\nget a:c\r\ndelete a:b\r\nget q\r\n";
    client.send(work.as_bytes());
    assert_eq!(client.send(b"stats detail dump\r\n"), b"END\r\n");
    assert_eq!(client.send(b"stats detail on\r\n"), b"OK\r\n");
    client.send(work.as_bytes());
    client.send(b"ms m:1 1\r\nx\r\nmg m:1 v\r\nmd m:1\r\ngat 0 a:z\r\n");
    assert_eq!(client.send(b"stats detail off\r\n"), b"OK\r\n");
    client.send(work.as_bytes());
    assert_eq!(
        String::from_utf8(client.send(b"stats detail dump\r\n")).unwrap(),
        "PREFIX a get 3 hit 1 set 1 del 1\r\nPREFIX m get 1 hit 1 set 1 del 1\r\nEND\r\n"
    );
    for line in ["stats detail", "stats detail foo"] {
        let answer = client.send(format!("{line}\r\n").as_bytes());
        assert_eq!(answer, b"CLIENT_ERROR usage: stats detail on|off|dump\r\n");
    }
    // Clients choose the prefixes, so their number is bounded.
    client.send(b"stats detail on\r\n");
    for number in 0..5000 {
        client.send(format!("get p{number}:x\r\n").as_bytes());
    }
    assert_eq!(client.send(b"stats detail dump\r\n").iter().filter(|byte| **byte == b'\n').count(), 4097);
    client.send(b"stats reset\r\n");
    assert_eq!(client.send(b"stats detail dump\r\n"), b"END\r\n");
}

#[test]
fn logins_are_counted() {
    let mut client = Client::new(1000, true);
    client.send(b"set x 0 0 7\r\nfoo baz\r\nset x 0 0 7\r\nfoo bar\r\n");
    let stats = String::from_utf8(client.send(b"stats\r\n")).unwrap();
    assert!(stats.contains("STAT auth_cmds 2\r\nSTAT auth_errors 1\r\n"), "{stats}");
}

#[test]
fn a_line_without_end_closes() {
    let mut client = Client::new(4096, false);
    let mut input = b"version\r\n".to_vec();
    input.resize(100_000, b'x');
    assert_eq!(client.send(&input), b"VERSION 1.6.45\r\nCLIENT_ERROR line too long\r\n<closed>");
}

#[test]
fn a_retrieval_of_many_keys_is_answered_whole() {
    let mut client = Client::new(5000, false);
    let (mut stores, mut line, mut expected) = (Vec::new(), b"get".to_vec(), Vec::new());
    for number in 0..20_000 {
        let key = format!("key-{number}");
        line.extend_from_slice(format!(" {key}").as_bytes());
        if number % 7 == 0 {
            stores.extend_from_slice(format!("set {key} 0 0 {} noreply\r\n{key}\r\n", key.len()).as_bytes());
            expected.extend_from_slice(format!("VALUE {key} 0 {}\r\n{key}\r\n", key.len()).as_bytes());
        }
    }
    line.extend_from_slice(b"\r\nmn\r\n");
    expected.extend_from_slice(b"END\r\nMN\r\n");
    assert_eq!(client.send(&stores), b"");
    assert!(client.send(&line) == expected);
}

/// As memcached 1.6.45 counts: the changes of `stats`, and of the class in `stats slabs`.
#[test]
fn commands_count_as_in_memcached() {
    let cases: &[(&str, &str, &str)] = &[
        ("get a\r\n", "cmd_get 1 get_misses 1", ""),
        (
            "set a 0 0 1\r\nx\r\nget a\r\n",
            "cmd_get 1 cmd_set 1 curr_items 1 get_hits 1 total_items 1",
            "get_hits 1 cmd_set 1",
        ),
        (
            "set a 0 -1 1\r\nx\r\nget a\r\nget a\r\n",
            "cmd_get 2 cmd_set 1 get_expired 1 get_misses 2 total_items 1",
            "cmd_set 1",
        ),
        (
            "ms a 1 T-1\r\nx\r\nmg a\r\n",
            "cmd_get 1 cmd_set 1 get_expired 1 get_misses 1 total_items 1",
            "cmd_set 1",
        ),
        (
            "set a 0 0 1\r\nx\r\ntouch a -1\r\ndelete a\r\n",
            "cmd_set 1 cmd_touch 1 delete_misses 1 get_expired 1 total_items 1 touch_hits 1",
            "cmd_set 1 touch_hits 1",
        ),
        (
            "set a 0 0 1\r\nx\r\ntouch a -1\r\ntouch a 5\r\n",
            "cmd_set 1 cmd_touch 2 get_expired 1 total_items 1 touch_hits 1 touch_misses 1",
            "cmd_set 1 touch_hits 1",
        ),
        (
            "set a 0 0 1\r\n5\r\ntouch a -1\r\nincr a 5\r\n",
            "cmd_set 1 cmd_touch 1 get_expired 1 incr_misses 1 total_items 1 touch_hits 1",
            "cmd_set 1 touch_hits 1",
        ),
        (
            "set a 0 0 1\r\nx\r\nmg a T-1\r\nmg a N5\r\n",
            "cmd_get 1 cmd_set 1 cmd_touch 1 curr_items 1 get_expired 1 get_hits 1 total_items 2 touch_hits 1",
            "get_hits 1 cmd_set 1 touch_hits 1",
        ),
        (
            "set a 0 0 1\r\nx\r\ngat 5 a b\r\n",
            "cmd_set 1 cmd_touch 2 curr_items 1 total_items 1 touch_hits 1 touch_misses 1",
            "cmd_set 1 touch_hits 1",
        ),
        (
            "set a 0 0 1\r\n5\r\nincr a 1\r\ndecr a 1\r\nincr b 1\r\n",
            "cmd_set 1 curr_items 1 decr_hits 1 incr_hits 1 incr_misses 1 total_items 1",
            "cmd_set 1 incr_hits 1 decr_hits 1",
        ),
        (
            "set a 0 0 1\r\n9\r\nincr a 1\r\n",
            "cmd_set 1 curr_items 1 incr_hits 1 total_items 2",
            "cmd_set 1 incr_hits 1",
        ),
        ("set a 0 0 1\r\nx\r\nincr a 1\r\n", "cmd_set 1 curr_items 1 total_items 1", "cmd_set 1"),
        (
            "set a 0 0 1\r\nx\r\ndelete a\r\ndelete a\r\n",
            "cmd_set 1 delete_hits 1 delete_misses 1 total_items 1",
            "cmd_set 1 delete_hits 1",
        ),
        (
            "add a 0 0 1\r\nx\r\nadd a 0 0 1\r\nx\r\nappend b 0 0 1\r\nx\r\n",
            "cmd_set 3 curr_items 1 total_items 1",
            "cmd_set 3",
        ),
        (
            "cas a 0 0 1 5\r\nx\r\nset a 0 0 1\r\nx\r\ncas a 0 0 1 5\r\nx\r\n",
            "cas_badval 1 cas_misses 1 cmd_set 3 curr_items 1 total_items 1",
            "cmd_set 3 cas_badval 1",
        ),
        (
            "ms a 1 E5\r\nx\r\nms a 1 C5 E9\r\nx\r\nms a 1 C4 I\r\nx\r\n",
            "cas_hits 2 cmd_set 3 curr_items 1 total_items 3",
            "cmd_set 3 cas_hits 2",
        ),
        (
            "ms a 1 E5\r\nx\r\nms a 1 C6 MA\r\nx\r\nms a 1 C6 ME\r\nx\r\nms b 1 MA N0\r\nx\r\n",
            "cmd_set 4 curr_items 2 total_items 2",
            "cmd_set 4",
        ),
        ("mg a N30 v\r\n", "cmd_get 1 curr_items 1 get_hits 1 total_items 1", "get_hits 1"),
        ("mg a N30 T5\r\n", "cmd_touch 1 curr_items 1 total_items 1 touch_hits 1", "touch_hits 1"),
        ("mg a T5\r\n", "cmd_get 1 get_misses 1", ""),
        (
            "ms a 1 E5\r\nx\r\nmg a C5 v\r\n",
            "cmd_get 1 cmd_set 1 curr_items 1 get_hits 1 total_items 1",
            "get_hits 1 cmd_set 1",
        ),
        ("ms a 1\r\nx\r\nmd a I\r\n", "cmd_set 1 curr_items 1 total_items 1", "cmd_set 1"),
        (
            "ms a 1\r\nx\r\nmd a x\r\n",
            "cmd_set 1 curr_items 1 delete_hits 1 total_items 2",
            "cmd_set 1 delete_hits 1",
        ),
        ("ms a 1\r\nx\r\nmd a x I\r\n", "cmd_set 1 curr_items 1 total_items 2", "cmd_set 1"),
        ("ms a 1\r\nx\r\nmd a C6\r\n", "cmd_set 1 curr_items 1 delete_misses 1 total_items 1", "cmd_set 1"),
        ("ma a\r\nma b N0\r\nma c N0 MD\r\n", "curr_items 2 incr_misses 1 total_items 2", ""),
        (
            "ms a 1 E5\r\n5\r\nma a C6\r\nma a C5 MD\r\n",
            "cmd_set 1 curr_items 1 decr_hits 1 total_items 1",
            "cmd_set 1 decr_hits 1",
        ),
        ("set a 0 0 1\r\nxyz\r\n", "cmd_set 1", ""),
        ("set a x 0 1\r\nx\r\nmg a k y\r\nmn\r\nversion\r\n", "", ""),
    ];
    const OURS: &[&str] = &["bytes", "bytes_read", "bytes_written", "hash_bytes", "cmd_meta"];
    for (commands, expected, in_class) in cases {
        let mut client = Client::new(1 << 20, false);
        client.send(commands.as_bytes());
        let list = |client: &mut Client, subject: &str| {
            let answer = String::from_utf8(client.send(format!("stats {subject}\r\n").as_bytes())).unwrap();
            let lines = answer.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
            lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>()
        };
        let zero: std::collections::BTreeMap<_, _> =
            list(&mut Client::new(1 << 20, false), "").into_iter().collect();
        let mut changed: Vec<_> = list(&mut client, "")
            .into_iter()
            .filter(|(name, value)| zero.get(name) != Some(value) && !OURS.contains(&name.as_str()))
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        changed.sort();
        assert_eq!(changed.join(" "), *expected, "{commands}");
        let of_class: Vec<_> = list(&mut client, "slabs")
            .into_iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("1:")?.to_owned(), value)))
            .filter(|(name, value)| value != "0" && (name.contains("_hits") || name.starts_with("c")))
            .filter(|(name, _)| !name.starts_with("chunk"))
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        assert_eq!(of_class.join(" "), *in_class, "{commands}");
    }
}

#[test]
fn statistics_count_what_was_done() {
    let mut client = Client::new(1000, false);
    client
        .send(b"set a 0 0 1\r\nx\r\nget a b\r\nincr a 1\r\ntouch a 0\r\ndelete b\r\ncas a 0 0 1 1\r\ny\r\n");
    let stats = String::from_utf8(client.send(b"stats\r\n")).unwrap();
    for line in [
        "cmd_get 2",
        "get_hits 1",
        "get_misses 1",
        "cmd_set 2",
        "touch_hits 1",
        "delete_misses 1",
        "cas_badval 1",
    ] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{line} is not in\n{stats}");
    }
    assert!(stats.contains("STAT curr_items 1\r\n") && stats.ends_with("END\r\n"));
    for subject in ["settings", "items", "slabs", "sizes", "memory"] {
        let list = String::from_utf8(client.send(format!("stats {subject}\r\n").as_bytes())).unwrap();
        assert!(list.starts_with("STAT ") && list.ends_with("END\r\n"), "{list}");
    }
    assert_eq!(client.send(b"stats reset\r\n"), b"RESET\r\n");
    assert!(client.send(b"stats\r\n").windows(14).any(|window| window == b"STAT cmd_get 0"));
    assert_eq!(client.bucket.meter(kv::Meter::CmdSet), 0);
}
