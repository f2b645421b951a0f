//! `dormouse lab` executes the program dormouse-lab: the one beside it, else the one on the PATH.
#![allow(clippy::expect_used)]

mod binary;

use binary::Scratch;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = "#!/bin/sh\nprintf '%s|' \"$0\" \"$@\"\nexit 7\n";

fn lab(directory: &Path, path: &Path) -> Output {
    let arguments = ["lab", "throughput", "--help", "-x", "--", "a b"];
    Command::new(directory.join("dormouse"))
        .args(arguments)
        .env("PATH", path)
        .output()
        .expect("the binary runs")
}

fn program(path: &Path) {
    fs::write(path, PROGRAM).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}

#[test]
fn the_lab_is_the_program_beside_this_one_or_on_the_path() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    fs::copy(env!("CARGO_BIN_EXE_dormouse"), scratch.path().join("dormouse")).expect("copied");

    let output = lab(scratch.path(), elsewhere.path());
    let line = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1));
    assert!(line.contains("there is no program dormouse-lab beside this one or on the PATH"), "{line}");

    for folder in [elsewhere.path(), scratch.path()] {
        let place = folder.join("dormouse-lab");
        program(&place);
        let output = lab(scratch.path(), elsewhere.path());
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(text, format!("{}|throughput|--help|-x|--|a b|", place.display()));
        assert_eq!(output.status.code(), Some(7));
    }
}
