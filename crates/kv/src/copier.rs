//! A connection that copies a bucket's vBuckets from a node.

use std::sync::Arc;

use crate::doorbell::Doorbell;
use crate::news::News;
use crate::{Bucket, Cookie, NodeContext};

/// A connection that copies a bucket's vBuckets from a node, until it is dropped.
pub struct Copier {
    bucket: Arc<Bucket>,
    peer: Arc<str>,
    news: Arc<News>,
    bell: Arc<Doorbell>,
}

impl Copier {
    /// Begins to copy; `None` if another connection does, or nothing is to be copied from there any more.
    pub fn begin(bucket: &Arc<Bucket>, peer: &Arc<str>, cookie: Cookie, cx: &NodeContext) -> Option<Self> {
        let news = Arc::new(News::new(cookie, bucket.vbuckets()));
        let (bucket, peer, bell) = (Arc::clone(bucket), Arc::clone(peer), Arc::clone(&cx.hub.links));
        bucket.peers.connected(&peer, &news).then_some(Self { bucket, peer, news, bell })
    }

    /// Returns the bucket.
    pub fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// Returns the name of the node that it copies from.
    pub fn peer(&self) -> &Arc<str> {
        &self.peer
    }

    /// Returns the news of its vBuckets: roles that have changed, and what is on disk now.
    pub fn news(&self) -> &Arc<News> {
        &self.news
    }

    /// Returns true if something is to be copied from there.
    pub fn is_wanted(&self) -> bool {
        self.bucket.peers.is_wanted(&self.peer)
    }

    /// Notes that the connection is of use: after it the next attempt comes at once.
    pub fn note_success(&self) {
        self.bucket.peers.note_attempt(&self.peer, true);
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.bucket.peers.disconnected(&self.peer, &self.news);
        self.bell.ring();
    }
}
