//! Log lines about the memory usage of the process.
//!
//! COMPAT: the first line comes 10 s after the start, the next when the peak resident size has grown by half, which is
//! checked every 10 s. Here the first turn of the loop after that time checks: an idle process does not wake up.

/// Interval between two checks.
const LOOK_MS: u64 = 10_000;

/// What was last reported.
pub(super) struct MemoryReport {
    look_at_ms: u64,
    reported_at_ms: u64,
    reported_kb: Option<u64>,
}

impl Default for MemoryReport {
    fn default() -> Self {
        Self { look_at_ms: LOOK_MS, reported_at_ms: 0, reported_kb: None }
    }
}

impl MemoryReport {
    /// Called at the end of a turn of the loop, this long after the start. Returns what to log before the counts of
    /// `memory/show`.
    pub fn look(&mut self, now_ms: u64, peak_kb: impl FnOnce() -> Option<u64>) -> Option<String> {
        if now_ms < self.look_at_ms {
            return None;
        }
        self.look_at_ms = now_ms.saturating_add(LOOK_MS);
        let peak_kb = peak_kb()?;
        let text = match self.reported_kb {
            None => format!("{peak_kb} kB peak resident set size after {:.1} seconds", seconds(now_ms)),
            Some(before_kb) if peak_kb >= before_kb.saturating_add(before_kb / 2) => {
                let percent = (peak_kb as f64 / before_kb.max(1) as f64 - 1.0) * 100.0;
                let passed_s = seconds(now_ms.saturating_sub(self.reported_at_ms));
                format!(
                    "peak resident set size grew {percent:.0}% in last {passed_s:.1} seconds, from {before_kb} kB to \
                    {peak_kb} kB"
                )
            }
            Some(_) => return None,
        };
        (self.reported_kb, self.reported_at_ms) = (Some(peak_kb), now_ms);
        Some(text)
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// The peak resident size of this process, in kB; `None` if the kernel does not report it.
pub(super) fn peak_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{MemoryReport, peak_kb};

    #[test]
    fn growth_by_half_is_told() {
        let mut report = MemoryReport::default();
        assert_eq!(report.look(9_999, || panic!("too early")), None);
        let first = report.look(10_260, || Some(1001));
        assert_eq!(first.as_deref(), Some("1001 kB peak resident set size after 10.3 seconds"));
        assert_eq!(report.look(20_259, || panic!("too early")), None);
        assert_eq!(report.look(20_260, || Some(1500)), None);
        assert_eq!(report.look(30_000, || panic!("too early")), None);
        let second = report.look(60_320, || Some(2002));
        assert_eq!(
            second.as_deref(),
            Some("peak resident set size grew 100% in last 50.1 seconds, from 1001 kB to 2002 kB")
        );
        assert_eq!(report.look(70_320, || Some(3002)), None);
        assert!(report.look(80_320, || Some(3003)).is_some());
    }

    #[test]
    fn the_kernel_tells() {
        assert!(peak_kb().unwrap_or(0) > 100);
    }
}
