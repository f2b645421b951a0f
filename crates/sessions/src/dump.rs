//! Lists of keys: `lru_crawler metadump`, `lru_crawler mgdump` and `stats cachedump`; and `stats conns`, the list of
//! connections.
//!
//! A list of a large bucket takes seconds. It is written in slices, at the rate at which the peer reads: after each the
//! session goes to the end of its worker's queue, and while too much is unsent it waits like any other. Requests behind
//! it wait until it is complete.
//!
//! Documents that are stored or removed meanwhile may or may not be listed. One that stays is listed, unless its
//! vBucket shrinks at that moment; it may be listed twice if the vBucket grows.

use std::fmt::Write as _;

use kv::Hand;
use kv::collections::DEFAULT_ID;
use kv::sizes::class_of;
use kv::watch::encode_key;
use kv::{Bucket, Document, KvError, NodeContext, Unavailable, VbId};
use wire::meta::encode_base64;
use wire::text::{self, DumpForm};

use super::{Output, Receive, Session};

/// A slice ends after the group of the index with which its output reaches this length.
const SLICE_BYTES: usize = 16 << 10;
/// Maximum number of index groups in a slice, however little of them is listed.
const SLICE_GROUPS: usize = 64;
/// Most bytes of one `stats cachedump`, as in memcached.
const CACHEDUMP_BYTES: usize = 2 << 20;

/// A list that is being written.
pub(super) struct Dump {
    what: text::Dump,
    vb: u16,
    hand: Hand,
    /// The next connection.
    client: usize,
    /// The line before the list has been written.
    has_begun: bool,
    /// Entries and bytes left until the limit.
    entries_left: u64,
    bytes_left: usize,
}

impl Dump {
    pub(super) fn new(what: text::Dump) -> Self {
        let entries_left = if what.limit == 0 { u64::MAX } else { u64::from(what.limit) };
        let bytes_left = if what.form == DumpForm::Items { CACHEDUMP_BYTES } else { usize::MAX };
        Self { what, vb: 0, hand: Hand::default(), client: 0, has_begun: false, entries_left, bytes_left }
    }

    /// Writes the next slice; returns false at the end.
    fn slice(&mut self, bucket: &Bucket, cx: &mut NodeContext, out: &mut Output) -> Result<bool, KvError> {
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        if !has_begun && matches!(self.what.form, DumpForm::Meta | DumpForm::Keys) {
            out.bytes(b"OK\r\n");
        }
        if self.what.classes == 0 {
            return Ok(false);
        }
        if self.what.form == DumpForm::Clients {
            return Ok(self.list_clients(bucket, cx, out));
        }
        let start = out.len();
        for _ in 0..SLICE_GROUPS {
            if self.vb >= bucket.vbuckets() {
                return Ok(false);
            }
            let next = if bucket.serves(self.vb) { self.group(bucket, cx, out)? } else { None };
            self.hand = next.unwrap_or_default();
            self.vb += u16::from(next.is_none());
            if self.entries_left == 0 || self.bytes_left == 0 {
                return Ok(false);
            }
            if out.len() - start >= SLICE_BYTES {
                break;
            }
        }
        Ok(true)
    }

