//! A cleanup guard that survives SIGKILL: a child process that waits for the end of its input and then runs a script.
//! Its input is a pipe held by this process, so the child sees the end however this process exits; it has a process
//! group of its own, which Ctrl-C does not reach.

use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Runs its script when it is dropped or this process ends.
#[derive(Debug)]
pub struct CleanupProcess(Child);

impl CleanupProcess {
    /// Starts a guard that will run a shell script with `about` as its `$1`, `$2` and so on.
    pub fn new(script: &str, about: &[&OsStr]) -> Result<Self> {
        let child = Command::new("sh")
            .args(["-c", &format!("read -r _; {script}"), "cleanup"])
            .args(about)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting the cleanup process")?;
        Ok(Self(child))
    }
}

impl Drop for CleanupProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _it_ends_by_itself = self.0.wait();
    }
}
