//! Locked documents (GET_LOCKED): a side table, since most vBuckets never have one.

use super::vbucket::Locked;
use crate::KvError;

#[derive(Clone, Copy)]
pub(super) struct DocumentLock {
    /// The locked item: nothing changes its seqno while it is locked.
    seqno: u64,
    until_s: u32,
}

impl Locked<'_> {
    /// Whether any document of the vBucket may be locked, or waits for a commit.
    #[inline]
    pub(crate) fn has_holds(&self) -> bool {
        self.state
            .rare
            .as_ref()
            .is_some_and(|rare| !rare.locks.as_slice().is_empty() || rare.prepares.is_some())
    }

    /// Until when a document is locked, if it is.
    #[inline]
    pub(crate) fn locked_until(&self, seqno: u64) -> Option<u32> {
        let rare = self.state.rare.as_ref()?;
        let lock = rare.locks.as_slice().iter().find(|lock| lock.seqno == seqno)?;
        (lock.until_s > self.now.unix_s).then_some(lock.until_s)
    }

    pub(crate) fn lock_seqno(&mut self, seqno: u64, until_s: u32) -> Result<(), KvError> {
        let now_s = self.now.unix_s;
        let locks = &mut self.state.rare.get_or_insert_default().locks;
        for at in (0..locks.as_slice().len()).rev() {
            if locks.as_slice()[at].until_s <= now_s || locks.as_slice()[at].seqno == seqno {
                locks.remove(at);
            }
        }
        let pushed =
            locks.push(&self.memory.ground.tenant, self.memory.cache, DocumentLock { seqno, until_s });
        if pushed { Ok(()) } else { Err(KvError::NoMemory) }
    }

    pub(crate) fn unlock_seqno(&mut self, seqno: u64) {
        if let Some(rare) = &mut self.state.rare
            && let Some(at) = rare.locks.as_slice().iter().position(|lock| lock.seqno == seqno)
        {
            rare.locks.remove(at);
            if rare.locks.as_slice().is_empty() {
                rare.locks.clear(&self.memory.ground.tenant, self.memory.cache);
            }
        }
    }
}
