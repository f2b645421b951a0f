//! flush_all: removes what was stored before some moment. The items are reclaimed in the background.

use std::ops::RangeInclusive;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

use super::{Bucket, attention};
use crate::storage::Persistence;
use crate::{KvError, Meter, Outcome, ThreadContext, VbId};

impl Bucket {
    /// flush_all: removes everything stored until now (`at_unix_s` 0), or until that time once it has come. Replaces a
    /// delayed flush.
    ///
    /// [`KvError::WarmingUp`] while any vBucket is still being read from disk. The content of such a vBucket is not
    /// known yet, so its flush could not be written down; kept in memory it would be lost in a crash, and documents
    /// that the client was told are gone would come back. Reads and writes are refused then, too. A damaged vBucket
    /// stays as it is: nobody can read it.
    pub fn flush(&self, cx: &mut ThreadContext, at_unix_s: u32) -> Result<(), KvError> {
        if self.attention.load(Relaxed) & attention::GATES != 0
            && self.persistence().is_some_and(Persistence::is_warming_up)
        {
            return Err(KvError::WarmingUp);
        }
        self.count(cx, Meter::CmdFlush, 1);
        if at_unix_s > cx.now.unix_s {
            self.flush_at_s.store(at_unix_s, SeqCst);
            self.raise(attention::FLUSH);
            self.doorbell.ring();
        } else {
            self.flush_at_s.store(0, SeqCst);
            self.flush_now(cx);
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn flush_when_due(&self, cx: &ThreadContext) {
        let at_s = self.flush_at_s.load(SeqCst);
        if at_s == 0 || at_s > cx.now.unix_s {
            return;
        }
        // ORDERING: cleared before the time is taken: a flush_all requested meanwhile sets it again after it has set
        // its time.
        self.lower(attention::FLUSH);
        if self.flush_at_s.compare_exchange(at_s, 0, SeqCst, SeqCst).is_ok() {
            self.flush_now(cx);
        } else if self.flush_at_s.load(SeqCst) != 0 {
            self.raise(attention::FLUSH);
        }
    }

    /// Removes everything stored in one vBucket until now.
    pub(crate) fn flush_vbucket(&self, cx: &ThreadContext, vb: VbId) {
        self.flush_range(cx, vb.0..=vb.0);
    }

    fn flush_now(&self, cx: &ThreadContext) {
        self.flush_range(cx, 0..=self.vbucket_mask);
    }

    fn flush_range(&self, cx: &ThreadContext, vbs: RangeInclusive<u16>) {
        let (mut any, mut calls) = (false, Vec::new());
        for vb in vbs {
            let other = self.fresh_history(cx.now.unix_ns, VbId(vb));
            let flushed = self.vbucket(VbId(vb)).flush(self.dirty(), vb, other, &mut calls);
            any |= flushed.is_any;
            if flushed.has_other_history {
                self.set_vb_uuid(VbId(vb), other);
            }
        }
        for cookie in calls {
            cx.hub.post(cookie, Outcome::Stirred);
        }
        if any {
            self.note_flushed();
        }
    }

    /// Notes that there are flushed items to be reclaimed.
    pub(crate) fn note_flushed(&self) {
        self.flushed.store(true, Relaxed);
        self.doorbell.ring();
    }

    /// Returns when a delayed flush is due, in unix seconds.
    pub(crate) fn flush_due_s(&self) -> Option<u32> {
        Some(self.flush_at_s.load(Relaxed)).filter(|at| *at != 0)
    }

    pub(crate) fn take_flushed(&self) -> bool {
        self.flushed.swap(false, Relaxed)
    }
}
