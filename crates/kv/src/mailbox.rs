//! Answers that had to wait, on their way back to the thread whose session asked.
//!
//! ```text
//!   session ──cookie──> durability monitor, background fetch
//!                            │ outcome, from whichever thread it comes
//!   worker  <──bell, letters─┘ Node::post
//! ```
//! A thread is woken once, however many letters come before it looks. What a thread posts to itself takes no lock and
//! no bell ([`crate::ThreadContext::post`]).

use std::sync::OnceLock;

use crate::lock_order::{Ranked, rank};
use crate::{KvError, Mutated};

/// Identifies who waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie {
    /// The thread of its session.
    pub thread: u16,
    /// The connection's number within the thread, which may be another one's by now.
    pub connection: u32,
    /// A number that the thread never reuses.
    pub ticket: u64,
}

/// The outcome of what a session waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A durable write is done.
    Durable(Mutated),
    /// It is unknown whether a durable write will be done.
    Ambiguous,
    /// Everything up to the seqno that was waited for is on disk, or acknowledged by a majority.
    Persisted,
    /// It was not in time, or nobody here can tell any more.
    Unpersisted,
    /// A value that was on disk only is back in memory, or cannot be had.
    Fetched(Result<(), KvError>),
    /// There is news for a watcher.
    Watched,
    /// There is news for a follower.
    Stirred,
}

/// A cookie with its outcome.
pub type Letter = (Cookie, Outcome);

/// The letters for one thread.
#[derive(Default)]
pub struct Mailbox {
    letters: Ranked<Vec<Letter>, { rank::MAILBOX }>,
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Mailbox {
    /// Sets how the thread is woken (once).
    pub fn connect(&self, bell: Box<dyn Fn() + Send + Sync>) {
        let _ = self.bell.set(bell);
    }

    /// Puts a letter in, and wakes the thread for the first.
    pub(crate) fn put(&self, letter: Letter) {
        let mut letters = self.letters.lock();
        letters.push(letter);
        let is_first = letters.len() == 1;
        drop(letters);
        if is_first && let Some(bell) = self.bell.get() {
            bell();
        }
    }

    /// Moves all letters to the end of `into`.
    pub(crate) fn take(&self, into: &mut Vec<Letter>) {
        let mut letters = self.letters.lock();
        if into.is_empty() {
            std::mem::swap(into, &mut letters);
        } else {
            into.append(&mut letters);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn many_letters_ring_once() {
        let (mailbox, rung) = (Mailbox::default(), Arc::new(AtomicU32::new(0)));
        let bell = Arc::clone(&rung);
        mailbox.connect(Box::new(move || {
            bell.fetch_add(1, Ordering::Relaxed);
        }));
        let cookie = |ticket| Cookie { thread: 0, connection: 0, ticket };
        let mut letters = Vec::new();
        for round in 1..3 {
            (0..5).for_each(|ticket| mailbox.put((cookie(ticket), Outcome::Ambiguous)));
            assert_eq!(rung.load(Ordering::Relaxed), round);
            letters.clear();
            mailbox.take(&mut letters);
            assert_eq!(letters.iter().map(|(cookie, _)| cookie.ticket).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        }
    }
}
