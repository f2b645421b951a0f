//! Whose request begins next while the console's thread is busy.
//!
//! ```text
//!   the thread has been idle lately        a request begins at once
//!   busy: more than BURST since then       health checks ---> a line of parties --->  HEALTH_TURNS per round
//!                                          all others    ---> a line of parties --->  TURNS per round
//! ```
//! In a round everything else that is ready runs too: connections are accepted, heads read, answers sent. So each
//! request of a connection that sends many waits its turn, parties take turns, and a health check waits for few of the
//! others. A request whose client is gone does not begin.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::line::Line;
use crate::work::Party;

/// Connections and requests since the thread was idle, from which on it is busy.
const BURST: usize = 32;
/// Health checks that begin in a round.
const HEALTH_TURNS: usize = 32;
/// Other requests that begin in a round.
const TURNS: usize = 8;

/// The requests that have not begun.
#[derive(Default)]
pub struct Turns {
    since_idle: AtomicUsize,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    health: Line<()>,
    others: Line<()>,
    /// Rounds are under way.
    has_rounds: bool,
}

impl Turns {
    /// Notes that the thread has nothing to do.
    pub fn note_idle(&self) {
        self.since_idle.store(0, Relaxed);
    }

    /// Notes a new connection; returns true if the thread is busy.
    pub fn note_connection(&self) -> bool {
        self.since_idle.fetch_add(1, Relaxed) >= BURST
    }

    /// Waits until a request of `party` may begin.
    pub async fn begin(self: &Arc<Self>, party: Party, is_health: bool) {
        if self.since_idle.fetch_add(1, Relaxed) < BURST {
            return;
        }
        let (turn, starts) = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let line = if is_health { &mut waiting.health } else { &mut waiting.others };
            (line.wait(&party), !std::mem::replace(&mut waiting.has_rounds, true))
        };
        if starts {
            tokio::spawn(Arc::clone(self).rounds());
        }
        // The sender is sent, not dropped.
        let _ = turn.await;
    }

    async fn rounds(self: Arc<Self>) {
        loop {
            tokio::task::yield_now().await;
            if !self.round() {
                return;
            }
        }
    }

    /// Lets the next requests begin; returns false if there are none.
    fn round(&self) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { health, others, has_rounds } = &mut *waiting;
        let mut any = false;
        for (line, turns) in [(health, HEALTH_TURNS), (others, TURNS)] {
            for _ in 0..turns {
                let Some((_, request)) = line.next(|_| true) else { break };
                any = true;
                // It fails if the client has gone just now.
                let _ = request.send(());
            }
        }
        *has_rounds = any;
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::net::IpAddr;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    type Begins = Pin<Box<dyn Future<Output = ()>>>;

    fn asked(turns: &Arc<Turns>, party: &Party, is_health: bool) -> Begins {
        let (turns, party) = (Arc::clone(turns), party.clone());
        let begins = async move { turns.begin(party, is_health).await };
        // As many are polled here as no task would.
        let mut begins: Begins = Box::pin(tokio::task::unconstrained(begins));
        assert!(!has_begun(&mut begins));
        begins
    }

    fn has_begun(begins: &mut Begins) -> bool {
        begins.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    fn begun(requests: &mut Vec<Begins>) -> usize {
        let before = requests.len();
        requests.retain_mut(|request| !has_begun(request));
        before - requests.len()
    }

    #[tokio::test]
    async fn parties_take_turns_and_health_checks_wait_for_few() {
        let turns = Arc::<Turns>::default();
        let [eve, ann] = [1, 2].map(|last| Party::Address(IpAddr::from([192, 0, 2, last])));
        for _ in 0..BURST {
            turns.begin(eve.clone(), false).await;
        }
        assert!(turns.note_connection());
        let mut of_eve: Vec<_> = (0..200).map(|_| asked(&turns, &eve, false)).collect();
        let mut of_ann = asked(&turns, &ann, false);
        let mut checks: Vec<_> = (0..200).map(|_| asked(&turns, &eve, true)).collect();
        let mut check_of_ann = asked(&turns, &ann, true);
        assert!(turns.round());
        assert!(has_begun(&mut of_ann) && has_begun(&mut check_of_ann));
        assert_eq!((begun(&mut of_eve), begun(&mut checks)), (TURNS - 1, HEALTH_TURNS - 1));
        // Those whose clients are gone take no turn.
        of_eve.drain(..100);
        assert!(turns.round());
        assert_eq!((begun(&mut of_eve), begun(&mut checks)), (TURNS, HEALTH_TURNS));
        while turns.round() {}
        assert_eq!(
            (begun(&mut of_eve), begun(&mut checks)),
            (200 - 100 - 2 * TURNS + 1, 200 - 2 * HEALTH_TURNS + 1)
        );
        turns.note_idle();
        turns.begin(eve, false).await;
    }
}
