//! Answers that wait, through workers and sockets: letters, alarms, the polling thread, ends of connections.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kv::users::Users;
use kv::{
    Bucket, BucketSettings, Limits, Node, NodeContext, NodeSettings, Now, TimeoutMode, Topology, VbId,
    VbState,
};
use net::{Listener, Server};
use sessions::Port;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const QUIT: u8 = 0x07;
const NOOP: u8 = 0x0a;
const AMBIGUOUS: u16 = 0xa3;
const WORKERS: usize = 2;

struct World {
    node: Arc<Node>,
    bucket: Arc<Bucket>,
    server: Option<Server>,
    address: SocketAddr,
    /// The test's own context, with a thread number after the server's.
    cx: NodeContext,
}

impl World {
    fn start() -> Self {
        let threads = net::executing_threads(WORKERS) + 1;
        let settings = NodeSettings { threads, shutdown_command: false, version: "test".into(), seed: 7 };
        let node = Node::new(settings, Limits::default());
        let users = Users::new([1; 32]);
        users.add_development_user();
        node.set_users(users);
        let bucket = node
            .create_bucket("default", BucketSettings { memory_bytes: 256 << 20, ..Default::default() })
            .unwrap();
        let socket = transport::Listener::tcp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = socket.tcp_address().unwrap();
        let listener = Listener {
            socket,
            tls: None,
            port: Port::Couchbase,
            bucket: None,
            login_required: true,
            value_limit: 20 << 20,
            rules: Default::default(),
            idle_limit_ms: 0,
        };
        let server = Server::start(Arc::clone(&node), vec![listener], WORKERS, None, None).unwrap();
        let mut cx = NodeContext::new(Arc::clone(&node), threads - 1);
        cx.now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_us: 0 };
        let mut world = Self { node, bucket, server: Some(server), address, cx };
        for vb in 0..1024 {
            world.set_chain(vb, &["us", "absent"]);
        }
        world
    }

    fn set_chain(&mut self, vb: u16, nodes: &[&str]) {
        let topology = Topology::new([nodes.iter().map(|node| Some(*node))]).unwrap();
        self.bucket.set_vbucket(&mut self.cx, VbId(vb), VbState::Active, Some(topology));
    }

    fn acknowledge(&mut self, vb: u16) {
        self.bucket.acknowledge(&mut self.cx, VbId(vb), "absent", u64::MAX >> 1, 0);
    }

    fn client(&self, unordered: bool) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Client { stream };
        let feature: &[u8] = if unordered { &[0, 0x0e] } else { &[] };
        client.send(&frame(0x1f, 0, 0, &[], &[], b"", feature));
        client.send(&frame(0x21, 0, 0, &[], &[], b"PLAIN", b"\0Administrator\0password"));
        client.send(&frame(0x89, 0, 0, &[], &[], b"default", b""));
        for _ in 0..3 {
            assert_eq!(client.answer().unwrap().status, 0);
        }
        client
    }

    /// One of `stats durability-monitor`.
    fn figure(&self, wanted: &str) -> u32 {
        let mut figure = None;
        self.bucket.sync_write_statistics(&mut |name, value| {
            if name == wanted {
                figure = value.to_string().parse().ok();
            }
        });
        figure.unwrap_or_else(|| panic!("no figure {wanted}"))
    }

    fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .map(|name| name.trim().to_owned())
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _unwritten = server.shutdown(Duration::from_millis(100));
        }
    }
}

struct Client {
    stream: TcpStream,
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    opaque: u32,
    body: Vec<u8>,
}

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next answer; `None` at the end of the stream.
    fn answer(&mut self) -> Option<Answer> {
        let mut head = [0; 24];
        self.stream.read_exact(&mut head).ok()?;
        let mut body = vec![0; u32::from_be_bytes(head[8..12].try_into().unwrap()) as usize];
        self.stream.read_exact(&mut body).unwrap();
        body.drain(..usize::from(head[4]));
        let status = u16::from_be_bytes([head[6], head[7]]);
        Some(Answer { status, opaque: u32::from_be_bytes(head[12..16].try_into().unwrap()), body })
    }

    fn opaques_to_the_end(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.answer()).map(|answer| answer.opaque).collect()
    }

    /// Returns true if nothing arrives for a while.
    fn hears_nothing(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let heard = self.stream.read(&mut [0; 1]);
        self.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        heard.is_err()
    }
}

