//! Event counters under the stock server's names: `coverage/show` and `coverage/read-counter`.
//!
//! Only events that mean the same here are counted. There is no sampling: each event is counted in the interval in
//! which it happened, and past intervals are summed on request.

use std::fmt::Write as _;

/// A counted event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// An attempt to open a listener.
    ListenerOpened,
    /// An attempt to open a connection.
    StreamOpened,
    /// A command arrived at the control socket.
    CommandReceived,
    /// A command was answered.
    CommandReplied,
}

/// The stock server's names, in the order in which it shows them.
const NAMES: [(&str, Event); 4] = [
    ("pstream_open", Event::ListenerOpened),
    ("stream_open", Event::StreamOpened),
    ("unixctl_received", Event::CommandReceived),
    ("unixctl_replied", Event::CommandReplied),
];

const SHORT_MS: u64 = 5_000;
const MINUTE_MS: u64 = 60_000;
/// Short intervals of a minute, and minutes of an hour, each plus the current one.
const SHORT_SLOTS: usize = (MINUTE_MS / SHORT_MS) as usize + 1;
const MINUTE_SLOTS: usize = 61;

/// Events by the interval in which they happened: each slot has the interval's number and its events.
#[derive(Debug, Clone)]
struct Intervals<const N: usize> {
    length_ms: u64,
    slots: [(u64, u64); N],
}

impl<const N: usize> Intervals<N> {
    fn new(length_ms: u64) -> Self {
        Self { length_ms, slots: [(0, 0); N] }
    }

    fn add(&mut self, now_ms: u64) {
        let number = now_ms / self.length_ms;
        let Some((known, count)) = self.slots.get_mut((number % N as u64) as usize) else { return };
        if *known != number {
            (*known, *count) = (number, 0);
        }
        *count += 1;
    }

    /// Events per second over the last `intervals` complete intervals.
    fn rate(&self, now_ms: u64, intervals: u64) -> f64 {
        let number = now_ms / self.length_ms;
        let passed = number.saturating_sub(intervals)..number;
        let counts = self.slots.iter().filter(|(known, _)| passed.contains(known)).map(|(_, count)| *count);
        counts.sum::<u64>() as f64 * 1000.0 / (self.length_ms * intervals) as f64
    }
}

#[derive(Debug, Clone)]
struct Counter {
    total: u64,
    short: Intervals<SHORT_SLOTS>,
    minutes: Intervals<MINUTE_SLOTS>,
}

/// The counters.
#[derive(Debug)]
pub(super) struct Coverage(Vec<Counter>);

impl Default for Coverage {
    fn default() -> Self {
        let counter =
            Counter { total: 0, short: Intervals::new(SHORT_MS), minutes: Intervals::new(MINUTE_MS) };
        Self(vec![counter; NAMES.len()])
    }
}

impl Coverage {
    pub fn count(&mut self, event: Event, now_ms: u64) {
        let place = NAMES.iter().position(|(_, known)| *known == event);
        if let Some(counter) = place.and_then(|place| self.0.get_mut(place)) {
            counter.total += 1;
            counter.short.add(now_ms);
            counter.minutes.add(now_ms);
        }
    }

    /// How often the event with this name has happened.
    pub fn total(&self, name: &str) -> Option<u64> {
        let place = NAMES.iter().position(|(known, _)| *known == name)?;
        self.0.get(place).map(|counter| counter.total)
    }

    /// All counters, as `coverage/show` shows them.
    pub fn show(&self, now_ms: u64) -> String {
        let mut text =
            "Event coverage, avg rate over last: 5 seconds, last minute, last hour,  hash=00000000:\n"
                .to_owned();
        let is_hit = |counter: &&Counter| counter.total > 0;
        for ((name, _), Counter { total, short, minutes }) in
            NAMES.iter().zip(&self.0).filter(|(_, counter)| is_hit(counter))
        {
            let (last, minute) = (short.rate(now_ms, 1), short.rate(now_ms, SHORT_SLOTS as u64 - 1));
            let hour = minutes.rate(now_ms, MINUTE_SLOTS as u64 - 1);
            // Writing to a string does not fail.
            let _ =
                writeln!(text, "{name:<24} {last:5.1}/sec {minute:9.3}/sec {hour:13.4}/sec   total: {total}");
        }
        let never = self.0.len() - self.0.iter().filter(is_hit).count();
        let _ = writeln!(text, "{never} events never hit");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{Coverage, Event};

    #[test]
    fn rates_are_those_of_the_intervals_that_have_passed() {
        let mut coverage = Coverage::default();
        assert!(coverage.show(0).ends_with(":\n4 events never hit\n"));
        for now_ms in [60_000, 60_001, 64_999, 65_000] {
            coverage.count(Event::CommandReceived, now_ms);
        }
        assert_eq!(coverage.total("unixctl_received"), Some(4));
        assert_eq!(coverage.total("unixctl_replied"), Some(0));
        assert_eq!(coverage.total("nix"), None);
        let line = |now_ms| coverage.show(now_ms).lines().nth(1).map(str::to_owned).unwrap_or_default();
        assert_eq!(
            line(65_100),
            "unixctl_received           0.6/sec     0.050/sec        0.0000/sec   total: 4"
        );
        assert_eq!(
            line(120_100),
            "unixctl_received           0.0/sec     0.067/sec        0.0011/sec   total: 4"
        );
        // An hour later the slots stand for other intervals.
        assert_eq!(
            line(3_800_000),
            "unixctl_received           0.0/sec     0.000/sec        0.0000/sec   total: 4"
        );
    }
}
