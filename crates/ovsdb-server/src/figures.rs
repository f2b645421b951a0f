//! The output of `memory/show` and `dormouse/figures`.

use net::ovsdb::{Core, EventLoop};
use ovsdb::cell;
use ovsdb::column_type::ColumnType;
use ovsdb::database::{Database, Figures};

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

/// Per element of a column: the number of its keys and values, and how many of them are weak references.
fn parts_of(kind: &ColumnType) -> (usize, usize) {
    let weak = kind.base_types().filter(|base| base.weak_reference().is_some()).count();
    (kind.base_types().count(), weak)
}

fn count(database: &Database) -> Counts {
    let mut counts = Counts::default();
    for (id, table) in database.schema().tables() {
        let rows = database.row_count(id);
        counts.cells += rows * (table.column_count() + PSEUDO_COLUMNS);
        counts.atoms += rows * PSEUDO_COLUMNS;
        let columns: Vec<_> =
            table.columns().map(|(_, column)| (&column.kind, parts_of(&column.kind))).collect();
        for (kind, (atoms, weak)) in &columns {
            if kind.is_scalar() {
                counts.atoms += rows * atoms;
                counts.weak_references += rows * weak;
            }
        }
        // The cells of columns with a variable number of elements must be read.
        if columns.iter().all(|(kind, _)| kind.is_scalar()) {
            continue;
        }
        for row in database.rows(id) {
            for ((kind, (atoms, weak)), cell) in columns.iter().zip(row.cells()) {
                if !kind.is_scalar() {
                    let elements = cell::len(kind, cell);
                    counts.atoms += elements * atoms;
                    counts.weak_references += elements * weak;
                }
            }
        }
    }
    counts
}

/// The stock server's words of `memory/show`, which are also logged. Reads every row of tables that have more than
/// scalar columns.
pub fn memory(server: &Core) -> String {
    in_order(counted(server))
}

/// The answer to `memory/show`: these words, and the bytes of the databases' arenas.
pub fn memory_shown(server: &Core) -> String {
    let databases = || server.databases().filter_map(|name| server.database(name));
    let sum = |of: fn(&Figures) -> u64| databases().map(|database| of(&database.figures())).sum::<u64>();
    let mut words = counted(server);
    words.push(format!("record-bytes:{}", sum(|figures| figures.record_bytes)));
    words.push(format!("index-bytes:{}", sum(|figures| figures.index_bytes)));
    words.push(format!("history-bytes:{}", sum(|figures| figures.history_bytes)));
    words.push(format!("resident-bytes:{}", databases().map(Database::resident_bytes).sum::<u64>()));
    in_order(words)
}

/// Joins the words, sorted by name.
fn in_order(mut words: Vec<String>) -> String {
    words.sort_unstable();
    words.join(" ")
}

fn counted(server: &Core) -> Vec<String> {
    let mut total = Counts::default();
    for database in server.databases().filter_map(|name| server.database(name)) {
        let counts = count(database);
        total.atoms += counts.atoms;
        total.cells += counts.cells;
        total.weak_references += counts.weak_references;
    }
    let figures = server.figures();
    let always = [
        ("atoms", total.atoms),
        ("cells", total.cells),
        ("monitors", figures.monitors),
        ("n-weak-refs", total.weak_references),
    ];
    let unless_none =
        [("backlog", figures.backlog_bytes), ("sessions", figures.sessions), ("triggers", figures.triggers)];
    let unless_none = unless_none.into_iter().filter(|(_, value)| *value > 0);
    always.into_iter().chain(unless_none).map(|(name, value)| format!("{name}:{value}")).collect()
}

/// The answer to `dormouse/figures`: one figure per line.
pub fn own(events: &EventLoop) -> String {
    let times = events.compaction_times();
    let mut lines = vec![
        ("compaction_longest_hold_us".to_owned(), times.longest_hold.as_micros()),
        ("compactions".to_owned(), u128::from(times.finished)),
        ("compaction_ms".to_owned(), times.last.as_millis()),
        ("turn_longest_us".to_owned(), events.longest_turn().as_micros()),
        ("client_bytes".to_owned(), events.client_bytes() as u128),
        ("clients_over_bound".to_owned(), u128::from(events.clients_over_bound())),
    ];
    for name in events.core().databases() {
        if let Some(database) = events.core().database(name) {
            let figures = database.figures();
            lines.push((format!("{name}.rows"), figures.rows as u128));
            lines.push((format!("{name}.record_bytes"), figures.record_bytes as u128));
            lines.push((format!("{name}.index_bytes"), figures.index_bytes as u128));
            lines.push((format!("{name}.history_bytes"), figures.history_bytes as u128));
            lines.push((format!("{name}.history_commits"), figures.history_commits as u128));
            lines.push((format!("{name}.resident_bytes"), database.resident_bytes() as u128));
        }
    }
    lines.into_iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}
