//! Work that would hold up the console's thread: how much of each kind is done at once, and whose turn it is.
//!
//! ```text
//!   request --> the party's queue --> a turn in the lane --> a thread --> answer
//!               at most WAITING_MAX, else 429
//! ```
//! A party is a user, or the address of somebody without a login. Parties take turns: one with many requests delays
//! its own. A request whose client is gone is not executed, unless it has begun.

use crate::acts;
use crate::admission::Client;
use crate::line::Line;
use crate::login::Identity;
use crate::{Console, DatabaseAnswer, DatabaseQuestion, Refusal};
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Requests of a party that wait for their turns, in all lanes together.
const WAITING_MAX: usize = 64;

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Figures: some come from other threads.
    Figures,
    /// What the node and its buckets are: maps, lists, manifests.
    Maps,
    /// Walks over documents.
    Walks,
    /// Questions to the OVSDB databases, which their thread answers between its clients' requests.
    Databases,
    /// Single documents.
    Documents,
    /// Changes of buckets, users and the node.
    Changes,
    /// Changes that are answered once replicas, or the disk, have them.
    Awaited,
    /// What reads or writes all of a bucket or a database: copies, audits, compactions.
    Copies,
    /// Requests for another node.
    SentOn,
}

/// How many requests of a lane are executed at once.
struct Bounds {
    in_all: usize,
    of_a_party: usize,
}

impl Lane {
    const COUNT: usize = 9;

    const fn bounds(self) -> Bounds {
        let (in_all, of_a_party) = match self {
            Self::Figures | Self::Walks => (1, 1),
            Self::Maps | Self::Copies | Self::Databases => (2, 1),
            Self::Documents => (4, 2),
            Self::Changes => (4, 1),
            Self::SentOn => (8, 2),
            Self::Awaited => (16, 4),
        };
        Bounds { in_all, of_a_party }
    }
}

/// Whose work, or connection, it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Party {
    /// A user.
    User(Arc<str>),
    /// Somebody without a login.
    Address(IpAddr),
    /// The node: what it sends to streams.
    Node,
}

impl<S: Send + Sync> FromRequestParts<S> for Party {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        let user = parts.extensions.get::<Identity>().and_then(|identity| identity.user.clone());
        let address = parts.extensions.get::<ConnectInfo<Client>>().map(|client| client.0.address);
        user.map(Self::User).or(address.map(Self::Address)).ok_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// The lanes.
#[derive(Default)]
pub struct Lanes(Mutex<[Queue; Lane::COUNT]>);

#[derive(Default)]
struct Queue {
    /// The parties whose work is being done, once for each piece of it.
    running: Vec<Party>,
    waiting: Line<Turn>,
}

/// The right to work in a lane, until it is dropped.
pub struct Turn {
    lanes: Arc<Lanes>,
    lane: Lane,
    party: Party,
}

impl Lanes {
    /// Waits for a turn; refuses if too many requests of the party wait already.
    pub async fn turn(self: &Arc<Self>, lane: Lane, party: &Party) -> Result<Turn, Refusal> {
        let turn = {
            let mut queues = self.queues();
            let queue = &mut queues[lane as usize];
            if may_run(&queue.running, lane, party) {
                queue.running.push(party.clone());
                return Ok(self.made(lane, party.clone()));
            }
            queues.iter_mut().for_each(|queue| queue.waiting.forget_gone());
            let waiting: usize = queues.iter().map(|queue| queue.waiting.of(party)).sum();
            if waiting >= WAITING_MAX && *party != Party::Node {
                return Err(Refusal::TooMany {
                    reason: format!("{WAITING_MAX} of your requests wait already. Try again later."),
                });
            }
            queues[lane as usize].waiting.wait(party)
        };
        // Nobody drops the sender before the lanes.
        turn.await.map_err(|_| Refusal::NotNow { reason: "The node stops.".into() })
    }

    fn made(self: &Arc<Self>, lane: Lane, party: Party) -> Turn {
        Turn { lanes: Arc::clone(self), lane, party }
    }

    fn queues(&self) -> MutexGuard<'_, [Queue; Lane::COUNT]> {
        // Each change is a single step, so it is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// The next request whose turn it is. Its party goes to the end of the queue.
    fn next(&mut self, lane: Lane) -> Option<(Party, oneshot::Sender<Turn>)> {
        let Self { running, waiting } = self;
        let (party, request) = waiting.next(|party| may_run(running, lane, party))?;
        self.running.push(party.clone());
        Some((party, request))
    }
}

fn may_run(running: &[Party], lane: Lane, party: &Party) -> bool {
    let bounds = lane.bounds();
    let of_party = running.iter().filter(|other| *other == party).count();
    running.len() < bounds.in_all && of_party < bounds.of_a_party
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queues = self.lanes.queues();
        let queue = &mut queues[self.lane as usize];
        if let Some(at) = queue.running.iter().position(|party| *party == self.party) {
            queue.running.swap_remove(at);
        }
        // One ends, so at most one can begin.
        let next = queue.next(self.lane);
        drop(queues);
        if let Some((party, request)) = next {
            // If its client has gone just now, the turn is dropped, and the next one begins.
            drop(request.send(self.lanes.made(self.lane, party)));
        }
    }
}