fn frame(
    opcode: u8,
    vb: u16,
    opaque: u32,
    framing: &[u8],
    extras: &[u8],
    key: &[u8],
    value: &[u8],
) -> Vec<u8> {
    let body = framing.len() + extras.len() + key.len() + value.len();
    let mut bytes = vec![if framing.is_empty() { 0x80 } else { 0x08 }, opcode];
    bytes.extend([framing.len() as u8, key.len() as u8, extras.len() as u8, 0]);
    bytes.extend(vb.to_be_bytes());
    bytes.extend((body as u32).to_be_bytes());
    bytes.extend(opaque.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend([framing, extras, key, value].concat());
    bytes
}

fn set(vb: u16, opaque: u32, key: &str, value: &str) -> Vec<u8> {
    frame(SET, vb, opaque, &[], &[0; 8], key.as_bytes(), value.as_bytes())
}

fn durable_set(vb: u16, opaque: u32, key: &str, value: &str, timeout_ms: u16) -> Vec<u8> {
    let [high, low] = timeout_ms.to_be_bytes();
    frame(SET, vb, opaque, &[0x13, 1, high, low], &[0; 8], key.as_bytes(), value.as_bytes())
}

fn get(vb: u16, opaque: u32, key: &str) -> Vec<u8> {
    frame(GET, vb, opaque, &[], &[], key.as_bytes(), b"")
}

#[test]
fn a_letter_from_another_thread_wakes_the_worker() {
    let mut world = World::start();
    let (mut client, mut other) = (world.client(false), world.client(false));
    client.send(&[durable_set(1, 1, "a", "new", 9_000), set(2, 2, "b", "b"), get(1, 3, "a")].concat());
    assert!(client.hears_nothing());
    other.send(&[get(2, 7, "b"), get(1, 8, "a")].concat());
    assert_eq!(other.answer().unwrap().body, b"b", "what waits is the answer, not the request");
    assert_eq!(other.answer().unwrap().status, 1);
    world.acknowledge(1);
    let answers: Vec<_> = (0..3).map(|_| client.answer().unwrap()).collect();
    assert_eq!(answers.iter().map(|a| (a.opaque, a.status)).collect::<Vec<_>>(), [(1, 0), (2, 0), (3, 0)]);
    assert_eq!(answers[2].body, b"new");
}

#[test]
fn unordered_answers_do_not_wait_for_one_another() {
    let mut world = World::start();
    let mut client = world.client(true);
    let requests = [durable_set(1, 1, "a", "x", 9_000), durable_set(2, 2, "b", "x", 9_000), get(3, 3, "c")];
    client.send(&requests.concat());
    assert_eq!(client.answer().unwrap().opaque, 3);
    world.acknowledge(2);
    assert_eq!(client.answer().unwrap().opaque, 2);
    world.acknowledge(1);
    assert_eq!(client.answer().unwrap().opaque, 1);
}

#[test]
fn ten_thousand_pending_writes_are_each_answered_once_and_never_early() {
    for mode in [TimeoutMode::EventDriven, TimeoutMode::Polling] {
        let mut world = World::start();
        world.node.set_timeout_mode(mode);
        const CLIENTS: u32 = 8;
        const EACH: u32 = 1250;
        const ACKNOWLEDGED: u16 = 100;
        let vb_of = |opaque: u32| (opaque % 1024) as u16;
        let is_patient = move |opaque: u32| vb_of(opaque) < ACKNOWLEDGED && opaque.is_multiple_of(2);
        let timeout_of = move |opaque: u32| match is_patient(opaque) {
            true => 60_000,
            false => 200 + (opaque.wrapping_mul(2_654_435_761) >> 16) as u16 % 1500,
        };
        let threads: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let mut client = world.client(true);
                std::thread::spawn(move || {
                    let mut sent = HashMap::new();
                    for opaque in number * EACH..(number + 1) * EACH {
                        let key = format!("key-{opaque}");
                        sent.insert(opaque, Instant::now());
                        client.send(&durable_set(vb_of(opaque), opaque, &key, "v", timeout_of(opaque)));
                    }
                    let mut committed = 0;
                    for _ in 0..EACH {
                        let answer = client.answer().unwrap();
                        let waited = sent.remove(&answer.opaque).expect("answered once").elapsed();
                        match answer.status {
                            0 => committed += 1,
                            status => {
                                assert_eq!(status, AMBIGUOUS);
                                let timeout = Duration::from_millis(timeout_of(answer.opaque).into());
                                assert!(waited >= timeout, "{waited:?} instead of {timeout:?}");
                            }
                        }
                    }
                    assert!(client.hears_nothing());
                    committed
                })
            })
            .collect();
        // Whatever the state of the others by then, the patient ones commit.
        while world.figure("sync_writes_prepared") < CLIENTS * EACH {
            std::thread::yield_now();
        }
        (0..ACKNOWLEDGED).for_each(|vb| world.acknowledge(vb));
        let committed: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        let patient = (0..CLIENTS * EACH).filter(|opaque| is_patient(*opaque)).count() as u32;
        assert!(patient > 0 && committed >= patient, "{committed} of {patient}");
        assert_eq!(world.figure("sync_writes_prepared"), CLIENTS * EACH);
        assert_eq!(world.figure("sync_writes_ambiguous"), CLIENTS * EACH - committed);
        assert_eq!(world.figure("num_tracked"), 0);
        assert_eq!(world.threads().iter().any(|name| name == "dm:durability"), mode == TimeoutMode::Polling);
    }
}

