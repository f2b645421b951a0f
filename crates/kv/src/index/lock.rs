//! The vBucket's lock: two bytes, released by a plain store.
//!
//! ```text
//!   locked  0 free, 1 held                   taken by compare-and-swap, released by a store
//!   parked  0 nobody waits, 1 somebody may   set by a waiting thread, read by the releasing one
//! ```
//! A release by an atomic exchange would wait until every store made under the lock has left the processor's store
//! buffer, which after the rewrite of an item costs more than the rest of the lock together. A plain store does not;
//! but then the load of `parked` may run ahead of it, and miss a waiter that came at the same moment. Such a waiter is
//! not lost: nobody parks for longer than [`PATIENCE`] before checking again. Waiters park; they do not spin.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::lock_api;
use parking_lot_core::{DEFAULT_PARK_TOKEN, DEFAULT_UNPARK_TOKEN};

use crate::lock_order::{self, rank};

/// Longest time that a waiter which was overlooked sleeps.
const PATIENCE: Duration = Duration::from_micros(500);

/// The lock without its data; all zero means free.
pub(crate) struct RawLock {
    locked: AtomicBool,
    parked: AtomicBool,
}

/// A value behind the lock.
pub(crate) type Lock<T> = lock_api::Mutex<RawLock, T>;
/// The lock held.
pub(crate) type LockGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;

/// How long the last holder keeps off a lock that others wait for. Without this it would take the lock again before a
/// waiter has woken up.
const GIVE_WAY: Duration = Duration::from_micros(100);

/// Releases a lock that its holder will take again at once, and lets those in that wait for it.
pub(crate) fn release<T>(guard: LockGuard<'_, T>) {
    let is_waited_for = is_waited_for(LockGuard::mutex(&guard));
    drop(guard);
    if is_waited_for {
        let key = std::ptr::from_ref(&is_waited_for) as usize;
        let until = Some(Instant::now() + GIVE_WAY);
        // SAFETY: the key is an address of this thread's, which nobody wakes; the callbacks neither panic nor park.
        unsafe {
            parking_lot_core::park(key, || true, || {}, |_, _| {}, DEFAULT_PARK_TOKEN, until);
        }
    }
}

fn is_waited_for<T>(lock: &Lock<T>) -> bool {
    // SAFETY: only the flag is read.
    unsafe { lock.raw() }.parked.load(Ordering::SeqCst)
}

impl RawLock {
    #[inline]
    fn try_take(&self) -> bool {
        self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        loop {
            self.parked.store(true, Ordering::SeqCst);
            let key = std::ptr::from_ref(self) as usize;
            let still_held = || self.locked.load(Ordering::SeqCst);
            // SAFETY: the key is an address of this lock, which nobody else parks on; the callbacks neither panic nor
            // park.
            unsafe {
                let until = Some(Instant::now() + PATIENCE);
                parking_lot_core::park(key, still_held, || {}, |_, _| {}, DEFAULT_PARK_TOKEN, until);
            }
            if self.try_take() {
                return;
            }
        }
    }

    #[cold]
    fn wake_one(&self) {
        let key = std::ptr::from_ref(self) as usize;
        // SAFETY: as in `wait`.
        unsafe {
            parking_lot_core::unpark_one(key, |result| {
                if !result.have_more_threads {
                    self.parked.store(false, Ordering::Relaxed);
                }
                DEFAULT_UNPARK_TOKEN
            });
        }
    }
}

// SAFETY: `locked` goes from false to true for one thread at a time (compare-and-swap, acquire), and back by its holder
// alone (store, release): what was done under the lock is seen by the next holder.
unsafe impl lock_api::RawMutex for RawLock {
    const INIT: Self = Self { locked: AtomicBool::new(false), parked: AtomicBool::new(false) };
    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock(&self) {
        lock_order::will_wait(rank::VBUCKET);
        if !self.try_take() {
            self.wait();
        }
        lock_order::taken(rank::VBUCKET);
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let is_taken = self.try_take();
        if is_taken {
            lock_order::taken(rank::VBUCKET);
        }
        is_taken
    }

    #[inline]
    unsafe fn unlock(&self) {
        lock_order::released(rank::VBUCKET);
        self.locked.store(false, Ordering::Release);
        if self.parked.load(Ordering::Relaxed) {
            self.wake_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn many_threads_count_without_losing_one() {
        let count = Arc::new(Lock::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let count = Arc::clone(&count);
                std::thread::spawn(move || (0..50_000).for_each(|_| *count.lock() += 1))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*count.lock(), 200_000);
    }

    #[test]
    fn a_waiter_gets_the_lock_when_its_holder_is_slow() {
        let lock = Arc::new(Lock::new(()));
        let held = lock.lock();
        let waiter = {
            let lock = Arc::clone(&lock);
            std::thread::spawn(move || drop(lock.lock()))
        };
        while !is_waited_for(&lock) {
            std::thread::yield_now();
        }
        drop(held);
        waiter.join().unwrap();
    }
}
