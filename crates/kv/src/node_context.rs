//! A thread's context together with the node its sessions belong to.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::{Node, ThreadContext};

/// The context of a thread that serves a node: operations on a bucket take the [`ThreadContext`] in it.
pub struct NodeContext {
    thread: ThreadContext,
    /// The node all sessions belong to.
    pub node: Arc<Node>,
    generation: u64,
}

impl Deref for NodeContext {
    type Target = ThreadContext;

    #[inline]
    fn deref(&self) -> &ThreadContext {
        &self.thread
    }
}

impl DerefMut for NodeContext {
    #[inline]
    fn deref_mut(&mut self) -> &mut ThreadContext {
        &mut self.thread
    }
}

impl NodeContext {
    /// Creates a context for the thread with this number, which no other thread has.
    pub fn new(node: Arc<Node>, thread: usize) -> Self {
        let thread = ThreadContext::new(Arc::clone(node.hub()), thread);
        Self { thread, node, generation: 0 }
    }

    /// Handles the vBuckets whose alarms are due.
    pub fn ring_alarms(&mut self) {
        let now_us = self.fresh_us();
        while let Some((slot, vb)) = self.take_alarm(now_us) {
            if let Some(bucket) = self.node.bucket_in_slot(slot) {
                bucket.expire_sync_writes(self, vb);
            }
        }
    }

    /// Releases buckets that are gone; call it once per wake-up.
    #[inline]
    pub fn tend(&mut self) {
        let generation = self.node.generation();
        if self.generation != generation {
            self.generation = generation;
            let node = Arc::clone(&self.node);
            self.drop_gone(|slot| node.has_slot(slot));
        }
    }
}
