//! Kernel figures about a process under test: CPU time per thread, context switches, memory.

use crate::os;
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Memory {
    /// Resident now (`Rss` of `smaps_rollup`, which is exact where `status` may lag by some pages per thread).
    pub resident_bytes: u64,
    /// Highest resident size so far.
    pub peak_bytes: u64,
    /// The same with pages that are shared divided among the processes that share them.
    pub proportional_bytes: u64,
    /// Part of the resident size in huge pages.
    pub huge_page_bytes: u64,
}

impl std::iter::Sum for Memory {
    /// What processes share counts for each, but in the proportional sizes.
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            resident_bytes: sum.resident_bytes + one.resident_bytes,
            peak_bytes: sum.peak_bytes + one.peak_bytes,
            proportional_bytes: sum.proportional_bytes + one.proportional_bytes,
            huge_page_bytes: sum.huge_page_bytes + one.huge_page_bytes,
        })
    }
}

/// CPU use of one thread since its start, or between two readings.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct ThreadUse {
    /// The thread's own name.
    pub name: String,
    /// Time on CPU.
    pub run_ns: u64,
    /// Voluntary context switches: one per sleep, so the wake-ups of an idle thread.
    pub voluntary_switches: u64,
    /// Times it was preempted.
    pub involuntary_switches: u64,
}

/// User and system time of a process in nanoseconds, at the resolution of clock ticks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CpuSplit {
    /// Time in user mode.
    pub user_ns: u64,
    /// Time in the kernel.
    pub system_ns: u64,
}

/// Value in bytes of a `Name:   123 kB` line.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn number(text: &str, name: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok()).unwrap_or(0)
}

/// Reads the memory of a process.
pub fn memory(pid: u32) -> Result<Memory> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).context("reading smaps_rollup")?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("reading status")?;
    Ok(Memory {
        resident_bytes: kilobytes(&rollup, "Rss").context("no Rss in smaps_rollup")?,
        peak_bytes: kilobytes(&status, "VmHWM").unwrap_or(0),
        proportional_bytes: kilobytes(&rollup, "Pss").unwrap_or(0),
        huge_page_bytes: kilobytes(&rollup, "AnonHugePages").unwrap_or(0),
    })
}

/// Its resident size, with pages that are shared divided among the processes that share them. The kernel walks all its
/// pages for that.
pub fn proportional_bytes(pid: u32) -> Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).context("reading smaps_rollup")?;
    kilobytes(&rollup, "Pss").context("no Pss in smaps_rollup")
}

/// Resident size of a process, read cheaply enough to do so often.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).context("reading statm")?;
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.context("unexpected form of /proc/PID/statm")? * os::page_bytes())
}

/// Fields of `/proc/PID/stat`.
pub struct Stat {
    /// `Z` for a process that has ended and was not waited for.
    pub state: char,
    /// minflt, cminflt, majflt, cmajflt, utime, stime, cutime, cstime
    pub counts: [u64; 8],
    /// Clock ticks from the boot to its start.
    pub started: u64,
}

impl Stat {
    /// Reads those of a process; `None` if there is none.
    pub fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name may hold spaces and brackets, so fields are counted from the last bracket.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut counts = [0; 8];
        let mut fields = fields.skip(6);
        for count in &mut counts {
            *count = fields.next()?.parse().ok()?;
        }
        // priority, nice, num_threads and itrealvalue come first.
        let started = fields.nth(4)?.parse().ok()?;
        Some(Self { state, counts, started })
    }

    /// User and system time.
    pub fn cpu_split(&self) -> CpuSplit {
        let tick_ns = 1_000_000_000 / os::ticks_per_second();
        let [.., user, system, _, _] = self.counts;
        CpuSplit { user_ns: user * tick_ns, system_ns: system * tick_ns }
    }
}

/// Reads user and system time of a process.
pub fn cpu_split(pid: u32) -> Result<CpuSplit> {
    Ok(Stat::read(pid).context("reading /proc/PID/stat")?.cpu_split())
}

/// Reads the CPU use of every thread, by thread id.
pub fn threads(pid: u32) -> Result<BTreeMap<u32, ThreadUse>> {
    let mut threads = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).context("listing threads")? {
        let path = entry?.path();
        let Some(id) = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // A thread may end between the listing and the reading.
        let (Ok(status), Ok(schedule)) =
            (fs::read_to_string(path.join("status")), fs::read_to_string(path.join("schedstat")))
        else {
            continue;
        };
        let name =
            status.lines().find_map(|line| line.strip_prefix("Name:")).unwrap_or("?").trim().to_owned();
        let run_ns = schedule.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0);
        threads.insert(
            id,
            ThreadUse {
                name,
                run_ns,
                voluntary_switches: number(&status, "voluntary_ctxt_switches"),
                involuntary_switches: number(&status, "nonvoluntary_ctxt_switches"),
            },
        );
    }
    Ok(threads)
}

/// CPU use of the threads between two readings; threads that ended in between are left out.
pub fn threads_between(
    before: &BTreeMap<u32, ThreadUse>,
    after: &BTreeMap<u32, ThreadUse>,
) -> Vec<ThreadUse> {
    after
        .iter()
        .map(|(id, end)| {
            let start = before.get(id).cloned().unwrap_or_default();
            ThreadUse {
                name: end.name.clone(),
                run_ns: end.run_ns.saturating_sub(start.run_ns),
                voluntary_switches: end.voluntary_switches.saturating_sub(start.voluntary_switches),
                involuntary_switches: end.involuntary_switches.saturating_sub(start.involuntary_switches),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_a_name_with_brackets() {
        let text = "7 (a) b) S 3 7 7 0 -1 4194560 100 1 2 3 31 42 5 6 20 0 1 0 5 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.state, stat.counts, stat.started), ('S', [100, 1, 2, 3, 31, 42, 5, 6], 5));
    }

    #[test]
    fn a_line_is_found_by_its_whole_name() {
        let text = "RssAnon:  7 kB\nRss:      12 kB\n";
        assert_eq!(kilobytes(text, "Rss"), Some(12 * 1024));
        assert_eq!(kilobytes(text, "Pss"), None);
    }

    #[test]
    fn own_process_is_readable() {
        let pid = std::process::id();
        let memory = memory(pid).unwrap();
        assert!(memory.resident_bytes > 0 && memory.peak_bytes >= memory.resident_bytes / 2);
        assert!(threads(pid).unwrap().contains_key(&pid));
    }
}
