//! A bell that wakes a thread.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};

/// A bell that wakes a thread which waits for work. Ringing twice before it is answered wakes once.
#[derive(Default)]
pub struct Doorbell {
    rung: AtomicBool,
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Doorbell {
    /// Sets how the thread is woken (once).
    pub fn connect(&self, bell: Box<dyn Fn() + Send + Sync>) {
        let _ = self.bell.set(bell);
        if self.rung.load(Relaxed) {
            self.wake();
        }
    }

    /// Wakes the thread.
    #[inline]
    pub fn ring(&self) {
        if !self.rung.load(Relaxed) && !self.rung.swap(true, Relaxed) {
            self.wake();
        }
    }

    /// Notes that the thread is awake: the next ring wakes it again.
    pub fn answer(&self) {
        // ORDERING: before looking for work.
        self.rung.swap(false, SeqCst);
    }

    fn wake(&self) {
        if let Some(bell) = self.bell.get() {
            bell();
        }
    }
}
