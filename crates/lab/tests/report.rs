//! A whole experiment on the smallest subject: its report, its JSON, and nothing left behind.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The example program, which cargo builds beside the tests.
fn lab(arguments: &[&str]) -> Output {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples/lab");
    Command::new(&program).arg("lab").args(arguments).output().unwrap_or_else(|error| {
        panic!("{}: {error} (cargo test -p lab builds it)", program.display());
    })
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("lab-report-{}-{name}", std::process::id()))
}

#[test]
fn throughput_of_the_floor_in_words_and_json() {
    let json = scratch("throughput.json");
    let output = lab(&[
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
        "--json",
        json.to_str().unwrap(),
    ]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if std::thread::available_parallelism().unwrap().get() < 2 {
        assert!(!output.status.success() && errors.contains("a core each"), "{errors}");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("kop/CPU s") && text.contains("floor"), "{text}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
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
    let json = scratch("ovsdb.json");
    let output = lab(&[
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
        "--json",
        json.to_str().unwrap(),
    ]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if std::thread::available_parallelism().unwrap().get() < 2 {
        assert!(!output.status.success() && errors.contains("a core each"), "{errors}");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("update1-mon") && text.contains("x best stock"), "{text}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
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
fn mistakes_are_named() {
    for (arguments, words) in [
        (&["throughput", "--peers", "oracle"][..], "unknown peer"),
        (&["throughput", "--items", "many"][..], "not a count"),
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
