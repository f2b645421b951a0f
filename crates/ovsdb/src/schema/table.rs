//! The schema of a table.

use super::{ColumnId, ColumnRef, ColumnSchema, IDS_MAX, check_name, walked_members};
use crate::error::Error;
use crate::member_order;
use crate::members::{Kinds, Members};
use wire::json::{Value, write};

/// The schema of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableSchema {
    /// Its name.
    pub name: String,
    /// Whether any column may be changed.
    pub mutable: bool,
    /// Whether a row is kept if nothing refers to it.
    pub is_root: bool,
    /// Most rows; [`u32::MAX`] for no limit.
    pub max_rows: u32,
    /// Sets of columns whose values no two rows share. Those with `_uuid` are omitted: they cannot be violated.
    pub indexes: Vec<Vec<ColumnId>>,
    /// All indexes as the schema states them.
    declared_indexes: Vec<Vec<ColumnRef>>,
    /// In the order of names.
    columns: Vec<ColumnSchema>,
    /// In the order in which the stock server visits them.
    walk: Vec<ColumnRef>,
}

impl TableSchema {
    /// Reads a `<table-schema>`.
    pub(super) fn parse(json: Value<'_>, name: &str) -> Result<Self, Error> {
        let mut members = Members::new(json, format!("table schema for table {name}"));
        let columns = members.required("columns", Kinds::OBJECT);
        let mutable = members.optional("mutable", Kinds::BOOLEAN).and_then(Value::as_boolean);
        let max_rows = members.optional("maxRows", Kinds::INTEGER).and_then(Value::as_integer);
        let is_root = members.optional("isRoot", Kinds::BOOLEAN).and_then(Value::as_boolean);
        let indexes = members.optional("indexes", Kinds::ARRAY);
        members.finish()?;
        if max_rows.is_some_and(|rows| rows <= 0) {
            return Err(Error::syntax_error(json, "maxRows must be at least 1"));
        }
        let mut this = Self {
            name: name.to_owned(),
            mutable: mutable.unwrap_or(true),
            is_root: is_root.unwrap_or(false),
            max_rows: max_rows.map_or(u32::MAX, |rows| u32::try_from(rows).unwrap_or(u32::MAX)),
            indexes: Vec::new(),
            declared_indexes: Vec::new(),
            columns: Vec::new(),
            walk: Vec::new(),
        };
        let columns = walked_members(columns.unwrap_or(json));
        if columns.is_empty() {
            return Err(Error::syntax_error(json, "table must have at least one column"));
        }
        if columns.len() > IDS_MAX {
            return Err(Error::syntax_error_anywhere("too many columns"));
        }
        for (name, value) in columns {
            check_name(json, &name)?;
            this.columns.push(ColumnSchema::parse(value, &name)?);
        }
        let names: Vec<String> = ["_uuid", "_version"]
            .into_iter()
            .chain(this.columns.iter().map(|column| column.name.as_str()))
            .map(str::to_owned)
            .collect();
        this.columns.sort_by(|one, other| one.name.cmp(&other.name));
        let order = member_order::walk(names.iter().map(String::as_str));
        let name = |index: usize| names.get(index).map(String::as_str).unwrap_or_default();
        this.walk = order.into_iter().filter_map(|index| this.find_column(name(index))).collect();
        for index in indexes.into_iter().flat_map(Value::elements) {
            this.parse_index(json, index)?;
        }
        Ok(this)
    }

    fn parse_index(&mut self, json: Value<'_>, index: Value<'_>) -> Result<(), Error> {
        let columns = self.parse_column_set(index)?;
        if columns.is_empty() {
            return Err(Error::syntax_error(json, "index must have at least one column"));
        }
        let mut ids = Vec::new();
        let mut has_uuid = false;
        for column in &columns {
            let ephemeral = match *column {
                ColumnRef::Uuid => {
                    has_uuid = true;
                    None
                }
                ColumnRef::Version => Some("_version"),
                ColumnRef::Column(id) => {
                    ids.push(id);
                    self.get_column(id).filter(|column| column.ephemeral).map(|column| column.name.as_str())
                }
            };
            if let Some(name) = ephemeral {
                let details = format!("ephemeral columns (such as {name}) may not be indexed");
                return Err(Error::syntax_error(json, details));
            }
        }
        if !has_uuid {
            self.indexes.push(ids);
        }
        self.declared_indexes.push(columns);
        Ok(())
    }

