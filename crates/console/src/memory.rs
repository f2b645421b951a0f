//! `/memory`: where every byte of the node's resident memory lies; `/pools/default/buckets/B/sizeClasses`: the sizes of
//! a bucket's items.
//!
//! ```text
//!   resident ── program             code and other files
//!            ├─ buckets ── B        keys and values, metadata, index, rounding, free in slabs, in flight, free pages
//!            ├─ databases ── D      rows, indexes, history, other
//!            └─ shared              buffers of clients, of flushers, free pages, other: the node itself,
//!                                   bookkeeping of the allocator, stacks
//! ```
//!
//! The bytes of parts add up to those of the whole, and those of the outermost to the kernel's RSS. The kernel is asked
//! about the pages of each bucket and database; `shared` is what is left. Inside a bucket the accounts are exact, and
//! what they do not tell is `other`. Memory that was allocated but never touched has no pages: it is taken off the
//! parts that may have such memory.

use crate::buckets::refused;
use crate::work::Party;
use crate::{Console, DatabaseFigures, Refusal};
use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use kv::{Bucket, BucketKind};
use memory::backend::{self, report};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Parts that may have memory without pages, or are counted as an upper bound; those that are likeliest first.
const UNTOUCHED: [&str; 6] = [FREE_PAGES, CLIENTS, FLUSHERS, FREE_SLOTS, IN_FLIGHT, INDEX];
const CLIENTS: &str = "clients";
const FLUSHERS: &str = "flushers";
const FREE_PAGES: &str = "free pages";
const FREE_SLOTS: &str = "free in slabs";
const IN_FLIGHT: &str = "in flight";
const INDEX: &str = "index";
const OTHER: &str = "other";

/// Resident memory.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resident {
    /// When it was read, milliseconds since 1970.
    pub at_ms: u64,
    /// Bytes of the process, by the kernel.
    pub resident_bytes: u64,
    /// What all buckets may take together.
    limit_bytes: u64,
    /// Its parts.
    parts: Vec<Part>,
}

impl Resident {
    /// Bytes of an outermost part.
    pub fn bytes_of(&self, name: &str) -> u64 {
        self.parts.iter().filter(|part| part.name == name).map(|part| part.bytes).sum()
    }
}

/// A part of resident memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    name: String,
    bytes: u64,
    /// Further figures of a bucket or database.
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<About>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
}

/// A bucket or database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct About {
    kind: &'static str,
    budget_bytes: u64,
    /// Items or rows.
    items: u64,
}

impl Part {
    fn leaf(name: &str, bytes: u64) -> Self {
        Self { name: name.to_owned(), bytes, about: None, parts: Vec::new() }
    }

    /// The sum of its parts.
    fn of(name: &str, parts: Vec<Self>) -> Self {
        Self { name: name.to_owned(), bytes: sum(&parts), about: None, parts }
    }

    /// Parts of known size within a whole: the rest is `other`. What is too much is taken off those without pages; if
    /// that is not enough, pages are swapped out, and it is taken off the others.
    fn within(name: &str, whole: u64, mut parts: Vec<Self>) -> Self {
        let mut beyond = sum(&parts).saturating_sub(whole);
        let rank =
            |part: &Self| UNTOUCHED.iter().position(|name| *name == part.name).unwrap_or(UNTOUCHED.len());
        let mut order: Vec<usize> = (0..parts.len()).rev().collect();
        order.sort_by_key(|index| parts.get(*index).map(rank));
        for index in order {
            if let Some(part) = parts.get_mut(index) {
                let taken = beyond.min(part.bytes);
                part.bytes -= taken;
                beyond -= taken;
            }
        }
        parts.push(Self::leaf(OTHER, whole.saturating_sub(sum(&parts))));
        Self::of(name, parts)
    }
}

fn sum(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.bytes).sum()
}

