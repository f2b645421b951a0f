//! The machine an experiment runs on: what its report must state, which cores it uses, and what other processes use
//! meanwhile.

use crate::cleanup::CleanupProcess;
use crate::os;
use crate::process::Stat;
use crate::report::bytes;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Settings of the machine that affect figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Processor model.
    pub processor: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Transparent huge page mode of the system, as `always [madvise] never`.
    pub huge_pages: String,
    /// TCP congestion control, which costs CPU even on loopback.
    pub congestion_control: String,
    /// Whether the scheduler weighs sessions before processes (autogroup), so that a priority only counts within its
    /// session.
    pub autogroup: bool,
    /// Load average when the run began.
    pub load_average: String,
}

/// The two cores of an experiment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cores {
    /// Core of the server under test.
    pub server: usize,
    /// Core of the load.
    pub driver: usize,
}

fn first_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().lines().next().unwrap_or("unknown").trim().to_owned()
}

impl Machine {
    /// Reads the settings.
    pub fn read() -> Result<Self> {
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processor
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown", |(_, model)| model.trim());
        Ok(Self {
            kernel: first_line("/proc/sys/kernel/osrelease"),
            processor: processor.to_owned(),
            cores: os::allowed_cores()?.len(),
            memory_bytes: meminfo("MemTotal"),
            huge_pages: first_line(HUGE_PAGES),
            congestion_control: first_line("/proc/sys/net/ipv4/tcp_congestion_control"),
            autogroup: first_line("/proc/sys/kernel/sched_autogroup_enabled") == "1",
            load_average: first_line("/proc/loadavg"),
        })
    }
}

impl Machine {
    /// What a report says about it.
    pub fn in_words(&self) -> String {
        format!(
            "{}, {} cores usable, {} memory, kernel {}, load {}",
            self.processor,
            self.cores,
            bytes(self.memory_bytes),
            self.kernel,
            self.load_average
        )
    }

    /// Returns true if figures of the two can be compared.
    pub fn is_like(&self, other: &Self) -> bool {
        let about =
            |one: &Self| (one.kernel.clone(), one.processor.clone(), one.cores, one.memory_bytes >> 28);
        about(self) == about(other)
    }
}

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// Huge page mode of the system for the duration of a run. The previous mode is restored when this is dropped, and also
/// when this process is interrupted or killed.
pub struct HugePageMode {
    path: PathBuf,
    former_mode: String,
    _former: CleanupProcess,
}

impl HugePageMode {
    /// Arranges for the current mode to be restored; needs the privilege to set it.
    pub fn keep() -> Result<Self> {
        Self::keep_at(Path::new(HUGE_PAGES))
    }

    fn keep_at(path: &Path) -> Result<Self> {
        let modes = fs::read_to_string(path).unwrap_or_default();
        let former = chosen(&modes).context("the system reports no huge page mode")?;
        // Changes nothing, but shows whether the mode may be set.
        fs::write(path, former).context("setting the system's huge page mode")?;
        let cleanup = CleanupProcess::new(r#"echo "$1" >"$2""#, &[former.as_ref(), path.as_os_str()])?;
        Ok(Self { path: path.to_owned(), former_mode: former.to_owned(), _former: cleanup })
    }

    /// The mode before the run.
    pub fn former(&self) -> &str {
        &self.former_mode
    }

    /// Sets `always`, `madvise` or `never`.
    pub fn set(&self, mode: &str) -> Result<()> {
        fs::write(&self.path, mode).with_context(|| format!("setting the huge page mode to {mode}"))
    }
}

/// The system's current huge page mode.
pub fn huge_page_mode() -> Option<&'static str> {
    let modes = first_line(HUGE_PAGES);
    let now = chosen(&modes)?;
    ["always", "madvise", "never"].into_iter().find(|mode| *mode == now)
}

/// The word in brackets.
fn chosen(modes: &str) -> Option<&str> {
    modes.split_once('[')?.1.split_once(']').map(|(mode, _)| mode)
}

fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .find_map(|line| {
            line.strip_prefix(name)?.strip_prefix(':')?.split_whitespace().next()?.parse::<u64>().ok()
        })
        .unwrap_or(0)
        * 1024
}

/// Memory that is available now without swapping.
pub fn available_bytes() -> u64 {
    meminfo("MemAvailable")
}

/// Chooses two CPUs, on different physical cores if the machine has them.
pub fn choose_cores(server: Option<usize>, driver: Option<usize>) -> Result<Cores> {
    let allowed = os::allowed_cores()?;
    let server = match server.or_else(|| allowed.first().copied()) {
        Some(core) if allowed.contains(&core) => core,
        _ => bail!("the server's core is not among the cores this process may use: {allowed:?}"),
    };
    let siblings = siblings_of(server);
    let others = allowed.iter().copied().filter(|&core| core != server);
    let chosen = driver
        .or_else(|| others.clone().find(|core| !siblings.contains(core)).or_else(|| others.clone().next()));
    match chosen {
        Some(driver) if driver != server && allowed.contains(&driver) => Ok(Cores { server, driver }),
        _ => bail!("server and load need a core each; this process may use {allowed:?}"),
    }
}

/// Hardware threads that share a physical core with `core`.
fn siblings_of(core: usize) -> Vec<usize> {
    let list = first_line(&format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"));
    parse_core_list(&list)
}

fn parse_core_list(list: &str) -> Vec<usize> {
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(low), Ok(high)) = (low.trim().parse::<usize>(), high.trim().parse::<usize>()) {
            cores.extend(low..=high);
        }
    }
    cores
}

/// A reading of the whole machine's busy time, to find out what other processes used between two readings.
#[derive(Clone, Copy, Debug)]
pub struct BusyReading {
    at: Instant,
    busy_ns: u64,
}

impl BusyReading {
    /// Takes a reading.
    pub fn take() -> Self {
        let stat = first_line("/proc/stat");
        let ticks: Vec<u64> =
            stat.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal
        let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|&field| ticks.get(field)).sum();
        Self { at: Instant::now(), busy_ns: busy * (1_000_000_000 / os::ticks_per_second()) }
    }

    /// Cores kept busy since then by anything not counted in `own_ns`.
    pub fn foreign_cores(&self, own_ns: u64) -> f64 {
        let now = Self::take();
        let wall_ns = now.at.duration_since(self.at).as_nanos().max(1) as f64;
        (now.busy_ns.saturating_sub(self.busy_ns)).saturating_sub(own_ns) as f64 / wall_ns
    }
}

/// A reading of what some cores have done so far, to find out what other programs used of them between two readings.
#[derive(Clone, Debug)]
pub struct CoresReading {
    cores: Vec<usize>,
    at: Instant,
    busy_ns: u64,
    own_ns: u64,
}

impl CoresReading {
    /// Takes a reading of these cores, and of what this process and those that it has waited for have used.
    pub fn take(cores: &[usize]) -> Self {
        let ticks = busy_ticks(&fs::read_to_string("/proc/stat").unwrap_or_default(), cores);
        let own = Stat::read(std::process::id()).map_or(0, |stat| stat.counts.iter().skip(4).sum());
        let tick_ns = 1_000_000_000 / os::ticks_per_second();
        Self { cores: cores.to_vec(), at: Instant::now(), busy_ns: ticks * tick_ns, own_ns: own * tick_ns }
    }

    /// How many of these cores anything else than this process, its children and what used `subject_ns` has kept busy
    /// since then.
    pub fn foreign_cores(&self, subject_ns: u64) -> f64 {
        let now = Self::take(&self.cores);
        let own_ns = now.own_ns.saturating_sub(self.own_ns) + subject_ns;
        let wall_ns = now.at.duration_since(self.at).as_nanos().max(1) as f64;
        now.busy_ns.saturating_sub(self.busy_ns).saturating_sub(own_ns) as f64 / wall_ns
    }
}

