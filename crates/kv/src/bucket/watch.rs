//! `watch`: reports to clients what happens in a bucket, a line for each event, in memcached's words.
//!
//! ```text
//!   a request, the evicting hand, a connection ──event──> Watchers ──line──> buffer of each watcher ──letter──> its worker
//! ```
//! Each watcher has a buffer of a fixed size, and a letter is on its way while the buffer holds anything. A line that
//! finds no room is skipped and counted, in the statistics and in a line of its own. So nobody waits for a watcher. A
//! bucket without watchers pays nothing: operations test a bit of a byte that they read anyway
//! ([`crate::bucket::attention`]).
//!
//! Events of the same key are reported in order if one connection causes them, otherwise in any order.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed, Ordering::SeqCst};

use wire::text::Watched;

use super::attention;
use crate::clients::Client;
use crate::index::{Dead, Evicted, Locked};
use crate::lock_order::{Ranked, rank};
use crate::sizes::class_of;
use crate::{Bucket, Cookie, Document, Entry, Expiry, Key, KvError, Mutation, Outcome, ThreadContext};

/// Most watchers of a bucket, as in memcached.
pub(crate) const WATCHERS_MAX: usize = 20;
/// Most bytes of lines that wait for a watcher's worker.
pub const BUFFER_BYTES: usize = 64 << 10;
/// What memcached counts for a small item besides key and value.
const ITEM_OVERHEAD: usize = 48;

/// The watchers of a bucket.
#[derive(Default)]
pub(crate) struct Watchers {
    /// The events that any watcher wants.
    wanted: AtomicU8,
    inner: Ranked<Inner, { rank::WATCHERS }>,
}

#[derive(Default)]
struct Inner {
    watchers: Vec<Watcher>,
    figures: Figures,
    /// Kept to reuse its memory.
    line: Vec<u8>,
}

/// Statistics of the watchers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// Events that any watcher wanted; the number of the last one.
    pub events: u64,
    /// Lines put into buffers.
    pub sent: u64,
    /// Lines skipped because they found no room.
    pub skipped: u64,
    /// Number of watchers now.
    pub watchers: usize,
}

struct Watcher {
    cookie: Cookie,
    watched: Watched,
    buffer: Vec<u8>,
    /// A letter is on its way, or the worker knows already.
    called: bool,
    /// Lines that found no room since the last one that did.
    skipped: u64,
}

/// A session's place among the watchers, given up on drop.
pub struct Watching {
    bucket: Arc<Bucket>,
    cookie: Cookie,
}

impl Watching {
    /// Starts watching. `None` if there are enough watchers.
    pub fn begin(bucket: &Arc<Bucket>, cookie: Cookie, watched: Watched) -> Option<Self> {
        let mut inner = bucket.watchers.inner.lock();
        if inner.watchers.len() >= WATCHERS_MAX {
            return None;
        }
        inner.watchers.push(Watcher { cookie, watched, buffer: Vec::new(), called: false, skipped: 0 });
        bucket.note_wanted(&inner);
        drop(inner);
        Some(Self { bucket: Arc::clone(bucket), cookie })
    }

    /// Returns the ticket of the letters that announce new lines.
    pub fn ticket(&self) -> u64 {
        self.cookie.ticket
    }

    /// Returns the bucket that is watched.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Takes the waiting lines.
    pub fn take(&self) -> Vec<u8> {
        let mut inner = self.bucket.watchers.inner.lock();
        let watcher = inner.watchers.iter_mut().find(|watcher| watcher.cookie == self.cookie);
        watcher.map_or_else(Vec::new, |watcher| {
            watcher.called = false;
            std::mem::take(&mut watcher.buffer)
        })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut inner = self.bucket.watchers.inner.lock();
        inner.watchers.retain(|watcher| watcher.cookie != self.cookie);
        self.bucket.note_wanted(&inner);
    }
}

/// What a lookup found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lookup {
    status: &'static str,
    size: usize,
    class: u32,
}

impl Lookup {
    /// Looks up what a request meets that is about to be executed.
    #[cold]
    pub(crate) fn before(locked: &mut Locked<'_>, key: Key<'_>, hash: u64) -> Self {
        let status = match locked.look_up(key, hash) {
            Ok(present) => {
                let document = Document::new(locked, &present);
                let (size, class) = (document.noted_value_len(), class_of(document.item_size()));
                return Self { status: "found", size, class };
            }
            Err(Some(Dead::Expired)) => "expired",
            Err(Some(Dead::Flushed)) => "flushed",
            Err(Some(Dead::Deleted) | None) => "not_found",
        };
        Self { status, size: 0, class: 0 }
    }
}

