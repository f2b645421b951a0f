//! flush_all: what is there is gone at once, and reclaimed in the background.

use super::dirty::DirtySet;
use super::vbucket::VBucket;
use crate::Cookie;
use crate::sync_writes::Copied;
use crate::terms::Terms;

/// What flush_all has done to a vBucket.
#[derive(Default)]
pub(crate) struct Flushed {
    /// There was something.
    pub(crate) is_any: bool,
    /// What comes is part of another history.
    pub(crate) has_other_history: bool,
}

impl VBucket {
    /// flush_all: removes what is there now, unless another node decides that. `other`: the id of a history that begins
    /// if the vBucket is not active: what it had is no part of any. `calls`: followers to be told.
    pub(crate) fn flush(
        &self,
        dirty: Option<&DirtySet>,
        vb: u16,
        other: u64,
        calls: &mut Vec<Cookie>,
    ) -> Flushed {
        let mut state = self.state.lock();
        let sync = state.rare.as_ref().and_then(|rare| rare.sync_writes.as_ref());
        if sync.is_some_and(|sync| sync.is_copy()) {
            return Flushed::default();
        }
        if let Some(durable) = state.rare.as_mut().and_then(|rare| rare.durable.as_mut()) {
            durable.state_version += 1;
            if let Some(replay) = &mut durable.replay {
                replay.flush();
                return Flushed::default();
            }
            if let Some(dirty) = dirty {
                dirty.mark(vb);
            }
        }
        if state.table.items > 0 {
            // Whoever has everything up to now must notice that it is gone.
            state.high_seqno += 1;
        }
        state.flushed_seqno = state.high_seqno;
        let flushed_seqno = state.flushed_seqno;
        if let Some(followers) = state.rare.as_mut().and_then(|rare| rare.followers.as_mut()) {
            followers.forget(flushed_seqno, u32::MAX, vb, calls);
        }
        let (is_any, has_other_history) = (state.table.items > 0, state.is_inactive());
        if has_other_history && let Some(rare) = state.rare.as_deref_mut() {
            let durable = rare.durable.get_or_insert_default();
            (durable.histories, durable.terms) = (vec![(other, flushed_seqno)], Terms::default());
            if let Some(sync) = rare.sync_writes.as_deref_mut() {
                sync.copied = Copied { is_any: true, is_emptied: true, ..Copied::default() };
            }
        }
        Flushed { is_any, has_other_history }
    }
}
