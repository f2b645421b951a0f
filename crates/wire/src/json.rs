//! JSON as OVSDB speaks it: checking, reading and writing text, without a tree.
//!
//! Text is checked once ([`validate`], or [`crate::jsonrpc::Framer`] while it arrives); then a [`Cursor`] walks over
//! it. A [`Value`] is the span of one value in checked text: 16 bytes, copied freely, read on demand.
//!
//! The rules are those of the stock server: the top level is an array or an object; `1.0` and `1e3` are integers;
//! `\u0000` is refused; of equal member names the last counts. Bytes that are not UTF-8 pass here, as they do there:
//! they are refused where they would become a value of a column.

mod cursor;
mod number;
mod scan;
mod string;
mod value;
pub mod write;

pub use cursor::Cursor;
pub use number::Number;
pub use scan::{DEPTH_MAX, Scanner, SyntaxError};
pub use string::special;
pub use value::{Kind, Value};

/// Checks that `text` is one value (an array or object) with white space around it, no deeper than [`DEPTH_MAX`].
pub fn validate(text: &[u8]) -> Result<Value<'_>, SyntaxError> {
    let end = Scanner::new(DEPTH_MAX).only(text)?;
    Ok(Value::of_checked(text.get(..end).unwrap_or_default()))
}

#[cfg(test)]
mod tests;
