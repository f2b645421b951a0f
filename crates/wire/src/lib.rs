//! Sans-I/O codecs of every protocol Dormouse speaks: bytes in, typed requests out, typed answers to bytes.
//!
//! No code here uses a socket, a clock or the engine. A parser examines the start of a byte slice and reports what it
//! found ([`Parsed`]). It borrows from the input and allocates nothing.
#![forbid(unsafe_code)]

/// What a parser found at the start of its input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed<C, E> {
    /// Not enough bytes for a decision. `need` is the total known to be needed from the start of the input, 0 if
    /// unknown.
    Incomplete {
        /// Total bytes needed from the start of the input, 0 if unknown.
        need: usize,
    },
    /// One request. Its head fills `head` bytes of the input, `body` value bytes follow, then `trailer` bytes.
    Request {
        /// Bytes of the head: a text line with its newline, or a binary header with extras and key.
        head: usize,
        /// Bytes of the value that follow the head.
        body: usize,
        /// Bytes after the value: 2 for the `\r\n` of the text protocol, else 0.
        trailer: usize,
        /// The request itself, borrowing from the head.
        command: C,
    },
    /// A malformed request whose boundary is known: skip it, answer with `error`, continue.
    Malformed {
        /// Bytes to skip from the start of the input; may exceed it.
        skip: usize,
        /// What to answer.
        error: E,
    },
    /// A malformed request whose boundary cannot be known: answer with `error`, then close.
    Fatal {
        /// What to answer.
        error: E,
    },
}

pub mod binary;
mod codes;
pub mod couchbase;
pub mod dcp;
pub mod json;
pub mod jsonrpc;
pub mod sasl;
pub mod snappy;
pub mod subdocument;
mod write_queue;
pub mod xattrs;

pub mod meta;
pub mod text;

#[cfg(test)]
mod testdata;

pub use write_queue::WriteQueue;
