//! A vBucket whose copy is no part of its source's history is refilled. The old copy stays until the new one is here:
//! what nodes have acknowledged must not be on fewer of them because the connection breaks in between.
//!
//! ```text
//!   "roll back" ──> waiting ──> collecting: the messages are kept, up to the end of the first snapshot
//!                                   │ too many bytes        │
//!                                   └───────────────┬───────┘
//!                                                replacing: they are taken, a slice per turn ──> an ordinary stream
//! ```
//! Only a few vBuckets collect at a time, and all of them together no more than a part of the bucket's budget. One that
//! is larger than that is emptied first, which the log says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kv::copying::{Collected, CopyOf, NotCopied};
use kv::follow::Position;
use kv::terms::Terms;
use kv::{Bucket, NodeContext, VbId};
use wire::binary::{HEADER_LEN, Header};
use wire::dcp::Message;

use super::{AGAIN_MS, Link, Stop};

/// VBuckets that collect, or are replaced, at a time.
const MOST: usize = 4;
/// All of them hold at most the bucket's budget divided by this.
const BUDGET_FRACTION: u64 = 8;
/// Messages are kept in pieces of this size, or one longer message.
const PIECE_BYTES: usize = 256 << 10;
/// So much is taken in a turn; then it is the turn of others.
const SLICE_BYTES: usize = 256 << 10;
const NEXT_SLICE_MS: u64 = 1;

/// The vBuckets of a connection that are refilled, or will be.
#[derive(Default)]
pub(super) struct Refills {
    /// Those that have not been asked for.
    waiting: BTreeSet<u16>,
    running: BTreeMap<u16, Refill>,
    /// What all of them hold.
    bytes: usize,
    /// When more of what was collected is taken.
    pub(super) due_ms: Option<u64>,
}

/// A vBucket that is refilled.
#[derive(Default)]
struct Refill {
    collected: Collected,
    /// Bytes of the first piece that were taken.
    taken: usize,
    /// The stream has sent its first marker.
    has_marker: bool,
    /// All of the new copy is here.
    is_complete: bool,
    /// The old copy is gone.
    is_replacing: bool,
}

impl Refills {
    /// Returns true if the messages of a vBucket are collected.
    pub(super) fn collects(&self, vb: u16) -> bool {
        self.running.contains_key(&vb)
    }

    /// Returns true if a message cannot come to be taken, since what is before it will not be whole.
    pub(super) fn is_given_up(&self, vb: u16, message: &Message<'_>) -> bool {
        let is_whole = self.running.get(&vb).is_some_and(|refill| refill.is_complete);
        matches!(message, Message::StreamEnd(_)) && !is_whole
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.running.values().flat_map(|refill| &refill.collected.pieces).map(Vec::capacity).sum()
    }

    /// Forgets a vBucket. Returns true if its old copy is gone.
    fn forget(&mut self, vb: u16) -> bool {
        self.waiting.remove(&vb);
        let refill = self.running.remove(&vb);
        self.bytes -= refill.as_ref().map_or(0, |refill| refill.collected.bytes);
        refill.is_some_and(|refill| refill.is_replacing)
    }

    fn keep(&mut self, vb: u16, frame: &[u8]) {
        let Some(refill) = self.running.get_mut(&vb) else { return };
        let Collected { pieces, bytes, .. } = &mut refill.collected;
        match pieces.back_mut().filter(|piece| piece.len() + frame.len() <= PIECE_BYTES) {
            Some(piece) => piece.extend_from_slice(frame),
            None => pieces.push_back(frame.to_vec()),
        }
        *bytes += frame.len();
        self.bytes += frame.len();
    }

    /// Removes what has been taken from the first piece, if that is all of it.
    fn drop_taken(&mut self, vb: u16) {
        let Some(refill) = self.running.get_mut(&vb) else { return };
        if refill.collected.pieces.front().is_some_and(|piece| piece.len() == refill.taken) {
            refill.collected.pieces.pop_front();
            refill.collected.bytes -= refill.taken;
            self.bytes -= refill.taken;
            refill.taken = 0;
        }
    }
}

