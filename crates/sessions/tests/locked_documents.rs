//! Over any protocol, a document locked with GET_LOCKED can be changed, and its lock ended, only by requests with the
//! lock's CAS.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use std::sync::Arc;

use client::{Client, Frame, frame, persistent, store_extras};
use journal::SimulatedDisk;
use kv::{Key, VbId};
use sessions::Port;

const GET_META: u8 = 0xa0;
const GET_LOCKED: u8 = 0x94;
const UNLOCK: u8 = 0x95;
const XERROR: u16 = 0x07;
const LOCKED: u16 = 0x09;
const EXISTS: u16 = 0x02;

/// The document `k`, which expires in 100 seconds, and its clients.
struct World {
    locker: Client,
    text: Client,
    binary: Client,
    vb: VbId,
    cas: u64,
}

impl World {
    /// Uses an ephemeral bucket, or a persistent one, where a change of the expiry is written to disk.
    fn new(is_persistent: bool) -> Self {
        let text = if is_persistent {
            let text = Client::of(persistent::node(&SimulatedDisk::new(), 4), Port::Memcached);
            persistent::flush(&text);
            text
        } else {
            Client::memcached()
        };
        let vb = text.node.bucket("default").unwrap().locate(Key::plain(b"k")).vb;
        let mut locker = Client::of(Arc::clone(&text.node), Port::Couchbase);
        locker.open_bucket(&[XERROR]);
        let binary = text.beside(1);
        let mut world = Self { locker, text, binary, vb, cas: 0 };
        assert_eq!(world.text.send_raw(b"set k 5 100 2\r\n10\r\n"), b"STORED\r\n");
        world.lock();
        world
    }

    fn on_document(&self, opcode: u8) -> Frame {
        frame(opcode).key(b"k").vbucket(self.vb.0)
    }

    fn lock(&mut self) {
        let answer = self.locker.ask(self.on_document(GET_LOCKED).extras(&30u32.to_be_bytes()));
        assert_eq!((answer.status, answer.body), (0, b"10".to_vec()));
        self.cas = answer.cas;
    }

    /// Checks that the document is unchanged and that the holder of the lock can release it.
    fn check(&mut self, case: &str) {
        let meta = self.locker.ask(self.on_document(GET_META));
        let expiry = u32::from_be_bytes(meta.extras[8..12].try_into().unwrap());
        assert_eq!(expiry, self.text.cx.now.unix_s + 100, "{case}: the expiry");
        assert_eq!(self.locker.ask(self.on_document(0x00)).body, b"10", "{case}: the value");
        let another = self.locker.ask(self.on_document(GET_LOCKED));
        assert_eq!(another.status, LOCKED, "{case}: there is a second holder");
        let ended = self.locker.ask(self.on_document(UNLOCK).cas(self.cas));
        assert_eq!(ended.status, 0, "{case}: the lock is not its holder's any more");
        self.lock();
    }
}