    /// Lists one group of the index; returns the next.
    fn group(
        &mut self,
        bucket: &Bucket,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Result<Option<Hand>, Unavailable> {
        let now_s = cx.now.unix_s;
        bucket.list(cx, VbId(self.vb), self.hand, &mut |key, document| {
            // The memcached protocols know no other.
            if key.collection != DEFAULT_ID {
                return;
            }
            let key = key.bytes;
            let class = class_of(document.item_size());
            if self.entries_left == 0 || self.bytes_left == 0 || self.what.classes >> class & 1 == 0 {
                return;
            }
            let before = out.len();
            match self.what.form {
                DumpForm::Meta => write_metadata(key, document, class, now_s, out),
                DumpForm::Keys => write_command(key, out),
                DumpForm::Items if is_plain(key) => write_item(key, document, out),
                DumpForm::Items | DumpForm::Clients => return,
            }
            self.entries_left -= 1;
            self.bytes_left = self.bytes_left.saturating_sub(out.len() - before);
        })
    }

    /// Lists some of the connections to the bucket's ports; returns false at the end.
    fn list_clients(&mut self, bucket: &Bucket, cx: &NodeContext, out: &mut Output) -> bool {
        let mut line = String::new();
        let now_ms = cx.now.mono_ms();
        let next = cx.node.clients().list(self.client, bucket.name(), now_ms, &mut |number, name, value| {
            line.clear();
            // Writing to a string cannot fail.
            let _ = write!(line, "STAT {number}:{name} {value}");
            // A socket's name may contain a line break.
            if line.contains(char::is_control) {
                line = line.replace(char::is_control, "?");
            }
            out.bytes(line.as_bytes());
            out.bytes(b"\r\n");
        });
        self.client = next.unwrap_or_default();
        next.is_some()
    }

    const fn end(&self) -> &'static [u8] {
        match self.what.form {
            DumpForm::Keys => b"EN\r\n",
            DumpForm::Meta | DumpForm::Items | DumpForm::Clients => b"END\r\n",
        }
    }
}

impl Session {
    /// Executes a slice of a list.
    #[cold]
    pub(super) fn execute_dump(&mut self, mut dump: Box<Dump>, cx: &mut NodeContext, out: &mut Output) {
        if self.peer.must_log_in() {
            self.peer.close = true;
            return;
        }
        let Some(bucket) = self.peer.bucket.clone().filter(|bucket| !bucket.is_gone()) else {
            out.bytes(b"SERVER_ERROR bucket is gone\r\n");
            self.peer.close = true;
            return;
        };
        match dump.slice(&bucket, cx, out) {
            Ok(true) => self.receive = Receive::Dumping(dump),
            Ok(false) => out.bytes(dump.end()),
            Err(error) => out.bytes(super::text::failure(error, b"SERVER_ERROR\r\n")),
        }
    }
}

/// `key=a exp=-1 la=1795565209 cas=2 fetch=no cls=1 size=61 flags=0 `, and a newline alone.
fn write_metadata(key: &[u8], document: &Document<'_>, class: u32, now_s: u32, out: &mut Output) {
    out.bytes(b"key=");
    encode_key(key, |piece| out.bytes(piece));
    out.bytes(b" exp=");
    match document.expiry() {
        0 => out.bytes(b"-1"),
        expiry => out.decimal(u64::from(expiry)),
    }
    out.bytes(b" la=");
    out.decimal(u64::from(now_s.saturating_sub(document.idle_s())));
    out.bytes(b" cas=");
    out.decimal(document.visible_cas());
    out.bytes(if document.fetched() { b" fetch=yes cls=" } else { b" fetch=no cls=" });
    out.decimal(u64::from(class));
    out.bytes(b" size=");
    out.decimal(document.item_size() as u64);
    out.bytes(b" flags=");
    out.decimal(u64::from(document.flags()));
    out.bytes(b" \n");
}

/// `mg a`, which can be sent back unchanged; keys that a line cannot hold are in base64.
fn write_command(key: &[u8], out: &mut Output) {
    out.bytes(b"mg ");
    if is_plain(key) {
        out.bytes(key);
        out.bytes(b"\r\n");
    } else {
        encode_base64(key, |piece| out.bytes(piece));
        out.bytes(b" b\r\n");
    }
}

/// `ITEM a [1 b; 0 s]`
fn write_item(key: &[u8], document: &Document<'_>, out: &mut Output) {
    out.bytes(b"ITEM ");
    out.bytes(key);
    out.bytes(b" [");
    out.decimal(document.noted_value_len() as u64);
    out.bytes(b" b; ");
    out.decimal(u64::from(document.expiry()));
    out.bytes(b" s]\r\n");
}

/// Returns true if a line of the text protocol can hold the key.
fn is_plain(key: &[u8]) -> bool {
    key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}
