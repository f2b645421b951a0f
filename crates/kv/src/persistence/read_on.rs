//! Reading on for streams: a thread reads pieces of journals, while no worker waits.

use std::sync::Arc;

use arrayvec::ArrayVec;
use journal::log::{Record, SHOWN_MOST};

use crate::follow::{Piece, Stream, Wanted};
use crate::{NodeContext, Now, Outcome};

/// About as many bytes of the journal are read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Asks for what comes next in a stream that has to be read from disk.
pub fn read_on(stream: &mut Stream, cx: &mut NodeContext) {
    let Some(wanted) = stream.ask(cx) else { return };
    let pieces = cx.node.pieces();
    pieces.wanted.lock().push_back(wanted);
    pieces.bell.ring();
}

/// Reads the pieces. The caller owns the thread; it sleeps until its bell rings.
#[derive(Default)]
pub struct PieceReader {
    runs: Vec<u8>,
}

impl PieceReader {
    /// Reads all pieces that were asked for.
    pub fn turn(&mut self, cx: &mut NodeContext, clock: &mut dyn FnMut() -> Now) {
        let node = Arc::clone(&cx.node);
        let pieces = node.pieces();
        pieces.bell.answer();
        cx.tend();
        loop {
            let Some(wanted) = pieces.wanted.lock().pop_front() else { break };
            if Arc::strong_count(&wanted.shelf) == 1 {
                // The stream has ended.
                continue;
            }
            cx.now = clock();
            let piece = self.read(cx, &wanted);
            wanted.shelf.put(piece);
            if let Some(cookie) = wanted.news.note(wanted.vb.0) {
                cx.post(cookie, Outcome::Stirred);
            }
            cx.end_batch();
        }
        self.runs = Vec::new();
        cx.end_batch();
    }

    fn read(&mut self, cx: &mut NodeContext, wanted: &Wanted) -> Option<Piece> {
        let Wanted { bucket, vb, base, after, end, .. } = wanted;
        let persistence = bucket.persistence()?;
        let shard = persistence.shard_of(*vb)?;
        let mut piece = Piece::default();
        let of_vbucket = |seqno: u64| seqno.saturating_sub(*base);
        let which = |kind, datatype, seqno| wanted.wants(kind, datatype, of_vbucket(seqno));
        let from_journal =
            journal::log::Wanted { vbucket: vb.0, after: base + after, end: base + end, which: &which };
        let read = shard.reader.read_in_order(&from_journal, PIECE_BYTES, &mut self.runs, &mut |records| {
            let records: ArrayVec<Record<'_>, SHOWN_MOST> =
                records.iter().map(|record| Record { seqno: of_vbucket(record.seqno), ..*record }).collect();
            let locked = bucket.lock(cx, *vb);
            // A vBucket that has begun anew has lost its streams.
            if locked.base() != *base {
                return;
            }
            let are_current = locked.are_current(&records);
            // Copying may take long.
            drop(locked);
            for (record, _) in records.iter().zip(are_current).filter(|(_, is_current)| *is_current) {
                piece.push(record, persistence.datatype(record.datatype));
            }
        });
        match read {
            Ok(reached) => {
                piece.set_reached(reached.saturating_sub(*base));
                Some(piece)
            }
            Err(error) => {
                persistence.note_unreadable(&error);
                None
            }
        }
    }
}
