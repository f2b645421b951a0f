//! When to retry a connection: the stock server's rule, without its clock.
//!
//! ```text
//!   Backoff(until) ──> [Resolving ──>] Connecting(since) ──> Active(since) ──┐
//!        ^───────────────── failed ┴─────────────┴──── lost ─────────────────┘
//! ```
//! The first retry comes after a second. Each further wait is twice as long as the one before, up to a bound. After a
//! connection that lasted longer than the last wait, waits start from the beginning.

/// First wait.
const BACKOFF_MIN_MS: u64 = 1000;
/// Longest wait, unless configured otherwise.
pub(super) const BACKOFF_MAX_MS: u64 = 8000;

/// The state of an outgoing remote's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Waits until this time.
    Backoff(u64),
    /// Waits for its host name to be resolved; the resolver gives up eventually.
    Resolving,
    /// Has been connecting since this time.
    Connecting(u64),
    /// Has been connected since this time.
    Active(u64),
}

/// What to log about the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announcement {
    Nothing,
    /// The wait, in milliseconds.
    Waiting(u64),
    /// No further lines follow.
    Suppressing,
}

/// The state of an outgoing remote.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reconnect {
    pub state: State,
    backoff_ms: u64,
    max_ms: u64,
    /// When it last connected, and when it last lost a connection.
    pub connected_ms: Option<u64>,
    pub disconnected_ms: Option<u64>,
}

impl Reconnect {
    pub fn new(now_ms: u64, max_ms: u64) -> Self {
        Self {
            state: State::Backoff(now_ms),
            backoff_ms: 0,
            max_ms: max_ms.max(BACKOFF_MIN_MS),
            connected_ms: None,
            disconnected_ms: None,
        }
    }

    /// Limits waits to this from now on.
    pub fn set_max(&mut self, now_ms: u64, max_ms: u64) {
        self.max_ms = max_ms.max(BACKOFF_MIN_MS);
        self.backoff_ms = self.backoff_ms.min(self.max_ms);
        if let State::Backoff(until_ms) = &mut self.state {
            *until_ms = (*until_ms).min(now_ms + self.max_ms);
        }
    }

    /// The connection is established.
    pub fn connected(&mut self, now_ms: u64) {
        self.state = State::Active(now_ms);
        self.connected_ms = Some(now_ms);
    }

    /// Returns true if attempts are logged.
    pub fn is_loud(&self) -> bool {
        self.backoff_ms < self.max_ms
    }

    /// When to check again.
    pub fn deadline_ms(&self) -> Option<u64> {
        match self.state {
            State::Backoff(until_ms) => Some(until_ms),
            State::Connecting(since_ms) => Some(since_ms + self.backoff_ms.max(BACKOFF_MIN_MS)),
            State::Resolving | State::Active(_) => None,
        }
    }

    /// An attempt failed, or the connection was lost. `received_ms` is when data was last received.
    pub fn failed(&mut self, now_ms: u64, received_ms: u64) -> Announcement {
        if matches!(self.state, State::Active(_)) {
            self.disconnected_ms = Some(now_ms);
        }
        let lasted = matches!(self.state, State::Active(since_ms)
            if received_ms.saturating_sub(since_ms) >= self.backoff_ms);
        let announcement = if lasted || self.backoff_ms < BACKOFF_MIN_MS {
            self.backoff_ms = BACKOFF_MIN_MS;
            Announcement::Nothing
        } else if self.backoff_ms < self.max_ms / 2 {
            self.backoff_ms *= 2;
            Announcement::Waiting(self.backoff_ms)
        } else if self.is_loud() {
            self.backoff_ms = self.max_ms;
            Announcement::Suppressing
        } else {
            Announcement::Nothing
        };
        self.state = State::Backoff(now_ms + self.backoff_ms);
        announcement
    }
}

/// Milliseconds as seconds with three significant digits, as the stock server writes them.
pub(super) fn seconds(ms: u64) -> String {
    let seconds = ms as f64 / 1000.0;
    let digits = if seconds < 10.0 {
        2
    } else if seconds < 100.0 {
        1
    } else {
        0
    };
    let text = format!("{seconds:.digits$}");
    if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_bound() {
        let mut reconnect = Reconnect::new(0, BACKOFF_MAX_MS);
        let mut now_ms = 0;
        let mut said = Vec::new();
        for _ in 0..6 {
            reconnect.state = State::Connecting(now_ms);
            let announcement = reconnect.failed(now_ms, 0);
            let State::Backoff(until_ms) = reconnect.state else { panic!("waits") };
            said.push((until_ms - now_ms, announcement));
            now_ms = until_ms;
        }
        assert_eq!(
            said,
            [
                (1000, Announcement::Nothing),
                (2000, Announcement::Waiting(2000)),
                (4000, Announcement::Waiting(4000)),
                (8000, Announcement::Suppressing),
                (8000, Announcement::Nothing),
                (8000, Announcement::Nothing)
            ]
        );
        reconnect.state = State::Active(now_ms);
        reconnect.failed(now_ms + 60_000, now_ms + 50_000);
        assert_eq!(reconnect.state, State::Backoff(now_ms + 61_000));
    }

    #[test]
    fn seconds_have_three_digits_at_most() {
        assert_eq!(seconds(5000), "5");
        assert_eq!(seconds(1500), "1.5");
        assert_eq!(seconds(30_000), "30");
        assert_eq!(seconds(120_000), "120");
    }
}
