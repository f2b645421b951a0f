//! What the OVSDB experiment needs beyond the rest of the lab: servers, request texts, and a load that is cheap enough
//! not to be the bottleneck.
//!
//! ```text
//! template ──text──> driver ──unix socket──> server on the other core
//!                      │  <──bytes── splitter: where messages end, nothing more
//!                      └──message──> script: checks it, may answer with further requests
//! ```
//!
//! Requests are prebuilt texts in which only digits, UUIDs and words of fixed width change; answers are never parsed
//! into a tree. Subjects are reached through a Unix socket, as Open vSwitch reaches its database.

pub mod control;
pub mod driver;
pub mod floor;
pub mod queue;
pub mod script;
pub mod splitter;
pub mod subject;
pub mod template;
