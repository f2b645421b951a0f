//! Where the programs are that the lab starts, beside the peers.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::child::find_program;

/// The server's program.
const DORMOUSE: &str = "dormouse";

/// This program, for what runs in a process of its own.
pub fn this() -> Result<PathBuf> {
    std::env::current_exe().context("finding this program")
}

/// The server to measure: the one given, or the one beside this program, or the one on the PATH.
pub fn dormouse(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(program) = given {
        return Ok(program.to_owned());
    }
    let beside = this()?.with_file_name(DORMOUSE);
    if beside.is_file() {
        return Ok(beside);
    }
    find_program(DORMOUSE).with_context(|| {
        format!("there is no {} and no {DORMOUSE} on the PATH: name one with --dormouse", beside.display())
    })
}
