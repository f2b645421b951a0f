//! System calls of a running process, traced by strace and counted per thread.
//!
//! Only calls that begin within the measured interval are counted: attaching and detaching interrupt the call a thread
//! sleeps in, and those calls are artefacts of strace. Tracing slows the process down several times, so counts are
//! exact but their ratios are those of a slow server: more connections are ready per wake-up than without it.

use crate::os;
use crate::storage::Scratch;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const LOG: &str = "log";
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before and after the interval that is counted.
const MARGIN: Duration = Duration::from_millis(100);

/// Number of times a system call was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// All calls.
    pub calls: u64,
    /// Those that returned an error; for reads and writes of sockets that is EAGAIN.
    pub errors: u64,
}

/// Counts by name of the call.
pub type Counts = BTreeMap<String, Count>;

/// The calls of one thread.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ThreadCalls {
    /// The thread's name.
    pub name: String,
    /// Its calls.
    pub calls: Counts,
}

/// strace attached to a process; detached when dropped.
pub struct Trace {
    child: Child,
    scratch: Scratch,
    names: BTreeMap<u32, String>,
    from: SystemTime,
}

impl Trace {
    /// Attaches to all threads of a process; counting begins when this returns.
    pub fn attach(pid: u32) -> Result<Self> {
        let scratch = Scratch::new(None)?;
        let child = Command::new("strace")
            .args(["-f", "-ttt", "-s", "0", "-o"])
            .arg(scratch.path.join(LOG))
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting strace (is it installed?)")?;
        let mut trace = Self { child, scratch, names: BTreeMap::new(), from: SystemTime::now() };
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
        for (id, thread) in crate::process::threads(pid)? {
            trace.names.insert(id, thread.name);
        }
        thread::sleep(MARGIN);
        trace.from = SystemTime::now();
        Ok(trace)
    }

    /// Stops counting, detaches and returns the calls of each thread that made any.
    pub fn detach(mut self) -> Result<Vec<ThreadCalls>> {
        let stretch = (seconds(self.from), seconds(SystemTime::now()));
        thread::sleep(MARGIN);
        os::signal(self.child.id(), libc::SIGINT)?;
        self.child.wait()?;
        let log = BufReader::new(File::open(self.scratch.path.join(LOG)).context("reading strace's log")?);
        let mut threads: BTreeMap<u32, ThreadCalls> = BTreeMap::new();
        for line in log.lines() {
            // Arguments may hold bytes that are not UTF-8; the name of the call comes before them.
            let Ok(line) = line else { continue };
            if let Some(call) = Call::parse(&line)
                && (stretch.0..stretch.1).contains(&call.at)
                && (call.begins || call.failed)
            {
                let thread = threads.entry(call.thread).or_default();
                let count = thread.calls.entry(call.name.to_owned()).or_default();
                count.calls += u64::from(call.begins);
                count.errors += u64::from(call.failed);
            }
        }
        for (id, thread) in &mut threads {
            thread.name = self.names.get(id).cloned().unwrap_or_else(|| "?".to_owned());
        }
        Ok(threads.into_values().collect())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _it_may_have_ended = os::signal(self.child.id(), libc::SIGINT);
            let _it_may_have_ended = self.child.wait();
        }
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
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

/// One line of the log: `THREAD SECONDS name(...) = result`, where a call that overlaps another thread's takes two
/// lines, the first ending in `<unfinished ...>` and the second beginning with `<... name resumed>`.
struct Call<'a> {
    thread: u32,
    at: f64,
    name: &'a str,
    begins: bool,
    failed: bool,
}

impl<'a> Call<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (thread, rest) = line.split_once(char::is_whitespace)?;
        let (at, rest) = rest.trim_start().split_once(' ')?;
        let (name, begins) = match rest.strip_prefix("<... ") {
            Some(resumed) => (resumed.split_once(" resumed")?.0, false),
            None => (rest.split_once('(')?.0, true),
        };
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let failed = rest.rsplit_once(" = ").is_some_and(|(_, result)| result.starts_with("-1 E"));
        is_name.then_some(Self { thread: thread.parse().ok()?, at: at.parse().ok()?, name, begins, failed })
    }
}

/// All threads together.
pub fn total<'a>(threads: impl IntoIterator<Item = &'a ThreadCalls>) -> Counts {
    let mut counts = Counts::new();
    for (name, count) in threads.into_iter().flat_map(|thread| &thread.calls) {
        let sum = counts.entry(name.clone()).or_default();
        sum.calls += count.calls;
        sum.errors += count.errors;
    }
    counts
}

/// Sum over several calls with the same purpose.
pub fn sum(counts: &Counts, names: &[&str]) -> Count {
    names.iter().filter_map(|&name| counts.get(name)).fold(Count::default(), |sum, count| Count {
        calls: sum.calls + count.calls,
        errors: sum.errors + count.errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> (u32, &str, bool, bool) {
        let call = Call::parse(line).unwrap();
        (call.thread, call.name, call.begins, call.failed)
    }

    #[test]
    fn calls_whole_and_in_two_lines() {
        assert_eq!(parsed("7 1700000000.000001 read(5, \"\"..., 4096) = 48"), (7, "read", true, false));
        let failed =
            "7     1700000000.000001 read(5, 0x7f, 4096) = -1 EAGAIN (Resource temporarily unavailable)";
        assert_eq!(parsed(failed), (7, "read", true, true));
        let begun = "8 1700000000.000001 futex(0x7f, FUTEX_WAIT, 1, NULL <unfinished ...>";
        assert_eq!(parsed(begun), (8, "futex", true, false));
        let resumed = "8 1700000000.000001 <... futex resumed>) = -1 ETIMEDOUT (Connection timed out)";
        assert_eq!(parsed(resumed), (8, "futex", false, true));
        let negative = "8 1700000000.000001 epoll_wait(4, [], 1024, -1) = 0";
        assert_eq!(parsed(negative), (8, "epoll_wait", true, false));
    }

    #[test]
    fn signals_and_exits_are_no_calls() {
        for line in [
            "7 1700000000.000001 --- SIGTERM {si_signo=SIGTERM, si_code=SI_USER} ---",
            "7 1700000000.000001 +++ exited with 0 +++",
            "",
        ] {
            assert!(Call::parse(line).is_none(), "{line}");
        }
    }

    #[test]
    fn threads_add_up() {
        let thread = |calls| ThreadCalls {
            name: String::new(),
            calls: [("read".to_owned(), Count { calls, errors: 1 })].into(),
        };
        let counts = total(&[thread(2), thread(3)]);
        assert_eq!(sum(&counts, &["read", "recvfrom"]), Count { calls: 5, errors: 2 });
    }
}
