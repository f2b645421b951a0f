//! A document's body while a mutation edits it.
//!
//! The bodies before and after an edit exist at the same time. Short ones are in ordinary memory; a long one is built
//! in an item of the bucket, so that it counts before it is allocated, and is stored without another copy if nothing
//! precedes it.

use std::ops::Deref;

use kv::{KvError, LargeItem, NodeContext, Reservation};
use wire::subdocument::Splice;

use super::super::documents::Operation;
use crate::LARGE_VALUE;

pub(super) enum Edit<'s> {
    /// As it was read.
    Unchanged(&'s [u8]),
    /// Replaced by bytes that lie elsewhere: an operand.
    Replaced(&'s [u8]),
    /// Edited, and short; or a value out of an extended attribute, whose length is bounded.
    Short(Vec<u8>),
    /// Edited, and over [`LARGE_VALUE`]. `None` once it was taken to be stored.
    Long(Option<LargeItem>),
}

impl Deref for Edit<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Unchanged(bytes) | Self::Replaced(bytes) => bytes,
            Self::Short(bytes) => bytes,
            Self::Long(item) => item.as_ref().map_or(&[], LargeItem::bytes),
        }
    }
}

impl Edit<'_> {
    /// Makes an edit. The body is unchanged if there is no memory for it.
    pub(super) fn splice(
        &mut self,
        splice: &Splice,
        operation: &Operation<'_>,
        cx: &mut NodeContext,
    ) -> Result<(), KvError> {
        let parts = [&self[..splice.at.start], &splice.with, &self[splice.at.end..]];
        let length = parts.iter().map(|part| part.len()).sum();
        let edited = if length > LARGE_VALUE {
            let mut item = operation.bucket.prepare_large(cx, operation.key, length)?;
            let mut at = 0;
            for part in parts {
                item.window(at, part.len()).copy_from_slice(part);
                at += part.len();
            }
            Self::Long(Some(item))
        } else if let Self::Short(bytes) = self {
            bytes.splice(splice.at.clone(), splice.with.iter().copied());
            return Ok(());
        } else {
            Self::Short(parts.concat())
        };
        *self = edited;
        Ok(())
    }
}

/// Reserves the bytes of a copy of a long operand while it exists; `None` for a short one.
pub(super) fn reserve_copy(
    operation: &Operation<'_>,
    operand_len: usize,
    cx: &mut NodeContext,
) -> Result<Option<Reservation>, KvError> {
    match operand_len > LARGE_VALUE {
        true => operation.bucket.reserve(cx, operand_len).map(Some),
        false => Ok(None),
    }
}
