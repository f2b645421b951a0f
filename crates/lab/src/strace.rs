//! System calls of a running process, counted by `strace -c`.
//!
//! Tracing slows the process down several times, so counts are exact but their ratios are those of a slow server: more
//! connections are ready per wake-up than without it. Attaching interrupts the call a thread sleeps in, which shows as
//! one more call per thread.

use crate::os;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a call was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Calls in all.
    pub calls: u64,
    /// Those that returned an error; for reads and writes of sockets that is EAGAIN.
    pub errors: u64,
}

/// Counts by the name of the call.
pub type Counts = BTreeMap<String, Count>;

/// strace at work on a process; detached when dropped.
pub struct Trace {
    child: Child,
    summary: PathBuf,
}

impl Trace {
    /// Attaches to all threads of a process.
    pub fn attach(pid: u32) -> Result<Self> {
        let summary = std::env::temp_dir().join(format!("dormouse-lab-{}-strace-{pid}", std::process::id()));
        let child = Command::new("strace")
            .args(["-f", "-c", "-o"])
            .arg(&summary)
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting strace (is it installed?)")?;
        let mut trace = Self { child, summary };
        let deadline = Instant::now() + ATTACH_TIMEOUT;
        while !wholly_traced(pid)? {
            if let Some(status) = trace.child.try_wait()? {
                bail!("strace ended with {status}: tracing another process may need a privilege");
            }
            if Instant::now() > deadline {
                bail!("strace did not attach to process {pid}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(trace)
    }

    /// Detaches and returns the counts.
    pub fn detach(mut self) -> Result<Counts> {
        os::signal(self.child.id(), libc::SIGINT)?;
        self.child.wait()?;
        let text = fs::read_to_string(&self.summary).context("reading strace's summary")?;
        Ok(parse(&text))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _it_may_have_ended = os::signal(self.child.id(), libc::SIGINT);
            let _it_may_have_ended = self.child.wait();
        }
        let _it_may_not_exist = fs::remove_file(&self.summary);
    }
}

fn wholly_traced(pid: u32) -> Result<bool> {
    for entry in fs::read_dir(format!("/proc/{pid}/task")).context("the traced process is gone")? {
        let status = fs::read_to_string(entry?.path().join("status")).unwrap_or_default();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
        if tracer.is_some_and(|tracer| tracer.trim() == "0") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Lines are `% time, seconds, usecs/call, calls, [errors,] syscall`.
fn parse(text: &str) -> Counts {
    let mut counts = Counts::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (calls, errors, name) = match *fields {
            [_, _, _, calls, name] => (calls, "0", name),
            [_, _, _, calls, errors, name] => (calls, errors, name),
            _ => continue,
        };
        if let (Ok(calls), Ok(errors)) = (calls.parse(), errors.parse())
            && name != "total"
        {
            counts.insert(name.to_owned(), Count { calls, errors });
        }
    }
    counts
}

/// Sum over several calls that do the same.
pub fn sum(counts: &Counts, names: &[&str]) -> Count {
    names.iter().filter_map(|&name| counts.get(name)).fold(Count::default(), |sum, count| Count {
        calls: sum.calls + count.calls,
        errors: sum.errors + count.errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_with_and_without_errors() {
        let text = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000012           1        12         3 read
 40.00    0.000008           0        10           sendmsg
------ ----------- ----------- --------- --------- ----------------
100.00    0.000020           0        22         3 total
";
        let counts = parse(text);
        assert_eq!(counts.len(), 2);
        assert_eq!(counts["read"], Count { calls: 12, errors: 3 });
        assert_eq!(sum(&counts, &["write", "sendmsg"]), Count { calls: 10, errors: 0 });
    }
}
