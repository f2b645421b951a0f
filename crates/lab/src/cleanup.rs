//! What puts something right at the end of this process, also when it is interrupted or killed: a child that waits for
//! the end of its input. That is a pipe whose other end is here, so the child learns of the end however it comes; and
//! it has a process group of its own, which Ctrl-C does not reach.

use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Runs its script when it is dropped or this process has ended.
#[derive(Debug)]
pub struct CleanupProcess(Child);

impl CleanupProcess {
    /// One that will run a script of the shell; what it is about are the script's `$1`, `$2` and so on.
    pub fn new(script: &str, about: &[&OsStr]) -> Result<Self> {
        let child = Command::new("sh")
            .args(["-c", &format!("read -r _; {script}"), "cleanup"])
            .args(about)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting what puts things right in the end")?;
        Ok(Self(child))
    }
}

impl Drop for CleanupProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _it_ends_by_itself = self.0.wait();
    }
}
