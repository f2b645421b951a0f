//! What a monitor asks for, prepared for execution.

use super::filter::Filter;
use super::{Select, Version};
use crate::row::Row;
use crate::schema::{ColumnRef, TableId, TableSchema};
use crate::server::DatabaseId;
use std::sync::Arc;
use wire::json::write;

/// Everything that a monitor asks for.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub database: DatabaseId,
    pub version: Version,
    /// Ascending by table.
    pub tables: Vec<Arc<TablePlan>>,
}

impl Spec {
    /// The plan for a table.
    #[inline]
    pub fn plan(&self, table: TableId) -> Option<&TablePlan> {
        let place = self.tables.binary_search_by_key(&table, |plan| plan.table).ok()?;
        self.tables.get(place).map(|plan| &**plan)
    }

    /// Monitors with equal keys ask for the same. `None`: not comparable.
    pub fn key(&self) -> Option<Vec<u8>> {
        let mut key = vec![self.version as u8];
        write::unsigned(&mut key, self.database.index() as u64);
        for plan in &self.tables {
            key.push(b'|');
            plan.write_key(&mut key)?;
        }
        Some(key)
    }
}

/// What a monitor asks for in one table.
#[derive(Debug, Clone)]
pub(crate) struct TablePlan {
    pub table: TableId,
    /// `"Name":`
    pub name: Box<[u8]>,
    /// What any of its requests select.
    pub select: Select,
    pub uuid: Option<Select>,
    pub version: Option<Select>,
    /// Whether a changed `_version` counts, because the filter reads it.
    pub version_counts: bool,
    /// One for each column of the schema, up to the last one that matters.
    pub columns: Vec<ColumnPlan>,
    /// Which rows; `None`: all of them.
    pub filter: Option<Arc<Filter>>,
}

/// What a monitor asks for in one column.
#[derive(Debug, Clone)]
pub(crate) struct ColumnPlan {
    /// `"name":`
    pub name: Box<[u8]>,
    /// Changes that show the column; `None`: it is not monitored.
    pub select: Option<Select>,
    /// Whether the filter reads it, or has read it: when it changes, the row counts as modified, even if the column is
    /// not shown.
    pub filtered: bool,
}

impl ColumnPlan {
    /// Returns true if a change of the column makes the row modified.
    #[inline]
    pub fn counts(&self) -> bool {
        self.select.is_some() || self.filtered
    }
}

impl TablePlan {
    /// Asks for nothing of a table.
    pub fn new(table: TableId, schema: &TableSchema) -> Self {
        let columns = schema.columns().map(|(_, column)| ColumnPlan {
            name: member(&column.name),
            select: None,
            filtered: false,
        });
        Self {
            table,
            name: member(&schema.name),
            select: Select::default(),
            uuid: None,
            version: None,
            version_counts: false,
            columns: columns.collect(),
            filter: None,
        }
    }

    /// Returns true if there is a filter, and what it reads is the same in both.
    pub fn filters_alike(&self, old: Row<'_>, new: Row<'_>) -> bool {
        let is_same = |column| old.any_cell(column) == new.any_cell(column);
        self.filter.as_ref().is_some_and(|filter| filter.columns().all(is_same))
    }

    /// Returns true if anything that counts differs.
    pub fn shows_change(&self, old: Row<'_>, new: Row<'_>) -> bool {
        let cells = old.cells().zip(new.cells());
        self.version.is_some()
            || self.version_counts
            || self.columns.iter().zip(cells).any(|(column, (old, new))| column.counts() && old != new)
    }

    /// Adds a column. Returns false if it was there already.
    pub fn add(&mut self, column: ColumnRef, select: Select) -> bool {
        let place = match column {
            ColumnRef::Uuid => Some(&mut self.uuid),
            ColumnRef::Version => Some(&mut self.version),
            ColumnRef::Column(id) => self.columns.get_mut(id.index()).map(|column| &mut column.select),
        };
        place.is_some_and(|place| place.replace(select).is_none())
    }

    /// Sets the filter that selects the rows. Columns of earlier filters continue to count, as in the stock server.
    pub fn set_filter(&mut self, filter: Option<Arc<Filter>>) {
        for column in filter.iter().flat_map(|filter| filter.columns()) {
            self.add_filtered(column);
        }
        self.filter = filter;
    }

    /// Adds a column that counts though it is not shown.
    pub fn add_filtered(&mut self, column: ColumnRef) {
        match column {
            ColumnRef::Uuid => {}
            ColumnRef::Version => self.version_counts = true,
            ColumnRef::Column(id) => {
                if let Some(column) = self.columns.get_mut(id.index()) {
                    column.filtered = true;
                }
            }
        }
    }

    /// Returns true if an ephemeral column is shown, or decides which rows are.
    pub fn shows_ephemeral(&self, schema: &TableSchema) -> bool {
        let mut columns = self.columns.iter().zip(schema.columns());
        columns.any(|(plan, (_, column))| plan.counts() && column.ephemeral)
    }

    /// Returns true if `_version` is shown, or decides which rows are.
    pub fn shows_versions(&self) -> bool {
        self.version.is_some() || self.version_counts
    }

    fn write_key(&self, key: &mut Vec<u8>) -> Option<()> {
        let bits = |select: Option<Select>| select.map_or(16, Select::bits);
        key.extend_from_slice(&self.table.0.to_le_bytes());
        key.extend([self.select.bits(), bits(self.uuid), bits(self.version), u8::from(self.version_counts)]);
        key.extend(self.columns.iter().map(|column| bits(column.select) | u8::from(column.filtered) << 5));
        match &self.filter {
            None => key.push(b'*'),
            Some(filter) => key.extend_from_slice(filter.key()?),
        }
        Some(())
    }
}

/// `"name":`
fn member(name: &str) -> Box<[u8]> {
    let mut text = Vec::new();
    write::string(&mut text, name);
    text.push(b':');
    text.into()
}
