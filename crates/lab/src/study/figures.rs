//! The figures of a run: their names, what they mean, and which direction is better.

use crate::report::{bytes, short};
use std::collections::BTreeSet;

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    Number,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Microseconds.
    Microseconds,
}

/// Which direction is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// More is better.
    More,
    /// Less is better.
    Less,
    /// It explains others.
    Neither,
}

/// A figure that every run has, as far as it can be measured.
#[derive(Debug)]
pub struct Figure {
    /// Its name in results.
    pub name: &'static str,
    /// Its name in reports and sentences.
    pub title: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// The better direction.
    pub better: Better,
}

const fn figure(name: &'static str, title: &'static str, unit: Unit, better: Better) -> Figure {
    Figure { name, title, unit, better }
}

/// Operations per second, as the load counts them.
pub const RATE: &str = "rate";
/// Operations.
pub const OPERATIONS: &str = "operations";
/// Operations per second of the subject's CPU time.
pub const PER_CPU_SECOND: &str = "per_cpu_second";
/// CPU time during the measured load.
pub const CPU: &str = "cpu_s";
/// CPU time of the lab's own load.
pub const LOAD_CPU: &str = "load_cpu_s";
/// Length of the measured load.
pub const WALL: &str = "wall_s";
/// Resident size after the load and a pause.
pub const RESIDENT: &str = "resident_bytes";
/// What the server itself says it has allocated.
pub const USED: &str = "used_bytes";
/// What its allocator says it has handed out, the pages that these blocks lie in, and those that it holds in all.
pub const ALLOCATED: &str = "allocator_allocated_bytes";
pub const ACTIVE: &str = "allocator_active_bytes";
pub const HELD: &str = "allocator_resident_bytes";
/// The largest resident size seen.
pub const PEAK: &str = "peak_bytes";
/// Processes of the subject when its memory is read.
pub const PROCESSES: &str = "processes";
/// Cores that neither the subject nor the load kept busy.
pub const FOREIGN: &str = "foreign_cores";

/// All of them, in the order of reports.
pub const FIGURES: [Figure; 27] = [
    figure(RATE, "operations per second", Unit::Number, Better::More),
    figure(PER_CPU_SECOND, "operations per CPU second", Unit::Number, Better::More),
    figure(OPERATIONS, "operations", Unit::Number, Better::Neither),
    figure(CPU, "CPU time", Unit::Seconds, Better::Less),
    figure("cpu_user_s", "CPU time in user mode", Unit::Seconds, Better::Neither),
    figure("cpu_system_s", "CPU time in the kernel", Unit::Seconds, Better::Neither),
    figure(LOAD_CPU, "CPU time of the load", Unit::Seconds, Better::Neither),
    figure(WALL, "time", Unit::Seconds, Better::Neither),
    figure(RESIDENT, "resident memory", Unit::Bytes, Better::Less),
    figure("proportional_bytes", "proportional memory (PSS)", Unit::Bytes, Better::Less),
    figure(PEAK, "peak of the resident memory", Unit::Bytes, Better::Less),
    figure(USED, "memory in use by its own account", Unit::Bytes, Better::Neither),
    figure("fragmentation", "part of the resident memory not in use", Unit::Number, Better::Less),
    figure(ALLOCATED, "blocks of the allocator in use", Unit::Bytes, Better::Neither),
    figure(ACTIVE, "pages with such blocks", Unit::Bytes, Better::Neither),
    figure(HELD, "pages that the allocator holds", Unit::Bytes, Better::Neither),
    figure("huge_page_bytes", "memory in huge pages", Unit::Bytes, Better::Neither),
    figure(PROCESSES, "processes", Unit::Number, Better::Neither),
    figure("latency_p50_us", "median latency", Unit::Microseconds, Better::Less),
    figure("latency_p99_us", "99th percentile of the latency", Unit::Microseconds, Better::Less),
    figure("latency_p999_us", "99.9th percentile of the latency", Unit::Microseconds, Better::Less),
    figure("voluntary_switches", "voluntary context switches", Unit::Number, Better::Neither),
    figure("involuntary_switches", "involuntary context switches", Unit::Number, Better::Neither),
    figure("minor_faults", "minor page faults", Unit::Number, Better::Neither),
    figure("major_faults", "major page faults", Unit::Number, Better::Neither),
    figure("disk_bytes", "bytes on disk", Unit::Bytes, Better::Less),
    figure(FOREIGN, "cores that other programs used", Unit::Number, Better::Neither),
];

/// The figure of this name; `None` for one that the experiment's own pattern finds.
pub fn known(name: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.name == name)
}

/// These names, each once, in the order of reports; those that the experiment's own patterns find come last.
pub fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let there: BTreeSet<&str> = names.collect();
    let listed = FIGURES.iter().map(|figure| figure.name).filter(|name| there.contains(name));
    let own = there.iter().copied().filter(|name| known(name).is_none());
    listed.chain(own).collect()
}

/// A figure's name in reports.
pub fn title(name: &str) -> &str {
    known(name).map_or(name, |figure| figure.title)
}

/// A ratio in words, as in "12.0 % less".
pub fn change(name: &str, ratio: f64) -> String {
    let is_counted = known(name).is_none_or(|figure| figure.unit == Unit::Number);
    let word = match ratio > 1.0 {
        true => "more",
        false if is_counted => "fewer",
        false => "less",
    };
    format!("{:.1} % {word}", (ratio - 1.0).abs() * 100.0)
}

/// Formats a figure with its unit.
pub fn shown(name: &str, value: f64) -> String {
    match known(name).map_or(Unit::Number, |figure| figure.unit) {
        Unit::Bytes => bytes(value.max(0.0) as u64),
        Unit::Seconds => format!("{} s", short(value)),
        Unit::Microseconds if value >= 10_000.0 => format!("{} ms", short(value / 1000.0)),
        Unit::Microseconds => format!("{} us", short(value)),
        Unit::Number if value >= 100_000.0 => format!("{}k", short(value / 1000.0)),
        Unit::Number => short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_with_their_units() {
        assert_eq!(shown(RATE, 123_456.0), "123k");
        assert_eq!(shown(RESIDENT, 1024.0 * 1024.0 * 3.0), "3.00 MiB");
        assert_eq!(
            (shown("latency_p99_us", 12_345.0), shown(CPU, 2.5)),
            ("12.3 ms".to_owned(), "2.50 s".to_owned())
        );
        assert_eq!(
            (change(RATE, 0.9), change(CPU, 0.9)),
            ("10.0 % fewer".to_owned(), "10.0 % less".to_owned())
        );
        assert_eq!((shown("tps", 17.0), title("tps"), title(CPU)), ("17.0".to_owned(), "tps", "CPU time"));
    }
}
