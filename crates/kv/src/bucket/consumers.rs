//! The connections that follow a bucket, by their names: a user has one of each name.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use super::Bucket;
use super::follow::StreamFigures;
use crate::lock_order::{Ranked, rank};
use crate::mailbox::Outcome;
use crate::news::News;
use crate::{ThreadContext, VbId};

/// The connections, of which some may have gone.
pub(super) type Consumers = Ranked<Vec<Weak<Consumer>>, { rank::CONSUMERS }>;

/// A connection that follows a bucket, as other threads see it.
#[derive(Debug)]
pub struct Consumer {
    /// Who follows.
    pub user: Arc<str>,
    /// The consumer's name for it.
    pub name: Box<[u8]>,
    /// Since when it follows, in unix seconds.
    pub created_s: u32,
    /// What it has done. The connection's thread writes these.
    pub figures: ConsumerFigures,
    news: Arc<News>,
    is_replaced: AtomicBool,
}

/// See [`Consumer::figures`].
#[derive(Debug, Default)]
pub struct ConsumerFigures {
    /// Documents, deletions, prepares and their ends that it was sent.
    pub items_sent: AtomicU64,
    /// Bytes that it was sent.
    pub bytes_sent: AtomicU64,
    /// Bytes that it has processed, as it says.
    pub bytes_acknowledged: AtomicU64,
    /// Bytes that it was sent and has not acknowledged.
    pub bytes_unacknowledged: AtomicU64,
    /// Size of its buffer; 0 without flow control.
    pub buffer_bytes: AtomicU64,
    /// Interval of NOOPs; 0: there are none.
    pub noop_interval_s: AtomicU64,
}

impl Consumer {
    /// Returns true if another connection of its user has its name now.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced.load(Relaxed)
    }
}

impl Bucket {
    /// Notes that a connection will follow. An older one of the same user and name is called, to find that it is
    /// replaced.
    pub fn add_consumer(
        &self,
        cx: &mut ThreadContext,
        user: Arc<str>,
        name: &[u8],
        news: &Arc<News>,
    ) -> Arc<Consumer> {
        let consumer = Arc::new(Consumer {
            user,
            name: name.into(),
            created_s: cx.now.unix_s,
            figures: ConsumerFigures::default(),
            news: Arc::clone(news),
            is_replaced: AtomicBool::new(false),
        });
        let mut replaced = None;
        let mut consumers = self.following.consumers.lock();
        consumers.retain(|one| {
            let Some(one) = one.upgrade() else { return false };
            let is_same = one.name == consumer.name && one.user == consumer.user;
            if is_same {
                replaced = Some(one);
            }
            !is_same
        });
        consumers.push(Arc::downgrade(&consumer));
        drop(consumers);
        if let Some(one) = replaced {
            one.is_replaced.store(true, Relaxed);
            cx.post(one.news.cookie(), Outcome::Stirred);
        }
        consumer
    }

    /// Returns the connections that follow.
    pub fn consumers(&self) -> Vec<Arc<Consumer>> {
        self.following.consumers.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the streams of a connection, by vBucket.
    pub fn streams_of(&self, consumer: &Consumer) -> Vec<(VbId, StreamFigures)> {
        let mut streams = Vec::new();
        for vb in (0..self.vbuckets()).map(VbId) {
            self.vbucket(vb).each_stream_of(&consumer.news, &mut |figures| streams.push((vb, figures)));
        }
        streams
    }
}
