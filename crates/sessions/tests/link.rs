//! A connection that copies, and the session at its other end, without sockets: cut everywhere, and between two that
//! lie.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;

use std::collections::BTreeMap;
use std::sync::Arc;

use client::pair::{HEADER_LEN, Pair, To, VBUCKETS, frames_of};
use client::{Client, Frame, frame, store_extras};
use kv::follow::{Advanced, Event, Position, VersionKind};
use kv::news::News;
use kv::{Cookie, NodeContext, RoleChange, VbId, VbState};
use proptest::prelude::*;

const SET: u8 = 0x01;
const DELETE: u8 = 0x04;
const GET: u8 = 0x00;
const NOOP: u8 = 0x5c;
const SUBDOC_DICT_UPSERT: u8 = 0xc8;
const RE_COMMIT: u16 = 0xa4;

impl Pair {
    /// Writes some of everything; returns how many durable writes will be answered.
    fn write(&mut self, round: u32) -> usize {
        let set = |key: String, value: &[u8]| {
            frame(SET)
                .key(key.as_bytes())
                .value(value)
                .extras(&store_extras(round, 0))
                .vbucket(round as u16 % 2)
        };
        let removed = frame(DELETE).key(format!("key-{}", round.saturating_sub(1)).as_bytes());
        let durable = |frame: Frame| frame.framing(&[0x13, 1, 0xff, 0xfe]);
        let path = [&3u16.to_be_bytes()[..], &[0x04], &[0x01]].concat();
        if round == 2 {
            let bucket = self.writer.node.bucket("default").unwrap();
            bucket.flush(&mut self.writer.cx, 0).unwrap();
        }
        let mut frames = vec![
            set(format!("key-{round}"), b"first"),
            durable(set(format!("durable-{round}"), b"prepared")),
            frame(SUBDOC_DICT_UPSERT)
                .key(format!("document-{round}").as_bytes())
                .extras(&path)
                .value(b"a.b1"),
            set(format!("key-{round}"), b"second"),
            removed.vbucket((round as u16 + 1) % 2),
            set(format!("large-{round}"), &vec![round as u8; 40_000]),
        ];
        for (number, frame) in frames.iter_mut().enumerate() {
            *frame = frame.clone().opaque(number as u32);
        }
        let answers = self.writer.ask_all(&frames);
        assert!(answers.iter().all(|answer| matches!(answer.status, 0 | 1)), "{answers:?}");
        1 - answers.iter().filter(|answer| answer.opaque == 1).count()
    }

    fn assert_equal(&mut self) {
        for vb in (0..VBUCKETS).map(VbId) {
            let nodes = [&self.writer.node, &self.copy.node];
            let [active, copy] = nodes.map(|node| node.bucket("default").unwrap());
            assert_eq!(active.vb_info(vb).unwrap().high_seqno, copy.vb_info(vb).unwrap().high_seqno);
            assert_eq!(content(&mut self.writer, vb), content(&mut self.copy, vb));
            assert_eq!(active.vb_uuid(vb), copy.vb_uuid(vb));
        }
    }
}