impl Refill {
    /// Notes how far a message goes.
    fn note(&mut self, message: &Message<'_>) {
        let collected = &mut self.collected;
        match message {
            // The next one: the first was a short one.
            Message::Marker(_) if self.has_marker => self.is_complete = true,
            Message::Marker(marker) => {
                self.has_marker = true;
                let start = collected.snapshot.map_or(marker.start, |(start, _)| start);
                collected.snapshot = Some((start, marker.end));
            }
            _ => {
                collected.last = message.seqno().unwrap_or(collected.last);
                self.is_complete |= collected.snapshot.is_some_and(|(_, end)| collected.last >= end);
            }
        }
    }

    /// Returns from where its stream goes on.
    fn position(&self) -> Position {
        let Collected { histories, snapshot, last, .. } = &self.collected;
        let position = Position { end: u64::MAX, ..Position::default() };
        match *snapshot {
            Some((start, end)) if *last > 0 => {
                let uuid = histories.first().map_or(0, |(uuid, _)| *uuid);
                Position { start: *last, uuid, snapshot: (start, end), ..position }
            }
            _ => position,
        }
    }
}

impl Link {
    /// Refills a vBucket whose copy is no part of the source's history, now or once others are.
    pub(super) fn refill(&mut self, vb: u16, term: u64, cx: &mut NodeContext) {
        let (bucket, peer) = (Arc::clone(self.copier.bucket()), Arc::clone(self.copier.peer()));
        // Otherwise its role has changed, and there is news.
        if bucket.note_stale(cx, VbId(vb), CopyOf { term, peer: &peer }).is_ok() {
            self.refills.waiting.insert(vb);
            self.begin_refills(cx);
        }
    }

    /// Asks for those that wait, as far as there is room.
    fn begin_refills(&mut self, cx: &mut NodeContext) {
        while self.refills.running.len() < MOST
            && let Some(vb) = self.refills.waiting.pop_first()
        {
            if let Some(wanted) = self.wanted(vb, cx) {
                let collected = self.copier.bucket().take_collected(cx, VbId(vb));
                self.refills.bytes += collected.bytes;
                let refill = Refill { collected, ..Refill::default() };
                self.ask_for(vb, wanted, refill.position());
                self.refills.running.insert(vb, refill);
            }
        }
    }

    /// Notes that the source sends a vBucket from the beginning.
    pub(super) fn refill_begun(&mut self, vb: u16, log: Vec<(u64, u64)>, terms: Terms) {
        if let Some(refill) = self.refills.running.get_mut(&vb) {
            (refill.collected.histories, refill.collected.terms) = (log, terms);
        }
    }

    /// Keeps a message until all of the new copy is here.
    pub(super) fn collect(&mut self, vb: u16, message: &Message<'_>, frame: &[u8], cx: &NodeContext) {
        self.refills.keep(vb, frame);
        self.note_use();
        let most = usize::try_from(self.copier.bucket().budget_bytes() / BUDGET_FRACTION);
        let is_full = self.refills.bytes > most.unwrap_or(usize::MAX);
        let Some(refill) = self.refills.running.get_mut(&vb) else { return };
        refill.note(message);
        if is_full && !refill.is_complete {
            refill.is_complete = true;
            let bytes = refill.collected.bytes;
            self.complaint = Some(format!(
                "vBucket {vb}: its old copy goes first, since {bytes} bytes of the new one are more than may be kept"
            ));
        }
        if refill.is_complete {
            self.refills.due_ms.get_or_insert(cx.now.mono_ms());
        }
    }

    /// Gives up refilling a vBucket. Its old copy stays if it is still there.
    pub(super) fn forget_refill(&mut self, vb: u16, cx: &mut NodeContext) {
        if self.refills.forget(vb) {
            self.copier.bucket().end_refill(cx, VbId(vb));
        }
        if !self.refills.waiting.is_empty() {
            self.refills.due_ms.get_or_insert(cx.now.mono_ms());
        }
    }

    /// Leaves nothing half replaced, since the connection ends. What was collected is kept for the next one.
    pub(super) fn end_refills(&mut self, cx: &mut NodeContext) {
        self.refills.waiting.clear();
        while let Some((&vb, refill)) = self.refills.running.first_key_value() {
            if refill.is_replacing || refill.is_complete {
                while matches!(self.replace(vb, cx), Ok(false)) {}
            } else if let Some(refill) = self.refills.running.get_mut(&vb)
                && let Some(term) = self.streams.get(&vb).map(|copying| copying.term)
            {
                let collected = std::mem::take(&mut refill.collected);
                self.refills.bytes -= collected.bytes;
                let (bucket, peer) = (self.copier.bucket(), self.copier.peer());
                bucket.keep_collected(cx, VbId(vb), CopyOf { term, peer }, collected);
            }
            self.forget_refill(vb, cx);
        }
    }

