//! What was collected of a new copy of a vBucket, while the old one stays.

use std::collections::VecDeque;

use crate::terms::Terms;

/// The messages of a stream from the beginning, up to some seqno: the next connection goes on from there.
#[derive(Debug, Default)]
pub struct Collected {
    /// The active's histories, newest first.
    pub histories: Vec<(u64, u64)>,
    /// And the terms of its changes.
    pub terms: Terms,
    /// The snapshot that was sent last, or a part of it.
    pub snapshot: Option<(u64, u64)>,
    /// The last seqno.
    pub last: u64,
    /// Whole messages as they were received, oldest first.
    pub pieces: VecDeque<Vec<u8>>,
    /// Their bytes.
    pub bytes: usize,
}
