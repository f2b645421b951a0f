//! A process and everything it started: CPU time, memory, switches and faults of all of them.
//!
//! Servers fork: PostgreSQL has a process for each connection, a shell script the server itself. What an ended process
//! used is in its parent's account, so the sum over the living and their reaped children is the whole.

use crate::os;
use crate::process::{self, CpuSplit};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(10);

/// What a tree has used so far, or between two readings.
#[derive(Debug, Clone, Default)]
pub struct Use {
    /// User and system time, to the nanosecond for living processes.
    pub cpu_ns: u64,
    /// The same, split, in clock ticks.
    pub split: CpuSplit,
    /// Sleeps.
    pub voluntary_switches: u64,
    /// Preemptions.
    pub involuntary_switches: u64,
    /// Pages that were mapped without reading them.
    pub minor_faults: u64,
    /// Pages that were read from disk.
    pub major_faults: u64,
    /// CPU time of the living threads by process and thread id, with their names.
    threads: BTreeMap<u32, (String, u64)>,
}

/// Memory of a tree in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Sum of the resident sizes: what processes share counts for each.
    pub resident: u64,
    /// The same with shared pages divided among those that share them.
    pub proportional: u64,
    /// In huge pages.
    pub huge_pages: u64,
}

/// The processes that descend from this one, itself included, by id.
pub fn members(root: u32) -> Vec<u32> {
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(parent) = Stat::read(pid).map(|stat| stat.parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut next) = (BTreeSet::new(), vec![root]);
    while let Some(pid) = next.pop() {
        if found.insert(pid) {
            next.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found.into_iter().filter(|pid| Stat::read(*pid).is_some_and(|stat| stat.state != 'Z')).collect()
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    state: char,
    parent: u32,
    /// minflt, cminflt, majflt, cmajflt, utime, stime, cutime, cstime
    counts: [u64; 8],
    /// Clock ticks from the boot to its start.
    started: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name may hold spaces and brackets, so fields are counted from the last bracket.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let mut counts = [0; 8];
        let mut fields = fields.skip(5);
        for count in &mut counts {
            *count = fields.next()?.parse().ok()?;
        }
        // priority, nice, num_threads and itrealvalue come first.
        let started = fields.nth(4)?.parse().ok()?;
        Some(Self { state, parent, counts, started })
    }
}

/// Reads what a tree has used. A process that ends meanwhile is left out.
pub fn used(root: u32) -> Use {
    let tick_ns = 1_000_000_000 / os::ticks_per_second();
    let mut sum = Use::default();
    for pid in members(root) {
        let (Some(stat), Ok(own_ns)) = (Stat::read(pid), os::process_cpu_ns(pid)) else { continue };
        let [minor, minor_reaped, major, major_reaped, user, system, user_reaped, system_reaped] =
            stat.counts;
        sum.cpu_ns += own_ns + (user_reaped + system_reaped) * tick_ns;
        sum.split.user_ns += (user + user_reaped) * tick_ns;
        sum.split.system_ns += (system + system_reaped) * tick_ns;
        sum.minor_faults += minor + minor_reaped;
        sum.major_faults += major + major_reaped;
        for (id, thread) in process::threads(pid).unwrap_or_default() {
            sum.voluntary_switches += thread.voluntary_switches;
            sum.involuntary_switches += thread.involuntary_switches;
            sum.threads.insert(id, (thread.name, thread.run_ns));
        }
    }
    sum
}

impl Use {
    /// What was used since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let thread = |(id, (name, ns)): (&u32, &(String, u64))| {
            let former = before.threads.get(id).map_or(0, |(_, ns)| *ns);
            (*id, (name.clone(), ns.saturating_sub(former)))
        };
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            split: CpuSplit {
                user_ns: self.split.user_ns.saturating_sub(before.split.user_ns),
                system_ns: self.split.system_ns.saturating_sub(before.split.system_ns),
            },
            voluntary_switches: self.voluntary_switches.saturating_sub(before.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(before.involuntary_switches),
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            threads: self.threads.iter().map(thread).collect(),
        }
    }

    /// CPU seconds of the threads by name, the busiest first; those of the same name together.
    pub fn threads(&self) -> Vec<(String, f64)> {
        let mut by_name = BTreeMap::<&str, u64>::new();
        for (name, ns) in self.threads.values() {
            *by_name.entry(name).or_default() += ns;
        }
        let mut threads: Vec<_> =
            by_name.into_iter().map(|(name, ns)| (name.to_owned(), ns as f64 / 1e9)).collect();
        threads.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        threads
    }
}

/// Reads the memory of a tree. A process that ends meanwhile is left out.
pub fn memory(root: u32) -> Memory {
    let mut sum = Memory::default();
    for pid in members(root) {
        let Ok(memory) = process::memory(pid) else { continue };
        sum.resident += memory.resident_bytes;
        sum.proportional += memory.proportional_bytes;
        sum.huge_pages += memory.huge_page_bytes;
    }
    sum
}

/// Reads the resident size of a tree, cheaply enough to do so often.
pub fn resident(members: &[u32]) -> u64 {
    members.iter().filter_map(|pid| process::resident_bytes(*pid).ok()).sum()
}

/// A process by its id and the time of its start: ids are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pid: u32,
    started: u64,
}

impl Identity {
    fn of(pid: u32) -> Option<Self> {
        Stat::read(pid).filter(|stat| stat.state != 'Z').map(|stat| Self { pid, started: stat.started })
    }

    fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// The members of a tree, to be recognised after its root has ended.
pub fn identities(root: u32) -> Vec<Identity> {
    members(root).into_iter().filter_map(Identity::of).collect()
}

/// Waits until these have ended, kills those that have not, and returns the names of the killed.
pub fn end(processes: &[Identity], patience: Duration) -> Vec<String> {
    let deadline = Instant::now() + patience;
    while processes.iter().any(|process| process.lives()) && Instant::now() < deadline {
        thread::sleep(LOOK);
    }
    let mut names = Vec::new();
    for process in processes.iter().filter(|process| process.lives()) {
        let name = fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
        if os::signal(process.pid, libc::SIGKILL).is_ok() {
            names.push(name.trim().to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn fields_are_found_behind_a_name_with_brackets() {
        let text = "7 (a) b) S 3 7 7 0 -1 4194560 100 1 2 3 31 42 5 6 20 0 1 0 5 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.state, stat.parent), ('S', 3));
        assert_eq!((stat.counts, stat.started), ([100, 1, 2, 3, 31, 42, 5, 6], 5));
    }

    /// The shell's first child works and ends, its second one sleeps.
    #[test]
    fn children_count_with_what_ended_ones_used() {
        let script = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; sleep 60 & echo ready; wait";
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while members(child.id()).len() < 2 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let pids = members(child.id());
        assert_eq!(pids.len(), 2, "the shell and its sleep");
        let used = used(child.id());
        assert!(used.cpu_ns > 10_000_000, "the first child's loop: {used:?}");
        assert!(memory(child.id()).resident > 0 && resident(&pids) > 0);
        let identities = identities(child.id());
        assert_eq!(end(&identities, Duration::ZERO).len(), 2);
        child.wait().unwrap();
        assert!(members(child.id()).is_empty());
        assert_eq!(end(&identities, Duration::from_secs(20)), Vec::<String>::new(), "they have ended");
    }
}
