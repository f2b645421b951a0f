//! A session that watches: it is sent lines about events, and its input is ignored from then on, as in memcached.

use kv::NodeContext;
use kv::watch::{BUFFER_BYTES, Watching};
use wire::text::Watched;

use super::{Output, Receive, Session};

/// A session that watches, or is about to.
pub(super) struct Watch {
    watched: Watched,
    begun: Option<Watching>,
}

impl Watch {
    pub(super) fn new(watched: Watched) -> Self {
        Self { watched, begun: None }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }
}

impl Session {
    /// Returns true if it watches.
    pub fn is_watching(&self) -> bool {
        matches!(&self.receive, Receive::Watching(watch) if watch.has_begun())
    }

    /// Returns true if this is the ticket under which it watches: then there are lines for it, or its bucket is gone.
    pub fn watches_as(&self, ticket: u64) -> bool {
        match &self.receive {
            Receive::Watching(watch) => {
                watch.begun.as_ref().is_some_and(|watching| watching.ticket() == ticket)
            }
            _ => false,
        }
    }

    /// Bytes of lines that may wait for it.
    pub(super) fn watch_bytes(&self) -> usize {
        if self.is_watching() { BUFFER_BYTES } else { 0 }
    }

    /// Starts to watch, or sends the waiting lines.
    #[cold]
    pub(super) fn execute_watch(&mut self, cx: &mut NodeContext, out: &mut Output) {
        self.peer.update_access(cx);
        let is_logged_out = self.peer.must_log_in();
        let Receive::Watching(watch) = &mut self.receive else { return };
        if is_logged_out {
            self.peer.close = true;
            return;
        }
        if let Some(watching) = &watch.begun {
            out.bytes(&watching.take());
            self.peer.close |= watching.bucket().is_gone();
            return;
        }
        let Some(bucket) = self.peer.bucket.clone().filter(|bucket| !bucket.is_gone()) else {
            out.bytes(b"SERVER_ERROR bucket is gone\r\n");
            self.peer.close = true;
            return;
        };
        match Watching::begin(&bucket, self.peer.cookie(cx), watch.watched) {
            // A bucket deleted in between has notified nobody.
            Some(_) if bucket.is_gone() => self.peer.close = true,
            Some(watching) => {
                watch.begun = Some(watching);
                out.bytes(b"OK\r\n");
            }
            None => {
                self.receive = Receive::Ready;
                out.bytes(b"WATCHER_TOO_MANY log watcher limit reached\r\n");
            }
        }
    }
}
