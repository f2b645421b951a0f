//! What the threads of a node share beneath its buckets: bells, letters, and the record of who is peeking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use memory::Quiescence;

use crate::doorbell::Doorbell;
use crate::mailbox::{Cookie, Mailbox, Outcome};
use crate::sync_writes::TimeoutMode;
use crate::turns::Turns;

/// One per node. Bucket operations reach it through their [`crate::ThreadContext`].
pub(crate) struct Hub {
    pub(crate) quiescence: Arc<Quiescence>,
    /// The pager's.
    pub(crate) pager: Arc<Doorbell>,
    mailboxes: Box<[Mailbox]>,
    timeout_mode: AtomicU8,
    pub(crate) timeout_mode_bell: Doorbell,
    /// Rings when a connection to a node that is copied from is missing.
    pub(crate) links: Arc<Doorbell>,
    /// Since when each thread has been at its turn.
    pub(crate) turns: Turns,
    /// The pager has been told that some bucket wants its free pages given back.
    purge_asked: AtomicBool,
}

impl Hub {
    /// Creates a hub for this many executing threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            quiescence: Arc::new(Quiescence::new(threads)),
            pager: Arc::default(),
            mailboxes: (0..threads).map(|_| Mailbox::default()).collect(),
            timeout_mode: AtomicU8::new(TimeoutMode::EventDriven as u8),
            timeout_mode_bell: Doorbell::default(),
            links: Arc::default(),
            turns: Turns::new(threads),
            purge_asked: AtomicBool::new(false),
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.mailboxes.len()
    }

    pub(crate) fn mailbox(&self, thread: usize) -> Option<&Mailbox> {
        self.mailboxes.get(thread)
    }

    pub(crate) fn post(&self, cookie: Cookie, outcome: Outcome) {
        if let Some(mailbox) = self.mailbox(usize::from(cookie.thread)) {
            mailbox.put((cookie, outcome));
        }
    }

    /// Returns when durable writes are checked for overdue deadlines.
    pub(crate) fn timeout_mode(&self) -> TimeoutMode {
        if self.timeout_mode.load(Relaxed) == TimeoutMode::Polling as u8 {
            TimeoutMode::Polling
        } else {
            TimeoutMode::EventDriven
        }
    }

    pub(crate) fn set_timeout_mode(&self, mode: TimeoutMode) {
        if self.timeout_mode.swap(mode as u8, Relaxed) != mode as u8 {
            self.timeout_mode_bell.ring();
        }
    }

    /// Tells the pager, once, that some bucket wants its free pages given back.
    pub(crate) fn ask_for_purge(&self) {
        if !self.purge_asked.load(Relaxed) && !self.purge_asked.swap(true, Relaxed) {
            self.pager.ring();
        }
    }

    pub(crate) fn end_purge(&self) {
        self.purge_asked.store(false, Relaxed);
    }
}
