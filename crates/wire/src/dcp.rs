//! DCP: the requests that open and steer streams, and the messages that a stream consists of.
//!
//! ```text
//!   consumer ──OPEN, CONTROL, STREAM_REQ, CLOSE_STREAM───────────────────────────> producer
//!            <──SNAPSHOT_MARKER, MUTATION, DELETION, PREPARE, .., STREAM_END, NOOP──
//!            ──BUFFER_ACKNOWLEDGEMENT, SEQNO_ACKNOWLEDGED, answers to NOOP────────>
//! ```
//! [`stream_request`] and [`open`] are what a consumer asks, [`message`] what a producer sends. Both are encoded and
//! decoded here: a node is a producer to some and a consumer of others.
//!
//! Public documents: the DCP documentation of Couchbase's data service. All numbers are big-endian.

pub mod message;
pub mod open;
pub mod stream_request;

pub use message::{Malformed, Message, Place};
pub use open::Open;
pub use stream_request::{Filter, StreamRequest};
