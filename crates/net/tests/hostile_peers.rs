//! Peers that take or send nothing, through workers and sockets: the memory they hold is bounded, and others are
//! served.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kv::users::Users;
use kv::{Bucket, BucketSettings, Limits, Node, NodeSettings};
use net::{Listener, Server};
use sessions::{Port, Rules, Spoken};

const WORKERS: usize = 2;
const MIB: u64 = 1 << 20;

struct World {
    node: Arc<Node>,
    bucket: Arc<Bucket>,
    server: Option<Server>,
    address: SocketAddr,
}

#[derive(Default)]
struct Options {
    login_required: bool,
    idle_limit_ms: u64,
    rules: Rules,
}

impl World {
    fn start(limits: Limits, options: Options) -> Self {
        let settings = NodeSettings {
            threads: net::executing_threads(WORKERS),
            shutdown_command: false,
            version: "test".into(),
            seed: 7,
        };
        let node = Node::new(settings, limits);
        node.set_memory(64 * MIB);
        let users = Users::new([1; 32]);
        users.add_development_user();
        node.set_users(users);
        let bucket = node
            .create_bucket("default", BucketSettings { memory_bytes: 64 * MIB, ..Default::default() })
            .unwrap();
        let socket = transport::Listener::tcp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = socket.tcp_address().unwrap();
        let Options { login_required, idle_limit_ms, rules } = options;
        let listener = Listener {
            socket,
            tls: None,
            port: Port::Memcached,
            bucket: Some("default".into()),
            login_required,
            value_limit: 20 << 20,
            rules,
            idle_limit_ms,
        };
        let server = Some(Server::start(Arc::clone(&node), vec![listener], WORKERS, None, None).unwrap());
        Self { node, bucket, server, address }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client(stream)
    }

    /// Waits until a condition holds, which must happen soon.
    fn wait_until(&self, holds: impl Fn(&Self) -> bool, what: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !holds(self) {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _unwritten = server.shutdown(Duration::from_millis(100));
        }
    }
}

struct Client(TcpStream);

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn ask(&mut self, request: &[u8], answer: &str) {
        self.send(request);
        let mut bytes = vec![0; answer.len()];
        self.0.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), answer);
    }

    /// One of the numbers of `stats`.
    fn statistic(&mut self, name: &str) -> u64 {
        self.send(b"stats\r\n");
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        while !answer.ends_with(b"END\r\n") {
            let count = self.0.read(&mut buffer).unwrap();
            assert!(count > 0, "closed");
            answer.extend_from_slice(&buffer[..count]);
        }
        let answer = String::from_utf8(answer).unwrap();
        let value =
            answer.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
        value.expect(name).parse().unwrap()
    }

    /// Reads to the end of the connection.
    fn end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
            Err(error) => panic!("still open: {error}"),
        }
    }
}

#[test]
fn a_request_that_is_not_finished_is_not_waited_for_for_ever() {
    let limits = Limits { unfinished_request_ms: 200, ..Limits::default() };
    let world = World::start(limits, Options::default());
    let mut idle = world.client();
    idle.ask(b"version\r\n", "VERSION test\r\n");
    let beginnings: [&[u8]; 6] = [
        b"get some",
        b"set k 0 0 1000000\r\n",
        b"set k 0 0 1000000\r\nbegun",
        b"set k 0 0 10\r\n12345",
        b"\x80\x01\x00\x01\x08\x00\x00\x00\x00\x01\x00\x00",
        &[b"set k 0 0 900000\r\n".as_slice(), &[b'v'; 100_000]].concat(),
    ];
    let mut begun = beginnings.map(|beginning| {
        let mut client = world.client();
        client.send(beginning);
        client
    });
    for client in &mut begun {
        assert_eq!(client.end(), b"");
    }
    assert_eq!(world.node.connections().unfinished, 6);
    idle.ask(b"get k\r\n", "END\r\n");
    world.wait_until(|world| world.node.client_memory().buffer_bytes() == 0, "everything is given back");
    world.wait_until(|world| world.bucket.accounts().in_flight == 0, "the bucket's charge, too");
}

#[test]
fn an_upload_that_makes_progress_is_waited_for() {
    let limits = Limits { unfinished_request_ms: 400, ..Limits::default() };
    let world = World::start(limits, Options::default());
    let mut slow = world.client();
    slow.send(b"set k 0 0 1000000\r\n");
    let mut stuck = world.client();
    stuck.send(b"set k 0 0 1000000\r\n");
    let value = vec![b'v'; 1_000_000];
    for part in value.chunks(20_000) {
        slow.send(part);
        std::thread::sleep(Duration::from_millis(20));
    }
    slow.ask(b"\r\n", "STORED\r\n");
    assert_eq!(stuck.end(), b"");
    assert_eq!(world.node.connections().unfinished, 1);
}

