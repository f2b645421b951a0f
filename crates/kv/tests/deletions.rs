//! Deletions that are looked up: in persistent buckets after they were flushed, in ephemeral ones that keep them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::sync::Arc;

use journal::{AnyDisk, SimulatedDisk, Survival};
use kv::follow::{Event, Position, VersionKind};
use kv::news::News;
use kv::persistence::{FLUSHERS, Flusher, load_next};
use kv::{
    Bucket, BucketSettings, Cookie, Deletion, Expiry, Key, Limits, Mutated, Mutation, Node, NodeContext,
    NodeSettings, Now, PersistenceSettings, Store, StoreKind, Value, VbId,
};

const START_S: u32 = 1_700_000_000;
const AGE_S: u32 = 800;

struct World {
    cx: NodeContext,
    bucket: Arc<Bucket>,
    disk: Option<SimulatedDisk>,
}

fn now(unix_s: u32) -> Now {
    Now { unix_s, unix_ns: u64::from(unix_s) * 1_000_000_000, mono_us: u64::from(unix_s) * 1_000_000 }
}

fn world(settings: BucketSettings, disk: Option<SimulatedDisk>, seed: u64, now: Now) -> World {
    let node = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed };
    let node = Node::new(node, Limits::default());
    let bucket = match &disk {
        None => node.create_bucket("b", settings),
        Some(disk) => node.open_bucket("b", settings, AnyDisk::Simulated(disk.clone()), Path::new("/b")),
    };
    let mut cx = NodeContext::new(node, 0);
    cx.now = now;
    while load_next(&mut cx, &mut journal::log::Buffer::new(4096)) {}
    World { cx, bucket: bucket.unwrap(), disk }
}

fn persistent(memory_bytes: u64) -> World {
    world(persistent_settings(memory_bytes), Some(SimulatedDisk::new()), 7, now(START_S))
}

fn persistent_settings(memory_bytes: u64) -> BucketSettings {
    let persistence = PersistenceSettings {
        tombstone_age_s: AGE_S,
        flush_interval_ms: 0,
        ..PersistenceSettings::default()
    };
    BucketSettings { vbuckets: 1, memory_bytes, persistence, ..BucketSettings::default() }
}

fn ephemeral(purge_age_s: u32) -> World {
    let settings =
        BucketSettings { vbuckets: 1, memory_bytes: 64 << 20, purge_age_s, ..BucketSettings::default() };
    world(settings, None, 7, now(START_S))
}

impl World {
    fn set(&mut self, name: &str, expiry: u32) -> Mutated {
        let (key, expiry) = (Key::plain(name.as_bytes()), Expiry::At(expiry));
        let store = Store { flags: 7, expiry, datatype: 0, value: Value::Bytes(b"value"), new_cas: 0 };
        let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
        self.bucket.mutate(&mut self.cx, key, self.bucket.locate(key), mutation).unwrap()
    }

    fn remove(&mut self, name: &str) -> Mutated {
        let key = Key::plain(name.as_bytes());
        self.bucket.remove(&mut self.cx, key, self.bucket.locate(key), 0).unwrap()
    }

    /// The deletion of a key, and whether there is a document.
    fn look(&mut self, name: &str) -> (Option<Deletion>, bool) {
        let key = Key::plain(name.as_bytes());
        let at = self.bucket.locate(key);
        let bucket = Arc::clone(&self.bucket);
        bucket.with_entry(&mut self.cx, key, at, |entry| (entry.deletion(), entry.exists())).unwrap()
    }

    fn flush(&mut self) {
        self.cx.now.mono_us += 10_000_000;
        let now = self.cx.now;
        for index in 0..FLUSHERS {
            Flusher::new(index, 4096).turn(&mut self.cx, &mut || now);
        }
        self.cx.end_batch();
        self.audit();
    }

    fn audit(&mut self) {
        self.cx.end_batch();
        self.bucket.audit(&mut self.cx).unwrap();
    }

    fn restart(self, memory_bytes: u64) -> Self {
        let Self { mut cx, bucket, disk } = self;
        kv::persistence::close_journal(&bucket, &mut cx, &mut Flusher::new(0, 4096)).unwrap();
        disk.as_ref().unwrap().crash(Survival::Synced);
        world(persistent_settings(memory_bytes), disk, 8, cx.now)
    }

