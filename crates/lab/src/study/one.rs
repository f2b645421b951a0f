//! One run: start, prepare, load, measure, settle, stop.

use super::figures::{CPU, FOREIGN, PEAK, PROCESSES, RESIDENT, USED, WALL};
use super::file::Study;
use super::subject::Launch;
use super::tree::{Tree, Use};
use super::workload::{Load, relate};
use crate::machine::{CoresReading, HugePageMode};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often all processes are looked at.
const SAMPLE: Duration = Duration::from_millis(100);
/// Most points of the curve that is kept.
const POINTS_MAX: usize = 240;
/// Most threads that are told apart.
const THREADS_MAX: usize = 12;

/// What one run measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Figures by name.
    pub figures: BTreeMap<String, f64>,
    /// Resident size in bytes over time, from the start of the load on, in seconds.
    pub resident: Vec<(f64, u64)>,
    /// CPU seconds by thread name.
    pub threads: Vec<(String, f64)>,
    /// Processes that were still there after it had ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
}

/// The machine's part in a run.
pub struct Bench<'a> {
    /// Cores of a subject whose variant names none.
    pub cores: &'a [usize],
    /// All cores that the lab may use.
    pub all_cores: &'a [usize],
    /// Sets the system's huge page mode, if a variant needs that.
    pub huge_pages: Option<&'a HugePageMode>,
}

/// Runs one variant once.
pub fn run(study: &Study, launch: &Launch, bench: &Bench<'_>, seed: u64) -> Result<Measured> {
    if let Some(modes) = bench.huge_pages {
        modes.set(launch.huge_page_mode().unwrap_or(modes.former()))?;
    }
    let mut subject = launch.start(bench.cores)?;
    let spec = &study.workload;
    let mut load = Load::prepare(spec, &mut subject, seed)?;
    let sampler = Sampler::start(subject.tree());
    let (start, cores) = (Instant::now(), CoresReading::take(bench.all_cores));
    let figures = load.run(&mut subject);
    let wall_s = start.elapsed().as_secs_f64();
    let used = sampler.used()?;
    let foreign_cores = cores.foreign_cores(used.cpu_ns);
    subject.ensure_alive()?;
    let mut figures = figures?;
    let cpu_s = used.cpu_ns as f64 / 1e9;
    relate(&mut figures, wall_s, cpu_s);
    drop(load);
    thread::sleep(spec.settle);
    subject.ensure_alive()?;
    subject.check_variant()?;
    let resident = sampler.stop();
    let footprint = subject.tree().memory();
    let (memory, resident_bytes) = (footprint.sums, footprint.resident_bytes());
    let peak = resident.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0).max(resident_bytes);
    figures.extend(
        [
            (CPU, cpu_s),
            ("cpu_user_s", used.user_ns as f64 / 1e9),
            ("cpu_system_s", used.system_ns as f64 / 1e9),
            (WALL, wall_s),
            (RESIDENT, resident_bytes as f64),
            ("proportional_bytes", memory.proportional_bytes as f64),
            (PEAK, peak as f64),
            ("huge_page_bytes", memory.huge_page_bytes as f64),
            (PROCESSES, footprint.processes as f64),
            (FOREIGN, foreign_cores),
            ("voluntary_switches", used.voluntary_switches as f64),
            ("involuntary_switches", used.involuntary_switches as f64),
            ("minor_faults", used.minor_faults as f64),
            ("major_faults", used.major_faults as f64),
            ("disk_bytes", disk_bytes(subject.directory()) as f64),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    figures.extend(subject.accounts().into_iter().map(|(name, value)| (name.to_owned(), value)));
    if let Some(used) = figures.get(USED) {
        let part = 1.0 - used / (resident_bytes as f64).max(1.0);
        figures.insert("fragmentation".to_owned(), part);
    }
    for (name, value) in &figures {
        ensure!(value.is_finite(), "{name} is {value}: not a number that can be compared");
    }
    let mut threads = used.threads;
    threads.truncate(THREADS_MAX);
    let left_behind = subject.stop()?;
    Ok(Measured { figures, resident: thin(resident), threads, left_behind })
}

/// What files take on disk; those that vanish meanwhile take nothing.
fn disk_bytes(directory: &Path) -> u64 {
    /// The unit of a file's length in blocks.
    const BLOCK: u64 = 512;
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.filter_map(|entry| {
        let about = entry.metadata().ok()?;
        Some(if about.is_dir() { disk_bytes(&entry.path()) } else { about.blocks() * BLOCK })
    });
    bytes.sum()
}

/// Keeps about as many points as a plot can show; the largest of those that fall together.
fn thin(points: Vec<(f64, u64)>) -> Vec<(f64, u64)> {
    let together = points.len().div_ceil(POINTS_MAX).max(1);
    points.chunks(together).filter_map(|part| part.iter().copied().max_by_key(|(_, bytes)| *bytes)).collect()
}

/// Looks at all processes again and again, in a thread of its own.
struct Sampler {
    ask: Sender<Asked>,
    used: Receiver<Use>,
    thread: JoinHandle<Vec<(f64, u64)>>,
}

enum Asked {
    Used,
    Stop,
}

impl Sampler {
    fn start(mut tree: Tree) -> Self {
        let ((ask, asked), (tell, used)) = (channel(), channel());
        tree.look();
        let before = tree.reading();
        let thread = thread::spawn(move || {
            let (start, mut points) = (Instant::now(), Vec::new());
            loop {
                let resident = tree.look();
                points.extend(resident.map(|bytes| (start.elapsed().as_secs_f64(), bytes)));
                match asked.recv_timeout(SAMPLE) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(Asked::Used) => {
                        tree.look();
                        let _nobody_may_wait = tell.send(tree.reading().since(&before));
                    }
                    _ => return points,
                }
            }
        });
        Self { ask, used, thread }
    }

    /// What they have used since the start.
    fn used(&self) -> Result<Use> {
        self.ask.send(Asked::Used).ok().context("the sampler has ended")?;
        self.used.recv().context("the sampler has ended")
    }

    fn stop(self) -> Vec<(f64, u64)> {
        let _it_waits_for_this = self.ask.send(Asked::Stop);
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_keeps_its_peak() {
        let points: Vec<(f64, u64)> =
            (0..10_000).map(|n| (f64::from(n), if n == 5_017 { 99 } else { 1 })).collect();
        let thinned = thin(points);
        assert!(thinned.len() <= POINTS_MAX);
        assert_eq!(thinned.iter().filter(|(_, bytes)| *bytes == 99).count(), 1);
        assert_eq!(thin(vec![(1.0, 1)]), [(1.0, 1)]);
    }
}
