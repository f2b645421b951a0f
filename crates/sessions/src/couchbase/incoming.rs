//! Values as clients send them: compressed only if negotiated, and then only with Snappy.

use kv::{NodeContext, Value};
use wire::binary::{Status, datatype};
use wire::snappy::{self, SnappyError};

use super::super::{Body, LARGE_VALUE, Output};
use super::datatype_is_valid;
use super::documents::{self, Operation};

/// What to do with a value that arrives compressed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Compressed {
    /// Store it as it is.
    Kept,
    /// Inflate it.
    Inflated,
}

/// The value of a request, and its datatype; `None` if an error has been answered. A short inflated value is placed in
/// `room`.
#[inline]
pub(super) fn value<'a>(
    operation: &Operation<'_>,
    body: Body<'a>,
    compressed: Compressed,
    room: &'a mut Vec<u8>,
    cx: &mut NodeContext,
    out: &mut Output,
) -> Option<(Value<'a>, u8)> {
    let answer = operation.answer;
    let bits = operation.request.header.datatype;
    if !datatype_is_valid(answer.features(), bits) {
        answer.error(Status::EINVAL, "The datatype was not negotiated", out);
        return None;
    }
    let value = body.into_value();
    if value.len() > operation.value_limit {
        answer.error(Status::E2BIG, "The value is too long", out);
        return None;
    }
    if bits & datatype::SNAPPY == 0 {
        return Some((value, bits));
    }
    let inflated_len = match snappy::check(value.bytes(), operation.value_limit) {
        Ok(inflated_len) => inflated_len,
        Err(SnappyError::Malformed) => {
            answer.error(Status::EINVAL, "The value is not what its datatype says: Snappy", out);
            return None;
        }
        Err(SnappyError::TooLong) => {
            answer.error(Status::E2BIG, "The value is too long when it is inflated", out);
            return None;
        }
    };
    if compressed == Compressed::Kept {
        return Some((value, bits));
    }
    let bits = bits & !datatype::SNAPPY;
    if inflated_len <= LARGE_VALUE {
        room.resize(inflated_len, 0);
        snappy::inflate(value.bytes(), room);
        return Some((Value::Bytes(room), bits));
    }
    match operation.bucket.prepare_large(cx, operation.key, inflated_len) {
        Ok(mut item) => {
            snappy::inflate(value.bytes(), item.window(0, inflated_len));
            Some((Value::Large(Box::new(item)), bits))
        }
        Err(error) => {
            documents::refuse(answer, error, out);
            None
        }
    }
}