/// An attempt to store, while it is in progress.
pub struct Attempt {
    command: &'static str,
    /// Size of the value that was sent; of the resulting value once that is known.
    size: usize,
    class: u32,
    /// Unix seconds; 0: never.
    expiry: u32,
}

impl Attempt {
    /// Begins an attempt. `None` if nobody watches.
    #[inline]
    pub fn new(
        bucket: &Bucket,
        command: &'static str,
        key: Key<'_>,
        size: usize,
        expiry: Expiry,
    ) -> Option<Self> {
        if !bucket.is_watched() {
            return None;
        }
        let class = class_of(ITEM_OVERHEAD + key.bytes.len() + size);
        let expiry = if let Expiry::At(at) = expiry { at } else { 0 };
        Some(Self { command, size, class, expiry })
    }

    /// As [`Attempt::new`].
    #[inline]
    pub(crate) fn of(bucket: &Bucket, key: Key<'_>, mutation: &Mutation<'_>) -> Option<Self> {
        let command = mutation.kind.name(mutation.cas);
        let (size, expiry) = (mutation.store.value.len(), mutation.store.expiry);
        Self::new(bucket, command, key, size, expiry)
    }

    /// Begins an attempt of a counter operation that may create a document with this number.
    #[inline]
    pub fn to_count(bucket: &Bucket, key: Key<'_>, initial: u64, expiry: Expiry) -> Option<Self> {
        let digits = initial.checked_ilog10().map_or(1, |exponent| exponent as usize + 1);
        Self::new(bucket, "add", key, digits, expiry)
    }

    /// Notes success: what counts is the document as it is now.
    pub fn note(&mut self, entry: &Entry<'_>) {
        if let Some(document) = entry.document() {
            self.size = document.noted_value_len();
            self.class = class_of(document.item_size());
            self.expiry = document.expiry();
        }
    }

    /// Reports the outcome to the watchers.
    #[cold]
    pub fn report(&self, bucket: &Bucket, cx: &mut ThreadContext, key: Key<'_>, result: Result<(), KvError>) {
        let status = match (result, self.command) {
            (Ok(()), _) => "stored",
            (Err(KvError::Exists), "add") | (Err(KvError::NotFound), "replace") => "not_stored",
            (Err(KvError::Exists | KvError::Locked), _) => "exists",
            (Err(KvError::NotFound), _) => "not_found",
            (Err(KvError::TooBig), _) => "too_large",
            (Err(KvError::NoMemory), _) => "no_memory",
            (Err(_), _) => "not_stored",
        };
        let ttl = if self.expiry == 0 { 0 } else { self.expiry.saturating_sub(cx.now.unix_s) };
        bucket.announce(cx, Watched::MUTATIONS, |line, cx| {
            push(line, format_args!("item_store key="));
            push_key(line, key.bytes);
            let Self { command, class, size, .. } = self;
            let number = cx.connection;
            push(line, format_args!(" status={status} cmd={command} ttl={ttl} clsid={class}"));
            push(line, format_args!(" cfd={number} size={size}"));
        });
    }
}

/// A deletion, while it is in progress.
pub struct Deletion {
    command: &'static str,
    size: usize,
    class: u32,
}

impl Deletion {
    /// Begins a deletion. `None` if nobody watches.
    #[inline]
    pub fn new(bucket: &Bucket, command: &'static str) -> Option<Self> {
        bucket.is_watched().then_some(Self { command, size: 0, class: 0 })
    }

    /// Notes the document that is deleted, as it is now.
    pub fn note(&mut self, entry: &Entry<'_>) {
        if let Some(document) = entry.document() {
            (self.size, self.class) = (document.noted_value_len(), class_of(document.item_size()));
        }
    }

    /// Reports it to the watchers.
    #[cold]
    pub fn report(&self, bucket: &Bucket, cx: &mut ThreadContext, key: Key<'_>) {
        let Self { command, size, class } = self;
        bucket.announce(cx, Watched::DELETIONS, |line, _| {
            push(line, format_args!("deleted key="));
            push_key(line, key.bytes);
            push(line, format_args!(" cmd={command} clsid={class} size={size}"));
        });
    }
}

impl Bucket {
    /// Updates the flags by which threads see which events are wanted.
    fn note_wanted(&self, inner: &Inner) {
        let none = Watched::default();
        let wanted = inner.watchers.iter().fold(none, |wanted, watcher| wanted.and(watcher.watched));
        self.watchers.wanted.store(wanted.bits(), SeqCst);
        if wanted.has(Watched::FETCHERS.and(Watched::MUTATIONS).and(Watched::DELETIONS)) {
            self.raise(attention::WATCHED);
        } else {
            self.lower(attention::WATCHED);
        }
    }

    #[inline]
    fn wants(&self, watched: Watched) -> bool {
        Watched::of_bits(self.watchers.wanted.load(Relaxed)).has(watched)
    }

