//! What a bucket does behind its clients' requests: figures of durable writes, defragmenter and compressor.

use super::{Bucket, DefragmenterFigures};
use crate::index::Locked;
use crate::{ThreadContext, VbId};

/// Figures of a bucket's work in the background, read at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkFigures {
    /// Durable writes that wait to be committed or aborted.
    pub sync_writes_pending: u64,
    /// Those of them whose clients were told "ambiguous" at the deadline.
    pub sync_writes_overdue: u64,
    /// Microseconds since the oldest of them was made; 0 without one.
    pub oldest_pending_us: u64,
    /// How late an "ambiguous" answer was at most, microseconds.
    pub late_max_us: u64,
    /// The defragmenter's state.
    pub defragmenter: DefragmenterFigures,
    /// Whether the compressor is at work.
    pub is_compressing: bool,
}

impl Bucket {
    /// Returns the figures of what is done in the background; visits all vBuckets.
    pub fn work_figures(&self, cx: &mut ThreadContext) -> WorkFigures {
        let mut figures = WorkFigures {
            sync_writes_pending: 0,
            sync_writes_overdue: 0,
            oldest_pending_us: 0,
            late_max_us: self.lateness.max_us(),
            defragmenter: self.defragmenter(),
            is_compressing: self.is_compressing(),
        };
        for vb in (0..self.vbuckets()).map(VbId) {
            let now_ns = cx.now.unix_ns;
            let locked = self.lock(cx, vb);
            let Some(sync) = locked.sync_writes() else { continue };
            figures.sync_writes_pending += sync.monitor.len() as u64;
            figures.sync_writes_overdue += sync.monitor.overdue() as u64;
            let age_us = locked.oldest_prepare_ns().map_or(0, |ns| now_ns.saturating_sub(ns) / 1000);
            figures.oldest_pending_us = figures.oldest_pending_us.max(age_us);
        }
        figures
    }
}

impl Locked<'_> {
    /// Returns when the oldest pending write was made, nanoseconds since 1970: its CAS, which is the time of the clock
    /// unless changes came faster than that, or the client named one. Prepares end in seqno order, so it is the first.
    fn oldest_prepare_ns(&self) -> Option<u64> {
        let seqno = self.sync_writes()?.monitor.first_seqno()?;
        self.prepared_cas(seqno)
    }
}
