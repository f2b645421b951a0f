//! Notifications of monitors as JSON text: the `table-updates` of initial replies and notifications.

use super::Select;
use super::Version;
use super::plan::{Spec, TablePlan};
use crate::cell;
use crate::database::Database;
use crate::history::Change;
use crate::row::Row;
use crate::schema::{TableId, TableSchema};
use crate::uuid::Uuid;

/// A `table-updates` object being written. Rows of one table must be consecutive.
#[derive(Debug)]
pub(crate) struct Notification<'a> {
    out: &'a mut Vec<u8>,
    table: Option<TableId>,
    difference: Vec<u8>,
}

/// What happens to a row from a monitor's point of view.
#[derive(Debug, Clone, Copy)]
enum Event<'a> {
    Initial(Row<'a>),
    Insert(Row<'a>),
    Delete(Row<'a>),
    Modify { old: Row<'a>, new: Row<'a> },
}

impl Event<'_> {
    fn select(&self) -> Select {
        match self {
            Self::Initial(_) => Select::INITIAL,
            Self::Insert(_) => Select::INSERT,
            Self::Delete(_) => Select::DELETE,
            Self::Modify { .. } => Select::MODIFY,
        }
    }
}

impl<'a> Notification<'a> {
    /// Starts an object at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, table: None, difference: Vec::new() }
    }

    /// Ends the object. Returns false if nothing happened and it is empty.
    pub fn finish(self) -> bool {
        self.out.extend_from_slice(if self.table.is_some() { b"}}" } else { b"{}" });
        self.table.is_some()
    }

    /// Adds a change as far as the monitor asks for it.
    pub fn change(&mut self, spec: &Spec, schema: &TableSchema, change: &Change<'_>) {
        let Some(plan) = spec.plan(change.table) else { return };
        let passes = |row: Row<'_>| plan.filter.as_ref().is_none_or(|filter| filter.matches(row));
        let event = match (change.old, change.new) {
            (None, Some(new)) if passes(new) => Event::Insert(new),
            (Some(old), None) if passes(old) => Event::Delete(old),
            // A filter may have many clauses: it is asked only if it must be.
            (Some(old), Some(new)) if plan.filters_alike(old, new) => {
                if !plan.shows_change(old, new) || !passes(new) {
                    return;
                }
                Event::Modify { old, new }
            }
            (Some(old), Some(new)) => match (passes(old), passes(new)) {
                (true, true) => Event::Modify { old, new },
                (true, false) => Event::Delete(old),
                (false, true) => Event::Insert(new),
                (false, false) => return,
            },
            _ => return,
        };
        self.event(spec.version, plan, schema, change.uuid, event);
    }

    fn event(
        &mut self,
        version: Version,
        plan: &TablePlan,
        schema: &TableSchema,
        uuid: Uuid,
        event: Event<'_>,
    ) {
        if !plan.select.has(event.select()) {
            return;
        }
        let (length, table) = (self.out.len(), self.table);
        self.begin_row(plan, uuid);
        let happened = match version {
            Version::One => self.row_update(plan, schema, event),
            Version::Two | Version::Three => self.row_update2(plan, schema, event),
        };
        if !happened {
            self.out.truncate(length);
            self.table = table;
        }
    }

    fn begin_row(&mut self, plan: &TablePlan, uuid: Uuid) {
        if self.table == Some(plan.table) {
            self.out.push(b',');
        } else {
            self.out.extend_from_slice(if self.table.is_some() { b"}," } else { b"{" });
            self.out.extend_from_slice(&plan.name);
            self.out.push(b'{');
            self.table = Some(plan.table);
        }
        self.out.push(b'"');
        uuid.write(self.out);
        self.out.extend_from_slice(b"\":");
    }

    /// `{"old":...,"new":...}`
    fn row_update(&mut self, plan: &TablePlan, schema: &TableSchema, event: Event<'_>) -> bool {
        match event {
            Event::Initial(row) | Event::Insert(row) => {
                self.out.extend_from_slice(b"{\"new\":");
                self.row(plan, schema, row, event.select(), true);
            }
            Event::Delete(row) => {
                self.out.extend_from_slice(b"{\"old\":");
                self.row(plan, schema, row, event.select(), true);
            }
            Event::Modify { old, new } => {
                self.out.extend_from_slice(b"{\"old\":");
                if !self.changes(plan, schema, old, new, Shown::Old) {
                    return false;
                }
                self.out.extend_from_slice(b",\"new\":");
                self.row(plan, schema, new, event.select(), true);
            }
        }
        self.out.push(b'}');
        true
    }

    /// `{"insert":...}` and so on.
    fn row_update2(&mut self, plan: &TablePlan, schema: &TableSchema, event: Event<'_>) -> bool {
        match event {
            Event::Initial(row) => {
                self.out.extend_from_slice(b"{\"initial\":");
                self.row(plan, schema, row, event.select(), false);
            }
            Event::Insert(row) => {
                self.out.extend_from_slice(b"{\"insert\":");
                self.row(plan, schema, row, event.select(), false);
            }
            Event::Delete(_) => self.out.extend_from_slice(b"{\"delete\":null"),
            Event::Modify { old, new } => {
                self.out.extend_from_slice(b"{\"modify\":");
                if !self.changes(plan, schema, old, new, Shown::Difference) {
                    return false;
                }
            }
        }
        self.out.push(b'}');
        true
    }

    /// The columns of a row that `select` shows; those with their default value only if `defaults`.
    fn row(&mut self, plan: &TablePlan, schema: &TableSchema, row: Row<'_>, select: Select, defaults: bool) {
        let start = self.open();
        if plan.uuid.is_some_and(|shown| shown.has(select)) {
            self.member(start, b"\"_uuid\":");
            row.uuid().write_json(self.out);
        }
        if plan.version.is_some_and(|shown| shown.has(select)) {
            self.member(start, b"\"_version\":");
            row.version_uuid().write_json(self.out);
        }
        for ((column, cell), (_, schema)) in plan.columns.iter().zip(row.cells()).zip(schema.columns()) {
            if column.select.is_some_and(|shown| shown.has(select))
                && (defaults || !cell::is_default(&schema.kind, cell))
            {
                self.member(start, &column.name);
                cell::write_json(&schema.kind, cell, self.out);
            }
        }
        self.out.push(b'}');
    }

    /// The columns that differ. Returns false if none that count do.
    fn changes(
        &mut self,
        plan: &TablePlan,
        schema: &TableSchema,
        old: Row<'_>,
        new: Row<'_>,
        shown: Shown,
    ) -> bool {
        let start = self.open();
        let mut any = false;
        if plan.version.is_some() || plan.version_counts {
            let row = if shown == Shown::Old { old } else { new };
            any |= old.version_uuid() != new.version_uuid();
            if any && plan.version.is_some_and(|select| select.has(Select::MODIFY)) {
                self.member(start, b"\"_version\":");
                row.version_uuid().write_json(self.out);
            }
        }
        let cells = old.cells().zip(new.cells());
        for ((column, (old, new)), (_, schema)) in plan.columns.iter().zip(cells).zip(schema.columns()) {
            if !column.counts() || old == new {
                continue;
            }
            any = true;
            if !column.select.is_some_and(|select| select.has(Select::MODIFY)) {
                continue;
            }
            self.member(start, &column.name);
            if shown == Shown::Old {
                cell::write_json(&schema.kind, old, self.out);
            } else if schema.kind.is_composite() {
                self.difference.clear();
                cell::diff(&schema.kind, old, new, &mut self.difference);
                cell::write_json(&schema.kind, &self.difference, self.out);
            } else {
                cell::write_json(&schema.kind, new, self.out);
            }
        }
        self.out.push(b'}');
        any
    }

    fn open(&mut self) -> usize {
        self.out.push(b'{');
        self.out.len()
    }

    #[inline]
    fn member(&mut self, start: usize, name: &[u8]) {
        if self.out.len() > start {
            self.out.push(b',');
        }
        self.out.extend_from_slice(name);
    }
}

