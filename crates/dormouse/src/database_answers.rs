//! Answers about the OVSDB databases, made by their own thread between its clients' requests.
//!
//! Each answer is bounded: rows that are visited, and bytes of their text. What is left out is asked for again from the
//! row at which an answer ends.

use console::{
    CompactionReport, DatabaseAnswer, DatabaseFigures, DatabaseQuestion, DatabaseReport, NO_SUCH_DATABASE,
    NO_SUCH_TABLE, Refusal, TableReport,
};
use net::ovsdb::{CompactionEnd, EventLoop};
use ovsdb::database::Database;
use ovsdb::row::{Row, RowId};
use ovsdb::schema::{ColumnRef, TableId};
use std::time::Duration;
use wire::json::write;

/// An answer ends after this much text of rows.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Of a longer row only its UUID is shown: a value may have many megabytes.
const ROW_BYTES_MAX: u64 = 256 << 10;
/// An answer ends after this many row ids have been visited: many may be vacant.
const VISITS_MAX: u32 = 1 << 16;

/// Answers all questions except for compaction, which takes a while.
pub fn answer(events: &EventLoop, question: &DatabaseQuestion) -> Result<DatabaseAnswer, Refusal> {
    match question {
        DatabaseQuestion::Reports { database } => {
            let names = events.hosted().iter();
            let wanted = names.filter(|name| database.as_ref().is_none_or(|database| database == *name));
            let databases: Vec<_> = wanted.filter_map(|name| report(events, name)).collect();
            if databases.is_empty() && database.is_some() {
                return Err(NO_SUCH_DATABASE);
            }
            let sessions = events.core().figures().sessions;
            Ok(DatabaseAnswer::Reports { sessions, databases })
        }
        DatabaseQuestion::Schema { database } => {
            let mut text = Vec::new();
            hosted(events, database)?.schema().write_json(&mut text);
            Ok(DatabaseAnswer::Text(text))
        }
        DatabaseQuestion::Rows { database, table, from, limit } => {
            let database = hosted(events, database)?;
            let (table, _) = database.schema().find_table(table).ok_or(NO_SUCH_TABLE)?;
            Ok(DatabaseAnswer::Text(rows(database, table, RowId(*from), *limit)))
        }
        DatabaseQuestion::Compact { database } => {
            hosted(events, database).map(|_| DatabaseAnswer::Compacting)
        }
    }
}

/// The database of this name, unless it is the server's own.
fn hosted<'e>(events: &'e EventLoop, name: &str) -> Result<&'e Database, Refusal> {
    let is_hosted = events.hosted().iter().any(|hosted| hosted == name);
    is_hosted.then(|| events.core().database(name)).flatten().ok_or(NO_SUCH_DATABASE)
}

fn report(events: &EventLoop, name: &str) -> Option<DatabaseReport> {
    let (database, log) = (events.core().database(name)?, events.core().log(name));
    let fault = log.and_then(|log| log.poisoned()).or(database.damage());
    let audience = events.core().audience(name);
    let tables = database.schema().tables().map(|(id, table)| TableReport {
        name: table.name.clone(),
        rows: database.row_count(id) as u64,
        bytes: database.row_bytes(id) as u64,
    });
    Some(DatabaseReport {
        figures: figures(events, name)?,
        schema_version: database.schema().version.clone(),
        log_file: log.map_or(String::new(), |log| log.path().display().to_string()),
        fault: fault.map(ToString::to_string),
        monitors: audience.monitors,
        monitoring_sessions: audience.sessions,
        compacting: events.is_compacting(name),
        last_compaction: events.last_compaction(name).map(compaction),
        tables: tables.collect(),
    })
}

/// The sizes of a database.
pub fn figures(events: &EventLoop, name: &str) -> Option<DatabaseFigures> {
    let database = events.core().database(name)?;
    let figures = database.figures();
    Some(DatabaseFigures {
        name: name.to_owned(),
        rows: figures.rows,
        record_bytes: figures.record_bytes,
        index_bytes: figures.index_bytes,
        history_bytes: figures.history_bytes,
        history_commits: figures.history_commits,
        resident_bytes: database.resident_bytes(),
        free_page_bytes: database.free_page_bytes(),
        budget_bytes: database.budget_bytes(),
        commits: database.commit_number().0,
        log_bytes: events.core().log(name).map_or(0, |log| log.length_bytes()),
    })
}

/// A compaction that has ended.
pub fn compaction(end: &CompactionEnd) -> CompactionReport {
    let (figures, error) = match &end.result {
        Ok(figures) => (*figures, None),
        Err(error) => (Default::default(), Some(error.clone())),
    };
    CompactionReport {
        ended_ms: end.wall_ms,
        took_ms: milliseconds(end.took),
        old_bytes: figures.old_bytes,
        new_bytes: figures.new_bytes,
        error,
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// `{"rows":[{"_uuid":...,"name":...},...],"next":ID}`: rows as in the answer to a `select`. `next` is where to go on,
/// or null.
fn rows(database: &Database, table: TableId, from: RowId, limit: usize) -> Vec<u8> {
    let mut text = b"{\"rows\":[".to_vec();
    let (begin, end) = (text.len(), database.row_capacity(table));
    let visited_end = from.0.saturating_add(VISITS_MAX).min(end);
    let (mut written, mut next) = (0, visited_end);
    for (id, row) in database.rows_from(table, from).take_while(|(id, _)| id.0 < visited_end) {
        if written == limit || text.len() - begin >= TEXT_BYTES_MAX {
            next = id.0;
            break;
        }
        if written > 0 {
            text.push(b',');
        }
        write_row(row, &mut text);
        written += 1;
    }
    text.extend_from_slice(b"],\"next\":");
    if next < end {
        text.extend_from_slice(next.to_string().as_bytes());
    } else {
        text.extend_from_slice(b"null");
    }
    text.push(b'}');
    text
}

fn write_row(row: Row<'_>, text: &mut Vec<u8>) {
    text.extend_from_slice(b"{\"_uuid\":");
    row.write_column(ColumnRef::Uuid, text);
    let bytes = row.packed_cells().len() as u64;
    if bytes > ROW_BYTES_MAX {
        // The names of columns do not begin with an underscore.
        text.extend_from_slice(format!(",\"_omittedBytes\":{bytes}}}").as_bytes());
        return;
    }
    text.extend_from_slice(b",\"_version\":");
    row.write_column(ColumnRef::Version, text);
    for (id, column) in row.schema().columns() {
        text.push(b',');
        write::string(text, &column.name);
        text.push(b':');
        row.write_column(ColumnRef::Column(id), text);
    }
    text.push(b'}');
}
