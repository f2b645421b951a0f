//! TLS handshakes, on a thread of their own: their arithmetic takes a millisecond, and a peer may be slow.
//!
//! ```text
//!   accepted stream ──begin──> dm:handshakes ──done──> the loop that is to own it, connected
//!                                  │ at most HANDSHAKES_MAX at a time, the oldest is dropped; HANDSHAKE_TIME each
//! ```
//! The thread sleeps until a socket is ready or a handshake times out.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;

use crate::Stream;

const WAKE: Token = Token(usize::MAX);
/// Maximum number of concurrent handshakes.
const HANDSHAKES_MAX: usize = 1024;
/// Time limit of a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Called with a stream when its handshake is over.
type Done = Box<dyn FnOnce(io::Result<Stream>) + Send>;

struct Begun {
    stream: Stream,
    done: Done,
}

#[derive(Default)]
struct Inbox {
    begun: Mutex<Vec<Begun>>,
    stopping: AtomicBool,
}

/// The handle of the thread, which ends when this is dropped.
pub struct Handshakes {
    inbox: Arc<Inbox>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Handshakes {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let inbox = Arc::new(Inbox::default());
        let own = Arc::clone(&inbox);
        let thread = std::thread::Builder::new()
            .name("dm:handshakes".to_owned())
            .spawn(move || Loop { poll, inbox: own, pending: BTreeMap::new(), numbers: 0 }.run())?;
        Ok(Self { inbox, waker, thread: Some(thread) })
    }

    /// Performs the handshake with the peer of `stream`, then calls `done` on the thread.
    pub fn begin(&self, stream: Stream, done: impl FnOnce(io::Result<Stream>) + Send + 'static) {
        let mut begun = self.inbox.begun.lock();
        begun.push(Begun { stream, done: Box::new(done) });
        let is_first = begun.len() == 1;
        drop(begun);
        if is_first {
            let _ = self.waker.wake();
        }
    }
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        self.inbox.stopping.store(true, Relaxed);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Pending {
    begun: Begun,
    due: Instant,
}

struct Loop {
    poll: Poll,
    inbox: Arc<Inbox>,
    /// Sorted by number, and so by age.
    pending: BTreeMap<usize, Pending>,
    numbers: usize,
}

impl Loop {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while !self.inbox.stopping.load(Relaxed) {
            let now = Instant::now();
            let next = self.pending.values().next().map(|first| first.due.saturating_duration_since(now));
            // One millisecond late rather than slightly early, which would mean waking up twice.
            let timeout = next.map(|next| next + Duration::from_millis(1));
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    tracing::error!(%error, "cannot wait for TLS handshakes");
                    return;
                }
                _ => {}
            }
            for event in &events {
                if event.token() != WAKE {
                    self.go_on(event.token().0);
                }
            }
            self.take_begun();
            self.end_late();
        }
    }

    fn take_begun(&mut self) {
        let all_begun = std::mem::take(&mut *self.inbox.begun.lock());
        for mut begun in all_begun {
            if self.pending.len() >= HANDSHAKES_MAX
                && let Some((_, Pending { begun, .. })) = self.pending.pop_first()
            {
                (begun.done)(Err(io::Error::other("too many handshakes at a time")));
            }
            let number = self.numbers;
            self.numbers += 1;
            let interest = Interest::READABLE | Interest::WRITABLE;
            if let Err(error) = self.poll.registry().register(&mut begun.stream, Token(number), interest) {
                (begun.done)(Err(error));
                continue;
            }
            self.pending.insert(number, Pending { begun, due: Instant::now() + HANDSHAKE_TIME });
            self.go_on(number);
        }
    }

    fn go_on(&mut self, number: usize) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let result = pending.begun.stream.shake_hands();
        if matches!(result, Ok(false)) {
            return;
        }
        let Some(Pending { begun: Begun { mut stream, done }, .. }) = self.pending.remove(&number) else {
            return;
        };
        match result.and_then(|_| self.poll.registry().deregister(&mut stream)) {
            Ok(()) => done(Ok(stream)),
            Err(error) => done(Err(error)),
        }
    }

    fn end_late(&mut self) {
        let now = Instant::now();
        while self.pending.first_key_value().is_some_and(|(_, first)| first.due <= now)
            && let Some((_, Pending { begun, .. })) = self.pending.pop_first()
        {
            (begun.done)(Err(io::ErrorKind::TimedOut.into()));
        }
    }
}