/// `GET /memory`.
pub async fn show(State(console): State<Console>, party: Party) -> Response {
    match console.measure(&party, |console| resident(&console)).await {
        Ok(resident) => Json(resident).into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// `GET /pools/default/buckets/B/sizeClasses`.
pub async fn size_classes(
    State(console): State<Console>,
    party: Party,
    Path(name): Path<String>,
) -> Response {
    match console
        .measure(&party, move |console| console.node.bucket(&name).map(|bucket| sizes(&bucket)))
        .await
    {
        Ok(Some(document)) => Json(document).into_response(),
        Ok(None) => refused(Refusal::Missing),
        Err(refusal) => refused(refusal),
    }
}

fn sizes(bucket: &Bucket) -> Value {
    let classes = bucket.size_classes().into_iter().map(|class| {
        json!({
            "slotBytes": class.slot_bytes,
            "used": class.used,
            "slots": class.slots,
            "slabs": class.slabs,
            "slabBytes": class.slab_bytes,
        })
    });
    let classes: Vec<_> = classes.collect();
    let accounts = bucket.accounts();
    json!({
        "atMs": now_ms(),
        "items": accounts.items,
        "classes": classes,
        "blockBytes": accounts.allocated.saturating_sub(accounts.index + accounts.slots),
    })
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Reads it. Walks all arenas and the page tables of buckets: some milliseconds for each GiB.
pub fn resident(console: &Console) -> Resident {
    backend::refresh();
    let buckets = console.node.buckets();
    let databases = console.control.databases();
    let free_pages = report::free_page_bytes().map(|free| {
        let of_buckets = buckets.iter().filter_map(|bucket| bucket.pages()).map(|pages| pages.dirty as u64);
        let of_databases = databases.iter().map(|database| database.free_page_bytes);
        free.saturating_sub(of_buckets.chain(of_databases).sum())
    });
    let buckets = Part::of("buckets", buckets.iter().map(|bucket| of_bucket(bucket)).collect());
    let databases = Part::of("databases", databases.iter().map(of_database).collect());
    let clients = console.node.client_memory();
    let flushers = console.node.flush_buffer_bytes();
    let (anonymous, files) = kernels_view();
    let mut shared = vec![
        Part::leaf(CLIENTS, clients.buffer_bytes() + clients.other_bytes()),
        Part::leaf(FLUSHERS, flushers),
    ];
    shared.extend(free_pages.map(|bytes| Part::leaf(FREE_PAGES, bytes)));
    let rest = anonymous.saturating_sub(buckets.bytes + databases.bytes);
    let shared = Part::within("shared", rest, shared);
    let parts = vec![Part::leaf("program", files), buckets, databases, shared];
    Resident {
        at_ms: now_ms(),
        // More only if memory was given back meanwhile.
        resident_bytes: (anonymous + files).max(sum(&parts)),
        limit_bytes: console.control.memory_bytes(),
        parts,
    }
}

fn of_bucket(bucket: &Bucket) -> Part {
    let accounts = bucket.accounts();
    let data = accounts.payload + accounts.metadata + accounts.index;
    let mut parts = vec![
        Part::leaf("keys and values", accounts.payload),
        Part::leaf("metadata", accounts.metadata),
        Part::leaf(INDEX, accounts.index),
        Part::leaf("rounding", accounts.allocated.saturating_sub(data)),
        Part::leaf(FREE_SLOTS, accounts.slabs.saturating_sub(accounts.slots)),
        // Buffers of connections are not in the bucket's arena, though it is charged for them.
        Part::leaf(IN_FLIGHT, accounts.in_flight.saturating_sub(bucket.buffer_bytes())),
    ];
    parts.extend(bucket.pages().map(|pages| Part::leaf(FREE_PAGES, pages.dirty as u64)));
    let whole = bucket.resident_bytes().unwrap_or_else(|| sum(&parts));
    let kind = match bucket.settings().kind {
        BucketKind::Ephemeral => "ephemeral",
        BucketKind::Persistent => "persistent",
    };
    let about = About { kind, budget_bytes: accounts.budget, items: accounts.items };
    Part { about: Some(about), ..Part::within(bucket.name(), whole, parts) }
}

fn of_database(database: &DatabaseFigures) -> Part {
    let parts = vec![
        Part::leaf("rows", database.record_bytes),
        Part::leaf(INDEX, database.index_bytes),
        Part::leaf("history", database.history_bytes),
        Part::leaf(FREE_PAGES, database.free_page_bytes),
    ];
    let about = About { kind: "ovsdb", budget_bytes: database.budget_bytes, items: database.rows };
    Part { about: Some(about), ..Part::within(&database.name, database.resident_bytes, parts) }
}

/// Resident bytes without and with a file behind them, by the kernel.
fn kernels_view() -> (u64, u64) {
    let status = status();
    let bytes = |key| size_in(&status, key).unwrap_or(0);
    (bytes("RssAnon:"), bytes("RssFile:") + bytes("RssShmem:"))
}

/// The kernel's notes on this process; empty where it has none.
fn status() -> String {
    std::fs::read_to_string("/proc/self/status").unwrap_or_default()
}

fn size_in(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// A size of `/proc/self/status`; `None` where the kernel does not tell.
pub fn status_bytes(key: &str) -> Option<u64> {
    size_in(&status(), key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(whole: u64) -> Vec<(String, u64)> {
        let known = [("keys and values", 50), (INDEX, 30), (FREE_SLOTS, 20), (FREE_PAGES, 10)];
        let part = Part::within("b", whole, known.map(|(name, bytes)| Part::leaf(name, bytes)).to_vec());
        assert_eq!(part.bytes, whole);
        part.parts.into_iter().map(|part| (part.name, part.bytes)).collect()
    }

    #[test]
    fn what_the_accounts_do_not_tell_is_other() {
        assert_eq!(within(125).last(), Some(&(OTHER.to_owned(), 15)));
        assert_eq!(within(110).last(), Some(&(OTHER.to_owned(), 0)));
    }

    #[test]
    fn memory_without_pages_is_taken_off_where_it_may_be() {
        let bytes = |whole| within(whole).into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>();
        assert_eq!(bytes(95), [50, 30, 15, 0, 0], "free pages first, then free slots");
        assert_eq!(bytes(40), [40, 0, 0, 0, 0], "what has been written only if it was swapped out");
    }

    #[test]
    fn the_kernel_knows_this_process() {
        let (anonymous, files) = kernels_view();
        assert!(anonymous > 100_000 && files > 100_000, "{anonymous} {files}");
    }
}
