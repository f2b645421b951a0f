//! Locks: names that one session at a time owns, the others queue for. They belong to the server, not to a database.
//!
//! A session that stole a lock and loses it to another thief leaves the queue; one that obtained it by queueing is the
//! next to own it. Either must unlock before it may lock again, which the session remembers.

use super::SessionId;
use std::collections::{BTreeMap, VecDeque};

/// All locks of a server.
#[derive(Debug, Default)]
pub struct Locks {
    /// The sessions that want a lock; the first one owns it. No queue is empty.
    queues: BTreeMap<Box<str>, VecDeque<Claim>>,
    changes: u64,
}

/// The locks that a session has requested, by the state of the request.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Claims {
    /// It owns them.
    pub held: Vec<String>,
    /// It waits for them.
    pub waiting: Vec<String>,
    /// It stole them and they were stolen from it.
    pub lost: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Claim {
    session: SessionId,
    stolen: bool,
}

impl Locks {
    /// Queues for a lock that the session has no claim to. Returns true if it owns the lock at once.
    pub fn lock(&mut self, name: &str, session: SessionId) -> bool {
        self.changes += 1;
        let queue = self.queues.entry(name.into()).or_default();
        queue.push_back(Claim { session, stolen: false });
        queue.len() == 1
    }

    /// Steals a lock that the session has no claim to. Returns the former owner.
    pub fn steal(&mut self, name: &str, session: SessionId) -> Option<SessionId> {
        self.changes += 1;
        let queue = self.queues.entry(name.into()).or_default();
        let victim = queue.front().copied();
        if victim.is_some_and(|victim| victim.stolen) {
            queue.pop_front();
        }
        queue.push_front(Claim { session, stolen: true });
        victim.map(|victim| victim.session)
    }

    /// Gives up a claim. Returns the session to notify that it owns the lock. COMPAT: that is also an owner that knows
    /// already, when a session behind it leaves.
    pub fn unlock(&mut self, name: &str, session: SessionId) -> Option<SessionId> {
        self.changes += 1;
        let queue = self.queues.get_mut(name)?;
        let place = queue.iter().position(|claim| claim.session == session)?;
        queue.remove(place);
        let owner = queue.front().map(|claim| claim.session);
        if owner.is_none() {
            self.queues.remove(name);
        }
        owner
    }

    /// Returns true if the session owns the lock.
    #[inline]
    pub fn owns(&self, name: &str, session: SessionId) -> bool {
        self.queues.get(name).and_then(|queue| queue.front()).is_some_and(|claim| claim.session == session)
    }

    /// The state of a session's claims to these locks.
    pub fn claims<'a>(&self, names: impl Iterator<Item = &'a str>, session: SessionId) -> Claims {
        let mut claims = Claims::default();
        for name in names {
            let place = self
                .queues
                .get(name)
                .and_then(|queue| queue.iter().position(|claim| claim.session == session));
            let list = match place {
                Some(0) => &mut claims.held,
                Some(_) => &mut claims.waiting,
                None => &mut claims.lost,
            };
            list.push(name.to_owned());
        }
        claims
    }

    /// Increases whenever a claim may have changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Number of locks that have an owner.
    pub fn owned(&self) -> usize {
        self.queues.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_is_next_unless_it_is_a_thief() {
        let [a, b, c, d] = [0, 1, 2, 3].map(SessionId::of_slot);
        let mut locks = Locks::default();
        assert!(locks.lock("l", a));
        assert!(!locks.lock("l", b));
        assert_eq!(locks.steal("l", c), Some(a));
        assert!(locks.owns("l", c) && !locks.owns("l", a));
        assert_eq!(locks.steal("l", d), Some(c));
        let claims = [a, c, d].map(|session| locks.claims(["l"].into_iter(), session));
        let one = || vec!["l".to_owned()];
        assert_eq!(claims[0], Claims { waiting: one(), ..Claims::default() });
        assert_eq!(claims[1], Claims { lost: one(), ..Claims::default() });
        assert_eq!(claims[2], Claims { held: one(), ..Claims::default() });
        assert_eq!(locks.unlock("l", c), None);
        assert_eq!(locks.unlock("l", b), Some(d));
        assert_eq!(locks.unlock("l", d), Some(a));
        assert_eq!(locks.unlock("l", a), None);
        assert_eq!(locks.owned(), 0);
    }
}
