//! The work of a node's fetchers: ejected values that somebody waits for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::doorbell::Doorbell;
use crate::lock_order::{Ranked, rank};
use crate::{Bucket, KvError, VbId};

/// Called by the fetcher when the value is back or cannot be had; the request may be tried again then.
pub type FetchDone = Box<dyn FnOnce(Result<(), KvError>) + Send>;

/// A value that somebody waits for.
pub(crate) struct Fetch {
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) vb: VbId,
    pub(crate) hash: u64,
    /// Its seqno on disk.
    pub(crate) on_disk: u64,
    pub(crate) stored_key: Vec<u8>,
}

/// Identifies a value within a node: the address of its bucket, which its fetch keeps alive; vBucket; seqno on disk.
pub(crate) type Wanted = (usize, VbId, u64);

impl Fetch {
    pub(crate) fn wanted(&self) -> Wanted {
        (Arc::as_ptr(&self.bucket).addr(), self.vb, self.on_disk)
    }
}

/// The work of a fetcher.
#[derive(Default)]
pub(crate) struct FetchQueue {
    pub(crate) asked: Ranked<Asked, { rank::FETCHES }>,
    pub(crate) bell: Arc<Doorbell>,
}

#[derive(Default)]
pub(crate) struct Asked {
    /// In the order of the first request for each.
    pub(crate) not_begun: VecDeque<Fetch>,
    /// The callbacks that wait for each value, until it has been read.
    pub(crate) waiters: HashMap<Wanted, Vec<FetchDone>>,
}
