//! `/databases`: the OVSDB databases of the node, their rows, and their compaction.
//!
//! ```text
//!   request ──> a thread of its own ──question──> the thread of the databases ──answer──> response
//! ```
//! The databases belong to one thread, which serves their clients meanwhile. So a question is bounded: it visits a
//! bounded number of rows and makes a bounded answer, and a client asks for the rest with another one. One question is
//! asked at a time. Compaction runs in slices of the other thread's turns; only who asked for it waits.

use crate::buckets::{invalid, refused};
use crate::work::{Lane, Party};
use crate::{Console, Refusal};
use axum::Json;
use axum::extract::{Form, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// Rows in one answer: without a limit, and at most.
const ROWS_DEFAULT: usize = 100;
const ROWS_MAX: usize = 1000;

/// The answer for a database or table that does not exist.
pub const NO_SUCH_DATABASE: Refusal = Refusal::NoSuch { answer: "There is no such database." };
/// See above.
pub const NO_SUCH_TABLE: Refusal = Refusal::NoSuch { answer: "There is no such table." };

/// The size and memory usage of an OVSDB database.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseFigures {
    /// Its name.
    pub name: String,
    /// Rows of all tables.
    pub rows: u64,
    /// Bytes of the rows, rounded to the allocator's classes.
    pub record_bytes: u64,
    /// Bytes of row arrays and indexes.
    pub index_bytes: u64,
    /// Bytes of rows that recent commits replaced.
    pub history_bytes: u64,
    /// Recent commits whose changes are kept.
    pub history_commits: u64,
    /// Resident memory of its arena, or, if the allocator does not report it, the figure that is compared with the
    /// budget.
    pub resident_bytes: u64,
    /// Pages of its arena that are free.
    pub free_page_bytes: u64,
    /// Maximum memory it may take.
    pub budget_bytes: u64,
    /// Commits, including those read from the log.
    pub commits: u64,
    /// Bytes of its log file; 0 without one.
    pub log_bytes: u64,
}

/// All that is shown of a database besides its rows and schema.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseReport {
    /// Its sizes.
    #[serde(flatten)]
    pub figures: DatabaseFigures,
    /// The version of its schema, x.y.z, or empty.
    pub schema_version: String,
    /// Its log file.
    pub log_file: String,
    /// Why nothing can be written any more.
    pub fault: Option<String>,
    /// Monitors of clients.
    pub monitors: usize,
    /// Sessions that have such a monitor.
    pub monitoring_sessions: usize,
    /// Whether it is being compacted.
    pub compacting: bool,
    /// The last compaction since the start.
    pub last_compaction: Option<CompactionReport>,
    /// Its tables, in the order of their names.
    pub tables: Vec<TableReport>,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TableReport {
    /// Its name.
    pub name: String,
    /// Number of its rows.
    pub rows: u64,
    /// Their bytes, rounded to the allocator's classes.
    pub bytes: u64,
}

/// A compaction that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactionReport {
    /// When it ended, milliseconds since 1970.
    pub ended_ms: u64,
    /// How long it took.
    pub took_ms: u64,
    /// Bytes of the log before it; 0 if it failed.
    pub old_bytes: u64,
    /// Bytes of the log after it.
    pub new_bytes: u64,
    /// Why it failed.
    pub error: Option<String>,
}

