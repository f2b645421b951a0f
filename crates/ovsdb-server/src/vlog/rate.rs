//! A limit on how many warnings and errors a module may log: a client that sends garbage must not fill the disk.

use super::modules::{MODULES, find};
use net::ovsdb::Level;

/// Lines in a burst.
const BURST: u64 = 60;
/// Lines per minute after a burst.
const PER_MINUTE: u64 = 60;
const SECONDS_PER_MINUTE: u64 = 60;

#[derive(Debug, Clone)]
struct Bucket {
    limited: bool,
    /// In sixtieths of a line.
    tokens: u64,
    filled_s: u64,
    dropped: u64,
    first_dropped_s: u64,
    last_dropped_s: u64,
}

/// The limits of all modules.
#[derive(Debug, Clone)]
pub struct Rates(Vec<Bucket>);

impl Default for Rates {
    fn default() -> Self {
        let full = Bucket {
            limited: true,
            tokens: BURST * SECONDS_PER_MINUTE,
            filled_s: 0,
            dropped: 0,
            first_dropped_s: 0,
            last_dropped_s: 0,
        };
        Self(vec![full; MODULES.len()])
    }
}

impl Rates {
    /// Returns whether a line may be logged now, and what to log before it about lines that were suppressed.
    pub fn take(&mut self, module: &str, level: Level, now_s: u64) -> (bool, Option<String>) {
        let bucket = find(module).and_then(|module| self.0.get_mut(module));
        let Some(bucket) = bucket else { return (true, None) };
        if !bucket.limited || !matches!(level, Level::Warning | Level::Error) {
            return (true, None);
        }
        let passed_s = now_s.saturating_sub(bucket.filled_s);
        bucket.filled_s = now_s;
        let tokens = bucket.tokens.saturating_add(passed_s.saturating_mul(PER_MINUTE));
        bucket.tokens = tokens.min(BURST * SECONDS_PER_MINUTE);
        if bucket.tokens < SECONDS_PER_MINUTE {
            if bucket.dropped == 0 {
                bucket.first_dropped_s = now_s;
            }
            bucket.dropped += 1;
            bucket.last_dropped_s = now_s;
            return (false, None);
        }
        bucket.tokens -= SECONDS_PER_MINUTE;
        let dropped = std::mem::take(&mut bucket.dropped);
        let note = (dropped > 0).then(|| {
            format!(
                "Dropped {dropped} log messages in last {} seconds (most recently, {} seconds ago) due to excessive \
                rate",
                now_s.saturating_sub(bucket.first_dropped_s),
                now_s.saturating_sub(bucket.last_dropped_s)
            )
        });
        (true, note)
    }

    /// Enables or disables the limit of a module.
    pub fn set(&mut self, module: usize, limited: bool) {
        if let Some(bucket) = self.0.get_mut(module) {
            bucket.limited = limited;
        }
    }

    /// Enables or disables the limits of all modules.
    pub fn set_all(&mut self, limited: bool) {
        for bucket in &mut self.0 {
            bucket.limited = limited;
        }
    }

    /// Returns true if a module is limited.
    pub fn is_limited(&self, module: usize) -> bool {
        self.0.get(module).is_none_or(|bucket| bucket.limited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_told_of() {
        let mut rates = Rates::default();
        let passed = (0..1000).filter(|_| rates.take(MODULES[3], Level::Warning, 100).0).count();
        assert_eq!(passed as u64, BURST);
        assert!(rates.take(MODULES[3], Level::Information, 100).0);
        assert!(rates.take(MODULES[4], Level::Warning, 100).0);
        let (passes, note) = rates.take(MODULES[3], Level::Warning, 102);
        assert!(passes);
        assert_eq!(
            note.unwrap(),
            "Dropped 940 log messages in last 2 seconds (most recently, 2 seconds ago) due to excessive rate"
        );
        rates.set(3, false);
        assert!((0..1000).all(|_| rates.take(MODULES[3], Level::Warning, 103).0));
    }
}