/// Which value of a changed column is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Old,
    Difference,
}

/// Rows after which the length of the rest is estimated.
const ESTIMATE_ROWS: usize = 256;

/// Appends what a monitor is sent when it starts: the existing rows.
pub(crate) fn write_initial(spec: &Spec, database: &Database, out: &mut Vec<u8>) {
    let mut notification = Notification::new(out);
    for plan in &spec.tables {
        let schema = database.schema().table(plan.table);
        if !plan.select.has(Select::INITIAL) {
            continue;
        }
        let start = notification.out.len();
        for (place, row) in database.rows(plan.table).enumerate() {
            if plan.filter.as_ref().is_none_or(|filter| filter.matches(row)) {
                notification.event(spec.version, plan, schema, row.uuid(), Event::Initial(row));
            }
            if place == ESTIMATE_ROWS {
                let rows_left = database.row_count(plan.table).saturating_sub(place);
                let bytes = notification.out.len() - start;
                notification.out.reserve(bytes / ESTIMATE_ROWS * rows_left + bytes);
            }
        }
    }
    notification.finish();
}

/// Appends what a monitor is sent when its request changes from `old` to `new` in nothing but filters: the rows that
/// become visible, and those that no longer are. Returns false if there are none.
pub(crate) fn write_refiltered(old: &Spec, new: &Spec, database: &Database, out: &mut Vec<u8>) -> bool {
    let mut notification = Notification::new(out);
    for (old, plan) in old.tables.iter().zip(&new.tables) {
        let (before, after) = (&old.filter, &plan.filter);
        let schema = database.schema().table(plan.table);
        if before.is_none() && after.is_none() {
            continue;
        }
        for row in database.rows(plan.table) {
            let passed = before.as_ref().is_none_or(|filter| filter.matches(row));
            let passes = after.as_ref().is_none_or(|filter| filter.matches(row));
            let event = match (passed, passes) {
                (false, true) => Event::Insert(row),
                (true, false) => Event::Delete(row),
                _ => continue,
            };
            notification.event(new.version, plan, schema, row.uuid(), event);
        }
    }
    notification.finish()
}
