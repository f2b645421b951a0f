//! Requests that wait, in the order in which their parties' turns come.

use std::collections::VecDeque;
use tokio::sync::oneshot;

use crate::work::Party;

/// Parties, the next one first, each with its requests.
pub struct Line<T>(VecDeque<Waiting<T>>);

struct Waiting<T> {
    party: Party,
    requests: VecDeque<oneshot::Sender<T>>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Line<T> {
    /// Adds a request; returns what it waits for.
    pub fn wait(&mut self, party: &Party) -> oneshot::Receiver<T> {
        let (sender, turn) = oneshot::channel();
        match self.0.iter_mut().find(|waiting| waiting.party == *party) {
            Some(waiting) => waiting.requests.push_back(sender),
            None => self.0.push_back(Waiting { party: party.clone(), requests: VecDeque::from([sender]) }),
        }
        turn
    }

    /// The number of requests of a party.
    pub fn of(&self, party: &Party) -> usize {
        self.0.iter().filter(|waiting| waiting.party == *party).map(|one| one.requests.len()).sum()
    }

    /// Forgets requests whose clients are gone.
    pub fn forget_gone(&mut self) {
        for waiting in &mut self.0 {
            waiting.requests.retain(|request| !request.is_closed());
        }
        self.0.retain(|waiting| !waiting.requests.is_empty());
    }

    /// Takes the next request of a party that may have a turn. The party goes to the end of the line.
    pub fn next(&mut self, may_run: impl Fn(&Party) -> bool) -> Option<(Party, oneshot::Sender<T>)> {
        loop {
            let at = self.0.iter().position(|waiting| may_run(&waiting.party))?;
            let mut waiting = self.0.remove(at)?;
            let request = std::iter::from_fn(|| waiting.requests.pop_front()).find(|one| !one.is_closed());
            let party = waiting.party.clone();
            if !waiting.requests.is_empty() {
                self.0.push_back(waiting);
            }
            if let Some(request) = request {
                return Some((party, request));
            }
        }
    }
}