/// User, nice, system and stolen time of these cores. Interrupts are left out: those of the load's own packets are
/// among them.
fn busy_ticks(stat: &str, cores: &[usize]) -> u64 {
    let of_line = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split_whitespace();
        let core: usize = fields.next()?.parse().ok()?;
        let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal
        let busy = [0, 1, 2, 7].iter().filter_map(|&field| ticks.get(field)).sum::<u64>();
        cores.contains(&core).then_some(busy)
    };
    stat.lines().filter_map(of_line).sum()
}

/// Watches these cores for a moment, before anything is started. Returns what to say, first of all, if other programs
/// use them; that has been written to standard error.
pub fn look_around(cores: &[usize]) -> Option<String> {
    let reading = CoresReading::take(cores);
    thread::sleep(LOOK);
    let words = busy_words(reading.foreign_cores(0), cores.len(), "use")?;
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "{words}");
    Some(words)
}

/// What to say of a machine on which other programs use so many of the cores; `None` if it is quiet. `does` is the
/// verb.
pub fn busy_words(foreign: f64, cores: usize, does: &str) -> Option<String> {
    let cores = cores.max(1);
    let part = foreign / cores as f64;
    let used = format!("other programs {does} {foreign:.1} of the {cores} cores that the lab may use");
    match part {
        TOO_BUSY.. => {
            Some(format!("The machine is too busy to tell anything: {used}. Run this on a quiet one."))
        }
        NOT_QUIET.. => Some(format!("The machine is not quiet: {used}. Small differences may be theirs.")),
        _ => None,
    }
}

/// How long the cores are watched.
const LOOK: Duration = Duration::from_millis(300);
/// Parts of the cores that other programs use: figures then say nothing, or differ a little by that alone.
const TOO_BUSY: f64 = 0.25;
const NOT_QUIET: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_mode_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("unknown"), None);
    }

    #[test]
    fn the_former_mode_returns_when_the_pipe_to_its_cleanup_process_ends() {
        let path = std::env::temp_dir().join(format!("dormouse-lab-huge-pages-{}", std::process::id()));
        fs::write(&path, "always [madvise] never\n").unwrap();
        let mode = HugePageMode::keep_at(&path).unwrap();
        mode.set("always").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "always");
        drop(mode);
        assert_eq!(fs::read_to_string(&path).unwrap(), "madvise\n");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_what_others_do_on_the_cores_counts() {
        let stat =
            "cpu  9 9 9 9 9 9 9 9\ncpu0 1 2 3 100 5 6 7 8 0 0\ncpu1 10 0 0 1 0 0 0 0 0 0\ncpu12 500 0 0 0\n";
        assert_eq!(busy_ticks(stat, &[0]), 1 + 2 + 3 + 8);
        assert_eq!(busy_ticks(stat, &[0, 1]), 14 + 10);
        assert_eq!(busy_ticks(stat, &[2]), 0);
        assert_eq!(busy_words(0.1, 2, "used"), None);
        let said = busy_words(0.3, 2, "used").unwrap();
        assert!(
            said.starts_with("The machine is not quiet: other programs used 0.3 of the 2 cores "),
            "{said}"
        );
        let said = busy_words(1.3, 2, "use").unwrap();
        assert!(
            said.starts_with("The machine is too busy to tell anything: other programs use 1.3 of the"),
            "{said}"
        );
        let reading = CoresReading::take(&os::allowed_cores().unwrap());
        assert!(reading.busy_ns > 0 && reading.foreign_cores(0) >= 0.0);
        assert_eq!(reading.foreign_cores(u64::MAX / 2), 0.0, "the subject's own");
    }

    #[test]
    fn core_lists() {
        assert_eq!(parse_core_list("0,4"), [0, 4]);
        assert_eq!(parse_core_list("2-4,7"), [2, 3, 4, 7]);
        assert!(parse_core_list("unknown").is_empty());
    }

    #[test]
    fn this_machine_says_what_it_is() {
        let machine = Machine::read().unwrap();
        assert!(machine.cores > 0 && machine.memory_bytes > 0);
        assert!(!machine.kernel.is_empty());
    }
}
