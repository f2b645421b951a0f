//! A connection that copies, and is told anything by the node that it copies from: messages that fit each other more or
//! less, and bytes. It does not panic, and what is active afterwards serves.
#![no_main]
#![allow(clippy::unwrap_used)]

#[path = "../../crates/sessions/tests/client/mod.rs"]
mod client;

use std::cell::RefCell;

use client::pair::{Pair, To, VBUCKETS, frames_of, settings, source};
use client::{Client, frame, store_extras};
use kv::role::TERM_MOST;
use kv::{RoleChange, VbId, VbState};
use libfuzzer_sys::fuzz_target;
use sessions::Port;
use wire::dcp::message::{
    Deletion, End, EndReason, Event, Marker, MarkerForm, Mutation, Prepare, Seqnos, SystemEvent,
};
use wire::dcp::{Message, Place};

const STREAM_REQ: u8 = 0x53;
const SET: u8 = 0x01;
const GET: u8 = 0x00;
const RE_COMMIT: u16 = 0xa4;

/// Numbers and bytes of the input; zeros and nothing past its end.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, most: u8) -> &'a [u8] {
        let count = usize::from(self.byte() % (most + 1)).min(self.0.len());
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    /// Mostly small, sometimes anything.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => self.bytes(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
            small => small.into(),
        }
    }

    /// Mostly the number behind this one.
    fn behind(&mut self, last: u64) -> u64 {
        match self.byte() {
            255 => self.number(),
            step if step < 200 => last.saturating_add(1),
            step => last.saturating_add(u64::from(step)).saturating_sub(205),
        }
    }
}

/// What a stream says next.
fn message<'a>(input: &mut Input<'a>, last: &mut u64) -> Message<'a> {
    let kind = input.byte() % 14;
    let seqno = input.behind(*last);
    if kind == 0 {
        let end = seqno.saturating_add(input.number());
        let seqnos = Seqnos { visible: end, ..Seqnos::default() };
        return Message::Marker(Marker { start: *last, end, kind: 5, form: MarkerForm::V1, seqnos });
    }
    *last = seqno;
    let (key, value, datatype) = (input.bytes(40), input.bytes(90), input.byte() & 7);
    let (rev, cas, expiry) = (input.number(), input.number(), input.number() as u32);
    let mutation = Mutation { seqno, rev, cas, flags: 0, expiry, lock_time: 0, datatype, key, value };
    let deletion = Deletion { seqno, rev, cas, deleted_s: Some(expiry), datatype, key, value };
    let end = End { prepared: seqno.saturating_sub(cas), seqno, key };
    let (scope, id) = (rev as u32, expiry);
    match kind {
        1..=3 => Message::Mutation(mutation),
        4 => Message::Deletion(deletion),
        5 => Message::Expiration(deletion),
        6 => Message::Prepare(Prepare { mutation, is_deletion: datatype == 1, level: 1 + datatype % 3 }),
        7 => Message::Commit(end),
        8 => Message::Abort(end),
        9 => Message::SeqnoAdvanced(seqno),
        10 => {
            let event = match datatype {
                0 => Event::CreateScope { id: scope, name: key },
                1 => Event::DropScope { id: scope },
                2 => Event::DropCollection { scope, id },
                _ => Event::CreateCollection { scope, id, max_ttl: (datatype > 5).then_some(9), name: key },
            };
            Message::SystemEvent(SystemEvent { seqno, manifest: cas, event })
        }
        11 => Message::StreamEnd(EndReason::StateChanged),
        12 => Message::SetVBucketState(datatype),
        _ => Message::OutOfOrder(datatype == 1),
    }
}

thread_local! {
    /// The other node, which says the truth and does not change; logins are what takes longest.
    static SOURCE: RefCell<Option<Client>> = const { RefCell::new(None) };
}

fuzz_target!(|input: &[u8]| {
    let writer = SOURCE.take().unwrap_or_else(source);
    let mut pair = Pair::of(writer, Client::before(Port::Memcached, settings()));
    pair.connect();
    let mut opaques = Vec::new();
    pair.talk(&mut |to, bytes| {
        if to == To::Source {
            let frames = frames_of(&bytes);
            let asked = frames.iter().filter(|frame| frame[1] == STREAM_REQ);
            opaques.extend(asked.map(|frame| u32::from_be_bytes(frame[12..16].try_into().unwrap())));
        }
        bytes
    });
    assert_eq!(opaques.len(), usize::from(VBUCKETS));
    let (mut input, mut last) = (Input(input), [0; VBUCKETS as usize]);
    let mut told = Vec::new();
    while !input.0.is_empty() {
        let head = input.byte();
        let vb = usize::from(head & 1);
        let place = Place { vbucket: vb as u16, opaque: opaques[vb], stream_id: None };
        if head == 255 {
            told.extend_from_slice(input.bytes(60));
        } else {
            message(&mut input, &mut last[vb]).encode(&place, &mut told);
        }
        if head & 0x30 == 0
            && let Some((_, link)) = &mut pair.ends
        {
            link.send_raw(&told);
            link.messages();
            told.clear();
        }
    }
    if let Some((_, link)) = &mut pair.ends {
        link.send_raw(&told);
        link.messages();
        link.pass_ms(50);
        let mut out = sessions::Output::default();
        link.session.send_noop(&mut link.cx, &mut out);
    }
    pair.ends = None;
    let bucket = pair.copy.node.bucket("default").unwrap();
    for vb in 0..VBUCKETS {
        let term = bucket.standing(VbId(vb)).1 + 1;
        let change = RoleChange { state: Some(VbState::Active), term: Some(term), ..RoleChange::default() };
        // It may have been told of the highest there is.
        if bucket.set_role(&mut pair.copy.cx, VbId(vb), change).is_err() {
            assert_eq!(term, TERM_MOST + 1);
            SOURCE.set(Some(pair.writer));
            return;
        }
    }
    pair.copy.letters();
    for key in [&b"a key"[..], b"one", b"more", b"and this one"] {
        let set = frame(SET).key(key).value(b"all").extras(&store_extras(0, 0));
        match pair.copy.ask(set).status {
            0 => assert_eq!(pair.copy.ask(frame(GET).key(key)).body, b"all"),
            // What was prepared waits for the other node.
            status => assert_eq!(status, RE_COMMIT),
        }
    }
    bucket.audit(&mut pair.copy.cx).unwrap();
    SOURCE.set(Some(pair.writer));
});
