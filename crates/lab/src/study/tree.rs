//! All processes of a run: CPU time, memory, switches and faults of all of them.
//!
//! Servers fork: PostgreSQL has a process for each connection, a shell script the server itself. A process belongs to a
//! run if it descends from the one that was started, or if its environment has the run's mark: one that has left its
//! parents has that still. What ended processes used is known twice, and both are too little at times: their parents'
//! accounts miss those that nobody waited for, and what was last seen of them misses their end. The larger one counts.
//!
//! Processes that have forked share pages, and each counts them in its resident size. So the memory of several is the
//! sum of their proportional sizes, in which a page that n processes share counts an nth for each.

use crate::os;
use crate::process::{self, CpuSplit, Memory, Stat};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(10);
/// How often processes are looked for that have left their parents.
const STRAYS: Duration = Duration::from_secs(1);
/// Proportional sizes are read again after this many times the time that reading them took: the kernel walks all pages.
const WALK_PAUSES: u32 = 20;

/// A process by its id and the time of its start: ids are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

/// What one process has used so far.
#[derive(Debug, Clone, Default)]
struct Seen {
    cpu_ns: u64,
    user_ns: u64,
    system_ns: u64,
    /// User and system time of children that it has waited for.
    reaped_ns: [u64; 2],
    minor_faults: u64,
    major_faults: u64,
    threads: BTreeMap<u32, process::ThreadUse>,
}

impl Seen {
    /// `former`: when it was last seen, for the threads that have ended since.
    fn new(pid: u32, stat: &Stat, former: Option<&Self>) -> Self {
        let tick_ns = 1_000_000_000 / os::ticks_per_second();
        let [minor, minor_reaped, major, major_reaped, _, _, user_reaped, system_reaped] = stat.counts;
        let CpuSplit { user_ns, system_ns } = stat.cpu_split();
        let mut threads = former.map(|former| former.threads.clone()).unwrap_or_default();
        threads.extend(process::threads(pid).unwrap_or_default());
        Self {
            // That of a process that has ended is known in ticks only.
            cpu_ns: os::process_cpu_ns(pid).unwrap_or(0).max(user_ns + system_ns),
            user_ns,
            system_ns,
            reaped_ns: [user_reaped * tick_ns, system_reaped * tick_ns],
            minor_faults: minor + minor_reaped,
            major_faults: major + major_reaped,
            threads,
        }
    }
}

/// What was used between two readings.
#[derive(Debug, Clone, Default)]
pub struct Use {
    /// CPU time.
    pub cpu_ns: u64,
    /// Its part in user mode.
    pub user_ns: u64,
    /// Its part in the kernel.
    pub system_ns: u64,
    /// Sleeps.
    pub voluntary_switches: u64,
    /// Preemptions.
    pub involuntary_switches: u64,
    /// Pages that were mapped without reading them.
    pub minor_faults: u64,
    /// Pages that were read from disk.
    pub major_faults: u64,
    /// CPU seconds of threads by name, the busiest first; those of the same name together.
    pub threads: Vec<(String, f64)>,
}

/// Everything seen of a run's processes.
#[derive(Debug, Clone, Default)]
pub struct Reading(BTreeMap<Identity, Seen>);

/// The processes of a run.
pub struct Tree {
    root: u32,
    /// A variable of their environment, with its value.
    mark: String,
    strays: Vec<u32>,
    looked: Option<Instant>,
    /// When proportional sizes may be read again.
    walk_due: Option<Instant>,
    reading: Reading,
}

/// The memory of all processes of a run.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    /// The sums over the processes.
    pub sums: Memory,
    /// How many there are.
    pub processes: usize,
}

impl Footprint {
    /// What they have resident. What several share counts once.
    pub fn resident_bytes(&self) -> u64 {
        if self.processes > 1 { self.sums.proportional_bytes } else { self.sums.resident_bytes }
    }
}

impl Tree {
    /// Those that descend from this one or have this mark.
    pub fn new(root: u32, mark: &str) -> Self {
        let (strays, reading) = (Vec::new(), Reading::default());
        Self { root, mark: mark.to_owned(), strays, looked: None, walk_due: None, reading }
    }

