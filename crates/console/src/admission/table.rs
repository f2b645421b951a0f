//! The table of open connections: what they hold together, and which of them gives way to another.
//!
//! Each change updates the sums. Connections are visited only to choose one to cut off.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use kv::users::attempts::next_connection;
use tokio::time::Instant;

use super::{
    CONNECTION_BYTES, CONNECTIONS_MAX, HEAD_TIME, IDLE_TIME, RESERVE, SHARE, STREAMS_MAX, UNSENT_BYTES_MAX,
};
use crate::work::Party;

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Before the first byte of a request.
    Idle,
    /// Within the head of a request.
    Head,
    /// A request's body is awaited.
    Body,
    /// A request is being answered.
    Handling,
    /// The answer is being sent.
    Answering,
    /// Maps or events are sent as they come.
    Streaming,
}

/// The state of a connection.
pub struct State {
    address: IpAddr,
    pub phase: Phase,
    pub since: Instant,
    /// Bytes received in this phase: of a head, or of several heads that arrived together.
    pub head_bytes: usize,
    /// Bytes received of the body, while its request is being answered.
    pub body_bytes: usize,
    pub has_asked: bool,
    /// The body of the request was awaited.
    pub has_received: bool,
    /// Who has logged in.
    user: Option<Arc<str>>,
    /// In the reserve, for `/health`.
    pub is_reserve: bool,
    pub unsent_bytes: usize,
    /// Cut off: no longer counted, and closed as soon as its task runs.
    is_cut: bool,
    task: Option<Waker>,
    /// The number of plain connections of its party.
    of_party: Arc<AtomicUsize>,
}

/// What a connection contributes to the sums.
struct Part {
    held_bytes: usize,
    unsent_bytes: usize,
    is_plain: bool,
}

impl State {
    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
        self.head_bytes = 0;
        self.body_bytes = 0;
    }

    fn waits_for_client(&self) -> bool {
        !matches!(self.phase, Phase::Handling | Phase::Streaming)
    }

    /// Neither a stream nor in the reserve.
    fn is_plain(&self) -> bool {
        !self.is_cut && !self.is_reserve && self.phase != Phase::Streaming
    }

    pub fn party(&self) -> Party {
        self.user.clone().map_or(Party::Address(self.address), Party::User)
    }

    /// Upper bound of the memory it holds.
    fn held_bytes(&self) -> usize {
        CONNECTION_BYTES + self.body_bytes + self.unsent_bytes
    }

    fn part(&self) -> Part {
        let unsent_bytes = if self.is_cut { 0 } else { self.unsent_bytes };
        Part { held_bytes: self.held_bytes(), unsent_bytes, is_plain: self.is_plain() }
    }

    /// The time by which input must arrive; `None` while none is expected.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle if self.has_asked => Some(self.since + IDLE_TIME),
            Phase::Idle | Phase::Head => Some(self.since + HEAD_TIME),
            Phase::Body | Phase::Handling | Phase::Answering | Phase::Streaming => None,
        }
    }
}

/// All open connections.
#[derive(Default)]
pub struct Table {
    states: HashMap<u64, State>,
    /// The numbers of plain connections of those who have any connection.
    parties: HashMap<Party, Arc<AtomicUsize>>,
    plain: usize,
    held_bytes: usize,
    /// Without those that are cut off.
    unsent_bytes: usize,
}

impl Table {
    /// Adds a connection; returns its number.
    pub fn insert(&mut self, address: IpAddr, is_reserve: bool) -> u64 {
        let state = State {
            address,
            phase: Phase::Idle,
            since: Instant::now(),
            head_bytes: 0,
            body_bytes: 0,
            has_asked: false,
            has_received: false,
            user: None,
            is_reserve,
            unsent_bytes: 0,
            is_cut: false,
            task: None,
            of_party: Arc::clone(self.parties.entry(Party::Address(address)).or_default()),
        };
        self.add(&state);
        let id = next_connection();
        self.states.insert(id, state);
        id
    }