    /// Takes what was collected, as far as a turn goes.
    pub(super) fn go_on_refilling(&mut self, cx: &mut NodeContext) {
        self.refills.due_ms = None;
        let ready = self.refills.running.iter().find(|(_, refill)| refill.is_complete).map(|(vb, _)| *vb);
        if let Some(vb) = ready {
            let mut again_ms = NEXT_SLICE_MS;
            match self.replace(vb, cx) {
                Ok(true) => {
                    self.forget_refill(vb, cx);
                    self.touched.insert(vb);
                }
                Ok(false) => {}
                Err(Stop::Later) => again_ms = AGAIN_MS,
                Err(Stop::Broken(why)) => self.break_off(vb, why, cx),
                Err(Stop::Failed(why)) => self.failure = Some(why),
            }
            self.refills.due_ms = Some(cx.now.mono_ms() + again_ms);
        }
        self.begin_refills(cx);
    }

    /// Takes a slice of what was collected. Returns true if it was the last.
    fn replace(&mut self, vb: u16, cx: &mut NodeContext) -> Result<bool, Stop> {
        let Some(term) = self.streams.get(&vb).map(|copying| copying.term) else { return Ok(true) };
        let (bucket, peer) = (Arc::clone(self.copier.bucket()), Arc::clone(self.copier.peer()));
        self.begin_replacing(vb, &bucket, CopyOf { term, peer: &peer }, cx)?;
        let mut slice = SLICE_BYTES;
        while let Some(refill) = self.refills.running.get_mut(&vb) {
            let Some(piece) = refill.collected.pieces.front_mut() else { return Ok(true) };
            if slice == 0 {
                return Ok(false);
            }
            let piece = std::mem::take(piece);
            let mut taken = refill.taken;
            let result = self.take_collected(vb, &piece, &mut taken, &mut slice, cx);
            if let Some(refill) = self.refills.running.get_mut(&vb)
                && let Some(place) = refill.collected.pieces.front_mut()
            {
                (*place, refill.taken) = (piece, taken);
                self.refills.drop_taken(vb);
            }
            result?;
        }
        // The stream has ended.
        Ok(true)
    }

    /// Empties the old copy, if that has not been done.
    fn begin_replacing(
        &mut self,
        vb: u16,
        bucket: &Bucket,
        of: CopyOf<'_>,
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        let Some(refill) = self.refills.running.get_mut(&vb).filter(|refill| !refill.is_replacing) else {
            return Ok(());
        };
        let stop = |error| match error {
            NotCopied::Later => Stop::Later,
            NotCopied::Role => Stop::Broken("its role has changed".to_owned()),
            NotCopied::Broken(why) => Stop::Broken(why.to_owned()),
        };
        // The messages themselves are counted already.
        bucket.begin_refill(cx, VbId(vb), of, 0).map_err(stop)?;
        refill.is_replacing = true;
        let Collected { histories, terms, .. } = &refill.collected;
        bucket.copy_begun(cx, VbId(vb), of, histories, terms).map_err(stop)
    }

    /// Takes messages of a piece, as far as a slice goes.
    fn take_collected(
        &mut self,
        vb: u16,
        piece: &[u8],
        taken: &mut usize,
        slice: &mut usize,
        cx: &mut NodeContext,
    ) -> Result<(), Stop> {
        while let Some(rest) = piece.get(*taken..).filter(|_| *slice > 0)
            && let Some(head) = rest.first_chunk()
        {
            let length = HEADER_LEN + Header::decode(head).body_len as usize;
            let Some(frame) = rest.get(..length) else { break };
            let (request, value) = super::parse(frame)?;
            if let Some(Ok((_, message))) = Message::decode(&request, value) {
                self.take_change(vb, &request, &message, cx)?;
            }
            *taken += length;
            *slice = slice.saturating_sub(length);
        }
        Ok(())
    }
}