    /// The living ones, and those that have ended but were not waited for.
    fn members(&mut self) -> Vec<u32> {
        if self.looked.is_none_or(|looked| looked.elapsed() >= STRAYS) {
            (self.strays, self.looked) = (marked(&self.mark), Some(Instant::now()));
        }
        let (mut found, mut next) = (BTreeSet::new(), self.strays.clone());
        next.push(self.root);
        while let Some(pid) = next.pop() {
            if found.insert(pid) {
                next.extend(children(pid));
            }
        }
        found.into_iter().collect()
    }

    /// Looks at all of them; what has ended is remembered as it was last seen. Returns their resident size, as
    /// [`Footprint::resident_bytes`]; `None` if it is too early to read that of several again.
    pub fn look(&mut self) -> Option<u64> {
        let mut living = Vec::new();
        for pid in self.members() {
            let Some(stat) = Stat::read(pid) else { continue };
            let identity = Identity { pid, started: stat.started };
            let seen = Seen::new(pid, &stat, self.reading.0.get(&identity));
            self.reading.0.insert(identity, seen);
            if stat.state != 'Z' {
                living.push(pid);
            }
        }
        if let [only] = living.as_slice() {
            return process::resident_bytes(*only).ok();
        }
        let start = Instant::now();
        if self.walk_due.is_some_and(|due| start < due) {
            return None;
        }
        let sum = living.iter().filter_map(|pid| process::proportional_bytes(*pid).ok()).sum();
        self.walk_due = Some(Instant::now() + start.elapsed() * WALK_PAUSES);
        Some(sum)
    }

    /// What has been seen so far.
    pub fn reading(&self) -> Reading {
        self.reading.clone()
    }

    /// Reads their memory. A process that ends meanwhile is left out.
    pub fn memory(&mut self) -> Footprint {
        let all: Vec<Memory> =
            self.members().into_iter().filter_map(|pid| process::memory(pid).ok()).collect();
        Footprint { processes: all.len(), sums: all.into_iter().sum() }
    }

    /// The one with the largest resident size.
    pub fn largest(&mut self) -> Option<u32> {
        let size = |pid: &u32| process::resident_bytes(*pid).unwrap_or(0);
        self.members().into_iter().max_by_key(size)
    }

    /// The living ones, to be recognised after the first has ended.
    pub fn identities(&mut self) -> Vec<Identity> {
        self.looked = None;
        self.members().into_iter().filter_map(Identity::of).collect()
    }
}