    /// Returns true if any watcher wants evictions: then call [`Bucket::report_evicted`].
    pub(crate) fn wants_evictions(&self) -> bool {
        self.wants(Watched::EVICTIONS)
    }

    /// Returns the statistics of the watchers.
    pub fn watch_figures(&self) -> Figures {
        let inner = self.watchers.inner.lock();
        Figures { watchers: inner.watchers.len(), ..inner.figures }
    }

    /// Notifies the watchers that there is news, or that the bucket is gone.
    pub(crate) fn call_watchers(&self, post: &mut dyn FnMut(Cookie, Outcome)) {
        for watcher in &mut self.watchers.inner.lock().watchers {
            watcher.called = true;
            post(watcher.cookie, Outcome::Watched);
        }
    }

    /// Reports an event of this kind, with the text that `write` adds.
    #[cold]
    fn announce(
        &self,
        cx: &mut ThreadContext,
        kind: Watched,
        write: impl FnOnce(&mut Vec<u8>, &ThreadContext),
    ) {
        if !self.wants(kind) {
            return;
        }
        let mut inner = self.watchers.inner.lock();
        let Inner { watchers, figures, line } = &mut *inner;
        figures.events += 1;
        line.clear();
        let (unix_s, us) = (cx.now.unix_ns / 1_000_000_000, cx.now.unix_ns / 1000 % 1_000_000);
        // COMPAT: the microseconds without leading zeros.
        push(line, format_args!("ts={unix_s}.{us} gid={} type=", figures.events));
        write(line, cx);
        line.push(b'\n');
        for watcher in watchers.iter_mut().filter(|watcher| watcher.watched.has(kind)) {
            let before = watcher.buffer.len();
            if watcher.skipped > 0 {
                push(&mut watcher.buffer, format_args!("skipped={}\n", watcher.skipped));
            }
            if watcher.buffer.len() + line.len() > BUFFER_BYTES {
                watcher.buffer.truncate(before);
                watcher.skipped += 1;
                figures.skipped += 1;
                continue;
            }
            watcher.skipped = 0;
            watcher.buffer.extend_from_slice(line);
            figures.sent += 1;
            if !std::mem::replace(&mut watcher.called, true) {
                cx.post(watcher.cookie, Outcome::Watched);
            }
        }
    }

    /// Reports the lookup of a key.
    #[cold]
    pub(crate) fn report_lookup(&self, cx: &mut ThreadContext, key: Key<'_>, lookup: Lookup) {
        self.announce(cx, Watched::FETCHERS, |line, cx| {
            push(line, format_args!("item_get key="));
            push_key(line, key.bytes);
            let Lookup { status, size, class } = lookup;
            push(line, format_args!(" status={status} clsid={class} cfd={} size={size}", cx.connection));
        });
    }

    /// Reports evicted documents.
    #[cold]
    pub(crate) fn report_evicted(&self, cx: &mut ThreadContext, evicted: impl Iterator<Item = Evicted>) {
        for Evicted { key, is_fetched, expiry, idle_s, size, class } in evicted {
            let ttl = match expiry {
                0 => -1,
                expiry => i64::from(expiry) - i64::from(cx.now.unix_s),
            };
            self.announce(cx, Watched::EVICTIONS, |line, _| {
                push(line, format_args!("eviction key="));
                push_key(line, &key);
                let fetched = if is_fetched { "yes" } else { "no" };
                push(line, format_args!(" fetch={fetched} ttl={ttl} la={idle_s} clsid={class} size={size}"));
            });
        }
    }

    /// Reports that a connection to one of the bucket's ports was opened, or closed for a reason.
    pub fn report_connection(&self, cx: &mut ThreadContext, client: &Client, closed: Option<&str>) {
        self.announce(cx, Watched::CONNECTIONS, |line, _| {
            let what = if closed.is_some() { "conn_close" } else { "conn_new" };
            push(line, format_args!("{what} "));
            match client.address() {
                Some(address) => {
                    push(line, format_args!("rip={} rport={} transport=tcp", address.ip(), address.port()));
                }
                None => push(line, format_args!("rip=unix rport=0 transport=local")),
            }
            if let Some(reason) = closed {
                push(line, format_args!(" reason={reason}"));
            }
            push(line, format_args!(" cfd={}", client.number()));
        });
    }
}

fn push(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to memory cannot fail.
    let _ = line.write_fmt(text);
}

/// Percent-encodes everything but letters, digits and `-._~`.
pub fn encode_key(key: &[u8], mut emit: impl FnMut(&[u8])) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            emit(&[byte]);
        } else {
            emit(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

fn push_key(line: &mut Vec<u8>, key: &[u8]) {
    encode_key(key, |piece| line.extend_from_slice(piece));
}
