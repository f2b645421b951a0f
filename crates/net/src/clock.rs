//! Reading the clocks: once per wake-up.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use kv::Now;

/// The process's clocks.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Monotonic time counts from here.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            unix_s: u32::try_from(wall.as_secs()).unwrap_or(u32::MAX),
            unix_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
            mono_ms: u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The wall clock alone, for server durations.
pub(crate) fn unix_ns() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)
}
