//! Complete experiments on the smallest subjects: the report, its JSON, and no leftovers.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dormouse-lab")).args(arguments).output().unwrap()
}

/// Runs an experiment; returns its text and its JSON. It needs one core for the server and one for the client: if there
/// is only one, it must fail with that message, and this returns `None`.
fn report(arguments: &[&str]) -> Option<(String, Value)> {
    let test = std::thread::current();
    let name = format!("lab-report-{}-{}.json", std::process::id(), test.name().unwrap());
    let json = std::env::temp_dir().join(name);
    let output = lab(&[arguments, &["--json", json.to_str().unwrap()]].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if std::thread::available_parallelism().unwrap().get() < 2 {
        assert!(!output.status.success() && errors.contains("a core each"), "{errors}");
        return None;
    }
    assert!(output.status.success(), "{errors}");
    let report = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    Some((String::from_utf8(output.stdout).unwrap(), report))
}

#[test]
fn throughput_of_the_floor_in_words_and_json() {
    let Some((text, report)) = report(&[
        "throughput",
        "--without-dormouse",
        "--peers",
        "floor",
        "--items",
        "1k",
        "--reads",
        "50",
        "--depths",
        "1,8",
        "--starts",
        "2",
        "--windows",
        "1",
        "--window-ms",
        "60",
    ]) else {
        return;
    };
    assert!(text.contains("kop/CPU s") && text.contains("floor"), "{text}");
    assert_eq!(report["experiment"], "throughput");
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    for point in points {
        assert_eq!(point["subject"], "floor");
        assert_eq!(point["per_cpu_second"]["samples"].as_array().unwrap().len(), 2);
        assert!(point["per_cpu_second"]["median"].as_f64().unwrap() > 1000.0);
        let share = point["server_share"].as_f64().unwrap();
        assert!(share > 0.0 && share < 1.2, "{share}");
    }
}

#[test]
fn ovsdb_workloads_on_the_floor_in_words_and_json() {
    let Some((text, report)) = report(&[
        "ovsdb",
        "--quick",
        "--without-dormouse",
        "--peers",
        "floor",
        "--cases",
        "update1,update1-mon,insert-pipe,monitors100,dump100",
        "--scale",
        "0.01",
        "--starts",
        "2",
    ]) else {
        return;
    };
    assert!(text.contains("update1-mon") && text.contains("x best stock"), "{text}");
    assert_eq!(report["experiment"], "ovsdb");
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 4, "the floor has no rows to dump");
    for point in points {
        assert_eq!(point["cpu_ns_per_unit"]["samples"].as_array().unwrap().len(), 2);
        assert!(point["cpu_ns_per_unit"]["median"].as_f64().unwrap() > 0.0);
        let replicas = match point["case"].as_str().unwrap() {
            "update1-mon" => 10.0,
            "monitors100" => 100.0,
            _ => 0.0,
        };
        let sample = &point["samples"][0];
        let received = sample["received_bytes"].as_f64().unwrap();
        assert!(received > 190.0 * replicas * sample["units"].as_f64().unwrap(), "{point}");
    }
}

#[test]
fn flushes_in_words_and_json() {
    let Some((text, report)) = report(&["flush", "--items", "1,3000", "--repetitions", "1"]) else { return };
    assert!(text.contains("Beside the reference") && text.contains("170k / 174k"), "{text}");
    let lines = report["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 8, "two counts, two lengths of values, two ways");
    for line in lines {
        let memory = &line["memory"];
        let (items, value) = (line["items"].as_f64().unwrap(), line["value_bytes"].as_f64().unwrap());
        let (peak, buffer) =
            (memory["peak_bytes"].as_i64().unwrap(), memory["buffer_bytes"].as_i64().unwrap());
        // Counted, not sampled: the buffer shows up exactly, in its size class, and the peak includes it.
        assert_eq!(buffer, if items > 1.0 { 1 << 20 } else { 64 << 10 }, "{line}");
        assert!(peak > buffer && peak < buffer + 100_000, "{line}");
        assert!(line["written_per_item"].as_f64().unwrap() > value, "{line}");
        // The dirty list uses at least 8 bytes per item.
        let dirty = |name: &str| memory[name].as_f64().unwrap();
        assert!(dirty("dirty_bytes").max(dirty("dirty_accounted_bytes")) >= 8.0 * items, "{line}");
        assert_eq!(line["per_cpu_second"]["samples"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn durable_writes_of_the_floor_beside_the_disk() {
    let Some((_, report)) = report(&[
        "throughput",
        "--durability",
        "persistToMajority",
        "--without-dormouse",
        "--peers",
        "floor",
        "--clients",
        "1,4",
        "--starts",
        "1",
        "--window-ms",
        "150",
    ]) else {
        return;
    };
    assert_eq!(report["level"], "persistToMajority");
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    for point in points {
        assert!(point["syncs_per_second"].as_f64().unwrap() > 0.0, "{point}");
        assert!(point["of_disk"].as_f64().unwrap() > 0.0, "{point}");
        let (p50, p99) =
            (point["latency_p50_us"].as_f64().unwrap(), point["latency_p99_us"].as_f64().unwrap());
        assert!(p50 > 0.0 && p50 <= p99, "{point}");
    }
}

#[test]
fn mistakes_are_named() {
    for (arguments, words) in [
        (&["throughput", "--without-dormouse", "--peers", "oracle"][..], "unknown peer"),
        (&["throughput", "--items", "many"][..], "not a count"),
        (&["throughput", "--durability", "always"][..], "invalid value"),
        (&["throughput", "--durability", "majority", "--persistent"][..], "cannot be used with"),
        (&["throughput", "--persistent", "--without-dormouse", "--peers", "redis"][..], "nothing to measure"),
        (&["warmup", "--without-dormouse", "--peers", "floor"][..], "nothing to measure"),
        (&["flush", "--lab", "/nonexistent/lab"][..], "starting /nonexistent/lab"),
        (&["overhead", "--shapes", "24x256"][..], "KEY+VALUE"),
        (&["throughput", "--without-dormouse", "--peers", "none"][..], "nothing to measure"),
        (&["overhead", "--without-dormouse", "--peers", "floor"][..], "nothing to measure"),
        (&["throughput", "--without-dormouse", "--peers", "floor,floor"][..], "named twice"),
        (&["ovsdb", "--without-dormouse", "--peers", "oracle"][..], "unknown peer"),
        (&["ovsdb", "--without-dormouse", "--peers", "none"][..], "nothing to measure"),
        (&["ovsdb", "--without-dormouse", "--peers", "floor,floor"][..], "two servers are named floor"),
        (&["ovsdb", "--without-dormouse", "--peers", "floor", "--cases", "update9"][..], "no case `update9`"),
    ] {
        let output = lab(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(words), "{arguments:?}: {errors}");
    }
}