    /// Reads an array of distinct names of columns, `_uuid` and `_version` among them.
    pub fn parse_column_set(&self, json: Value<'_>) -> Result<Vec<ColumnRef>, Error> {
        let malformed = || Error::syntax_error(json, "array of distinct column names expected");
        if json.cursor().peek() != b'[' {
            return Err(malformed());
        }
        let mut columns = Vec::new();
        for element in json.elements() {
            let Some(name) = element.as_string() else { return Err(malformed()) };
            let Some(column) = self.find_column(&name) else {
                return Err(Error::syntax_error(json, format!("{name} is not a valid column name")));
            };
            if columns.contains(&column) {
                return Err(malformed());
            }
            columns.push(column);
        }
        Ok(columns)
    }

    /// The columns in the order of their names.
    pub fn columns(&self) -> impl ExactSizeIterator<Item = (ColumnId, &ColumnSchema)> + Clone {
        self.columns.iter().enumerate().map(|(index, column)| (ColumnId(index as u16), column))
    }

    pub(super) fn columns_mut(&mut self) -> impl Iterator<Item = &mut ColumnSchema> {
        self.columns.iter_mut()
    }

    /// All columns in the order in which the stock server visits them, to report the same one of several errors.
    pub fn walk(&self) -> &[ColumnRef] {
        &self.walk
    }

    /// Number of columns.
    pub fn column_count(&self) -> usize {
        self.columns.len()
    }

    /// A column.
    #[inline]
    pub fn column(&self, id: ColumnId) -> &ColumnSchema {
        &self.columns[id.index()]
    }

    /// The column with this id, which may be from another schema.
    pub fn get_column(&self, id: ColumnId) -> Option<&ColumnSchema> {
        self.columns.get(id.index())
    }

    /// What a column's name refers to here.
    #[inline]
    pub fn find_column(&self, name: &str) -> Option<ColumnRef> {
        match name {
            "_uuid" => Some(ColumnRef::Uuid),
            "_version" => Some(ColumnRef::Version),
            name => {
                let index = self.columns.binary_search_by(|column| column.name.as_str().cmp(name)).ok()?;
                Some(ColumnRef::Column(ColumnId(index as u16)))
            }
        }
    }

    /// The name behind a column reference.
    pub fn column_name(&self, column: ColumnRef) -> &str {
        match column {
            ColumnRef::Uuid => "_uuid",
            ColumnRef::Version => "_version",
            ColumnRef::Column(id) => &self.column(id).name,
        }
    }

    /// Appends it as the stock server prints it (members sorted). `isRoot` is stated unless all tables are root.
    pub fn write_json(&self, all_are_root: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"columns\":{");
        for (index, column) in self.columns.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write::string(out, &column.name);
            out.push(b':');
            column.write_json(out);
        }
        out.push(b'}');
        if !self.declared_indexes.is_empty() {
            out.extend_from_slice(b",\"indexes\":[");
            for (place, index) in self.declared_indexes.iter().enumerate() {
                out.extend_from_slice(if place == 0 { b"[" } else { b",[" });
                for (place, column) in index.iter().enumerate() {
                    if place > 0 {
                        out.push(b',');
                    }
                    write::string(out, self.column_name(*column));
                }
                out.push(b']');
            }
            out.push(b']');
        }
        if self.is_root != all_are_root {
            out.extend_from_slice(if self.is_root { b",\"isRoot\":true" } else { b",\"isRoot\":false" });
        }
        if self.max_rows != u32::MAX {
            out.extend_from_slice(b",\"maxRows\":");
            write::unsigned(out, self.max_rows.into());
        }
        if !self.mutable {
            out.extend_from_slice(b",\"mutable\":false");
        }
        out.push(b'}');
    }
}
