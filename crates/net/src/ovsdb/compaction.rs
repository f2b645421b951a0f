//! Compaction: a slice of work at the end of each turn, until it is done.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ovsdb::error::Error;
use ovsdb::file::{CompactionFigures, Step};

use super::control::Ticket;
use super::event_loop::EventLoop;
use super::logger::Level;

/// How long compactions take, and how long they block the loop.
#[derive(Debug, Clone, Copy, Default)]
pub struct CompactionTimes {
    /// Compactions that succeeded.
    pub finished: u64,
    /// The longest time that a slice blocked the loop.
    pub longest_hold: Duration,
    /// Duration of the last compaction.
    pub last: Duration,
}

/// How the last compaction of a database ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactionEnd {
    /// Compactions of this database that have ended so far.
    pub number: u64,
    /// When it ended, milliseconds since 1970.
    pub wall_ms: u64,
    /// How long it took.
    pub took: Duration,
    /// Its figures, or why it failed.
    pub result: Result<CompactionFigures, String>,
}

/// A compaction in progress.
#[derive(Debug)]
struct Running {
    begun: Instant,
    /// True if there is more to do at once; otherwise it waits for a thread.
    more: bool,
    /// Commands to be answered when it ends.
    tickets: Vec<Ticket>,
}

/// The compactions in progress, by database.
#[derive(Debug, Default)]
pub(super) struct Compactions {
    running: BTreeMap<String, Running>,
    ends: BTreeMap<String, CompactionEnd>,
    times: CompactionTimes,
}

impl Compactions {
    /// Forgets a database that is removed.
    pub fn forget(&mut self, name: &str) {
        self.ends.remove(name);
    }

    pub fn has_more(&self) -> bool {
        self.running.values().any(|running| running.more)
    }
}

impl EventLoop {
    /// The times of compactions so far.
    pub fn compaction_times(&self) -> CompactionTimes {
        self.compactions.times
    }

    /// Returns true while a database is being compacted.
    pub fn is_compacting(&self, name: &str) -> bool {
        self.compactions.running.contains_key(name)
    }

    /// How the last compaction of a database ended, if there was one since the start.
    pub fn last_compaction(&self, name: &str) -> Option<&CompactionEnd> {
        self.compactions.ends.get(name)
    }

    /// Starts compacting a database, or joins a compaction in progress. `ticket` is answered when it is done.
    pub fn start_compaction(&mut self, name: &str, ticket: Option<Ticket>) -> Result<(), Error> {
        let now = self.now;
        if !self.compactions.running.contains_key(name) {
            self.server.flush();
            let begun = Instant::now();
            if let Some((database, Some(log))) = self.server.database_and_log(name) {
                log.start_compaction(database, now.wall_ms, now.monotonic_ms)?;
            }
            self.held(begun);
            let running = Running { begun, more: true, tickets: Vec::new() };
            self.compactions.running.insert(name.to_owned(), running);
        }
        if let (Some(running), Some(ticket)) = (self.compactions.running.get_mut(name), ticket) {
            running.tickets.push(ticket);
        }
        Ok(())
    }

    fn held(&mut self, begun: Instant) {
        let times = &mut self.compactions.times;
        times.longest_hold = times.longest_hold.max(begun.elapsed());
    }

    /// Runs the next slice of each compaction, and starts those that are due.
    pub(super) fn compact(&mut self) {
        self.begin_due();
        if self.compactions.running.is_empty() {
            return;
        }
        let names: Vec<String> = self.compactions.running.keys().cloned().collect();
        for name in names {
            let begun = Instant::now();
            let step = match self.server.database_and_log(&name) {
                Some((database, Some(log))) => log.step(database),
                _ => Ok(Step::Idle),
            };
            self.held(begun);
            match step {
                Ok(step @ (Step::Again | Step::Waiting)) => {
                    if let Some(running) = self.compactions.running.get_mut(&name) {
                        running.more = step == Step::Again;
                    }
                }
                Ok(Step::Idle) => self.ended(&name, Ok(None)),
                Ok(Step::Finished(figures)) => self.ended(&name, Ok(Some(figures))),
                Err(error) => self.ended(&name, Err(error)),
            }
        }
    }

    /// `None`: there was nothing to compact after all.
    fn ended(&mut self, name: &str, result: Result<Option<CompactionFigures>, Error>) {
        let Some(running) = self.compactions.running.remove(name) else { return };
        let took = running.begun.elapsed();
        match &result {
            Ok(_) => {
                self.compactions.times.finished += 1;
                self.compactions.times.last = took;
            }
            Err(error) => {
                self.log("ovsdb_file", Level::Warning, &format!("{name}: compaction failed: {error}"))
            }
        }
        let result = result.map_err(|error| error.to_string()).transpose();
        for ticket in running.tickets {
            let error = result.as_ref().and_then(|result| result.as_ref().err().cloned());
            self.answer_part(ticket, error);
        }
        let Some(result) = result.filter(|_| self.server.database(name).is_some()) else { return };
        let number = self.last_compaction(name).map_or(0, |last| last.number) + 1;
        let end = CompactionEnd { number, wall_ms: self.now.wall_ms, took, result };
        self.compactions.ends.insert(name.to_owned(), end);
    }

    fn begin_due(&mut self) {
        let now_ms = self.now.monotonic_ms;
        for at in 0..self.remotes.hosted.len() {
            let Some(name) = self.remotes.hosted.get(at) else { return };
            let due = match self.server.database_and_log(name) {
                Some((database, Some(log))) => {
                    database.damage().is_none() && !log.has_pending() && log.should_compact(now_ms)
                }
                _ => false,
            };
            if due {
                let name = name.clone();
                if let Err(error) = self.start_compaction(&name, None) {
                    let text = format!("{name}: compaction failed: {error}");
                    self.log("ovsdb_file", Level::Warning, &text);
                }
            }
        }
    }
}
