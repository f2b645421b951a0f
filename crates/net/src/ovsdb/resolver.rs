//! Resolves host names on threads that live only while there are names to resolve: the system's resolver blocks, the
//! loop does not.
//!
//! ```text
//!   start ─> queue ─> up to THREADS_MAX threads ─> answers, and the loop is woken ─> take
//! ```
//! A name is resolved once at a time, however many ask for it. Nothing is cached: each request gets a new answer.

use std::collections::{BTreeSet, VecDeque};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Names resolved concurrently: an unresponsive name server blocks each for some seconds.
const THREADS_MAX: usize = 8;

/// A name, and its address if it has one; the caller sets the port.
pub(super) type Resolved = (String, Option<SocketAddr>);

#[derive(Default)]
struct State {
    waiting: VecDeque<String>,
    threads: usize,
    answers: Vec<Resolved>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    answered: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one push or pop.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of a thread.
    fn work(&self, waker: &mio::Waker) {
        loop {
            let next = {
                let mut state = self.state();
                let next = state.waiting.pop_front();
                if next.is_none() {
                    state.threads -= 1;
                }
                next
            };
            let Some(host) = next else { return };
            let address = lookup(&host);
            self.state().answers.push((host, address));
            self.answered.notify_all();
            let _ = waker.wake();
        }
    }
}

/// Resolves names for an event loop.
pub(super) struct Resolver {
    shared: Arc<Shared>,
    waker: Arc<mio::Waker>,
    under_way: BTreeSet<String>,
}

impl Resolver {
    /// A resolver that calls `waker` when there is an answer.
    pub fn new(waker: Arc<mio::Waker>) -> Self {
        Self { shared: Arc::default(), waker, under_way: BTreeSet::new() }
    }

    /// Starts resolving a name, unless that is in progress.
    pub fn start(&mut self, host: &str) {
        if !self.under_way.insert(host.to_owned()) {
            return;
        }
        let mut state = self.shared.state();
        state.waiting.push_back(host.to_owned());
        if state.threads == THREADS_MAX {
            return;
        }
        let (shared, waker) = (Arc::clone(&self.shared), Arc::clone(&self.waker));
        let thread = std::thread::Builder::new().name("dm:resolver".into());
        match thread.spawn(move || shared.work(&waker)) {
            Ok(_) => state.threads += 1,
            // The existing threads will get to it; without any, the name counts as unresolvable.
            Err(_) if state.threads > 0 => {}
            Err(_) => {
                let lost: Vec<String> = state.waiting.drain(..).collect();
                state.answers.extend(lost.into_iter().map(|host| (host, None)));
                let _ = self.waker.wake();
            }
        }
    }

    /// Returns true if answers are outstanding.
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// The answers since the last call.
    pub fn take(&mut self) -> Vec<Resolved> {
        if self.under_way.is_empty() {
            return Vec::new();
        }
        let answers = std::mem::take(&mut self.shared.state().answers);
        for (host, _) in &answers {
            self.under_way.remove(host);
        }
        answers
    }

    /// Waits until there is an answer, at most this long.
    pub fn wait(&self, at_most: Duration) {
        let state = self.shared.state();
        let waited =
            self.shared.answered.wait_timeout_while(state, at_most, |state| state.answers.is_empty());
        drop(waited);
    }
}

/// The address of a host: of several, an IPv4 one, which is what the stock server asks for first.
fn lookup(host: &str) -> Option<SocketAddr> {
    let addresses: Vec<SocketAddr> = (host, 0).to_socket_addrs().ok()?.collect();
    addresses.iter().find(|address| address.is_ipv4()).or(addresses.first()).copied()
}