/// What a vBucket has, as whoever follows it from the beginning is sent it.
fn content(client: &mut Client, vb: VbId) -> BTreeMap<Vec<u8>, String> {
    let news = Arc::new(News::new(Cookie { thread: 0, connection: 0, ticket: 1 }, VBUCKETS));
    let bucket = client.node.bucket("default").unwrap();
    let cx: &mut NodeContext = &mut client.cx;
    let position = Position { end: u64::MAX, ..Position::default() };
    let mut stream = bucket.follow(cx, vb, u64::MAX, &position, &news).unwrap();
    let mut content = BTreeMap::new();
    loop {
        let advanced = stream.advance(cx, 1 << 20, &mut |event| {
            let Event::Version(version) = event else { return };
            let key = version.stored_key.to_vec();
            if matches!(version.kind, VersionKind::Deletion | VersionKind::Expiration | VersionKind::Abort) {
                content.remove(&key);
            } else {
                let (value, cas) = (version.value.bytes(), version.cas);
                let shown =
                    format!("{:?} {} {cas} {} {value:?}", version.kind, version.seqno, version.datatype);
                content.insert(key, shown);
            }
        });
        match advanced {
            Advanced::Idle => return content,
            Advanced::More => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Writes, with the connection cut once: when so many bytes have been said to one of them. Returns what was said.
fn cut_at(to: To, limit: usize) -> BTreeMap<u8, Vec<u8>> {
    let (mut said, mut left) = (BTreeMap::<u8, Vec<u8>>::new(), Some(limit));
    let mut pair = Pair::new();
    pair.connect();
    let mut unanswered = 0;
    for round in 0..4 {
        unanswered += pair.write(round);
        let mut is_cut = false;
        pair.talk(&mut |receiver, mut bytes| {
            if is_cut {
                return Vec::new();
            }
            said.entry(receiver as u8).or_default().extend(&bytes);
            if let Some(more) = left.filter(|_| receiver == to) {
                is_cut = bytes.len() >= more;
                bytes.truncate(more);
                left = (!is_cut).then(|| more - bytes.len());
            }
            bytes
        });
        if is_cut {
            pair.connect();
            assert!(pair.talk(&mut |_, bytes| bytes), "cut after {limit} bytes to {to:?}");
        }
        unanswered -= pair.writer.letters().len();
        // The flush has ended those that were prepared.
        assert_eq!(unanswered, 0, "round {round}, cut after {limit} bytes to {to:?}");
    }
    pair.assert_equal();
    said
}

#[test]
fn a_copy_is_complete_wherever_its_connection_was_cut() {
    let said = cut_at(To::Copy, usize::MAX);
    for to in [To::Source, To::Copy] {
        let mut at = 0;
        for frame in frames_of(&said[&(to as u8)]) {
            for limit in [at, at + 1, at + HEADER_LEN, at + frame.len() - 1] {
                cut_at(to, limit);
            }
            at += frame.len();
        }
        assert!(at > 1000, "too little was said to {to:?}");
    }
}

fn role(client: &mut Client, state: VbState, term: u64) {
    let bucket = client.node.bucket("default").unwrap();
    for vb in 0..VBUCKETS {
        let source = (state == VbState::Replica).then(|| "a".into());
        let change = RoleChange {
            state: Some(state),
            term: Some(term),
            source: Some(source),
            ..RoleChange::default()
        };
        bucket.set_role(&mut client.cx, VbId(vb), change).unwrap();
    }
}

/// A pair whose copy was the active for a while, and has what the other lacks.
fn diverged() -> Pair {
    let mut pair = Pair::new();
    pair.connect();
    for round in 0..2 {
        pair.write(round);
        assert!(pair.talk(&mut |_, bytes| bytes));
    }
    role(&mut pair.copy, VbState::Active, 2);
    for number in 0..40u16 {
        let key = format!("only-here-{number}");
        let set =
            frame(SET).key(key.as_bytes()).value(b"plain").extras(&store_extras(0, 0)).vbucket(number % 2);
        assert_eq!(pair.copy.ask(set).status, 0);
    }
    role(&mut pair.writer, VbState::Active, 3);
    pair.write(2);
    role(&mut pair.copy, VbState::Replica, 3);
    pair.connect();
    pair
}

/// Wherever the connection is cut, a vBucket has all of what it had or all of what the active has.
#[test]
fn a_copy_keeps_what_it_has_until_the_new_one_is_here() {
    let (mut olds, mut news) = (0, 0);
    let mut whole = 0;
    let mut pair = diverged();
    assert!(pair.talk(&mut |to, bytes| {
        whole += if to == To::Copy { bytes.len() } else { 0 };
        bytes
    }));
    pair.assert_equal();
    // Most of it is one long value.
    for limit in (0..whole - 3000).step_by(997).chain((whole - 3000..whole).step_by(23)) {
        let mut pair = diverged();
        let old: Vec<_> = (0..VBUCKETS).map(|vb| content(&mut pair.copy, VbId(vb))).collect();
        let [active, copy] = [&pair.writer.node, &pair.copy.node].map(|node| node.bucket("default").unwrap());
        let highs: Vec<u64> = (0..VBUCKETS).map(|vb| active.vb_info(VbId(vb)).unwrap().high_seqno).collect();
        let (mut left, mut is_cut) = (limit, false);
        pair.talk(&mut |to, mut bytes| {
            if to == To::Copy {
                is_cut |= bytes.len() > left;
                bytes.truncate(left);
                left -= bytes.len();
            }
            if is_cut && to == To::Source { Vec::new() } else { bytes }
        });
        if let Some((_, link)) = &mut pair.ends {
            link.session.close_link(&mut link.cx);
        }
        pair.ends = None;
        for vb in 0..VBUCKETS {
            let is_old = content(&mut pair.copy, VbId(vb)) == old[usize::from(vb)];
            // What came after that may be missing.
            let has_all = copy.complete_seqno(&mut pair.copy.cx, VbId(vb)) >= highs[usize::from(vb)];
            let is_new = has_all && copy.vb_uuid(VbId(vb)) == active.vb_uuid(VbId(vb));
            assert!(is_old || is_new, "cut after {limit} of {whole}");
            olds += u32::from(is_old);
            news += u32::from(is_new);
        }
        // And then it goes on.
        pair.connect();
        assert!(pair.talk(&mut |_, bytes| bytes));
        pair.assert_equal();
    }
    assert!(olds > 20 && news > 5, "{olds} {news}");
}

#[test]
fn who_finds_no_room_answers_noops_and_goes_on() {
    let mut pair = Pair::new();
    pair.connect();
    assert!(pair.talk(&mut |_, bytes| bytes));
    let bucket = pair.copy.node.bucket("default").unwrap();
    bucket.set_budget(1);
    pair.write(0);
    pair.writer.cx.end_batch();
    let (source, link) = pair.ends.as_mut().unwrap();
    let told = source.messages();
    assert!(told.len() > 40_000);
    link.send_raw(&told);
    let noop = frame(NOOP).opaque(7).bytes();
    link.send_raw(&noop);
    link.send_raw(&noop);
    let answer = [0x81, NOOP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    let said = link.messages();
    assert_eq!(frames_of(&said).iter().filter(|frame| frame.starts_with(&answer)).count(), 2);
    bucket.set_budget(256 << 20);
    assert!(pair.talk(&mut |_, bytes| bytes));
    pair.assert_equal();
}

/// What is done to one of the frames.
#[derive(Debug, Clone, Copy)]
enum Lie {
    Lost,
    Twice,
    /// Comes after the next one.
    Late,
    /// A byte, counted from the front or, if negative, from the end.
    Byte(i16, u8),
}

fn lie() -> impl Strategy<Value = Lie> {
    prop_oneof![
        1 => Just(Lie::Lost),
        1 => Just(Lie::Twice),
        1 => Just(Lie::Late),
        8 => (-60i16..60, any::<u8>()).prop_map(|(at, byte)| Lie::Byte(at, byte)),
        2 => (-60i16..60, 0u8..4).prop_map(|(at, byte)| Lie::Byte(at, byte)),
    ]
}

/// A byte that lies about a length would make the rest one frame; that is another test's.
fn lied(frames: Vec<Vec<u8>>, first: usize, lies: &BTreeMap<usize, Lie>) -> Vec<u8> {
    let (mut bytes, mut late) = (Vec::new(), None::<Vec<u8>>);
    for (number, mut frame) in frames.into_iter().enumerate() {
        let kept = late.take();
        match lies.get(&(first + number)) {
            None => bytes.extend(frame),
            Some(Lie::Lost) => {}
            Some(Lie::Twice) => {
                bytes.extend(&frame);
                bytes.extend(frame);
            }
            Some(Lie::Late) => late = Some(frame),
            Some(&Lie::Byte(at, byte)) => {
                let at = if at < 0 { frame.len() as isize + at as isize } else { at as isize };
                if let Some(there) = usize::try_from(at).ok().and_then(|at| frame.get_mut(at)) {
                    *there = byte;
                }
                bytes.extend(frame);
            }
        }
        bytes.extend(kept.unwrap_or_default());
    }
    bytes.extend(late.unwrap_or_default());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever one end is told, it does not panic, and whoever is active afterwards serves.
    #[test]
    fn lies_break_neither_end(
        to_source in proptest::collection::btree_map(0usize..60, lie(), 0..3),
        to_copy in proptest::collection::btree_map(0usize..120, lie(), 0..6),
    ) {
        let mut pair = Pair::new();
        pair.connect();
        let mut counts = [0; 2];
        for round in 0..4 {
            pair.write(round);
            let goes_on = pair.talk(&mut |to, bytes| {
                let (first, lies) = match to {
                    To::Source => (&mut counts[0], &to_source),
                    To::Copy => (&mut counts[1], &to_copy),
                };
                let frames = frames_of(&bytes);
                let lied = lied(frames.clone(), *first, lies);
                *first += frames.len();
                lied
            });
            if !goes_on {
                pair.connect();
            }
        }
        pair.ends = None;
        for vb in 0..VBUCKETS {
            let bucket = pair.copy.node.bucket("default").unwrap();
            let term = bucket.standing(VbId(vb)).1 + 1;
            let change = RoleChange { state: Some(VbState::Active), term: Some(term), ..RoleChange::default() };
            bucket.set_role(&mut pair.copy.cx, VbId(vb), change).unwrap();
            for client in [&mut pair.copy, &mut pair.writer] {
                client.letters();
                let set = frame(SET).key(b"after").value(b"all").extras(&store_extras(0, 0)).vbucket(vb);
                prop_assert_eq!(client.ask(set).status, 0);
                prop_assert_eq!(client.ask(frame(GET).key(b"after").vbucket(vb)).body, b"all");
                let status = client.ask(frame(GET).key(b"durable-0").vbucket(vb)).status;
                prop_assert!(matches!(status, 0 | 1 | RE_COMMIT));
            }
            content(&mut pair.copy, VbId(vb));
            bucket.audit(&mut pair.copy.cx).unwrap();
        }
    }
}
