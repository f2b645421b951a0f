//! The time of a wake-up.

/// The time of one wake-up, read once from the clocks by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Wall clock, seconds since 1970.
    pub unix_s: u32,
    /// Wall clock, nanoseconds since 1970.
    pub unix_ns: u64,
    /// Monotonic clock, microseconds since the process started.
    pub mono_us: u64,
}

impl Now {
    /// Monotonic clock in milliseconds.
    #[inline]
    pub const fn mono_ms(&self) -> u64 {
        self.mono_us / 1000
    }
}