/// What is asked about databases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseQuestion {
    /// Reports of all databases, or of one.
    Reports {
        /// Its name.
        database: Option<String>,
    },
    /// A schema.
    Schema {
        /// The database's name.
        database: String,
    },
    /// Some rows of a table.
    Rows {
        /// The database's name.
        database: String,
        /// The table's name.
        table: String,
        /// The first row's id.
        from: u32,
        /// Number of rows, at most.
        limit: usize,
    },
    /// Compaction of the log, answered when it has ended.
    Compact {
        /// The database's name.
        database: String,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseAnswer {
    /// Sessions of all databases, and the reports.
    Reports {
        /// Clients that are connected.
        sessions: usize,
        /// In the order of their names.
        databases: Vec<DatabaseReport>,
    },
    /// A schema, or rows, as JSON.
    Text(Vec<u8>),
    /// The compaction has ended well.
    Compacted(CompactionReport),
    /// The compaction takes longer than anybody should wait, and continues.
    Compacting,
}

/// `GET /databases`.
pub async fn list(State(console): State<Console>, party: Party) -> Response {
    ask(&console, &party, DatabaseQuestion::Reports { database: None }).await
}

/// `GET /databases/DB`.
pub async fn show(State(console): State<Console>, party: Party, Path(database): Path<String>) -> Response {
    let question = DatabaseQuestion::Reports { database: Some(database) };
    match console.question(&party, question).await {
        Ok(DatabaseAnswer::Reports { databases, .. }) => Json(databases.into_iter().next()).into_response(),
        other => answer(other),
    }
}

/// `GET /databases/DB/schema`.
pub async fn schema(State(console): State<Console>, party: Party, Path(database): Path<String>) -> Response {
    ask(&console, &party, DatabaseQuestion::Schema { database }).await
}

/// `GET /databases/DB/tables/T?from=ID&limit=N`.
pub async fn rows(
    State(console): State<Console>,
    party: Party,
    Path((database, table)): Path<(String, String)>,
    Form(fields): Form<Vec<(String, String)>>,
) -> Response {
    match wanted_rows(&fields) {
        Ok((from, limit)) => {
            ask(&console, &party, DatabaseQuestion::Rows { database, table, from, limit }).await
        }
        Err(refusal) => refused(refusal),
    }
}

/// `POST /databases/DB/compact`: answers once the log is compacted.
pub async fn compact(State(console): State<Console>, party: Party, Path(database): Path<String>) -> Response {
    let control = Arc::clone(&console.control);
    let question = DatabaseQuestion::Compact { database };
    let compact = move || control.ask_databases(question);
    answer(console.work(Lane::Copies, &party, "dm:compact", compact).await.flatten())
}

/// Reports in one answer; its members in this order.
#[derive(Serialize)]
struct List {
    sessions: usize,
    databases: Vec<DatabaseReport>,
}

async fn ask(console: &Console, party: &Party, question: DatabaseQuestion) -> Response {
    answer(console.question(party, question).await)
}

fn answer(answered: Result<DatabaseAnswer, Refusal>) -> Response {
    match answered {
        Ok(DatabaseAnswer::Reports { sessions, databases }) => {
            Json(List { sessions, databases }).into_response()
        }
        Ok(DatabaseAnswer::Text(json)) => {
            ([(header::CONTENT_TYPE, "application/json")], json).into_response()
        }
        Ok(DatabaseAnswer::Compacted(report)) => Json(report).into_response(),
        Ok(DatabaseAnswer::Compacting) => {
            (StatusCode::ACCEPTED, Json(json!({ "compacting": true }))).into_response()
        }
        Err(refusal) => refused(refusal),
    }
}

fn wanted_rows(fields: &[(String, String)]) -> Result<(u32, usize), Refusal> {
    let (mut from, mut limit) = (0, ROWS_DEFAULT);
    for (field, value) in fields {
        match field.as_str() {
            "from" => {
                from = value.parse().map_err(|_| invalid("from", "Allowed: the \"next\" of an answer."))?;
            }
            "limit" => {
                let known = value.parse().ok().filter(|limit| (1..=ROWS_MAX).contains(limit));
                limit = known
                    .ok_or_else(|| invalid("limit", format!("Allowed: a number from 1 to {ROWS_MAX}.")))?;
            }
            other => return Err(invalid("_", format!("Unknown field {other:?}. Allowed: from, limit."))),
        }
    }
    Ok((from, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_asked_for_within_bounds() {
        let read = |name: &str, value: &str| wanted_rows(&[(name.to_owned(), value.to_owned())]);
        assert_eq!(wanted_rows(&[]), Ok((0, ROWS_DEFAULT)));
        assert_eq!(read("limit", "1000"), Ok((0, ROWS_MAX)));
        assert_eq!(read("from", "4294967295"), Ok((u32::MAX, ROWS_DEFAULT)));
        for (name, value) in [
            ("limit", "0"),
            ("limit", "1001"),
            ("limit", ""),
            ("limit", "-1"),
            ("from", "4294967296"),
            ("from", "x"),
        ] {
            let Err(Refusal::Invalid { field, .. }) = read(name, value) else { panic!("{name}={value}") };
            assert_eq!(field, name);
        }
        assert!(matches!(read("colour", "red"), Err(Refusal::Invalid { field: "_", .. })));
    }
}
