//! What one session makes the server do costs others a bounded amount: counted, not timed.
#![allow(clippy::unwrap_used)]

mod sessions;

use ovsdb::server::Limits;
use sessions::Driver;

const RESULT: &str = r#""result""#;

fn transact(id: usize, operations: &str) -> String {
    format!(r#"{{"id":{id},"method":"transact","params":["T",{operations}]}}"#)
}

fn insert(name: &str) -> String {
    transact(1000, &format!(r#"{{"op":"insert","table":"Test","row":{{"name":"{name}"}}}}"#))
}

/// Waits until a table has rows with these values only.
fn wait_operation(table: &str, column: &str, value: &str) -> String {
    let rows = format!(r#"[{{"{column}":{value}}}]"#);
    format!(
        r#"{{"op":"wait","table":"{table}","where":[],"columns":["{column}"],"until":"==","rows":{rows}}}"#
    )
}

fn wait(id: usize, table: &str, column: &str, value: &str) -> String {
    transact(id, &wait_operation(table, column, value))
}

/// Attempts at waiting transactions that a step makes.
fn retries(driver: &mut Driver, step: impl FnOnce(&mut Driver)) -> u64 {
    let before = driver.server.retried();
    step(driver);
    driver.server.retried() - before
}

#[test]
fn a_change_retries_only_transactions_that_wait_for_its_table() {
    let mut driver = Driver::new();
    for id in 0..50 {
        assert!(driver.send("A", &wait(id, "Child", "x", "1")).is_empty());
    }
    driver.send("B", &wait(1, "Test", "name", r#""a""#));
    // The operations before the `wait` count too: what they find may end the transaction.
    let both =
        format!(r#"{{"op":"delete","table":"Child","where":[]}},{}"#, wait_operation("Test", "n", "-1"));
    driver.send("C", &transact(1, &both));
    assert_eq!(retries(&mut driver, |driver| assert!(driver.send("D", &insert("a")).len() == 2)), 2);
    assert_eq!(
        retries(&mut driver, |driver| drop(driver.send("D", r#"{"id":1,"method":"echo","params":[]}"#))),
        0
    );
    assert_eq!(retries(&mut driver, |driver| drop(driver.send("D", &insert("b")))), 1);
}

#[test]
fn transactions_that_wait_are_retried_bit_by_bit_and_none_is_passed_over() {
    let mut driver = Driver::new();
    for session in ["A", "B", "C"] {
        for id in 0..20 {
            driver.send(session, &wait(id, "Test", "n", "-1"));
        }
    }
    driver.send("Z", &wait(7, "Test", "name", r#""z""#));
    driver.receive("W", &insert("z"));
    let mut steps = 0;
    let lines = loop {
        // Another change between two steps does not begin from the first one again.
        driver.receive(
            "W",
            &transact(1, r#"{"op":"mutate","table":"Test","where":[],"mutations":[["n","+=",1]]}"#),
        );
        let mut left = 10;
        let now = driver.now;
        let done = retries(&mut driver, |driver| {
            driver.server.run_waits(now, &mut || {
                left -= 1;
                left > 0
            });
        });
        assert_eq!(done, 10);
        steps += 1;
        driver.server.flush();
        let lines: Vec<_> = driver.collect().into_iter().filter(|line| line.starts_with("Z ")).collect();
        if !lines.is_empty() {
            break lines;
        }
    };
    assert_eq!((steps, lines.len()), (7, 1));
    assert_eq!(driver.server.next_deadline_ms(), Some(0), "the rest is due");
}

#[test]
fn waiting_transactions_are_bounded_for_each_session_and_for_all() {
    let mut driver = Driver::with(None, Limits { waits: 10, waits_per_session: 4, ..Limits::default() });
    let mut refused = Vec::new();
    for session in ["A", "B", "C", "D"] {
        for id in 0..6 {
            refused.extend(driver.send(session, &wait(id, "Test", "n", "-1")));
        }
    }
    assert!(refused.iter().all(|line| line.contains("too many waiting transactions")), "{refused:?}");
    let refusals = |session: &str| refused.iter().filter(|line| line.starts_with(session)).count();
    // A session may have its first however many there are.
    assert_eq!(["A", "B", "C", "D"].map(refusals), [2, 2, 4, 5]);
    assert_eq!(driver.server.figures().triggers, 11);
    driver.send("A", r#"{"method":"cancel","params":[0]}{"method":"cancel","params":[1]}"#);
    assert_eq!(driver.server.figures().triggers, 9);
    assert!(driver.send("D", &wait(8, "Test", "n", "-1")).is_empty());
}

/// The timeout that has passed belongs to the first operation, which is satisfied.
#[test]
fn a_timeout_that_no_longer_counts_is_due_once() {
    let mut driver = Driver::new();
    let first =
        r#"{"op":"wait","table":"Test","where":[],"columns":["name"],"until":"!=","rows":[],"timeout":50}"#;
    let second = r#"{"op":"wait","table":"Child","where":[],"columns":["x"],"until":"!=","rows":[]}"#;
    driver.send("A", &transact(1, &format!("{first},{second}")));
    driver.send("B", &insert("a"));
    assert_eq!(retries(&mut driver, |driver| drop(driver.sleep(100))), 1);
    assert_eq!(driver.server.next_deadline_ms(), None);
    assert_eq!(driver.server.figures().triggers, 1);
}

#[test]
fn a_change_notifies_so_many_monitors_at_once_and_the_others_bit_by_bit() {
    let mut driver = Driver::with(None, Limits { notified_at_once: 4, ..Limits::default() });
    let names: Vec<String> = (0..9).map(|number| format!("M{number}")).collect();
    for name in &names {
        let request =
            r#"{"id":1,"method":"monitor_cond","params":["T","m",{"Test":{"columns":["name","n"]}}]}"#;
        driver.send(name, request);
    }
    let notified = |driver: &mut Driver| {
        let lines = driver.collect();
        let count = lines.iter().filter(|line| line.contains(r#""update2""#)).count();
        (count, lines)
    };
    driver.receive("W", &insert("a"));
    driver.server.flush();
    let (count, lines) = notified(&mut driver);
    assert!(lines.last().unwrap().starts_with("W ") && lines.last().unwrap().contains(RESULT), "{lines:?}");
    assert_eq!(count, 3, "the body of the notification counts as one");
    driver.receive("W", &transact(1, r#"{"op":"update","table":"Test","where":[],"row":{"n":5}}"#));
    driver.server.flush();
    assert_eq!(notified(&mut driver).0, 3);
    let mut late = Vec::new();
    for _ in 0..6 {
        assert_eq!(driver.server.next_deadline_ms(), Some(0));
        driver.server.notify_late(&mut || false);
        let (count, lines) = notified(&mut driver);
        assert_eq!(count, 1);
        late.extend(lines);
    }
    assert_eq!(driver.server.next_deadline_ms(), None);
    assert!(late.iter().all(|line| line.contains(r#"{"insert":{"n":5,"name":"a"}}"#)), "{late:#?}");
}

/// A session's own transaction is answered after its monitors have been notified of it.
#[test]
fn a_late_session_is_notified_before_it_is_answered() {
    let mut driver = Driver::with(None, Limits { notified_at_once: 0, ..Limits::default() });
    driver.send("A", r#"{"id":1,"method":"monitor","params":["T","m",{"Test":{"columns":["name"]}}]}"#);
    driver.receive("A", &insert("a"));
    driver.server.flush();
    let lines = driver.collect();
    assert!(lines[0].contains(r#""update""#) && lines[1].contains(RESULT) && lines.len() == 2, "{lines:#?}");
}

/// The schema is rendered once, and sent from there to all.
#[test]
fn a_schema_that_is_asked_for_again_is_shared() {
    let columns: Vec<String> =
        (0..200).map(|number| format!(r#""column_{number}":{{"type":"string"}}"#)).collect();
    let schema = format!(
        r#"{{"name":"T","version":"1.0.0","tables":{{"Test":{{"columns":{{{}}}}}}}}}"#,
        columns.join(",")
    );
    let mut driver: Driver = Driver::hosting(sessions::database(&schema), None, Limits::default());
    let request = r#"{"id":1,"method":"get_schema","params":["T"]}"#;
    driver.receive("A", &request.repeat(10));
    driver.server.flush();
    let session = driver.session("A");
    let output = driver.server.output(session).unwrap();
    assert!(output.owned_bytes() < 1000 && output.shared_bytes() > 10 * 4096);
    assert!(driver.server.session_bytes(session) < 2 * 8192);
    assert_eq!(driver.collect().len(), 10);
}