#[test]
fn the_mode_changes_while_writes_are_pending() {
    let world = World::start();
    let mut client = world.client(true);
    let polls = |world: &World| world.threads().iter().any(|name| name == "dm:durability");
    client.send(&durable_set(1, 1, "a", "x", 300));
    assert!(client.hears_nothing() && !polls(&world));
    world.node.set_timeout_mode(TimeoutMode::Polling);
    client.send(&durable_set(2, 2, "b", "x", 400));
    assert!(client.hears_nothing() && polls(&world));
    world.node.set_timeout_mode(TimeoutMode::EventDriven);
    client.send(&durable_set(3, 3, "c", "x", 500));
    for opaque in 1..=3 {
        let answer = client.answer().unwrap();
        assert_eq!((answer.opaque, answer.status), (opaque, AMBIGUOUS));
    }
    let patience = Instant::now();
    while polls(&world) {
        assert!(patience.elapsed() < Duration::from_secs(10), "the thread stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_peer_that_has_closed_its_side_gets_its_answers() {
    let mut world = World::start();
    let mut client = world.client(false);
    client.send(&[durable_set(1, 1, "a", "x", 9_000), frame(NOOP, 0, 2, &[], &[], b"", b"")].concat());
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert!(client.hears_nothing());
    world.acknowledge(1);
    assert_eq!(client.opaques_to_the_end(), [1, 2]);
}

#[test]
fn quit_closes_behind_the_answers_that_wait() {
    let mut world = World::start();
    let mut client = world.client(true);
    let requests =
        [durable_set(1, 1, "a", "x", 9_000), frame(QUIT, 0, 2, &[], &[], b"", b""), get(1, 3, "a")];
    client.send(&requests.concat());
    assert!(client.hears_nothing());
    world.acknowledge(1);
    assert_eq!(client.opaques_to_the_end(), [1, 2]);
}

#[test]
fn a_letter_for_a_connection_that_is_gone_is_for_nobody() {
    let mut world = World::start();
    let mut gone = world.client(true);
    gone.send(&durable_set(1, 1, "a", "x", 9_000));
    assert!(gone.hears_nothing());
    gone.stream.shutdown(Shutdown::Both).unwrap();
    drop(gone);
    // New clients that may reuse its number.
    let mut clients: Vec<_> = (0..4).map(|_| world.client(true)).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send(&durable_set(2, 1, &format!("b{at}"), "x", 9_000));
    }
    assert!(clients.iter_mut().all(Client::hears_nothing));
    world.acknowledge(1);
    assert!(clients.iter_mut().all(Client::hears_nothing));
    world.acknowledge(2);
    assert!(clients.iter_mut().all(|client| client.answer().unwrap().status == 0));
    clients[0].send(&get(1, 9, "a"));
    assert_eq!(clients[0].answer().unwrap().body, b"x", "the write itself is done");
}

#[test]
fn what_is_held_back_does_not_grow_without_bound() {
    let mut world = World::start();
    let mut client = world.client(false);
    let big = "x".repeat(30_000);
    client.send(&set(2, 0, "big", &big));
    client.answer().unwrap();
    client.send(&durable_set(1, 0, "a", "x", 20_000));
    let mut requests = Vec::new();
    (1..=1000).for_each(|opaque| requests.extend(get(2, opaque, "big")));
    client.send(&requests);
    assert!(client.hears_nothing());
    let held = world.bucket.memory().in_flight;
    assert!((1 << 20..6 << 20).contains(&held), "{held}");
    world.acknowledge(1);
    for opaque in 0..=1000 {
        assert_eq!(client.answer().unwrap().opaque, opaque);
    }
    client.send(&get(2, 7, "big"));
    assert_eq!(client.answer().unwrap().body.len(), big.len());
    assert!(world.bucket.memory().in_flight < 1 << 20);
}