#[test]
fn what_is_unfinished_before_a_login_is_charged_to_no_bucket() {
    let limits = Limits { unfinished_request_ms: 60_000, ..Limits::default() };
    let world = World::start(limits, Options { login_required: true, ..Options::default() });
    let mut clients: Vec<Client> = (0..20).map(|_| world.client()).collect();
    for client in &mut clients {
        client.send(&[b'a'; 1000]);
    }
    world.wait_until(|world| world.node.client_memory().buffer_bytes() >= 20_000, "all lines are there");
    assert_eq!(world.bucket.accounts().in_flight, 0);
    assert!(world.node.client_memory().outside_bytes() >= 20_000);
    clients[0].send(&[b'a'; 1000]);
    assert_eq!(String::from_utf8_lossy(&clients[0].end()), "CLIENT_ERROR unauthenticated\r\n");
    drop(clients);
    world.wait_until(|world| world.node.client_memory().outside_bytes() == 0, "everything is given back");
}

#[test]
fn an_idle_connection_is_closed_where_that_is_asked_for() {
    let world = World::start(Limits::default(), Options { idle_limit_ms: 300, ..Options::default() });
    let (mut busy, mut idle, mut never) = (world.client(), world.client(), world.client());
    idle.ask(b"version\r\n", "VERSION test\r\n");
    while world.node.connections().idle_kicks < 2 {
        busy.ask(b"get k\r\n", "END\r\n");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((idle.end(), never.end()), (vec![], vec![]));
    busy.ask(b"get k\r\n", "END\r\n");
    assert_eq!(world.node.connections().current, 1);
}

#[test]
fn a_peer_that_takes_nothing_is_not_waited_for_for_ever() {
    let limits = Limits { stuck_peer_ms: 200, ..Limits::default() };
    let world = World::start(limits, Options::default());
    let mut honest = world.client();
    honest.ask(format!("set k 0 0 1000000\r\n{}\r\n", "v".repeat(1_000_000)).as_bytes(), "STORED\r\n");
    let mut stuck = world.client();
    stuck.send("get k\r\n".repeat(50).as_bytes());
    world.wait_until(|world| world.node.connections().stuck == 1, "it is closed");
    assert_eq!((honest.statistic("stuck_kicks"), honest.statistic("memory_kicks")), (1, 0));
    world.wait_until(|world| world.node.connections().current == 1, "only the honest one is left");
}

/// As `printf ... | nc` does. The answers are more than sockets hold, so most of them are sent later.
#[test]
fn a_client_that_closes_its_side_gets_all_its_answers() {
    let world = World::start(Limits::default(), Options::default());
    let mut honest = world.client();
    let value = "v".repeat(70_000);
    honest.ask(format!("set k 0 0 70000\r\n{value}\r\n").as_bytes(), "STORED\r\n");
    let answer = format!("VALUE k 0 70000\r\n{value}\r\n");
    for (keys, behind) in [(5, ""), (100, ""), (100, "get k\r\n"), (100, "set half 0 0 70000\r\nabc")] {
        let mut client = world.client();
        client.send(format!("get{}\r\n{behind}", " k".repeat(keys)).as_bytes());
        client.0.shutdown(Shutdown::Write).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let also = if behind.starts_with("get") { format!("{answer}END\r\n") } else { String::new() };
        let expected = format!("{}END\r\n{also}", answer.repeat(keys));
        assert!(client.end() == expected.as_bytes(), "{keys} keys, then {behind:?}");
    }
    world.wait_until(|world| world.node.connections().current == 1, "only the honest one is left");
}

#[test]
fn a_client_that_closes_its_side_and_takes_nothing_is_not_waited_for_for_ever() {
    let limits = Limits { stuck_peer_ms: 200, ..Limits::default() };
    let world = World::start(limits, Options::default());
    let mut honest = world.client();
    honest.ask(format!("set k 0 0 1000000\r\n{}\r\n", "v".repeat(1_000_000)).as_bytes(), "STORED\r\n");
    let mut stuck = world.client();
    stuck.send("get k\r\n".repeat(50).as_bytes());
    stuck.0.shutdown(Shutdown::Write).unwrap();
    world.wait_until(|world| world.node.connections().stuck == 1, "it is closed");
    world.wait_until(|world| world.node.connections().current == 1, "only the honest one is left");
    assert_eq!(honest.statistic("stuck_kicks"), 1);
}

#[test]
fn peers_that_do_not_read_are_cut_off_before_they_hold_much() {
    const DOCUMENTS: u64 = 1000;
    const HOSTILE: usize = 100;
    let world = World::start(Limits::default(), Options::default());
    let mut honest = world.client();
    for number in 0..DOCUMENTS {
        let request = format!("set document-{number} 0 0 30000\r\n{}\r\n", "v".repeat(30_000));
        honest.ask(request.as_bytes(), "STORED\r\n");
    }
    let items = world.bucket.accounts().items;
    let wish = format!("get{}\r\n", " document-7".repeat(500));
    let mut hostile: Vec<Client> = (0..HOSTILE).map(|_| world.client()).collect();
    let mut most = 0;
    for client in &mut hostile {
        client.send(wish.as_bytes());
        honest.ask(b"get missing\r\n", "END\r\n");
        most = most.max(world.node.client_memory().buffer_bytes());
    }
    world.wait_until(
        |world| world.node.client_memory().buffer_bytes() <= 4 * MIB,
        "they are cut off until little is held",
    );
    assert!(most <= 9 * MIB, "{most} bytes");
    let cut_off = world.node.client_memory().cut_off();
    assert!(cut_off > 10, "{cut_off}");
    world.wait_until(
        |world| world.client().statistic("memory_kicks") == world.node.client_memory().cut_off(),
        "stats shows it",
    );
    assert_eq!(world.bucket.accounts().items, items, "nothing was evicted for what nobody reads");
    for number in 0..DOCUMENTS {
        honest.send(format!("get document-{number}\r\n").as_bytes());
        let head = format!("VALUE document-{number} 0 30000\r\n");
        let mut answer = vec![0; head.len() + 30_000 + 7];
        honest.0.read_exact(&mut answer).unwrap();
        assert!(answer.starts_with(head.as_bytes()));
    }
}

#[test]
fn peers_that_do_not_read_are_given_little_and_keep_their_connections() {
    const HOSTILE: usize = 200;
    const REQUESTS: usize = 3000;
    let world = World::start(Limits::default(), Options::default());
    let mut honest = world.client();
    honest.ask(format!("set document 0 0 1000\r\n{}\r\n", "v".repeat(1000)).as_bytes(), "STORED\r\n");
    let answer = format!("VALUE document 0 1000\r\n{}\r\nEND\r\n", "v".repeat(1000));
    let mut hostile: Vec<Client> = (0..HOSTILE).map(|_| world.client()).collect();
    let mut most = 0;
    for client in &mut hostile {
        client.send("get document\r\n".repeat(REQUESTS).as_bytes());
        honest.ask(b"get missing\r\n", "END\r\n");
        most = most.max(world.node.client_memory().buffer_bytes());
    }
    // The limit is checked before a turn, and each worker may be in one.
    let turn_bytes = (Limits::default().turn_requests * answer.len()) as u64;
    let bound = 4 * MIB + WORKERS as u64 * turn_bytes;
    assert!(
        most <= bound,
        "{most} bytes: a sixteenth of the node's memory, and a turn of each worker, are {bound}"
    );
    assert_eq!(world.node.client_memory().cut_off(), 0);
    // A client that finally reads gets every answer.
    for client in &mut hostile {
        for _ in 0..REQUESTS {
            let mut bytes = vec![0; answer.len()];
            client.0.read_exact(&mut bytes).unwrap();
            assert!(bytes == answer.as_bytes());
        }
    }
    world.wait_until(|world| world.node.client_memory().buffer_bytes() == 0, "nothing is left");
}

#[test]
fn a_port_speaks_what_it_is_allowed_to() {
    let noop = [[0x80, 0x0a].as_slice(), &[0; 22]].concat();
    let rules = Rules { spoken: Spoken::Text, flush_all: false };
    let world = World::start(Limits::default(), Options { rules, ..Options::default() });
    let mut client = world.client();
    client.ask(b"set k 0 0 1\r\nv\r\n", "STORED\r\n");
    client.ask(b"flush_all\r\n", "CLIENT_ERROR flush_all not allowed\r\n");
    client.ask(b"flush_all 0 noreply\r\nget k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    let mut client = world.client();
    client.send(&noop);
    client.ask(b"\r\n", "CLIENT_ERROR bad command line format\r\n");
    let rules = Rules { spoken: Spoken::Binary, flush_all: false };
    let world = World::start(Limits::default(), Options { rules, ..Options::default() });
    let mut client = world.client();
    client.send(&noop);
    let mut answer = [0; 24];
    client.0.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..2], [0x81, 0x0a]);
    client.send(&[[0x80, 0x08].as_slice(), &[0; 22]].concat());
    client.0.read_exact(&mut answer).unwrap();
    assert_eq!(answer[6..8], [0, 0x20], "flush is refused");
    let mut client = world.client();
    client.send(b"version\r\n");
    let answer = client.end();
    assert!(!answer.starts_with(b"VERSION"), "{answer:?}");
}