impl Reading {
    /// What was used since `before`.
    pub fn since(&self, before: &Self) -> Use {
        let mut sum = Use::default();
        let mut threads = BTreeMap::<&str, u64>::new();
        let mut reaped = [0; 2];
        let mut living = [0; 3];
        for (identity, seen) in &self.0 {
            let none = Seen::default();
            let former = before.0.get(identity).unwrap_or(&none);
            let own = [
                seen.cpu_ns.saturating_sub(former.cpu_ns),
                seen.user_ns.saturating_sub(former.user_ns),
                seen.system_ns.saturating_sub(former.system_ns),
            ];
            sum.cpu_ns += own[0];
            sum.user_ns += own[1];
            sum.system_ns += own[2];
            if identity.lives() {
                living.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
                let waited = seen.reaped_ns.iter().zip(former.reaped_ns);
                reaped.iter_mut().zip(waited).for_each(|(sum, (now, then))| *sum += now.saturating_sub(then));
            }
            sum.minor_faults += seen.minor_faults.saturating_sub(former.minor_faults);
            sum.major_faults += seen.major_faults.saturating_sub(former.major_faults);
            for (id, thread) in &seen.threads {
                let none = process::ThreadUse::default();
                let then = former.threads.get(id).unwrap_or(&none);
                let since = |now: u64, then: u64| now.saturating_sub(then);
                sum.voluntary_switches += since(thread.voluntary_switches, then.voluntary_switches);
                sum.involuntary_switches += since(thread.involuntary_switches, then.involuntary_switches);
                *threads.entry(&thread.name).or_default() += since(thread.run_ns, then.run_ns);
            }
        }
        let [user, system] = reaped;
        sum.cpu_ns = sum.cpu_ns.max(living[0] + user + system);
        sum.user_ns = sum.user_ns.max(living[1] + user);
        sum.system_ns = sum.system_ns.max(living[2] + system);
        sum.threads = threads.into_iter().map(|(name, ns)| (name.to_owned(), ns as f64 / 1e9)).collect();
        sum.threads.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        sum
    }
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The processes whose environment has this variable with this value.
pub fn marked(mark: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_mark = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    pids.filter(has_mark).collect()
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

/// Kills all processes with this mark, also those that they start meanwhile.
pub fn end_marked(mark: &str) {
    for _ in 0..100 {
        let pids = marked(mark);
        if pids.is_empty() {
            return;
        }
        for pid in pids {
            let _it_may_have_ended = os::signal(pid, libc::SIGKILL);
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    const BUSY: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";

    /// A shell that runs the script and says "ready" on its way.
    fn started(script: &str, mark: &str) -> Child {
        let (name, value) = mark.split_once('=').unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).env(name, value).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        child
    }

    #[test]
    fn children_count_with_what_ended_ones_used() {
        let mark = format!("LAB_TEST=waited-{}", std::process::id());
        let mut child = started(&format!("sh -c '{BUSY}'; sleep 60 & echo ready; wait"), &mark);
        let mut tree = Tree::new(child.id(), &mark);
        let deadline = Instant::now() + Duration::from_secs(20);
        while tree.identities().len() < 2 && Instant::now() < deadline {
            thread::sleep(LOOK);
        }
        assert!(tree.look() > Some(0) && tree.memory().resident_bytes() > 0);
        let used = tree.reading().since(&Reading::default());
        assert!(used.cpu_ns > 10_000_000, "the first child's loop: {used:?}");
        let identities = tree.identities();
        assert_eq!(end(&identities, Duration::ZERO).len(), 2);
        child.wait().unwrap();
        assert_eq!(end(&identities, Duration::from_secs(20)), Vec::<String>::new(), "they have ended");
    }

    #[test]
    fn pages_that_processes_share_count_once() {
        let mark = format!("LAB_TEST=shared-{}", std::process::id());
        let script = "x=$(head -c 30000000 /dev/zero | tr '\\0' x); (sleep 63; :) & (sleep 63; :) & (sleep 63; :) & \
                      echo ready; wait";
        let mut child = started(script, &mark);
        let mut tree = Tree::new(child.id(), &mark);
        let deadline = Instant::now() + Duration::from_secs(20);
        while tree.identities().len() < 4 && Instant::now() < deadline {
            thread::sleep(LOOK);
        }
        let Footprint { sums, processes } = tree.memory();
        assert!(processes >= 4 && sums.resident_bytes > 120_000_000, "four shells with the text: {sums:?}");
        let seen = tree.look().unwrap();
        for resident in [tree.memory().resident_bytes(), seen] {
            assert!((30_000_000..sums.resident_bytes / 2).contains(&resident), "{resident} of {sums:?}");
        }
        assert_eq!(tree.largest().map(|pid| process::resident_bytes(pid).unwrap() > 30_000_000), Some(true));
        end_marked(&mark);
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_left_its_parents_is_found_by_its_mark() {
        let mark = format!("LAB_TEST=stray-{}", std::process::id());
        let script = format!("setsid sh -c '(sleep 61 & {BUSY}; sleep 62) & echo ready' & wait");
        let mut child = started(&script, &mark);
        child.wait().unwrap();
        let mut tree = Tree::new(child.id(), &mark);
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut used = Use::default();
        while used.cpu_ns < 10_000_000 && Instant::now() < deadline {
            tree.look();
            used = tree.reading().since(&Reading::default());
        }
        assert!(used.cpu_ns >= 10_000_000 && used.threads.iter().any(|(name, _)| name == "sh"), "{used:?}");
        end_marked(&mark);
        assert_eq!(marked(&mark), Vec::<u32>::new());
    }
}
