//! A group of transactions that cannot be written has not happened: nobody sees anything of it but its errors.

mod sessions;

use ovsdb::server::Limits;
use sessions::{Driver, TestLog, anonymous};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const INSERT: &str =
    r#"{"id":1,"method":"transact","params":["T",{"op":"insert","table":"Test","row":{"name":"N","n":1}}]}"#;
const SELECT: &str = r#"{"id":2,"method":"transact","params":["T",{"op":"select","table":"Test","where":[],"columns":["name"]}]}"#;
const MONITOR: &str = r#"{"id":3,"method":"monitor_cond_since","params":["T","m",{"Test":{"columns":["name"]}},"00000000-0000-0000-0000-000000000000"]}"#;

fn insert(name: &str) -> String {
    INSERT.replace("\"N\"", &format!("\"{name}\""))
}

struct Counters {
    fails: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
    durable_writes: Arc<AtomicU64>,
}

fn driver() -> (Driver, Counters) {
    let log = TestLog::default();
    let counters = Counters {
        fails: log.fails.clone(),
        writes: log.writes.clone(),
        durable_writes: log.durable_writes.clone(),
    };
    (Driver::with(Some(log), Limits::default()), counters)
}

#[test]
fn a_wake_up_is_one_write_and_nothing_is_seen_before_it() {
    let (mut driver, counters) = driver();
    driver.send("B", MONITOR);
    assert_eq!(driver.receive("A", &insert("a")), [""; 0]);
    assert_eq!(driver.receive("C", &insert("b")), [""; 0]);
    assert_eq!(driver.receive("A", SELECT), [""; 0]);
    assert_eq!(driver.collect(), [""; 0]);
    let lines = driver.send("C", r#"{"id":"x","method":"echo","params":[1]}"#);
    assert_eq!(counters.writes.load(Ordering::Relaxed), 1);
    assert_eq!(counters.durable_writes.load(Ordering::Relaxed), 0);
    assert_eq!(lines.len(), 6, "{lines:#?}");
    assert!(lines[0].starts_with(r#"A {"id":1,"result":[{"uuid":"#), "{lines:#?}");
    assert!(lines[1].contains(r#"{"rows":[{"name":"a"},{"name":"b"}]}"#), "{lines:#?}");
    assert!(lines[2].contains("update3") && lines[3].contains("update3"), "{lines:#?}");
    assert!(lines[4].starts_with(r#"C {"id":1,"#));
    assert_eq!(lines[5], r#"C {"id":"x","result":[1],"error":null}"#);
}

#[test]
fn a_durable_commit_makes_its_group_durable() {
    let (mut driver, counters) = driver();
    driver.receive("A", &insert("a"));
    let durable = r#"{"id":1,"method":"transact","params":["T",{"op":"insert","table":"Test","row":{"name":"d"}},{"op":"commit","durable":true}]}"#;
    driver.send("B", durable);
    assert_eq!(counters.writes.load(Ordering::Relaxed), 1);
    assert_eq!(counters.durable_writes.load(Ordering::Relaxed), 1);
    driver.send("B", &insert("c"));
    assert_eq!(counters.writes.load(Ordering::Relaxed), 2);
    assert_eq!(counters.durable_writes.load(Ordering::Relaxed), 1);
}

#[test]
fn a_failed_write_undoes_the_whole_group() {
    let (mut driver, counters) = driver();
    driver.send("B", MONITOR);
    driver.send("A", &insert("kept"));
    counters.fails.store(true, Ordering::Relaxed);
    driver.receive("A", &insert("lost"));
    driver.receive("A", r#"{"id":"x","method":"echo","params":[]}"#);
    driver.receive("B", SELECT);
    driver.receive("B", r#"{"id":7,"method":"transact","params":["T"]}"#);
    let lines = driver.send("C", &insert("lost, too"));
    let error =
        r#"{"details":"T.db: write failed","io-error":"No space left on device","error":"I/O error"}"#;
    let lines: Vec<String> = lines.iter().map(|line| anonymous(line)).collect();
    assert_eq!(
        lines,
        [
            format!(r#"A {{"id":1,"result":[{{"uuid":["uuid","<>"]}},{error}],"error":null}}"#),
            r#"A {"id":"x","result":[],"error":null}"#.to_owned(),
            format!(
                r#"B {{"id":2,"result":[{{"rows":[{{"name":"kept"}},{{"name":"lost"}}]}},{error}],"error":null}}"#
            ),
            format!(r#"B {{"id":7,"result":[{error}],"error":null}}"#),
            format!(r#"C {{"id":1,"result":[{{"uuid":["uuid","<>"]}},{error}],"error":null}}"#),
        ],
    );
    counters.fails.store(false, Ordering::Relaxed);
    let lines = driver.send("B", SELECT);
    assert_eq!(lines, [r#"B {"id":2,"result":[{"rows":[{"name":"kept"}]}],"error":null}"#]);
    let lines = driver.send("A", &insert("again"));
    assert_eq!(lines.len(), 2);
    assert!(lines[1].contains(r#"{"insert":{"name":"again"}}"#), "{lines:#?}");
}

/// A long result is sent from where it was built; until its group is written it can be taken back all the same.
#[test]
fn a_long_reply_is_not_copied_and_can_be_taken_back() {
    let (mut driver, counters) = driver();
    let name = "n".repeat(100_000);
    driver.send("A", &insert(&name));
    let session = driver.session("B");
    driver.receive("B", SELECT);
    driver.server.flush();
    let output = driver.server.output(session).unwrap();
    let lengths: Vec<usize> = output.slices().map(<[u8]>::len).collect();
    assert!(output.shared_bytes() > name.len(), "{lengths:?}");
    assert!(output.owned_bytes() < 1000, "{} bytes", output.owned_bytes());
    let select = format!(r#"B {{"id":2,"result":[{{"rows":[{{"name":"{name}"}}]}}],"error":null}}"#);
    assert_eq!(driver.collect(), [select]);

    counters.fails.store(true, Ordering::Relaxed);
    driver.receive("A", &insert("lost"));
    driver.receive("B", SELECT);
    let lines = driver.send("C", &insert("lost, too"));
    let taken_back = lines.iter().find(|line| line.starts_with("B ")).unwrap();
    let kept = format!(r#"{{"name":"{name}"}}"#);
    assert!(
        taken_back.starts_with(r#"B {"id":2,"result":[{"rows":["#) && taken_back.contains(&kept),
        "{taken_back:.200}"
    );
    assert!(
        taken_back.ends_with(r#""error":"I/O error"}],"error":null}"#),
        "the reply says that the group failed"
    );
}

#[test]
fn a_request_that_looks_flushes_first() {
    let (mut driver, counters) = driver();
    driver.receive("A", &insert("a"));
    assert_eq!(counters.writes.load(Ordering::Relaxed), 0);
    driver.receive("B", MONITOR);
    assert_eq!(counters.writes.load(Ordering::Relaxed), 1);
    counters.fails.store(true, Ordering::Relaxed);
    driver.receive("A", &insert("b"));
    let lines = driver.send("C", MONITOR);
    let initial: Vec<_> = lines.iter().filter(|line| line.contains("initial")).collect();
    assert_eq!(initial.len(), 2, "{lines:#?}");
    assert!(initial.iter().all(|line| line.contains(r#"{"name":"a"}"#) && !line.contains(r#"{"name":"b"}"#)));
}
