//! `monitor_cond_since`: a client that states what it knows is sent what is new, if history reaches back that far.

mod sessions;

use ovsdb::server::Limits;
use ovsdb::uuid::Uuid;
use sessions::{Driver, TestLog, anonymous, transaction_id};

fn since(last: Uuid, request: &str) -> String {
    format!(r#"{{"id":3,"method":"monitor_cond_since","params":["T","m",{{"Test":{request}}},"{last}"]}}"#)
}

/// What a new session receives.
fn ask(driver: &mut Driver, last: Uuid, request: &str) -> String {
    let lines = driver.send("Q", &since(last, request));
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let id = driver.session("Q");
    driver.send("Q", r#"{"id":3,"method":"monitor_cancel","params":["m"]}"#);
    assert!(driver.server.output(id).is_some());
    let result = lines[0]
        .strip_prefix(r#"Q {"id":3,"result":"#)
        .and_then(|rest| rest.strip_suffix(r#","error":null}"#));
    result.unwrap_or_else(|| panic!("{lines:#?}")).to_owned()
}

fn driver() -> Driver {
    let mut driver = Driver::with(Some(TestLog::default()), Limits::default());
    let filler = "x".repeat(100_000);
    for operation in [
        // History is kept only as far as it is smaller than the rows.
        &format!(r#"{{"op":"insert","table":"Test","row":{{"name":"filler","n":50,"o":"{filler}"}}}}"#),
        r#"{"op":"insert","table":"Test","row":{"name":"a","n":1}}"#,
        r#"{"op":"update","table":"Test","where":[["name","!=","filler"]],"row":{"n":2}}"#,
        r#"{"op":"insert","table":"Test","row":{"name":"b","n":3}}"#,
        r#"{"op":"update","table":"Test","where":[["name","!=","filler"]],"row":{"r":2.5}}"#,
        r#"{"op":"update","table":"Test","where":[["name","==","b"]],"row":{"n":4}}"#,
        r#"{"op":"insert","table":"Test","row":{"name":"gone","n":3}}"#,
        r#"{"op":"delete","table":"Test","where":[["name","==","gone"]]}"#,
        r#"{"op":"delete","table":"Test","where":[["name","==","a"]]}"#,
        r#"{"op":"insert","table":"Test","row":{"name":"z","n":30}}"#,
    ] {
        driver.send("W", &format!(r#"{{"id":1,"method":"transact","params":["T",{operation}]}}"#));
    }
    driver
}

#[test]
fn the_changes_since_are_told_as_one() {
    let mut driver = driver();
    let columns = r#"{"columns":["name","n"]}"#;
    for (known, expected) in [
        (10, r#"[true,"<>",{}]"#),
        (9, r#"[true,"<>",{"Test":{"<>":{"insert":{"n":30,"name":"z"}}}}]"#),
        (8, r#"[true,"<>",{"Test":{"<>":{"delete":null},"<>":{"insert":{"n":30,"name":"z"}}}}]"#),
        (
            7,
            r#"[true,"<>",{"Test":{"<>":{"delete":null},"<>":{"delete":null},"<>":{"insert":{"n":30,"name":"z"}}}}]"#,
        ),
        (
            4,
            r#"[true,"<>",{"Test":{"<>":{"delete":null},"<>":{"modify":{"n":4}},"<>":{"insert":{"n":30,"name":"z"}}}}]"#,
        ),
        (
            2,
            r#"[true,"<>",{"Test":{"<>":{"delete":null},"<>":{"insert":{"n":4,"name":"b"}},"<>":{"insert":{"n":30,"name":"z"}}}}]"#,
        ),
        (
            100,
            r#"[false,"<>",{"Test":{"<>":{"initial":{"n":50,"name":"filler"}},"<>":{"initial":{"n":4,"name":"b"}},"<>":{"initial":{"n":30,"name":"z"}}}}]"#,
        ),
    ] {
        let answer = ask(&mut driver, transaction_id(known), columns);
        assert_eq!(anonymous(&answer), expected, "since {known}: {answer}");
    }
}

#[test]
fn conditions_see_the_rows_of_then_and_now() {
    let mut driver = driver();
    let request = r#"{"columns":["name"],"where":[["n","<",4]]}"#;
    let answer = ask(&mut driver, transaction_id(4), request);
    assert_eq!(anonymous(&answer).matches("delete").count(), 2, "{answer}");
    assert!(!answer.contains("insert") && !answer.contains("modify"), "{answer}");
}

#[test]
fn nobody_knows_the_id_of_zeros() {
    let mut driver = driver();
    assert!(ask(&mut driver, Uuid::zero(), "{}").starts_with("[false,"));
}

#[test]
fn what_is_long_ago_is_forgotten() {
    let mut driver = driver();
    for n in 0..200 {
        driver.send(
            "W",
            &format!(r#"{{"id":1,"method":"transact","params":["T",{{"op":"update","table":"Test","where":[["name","==","z"]],"row":{{"n":{n}}}}}]}}"#),
        );
    }
    assert!(ask(&mut driver, transaction_id(10), r#"{"columns":["n"]}"#).starts_with("[false,"));
    assert!(ask(&mut driver, transaction_id(209), r#"{"columns":["n"]}"#).starts_with("[true,"));
}
