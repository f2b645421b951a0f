//! `lab paper`: a part that runs, one that fails, what is kept.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lab-paper-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Runs it with a program in place of the server.
    fn paper(&self, program: &str, options: &[&str]) -> Output {
        let output = self.0.join("results");
        Command::new(env!("CARGO_BIN_EXE_dormouse-lab"))
            .args(["paper", "--quick", "--dormouse", program, "--output", output.to_str().unwrap()])
            .args(options)
            .output()
            .unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join("results").join(name)).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// No server: one flush needs none, bytes per item do.
const NO_SERVER: &str = "/bin/false";

#[test]
fn what_ran_stands_beside_the_reference_and_is_kept() {
    let place = Place::new("kept");
    let first = place.paper(NO_SERVER, &["--only", "e4,e6"]);
    let said = errors(&first);
    assert!(said.contains("2 of 2 parts to run") && said.contains("flush: done in"), "{said}");
    assert!(said.contains("overhead: FAILED"), "{said}");
    assert!(!first.status.success() && said.contains("overhead failed; the report has the others"), "{said}");
    let paper: Value = serde_json::from_str(&place.read("paper.json")).unwrap();
    let rows = paper["tables"][0]["rows"].as_array().unwrap();
    assert_eq!((paper["tables"].as_array().unwrap().len(), rows.len()), (1, 8));
    let million = rows.iter().find(|row| row[0] == "1M: peak bytes per item, before -> after").unwrap();
    assert_eq!(million[1], "807 / 812 -> 759 / 764");
    assert!(million[3].as_str().unwrap().contains("x less / "), "{million}");
    let (markdown, html) = (place.read("paper.md"), place.read("paper.html"));
    assert!(markdown.contains("overhead FAILED") && markdown.contains("## E4: One flush"), "{markdown}");
    assert!(html.contains("<h2>E4: One flush") && !html.contains("http"), "no outside resource");

    // Forgetting one forgets no other.
    let fresh = place.paper(NO_SERVER, &["--only", "e6", "--fresh"]);
    assert!(errors(&fresh).contains("1 of 1 parts to run"), "{}", errors(&fresh));
    let again = place.paper(NO_SERVER, &["--only", "e4"]);
    assert!(again.status.success() && errors(&again).contains("0 of 1 parts to run"), "{}", errors(&again));
    let other = place.paper("/bin/true", &["--only", "e4"]);
    let said = errors(&other);
    assert!(!other.status.success() && said.contains("--output") && said.contains("--fresh"), "{said}");
}

#[test]
fn an_experiment_that_is_not_there_is_named() {
    let place = Place::new("named");
    let output = place.paper(NO_SERVER, &["--only", "e7"]);
    let said = errors(&output);
    assert!(!output.status.success() && said.contains("'e7'") && said.contains("e1, e2, e3"), "{said}");
    let output = place.paper("/nonexistent/dormouse", &[]);
    let said = errors(&output);
    assert!(!output.status.success() && said.contains("/nonexistent/dormouse"), "{said}");
}
