//! What `memory/show` and `dormouse/figures` say.

use net::ovsdb::{Core, EventLoop};
use ovsdb::cell;
use ovsdb::database::Database;
use std::fmt::Write as _;

/// What the stock server counts in a database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// Keys and values of all columns.
    atoms: usize,
    /// Columns of all rows.
    cells: usize,
    weak_references: usize,
}

/// Columns that every row has besides those of its table: `_uuid` and `_version`.
const PSEUDO_COLUMNS: usize = 2;

fn count(database: &Database) -> Counts {
    let mut counts = Counts::default();
    for (id, table) in database.schema().tables() {
        for row in database.rows(id) {
            counts.cells += table.column_count() + PSEUDO_COLUMNS;
            counts.atoms += PSEUDO_COLUMNS;
            for ((_, column), bytes) in table.columns().zip(row.cells()) {
                let elements = cell::len(&column.kind, bytes);
                counts.atoms += elements * column.kind.base_types().count();
                let weak = column.kind.base_types().filter(|base| base.weak_reference().is_some()).count();
                counts.weak_references += elements * weak;
            }
        }
    }
    counts
}

/// The answer to `memory/show`. Looks at every row.
pub fn memory(server: &Core) -> String {
    let mut total = Counts::default();
    for database in server.databases().filter_map(|name| server.database(name)) {
        let counts = count(database);
        total.atoms += counts.atoms;
        total.cells += counts.cells;
        total.weak_references += counts.weak_references;
    }
    let figures = server.figures();
    let mut text = String::new();
    // Writing to a string does not fail.
    if figures.backlog_bytes > 0 {
        let _ = write!(text, "backlog:{} ", figures.backlog_bytes);
    }
    let _ = write!(
        text,
        "atoms:{} cells:{} monitors:{} n-weak-refs:{}",
        total.atoms, total.cells, figures.monitors, total.weak_references
    );
    for (name, value) in [("sessions", figures.sessions), ("triggers", figures.triggers)] {
        if value > 0 {
            let _ = write!(text, " {name}:{value}");
        }
    }
    // In the order of their names.
    let mut words: Vec<&str> = text.split(' ').collect();
    words.sort_unstable();
    words.join(" ")
}

/// The answer to `dormouse/figures`: one figure per line.
pub fn own(events: &EventLoop) -> String {
    let times = events.compaction_times();
    let mut lines = vec![
        ("compaction_longest_hold_us".to_owned(), times.longest_hold.as_micros()),
        ("compactions".to_owned(), u128::from(times.finished)),
        ("compaction_ms".to_owned(), times.last.as_millis()),
        ("turn_longest_us".to_owned(), events.longest_turn().as_micros()),
    ];
    for name in events.core().databases() {
        if let Some(database) = events.core().database(name) {
            let figures = database.figures();
            lines.push((format!("{name}.rows"), figures.rows as u128));
            lines.push((format!("{name}.record_bytes"), figures.record_bytes as u128));
            lines.push((format!("{name}.index_bytes"), figures.index_bytes as u128));
            lines.push((format!("{name}.history_bytes"), figures.history_bytes as u128));
            lines.push((format!("{name}.history_commits"), figures.history_commits as u128));
        }
    }
    lines.into_iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}