    fn pass(&mut self, seconds: u32) {
        self.cx.now = now(self.cx.now.unix_s + seconds);
    }

    /// What a stream from the beginning has: kinds, keys.
    fn stream(&mut self) -> Vec<(VersionKind, String)> {
        let news = Arc::new(News::new(Cookie { thread: 0, connection: 0, ticket: 1 }, 1));
        let position = Position { end: u64::MAX, ..Position::default() };
        let mut stream = self.bucket.follow(&mut self.cx, VbId(0), 1, &position, &news).unwrap();
        let mut seen = Vec::new();
        for _ in 0..100 {
            stream.advance(&mut self.cx, 10_000, &mut |event| {
                if let Event::Version(version) = event {
                    let name = String::from_utf8_lossy(&version.stored_key[1..]).into_owned();
                    seen.push((version.kind, name));
                }
            });
        }
        seen
    }
}

fn is_of(found: Option<Deletion>, mutated: Mutated) -> bool {
    found.is_some_and(|found| (found.cas, found.seqno) == (mutated.cas, mutated.seqno))
}

#[test]
fn a_flushed_deletion_is_found_until_it_is_old() {
    let mut world = persistent(64 << 20);
    world.set("a", 0);
    let removed = world.remove("a");
    let (before, _) = world.look("a");
    assert!(is_of(before, removed) && before.unwrap().rev == 2);
    world.flush();
    assert_eq!(world.look("a"), (before, false), "as before it was flushed");
    assert_eq!(world.look("b"), (None, false));
    world = world.restart(64 << 20);
    assert_eq!(world.look("a"), (before, false), "and after a restart");
    world.audit();
    // Stored again, and deleted again: the newest counts.
    world.set("a", 0);
    world.flush();
    assert_eq!(world.look("a"), (None, true));
    let removed = world.remove("a");
    world.flush();
    let (after, _) = world.look("a");
    assert!(is_of(after, removed) && after.unwrap().rev > before.unwrap().rev);
    // What expires is deleted.
    world.set("brief", START_S + 50);
    world.pass(60);
    assert!(world.look("brief").0.is_some());
    world.flush();
    assert!(world.look("brief").0.is_some());
    world.pass(AGE_S + 1);
    assert_eq!((world.look("a").0, world.look("brief").0), (None, None));
}

#[test]
fn a_flush_all_takes_deletions_along() {
    let mut world = persistent(64 << 20);
    for name in ["a", "b"] {
        world.set(name, 0);
        world.remove(name);
    }
    world.set("c", 0);
    world.flush();
    world.bucket.flush(&mut world.cx, 0).unwrap();
    assert_eq!(world.look("a"), (None, false));
    kv::pager::turn(&mut world.cx);
    world.audit();
    world.set("a", 0);
    let removed = world.remove("a");
    world.flush();
    assert!(is_of(world.look("a").0, removed) && world.look("b").0.is_none());
}

#[test]
fn notes_of_deletions_are_bounded_and_small() {
    let mut world = persistent(64 << 20);
    for number in 0..5000 {
        world.set(&format!("key-{number}"), 0);
    }
    world.flush();
    let all: Vec<_> = (0..5000).map(|number| world.remove(&format!("key-{number}"))).collect();
    let before = world.bucket.memory().index;
    world.flush();
    kv::pager::turn(&mut world.cx);
    for (number, removed) in all.iter().enumerate() {
        assert!(is_of(world.look(&format!("key-{number}")).0, *removed), "{number}");
    }
    let index = world.bucket.memory().index;
    assert!(index <= before.max(24 * 5000 + 4096), "{index} bytes, {before} before");
    // A bucket of 8 MiB keeps as many as fit into a 32nd of it: the newest.
    let mut small = persistent(8 << 20);
    for number in 0..20_000 {
        small.set(&format!("key-{number}"), 0);
        small.remove(&format!("key-{number}"));
        if number % 1000 == 999 {
            small.flush();
        }
    }
    let known = (0..20_000).filter(|number| small.look(&format!("key-{number}")).0.is_some()).count();
    assert!((8_000..=12_000).contains(&known), "{known}");
    assert!(small.look("key-19999").0.is_some() && small.look("key-0").0.is_none());
}

