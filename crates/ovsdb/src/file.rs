//! The OVSDB file: a log of records that the stock tools read and write, too.
//!
//! ```text
//! OVSDB JSON <length> <sha1>\n                       of the line that follows, its line end included
//! {"name":"T","tables":{...},...}\n                  first the schema, then one line per transaction:
//! OVSDB JSON <length> <sha1>\n
//! {"_date":<ms>,"_comment":"...","_is_diff":true,"<table>":{"<uuid>":{"<column>":<value>,...},"<uuid>":null,...},...}\n
//! ```
//!
//! * A new row has the columns that are neither ephemeral nor default, a changed row those that changed, a deleted one
//!   is `null`. A transaction that changes only ephemeral columns leaves no record.
//! * With `_is_diff` a changed column that may have several elements is written as a difference
//!   ([`crate::cell::diff`]); otherwise every value is whole. The writer chooses per record: where a stock server of
//!   version 3.1 would misread a difference, the values are whole.
//! * A truncated or damaged end is not part of the database: the next write cuts it off.
//! * Compaction writes another file beside this one, with the schema and one record of all rows, and renames it. It
//!   runs in slices between commits ([`Log::step`]).
//! * Transactions have ids that survive restarts although the file does not contain them: [`transaction_id`].
//! * The values of ephemeral columns are in a private file beside it, which nothing depends on: [`ephemeral`].
//!
//! What is acknowledged as durable has been synced, in every file that a crash could leave under the name.

mod compaction;
mod ephemeral;
mod header;
mod load;
mod log;
mod note;
mod plain;
mod reader;
mod record;
mod replay;
pub mod transaction_id;

pub use compaction::{CompactionFigures, Step};
pub use log::{Log, OpenError, Opened};
pub use note::{Level, Note};
