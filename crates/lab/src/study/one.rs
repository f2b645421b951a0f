//! One run: start, prepare, load, measure, settle, stop.

use super::figures::{CPU, PEAK, RESIDENT, WALL};
use super::file::{Study, WorkloadSpec};
use super::subject::{Launch, Running};
use super::tree;
use super::workload::{Load, relate};
use crate::machine::HugePageMode;
use crate::storage::files_below;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the resident size is read.
const SAMPLE: Duration = Duration::from_millis(50);
/// How often new processes are looked for.
const MEMBERS: Duration = Duration::from_secs(1);
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
    /// Sets the system's huge page mode, if a variant needs that.
    pub huge_pages: Option<&'a HugePageMode>,
}

/// Runs one variant once.
pub fn run(study: &Study, launch: &Launch, bench: &Bench<'_>, seed: u64) -> Result<Measured> {
    if let Some(mode) = launch.huge_page_mode() {
        bench.huge_pages.context("the huge page mode cannot be set")?.set(mode)?;
    }
    let mut subject = launch.start(bench.cores)?;
    let spec = &study.workload;
    let mut load = Load::prepare(spec, &mut subject, seed)?;
    let before = tree::used(subject.pid());
    let sampler = Sampler::start(subject.pid());
    let start = Instant::now();
    let figures = load.run(&mut subject);
    let wall_s = start.elapsed().as_secs_f64();
    let used = tree::used(subject.pid()).since(&before);
    subject.ensure_alive()?;
    let mut figures = figures?;
    let cpu_s = used.cpu_ns as f64 / 1e9;
    relate(&mut figures, wall_s, cpu_s);
    drop(load);
    rest(spec, &mut subject)?;
    let resident = sampler.stop();
    let memory = tree::memory(subject.pid());
    let peak = resident.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0).max(memory.resident);
    let files = files_below(subject.directory())?;
    let disk = files.iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.len());
    figures.extend(
        [
            (CPU, cpu_s),
            ("cpu_user_s", used.split.user_ns as f64 / 1e9),
            ("cpu_system_s", used.split.system_ns as f64 / 1e9),
            (WALL, wall_s),
            (RESIDENT, memory.resident as f64),
            ("proportional_bytes", memory.proportional as f64),
            (PEAK, peak as f64),
            ("huge_page_bytes", memory.huge_pages as f64),
            ("voluntary_switches", used.voluntary_switches as f64),
            ("involuntary_switches", used.involuntary_switches as f64),
            ("minor_faults", used.minor_faults as f64),
            ("major_faults", used.major_faults as f64),
            ("disk_bytes", disk.sum::<u64>() as f64),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    let mut threads = used.threads();
    threads.truncate(THREADS_MAX);
    let left_behind = subject.stop()?;
    Ok(Measured { figures, resident: thin(resident), threads, left_behind })
}

/// Waits before memory is read.
fn rest(spec: &WorkloadSpec, subject: &mut Running) -> Result<()> {
    thread::sleep(spec.settle);
    subject.ensure_alive()
}

/// Keeps about as many points as a plot can show; the largest of those that fall together.
fn thin(points: Vec<(f64, u64)>) -> Vec<(f64, u64)> {
    let together = points.len().div_ceil(POINTS_MAX).max(1);
    points.chunks(together).filter_map(|part| part.iter().copied().max_by_key(|(_, bytes)| *bytes)).collect()
}

/// Reads the resident size all the time, in a thread of its own.
struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Vec<(f64, u64)>>,
}

impl Sampler {
    fn start(root: u32) -> Self {
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            let start = Instant::now();
            let (mut points, mut members, mut looked) = (Vec::new(), tree::members(root), start);
            loop {
                if looked.elapsed() >= MEMBERS {
                    (members, looked) = (tree::members(root), Instant::now());
                }
                points.push((start.elapsed().as_secs_f64(), tree::resident(&members)));
                match stopped.recv_timeout(SAMPLE) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return points,
                }
            }
        });
        Self { stop, thread }
    }

    fn stop(self) -> Vec<(f64, u64)> {
        let _it_waits_for_this = self.stop.send(());
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