impl Console {
    /// Executes `work` on a thread of its own, in its turn; to completion even if the client no longer waits for it.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        lane: Lane,
        party: &Party,
        thread: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = self.lanes.turn(lane, party).await?;
        acts::begin();
        let (done, result) = oneshot::channel();
        let work = move || {
            let result = work();
            drop(turn);
            // The send fails if the client is gone.
            let _ = done.send(result);
        };
        let spawned = std::thread::Builder::new().name(thread.into()).spawn(work);
        spawned.map_err(|error| Refusal::Failed { reason: error.to_string() })?;
        result.await.map_err(|_| Refusal::Failed { reason: "The work ended early.".into() })
    }

    /// Reads figures, some of which come from other threads.
    pub(crate) async fn measure<T: Send + 'static>(
        &self,
        party: &Party,
        measure: impl FnOnce(Self) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let console = self.clone();
        self.work(Lane::Figures, party, "dm:measure", move || measure(console)).await
    }

    /// Walks over documents. Figures do not wait for walks.
    pub(crate) async fn walk<T: Send + 'static>(
        &self,
        party: &Party,
        walk: impl FnOnce(Self) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let console = self.clone();
        self.work(Lane::Walks, party, "dm:walk", move || walk(console)).await
    }

    /// Describes the node or what it has: there may be many buckets, collections and vBuckets.
    pub(crate) async fn describe<T: Send + 'static>(
        &self,
        party: &Party,
        describe: impl FnOnce(Self) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let console = self.clone();
        self.work(Lane::Maps, party, "dm:describe", move || describe(console)).await
    }

    /// Asks the OVSDB databases.
    pub(crate) async fn question(
        &self,
        party: &Party,
        question: DatabaseQuestion,
    ) -> Result<DatabaseAnswer, Refusal> {
        let control = Arc::clone(&self.control);
        let ask = move || control.ask_databases(question);
        self.work(Lane::Databases, party, "dm:question", ask).await.flatten()
    }

    /// Changes buckets, users or the node, which waits for the disk.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        party: &Party,
        thread: &str,
        change: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.work(Lane::Changes, party, thread, change).await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    type Waits<'a> = Pin<Box<dyn Future<Output = Result<Turn, Refusal>> + 'a>>;

    fn user(name: &str) -> Party {
        Party::User(name.into())
    }

    fn poll(waits: &mut Waits<'_>) -> Option<Result<Turn, Refusal>> {
        match waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    fn asked<'a>(lanes: &'a Arc<Lanes>, lane: Lane, party: &'a Party) -> Waits<'a> {
        let mut waits: Waits<'a> = Box::pin(lanes.turn(lane, party));
        assert!(poll(&mut waits).is_none());
        waits
    }

    fn at_once(lanes: &Arc<Lanes>, lane: Lane, party: &Party) -> Result<Turn, Refusal> {
        let polled = pin!(lanes.turn(lane, party)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(result) = polled else { panic!("it waits") };
        result
    }

    #[test]
    fn parties_take_turns() {
        let (lanes, ann, bob) = (Arc::<Lanes>::default(), user("ann"), user("bob"));
        let first = at_once(&lanes, Lane::Figures, &ann).unwrap();
        let mut of_ann = [(); 3].map(|()| asked(&lanes, Lane::Figures, &ann));
        let mut of_bob = asked(&lanes, Lane::Figures, &bob);
        drop(first);
        // Who came first; then the other party, though three of the first one's came before.
        let second = poll(&mut of_ann[0]).unwrap().unwrap();
        assert!(poll(&mut of_bob).is_none());
        drop(second);
        assert!(poll(&mut of_ann[1]).is_none());
        let third = poll(&mut of_bob).unwrap().unwrap();
        drop(third);
        assert!(poll(&mut of_ann[1]).unwrap().is_ok());
    }

    #[test]
    fn a_party_takes_its_share_and_no_more() {
        let (lanes, ann, bob) = (Arc::<Lanes>::default(), user("ann"), user("bob"));
        let _ann = at_once(&lanes, Lane::Maps, &ann).unwrap();
        let mut more = asked(&lanes, Lane::Maps, &ann);
        let of_bob = at_once(&lanes, Lane::Maps, &bob).unwrap();
        drop(of_bob);
        assert!(poll(&mut more).is_none(), "there is room, but not for ann");
        let _elsewhere = at_once(&lanes, Lane::Figures, &ann).unwrap();
    }

    #[test]
    fn too_many_are_refused_in_all_lanes_together() {
        let (lanes, ann, bob) = (Arc::<Lanes>::default(), user("ann"), user("bob"));
        let held = [Lane::Figures, Lane::Walks].map(|lane| at_once(&lanes, lane, &ann).unwrap());
        let mut waiting: Vec<_> = (0..WAITING_MAX)
            .map(|number| asked(&lanes, [Lane::Figures, Lane::Walks][number % 2], &ann))
            .collect();
        assert!(matches!(at_once(&lanes, Lane::Walks, &ann), Err(Refusal::TooMany { .. })));
        let _bob = asked(&lanes, Lane::Walks, &bob);
        // A client that is gone makes room, and is passed over.
        waiting.pop();
        let _last = asked(&lanes, Lane::Walks, &ann);
        drop(waiting);
        drop(held);
        assert!(at_once(&lanes, Lane::Figures, &ann).is_ok());
    }
}
