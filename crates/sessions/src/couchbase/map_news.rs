//! News of the cluster map, for clients that ask for it in HELLO.

use kv::NodeContext;
use kv::map_watch::MapWatch;
use wire::couchbase::{Feature, MapChange};

use super::handshake::{current_map, map_bucket};
use crate::{Output, Peer};

/// A connection that wants news of the map.
pub(crate) struct MapNews {
    watch: MapWatch,
    is_due: bool,
}

impl MapNews {
    pub(super) fn begin(peer: &Peer, cx: &mut NodeContext) -> Box<Self> {
        let cookie = peer.cookie(cx);
        Box::new(Self { watch: cx.node.watch_map(cookie), is_due: false })
    }

    /// Returns the ticket of the letters that say that the map has changed.
    pub(crate) fn ticket(&self) -> u64 {
        self.watch.ticket()
    }

    pub(crate) fn note(&mut self) {
        self.is_due = true;
    }

    /// Returns true if the client is to be told.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }
}

/// Appends the news, if there are any. The brief ones leave it to the client to ask for the map.
pub(crate) fn tell_of_map(peer: &mut Peer, cx: &NodeContext, out: &mut Output) {
    let Some(news) = peer.couchbase.map_news.as_mut().filter(|news| news.is_due) else { return };
    news.is_due = false;
    news.watch.look();
    peer.update_access(cx);
    // Who has not logged in learns nothing, and neither does a user who was deleted.
    if !peer.is_user(cx) || peer.lost_bucket {
        return;
    }
    let (epoch, revision) = (cx.node.map_epoch(map_bucket(peer)), cx.node.map_revision());
    let features = peer.couchbase.features;
    let is_brief = features.has(Feature::CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF);
    let map = (!is_brief).then(|| current_map(peer, cx));
    let map = map.as_deref().unwrap_or_default();
    let bucket = peer.bucket.as_deref().filter(|_| peer.has_access());
    let bucket = bucket.map(|bucket| bucket.name()).unwrap_or_default();
    let mut request = Vec::new();
    MapChange { epoch, revision, bucket, map }.encode(features.has(Feature::JSON), &mut request);
    out.bytes(&request);
}
