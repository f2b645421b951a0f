//! Reading on for streams: a thread reads pieces of journals, while no worker waits.
//!
//! A piece with long values is read into the bucket's memory, within its budget, and the values are sent from there. A
//! stream whose piece finds no room waits: the thread goes on with others, and tries again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;
use journal::log::{Place, ReadError, Record, SHOWN_MOST};

use crate::follow::{Piece, Stream, Wanted};
use crate::{Bucket, LargeItem, NodeContext, Now, Outcome, PinnedValue};

/// About as many bytes of the journal are read at a time.
const PIECE_BYTES: usize = 256 << 10;
/// A piece of more bytes has a long run, which is one long record, and is read into the bucket's memory.
const SHORT_BYTES: usize = 2 << 20;
/// While there is no memory for a piece, this passes between two attempts.
const AGAIN_MS: u64 = 20;

/// Asks for what comes next in a stream that has to be read from disk.
pub fn read_on(stream: &mut Stream, cx: &mut NodeContext) {
    let Some(wanted) = stream.ask(cx) else { return };
    let pieces = cx.node.pieces();
    pieces.wanted.lock().push_back(wanted);
    pieces.bell.ring();
}

/// What became of a piece that was asked for.
enum Reading {
    /// It was read; `None` if the journal cannot be read.
    Read(Option<Piece>),
    /// There is no memory for it now.
    NoRoom,
}

/// Where the runs of a piece are read to.
struct Runs<'a> {
    bucket: &'a Bucket,
    cx: &'a RefCell<&'a mut NodeContext>,
    /// For a piece without long values.
    short: &'a mut Vec<u8>,
    /// For any other, until it is read,
    long: Option<LargeItem>,
    /// and then.
    pinned: Option<PinnedValue>,
    /// The same, for the piece's values.
    read: &'a RefCell<Option<PinnedValue>>,
    /// There would be no memory for it even in an empty bucket.
    cannot_fit: bool,
}

impl Place for Runs<'_> {
    fn take(&mut self, bytes: usize) -> Option<&mut [u8]> {
        // First release what was taken for another attempt.
        (self.long, self.pinned) = (None, None);
        self.read.take();
        if bytes <= SHORT_BYTES {
            return self.short.take(bytes);
        }
        self.cannot_fit = !self.bucket.could_hold(bytes);
        let item = self.bucket.prepare_stored(&mut self.cx.borrow_mut(), 0, bytes).ok()?;
        Some(self.long.insert(item).window(0, bytes))
    }

    fn bytes(&mut self) -> &[u8] {
        if let Some(long) = self.long.take() {
            let pinned = PinnedValue::new(long.into_pin());
            self.read.replace(pinned.part(&pinned));
            self.pinned = Some(pinned);
        }
        match &self.pinned {
            Some(pinned) => pinned,
            None => self.short,
        }
    }
}

/// Reads the pieces. The caller owns the thread; it sleeps until its bell rings.
#[derive(Default)]
pub struct PieceReader {
    runs: Vec<u8>,
}

impl PieceReader {
    /// Reads all pieces that were asked for. Returns when to call again even if the bell does not ring, ms of the
    /// monotonic clock: some wait for memory.
    pub fn turn(&mut self, cx: &mut NodeContext, clock: &mut dyn FnMut() -> Now) -> Option<u64> {
        let node = Arc::clone(&cx.node);
        let pieces = node.pieces();
        pieces.bell.answer();
        cx.tend();
        let mut waiting = VecDeque::new();
        loop {
            let Some(wanted) = pieces.wanted.lock().pop_front() else { break };
            if Arc::strong_count(&wanted.shelf) == 1 {
                // The stream has ended.
                continue;
            }
            cx.now = clock();
            match self.read(cx, &wanted) {
                Reading::Read(piece) => wanted.shelf.put(piece),
                Reading::NoRoom => {
                    waiting.push_back(wanted);
                    cx.end_batch();
                    continue;
                }
            }
            if let Some(cookie) = wanted.news.note(wanted.vb.0) {
                cx.post(cookie, Outcome::Stirred);
            }
            cx.end_batch();
        }
        self.runs = Vec::new();
        cx.end_batch();
        let again_ms = (!waiting.is_empty()).then(|| clock().mono_ms() + AGAIN_MS);
        pieces.wanted.lock().extend(waiting);
        again_ms
    }

    fn read(&mut self, cx: &mut NodeContext, wanted: &Wanted) -> Reading {
        let Wanted { bucket, vb, base, after, end, .. } = wanted;
        let Some(persistence) = bucket.persistence() else { return Reading::Read(None) };
        let Some(shard) = persistence.shard_of(*vb) else { return Reading::Read(None) };
        let mut piece = Piece::default();
        let of_vbucket = |seqno: u64| seqno.saturating_sub(*base);
        let which = |kind, datatype, seqno| wanted.wants(kind, datatype, of_vbucket(seqno));
        let from_journal =
            journal::log::Wanted { vbucket: vb.0, after: base + after, end: base + end, which: &which };
        let (cx, read) = (RefCell::new(cx), RefCell::new(None));
        let mut runs = Runs {
            bucket,
            cx: &cx,
            short: &mut self.runs,
            long: None,
            pinned: None,
            read: &read,
            cannot_fit: false,
        };
        let result = shard.reader.read_in_order(&from_journal, PIECE_BYTES, &mut runs, &mut |records| {
            let records: ArrayVec<Record<'_>, SHOWN_MOST> =
                records.iter().map(|record| Record { seqno: of_vbucket(record.seqno), ..*record }).collect();
            let mut cx = cx.borrow_mut();
            let locked = bucket.lock(&mut cx, *vb);
            // A vBucket that has begun anew has lost its streams.
            if locked.base() != *base {
                return;
            }
            let are_current = locked.are_current(&records);
            // Copying may take long.
            drop(locked);
            for (record, _) in records.iter().zip(are_current).filter(|(_, is_current)| *is_current) {
                piece.push(record, persistence.datatype(record.datatype), read.borrow().as_ref());
            }
        });
        match result {
            Ok(reached) => {
                piece.set_reached(reached.saturating_sub(*base));
                Reading::Read(Some(piece))
            }
            Err(ReadError::NoRoom) if !runs.cannot_fit => Reading::NoRoom,
            Err(error) => {
                persistence.note_unreadable(&error);
                Reading::Read(None)
            }
        }
    }
}
