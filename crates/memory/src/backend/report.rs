//! What the allocator reports about itself and the process: its name, the settings in force, where memory is.

use super::chosen;
use super::controls::{Controls, numbered};
use super::settings::Setting;

/// A figure of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figure {
    /// Its name, with its unit last.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Its value.
    pub value: u64,
}

/// jemalloc's figures: control, name, meaning. All are of the whole process, tenants included.
const JEMALLOC: &[(&std::ffi::CStr, &str, &str)] = &[
    (c"stats.allocated", "allocated_bytes", "Bytes of all blocks handed out"),
    (c"stats.active", "active_bytes", "Pages that hold blocks"),
    (c"stats.metadata", "metadata_bytes", "The allocator's bookkeeping"),
    (c"stats.metadata_thp", "metadata_huge_pages", "Huge pages requested for the bookkeeping"),
    (c"stats.resident", "resident_bytes", "Pages the allocator holds: active, bookkeeping and free ones"),
    (c"stats.mapped", "mapped_bytes", "Address space of active extents and bookkeeping"),
    (c"stats.retained", "retained_bytes", "Address space kept without pages"),
    (c"stats.background_thread.num_threads", "background_threads", "Threads that return free pages"),
];

/// The kernel's figures, by their names in `smaps_rollup`, in KiB there.
const KERNEL: &[(&str, &str, &str)] = &[
    ("Rss:", "process_resident_bytes", "Physical memory of the process, code included"),
    ("AnonHugePages:", "process_huge_bytes", "Part of it in huge pages"),
];

/// The settings that the allocator in use has, with their values in force.
pub fn settings() -> Vec<(Setting, String)> {
    let has = |setting: &&Setting| setting.missing().is_none();
    Setting::ALL.iter().filter(has).filter_map(|setting| Some((*setting, setting.in_force()?))).collect()
}

/// The figures of the process. Walks all arenas, and makes the kernel walk all pages of the process: some ten
/// milliseconds for each GiB in small pages. For people and their tools, not for requests.
pub fn figures() -> Vec<Figure> {
    let mut figures = chosen::controls().map_or_else(chosen::figures, of_jemalloc);
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    figures.extend(KERNEL.iter().filter_map(|(key, name, help)| {
        Some(Figure { name, help, value: kibibytes(&rollup, key)?.checked_mul(1024)? })
    }));
    figures
}

fn of_jemalloc(controls: Controls) -> Vec<Figure> {
    controls.refresh();
    let read = |(control, name, help): &(&std::ffi::CStr, &'static str, &'static str)| {
        Some(Figure { name, help, value: controls.read::<usize>(control).ok()? as u64 })
    };
    JEMALLOC.iter().filter_map(read).collect()
}

/// mimalloc's, whether it is linked or preloaded.
#[cfg(not(feature = "alloc-jemalloc"))]
pub(super) fn of_mimalloc(committed_bytes: usize, peak_bytes: usize) -> Vec<Figure> {
    [
        ("committed_bytes", "Memory mimalloc holds from the system", committed_bytes),
        ("committed_peak_bytes", "Most memory mimalloc has held", peak_bytes),
    ]
    .into_iter()
    .map(|(name, help, value)| Figure { name, help, value: value as u64 })
    .collect()
}

/// Free pages of all arenas together as of the last `refresh`, in bytes. `None` where the allocator does not tell.
pub fn free_page_bytes() -> Option<u64> {
    // jemalloc's number of all arenas together.
    const ALL: u32 = 4096;
    let controls = chosen::controls()?;
    let page = controls.read::<usize>(c"arenas.page").ok()? as u64;
    let dirty = controls.read::<usize>(&numbered("stats.arenas", ALL, "pdirty")).ok()? as u64;
    Some(dirty * page)
}

/// The system's huge page setting: `always`, `madvise` or `never`; empty if there is none.
pub fn system_thp() -> String {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    chosen_word(&text).unwrap_or_default().to_owned()
}

/// The word in brackets.
fn chosen_word(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

fn kibibytes(rollup: &str, key: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_words() {
        let rollup = "55d0-7ffe ---p 0 00:00 0 [rollup]\nRss:        1234 kB\nAnonHugePages:      2048 kB\n";
        assert_eq!(
            (kibibytes(rollup, "Rss:"), kibibytes(rollup, "AnonHugePages:")),
            (Some(1234), Some(2048))
        );
        assert_eq!((kibibytes(rollup, "Pss:"), kibibytes("Rss: x kB", "Rss:")), (None, None));
        assert_eq!((chosen_word("always [madvise] never\n"), chosen_word("")), (Some("madvise"), None));
    }

    #[test]
    fn the_process_is_found_in_its_figures() {
        let block = std::hint::black_box(vec![7u8; 64 << 20]);
        let figures = figures();
        let value = |name: &str| figures.iter().find(|figure| figure.name == name).map(|figure| figure.value);
        assert!(value("process_resident_bytes").is_some_and(|bytes| bytes >= 64 << 20), "{figures:?}");
        // The tests of this crate run on the C library's allocator, whichever the tenants use.
        #[cfg(feature = "alloc-system")]
        assert!(value("allocated_bytes").is_none_or(|bytes| bytes >= 64 << 20), "{figures:?}");
        #[cfg(feature = "alloc-jemalloc")]
        assert!(value("mapped_bytes").is_some() && value("metadata_huge_pages") == Some(0), "{figures:?}");
        let mut names: Vec<_> = figures.iter().map(|figure| figure.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), figures.len());
        drop(block);
    }
}