    pub fn remove(&mut self, id: u64) {
        let Some(state) = self.states.remove(&id) else { return };
        self.subtract(&state.part(), &state.of_party);
        let party = state.party();
        drop(state);
        self.forget(&party);
    }

    /// Changes the state of a connection.
    pub fn change<R>(&mut self, id: u64, f: impl FnOnce(&mut State) -> R) -> Option<R> {
        let state = self.states.get_mut(&id)?;
        let before = state.part();
        let result = f(state);
        let after = state.part();
        self.held_bytes = self.held_bytes - before.held_bytes + after.held_bytes;
        self.unsent_bytes = self.unsent_bytes - before.unsent_bytes + after.unsent_bytes;
        match (before.is_plain, after.is_plain) {
            (false, true) => {
                self.plain += 1;
                state.of_party.fetch_add(1, Relaxed);
            }
            (true, false) => {
                self.plain -= 1;
                state.of_party.fetch_sub(1, Relaxed);
            }
            _ => {}
        }
        Some(result)
    }

    /// Returns the state of a connection, whose task will be woken when it is cut off; `None` if it is already.
    pub fn look(&mut self, id: u64, task: &Waker) -> Option<&State> {
        let state = self.states.get_mut(&id).filter(|state| !state.is_cut)?;
        if !state.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            state.task = Some(task.clone());
        }
        Some(state)
    }

    pub fn is_stream(&self, id: u64) -> bool {
        self.states.get(&id).is_some_and(|state| state.phase == Phase::Streaming)
    }

    /// Notes who has logged in on a connection.
    pub fn set_user(&mut self, id: u64, user: Arc<str>) {
        let is_new = self.states.get(&id).is_some_and(|state| state.user.as_ref() != Some(&user));
        let Some(mut state) = is_new.then(|| self.states.remove(&id)).flatten() else { return };
        let before = state.party();
        self.subtract(&state.part(), &state.of_party);
        state.user = Some(user);
        state.of_party = Arc::clone(self.parties.entry(state.party()).or_default());
        self.add(&state);
        self.states.insert(id, state);
        self.forget(&before);
    }

    fn add(&mut self, state: &State) {
        let part = state.part();
        self.held_bytes += part.held_bytes;
        self.unsent_bytes += part.unsent_bytes;
        self.plain += usize::from(part.is_plain);
        state.of_party.fetch_add(usize::from(part.is_plain), Relaxed);
    }

    fn subtract(&mut self, part: &Part, of_party: &AtomicUsize) {
        self.held_bytes -= part.held_bytes;
        self.unsent_bytes -= part.unsent_bytes;
        self.plain -= usize::from(part.is_plain);
        of_party.fetch_sub(usize::from(part.is_plain), Relaxed);
    }

    /// Forgets a party without connections.
    fn forget(&mut self, party: &Party) {
        if self.parties.get(party).is_some_and(|count| Arc::strong_count(count) == 1) {
            self.parties.remove(party);
        }
    }

    /// The memory of all connections. Those that are cut off count until their tasks have run.
    pub const fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    fn live(&self) -> impl Iterator<Item = (u64, &State)> {
        self.states.iter().filter(|(_, state)| !state.is_cut).map(|(id, state)| (*id, state))
    }

    fn streams(&self) -> impl Iterator<Item = (u64, &State)> {
        self.live().filter(|(_, state)| state.phase == Phase::Streaming)
    }

    fn cut(&mut self, id: u64) {
        let task = self.change(id, |state| {
            state.is_cut = true;
            state.task.take()
        });
        task.flatten().into_iter().for_each(Waker::wake);
    }

    /// Makes room for a new connection; returns false if no other is eligible.
    pub fn has_room(&mut self) -> bool {
        self.plain < CONNECTIONS_MAX || self.make_room()
    }

    /// Cuts off one connection, if any is eligible.
    fn make_room(&mut self) -> bool {
        let victim = |is_eligible: &dyn Fn(&State, usize) -> bool| {
            let plain = self.states.iter().filter(|(_, state)| state.is_plain());
            let eligible = plain.filter_map(|(id, state)| {
                let count = state.of_party.load(Relaxed);
                is_eligible(state, count).then_some((*id, state, count))
            });
            let worst = eligible
                .max_by_key(|(_, state, count)| (state.waits_for_client(), *count, Reverse(state.since)));
            worst.map(|(id, ..)| id)
        };
        let victim =
            victim(&|state, count| state.user.is_some() && count > SHARE && state.waits_for_client())
                .or_else(|| victim(&|state, _| state.user.is_none()))
                .or_else(|| victim(&|state, _| state.waits_for_client()));
        victim.is_some_and(|id| {
            self.cut(id);
            true
        })
    }

    /// Cuts off the longest waiting connection of the reserve if that is full.
    pub fn make_room_in_reserve(&mut self) {
        let reserve = || self.live().filter(|(_, state)| state.is_reserve);
        if reserve().count() >= RESERVE {
            let oldest = reserve().max_by_key(|(_, state)| (state.waits_for_client(), Reverse(state.since)));
            oldest.map(|(id, _)| id).into_iter().for_each(|id| self.cut(id));
        }
    }

    /// Makes room for a stream of this connection: a client with a login displaces one without, and one of a user with
    /// more of them. Returns false if there is none.
    pub fn make_room_for_stream(&mut self, id: u64) -> bool {
        if self.streams().count() < STREAMS_MAX {
            return true;
        }
        let Some(user) = self.states.get(&id).and_then(|state| state.user.clone()) else { return false };
        let counts = counted(self.streams().map(|(_, state)| (state.party(), 1)));
        let own = counts.get(&Party::User(user)).copied().unwrap_or_default();
        let displaced = self.streams().filter_map(|(id, state)| {
            let count = counts.get(&state.party()).copied().unwrap_or_default();
            (state.user.is_none() || count > own + 1).then_some((id, state, count))
        });
        let victim =
            displaced.max_by_key(|(_, state, count)| (state.user.is_none(), *count, Reverse(state.since)));
        victim.map(|(id, ..)| id).is_some_and(|id| {
            self.cut(id);
            true
        })
    }

    /// Cuts off connections with the most unsent bytes, down to the bound.
    pub fn bound_unsent(&mut self) {
        while self.unsent_bytes > UNSENT_BYTES_MAX {
            let of_party = counted(self.live().map(|(_, state)| (state.party(), state.unsent_bytes)));
            let worst = self.live().filter(|(_, state)| state.unsent_bytes > 0).max_by_key(|(_, state)| {
                let bytes = of_party.get(&state.party()).copied().unwrap_or_default();
                (state.user.is_none(), bytes, state.unsent_bytes)
            });
            let Some((id, _)) = worst else { return };
            self.cut(id);
        }
    }
}

