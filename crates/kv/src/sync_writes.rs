//! SyncWrites: what a vBucket knows of its pending durable writes. [`crate::bucket`] creates and ends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use wire::couchbase::frame_info::DurabilityLevel;

use crate::Mutated;
use crate::collected::Collected;
use crate::durability_monitor::DurabilityMonitor;
use crate::election::Lacks;
use crate::mailbox::{Cookie, Letter, Outcome};
use crate::news::News;
use crate::role::{Promise, Role};
use crate::topology::VbState;

/// Nothing is armed.
const NEVER: u64 = u64::MAX;

/// How durable a write is to be, and who waits for it.
#[derive(Debug, Clone, Copy)]
pub struct Durability {
    /// The level.
    pub level: DurabilityLevel,
    /// Time until the client is told "ambiguous"; `None`: 30 s.
    pub timeout_ms: Option<u16>,
    /// Where the outcome goes.
    pub cookie: Cookie,
}

/// The result of a durable write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is durable already.
    Done(Mutated),
    /// It is prepared; the outcome comes in a letter.
    Pending,
}

/// When durable writes are checked for overdue deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum TimeoutMode {
    /// When a deadline comes.
    #[default]
    EventDriven,
    /// Every 25 ms, all of them.
    Polling,
}

impl TimeoutMode {
    /// Returns the mode by its name in the configuration.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::EventDriven, Self::Polling].into_iter().find(|mode| mode.name() == name)
    }

    /// Returns its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EventDriven => "event-driven",
            Self::Polling => "polling",
        }
    }
}

/// What a session waits for that is to be on disk, or on other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitedFor {
    /// Everything up to this seqno, acknowledged by a majority of each chain.
    Acknowledged(u64),
    /// Everything up to this seqno.
    Seqno(u64),
    /// This version of the vBucket's state.
    State(u64),
}

/// A session that waits until something is on disk, or on other nodes.
pub(crate) struct DiskWait {
    pub(crate) until: WaitedFor,
    pub(crate) deadline_us: u64,
    pub(crate) cookie: Cookie,
}

/// What a copy knows of what it copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copied {
    /// It has, or may have, what another node has made.
    pub(crate) is_any: bool,
    /// The snapshot that it has been sent last, or a part of it.
    pub(crate) snapshot: (u64, u64),
    /// It was emptied. Until its first snapshot is complete, it may lack what it has acknowledged.
    pub(crate) is_emptied: bool,
    /// What else it may lack of that, until it has all that its source has.
    pub(crate) lacks: Lacks,
    /// The end of the snapshot is what its source had since the start. Not kept on disk.
    pub(crate) knows_end: bool,
}

/// What is kept on disk of a vBucket's role.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Setting {
    pub(crate) role: Role,
    pub(crate) copied: Copied,
}

/// A vBucket's role, pending prepares, and who waits for the disk. A vBucket that never had anything but the default
/// has none of it.
pub(crate) struct SyncWrites {
    pub(crate) role: Role,
    pub(crate) copied: Copied,
    /// The vBucket has a history that is not its source's any more, and waits for a new copy: nobody reads it.
    pub(crate) is_stale: bool,
    /// What was collected of the new copy by a connection that has ended.
    pub(crate) collected: Option<Box<Collected>>,
    /// The new copy is replacing the old one. Until all of it is here, nothing of it is written to disk, where the old
    /// one is still whole.
    pub(crate) is_refilling: bool,
    /// The connection that copies.
    pub(crate) link: Option<Arc<News>>,
    /// How the term was promised.
    pub(crate) promise: Promise,
    /// The term is promised once this version of the vBucket's state is on disk.
    pub(crate) term_version: u64,
    /// The terms of a copy's changes count once this version of its state is on disk: then it may acknowledge.
    pub(crate) adopted_version: u64,
    /// Who waits for each prepare; nobody for recovered or abandoned ones.
    pub(crate) monitor: DurabilityMonitor<Option<Cookie>>,
    /// In the order of their deadlines.
    pub(crate) disk_waits: Vec<DiskWait>,
    /// When some thread will check the deadlines.
    pub(crate) armed_us: u64,
}

impl SyncWrites {
    /// The default: active, and alone.
    pub(crate) fn new(persisted_seqno: u64) -> Self {
        let role = Role::default();
        let monitor = DurabilityMonitor::new(&role.topology, persisted_seqno);
        Self {
            role,
            copied: Copied::default(),
            is_stale: false,
            collected: None,
            is_refilling: false,
            link: None,
            promise: Promise::default(),
            term_version: 0,
            adopted_version: 0,
            monitor,
            disk_waits: Vec::new(),
            armed_us: NEVER,
        }
    }

    /// Returns true if it is the active, with another node in its chains.
    pub(crate) fn is_active_with_others(&self) -> bool {
        self.role.state == VbState::Active && self.role.topology.has_others()
    }

