//! The machine's memory and cores, read once at start from the kernel's files.

use crate::control_group;
use std::fs;
use std::io::{self, Read as _};
use std::time::{SystemTime, UNIX_EPOCH};

/// Memory available to the process, in bytes: the machine's, or its control group's limit if that is smaller.
pub fn memory_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
    [machine, control_group::memory_limit()].into_iter().flatten().min()
}

/// Number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Cryptographically secure random bytes.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0; N];
    let read = fs::File::open(SOURCE).and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| io::Error::new(error.kind(), format!("{SOURCE}: {error}")))?;
    Ok(bytes)
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The wall clock, milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::total_of;

    #[test]
    fn reads_the_total() {
        assert_eq!(total_of("MemTotal:       24576 kB\nMemFree: 1 kB\n"), Some(24576 << 10));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
    }
}