#[test]
fn no_text_or_meta_command_changes_it() {
    let locked = "SERVER_ERROR document is locked\r\n";
    let cases = [
        ("set k 0 0 1\r\nx\r\n", locked),
        ("add k 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("replace k 0 0 1\r\nx\r\n", locked),
        ("append k 0 0 1\r\nx\r\n", locked),
        ("prepend k 0 0 1\r\nx\r\n", locked),
        ("cas k 0 0 1 7\r\nx\r\n", "EXISTS\r\n"),
        ("cas k 0 0 1 18446744073709551615\r\nx\r\n", "EXISTS\r\n"),
        ("incr k 1\r\n", locked),
        ("decr k 1\r\n", locked),
        ("touch k 0\r\n", locked),
        ("touch k 0 noreply\r\n", ""),
        ("delete k\r\n", locked),
        ("gat 0 k\r\n", "VALUE k 5 2\r\n10\r\nEND\r\n"),
        ("gats 0 k\r\n", "VALUE k 5 2 18446744073709551615\r\n10\r\nEND\r\n"),
        ("ms k 1\r\nx\r\n", locked),
        ("ms k 1 ME\r\nx\r\n", "NS\r\n"),
        ("ms k 1 MR\r\nx\r\n", locked),
        ("ms k 1 MA\r\nx\r\n", locked),
        ("ms k 1 MP\r\nx\r\n", locked),
        ("ms k 1 C7\r\nx\r\n", locked),
        ("ms k 1 C18446744073709551615\r\nx\r\n", locked),
        ("ms k 1 C7 I\r\nx\r\n", locked),
        ("ms k 1 C0 MA\r\nx\r\n", locked),
        ("mg k T30 v\r\n", locked),
        ("mg k v\r\n", "VA 2\r\n10\r\n"),
        ("mg k R200 c\r\n", "HD c18446744073709551615 W\r\n"),
        ("mg k N30 v\r\n", "VA 2 Z\r\n10\r\n"),
        ("ma k\r\n", locked),
        ("ma k MD T30\r\n", locked),
        ("ma k C7\r\n", locked),
        ("md k\r\n", locked),
        ("md k q\r\n", locked),
        ("md k I T30\r\n", locked),
        ("md k x\r\n", locked),
        ("md k C7\r\n", locked),
    ];
    for is_persistent in [false, true] {
        let mut world = World::new(is_persistent);
        for (request, answer) in cases {
            let given = world.text.send_raw(request.as_bytes());
            assert_eq!(String::from_utf8(given).unwrap(), answer, "{request:?}");
            world.check(request);
        }
    }
}

#[test]
fn no_binary_request_of_memcached_changes_it() {
    let number = [1u64.to_be_bytes(), 1u64.to_be_bytes()].concat();
    let counter = [&number[..], &[0; 4]].concat();
    let (store, none, exptime) = (store_extras(0, 0), Vec::new(), vec![0; 4]);
    let cases: [(&str, u8, &[u8], bool); 19] = [
        ("SET", 0x01, &store, true),
        ("SETQ", 0x11, &store, true),
        ("ADD", 0x02, &store, true),
        ("REPLACE", 0x03, &store, true),
        ("REPLACEQ", 0x13, &store, true),
        ("APPEND", 0x0e, &none, true),
        ("APPENDQ", 0x19, &none, true),
        ("PREPEND", 0x0f, &none, true),
        ("DELETE", 0x04, &none, false),
        ("DELETEQ", 0x14, &none, false),
        ("INCREMENT", 0x05, &counter, false),
        ("INCREMENTQ", 0x15, &counter, false),
        ("DECREMENT", 0x06, &counter, false),
        ("DECREMENTQ", 0x16, &counter, false),
        ("TOUCH", 0x1c, &exptime, false),
        ("GAT", 0x1d, &exptime, false),
        ("GATQ", 0x1e, &exptime, false),
        ("GATK", 0x23, &exptime, false),
        ("GATKQ", 0x24, &exptime, false),
    ];
    for is_persistent in [false, true] {
        let mut world = World::new(is_persistent);
        for (name, opcode, extras, has_value) in cases {
            for cas in [0, 7, u64::MAX] {
                let request = frame(opcode).key(b"k").extras(extras).cas(cas);
                let request = if has_value { request.value(b"x") } else { request };
                let answer = world.binary.ask(request);
                assert_eq!(answer.status, EXISTS, "{name}");
                world.check(name);
            }
        }
    }
}

#[test]
fn no_request_of_couchbase_changes_it() {
    let number = [1u64.to_be_bytes(), 1u64.to_be_bytes()].concat();
    let counter = [&number[..], &[0; 4]].concat();
    let (store, none, exptime) = (store_extras(0, 0), Vec::new(), vec![0; 4]);
    let cases: [(&str, u8, &[u8], bool); 12] = [
        ("SET", 0x01, &store, true),
        ("SETQ", 0x11, &store, true),
        ("REPLACE", 0x03, &store, true),
        ("APPEND", 0x0e, &none, true),
        ("PREPEND", 0x0f, &none, true),
        ("DELETE", 0x04, &none, false),
        ("DELETEQ", 0x14, &none, false),
        ("INCREMENT", 0x05, &counter, false),
        ("DECREMENT", 0x06, &counter, false),
        ("TOUCH", 0x1c, &exptime, false),
        ("GAT", 0x1d, &exptime, false),
        ("GATQ", 0x1e, &exptime, false),
    ];
    for is_persistent in [false, true] {
        let mut world = World::new(is_persistent);
        for (name, opcode, extras, has_value) in cases {
            let request = world.on_document(opcode).extras(extras);
            let request = if has_value { request.value(b"x") } else { request };
            assert_eq!(world.locker.ask(request).status, LOCKED, "{name}");
            world.check(name);
        }
    }
}

#[test]
fn whoever_names_its_cas_changes_it_and_ends_the_lock() {
    for is_persistent in [false, true] {
        for request in
            ["ms k 1 C{cas}\r\nx\r\n", "ms k 1 C{cas} MA\r\nx\r\n", "ma k C{cas}\r\n", "md k C{cas}\r\n"]
        {
            let mut world = World::new(is_persistent);
            let request = request.replace("{cas}", &world.cas.to_string());
            assert_eq!(world.text.send_raw(request.as_bytes()), b"HD\r\n", "{request:?}");
            assert_eq!(world.text.send_raw(b"set k 0 0 1\r\ny\r\n"), b"STORED\r\n", "{request:?}");
        }
    }
}
