//! Which vBuckets have something new for a follower.
//!
//! ```text
//!   change, under the vBucket's lock ──note──> bit set; the first since the last look: a call ──letter──> worker ──take──> bits
//! ```
//! However much is changed, a follower is called once until it looks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::{Cookie, VbId};

const WORD_BITS: u16 = 64;

/// The news of a follower: one for each connection that follows a bucket.
#[derive(Debug)]
pub struct News {
    cookie: Cookie,
    vbuckets: Box<[AtomicU64]>,
    is_called: AtomicBool,
}

impl News {
    /// Creates the news of whoever is reached by this cookie, of a bucket with this many vBuckets.
    pub fn new(cookie: Cookie, vbuckets: u16) -> Self {
        let words = vbuckets.div_ceil(WORD_BITS);
        Self {
            cookie,
            vbuckets: (0..words).map(|_| AtomicU64::new(0)).collect(),
            is_called: AtomicBool::new(false),
        }
    }

    /// Returns where the letters that call the follower go.
    pub fn cookie(&self) -> Cookie {
        self.cookie
    }

    /// Notes that a vBucket has something new. Returns whom to call, unless they have been called already.
    pub(crate) fn note(&self, vb: u16) -> Option<Cookie> {
        if let Some(word) = self.vbuckets.get(usize::from(vb / WORD_BITS)) {
            let bit = 1 << (vb % WORD_BITS);
            if word.load(SeqCst) & bit == 0 {
                word.fetch_or(bit, SeqCst);
            }
        }
        // ORDERING: after the bit: whoever looks clears this first, so that no bit stays behind without a call.
        let calls = !self.is_called.load(SeqCst) && !self.is_called.swap(true, SeqCst);
        calls.then_some(self.cookie)
    }

    /// Takes the vBuckets that have something new, in ascending order.
    pub fn take(&self, mut f: impl FnMut(VbId)) {
        self.is_called.store(false, SeqCst);
        for (word, first) in self.vbuckets.iter().zip((0..).step_by(usize::from(WORD_BITS))) {
            let mut bits = word.swap(0, SeqCst);
            while bits != 0 {
                f(VbId(first + bits.trailing_zeros() as u16));
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_is_called_once_until_it_looks() {
        let cookie = Cookie { thread: 1, connection: 2, ticket: 3 };
        let news = News::new(cookie, 1024);
        assert_eq!(news.note(1023), Some(cookie));
        assert_eq!((news.note(0), news.note(64), news.note(64)), (None, None, None));
        let mut seen = Vec::new();
        news.take(|vb| seen.push(vb.0));
        assert_eq!(seen, [0, 64, 1023]);
        news.take(|vb| panic!("{vb:?} twice"));
        assert_eq!(news.note(5), Some(cookie));
    }
}