#[test]
fn an_ephemeral_bucket_keeps_deletions_only_if_it_is_to() {
    let mut world = ephemeral(0);
    world.set("a", 0);
    world.remove("a");
    assert_eq!(world.look("a"), (None, false));
    assert_eq!((world.stream(), kv::pager::turn(&mut world.cx).is_some()), (vec![], true));

    let mut world = ephemeral(AGE_S);
    world.set("a", 0);
    world.set("b", 0);
    world.set("brief", START_S + 50);
    let removed = world.remove("a");
    assert!(is_of(world.look("a").0, removed));
    assert_eq!(world.bucket.memory().items, 2);
    world.audit();
    world.pass(100);
    kv::pager::turn(&mut world.cx);
    assert!(world.look("brief").0.is_some());
    // A stream that begins now is told of them.
    let deleted = |kind, name: &str| (kind, name.to_owned());
    let expected = [
        deleted(VersionKind::Document, "b"),
        deleted(VersionKind::Deletion, "a"),
        deleted(VersionKind::Expiration, "brief"),
    ];
    assert_eq!(world.stream(), expected);
    // They stay when it has ended, and go when they are old.
    world.pass(400);
    kv::pager::turn(&mut world.cx);
    world.audit();
    assert!(is_of(world.look("a").0, removed) && world.look("brief").0.is_some());
    world.pass(AGE_S);
    kv::pager::turn(&mut world.cx);
    assert_eq!((world.look("a").0, world.look("brief").0), (None, None));
    world.audit();
    assert_eq!(world.bucket.memory().items, 1);
    // Stored over, and deleted once more.
    world.set("a", 0);
    world.remove("a");
    world.set("a", 0);
    assert_eq!(world.look("a"), (None, true));
    world.audit();
}

#[test]
fn tombstones_of_an_ephemeral_bucket_are_few() {
    let mut world = ephemeral(AGE_S);
    for number in 0..10_000 {
        world.set(&format!("key-{number}"), 0);
    }
    for number in 0..10_000 {
        world.remove(&format!("key-{number}"));
    }
    let known = (0..10_000).filter(|number| world.look(&format!("key-{number}")).0.is_some()).count();
    assert!(known <= 256 && world.look("key-9999").0.is_some(), "{known}");
    world.audit();
    world.bucket.flush(&mut world.cx, 0).unwrap();
    assert_eq!(world.look("key-9999").0, None);
    kv::pager::turn(&mut world.cx);
    world.audit();
    assert_eq!(world.bucket.memory().metadata, 0);
}

#[test]
fn what_expires_is_told_in_that_second() {
    let mut world = ephemeral(0);
    let news = Arc::new(News::new(Cookie { thread: 0, connection: 0, ticket: 1 }, 1));
    // Entered before anybody follows, and after: in all widths of the wheel.
    let expiries: Vec<u32> = [3, 40, 100, 3000, 100_000].iter().map(|after| START_S + after).collect();
    for expiry in &expiries {
        world.set(&format!("before-{expiry}"), *expiry);
    }
    let position = Position { end: u64::MAX, ..Position::default() };
    let mut stream = world.bucket.follow(&mut world.cx, VbId(0), 1, &position, &news).unwrap();
    for expiry in &expiries {
        world.set(&format!("after-{expiry}"), *expiry);
    }
    let (mut gone, mut turns) = (Vec::new(), 0);
    while let Some(due_s) = kv::pager::turn(&mut world.cx) {
        let now_s = world.cx.now.unix_s;
        for _ in 0..10 {
            stream.advance(&mut world.cx, 10_000, &mut |event| {
                if let Event::Version(version) = event
                    && version.kind == VersionKind::Expiration
                {
                    let name = String::from_utf8_lossy(&version.stored_key[1..]).into_owned();
                    let expiry: u32 = name.rsplit('-').next().unwrap().parse().unwrap();
                    assert_eq!(now_s, expiry, "{name}");
                    gone.push(name);
                }
            });
        }
        turns += 1;
        if gone.len() == 2 * expiries.len() || turns > 1000 {
            break;
        }
        assert!(due_s > now_s, "it would not sleep");
        world.cx.now = now(due_s);
    }
    assert_eq!(gone.len(), 2 * expiries.len(), "{gone:?}");
    assert!(turns < 300, "{turns}");
}
