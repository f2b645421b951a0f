//! Turns of OVSDB sessions, through sockets: what many ask at once does not hold up those that ask little. Requests
//! count themselves: each increments a number in a row.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use net::ovsdb::{Answer, Command, Core, EventLoop, Host, Level, Logger, Settings, Waker};
use ovsdb::database::{Database, Options};
use ovsdb::schema::DatabaseSchema;
use ovsdb::server::{Limits, Now};
use ovsdb::uuid::Uuid;

const SCHEMA: &str =
    r#"{"name":"D","version":"1.0.0","tables":{"T":{"isRoot":true,"columns":{"n":{"type":"integer"}}}}}"#;
const INSERT: &str = r#"{"id":1,"method":"transact","params":["D",{"op":"insert","table":"T","row":{}}]}"#;
const INCREMENT: &str = concat!(
    r#"{"id":1,"method":"transact","params":["D","#,
    r#"{"op":"mutate","table":"T","where":[],"mutations":[["n","+=",1]]}]}"#
);
const SELECT: &str =
    r#"{"id":1,"method":"transact","params":["D",{"op":"select","table":"T","where":[],"columns":["n"]}]}"#;
const BEFORE_NUMBER: &str = r#"{"id":1,"result":[{"rows":[{"n":"#;
const SESSIONS: usize = 20;
/// Requests that a socket takes although nobody reads them.
const PIPELINED: usize = 700;

struct Silent;

impl Logger for Silent {
    fn log(&self, _: &'static str, _: Level, _: &str) {}
}

/// Blocks at each wake-up until the test says whether to go on.
struct Pausing {
    paused: Sender<()>,
    goes_on: Receiver<bool>,
}

impl Host for Pausing {
    fn command(&mut self, _: &mut EventLoop, _: &Command) -> Answer {
        Answer::Text(String::new())
    }

    fn woken(&mut self, events: &mut EventLoop) {
        let _ = self.paused.send(());
        if !self.goes_on.recv().unwrap_or(false) {
            events.stop();
        }
    }
}

struct World {
    socket: PathBuf,
    waker: Waker,
    paused: Receiver<()>,
    go_on: Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl World {
    /// Serves a database with one row. `name`: of the test.
    fn start(name: &str) -> Self {
        let socket = std::env::temp_dir().join(format!("{name}-{}.sock", std::process::id()));
        let mut next = 0_u128;
        let random = Box::new(move || {
            next += 1;
            Uuid::from_random(next.to_be_bytes())
        });
        let mut core = Core::new(Limits::default(), random).unwrap();
        let schema = DatabaseSchema::parse(wire::json::validate(SCHEMA.as_bytes()).unwrap()).unwrap();
        let database = Database::new(schema, Options { budget_bytes: u64::MAX, seed: 1 }).unwrap();
        core.add_database(database, None, Now::default()).unwrap();
        let settings = Settings {
            logger: Arc::new(Silent),
            run_directory: std::env::temp_dir(),
            messages: wire::jsonrpc::Limits::default(),
            backlog_bytes: 1 << 20,
            client_bytes: usize::MAX,
        };
        let mut events = EventLoop::new(core, settings).unwrap();
        events.add_remote(&format!("punix:{}", socket.display())).unwrap();
        events.open_remotes();
        let waker = events.waker();
        let ((paused, is_paused), (go_on, goes_on)) = (channel(), channel());
        let thread = std::thread::spawn(move || events.run(&mut Pausing { paused, goes_on }).unwrap());
        let world = Self { socket, waker, paused: is_paused, go_on, thread: Some(thread) };
        assert!(ask(&mut world.connect(), INSERT).contains("uuid"));
        world
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).unwrap()
    }

    /// Sessions that are known to the server.
    fn sessions(&self) -> Vec<UnixStream> {
        let mut sessions: Vec<UnixStream> = (0..SESSIONS).map(|_| self.connect()).collect();
        sessions.iter_mut().for_each(|session| drop(ask(session, SELECT)));
        sessions
    }

