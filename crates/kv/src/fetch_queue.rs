//! What the fetchers of a node have to do: ejected values that somebody waits for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::doorbell::Doorbell;
use crate::lock_order::{Ranked, rank};
use crate::{Bucket, KvError, VbId};

/// Called by the fetcher when the value is back, or cannot be had; the request may be tried again then.
pub type FetchDone = Box<dyn FnOnce(Result<(), KvError>) + Send>;

/// A value that somebody waits for.
pub(crate) struct Fetch {
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) vb: VbId,
    pub(crate) hash: u64,
    pub(crate) seqno: u64,
    pub(crate) stored_key: Vec<u8>,
    pub(crate) value_len: usize,
}

/// A value among all of a node: the address of its bucket, which its fetch keeps there; vBucket; seqno.
pub(crate) type Wanted = (usize, VbId, u64);

impl Fetch {
    pub(crate) fn wanted(&self) -> Wanted {
        (Arc::as_ptr(&self.bucket).addr(), self.vb, self.seqno)
    }
}

/// What a fetcher has to do.
#[derive(Default)]
pub(crate) struct FetchQueue {
    pub(crate) asked: Ranked<Asked, { rank::FETCHES }>,
    pub(crate) bell: Arc<Doorbell>,
}

#[derive(Default)]
pub(crate) struct Asked {
    /// In the order in which they were asked for first.
    pub(crate) not_begun: VecDeque<Fetch>,
    /// Who waits for each, until it has been read.
    pub(crate) waiters: HashMap<Wanted, Vec<FetchDone>>,
}
