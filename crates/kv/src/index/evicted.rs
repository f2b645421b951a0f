//! What is remembered of an evicted document, for watchers.

use super::Document;
use crate::sizes::class_of;

/// A document that was evicted for lack of memory.
#[derive(Debug)]
pub(crate) struct Evicted {
    pub(crate) key: Box<[u8]>,
    pub(crate) is_fetched: bool,
    /// Unix seconds; 0: never.
    pub(crate) expiry: u32,
    pub(crate) idle_s: u32,
    pub(crate) size: usize,
    pub(crate) class: u32,
}

impl Evicted {
    /// `key`: without its collection id.
    pub(crate) fn new(key: &[u8], document: &Document<'_>) -> Self {
        Self {
            key: key.into(),
            is_fetched: document.fetched(),
            expiry: document.expiry(),
            idle_s: document.idle_s(),
            size: document.noted_value_len(),
            class: class_of(document.item_size()),
        }
    }
}