/// The sums of each party.
fn counted(parts: impl Iterator<Item = (Party, usize)>) -> HashMap<Party, usize> {
    parts.fold(HashMap::new(), |mut sums, (party, count)| {
        *sums.entry(party).or_default() += count;
        sums
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn add(table: &mut Table, count: usize, user: Option<&str>, phase: Phase) {
        for _ in 0..count {
            let id = table.insert(address(1), false);
            if let Some(user) = user {
                table.set_user(id, user.into());
            }
            table.change(id, |state| state.enter(phase));
        }
    }

    fn cut_of(table: &Table, user: Option<&str>) -> usize {
        table.states.values().filter(|state| state.is_cut && state.user.as_deref() == user).count()
    }

    #[test]
    fn a_user_with_most_connections_gives_way_first() {
        let mut table = Table::default();
        add(&mut table, 100, Some("eve"), Phase::Body);
        add(&mut table, 70, Some("bob"), Phase::Idle);
        add(&mut table, 10, Some("ann"), Phase::Idle);
        add(&mut table, 20, None, Phase::Head);
        let make_room = |table: &mut Table, count: usize| {
            assert!((0..count).all(|_| table.make_room()));
            ["eve", "bob", "ann"].map(|name| cut_of(table, Some(name)))
        };
        assert_eq!(make_room(&mut table, 30), [30, 0, 0]);
        // Both have 70, and give way in turns down to their share; then those without a login.
        assert_eq!(make_room(&mut table, 12), [36, 6, 0]);
        assert_eq!(make_room(&mut table, 20), [36, 6, 0]);
        assert_eq!(cut_of(&table, None), 20);
        assert_eq!(make_room(&mut table, 2), [37, 7, 0]);
    }

    #[test]
    fn those_that_are_served_stay() {
        let mut table = Table::default();
        add(&mut table, 500, Some("eve"), Phase::Handling);
        add(&mut table, 12, Some("ann"), Phase::Handling);
        add(&mut table, 1, Some("ann"), Phase::Answering);
        add(&mut table, 9, Some("eve"), Phase::Streaming);
        assert!(table.make_room());
        assert_eq!(cut_of(&table, Some("ann")), 1);
        assert!(!table.make_room());
    }

    #[test]
    fn the_reserve_is_bounded_and_counted_apart() {
        let mut table = Table::default();
        add(&mut table, 512, Some("eve"), Phase::Handling);
        for _ in 0..2 * RESERVE {
            table.make_room_in_reserve();
            table.insert(address(1), true);
        }
        assert_eq!(table.live().filter(|(_, state)| state.is_reserve).count(), RESERVE);
        assert_eq!(table.plain, 512);
    }

    #[test]
    fn who_has_most_unsent_is_cut_off() {
        let mut table = Table::default();
        add(&mut table, 100, Some("eve"), Phase::Answering);
        add(&mut table, 1, Some("ann"), Phase::Answering);
        for id in table.states.keys().copied().collect::<Vec<_>>() {
            table.change(id, |state| {
                let is_eve = state.user.as_deref() == Some("eve");
                state.unsent_bytes = if is_eve { 400 << 10 } else { 1 << 20 };
            });
        }
        table.bound_unsent();
        assert_eq!(cut_of(&table, Some("ann")), 0);
        assert_eq!(cut_of(&table, Some("eve")), 21);
    }

    #[test]
    fn sums_are_those_of_the_connections() {
        let mut table = Table::default();
        let phases = [Phase::Idle, Phase::Body, Phase::Handling, Phase::Answering, Phase::Streaming];
        let mut ids = Vec::new();
        for round in 0..2000_usize {
            let id = match ids.get(round * 7 % (ids.len() + 1)) {
                Some(id) => *id,
                None => table.insert(address((round % 3) as u8), round % 11 == 0),
            };
            ids.push(id);
            match round % 5 {
                0 => table.set_user(id, ["ann", "bob"][round % 2].into()),
                1 | 2 => drop(table.change(id, |state| {
                    state.enter(phases[round % phases.len()]);
                    (state.body_bytes, state.unsent_bytes) = (round % 900, round % 700);
                })),
                3 if round % 4 == 0 => table.cut(id),
                _ if round % 13 == 0 => table.remove(id),
                _ => {}
            }
            ids.retain(|id| table.states.contains_key(id));
            let states = || table.states.values();
            assert_eq!(table.held_bytes, states().map(State::held_bytes).sum::<usize>());
            assert_eq!(table.unsent_bytes, table.live().map(|(_, state)| state.unsent_bytes).sum::<usize>());
            assert_eq!(table.plain, states().filter(|state| state.is_plain()).count());
            let plain = counted(states().map(|state| (state.party(), usize::from(state.is_plain()))));
            let kept: HashMap<_, _> =
                table.parties.iter().map(|(party, count)| (party.clone(), count.load(Relaxed))).collect();
            assert_eq!(kept, plain);
        }
    }
}
