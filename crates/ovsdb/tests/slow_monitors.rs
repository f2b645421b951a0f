//! Sessions that read less than they are sent: they are sent all they missed in one piece, or are closed when that has
//! become too much to keep.

mod sessions;

use ovsdb::history::CommitId;
use ovsdb::server::Limits;
use sessions::{Driver, TestLog};

fn monitor(version: &str) -> String {
    let since =
        if version == "monitor_cond_since" { r#","00000000-0000-0000-0000-000000000000""# } else { "" };
    format!(
        r#"{{"id":3,"method":"{version}","params":["T","m",{{"Test":{{"columns":["name","n","s"]}}}}{since}]}}"#
    )
}

fn transact(operation: &str) -> String {
    format!(r#"{{"id":1,"method":"transact","params":["T",{operation}]}}"#)
}

fn slow() -> Driver {
    let limits = Limits { backlog_bytes: 300, ..Limits::default() };
    let mut driver = Driver::with(Some(TestLog::default()), limits);
    for version in ["monitor", "monitor_cond", "monitor_cond_since"] {
        driver.send(version, &monitor(version));
        driver.stick(version, true);
    }
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        driver
            .send("W", &transact(&format!(r#"{{"op":"insert","table":"Test","row":{{"name":"{name}"}}}}"#)));
    }
    driver
}

#[test]
fn what_was_missed_comes_in_one_piece() {
    let mut driver = slow();
    driver
        .send("W", &transact(r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"n":5}}"#));
    driver.send(
        "W",
        &transact(r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"n":7,"s":3}}"#),
    );
    driver
        .send("W", &transact(r#"{"op":"update","table":"Test","where":[["name","==","b"]],"row":{"n":7}}"#));
    driver
        .send("W", &transact(r#"{"op":"update","table":"Test","where":[["name","==","b"]],"row":{"n":0}}"#));
    driver.send("W", &transact(r#"{"op":"delete","table":"Test","where":[["name","==","h"]]}"#));
    for version in ["monitor", "monitor_cond", "monitor_cond_since"] {
        driver.stick(version, false);
        let lines = driver.send("W", r#"{"id":1,"method":"echo","params":[]}"#);
        let updates: Vec<_> = lines.iter().filter(|line| line.contains("update")).collect();
        assert!((3..8).contains(&updates.len()), "{lines:#?}");
        let last = updates.last().unwrap();
        assert!(!last.contains(r#""h""#) && last.contains(r#""g""#), "{last}");
        let change = match version {
            "monitor" => r#"{"old":{"n":0,"s":["set",[]]},"new":{"n":7,"name":"a","s":3}}"#,
            _ => r#"{"modify":{"n":7,"s":3}}"#,
        };
        assert!(last.contains(change), "{last}");
        let told: usize = updates.iter().map(|line| line.matches(r#""name":""#).count()).sum();
        assert_eq!(told, if version == "monitor" { 8 } else { 7 }, "{lines:#?}");
    }
}

#[test]
fn a_reply_is_preceded_by_all_that_was_missed() {
    let mut driver = slow();
    driver.stick("monitor_cond", true);
    driver.send(
        "monitor_cond",
        &transact(r#"{"op":"update","table":"Test","where":[["name","==","h"]],"row":{"n":5}}"#),
    );
    driver.stick("monitor_cond", false);
    let lines = driver.send("W", r#"{"id":1,"method":"echo","params":[]}"#);
    let mine: Vec<_> = lines.iter().filter(|line| line.starts_with("monitor_cond ")).collect();
    assert!(mine.last().unwrap().contains(r#"[{"count":1}]"#), "{lines:#?}");
    assert!(mine[mine.len() - 2].contains(r#"{"insert":{"n":5,"name":"h"}}"#), "{lines:#?}");
}

#[test]
fn what_cannot_be_remembered_closes_the_session() {
    let mut driver = slow();
    let text = "x".repeat(1 << 20);
    let mut closed = Vec::new();
    for _ in 0..200 {
        for text in [text.as_str(), ""] {
            let update = format!(r#"{{"op":"update","table":"Test","where":[],"row":{{"o":"{text}"}}}}"#);
            closed.extend(
                driver.send("W", &transact(&update)).into_iter().filter(|line| line.contains("<closed>")),
            );
        }
        if closed.len() == 3 {
            break;
        }
    }
    assert_eq!(
        closed,
        ["monitor", "monitor_cond", "monitor_cond_since"]
            .map(|name| format!("{name} <closed> it is too far behind the changes it monitors"))
    );
    assert_eq!(driver.server.figures().monitors, 0);
    // Once nobody is left behind, history is as short as before.
    for _ in 0..3 {
        driver.send("W", &transact(r#"{"op":"update","table":"Test","where":[],"row":{"o":"y"}}"#));
        driver.send("W", &transact(r#"{"op":"update","table":"Test","where":[],"row":{"o":"z"}}"#));
    }
    let database = driver.server.database("T").unwrap();
    assert!(database.figures().history_bytes < 100 << 20);
    assert!(database.oldest_kept() > CommitId(0));
}

#[test]
fn a_monitor_that_ends_while_it_is_behind_leaves_nothing() {
    let mut driver = slow();
    let lines = driver.send("monitor_cond", r#"{"id":9,"method":"monitor_cancel","params":["m"]}"#);
    assert_eq!(lines, [""; 0]);
    let id = driver.session("monitor");
    driver.server.disconnect(id);
    driver.stick("monitor_cond", false);
    driver.stick("monitor_cond_since", false);
    let lines = driver.send("W", r#"{"id":1,"method":"echo","params":[]}"#);
    assert!(
        lines.iter().any(|line| line == r#"monitor_cond {"id":9,"result":{},"error":null}"#),
        "{lines:#?}"
    );
    assert_eq!(driver.server.figures().monitors, 1);
}