    /// Returns true if another node makes the changes.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self.role.state, VbState::Replica | VbState::Pending)
    }

    /// Returns the earliest deadline.
    pub(crate) fn next_deadline_us(&mut self) -> Option<u64> {
        let first_wait = self.disk_waits.first().map(|wait| wait.deadline_us);
        first_wait.into_iter().chain(self.monitor.next_deadline_us()).min()
    }

    /// Returns the earliest deadline if no thread checks before it; from now on one does.
    pub(crate) fn arm(&mut self) -> Option<u64> {
        let next_us = self.next_deadline_us().filter(|next_us| *next_us < self.armed_us)?;
        self.armed_us = next_us;
        Some(next_us)
    }

    pub(crate) fn expire(&mut self, now_us: u64, notices: &mut Notices) {
        if self.armed_us <= now_us {
            self.armed_us = NEVER;
        }
        self.monitor.expire(now_us, |_, deadline_us, waiter| {
            notices.lateness_us.push(now_us.saturating_sub(deadline_us));
            notices.letters.extend(waiter.take().map(|cookie| (cookie, Outcome::Ambiguous)));
        });
        self.end_disk_waits(|wait| wait.deadline_us <= now_us, Outcome::Unpersisted, notices);
    }

    /// Notifies those that wait for a seqno up to this one, or for a version of the state, which are on disk now.
    pub(crate) fn persisted(&mut self, seqno: u64, state_version: u64, notices: &mut Notices) {
        let is_on_disk = |wait: &DiskWait| match wait.until {
            WaitedFor::Seqno(wanted) => wanted <= seqno,
            WaitedFor::State(wanted) => wanted <= state_version,
            WaitedFor::Acknowledged(_) => false,
        };
        self.end_disk_waits(is_on_disk, Outcome::Persisted, notices);
    }

    /// Notifies those that wait for what a majority of each chain has acknowledged.
    pub(crate) fn acknowledged(&mut self, notices: &mut Notices) {
        let monitor = &self.monitor;
        let is_acknowledged = |wait: &mut DiskWait| match wait.until {
            WaitedFor::Acknowledged(seqno) => monitor.is_acknowledged(seqno),
            WaitedFor::Seqno(_) | WaitedFor::State(_) => false,
        };
        let ended = self.disk_waits.extract_if(.., is_acknowledged);
        notices.letters.extend(ended.map(|wait| (wait.cookie, Outcome::Persisted)));
    }

    /// Adds a session that waits.
    pub(crate) fn await_disk(&mut self, wait: DiskWait) {
        let at = self.disk_waits.partition_point(|one| one.deadline_us <= wait.deadline_us);
        self.disk_waits.insert(at, wait);
    }

    fn end_disk_waits(&mut self, ends: impl Fn(&DiskWait) -> bool, outcome: Outcome, notices: &mut Notices) {
        let ended = self.disk_waits.extract_if(.., |wait| ends(wait));
        notices.letters.extend(ended.map(|wait| (wait.cookie, outcome)));
    }

    /// Gives up the pending writes: nobody here can tell any more how they end.
    pub(crate) fn abandon(&mut self, notices: &mut Notices) {
        self.monitor.abandon(|waiter| {
            notices.letters.extend(waiter.take().map(|cookie| (cookie, Outcome::Ambiguous)));
        });
        self.end_disk_waits(|_| true, Outcome::Unpersisted, notices);
    }
}

/// Notifications to send when the lock is released.
#[derive(Default)]
pub(crate) struct Notices {
    pub(crate) letters: Vec<Letter>,
    pub(crate) lateness_us: Vec<u64>,
    pub(crate) committed: u64,
    pub(crate) aborted: u64,
    pub(crate) arm_us: Option<u64>,
}

impl SyncWrites {
    /// Returns what is kept on disk.
    pub(crate) fn setting(&self) -> Setting {
        Setting { role: self.role.clone(), copied: self.copied }
    }
}

/// How late "ambiguous" answers were, by the server's clock.
#[derive(Default)]
pub(crate) struct Lateness {
    /// One more than there are bounds: the last is for all that were later.
    counts: [AtomicU64; LATENESS_BOUNDS_US.len() + 1],
    max_us: AtomicU64,
}

const LATENESS_BOUNDS_US: [u64; 8] = [250, 500, 1_000, 2_000, 5_000, 10_000, 25_000, 100_000];

impl Lateness {
    pub(crate) fn note(&self, late_us: u64) {
        let at = LATENESS_BOUNDS_US.partition_point(|bound_us| *bound_us < late_us);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Relaxed);
        }
        self.max_us.fetch_max(late_us, Relaxed);
    }

    /// Returns how late the latest was.
    pub(crate) fn max_us(&self) -> u64 {
        self.max_us.load(Relaxed)
    }

    pub(crate) fn emit(&self, emit: &mut dyn FnMut(&str, std::fmt::Arguments<'_>)) {
        for (count, bound_us) in self.counts.iter().zip(LATENESS_BOUNDS_US) {
            emit(&format!("timeout_late_us_le_{bound_us}"), format_args!("{}", count.load(Relaxed)));
        }
        if let Some(later) = self.counts.last() {
            emit("timeout_late_us_more", format_args!("{}", later.load(Relaxed)));
        }
        emit("timeout_late_us_max", format_args!("{}", self.max_us()));
    }
}
