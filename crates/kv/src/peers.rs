//! From which nodes a bucket's vBuckets are copied, and the connections that do it.
//!
//! ```text
//!   role with a source ──> wanted ──bell──> a thread connects ──> link: called when one of its vBuckets has changed
//! ```
//! Of a bucket there is one connection to each node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::lock_order::{Ranked, rank};
use crate::mailbox::Cookie;
use crate::news::News;

/// The nodes that a bucket copies from.
#[derive(Default)]
pub(crate) struct Peers(Ranked<BTreeMap<Arc<str>, Peer>, { rank::PEERS }>);

/// One of them.
#[derive(Default)]
struct Peer {
    vbuckets: BTreeSet<u16>,
    news: Option<Arc<News>>,
    /// Attempts to connect, since a connection was of use.
    attempts: u32,
    /// Why the last one was of no use.
    trouble: Box<str>,
}

impl Peers {
    /// Notes that a vBucket is copied from another node than before. Returns whom to call, and whether a connection is
    /// missing.
    pub(crate) fn change(&self, vb: u16, old: Option<&str>, new: Option<&Arc<str>>) -> (Vec<Cookie>, bool) {
        let mut peers = self.0.lock();
        let mut calls = Vec::new();
        if let Some(peer) = old.and_then(|name| peers.get_mut(name)) {
            peer.vbuckets.remove(&vb);
            calls.extend(peer.news.as_ref().and_then(|news| news.note(vb)));
        }
        let mut is_missing = false;
        if let Some(name) = new {
            let peer = peers.entry(Arc::clone(name)).or_default();
            peer.vbuckets.insert(vb);
            match &peer.news {
                Some(news) => calls.extend(news.note(vb)),
                None => is_missing = true,
            }
        }
        peers.retain(|_, peer| !peer.vbuckets.is_empty() || peer.news.is_some());
        (calls, is_missing)
    }

    /// Visits the nodes to which a connection is missing, with the number of attempts.
    pub(crate) fn missing(&self) -> Vec<(Arc<str>, u32)> {
        let peers = self.0.lock();
        let missing = peers.iter().filter(|(_, peer)| peer.news.is_none() && !peer.vbuckets.is_empty());
        missing.map(|(name, peer)| (Arc::clone(name), peer.attempts)).collect()
    }

    /// Returns true if a vBucket is copied from there.
    pub(crate) fn is_wanted(&self, name: &str) -> bool {
        self.0.lock().get(name).is_some_and(|peer| !peer.vbuckets.is_empty())
    }

    /// Takes a connection, which is called for all vBuckets that are copied from there. Returns false if there is
    /// another one, or nothing to be copied.
    pub(crate) fn connected(&self, name: &str, news: &Arc<News>) -> bool {
        let mut peers = self.0.lock();
        let peer = peers.get_mut(name).filter(|peer| peer.news.is_none() && !peer.vbuckets.is_empty());
        let Some(peer) = peer else { return false };
        for vb in &peer.vbuckets {
            news.note(*vb);
        }
        peer.news = Some(Arc::clone(news));
        true
    }

    /// Forgets a connection.
    pub(crate) fn disconnected(&self, name: &str, news: &Arc<News>) {
        let mut peers = self.0.lock();
        if let Some(peer) = peers.get_mut(name)
            && peer.news.as_ref().is_some_and(|present| Arc::ptr_eq(present, news))
        {
            peer.news = None;
            if peer.vbuckets.is_empty() {
                peers.remove(name);
            }
        }
    }

    /// Notes an attempt to connect, or that a connection was of use.
    pub(crate) fn note_attempt(&self, name: &str, was_of_use: bool) {
        if let Some(peer) = self.0.lock().get_mut(name) {
            peer.attempts = if was_of_use { 0 } else { peer.attempts.saturating_add(1) };
            if was_of_use {
                peer.trouble = Box::default();
            }
        }
    }

    /// Notes why a connection is of no use. Returns false if that was the reason the last time. Numbers do not count:
    /// they may be times.
    pub(crate) fn note_trouble(&self, name: &str, why: &str) -> bool {
        let mut peers = self.0.lock();
        let Some(peer) = peers.get_mut(name) else { return true };
        let words = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<Box<str>>();
        std::mem::replace(&mut peer.trouble, words(why)) != words(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_missing_until_there_is_one() {
        let (peers, a): (_, Arc<str>) = (Peers::default(), "a".into());
        assert_eq!(peers.change(3, None, Some(&a)), (vec![], true));
        assert_eq!(peers.change(4, None, Some(&a)), (vec![], true));
        peers.note_attempt("a", false);
        assert_eq!(peers.missing(), [(Arc::clone(&a), 1)]);
        let cookie = Cookie { thread: 0, connection: 1, ticket: 2 };
        let (news, other) = (Arc::new(News::new(cookie, 8)), Arc::new(News::new(cookie, 8)));
        assert!(
            peers.connected("a", &news) && !peers.connected("a", &other) && !peers.connected("b", &other)
        );
        peers.note_attempt("a", true);
        assert_eq!(peers.missing(), []);
        let mut called = Vec::new();
        news.take(|vb| called.push(vb.0));
        assert_eq!(called, [3, 4]);
        // It is called for what leaves and what comes.
        assert_eq!(peers.change(3, Some("a"), None), (vec![cookie], false));
        peers.disconnected("a", &other);
        assert_eq!(peers.missing(), []);
        peers.disconnected("a", &news);
        assert_eq!(peers.missing(), [(Arc::clone(&a), 0)]);
        assert_eq!(peers.change(4, Some("a"), None), (vec![], false));
        assert_eq!(peers.missing(), []);
    }

    #[test]
    fn the_same_trouble_is_told_once() {
        let (peers, a): (_, Arc<str>) = (Peers::default(), "a".into());
        peers.change(3, None, Some(&a));
        let told = ["refused", "refused", "expired 7 s ago", "expired 12 s ago", "refused"]
            .map(|why| peers.note_trouble("a", why));
        assert_eq!(told, [true, false, true, false, true]);
        peers.note_attempt("a", false);
        assert!(!peers.note_trouble("a", "refused"));
        peers.note_attempt("a", true);
        assert!(peers.note_trouble("a", "refused"));
    }
}
