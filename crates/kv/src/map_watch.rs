//! Connections that are told when the cluster map changes.

use std::sync::Arc;

use crate::Cookie;
use crate::lock_order::{Ranked, rank};
use crate::news::News;

/// Those of a node.
#[derive(Default)]
pub(crate) struct MapWatchers(Ranked<Vec<Arc<News>>, { rank::MAP_WATCHERS }>);

impl MapWatchers {
    pub(crate) fn begin(self: &Arc<Self>, cookie: Cookie) -> MapWatch {
        // The map is of no vBucket.
        let news = Arc::new(News::new(cookie, 0));
        self.0.lock().push(Arc::clone(&news));
        MapWatch { news, all: Arc::clone(self) }
    }

    /// Calls those that have not been called since they looked.
    pub(crate) fn call(&self, post: impl Fn(Cookie)) {
        self.0.lock().iter().filter_map(|news| news.note(0)).for_each(post);
    }
}

/// A connection that is called by letters, until this is dropped.
pub struct MapWatch {
    news: Arc<News>,
    all: Arc<MapWatchers>,
}

impl MapWatch {
    /// Returns the ticket of the letters.
    pub fn ticket(&self) -> u64 {
        self.news.cookie().ticket
    }

    /// Notes that the connection looks at the map now: the next change calls it again.
    pub fn look(&self) {
        self.news.take(|_| {});
    }
}

impl Drop for MapWatch {
    fn drop(&mut self) {
        self.all.0.lock().retain(|present| !Arc::ptr_eq(present, &self.news));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_watcher_is_called_once_until_it_looks_and_never_when_it_is_gone() {
        let watchers = Arc::<MapWatchers>::default();
        let cookie = |ticket| Cookie { thread: 0, connection: 0, ticket };
        let (first, second) = (watchers.begin(cookie(1)), watchers.begin(cookie(2)));
        let called = || {
            let called = RefCell::new(Vec::new());
            watchers.call(|cookie| called.borrow_mut().push(cookie.ticket));
            called.into_inner()
        };
        assert_eq!((called(), called()), (vec![1, 2], vec![]));
        second.look();
        assert_eq!(called(), [2]);
        first.look();
        drop(first);
        assert_eq!(called(), Vec::<u64>::new());
    }
}
