//! Reads the clocks: once per wake-up, and once more for deadlines.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use kv::{NodeContext, Now};

/// The origin of monotonic time.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The process's clocks.
#[derive(Debug, Clone, Copy)]
pub struct Clock(());

impl Clock {
    /// Starts the clocks; monotonic time counts from the first call.
    pub fn start() -> Self {
        LazyLock::force(&START);
        Self(())
    }

    /// The time now.
    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            unix_s: u32::try_from(wall.as_secs()).unwrap_or(u32::MAX),
            unix_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
            mono_us: mono_us(),
        }
    }
}

/// Sets the clocks that a thread's context reads during a wake-up.
pub(crate) fn give(cx: &mut NodeContext) {
    cx.clock_ns = Some(unix_ns);
    cx.clock_us = Some(mono_us);
    cx.process_times_us = Some(process_times_us);
}

/// The monotonic clock alone, for deadlines.
pub(crate) fn mono_us() -> u64 {
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Processor time of the process, user and system, in microseconds.
fn process_times_us() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Skip the name, which may itself contain blanks and parentheses. The times are the 14th and 15th field, in
    // hundredths of a second.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut next_us = || fields.next()?.parse::<u64>().ok()?.checked_mul(10_000);
    Some((next_us()?, next_us()?))
}

/// The wall clock alone, for server durations.
fn unix_ns() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)
}