    /// Holds the loop up while `act` runs.
    fn pause(&self, act: impl FnOnce()) {
        self.waker.wake();
        self.paused.recv().unwrap();
        act();
        self.go_on.send(true).unwrap();
    }

    fn stop(&mut self) {
        let _ = self.go_on.send(false);
        self.waker.wake();
        self.thread.take().map(JoinHandle::join).transpose().unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn ask(session: &mut UnixStream, request: &str) -> String {
    session.write_all(request.as_bytes()).unwrap();
    answer(session)
}

/// One answer, of those that come one at a time.
fn answer(session: &mut UnixStream) -> String {
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(br#","error":null}"#) {
        session.read_exact(&mut byte).unwrap();
        answer.extend_from_slice(&byte);
    }
    String::from_utf8(answer).unwrap()
}

fn number(answer: &str) -> usize {
    let rest = answer.strip_prefix(BEFORE_NUMBER).unwrap();
    rest.split('}').next().unwrap().parse().unwrap()
}

#[test]
fn a_session_that_asks_little_is_served_before_those_that_pipeline() {
    let world = World::start("little-before-much");
    let mut hostile = world.sessions();
    let mut honest = world.connect();
    for _ in 0..10 {
        ask(&mut honest, SELECT);
    }
    world.pause(|| {
        for session in &mut hostile {
            session.write_all(INCREMENT.repeat(PIPELINED).as_bytes()).unwrap();
        }
        honest.write_all(SELECT.as_bytes()).unwrap();
    });
    let executed = number(&answer(&mut honest));
    assert!(executed < SESSIONS * PIPELINED / 2, "{executed} of {} before", SESSIONS * PIPELINED);
    let mut last = executed;
    for _ in 0..10 {
        let now = number(&ask(&mut honest, SELECT));
        assert!(now - last < SESSIONS * PIPELINED / 4, "{} between two answers", now - last);
        last = now;
    }
}

#[test]
fn what_is_pipelined_is_executed_in_order_and_completely() {
    let world = World::start("complete");
    let mut hostile = world.sessions();
    world.pause(|| {
        for session in &mut hostile {
            session.write_all((INCREMENT.repeat(PIPELINED) + SELECT).as_bytes()).unwrap();
        }
    });
    for session in &mut hostile {
        (0..PIPELINED).for_each(|_| assert!(answer(session).contains(r#""count":1"#)));
        assert!(number(&answer(session)) >= PIPELINED);
    }
    assert_eq!(number(&ask(&mut hostile[0], SELECT)), SESSIONS * PIPELINED);
}

#[test]
fn what_a_session_asks_before_it_leaves_is_executed_in_its_first_turn_only() {
    let world = World::start("leaves");
    let mut honest = world.connect();
    ask(&mut honest, SELECT);
    let mut hostile = world.sessions();
    world.pause(|| {
        for mut session in hostile.drain(..) {
            session.write_all(INCREMENT.repeat(PIPELINED).as_bytes()).unwrap();
        }
    });
    // Each of these requests is a wake-up, in which a session that has requests left has a turn.
    let (mut executed, mut unchanged) = (0, 0);
    while unchanged <= 2 * SESSIONS {
        let now = number(&ask(&mut honest, SELECT));
        unchanged = if now == executed { unchanged + 1 } else { 0 };
        executed = now;
    }
    assert!((SESSIONS..SESSIONS * PIPELINED).contains(&executed), "{executed} executed");
}

#[test]
fn a_loop_that_stops_drops_what_was_not_executed() {
    let mut world = World::start("stops");
    let mut hostile = world.sessions();
    world.pause(|| {
        for session in &mut hostile {
            session.write_all(INCREMENT.repeat(PIPELINED).as_bytes()).unwrap();
        }
        // The next wake-up has the requests and the end.
        world.waker.wake();
    });
    world.stop();
    for session in &mut hostile {
        let mut answers = Vec::new();
        let _ = session.read_to_end(&mut answers);
        assert_eq!(answers, b"", "{} bytes", answers.len());
    }
}
